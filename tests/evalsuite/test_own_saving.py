"""A user's treated model, saved in the user's own layout and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import ByHand, Convolutional, TwoInputs, config, hugging, mixed, text
from safetensors.torch import load_file
from torch import nn

from evalsuite import Network, load_own, refit_bias
from evalsuite.networks import save_network
from evalsuite.own.activations import OwnActivations
from evalsuite.own.adapter import adapted
from evalsuite.own.models import load_weights
from evalsuite.own.saving import Saved, save_own
from evalsuite.references import OwnError
from evalsuite.variants.variant import Made, maker, swapped

Make = Callable[[], nn.Module]


def random(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


class Treated:
    """A swapped network of `make`, and all that saving it takes."""

    def __init__(self, make: Make, example: Any, output: str = "") -> None:
        self.make, self.example, self.output = make, example, output
        self.own = OwnActivations.of(self.network(), example)
        torch.manual_seed(1)
        self.original = self.own.replaced(self.network(), maker(self.own.name)).eval()
        self.module = swapped(Made(self.original)).module

    def network(self) -> nn.Module:
        return self.adapt(self.make())

    def adapt(self, module: nn.Module) -> nn.Module:
        return adapted(module, self.example, output=self.output)

    def save(self, folder: Path, module: nn.Module | None = None) -> Saved:
        module = self.module if module is None else module
        return save_own(module, folder, make=self.make, adapt=self.adapt, own=self.own, example=self.example)

    def outputs(self, module: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = module(self.example)
        return found


PLAIN: dict[str, tuple[Make, Any, str]] = {
    "modules": (mixed, random(3, 6), ""),
    "functions": (Convolutional, random(3, 3, 6, 6), ""),
    "formulas": (ByHand, random(3, 6), ""),
    "two inputs": (TwoInputs, (random(3, 4), random(3, 3)), "0"),
}


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.slow
def test_a_plain_model_keeps_its_own_layout(case: str, tmp_path: Path) -> None:
    treated = Treated(*PLAIN[case])
    assert treated.save(tmp_path) == Saved("own")
    fresh = treated.make()
    assert load_file(tmp_path / "model.safetensors").keys() == fresh.state_dict().keys()
    load_weights(fresh, str(tmp_path / "model.safetensors"))
    assert torch.allclose(treated.outputs(treated.adapt(fresh.eval())), treated.outputs(treated.original), atol=1e-6)
    loaded = load_own(treated.make, tmp_path)
    found = loaded(*treated.example)[0] if case == "two inputs" else loaded(treated.example)
    assert torch.allclose(found, treated.outputs(treated.module), atol=1e-6)
    noted = json.loads((tmp_path / "activations.json").read_text())
    assert (noted["replaced"], noted["by"]) == (treated.own.name, "relu")
    assert not torch.allclose(found, treated.outputs(treated.original), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "head", "key"),
    [
        ("bert", "BertForSequenceClassification", "hidden_act"),
        ("gpt2", "GPT2LMHeadModel", "activation_function"),
        ("vit", "ViTForImageClassification", "hidden_act"),
        ("distilbert", "DistilBertForSequenceClassification", "activation"),
    ],
)
def test_a_hugging_face_model_becomes_a_folder_for_from_pretrained(
    kind: str, head: str, key: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    treated = Treated(hugging(kind, head, initializer_range=0.3), random(3, 3, 8, 8) if kind == "vit" else text())
    repaired = refit_bias(treated.module, treated.original, (treated.example,))
    if kind == "gpt2":
        reason = "its configuration knows no lm_head.bias, which a repair added"
        assert treated.save(tmp_path, repaired) == Saved("own", reason)
        with torch.no_grad():
            found = load_own(treated.make, tmp_path)(**text()).logits
        assert torch.allclose(found, treated.outputs(repaired), atol=1e-5)
        repaired = treated.module
    assert treated.save(tmp_path, repaired) == Saved("pretrained")
    assert json.loads((tmp_path / "config.json").read_text())[key] == "relu"
    loaded = getattr(transformers, head).from_pretrained(tmp_path).eval()
    assert torch.allclose(treated.outputs(treated.adapt(loaded)), treated.outputs(repaired), atol=1e-5)
    assert not torch.allclose(treated.outputs(repaired), treated.outputs(treated.original), atol=1e-3)


def test_a_configuration_that_does_not_govern_all_places_is_said(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Odd(transformers.BertForSequenceClassification):  # type: ignore[misc, name-defined]
        """Whose head has a GELU that no configuration names."""

        def __init__(self, given: Any) -> None:
            super().__init__(given)
            self.classifier = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))

    treated = Treated(lambda: Odd(config("bert", initializer_range=0.3)), text())
    reason = "with hidden_act: relu in its configuration it computes something else"
    assert treated.save(tmp_path) == Saved("own", reason)
    assert not (tmp_path / "config.json").exists()  # by which the GELU network would be loaded
    loaded = load_own(treated.make, tmp_path)
    with torch.no_grad():
        assert torch.allclose(loaded(**text()).logits, treated.outputs(treated.module), atol=1e-6)


def test_what_was_changed_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    treated = Treated(*PLAIN["functions"])
    treated.save(tmp_path)
    weights, described = tmp_path / "model.safetensors", tmp_path / "activations.json"

    def refusal(make: Make = Convolutional, folder: Path = tmp_path) -> str:
        with pytest.raises(OwnError) as error:
            load_own(make, folder)
        return str(error.value)

    nowhere = tmp_path / "nowhere"
    assert refusal(folder=nowhere) == (
        f"{nowhere / 'activations.json'}: cannot be read (No such file or directory); name a folder that save_own wrote"
    )
    assert refusal(ByHand).startswith(f"weights: {weights} does not fit ByHand: lacks first.weight")
    text_of = described.read_text()
    described.write_text(text_of.replace('"format":1', '"format":2').replace('"format": 1', '"format": 2'))
    assert refusal() == f"{described}: has format 2, this version reads 1; save the model again, or update"
    described.write_text(text_of[:-20])
    assert refusal() == f"{described}: is damaged, or of another version; save the model again"
    described.write_text(text_of)
    weights.write_bytes(weights.read_bytes()[:-4] + b"0000")
    assert refusal() == f"{weights}: is missing, or was changed since it was saved; save the model again"


def test_what_the_own_layout_has_no_place_for_is_refused(tmp_path: Path) -> None:
    treated = Treated(*PLAIN["modules"])
    learnt = treated.own.replaced(treated.network(), maker("prelu")).eval()
    with pytest.raises(OwnError) as error:
        treated.save(tmp_path, learnt)
    assert str(error.value) == (
        "the network has 1.weight, 5.weight, for which the model's own layout has no place; save it by"
        " evalsuite.save_module"
    )


class Building:
    """As much of a workload as saving a network asks for."""

    def __init__(self, treated: Treated) -> None:
        self.build = lambda make: treated.own.replaced(treated.network(), make)


@pytest.mark.parametrize("case", [*PLAIN, "gpt2"])
@pytest.mark.parametrize("activation", ["lambda-gelu", "relu"])
@pytest.mark.slow
def test_a_network_of_a_users_workload_is_saved_between_stages(case: str, activation: str, tmp_path: Path) -> None:
    cases = {**PLAIN, "gpt2": (hugging("gpt2", "GPT2LMHeadModel", initializer_range=0.3), text(), "")}
    treated = Treated(*cases[case])
    workload: Any = Building(treated)
    network = Network("own", workload.build(maker(activation)).eval(), (6,), 3, given=treated.example)
    save_network(network, tmp_path, workload)  # reads it back, and compares what it computes
    assert {path.name for path in tmp_path.iterdir()} == {"network.json", "module.safetensors"}

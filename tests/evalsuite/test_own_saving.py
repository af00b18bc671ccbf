"""A user's treated model, saved and read back; where a workload starts from, and what each
variant makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from own_networks import WORDS, ByHand, Convolutional, TwoInputs, config, hugging, mixed, text
from safetensors.torch import load_file
from torch import nn

from evalsuite import Data, Network, Split, Unsupported, load_own
from evalsuite.contract import Metric
from evalsuite.networks import load_network, save_network
from evalsuite.own.activations import OwnActivations
from evalsuite.own.adapter import adapted, own_network
from evalsuite.own.asked_model import Model
from evalsuite.own.models import load_model, load_weights
from evalsuite.own.saving import Saved, save_own
from evalsuite.run.child import _training
from evalsuite.run.making import make_network
from evalsuite.samples import Several
from evalsuite.tasks import Classification
from evalsuite.variants import Setup, Variant, standing
from evalsuite.variants.learnt import Learnt
from evalsuite.variants.post_hoc import PostHoc
from evalsuite.variants.swapped import Swapped
from evalsuite.variants.trained import Trained
from evalsuite.variants.variant import Made, built, maker, swapped
from evalsuite.workloads.options import Budget
from lambda_gelu import refit_bias
from opgraph.errors import OwnError

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
        return save_own(
            module, folder, make=self.make, adapt=self.adapt, own=self.own, example=self.example
        )

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
    assert torch.allclose(
        treated.outputs(treated.adapt(fresh.eval())), treated.outputs(treated.original), atol=1e-6
    )
    loaded = load_own(treated.make, tmp_path)
    found = loaded(*treated.example)[0] if case == "two inputs" else loaded(treated.example)
    assert torch.allclose(found, treated.outputs(treated.module), atol=1e-6)
    noted = json.loads((tmp_path / "activations.json").read_text())
    assert (noted["replaced"], noted["by"]) == (treated.own.name, "relu")
    assert not torch.allclose(found, treated.outputs(treated.original), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "head", "key"),
    [
        ("gpt2", "GPT2LMHeadModel", "activation_function"),
        ("vit", "ViTForImageClassification", "hidden_act"),
        ("distilbert", "DistilBertForSequenceClassification", "activation"),
    ],
)
def test_a_hugging_face_model_becomes_a_folder_for_from_pretrained(
    kind: str, head: str, key: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    treated = Treated(
        hugging(kind, head, initializer_range=0.3), random(3, 3, 8, 8) if kind == "vit" else text()
    )
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
    assert torch.allclose(
        treated.outputs(treated.adapt(loaded)), treated.outputs(repaired), atol=1e-5
    )
    assert not torch.allclose(
        treated.outputs(repaired), treated.outputs(treated.original), atol=1e-3
    )


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
    assert (
        refusal(folder=nowhere)
        == f"{nowhere / 'activations.json'}: cannot be read (No such file or directory); name a"
        " folder that save_own wrote"
    )
    assert refusal(ByHand).startswith(f"weights: {weights} does not fit ByHand: lacks first.weight")
    text_of = described.read_text()
    described.write_text(
        text_of.replace('"format":1', '"format":2').replace('"format": 1', '"format": 2')
    )
    assert (
        refusal()
        == f"{described}: has format 2, this version reads 1; save the model again, or update"
    )
    described.write_text(text_of[:-20])
    assert refusal() == f"{described}: is damaged, or of another version; save the model again"
    described.write_text(text_of)
    weights.write_bytes(weights.read_bytes()[:-4] + b"0000")
    assert (
        refusal()
        == f"{weights}: is missing, or was changed since it was saved; save the model again"
    )


def test_what_the_own_layout_has_no_place_for_is_refused(tmp_path: Path) -> None:
    treated = Treated(*PLAIN["modules"])
    learnt = treated.own.replaced(treated.network(), maker("prelu")).eval()
    with pytest.raises(OwnError) as error:
        treated.save(tmp_path, learnt)
    assert (
        str(error.value)
        == "the network has 1.weight, 5.weight, for which the model's own layout has no place; save"
        " it by evalsuite.resizing.save_module"
    )


class Building:
    """As much of a workload as saving a network asks for."""

    def __init__(self, treated: Treated) -> None:
        self.build = lambda make: treated.own.replaced(treated.network(), make)


GPT2 = (hugging("gpt2", "GPT2LMHeadModel", initializer_range=0.3), text(), "")


@pytest.mark.parametrize(
    ("case", "activation"),
    [
        ("modules", "lambda-gelu"),
        ("functions", "relu"),
        ("formulas", "lambda-gelu"),
        ("two inputs", "relu"),
        ("gpt2", "lambda-gelu"),
        ("gpt2", "relu"),
    ],
)
@pytest.mark.slow
def test_a_network_of_a_users_workload_is_saved_between_stages(
    case: str, activation: str, tmp_path: Path
) -> None:
    treated = Treated(*PLAIN.get(case, GPT2))
    workload: Any = Building(treated)
    network = Network(
        "own", workload.build(maker(activation)).eval(), (6,), 3, given=treated.example
    )
    save_network(network, tmp_path, workload)  # reads it back, and compares what it computes
    assert {path.name for path in tmp_path.iterdir()} == {"network.json", "module.safetensors"}


FROM_THE_FIRST_STEP = ["relu", "lambda-gelu", "annealed", "swish-annealed", "hard-switch"]
TREATMENTS = ["gelu-swap", "swap-refit", "swap-finetuned", "post-hoc"]


def part(count: int, seed: int) -> Split:
    """Texts of 8 words, some padded; the class is whether the word 7 occurs."""
    words = torch.randint(WORDS, (count, 8), generator=torch.Generator().manual_seed(seed))
    words[: count // 2, 2] = 7
    mask = torch.ones_like(words)
    mask[::3, 6:] = 0
    return Split(Several({"input_ids": words, "attention_mask": mask}), (words == 7).any(1).long())


@dataclass(frozen=True)
class OwnTexts(Budget):
    """A Hugging Face folder as a workload."""

    version: ClassVar[str] = "1"
    original: ClassVar[str] = "gelu"
    epochs: int = 2
    learning_rate: float = 1e-3
    folder: str = ""
    start: str = "trained"

    def fingerprint(self) -> str:
        return "none"

    def data(self) -> Data:
        train, calibration, validation, test = (
            part(count, index) for index, count in enumerate((64, 16, 16, 16))
        )
        return Data(train, calibration, validation, test, (0.0, 1.0), 2, "none", vocabulary=WORDS)

    def module(self) -> nn.Module:
        own = load_model(
            Model(f"hf:{self.folder}"), task=Classification(), classes=2, start=self.start
        )
        return adapted(own, text())

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return _places(self).replaced(self.module(), activation)


@cache
def _places(workload: OwnTexts) -> OwnActivations:
    return OwnActivations.of(workload.module(), text())


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> OwnTexts:
    """A folder whose weights are so large that its activations matter."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("own") / "bert"
    torch.manual_seed(0)
    wide = config(
        "bert",
        num_labels=2,
        initializer_range=0.3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0,
    )
    transformers.BertForSequenceClassification(wide).save_pretrained(folder)
    return OwnTexts(folder=str(folder))


def outputs(module: nn.Module, inputs: Any = None) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module.eval()(text() if inputs is None else inputs)
    return found


def setup_of(workload: OwnTexts) -> Setup:
    data = workload.data()
    return Setup(workload, data.train, data.calibration, 0)


def distance(first: nn.Module, second: nn.Module) -> float:
    """Of the outputs, relative to their size."""
    wanted, found = outputs(first), outputs(second)
    return float((found - wanted).norm() / wanted.norm())


def test_a_trained_network_is_its_own_baseline(workload: OwnTexts, tmp_path: Path) -> None:
    data = workload.data()
    network, made = make_network(workload, data, standing("gelu"), 0, name="own/gelu/0")
    assert torch.equal(outputs(network.module), outputs(workload.module()))
    assert (made.train_loss, made.budget) == (None, 0.0)
    rows: dict[str, Metric] = {
        each.name: each for each in _training(made, 1.0, workload, data.task)
    }
    assert (
        rows["train_loss"].reason
        == rows["train_time"].reason
        == "not trained: the weights are the user's, as they are"
    )
    save_network(network, tmp_path, workload)
    assert torch.equal(
        outputs(load_network(tmp_path, workload, data).module), outputs(network.module)
    )


@pytest.mark.parametrize("name", TREATMENTS)
def test_a_trained_network_is_treated(workload: OwnTexts, name: str) -> None:
    network, made = make_network(workload, workload.data(), standing(name), 0, name="own")
    assert made.budget == {"gelu-swap": 0.0, "swap-refit": 0.0}.get(name, 0.1)
    assert distance(workload.module(), network.module) > 1e-4
    assert network.unswapped is not None
    if name in ("gelu-swap", "swap-refit"):
        assert distance(workload.module(), network.unswapped) == 0
    if name == "gelu-swap":  # the library's own ReLU network with the same weights
        model = Model(f"hf:{workload.folder}", {"hidden_act": "relu"})
        relu = adapted(load_model(model, task=Classification(), classes=2, start="trained"), text())
        assert torch.allclose(outputs(network.module), outputs(relu), atol=1e-5)


@pytest.mark.parametrize("name", FROM_THE_FIRST_STEP)
def test_nothing_trains_a_trained_network_from_the_first_step(
    workload: OwnTexts, name: str
) -> None:
    with pytest.raises(Unsupported) as error:
        standing(name).make(setup_of(workload), None)
    assert (
        str(error.value)
        == "the network is trained already, with gelu (`start: trained`), and this variant trains"
        " from the first step; choose one that treats the trained network, with `base: gelu`:"
        " swapped, swap-refit, swap-recalibrated, swap-finetuned or post-hoc; or write `start:"
        " pretrained`"
    )


@pytest.mark.parametrize(
    "variant", [Trained("relu"), standing("annealed"), standing("hard-switch")]
)
def test_pretrained_weights_are_trained_on(workload: OwnTexts, variant: Variant) -> None:
    pretrained = replace(workload, start="pretrained")
    made = variant.make(setup_of(pretrained), None)
    assert made.train_loss is not None
    assert made.budget == 1.0
    trained = own_network(made.module).bert.embeddings.word_embeddings.weight
    given = own_network(workload.module()).bert.embeddings.word_embeddings.weight
    with torch.no_grad():
        assert 0 < float((trained - given).norm()) < float(given.norm()) / 4  # it began there


def test_relu_begins_with_the_direct_swap_of_pretrained_weights(workload: OwnTexts) -> None:
    begun = built(setup_of(replace(workload, start="pretrained")), "relu")
    base = Trained("gelu").make(setup_of(workload), None).module
    assert torch.allclose(
        outputs(begun), outputs(Swapped("gelu").make(setup_of(workload), base).module), atol=1e-6
    )
    # Of a network that is trained already a share of training is all that a treatment costs.
    assert PostHoc(share=0.5).make(setup_of(workload), base).budget == 0.5
    assert Swapped("gelu").make(setup_of(replace(workload, start="scratch")), base).budget == 1.0


@pytest.mark.parametrize("name", ["lambda-gelu", "annealed"])
def test_a_lambda_starts_where_the_pretrained_function_is_kept(
    workload: OwnTexts, name: str
) -> None:
    pretrained, variant = replace(workload, start="pretrained"), standing(name)
    assert isinstance(variant, Learnt)
    begun = pretrained.build(variant.beginning(pretrained).layer)
    assert distance(workload.module(), begun) < 1e-3
    # As before: the function moves by far more.
    assert distance(workload.module(), pretrained.build(variant.layer)) > 1e-2
    made = variant.make(setup_of(pretrained), None)
    assert [each.course[0][1] for each in made.profile] == pytest.approx([1.001] * 2, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "head"), [("gpt2", "GPT2LMHeadModel"), ("vit", "ViTForImageClassification")]
)
def test_other_pretrained_functions_are_kept_too(workload: OwnTexts, kind: str, head: str) -> None:
    transformers = pytest.importorskip("transformers")
    example = torch.rand(3, 3, 8, 8) if kind == "vit" else text()
    module = adapted(
        getattr(transformers, head)(config(kind, initializer_range=0.3)), example
    ).eval()
    own = OwnActivations.of(module, example)
    begun = own.replaced(module, Learnt().beginning(replace(workload, start="pretrained")).layer)
    wanted = outputs(module, example)
    assert float((outputs(begun, example) - wanted).norm() / wanted.norm()) < 1e-3


def test_a_lambda_learns_from_there(workload: OwnTexts) -> None:
    pretrained = replace(workload, start="pretrained", epochs=8, learning_rate=0.01)
    made = Learnt().make(setup_of(pretrained), None)
    # 16 steps of Adam with c = 9 multiply lambda - 1 by up to exp(16 x 9 x 0.01 / 2), the rate
    # falling to 0.
    assert all(not 0.95 < (each.learnt - 1) / 0.001 < 1.05 for each in made.profile)


def test_where_lambda_starts(workload: OwnTexts) -> None:
    pretrained = replace(workload, start="pretrained")
    assert Learnt().beginning(replace(workload, start="scratch")).initial is None
    assert Learnt(initial=1.5).beginning(pretrained).initial == 1.5
    quick = _Quick(folder=workload.folder, start="pretrained")
    assert Learnt("swish").beginning(quick).initial == 1.702  # quick GELU is Swish at that lambda
    assert Learnt("lambda-gelu").beginning(quick).initial == 1.001


@dataclass(frozen=True)
class _Quick(OwnTexts):
    original: ClassVar[str] = "quick-gelu"

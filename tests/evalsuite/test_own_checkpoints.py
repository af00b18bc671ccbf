"""A checkpoint is found by its structure, under any prefix or key, or refused with the cure."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from evalsuite.own.asked_model import Model
from evalsuite.own.models import load_weights
from opgraph.errors import OwnError

Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.BatchNorm1d(8),
        nn.GELU(),
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)),
    )


def under(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


WEIGHTS = net(1).state_dict()
OTHER = net(2).state_dict()
HEAD = {"weight": torch.zeros(5, 8), "bias": torch.zeros(5)}
ADAM: dict[str, Any] = {
    "state": {0: {"exp_avg": torch.zeros(8, 4), "step": torch.tensor(3.0)}},
    "param_groups": [{"lr": 0.1, "params": [0]}],
}

PREFIXES = [
    "net.",
    "backbone.",
    "model.",
    "module.",
    "_orig_mod.",
    "network.",
    "encoder.",
    "base_model.model.",
    "module.model.",
    "model._orig_mod.",
    "_orig_mod.module.backbone.",
    "student.net.",
    "_forward_module.model.",
    "generator.",
    "0.",
    "1.",
    "ema_model.",
    "_fsdp_wrapped_module.",
    "my.own.long.prefix.",
]
KEYS = (
    "net",
    "state_dict",
    "state_dict_ema",
    "model_state_dict",
    "ema",
    "params",
    "params_ema",
    "weights",
    "g",
)
LOADED: dict[str, Any] = {
    **{f"prefix {prefix}": under(prefix, WEIGHTS) for prefix in PREFIXES},
    **{f"key {key}": {key: WEIGHTS, "epoch": 3, "acc": 93.0} for key in KEYS},
    "keys in keys": {"checkpoint": {"model": {"params": WEIGHTS}, "best": 1.0}, "epoch": 3},
    "key and prefix": {"state_dict": under("module.backbone.", WEIGHTS), "epoch": 3},
    "with an optimizer": {
        "model": WEIGHTS,
        "optimizer": ADAM,
        "scheduler": {"last_epoch": 3},
        "rng": torch.zeros(8),
    },
    "two equal ones": {"model": WEIGHTS, "model_ema": dict(WEIGHTS), "epoch": 1},
    "of a Lightning module": {
        "state_dict": {**under("net.", WEIGHTS), "loss.weight": torch.ones(3)},
        "epoch": 1,
    },
    "of averaged weights": {**under("module.", WEIGHTS), "n_averaged": torch.tensor(3)},
    "beside a head": {**under("backbone.", WEIGHTS), **under("head.", HEAD)},
    "wrapped inside": {
        name.replace("3.", "3._orig_mod.module.", 1): tensor for name, tensor in WEIGHTS.items()
    },
    "wrapped in and out": under(
        "module.", {name.replace("3.", "3.module.", 1): t for name, t in WEIGHTS.items()}
    ),
    "without batch counts": {
        name: tensor for name, tensor in WEIGHTS.items() if "num_batches" not in name
    },
    "half precision": OrderedDict(
        (name, t.half() if t.is_floating_point() else t) for name, t in WEIGHTS.items()
    ),
    "double precision": {name: tensor.double() for name, tensor in WEIGHTS.items()},
    "counts as floats": {name: tensor.float() for name, tensor in WEIGHTS.items()},
    "parameters": {n: nn.Parameter(t) if t.is_floating_point() else t for n, t in WEIGHTS.items()},
    "none under a prefix lacks": under(
        "m.", {name: tensor for name, tensor in WEIGHTS.items() if "num_b" not in name}
    ),
}


@pytest.mark.parametrize("form", LOADED)
def test_the_one_state_dict_that_fits_is_loaded(form: str) -> None:
    torch.save(LOADED[form], "w.pt")
    module = net()
    load_weights(module, "w.pt")
    for name, tensor in module.state_dict().items():
        if "num_batches" not in name:
            assert torch.allclose(
                tensor, WEIGHTS[name], atol=1e-3 if form == "half precision" else 0
            )


@pytest.mark.parametrize("suffix", [".pth", ".ckpt", ".bin", ".pth.tar", ".safetensors"])
def test_files_of_each_ending_are_read(suffix: str) -> None:
    tensors = under("backbone.", WEIGHTS)
    save_file(tensors, f"w{suffix}") if suffix == ".safetensors" else torch.save(
        tensors, f"w{suffix}"
    )
    module = net()
    load_weights(module, f"w{suffix}")
    assert torch.equal(module.state_dict()["0.weight"], WEIGHTS["0.weight"])


AMBIGUOUS: dict[str, tuple[Any, dict[str, Tensors]]] = {
    "two keys": ({"model": WEIGHTS, "model_ema": OTHER}, {"model": WEIGHTS, "model_ema": OTHER}),
    "two prefixes": (
        {**under("student.", WEIGHTS), **under("teacher.", OTHER)},
        {"student": WEIGHTS, "teacher.": OTHER},
    ),
    "keys within a key": (
        {"all": {"a": WEIGHTS, "b": OTHER}, "n": 1},
        {"all.a": WEIGHTS, "all.b": OTHER},
    ),
    "a key and a prefix": (
        {"state_dict": under("net.", WEIGHTS), "ema": under("net.", OTHER)},
        {"state_dict": WEIGHTS, "ema": OTHER},
    ),
    "averages without counts": (
        {
            "model": WEIGHTS,
            "ema": {name: tensor for name, tensor in OTHER.items() if "num_b" not in name},
        },
        {"model": WEIGHTS, "ema": OTHER},
    ),
    "averages under a longer prefix": (
        {**under("module.", WEIGHTS), **under("ema.module.", OTHER)},
        {"module": WEIGHTS, "ema.module": OTHER},
    ),
}


@pytest.mark.parametrize("form", AMBIGUOUS)
def test_several_that_fit_are_refused_and_weights_key_chooses(form: str) -> None:
    content, keys = AMBIGUOUS[form]
    torch.save(content, "w.pt")
    with pytest.raises(
        OwnError, match=r"^weights: w\.pt: .* fit, and they differ; choose one by `weights_key`"
    ):
        load_weights(net(), "w.pt")
    for key, wanted in keys.items():
        module = net()
        load_weights(module, "w.pt", key)
        assert torch.equal(module.state_dict()["0.weight"], wanted["0.weight"])
    with pytest.raises(OwnError, match=r"^weights_key: w\.pt has no 'nothing'"):
        load_weights(net(), "w.pt", "nothing")


REFUSED: dict[str, tuple[Any, str]] = {
    "one is missing": (
        {n: t for n, t in under("net.", WEIGHTS).items() if n != "net.3.0.bias"},
        "lacks 3.0.bias",
    ),
    "a running mean is missing": (
        {n: t for n, t in WEIGHTS.items() if "mean" not in n},
        "lacks 1.running_mean",
    ),
    "one too many": ({**WEIGHTS, "4.weight": torch.zeros(2)}, "has 4.weight too many"),
    "one too many, prefixed": (
        under("net.", {**WEIGHTS, "4.bias": torch.zeros(2)}),
        "has 4.bias too many",
    ),
    "another shape": (
        under("net.", {**WEIGHTS, "0.bias": torch.zeros(9)}),
        "0.bias is [9], not [8]",
    ),
    "one within a larger one": ({**WEIGHTS, **under("1.", WEIGHTS)}, "too many"),
    "nothing alike": ({"a": torch.zeros(2), "b.c": torch.zeros(3)}, "lacks 0.weight"),
    "an optimizer alone": ({"optimizer": ADAM}, "lacks 0.weight"),
    "values beside": ({**WEIGHTS, "epoch": 3}, "holds epoch beside tensors"),
    "no tensors": ({"epoch": 3, "config": {"width": 4}}, "holds epoch, config beside tensors"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_does_not_fit_is_refused(form: str) -> None:
    content, said = REFUSED[form]
    torch.save(content, "w.pt")
    module = net()
    with pytest.raises(OwnError, match=r"^weights: w\.pt ") as refused:
        load_weights(module, "w.pt")
    assert said in str(refused.value)
    # nothing was changed
    assert torch.equal(module.state_dict()["0.weight"], net().state_dict()["0.weight"])


class Tied(nn.Module):
    """Two names for one tensor, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.arange(5), persistent=False)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64]
)
def test_real_weights_stored_as_other_numbers_are_refused(dtype: torch.dtype) -> None:
    torch.save(under("net.", {name: tensor.to(dtype) for name, tensor in WEIGHTS.items()}), "w.pt")
    with pytest.raises(
        OwnError,
        match=r"^weights: w\.pt: 0\.weight is stored as \w+, where the network has real numbers",
    ):
        load_weights(net(), "w.pt")


NARROW = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("file", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("name", NARROW)
def test_weights_that_have_scales_beside_them_are_refused(name: str, file: str) -> None:
    stored = {**WEIGHTS, "0.weight": WEIGHTS["0.weight"].to(getattr(torch, name))}
    (torch.save if file == "w.pt" else save_file)(stored, file)
    with pytest.raises(
        OwnError, match=rf"{file}: 0\.weight is stored as {name}, where the network"
    ):
        load_weights(net(), file)
    torch.save({"model": stored, "copy": {n: t.clone() for n, t in stored.items()}}, "w.pt")
    with pytest.raises(OwnError, match=rf"0\.weight is stored as {name}"):
        load_weights(net(), "w.pt")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensor: tensor.to("meta"), "is a meta tensor, of a shape without numbers"),
        (lambda tensor: tensor.to_sparse(), "is sparse, or nested; save its .to_dense()"),
        (lambda tensor: tensor.to_sparse_csr(), "is sparse, or nested"),
        (lambda tensor: torch.nested.nested_tensor(list(tensor)), "is sparse, or nested"),
        (
            lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
            "is quantized; save its .dequantize()",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_plain_numbers_are_refused_by_what_they_are(change: Any, said: str) -> None:
    torch.save({**WEIGHTS, "0.weight": change(WEIGHTS["0.weight"])}, "w.pt")
    with pytest.raises(OwnError, match=r"^weights: w\.pt: 0\.weight is ") as refused:
        load_weights(net(), "w.pt")
    assert said in str(refused.value)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.model."])
def test_tied_weights_that_differ_in_the_file_are_refused(prefix: str) -> None:
    embedding = torch.randn(7, 4)
    torch.save(
        under(prefix, {"embed.weight": embedding, "head.weight": embedding.clone()}), "equal.pt"
    )
    load_weights(tied := Tied(), "equal.pt")
    assert torch.equal(tied.head.weight, embedding)
    torch.save(under(prefix, {"embed.weight": embedding, "head.weight": embedding + 1}), "w.pt")
    with pytest.raises(
        OwnError,
        match=r"^weights: w\.pt: embed\.weight and head\.weight differ, but are one tensor",
    ):
        load_weights(Tied(), "w.pt")


def test_torchs_own_rules_and_what_files_leave_out() -> None:
    tied = Tied()
    half = {
        "net.embed.weight": tied.embed.weight.detach().clone() + 1,
        "net.positions": torch.arange(5),
    }
    torch.save(half, "tied.pt")
    load_weights(tied, "tied.pt")
    assert torch.equal(tied.head.weight, half["net.embed.weight"])
    torch.save({**half, "net.positions": torch.arange(5) + 1}, "moved.pt")
    with pytest.raises(OwnError, match="has positions too many"):
        load_weights(Tied(), "moved.pt")
    # torch renames what the old weight_norm saved.
    normed = weight_norm(nn.Linear(3, 2))
    old = {
        "m.weight_g": torch.ones(2, 1),
        "m.weight_v": torch.randn(2, 3),
        "m.bias": torch.zeros(2),
    }
    torch.save(old, "normed.pt")
    load_weights(normed, "normed.pt")
    assert torch.equal(normed.parametrizations.weight.original1, old["m.weight_v"])


def test_a_file_without_the_prefix_that_the_network_has() -> None:
    torch.save(WEIGHTS, "w.pt")
    wrapped = nn.Sequential(OrderedDict(net=net()))
    load_weights(wrapped, "w.pt")
    assert torch.equal(wrapped.state_dict()["net.0.weight"], WEIGHTS["0.weight"])


def test_weights_key_needs_weights() -> None:
    assert Model("my.py:net", weights="w.pt", weights_key="ema") != Model(
        "my.py:net", weights="w.pt"
    )
    with pytest.raises(ValueError, match="weights_key is 'ema', but there are no `weights`"):
        Model("my.py:net", weights_key="ema")

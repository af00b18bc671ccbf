"""`save_module` and `load_module`: pruned modules come back exactly, and nothing else comes in."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import slow
from own_networks import hugging
from safetensors.torch import load_file, save_file
from torch import nn

from evalsuite import LambdaGELU, Network
from evalsuite.networks import load_network, save_network
from evalsuite.plugins import load
from evalsuite.resizing import load_module, save_module
from evalsuite.run.child import digest_network

WORKLOADS = ("digits-mlp", "digits-cnn", "digits-resnet", "digits-vit", "text-gpt")


def build(workload: str) -> nn.Module:
    return load("workloads", workload).target().build(lambda _: nn.GELU())


def cut(
    module: nn.Module, path: str, *, rows: list[int] | None = None, columns: list[int] | None = None
) -> None:
    """Keep these output channels, and these input channels, of a layer: its tensors, and the
    sizes it has in torch.
    """
    layer = module.get_submodule(path)
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = getattr(layer, name, None)
        if tensor is None:
            continue
        kept = tensor.detach() if rows is None else tensor.detach()[rows]
        if columns is not None and name == "weight":
            kept = kept[:, columns]
        setattr(
            layer,
            name,
            nn.Parameter(kept.clone()) if isinstance(tensor, nn.Parameter) else kept.clone(),
        )
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.Conv2d):
        layer.out_channels, layer.in_channels = (
            layer.weight.shape[0],
            layer.weight.shape[1] * layer.groups,
        )
    elif isinstance(layer, nn.BatchNorm2d):
        layer.num_features = len(layer.weight)


def randomized(module: nn.Module) -> nn.Module:
    """Every parameter and statistic random: none is what a fresh module has by default."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in [
            *module.parameters(),
            *(each for each in module.buffers() if each.is_floating_point()),
        ]:
            tensor.add_(torch.rand(tensor.shape, generator=generator) * 0.2)
    return module.eval()


def pruned(workload: str) -> nn.Module:
    """Channels cut by hand, and the middle one of three heads where there are some."""
    module = randomized(build(workload))
    odd = list(range(1, 16, 2))
    if workload == "digits-mlp":
        cut(module, "0", rows=odd)
        cut(module, "2", rows=[0, 3, 4], columns=odd)
        cut(module, "4", columns=[0, 3, 4])
    elif workload == "digits-cnn":
        cut(module, "0", rows=odd)
        cut(module, "1", rows=odd)
        cut(module, "3", columns=odd)
        cut(module, "10", rows=[5, 9])
        cut(module, "12", columns=[5, 9])
    elif workload == "digits-resnet":
        for place in ("3.residual.0", "3.residual.1"):
            cut(module, place, rows=odd)
        cut(module, "3.residual.3", columns=odd)
    else:
        width, size = (
            (48, module.blocks[0].attention.head_size) if workload == "digits-vit" else (128, 32)
        )
        heads = [*range(size), *range(2 * size, width)]
        cut(
            module,
            "blocks.1.attention.project_in",
            rows=[part * width + row for part in range(3) for row in heads],
        )
        cut(module, "blocks.1.attention.project_out", columns=heads)
        cut(module, "blocks.0.feed_forward.up", rows=odd)
        cut(module, "blocks.0.feed_forward.down", columns=odd)
    return module


def inputs(workload: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if workload == "text-gpt":
        return torch.randint(256, (3, 12), generator=generator)
    return torch.rand((5, 64) if workload == "digits-mlp" else (5, 1, 8, 8), generator=generator)


@torch.no_grad()
def error(first: nn.Module, second: nn.Module, example: Any) -> float:
    return (first(example) - second(example)).abs().max().item()


def refused(fresh: nn.Module, folder: Path, text: str) -> str:
    """What is said where `folder` does not give its weights to this module."""
    with pytest.raises(ValueError, match=text) as caught:
        load_module(fresh, folder)
    return str(caught.value)


def retouch(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Write other tensors in the place of the saved ones."""
    tensors = load_file(folder / "module.safetensors")
    change(tensors)
    save_file(tensors, folder / "module.safetensors")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_pruned_workload_comes_back_exactly(workload: str, tmp_path: Path) -> None:
    module, example = pruned(workload), inputs(workload)
    save_module(module, tmp_path, fresh=build(workload), example=example)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["module.json", "module.safetensors"]
    fresh = build(workload)
    whole = copy.deepcopy(fresh.state_dict())
    loaded = load_module(fresh, tmp_path)
    assert error(loaded, module, example) == 0.0
    assert str(loaded) == str(module)  # with every size that torch prints
    assert not loaded.training
    assert all(torch.equal(whole[name], tensor) for name, tensor in fresh.state_dict().items())
    assert sum(each.numel() for each in loaded.parameters()) < sum(
        each.numel() for each in fresh.parameters()
    )


def test_a_pruned_network_goes_on_to_the_next_step(tmp_path: Path) -> None:
    kind = load("workloads", "digits-vit").target()
    data = kind.data()
    module = pruned("digits-vit")
    made = Network(
        "x", module, data.input_shape, data.classes, copy.deepcopy(module), data.vocabulary
    )
    save_network(made, tmp_path, kind)
    loaded = load_network(tmp_path, kind, data)
    for each in (loaded.module, loaded.unswapped):
        assert error(each, module, made.example(3)) == 0.0


gpt2 = hugging("gpt2", "GPT2LMHeadModel", n_embd=24, n_head=3)


def with_linears(module: nn.Module) -> nn.Module:
    """Each Conv1D of GPT-2 as the Linear that computes the same."""
    for path, layer in list(module.named_modules()):
        if type(layer).__name__ == "Conv1D":
            linear = nn.Linear(*layer.weight.shape)
            linear.weight, linear.bias = nn.Parameter(layer.weight.detach().t().clone()), layer.bias
            module.set_submodule(path, linear)
    return module


def pruned_gpt2() -> nn.Module:
    module = with_linears(randomized(gpt2()))
    kept = [*range(8), *range(16, 24)]
    cut(
        module,
        "transformer.h.0.attn.c_attn",
        rows=[part * 24 + row for part in range(3) for row in kept],
    )
    cut(module, "transformer.h.0.attn.c_proj", columns=kept)
    attention = module.transformer.h[0].attn
    attention.num_heads, attention.split_size = 2, 16
    cut(module, "transformer.h.1.mlp.c_fc", rows=[0, 7])
    cut(module, "transformer.h.1.mlp.c_proj", columns=[0, 7])
    return module


def test_gpt2_without_a_head_comes_back_exactly_and_stays_tied(tmp_path: Path) -> None:
    module, tokens = pruned_gpt2(), torch.arange(12).reshape(2, 6)
    save_module(module, tmp_path, fresh=with_linears(gpt2()), example=tokens)
    saved = load_file(tmp_path / "module.safetensors")
    assert "lm_head.weight" not in saved
    loaded = load_module(with_linears(gpt2()), tmp_path)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert [(each.attn.num_heads, each.attn.split_size) for each in loaded.transformer.h] == [
        (2, 16),
        (3, 24),
    ]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, module(tokens).logits)


def test_gpt2_must_be_converted_and_tied_as_before(tmp_path: Path) -> None:
    save_module(pruned_gpt2(), tmp_path)
    refused(
        gpt2(),
        tmp_path,
        r"h\.0\.attn\.c_attn is a Conv1D here and was a Linear.*transposed.*convert",
    )
    apart = with_linears(gpt2())
    apart.lm_head.weight = nn.Parameter(apart.lm_head.weight.detach().clone())
    refused(apart, tmp_path, r"lm_head\.weight are apart here and were tied")
    save_module(apart, tmp_path)
    refused(with_linears(gpt2()), tmp_path, r"lm_head\.weight are tied here and were apart")


class Zoo(nn.Module):
    """The layers that hold their sizes in attributes: depthwise and grouped convolutions, norms,
    an embedding.
    """

    def __init__(self, width: int = 8, channels: int = 6, per_channel: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width, padding_idx=0)
        self.norm = nn.LayerNorm(width)
        self.spread = nn.Conv1d(width, channels, 1)
        self.activation = LambdaGELU(channels if per_channel else None)
        self.depthwise = nn.Conv1d(channels, channels, 3, padding=1, groups=channels)
        self.grouped = nn.Conv1d(channels, 4, 1, groups=2)
        self.group_norm = nn.GroupNorm(2, 4)
        self.batch_norm = nn.BatchNorm1d(4)
        self.up = nn.ConvTranspose1d(4, 3, 2)
        self.head = nn.Linear(3, 5, bias=False)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))
        self.register_buffer("cache", torch.tensor(float(width)), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.spread(self.norm(self.embedding(tokens)).mT))
        x = self.up(self.batch_norm(self.group_norm(self.grouped(self.depthwise(x)))))
        return self.head(x.mean(-1)) + self.mask.exp().sum()


TOKENS = torch.arange(8).reshape(2, 4)


def zoo(*sizes: int) -> nn.Module:
    torch.manual_seed(3)
    return randomized(Zoo(*sizes))


def test_every_layer_repeats_its_new_shape(tmp_path: Path) -> None:
    # 6 channels become 4, and 8 features 5: a Zoo built with these sizes has every attribute as it
    # should be.
    module = zoo(5, 4)
    module.activation.set_hardness(1 + torch.rand(4))
    save_module(module, tmp_path, fresh=Zoo(), example=TOKENS)
    loaded = load_module(Zoo(), tmp_path)
    assert error(loaded, module, TOKENS) == 0.0
    assert str(loaded) == str(module)
    assert (loaded.depthwise.groups, loaded.grouped.groups) == (4, 2)
    assert loaded.norm.normalized_shape == (5,)
    assert loaded.cache == 8.0  # not persistent, so the fresh module's
    assert error(load_module(Zoo(per_channel=False), tmp_path), module, TOKENS) == 0.0


def test_biases_that_came_or_went(tmp_path: Path) -> None:
    def fresh() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6), nn.Linear(6, 2))

    module = fresh().eval()
    module[0].bias = nn.Parameter(torch.rand(6))
    module[1].bias = module[2].bias = None
    save_module(module, tmp_path, fresh=fresh(), example=torch.rand(3, 4))
    loaded = load_module(fresh().requires_grad_(False), tmp_path)
    assert torch.equal(loaded[0].bias, module[0].bias)
    assert loaded[1].bias is None
    assert loaded[2].bias is None
    assert not any(each.requires_grad for each in loaded.parameters())


@pytest.mark.parametrize("ours", [nn.Linear(4, 6), nn.LayerNorm(6)])
def test_a_bias_that_was_not_saved_though_the_layer_had_one_is_refused(
    ours: nn.Module, tmp_path: Path
) -> None:
    save_module(ours, tmp_path)
    retouch(tmp_path, lambda tensors: tensors.pop("bias"))
    forge(tmp_path, lambda found: found["tensors"].pop("bias"))
    refused(ours, tmp_path, "the tensor bias of the module was not saved")


@pytest.mark.slow
def test_it_loads_in_another_process_without_torch_pruning(tmp_path: Path) -> None:
    module, example = pruned("digits-vit"), inputs("digits-vit")
    save_module(module, tmp_path)
    code = (
        "import sys; sys.modules['torch_pruning'] = None\n"
        "import torch; from torch import nn; from evalsuite.resizing import load_module\n"
        "from evalsuite.workloads.vit import DigitsViT\n"
        f"loaded = load_module(DigitsViT().build(lambda _: nn.GELU()), {str(tmp_path)!r})\n"
        "torch.set_num_threads(1)\n"
        "x = torch.rand((5, 1, 8, 8), generator=torch.Generator().manual_seed(1))\n"
        "print([value.hex() for value in loaded(x).flatten().tolist()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        assert done.stdout.strip() == str(
            [value.hex() for value in module(example).flatten().tolist()]
        )


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()


def with_checksum(found: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in found.items() if key != "checksum"}
    return {
        **rest,
        "checksum": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest(),
    }


def forge(folder: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
    """Change the description as somebody with bad intentions would: with both digests right
    again.
    """
    found = json.loads((folder / "module.json").read_text())
    found["sha256"] = hashlib.sha256((folder / "module.safetensors").read_bytes()).hexdigest()
    change(found)
    (folder / "module.json").write_text(json.dumps(with_checksum(found)))


def state(layer: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: found["layers"][layer].setdefault("sizes", {}).update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda found: found.update(format=2),
            r"module\.json: has format '2', this version reads 1",
        ),
        (lambda found: found.update(more=1), r"module\.json: is damaged: more: Extra inputs"),
        (lambda found: found.pop("ties"), r"module\.json: is damaged: ties: Field required"),
        (
            lambda found: found["tensors"]["0.bias"].update(shape=[10**12]),
            r"'0.bias' is float32 \[6\], not float32 \[",
        ),
        (
            lambda found: found["tensors"]["0.bias"].update(shape=[-6]),
            "is damaged: tensors.0.bias.shape.0",
        ),
        (lambda found: found["tensors"].pop("0.bias"), "the tensor '0.bias' is not described"),
        (
            lambda found: found["tensors"].update(x=found["tensors"]["0.bias"]),
            "the tensor 'x' is missing in it",
        ),
        (lambda found: found["ties"].update(x="nothing"), "ties name 'nothing'"),
        (
            lambda found: found["ties"].update(x="0.bias"),
            "the saved tensor x has no place in the module",
        ),
        (
            lambda found: found["ties"].update({"\ud800": "0.bias"}),
            r"the saved tensor \\ud800 has no place",
        ),
        (
            lambda found: found["layers"].update({"\ud800": {}}),
            r"the layer \\ud800 is only in the saved module",
        ),
        (
            lambda found: found["layers"]["0"].update(kind="\ud800"),
            r"0 is a Linear here and was a \\ud800",
        ),
        (
            lambda found: found["tensors"]["0.bias"].update(dtype="\ud800"),
            r"not \\ud800 \[6\] as described",
        ),
        (lambda found: found["layers"].pop("1"), "the layer 1 is missing in the saved module"),
        (
            state("0", in_features=-1),
            r"0\.in_features is 4 here and -1 in the file: that is no size",
        ),
        (
            state("0", in_features=2**31),
            r"0\.in_features is 4 here and 2147483648 in the file: that is no size",
        ),
        (state("0", in_features=2**63), "is damaged: layers.0.sizes.in_features"),
        (state("0", in_features=4.0), "is damaged: layers.0.sizes.in_features"),
        (state("0", in_features=True), "is damaged: layers.0.sizes.in_features"),
        (state("0", __class__=1), "is damaged: layers.0.sizes.__class__"),
        (state("0", forward=1), r"0\.forward was 1, but is no such number here"),
        (state("0", training=1), r"0\.training was 1, but is no such number here"),
        (state("0", weight=1), r"0\.weight was 1, but is no such number here"),
        (state("0", in_features=[4]), r"0\.in_features was \(4,\), but is no such number here"),
        (
            lambda found: (
                found["layers"]["0"].update(absent=["weight"]) or found["tensors"].pop("0.weight")
            ),
            "'0.weight' is not described",
        ),
    ],
)
def test_a_forged_description_is_refused(
    change: Callable[[dict[str, Any]], None], text: str, tmp_path: Path
) -> None:
    save_module(small(), tmp_path)
    forge(tmp_path, change)
    said = refused(small(), tmp_path, text)
    assert str(tmp_path) in said
    assert said.encode()


def test_a_weight_that_is_said_to_be_absent_is_refused(tmp_path: Path) -> None:
    save_module(small(), tmp_path)
    forge(tmp_path)  # which changes nothing
    assert error(load_module(small(), tmp_path), small(), torch.rand(3, 4)) == 0.0
    retouch(tmp_path, lambda tensors: tensors.pop("0.weight"))
    forge(
        tmp_path,
        lambda found: (
            found["layers"]["0"].update(absent=["weight"]) or found["tensors"].pop("0.weight")
        ),
    )
    refused(small(), tmp_path, r"0\.weight was not saved: a Linear needs it")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield from leaves(value[key], (*path, key))


VALUES: tuple[Any, ...] = (
    None,
    -1,
    3,
    2**70,
    0.5,
    "x",
    [],
    [2, -3],
    {},
    {"__class__": 1},
    {"x": {}},
)


@pytest.mark.parametrize("share", [0.03, slow(0.5)])
def test_no_forged_value_anywhere_does_more_than_be_refused(share: float, tmp_path: Path) -> None:
    save_module(zoo(), tmp_path)
    original = json.loads((tmp_path / "module.json").read_text())
    trials = [(path, value) for path in leaves(original) if path for value in VALUES]
    trials = random.Random(0).sample(trials, int(share * len(trials)))
    refused = 0
    for path, value in trials:
        found = copy.deepcopy(original)
        place = found
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        (tmp_path / "module.json").write_text(
            json.dumps(found if path == ("checksum",) else with_checksum(found))
        )
        try:
            load_module(zoo(), tmp_path)
        except ValueError:
            refused += 1
    assert refused > 0.8 * len(trials) > 50


@pytest.mark.parametrize("places", [12, slow(150)])
@pytest.mark.parametrize("name", ["module.json", "module.safetensors"])
def test_a_file_cut_off_or_changed_at_any_byte_is_refused(
    name: str, places: int, tmp_path: Path
) -> None:
    save_module(small(), tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    for offset in range(0, len(whole), max(1, len(whole) // places)):
        path.write_bytes(whole[:offset])
        refused(small(), tmp_path, rf"{name}: ")
        for mask in (1, 16, 255):
            path.write_bytes(whole[:offset] + bytes([whole[offset] ^ mask]) + whole[offset + 1 :])
            if name == "module.json" and json.loads(whole) == parsed(path):
                continue  # another white space
            refused(small(), tmp_path, rf"{name}: ")


def parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


@pytest.mark.parametrize("step", [13, slow(2)])
def test_a_header_changed_anywhere_with_its_digest_is_refused_or_harmless(
    step: int, tmp_path: Path
) -> None:
    save_module(small(), tmp_path)
    path = tmp_path / "module.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    shapes = [each.shape for each in small().parameters()]
    refused = 0
    for offset in range(0, header, step):
        for new in (whole[offset] ^ 1, whole[offset] ^ 4, ord("9"), 255):
            path.write_bytes(whole[:offset] + bytes([new]) + whole[offset + 1 :])
            forge(tmp_path)
            try:
                assert [
                    each.shape for each in load_module(small(), tmp_path).parameters()
                ] == shapes
            except ValueError:
                refused += 1
    assert refused > header // step


class Payload:
    """Unpickled, it would leave a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


HUGE = json.dumps(
    {"0.bias": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
).encode()


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (kind, digest)
        for kind in ("pickle", "torch", "text", "empty")
        for digest in ("wrong", "right")
    ]
    + [("a million million elements", "right")],
)
def test_what_is_no_safetensors_file_is_refused_and_no_pickle_opened(
    kind: str, digest: str, tmp_path: Path
) -> None:
    save_module(small(), tmp_path)
    path, mark = tmp_path / "module.safetensors", tmp_path / "mark"
    huge = len(HUGE).to_bytes(8, "little") + HUGE
    contents = {"pickle": pickle.dumps(Payload(mark)), "text": b"hello", "empty": b""}
    if kind == "torch":
        torch.save(Payload(mark), path)
    else:
        path.write_bytes(contents.get(kind, huge))
    if digest == "right":
        forge(tmp_path)
    refused(small(), tmp_path, r"module\.safetensors: is no safetensors file")
    assert not mark.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 10**5, '{"format": 1}', "9" * 10**4, '{"format": NaN}']
)
def test_what_is_no_description_is_refused(text: str, tmp_path: Path) -> None:
    save_module(small(), tmp_path)
    (tmp_path / "module.json").write_text(text)
    refused(small(), tmp_path, r"module\.json: ")


@pytest.mark.parametrize("name", ["module.json", "module.safetensors"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    save_module(small(), tmp_path)
    (tmp_path / name).unlink()
    refused(small(), tmp_path, rf"{name}: is missing")
    (tmp_path / name).mkdir()
    refused(small(), tmp_path, rf"{name}: cannot be read")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    save_module(small(), tmp_path)
    retouch(tmp_path, lambda tensors: tensors["2.weight"][0].fill_(torch.inf))
    forge(tmp_path)
    refused(small(), tmp_path, r"2\.weight has a value that is NaN or infinite")
    diverged = small()
    with torch.no_grad():
        diverged[0].bias[1] = torch.nan
    with pytest.raises(ValueError, match=r"0\.bias has a value that is NaN or infinite"):
        save_module(diverged, tmp_path)


def sequential(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).eval()


class Scaled(nn.Module):
    def __init__(
        self, shape: tuple[int, ...], scale: float = 1.0, stride: tuple[int, int] = (1, 1)
    ) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.factor = nn.Parameter(torch.ones(shape))
        self.scale, self.stride = scale, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.inner.factor * self.scale


@pytest.mark.parametrize(
    ("saved", "fresh", "text"),
    [
        (small(), small().double(), r"0\.weight is float64 here and was float32: convert"),
        (
            small(),
            sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)),
            "1 is a GELU here and was a ReLU",
        ),
        (
            small(),
            sequential(nn.Linear(4, 6), nn.ReLU()),
            "the layer 2 is only in the saved module",
        ),
        (small(), sequential(*small(), nn.ReLU()), "the layer 3 is missing in the saved module"),
        (small(), nn.Linear(4, 6), "the layer 0 is only in the saved module"),
        (small(), nn.ModuleList(small()), "the module is a ModuleList here and was a Sequential"),
        # What resizing cannot make equal.
        (
            Scaled((3,)),
            Scaled((3, 1)),
            r"inner\.factor has shape \(3, 1\) here and had \(3,\): resizing keeps the num",
        ),
        (Scaled((3,)), Scaled((3,), scale=2.0), "scale is 2.0 here and was 1.0"),
        (Scaled((3,)), Scaled((3,), stride=(2, 1)), r"stride is \(2, 1\) here and was \(1, 1\)"),
        # Another constant.
        (
            nn.ELU(0.5),
            nn.ELU(1),
            r"alpha is 1 here and was 0\.5: build the module with the saved value",
        ),  # type: ignore[arg-type]
        (nn.Hardtanh(-0.5, 0.5), nn.Hardtanh(-1, 1), r"max_val is 1 here and was 0\.5"),
        (nn.Hardtanh(0.0, math.inf), nn.Hardtanh(0.0, 1.0), r"max_val is 1\.0 here and was inf"),
        (nn.Hardtanh(0.0, 1.0), nn.Hardtanh(0.0, math.inf), r"max_val is inf here and was 1\.0"),
        (nn.GELU(approximate="tanh"), nn.GELU(), r"approximate is 'none' here and was 'tanh'"),
        (Scaled((3,), 0.5), Scaled((3,), "\ud800"), r"scale is '\\ud800' here and was 0\.5"),  # type: ignore[arg-type]
        (Scaled((3,), "\ud800"), Scaled((3,), 0.5), r"scale is 0\.5 here and was '\\ud800'"),  # type: ignore[arg-type]
        (Scaled((3,), 0.5), Scaled((3,), None), r"scale is no number or text here and was 0\.5"),  # type: ignore[arg-type]
    ],
)
def test_another_network_is_refused(
    saved: nn.Module, fresh: nn.Module, text: str, tmp_path: Path
) -> None:
    save_module(saved, tmp_path)
    assert refused(fresh, tmp_path, rf"does not fit the given \w+: .*{text}").encode()


@pytest.mark.parametrize(("saved", "fresh"), [(1.0, 1), (1, 1.0), (math.inf, math.inf), (2, 1)])
def test_the_same_constant_is_taken_be_it_an_integer_or_not(
    saved: float, fresh: float, tmp_path: Path
) -> None:
    module, example = sequential(nn.ELU(saved)), torch.tensor([-1.0, 0.0, 2.0])
    save_module(module, tmp_path)
    assert torch.equal(load_module(sequential(nn.ELU(fresh)), tmp_path)(example), module(example))


def test_what_a_model_is_called_may_differ(tmp_path: Path) -> None:
    named, fresh = small(), small()
    named.name_or_path, fresh.name_or_path = "here/pruned", ""
    save_module(named, tmp_path)
    assert load_module(fresh, tmp_path).name_or_path == ""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.Linear(3, 4), "bias"),
        (nn.Conv1d(3, 4, 1), "bias"),
        (nn.ConvTranspose1d(3, 4, 1), "bias"),
        (nn.BatchNorm1d(4), "bias"),
        (nn.BatchNorm1d(4), "running_mean"),
        (nn.BatchNorm1d(4), "running_var"),
        (nn.BatchNorm1d(4, affine=False), "running_var"),
        (nn.LayerNorm(4), "bias"),
        (nn.GroupNorm(2, 4), "bias"),
    ],
)
def test_a_bias_or_statistic_of_another_length_is_refused(
    module: nn.Module, name: str, tmp_path: Path
) -> None:
    save_module(sequential(module), tmp_path)
    retouch(tmp_path, lambda tensors: tensors.update({f"0.{name}": torch.ones(3)}))
    forge(tmp_path, lambda found: found["tensors"][f"0.{name}"].update(shape=[3]))
    text = rf"0\.{name} has shape \(3,\) for outputs of width \(4,\): it was cut wrongly"
    refused(sequential(module), tmp_path, text)


@pytest.mark.parametrize("kept", [False, True])
def test_a_weight_that_a_hook_computes_is_computed_anew(tmp_path: Path, kept: bool) -> None:
    def normed() -> nn.Module:
        with pytest.warns(FutureWarning, match="weight_norm"):
            return sequential(nn.utils.weight_norm(nn.Linear(4, 3)))

    module = normed()
    # what a pass with gradients leaves cannot be copied as it is
    with torch.set_grad_enabled(kept):
        expected = module(torch.ones(2, 4))
    save_module(module, tmp_path, fresh=normed(), example=torch.ones(2, 4))
    assert torch.equal(load_module(normed(), tmp_path)(torch.ones(2, 4)), expected)


class Secret(Scaled):
    """Computes with something that no file holds."""

    def __init__(self, secret: list[float]) -> None:
        super().__init__((3,))
        self.secret = secret

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.secret[0]


def test_an_example_shows_what_is_not_saved_and_the_old_files_stay(tmp_path: Path) -> None:
    save_module(Secret([2.0]), tmp_path, fresh=Secret([2.0]), example=torch.ones(3))
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="Secret read back computes something else"):
        save_module(Secret([2.0]), tmp_path, fresh=Secret([3.0]), example=torch.ones(3))
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    with pytest.raises(ValueError, match=rf"{tmp_path.name}: does not fit the given Zoo"):
        save_module(small(), tmp_path, fresh=zoo())
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_tensors_without_a_shape_and_states_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        save_module(nn.Sequential(nn.LazyLinear(3)), tmp_path)

    class Counting(nn.Linear):
        def get_extra_state(self) -> int:
            return 3

    with pytest.raises(ValueError, match=r"0 \(Counting\) has an extra state"):
        save_module(nn.Sequential(Counting(2, 3)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def changed(*path: str, value: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        found = json.loads(text)
        place = found
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return json.dumps(with_checksum(found))

    return change


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda text: text[:50], "cannot be read"),
        (lambda _: "[" * 200_000, r"cannot be read \(ValueError\)"),
        (lambda _: "[]", "gives no network's name"),
        (
            lambda text: text.replace('"relu"', '"gelu"').replace('"gelu"', '"relu"', 1),
            "was changed since",
        ),
        (
            lambda text: json.dumps({**json.loads(text), "unswapped": json.loads(text)["module"]}),
            "was changed since",
        ),
        (lambda text: text.replace('"checksum"', '"check"'), "was changed since"),
        (
            changed("module", "saved", "layers", "0", "sizes", "in_features", value=63),
            "module was changed since",
        ),
        (
            changed("module", "others", value={"\ud800": "relu"}),
            r"names an activation at \\ud800, where",
        ),
        (changed("module", "saved", value={}), "module is no description of a saved module"),
        (changed("module", "saved", value=3), "module.saved: Input should be a valid dict"),
        (changed("module", value=3), "module: Input should be"),
        (changed("module", "activation", value="glue"), "unknown activation 'glue'"),
        (changed("module", "activation", value="lambda-gelu"), "gives no temperature"),
        (
            changed("module", "temperature", value=-1.0),
            "module.temperature: Input should be greater than 0",
        ),
        (changed("module", "others", value={"7.x": "relu"}), "names an activation at 7.x, where"),
    ],
)
def test_a_damaged_network_is_refused(
    damage: Callable[[str], str], text: str, tmp_path: Path, digits: Any
) -> None:
    kind, data = digits
    save_network(Network("x", pruned("digits-mlp"), (64,), 10), tmp_path, kind)
    path = tmp_path / "network.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=rf"network\.json: .*{text}"):
        load_network(tmp_path, kind, data)
    os.truncate(path, 2**26 + 1)  # takes no room on the disk
    with pytest.raises(ValueError, match=r"network\.json: has 67108865 bytes, more than 67108864"):
        load_network(tmp_path, kind, data)
    path.unlink()
    with pytest.raises(ValueError, match=r"network\.json: cannot be read \(FileNotFoundError\)"):
        load_network(tmp_path, kind, data)


@pytest.mark.parametrize("name", ["deployed", "integer"])
def test_an_onnx_file_of_a_network_is_the_one_that_was_saved_or_refused(
    tmp_path: Path, digits: Any, name: str
) -> None:
    kind, data = digits
    source, folder = tmp_path / "quantized.onnx", tmp_path / "n"
    source.write_bytes(b"quantized")
    made = replace(
        Network("x", pruned("digits-mlp"), (64,), 10, pruned("digits-mlp")), **{name: source}
    )
    save_network(made, folder, kind)
    stale = (folder / "unswapped.safetensors").read_bytes()
    plain = digest_network(folder)
    loaded = load_network(folder, kind, data)
    kept: Path = getattr(loaded, name)
    assert (kept, kept.read_bytes()) == (folder / f"{name}.onnx", b"quantized")
    save_network(loaded, folder, kind)  # onto itself
    assert getattr(load_network(folder, kind, data), name) == kept
    assert digest_network(folder) == plain
    kept.write_bytes(b"another")
    assert digest_network(folder) != plain
    with pytest.raises(ValueError, match=rf"{name}\.onnx: was changed since it was saved"):
        load_network(folder, kind, data)
    kept.unlink()
    with pytest.raises(ValueError, match=rf"{name}\.onnx: cannot be read \(FileNotFoundError\)"):
        load_network(folder, kind, data)
    # Files of a network that was saved there before do not stay.
    save_network(Network("x", pruned("digits-mlp"), (64,), 10), folder, kind)
    assert sorted(each.name for each in folder.iterdir()) == ["module.safetensors", "network.json"]
    for file, content in ((f"{name}.onnx", b"quantized"), ("unswapped.safetensors", stale)):
        (folder / file).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file}: belongs to another network"):
            load_network(folder, kind, data)
        (folder / file).unlink()
    assert getattr(load_network(folder, kind, data), name) is None


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.bool, torch.complex64]
)
def test_the_digest_of_a_network_is_that_of_its_numbers(dtype: torch.dtype, tmp_path: Path) -> None:
    digests = []
    for value, name in ((0, "x"), (0, "y"), (1, "x")):
        tensors = {"single": torch.tensor(value).to(dtype), "none": torch.zeros(0, 3).to(dtype)}
        save_file(tensors, tmp_path / "module.safetensors")
        (tmp_path / "network.json").write_text(json.dumps({"name": name, "checksum": name}))
        digests.append(digest_network(tmp_path))
    assert digests[0] == digests[1] != digests[2]


@pytest.fixture(scope="module")
def digits() -> Any:
    kind = load("workloads", "digits-mlp").target()
    return kind, kind.data()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn]
)
def test_every_type_of_number_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    module = small().to(dtype)
    save_module(module, tmp_path)
    loaded = load_module(small().to(dtype), tmp_path)
    assert loaded[0].weight.dtype == dtype
    assert torch.equal(loaded[0].weight.double(), module[0].weight.double())

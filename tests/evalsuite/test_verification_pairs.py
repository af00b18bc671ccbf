"""Two networks compared by `verify --against`: closed forms, and points of each pair that is
said to agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from files_of_mlps import Layers, model_of, network, property_of
from onnx import TensorProto, helper
from typer.testing import CliRunner

from evalsuite import Unsupported, verify
from evalsuite.cli import app
from lambda_gelu.activations import GELU, RELU, Activation
from lambda_gelu.activations.gates import SIGMOID, TANH
from lambda_gelu.activations.leaky import LEAKY_RELU
from lambda_gelu.activations.silu import SILU
from netverify import Verification
from netverify.difference import side_by_side
from netverify.graph import Difference, Graph
from netverify.onnx_reader import read_onnx
from netverify.propagation import Propagation
from netverify.relaxations.twins import Reach, apart, are_twins

Array = np.ndarray[Any, Any]
POINTS = 2000
# relu(x), and 1.25 relu(x): 0.25 apart at x = 1
HINGE: Layers = [([[1.0]], [0.0]), ([[1.0]], [0.0])]
STEEPER: Layers = [([[1.0]], [0.0]), ([[1.25]], [0.0])]


def run(path: Path, points: Array) -> Array:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": points.astype(np.float32)})[0])


def replay(found: Verification, first: Path, second: Path, within: Fraction | None) -> None:
    """Both files, run by themselves, differ at the witness as is said."""
    assert found.witness is not None
    ours, theirs = (run(each, np.array([found.witness.inputs]))[0] for each in (first, second))
    assert found.witness.outputs == (*map(float, ours), *map(float, theirs))
    if within is None:
        assert ours.argmax() != theirs.argmax()
    else:
        assert (
            max(
                abs(Fraction(float(a)) - Fraction(float(b)))
                for a, b in zip(ours, theirs, strict=True)
            )
            > within
        )


def decide(
    folder: Path,
    first: Layers,
    second: Layers,
    box: Sequence[tuple[float, float]],
    within: str | None = None,
    timeout: float = 5.0,
) -> str:
    """The answer; a `sat` is replayed."""
    files = network(folder / "a.onnx", first), network(folder / "b.onnx", second)
    file = property_of(folder / "p.vnnlib", box, len(first[-1][1]))
    exact = None if within is None else Fraction(within)
    found = verify(files[0], file, against=files[1], within=exact, timeout=timeout)
    if found.answer.value == "sat":
        replay(found, *files, exact)
    return found.answer.value


def line(shift: float) -> Layers:
    """y = (x + shift, -x - shift): class 0 from -shift on."""
    return [([[1.0], [-1.0]], [shift, -shift])]


@pytest.mark.parametrize(
    ("box", "answer"),
    [
        ((-1, 1), "sat"),
        ((0.01, 1), "unsat"),
        ((-1, -0.2), "unsat"),
        ((-0.2, -0.05), "sat"),
        ((-0.05, -0.01), "sat"),
    ],
)
def test_classes_by_hand(box: tuple[float, float], answer: str, tmp_path: Path) -> None:
    assert decide(tmp_path, line(0.0), line(0.1), [box]) == answer  # they differ for -0.1 < x < 0


@pytest.mark.parametrize(
    ("ours", "theirs", "answer"),
    [
        ((1, 1, 0), (0, 1, 0), "sat"),  # the first of equal outputs is the class: 0 and 1
        ((0, 1, 1), (0, 0, 1), "sat"),
        ((2, 1, 0), (2, 1, 3), "sat"),
        ((2, 1, 0), (2, 0, 1), "unsat"),
    ],
)
def test_of_equal_outputs_the_first_is_the_class(
    ours: tuple[int, ...], theirs: tuple[int, ...], answer: str, tmp_path: Path
) -> None:
    first, second = ([([[0.0]] * 3, list(each))] for each in (ours, theirs))
    assert decide(tmp_path, first, second, [(-1, 1)]) == answer


def test_what_equal_outputs_alone_decide_is_left_open(tmp_path: Path) -> None:
    # Both have class 1, but bounds can't tell > from >=. Nor can they where 1/4 is the distance,
    # and the greatest one.
    first, second = ([([[0.0]] * 3, list(each))] for each in ((0, 1, 1), (0, 1, 0)))
    box = [(1 - 1e-14, 1.0)]
    assert decide(tmp_path, first, second, box, timeout=0.5) in ("timeout", "unknown")
    assert decide(tmp_path, HINGE, STEEPER, box, "0.25", timeout=0.5) in ("timeout", "unknown")


@pytest.mark.parametrize(
    ("within", "answer"), [("0.2501", "unsat"), ("0.2499", "sat"), ("0", "sat"), ("7", "unsat")]
)
def test_distances_by_hand(within: str, answer: str, tmp_path: Path) -> None:
    assert decide(tmp_path, HINGE, STEEPER, [(-1, 1)], within) == answer
    assert decide(tmp_path, STEEPER, HINGE, [(-1, 1)], within) == answer


def test_a_property_of_both_networks_outputs(tmp_path: Path) -> None:
    files = network(tmp_path / "a.onnx", line(0.0)), network(tmp_path / "b.onnx", line(0.1))
    for formula, answer in (("(>= (- Y_2 Y_0) 0.11)", "unsat"), ("(>= (- Y_2 Y_0) 0.09)", "sat")):
        file = property_of(tmp_path / "p.vnnlib", [(-1, 1)], 4, formula)
        assert verify(files[0], file, against=files[1], timeout=5).answer.value == answer


def test_classes_that_differ_in_a_sliver_are_found(tmp_path: Path) -> None:
    # In 20 dimensions the networks differ where |sum x| < 1e-5: points at random are there once in
    # 10^5 times.
    weight = np.ones((1, 20))
    first: Layers = [(np.concatenate([weight, -weight]), [0.0, 0.0])]
    second: Layers = [(np.concatenate([weight, -weight]), [1e-5, -1e-5])]
    assert decide(tmp_path, first, second, [(-0.9, 1.0)] * 20) == "sat"


def random_layers(seed: int, sizes: Sequence[int]) -> Layers:
    random = np.random.default_rng(seed)
    return [
        (random.standard_normal((to, of)) * (2 / of) ** 0.5, random.standard_normal(to) * 0.1)
        for of, to in itertools.pairwise(sizes)
    ]


def rounded_weights(layers: Layers, bits: int = 8) -> Layers:
    steps = [np.abs(weight).max(1, keepdims=True) / (2 ** (bits - 1) - 1) for weight, _ in layers]
    return [
        (np.round(weight / step) * step, bias)
        for (weight, bias), step in zip(layers, steps, strict=True)
    ]


def pruned(layers: Layers, share: float) -> Layers:
    return [
        (weight * (np.abs(weight) > np.quantile(np.abs(weight), share)), bias)
        for weight, bias in layers
    ]


def pair(
    folder: Path, kind: str, seed: int, sizes: Sequence[int] = (3, 12, 12, 3)
) -> tuple[Path, Path]:
    layers, names = random_layers(seed, sizes), [folder / f"{kind}{seed}{end}.onnx" for end in "ab"]
    smooth = "Gelu" if kind in ("swapped", "smooth", "smooth-quantized") else "Relu"
    first = network(names[0], layers, smooth)
    if kind == "pruned":
        return first, network(names[1], pruned(layers, 0.2))
    if kind == "swapped":
        return first, network(names[1], layers)
    if kind.endswith("quantized"):
        return first, network(names[1], rounded_weights(layers), smooth, scale=0.03)
    if kind == "narrow":  # as many outputs, fewer neurons
        (weight, bias), (after, shift), last = layers
        return first, network(names[1], [(weight[:9], bias[:9]), (after[:, :9], shift), last])
    return first, network(names[1], rounded_weights(layers, 6), smooth)


KINDS = ("pruned", "swapped", "rounded", "smooth", "quantized", "smooth-quantized", "narrow")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=pytest.mark.slow if "quantized" in each else ()) for each in KINDS],
)
def test_no_answer_contradicts_sampled_points(kind: str, tmp_path: Path) -> None:
    answers = []
    for seed in range(2):
        random = np.random.default_rng(seed)
        files, center = pair(tmp_path, kind, seed), random.uniform(-1, 1, 3)
        for radius, share in ((0.02, None), (0.2, 0.5), (0.2, 3.0), (0.02, 3.0)):
            box = [(each - radius, each + radius) for each in center]
            points = random.uniform(center - radius, center + radius, (POINTS, 3))
            ours, theirs = (run(each, points).astype(float) for each in files)
            apart = np.abs(ours - theirs).max()
            within = None if share is None else Fraction(round(share * apart, 6))
            file = property_of(tmp_path / "p.vnnlib", box, 3)
            found = verify(files[0], file, against=files[1], within=within, timeout=3)
            answers.append(found.answer.value)
            if found.answer.value == "sat":
                replay(found, *files, within)
            if found.answer.value == "unsat" and within is None:
                assert (ours.argmax(1) == theirs.argmax(1)).all()
            if found.answer.value == "unsat" and within is not None:
                assert apart <= within
            if share == 0.5:
                assert found.answer.value == "sat"
    assert "unsat" in answers


def joined(first: Path, second: Path) -> tuple[Graph, Graph]:
    """With and without what they differ by from layer to layer."""
    graphs = read_onnx(first), read_onnx(second)
    whole = side_by_side(*graphs)
    # A network of one more activation, of nothing that the output takes, has no twins.
    assert any(isinstance(node.operation, Difference) for node in whole.nodes)
    apart = [
        index for index, node in enumerate(whole.nodes, 1) if isinstance(node.operation, Difference)
    ]
    assert len(apart) == 2
    return whole, graphs[0]


@pytest.mark.parametrize("kind", [each for each in KINDS if each != "narrow"])
def test_bounds_of_a_difference_are_sound_and_know_what_both_share(
    kind: str, tmp_path: Path
) -> None:
    files = pair(tmp_path, kind, 1)
    whole, first = joined(*files)
    center = torch.tensor([[0.3, -0.2, 0.5]], dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    rows, own = (
        torch.cat([torch.cat([eye, -eye], 1), torch.cat([-eye, eye], 1)]),
        torch.cat([eye, -eye]),
    )
    for radius in (0.0, 1e-6, 0.1, 1.0):
        bounds = Propagation(whole, center - radius, center + radius)
        points = (
            center
            + radius
            * (2 * torch.rand(POINTS, 3, generator=torch.Generator().manual_seed(0)) - 1).double()
        )
        outputs = whole(points)
        found = bounds.lower_bounds(rows).value
        assert bool((outputs @ rows.T >= found).all())
        alone = Propagation(first, center - radius, center + radius).lower_bounds(own).value
        if kind in ("rounded", "smooth") and radius >= 0.1:
            # The first network by itself moves much farther than the two move apart.
            assert float(-found.sum()) < 0.25 * float(-alone.sum())


def test_units_of_a_pruned_layer_are_compared_with_those_that_they_were(tmp_path: Path) -> None:
    layers = random_layers(2, (3, 12, 12, 3))
    kept = [0, 2, 3, 4, 7, 8, 9, 11]
    first_bias = layers[0][1].copy()
    # these units are 0 in every box
    first_bias[[each for each in range(12) if each not in kept]] = -100.0
    layers[0] = layers[0][0], first_bias
    (weight, bias), (after, shift), last = layers
    less = [(weight[kept], bias[kept]), (after[:, kept], shift), last]
    files = network(tmp_path / "a.onnx", layers), network(tmp_path / "b.onnx", less)
    file = property_of(tmp_path / "p.vnnlib", [(-1, 1)] * 3, 3)
    found = verify(files[0], file, against=files[1], within=Fraction(1, 1000), timeout=5)
    assert (found.answer.value, found.boxes) == ("unsat", 1)
    found = verify(files[0], file, against=files[1], within=Fraction(1, 10**6), timeout=20)
    assert found.answer.value == "unsat-real"  # float32 may round so far


TWINS = [
    (RELU, RELU),
    (GELU, GELU),
    (TANH, TANH),
    (SIGMOID, SIGMOID),
    (GELU, RELU),
    (SILU, RELU),
    (RELU, SILU),
]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize(("first", "second"), TWINS, ids=[f"{a.name}-{b.name}" for a, b in TWINS])
def test_planes_of_twins_hold_at_sampled_points(
    first: Activation, second: Activation, scale: float
) -> None:
    generator, count = torch.Generator().manual_seed(0), 1000

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    def interval(width: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Around 0 or beside it; every third is a point."""
        ends = width * torch.randn(2, 1, count, generator=generator, dtype=torch.float64)
        ends[1, :, ::3] = ends[0, :, ::3]
        return ends.amin(0), ends.amax(0)

    a, d = interval(2 * scale), interval(scale)
    b = a[0] - d[1], a[1] - d[0]
    cut = (b[1] - b[0]) / 4
    cut[:, ::2] = 0.0
    b = b[0] + cut, b[1] - cut  # in half of them not all that a and d allow
    planes, (least, most) = apart(first, second, Reach(a, b, d))
    hits = 0
    for _ in range(60):
        share = drawn(2, 1, count)
        share = torch.where(drawn(2, 1, count) < 0.3, share.round(), share)
        x, away = a[0] + share[0] * (a[1] - a[0]), d[0] + share[1] * (d[1] - d[0])
        y = x - away
        inside = (b[0] <= y) & (y <= b[1])
        ours, theirs = first.value(x), second.value(y)
        value, sizes = ours - theirs, ours.abs() + theirs.abs() + x.abs() + away.abs()
        rounded = 4e-15 * (1e-3 * scale + sizes)
        for form, end, sign in ((planes.lower, least, 1), (planes.upper, most, -1)):
            line = form.d * away + form.a * x + form.b * y + form.constant
            assert bool((sign * (value - line) >= -rounded)[inside].all())
            assert bool((sign * (value - end) >= -rounded)[inside].all())
        hits += int(inside.sum())
    assert hits > 20_000


def test_other_activations_are_no_twins() -> None:
    assert not any(are_twins(*each) for each in ((GELU, SILU), (LEAKY_RELU, RELU), (TANH, RELU)))


@pytest.mark.parametrize("scale", [0.03, 0.5])
def test_bounds_of_a_quantized_file_hold_what_it_computes(scale: float, tmp_path: Path) -> None:
    file = network(tmp_path / "q.onnx", random_layers(5, (3, 8, 2)), scale=scale)
    graph, eye = read_onnx(file), torch.eye(2, dtype=torch.float64)
    random = np.random.default_rng(0)
    for radius in (0.0, 1e-4, 0.3):
        points = (0.3 + random.uniform(-radius, radius, (POINTS, 3))).astype(np.float32)
        lower, upper = (
            torch.from_numpy(each).double()[None] for each in (points.min(0), points.max(0))
        )
        bounds = Propagation(graph, lower, upper)
        outputs = torch.from_numpy(run(file, points)).double()
        assert bool((outputs >= bounds.lower_bounds(eye).value - 1e-5).all())
        assert bool((outputs <= -bounds.lower_bounds(-eye).value + 1e-5).all())
        if radius == 0.0:  # far from a tie, rounding is known
            assert float((bounds.outputs[1] - bounds.outputs[0]).max()) < 1e-5


def test_at_a_tie_a_number_may_be_rounded_either_way(tmp_path: Path) -> None:
    # y = round(x), and 3/2 is a tie: of a file that computes it with other numbers before, it may
    # be 1 or 2.
    file = network(tmp_path / "q.onnx", [([[1.0]], [0.0])], scale=1.0)
    point = torch.tensor([[1.5]], dtype=torch.float64)
    lower, upper = Propagation(read_onnx(file), point, point).outputs
    assert lower.item() == pytest.approx(1)
    assert upper.item() == pytest.approx(2)
    assert read_onnx(file)(torch.tensor([[1.5], [2.5], [-0.5], [1e6]])).flatten().tolist() == [
        2.0,
        2.0,
        -0.0,
        127.0,
    ]


def quantizer(path: Path, node: onnx.NodeProto, zero: Array | None) -> Path:
    constants = {"scale": np.float32(0.1)} | ({} if zero is None else {"zero": zero})
    back = helper.make_node("DequantizeLinear", ["q", *constants], ["y"])
    model = model_of([node, back], constants, {"x": [1, 2]}, {"y": [1, 2]}, opset=21)
    model.ir_version = 10
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16, np.uint16])
def test_quantizers_clip_to_their_type(kind: type, tmp_path: Path) -> None:
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])
    file = quantizer(tmp_path / "q.onnx", node, np.array(3, kind))
    limits, points = np.iinfo(kind), torch.tensor([[-1e5, 1e5]], dtype=torch.float64)
    expected = 0.1 * (np.array([limits.min, limits.max]) - 3)
    np.testing.assert_allclose(read_onnx(file)(points).numpy()[0], expected, rtol=1e-6)
    np.testing.assert_allclose(run(file, points.numpy())[0], expected, rtol=1e-6)


def test_quantizers_of_other_forms_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], output_dtype=TensorProto.INT8)
    with pytest.raises(Unsupported, match="output_dtype"):
        read_onnx(quantizer(tmp_path / "a.onnx", node, None))
    node = helper.make_node("QuantizeLinear", ["x", "scale", "x"], ["q"])
    with pytest.raises(Unsupported, match="zero point is no constant integer"):
        read_onnx(quantizer(tmp_path / "b.onnx", node, None))


def call(*words: str | Path) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["verify", *map(str, words)])
    return found.exit_code, found.stdout, found.stderr


def test_the_command(tmp_path: Path) -> None:
    first, second = network(tmp_path / "a.onnx", line(0.0)), network(tmp_path / "b.onnx", line(0.1))
    file = property_of(tmp_path / "p.vnnlib", [(-1, 1)], 2)
    asked = ("--onnx", first, "--vnnlib", file, "--against", second)
    code, out, _ = call(*asked)
    assert (code, out.splitlines()[0]) == (0, "sat")
    assert call(*asked, "--within", "0.2")[1].splitlines() == ["unsat"]
    assert call(*asked, "--within", "1e-3")[1].splitlines()[0] == "sat"


def test_wrong_uses_are_told(tmp_path: Path) -> None:
    first, second = network(tmp_path / "a.onnx", line(0.0)), network(tmp_path / "b.onnx", line(0.1))
    other = network(tmp_path / "c.onnx", random_layers(0, (2, 3, 2)))
    single = network(tmp_path / "d.onnx", [([[1.0]], [0.0])])
    file = property_of(tmp_path / "p.vnnlib", [(-1, 1)], 2)
    asks = property_of(tmp_path / "q.vnnlib", [(-1, 1)], 4, "(>= Y_0 Y_2)")
    few = property_of(tmp_path / "r.vnnlib", [(-1, 1)], 2, "(>= Y_0 Y_1)")
    one = ("--onnx", first, "--vnnlib", file)
    for words, said in (
        ((*one, "--within", "1"), "--within takes --against"),
        (("--against", second), "--against takes --onnx and --vnnlib"),
        (("--against", second, "--instances", file), "--against takes --onnx and --vnnlib"),
        ((*one, "--against", second, "--within", "-1"), "a distance >= 0"),
        ((*one, "--against", second, "--within", "nan"), "'nan' is no decimal number"),
        ((*one, "--against", second, "--within", ""), "'' is no decimal number"),
        ((*one, "--against", second, "--within", "1e999999999"), "beyond 1e+-100"),
        ((*one, "--against", other), "c.onnx has 2 inputs and 2 outputs"),
        (
            ("--onnx", first, "--vnnlib", asks, "--against", second, "--within", "1"),
            "constrains Y_i already",
        ),
        (
            ("--onnx", first, "--vnnlib", few, "--against", second),
            "to ask for the same class, or --within, constrain no Y_i",
        ),
        (("--onnx", single, "--vnnlib", file, "--against", single), "classes of 1 outputs"),
        ((*one, "--against", tmp_path / "none.onnx"), "none.onnx"),
    ):
        code, out, err = call(*words)
        assert code == 2, words
        assert said in " ".join(err.split()), (words, err)
        assert out in ("", "error\n")

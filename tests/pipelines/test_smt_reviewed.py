"""What a hostile review found: files that are misread, points outside of boxes, rounding,
proofs, limits, errors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from files_of_mlps import property_of
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

from evalsuite import Network, Property, Unsupported, Verdict, check_proof, open_onnx, verify
from evalsuite.cli import app
from netverify.proofs import ProofError
from pipelines.smt import Smt
from pipelines.smt.counterexample import Judge
from pipelines.smt.dyadic import Dyadic
from pipelines.smt.exact_network import Affine, ExactNetwork
from pipelines.smt.integer.deciding import decide as decide_integers
from pipelines.smt.integer.measuring import SameClass
from pipelines.smt.integer.network import Grid, IntegerNetwork, Layer, Query, tabulate
from pipelines.smt.integer.reading import read_integer_onnx
from pipelines.smt.measuring import Bracket
from pipelines.smt.proving import proof_of, proof_text
from pipelines.smt.reading import read, read_curved, read_file
from pipelines.smt.reduction import Asked, bound_rows, label_margins, reduce
from pipelines.smt.search.decision import TOO_MANY, Decided, decide_rows
from pipelines.smt.settling import Limits, Search, Settled
from tests.pipelines.smt_networks import Blind, bench_of, decider, leaves_of, linear, of

EYE, NONE, FIVE = np.eye(2, dtype=np.float32), np.zeros(2, np.float32), np.array([5, 0], np.float32)
Arrays = dict[str, np.ndarray[Any, Any]]


def node(kind: str, inputs: str, output: str, **options: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **options)


def model(
    nodes: Sequence[onnx.NodeProto],
    arrays: Arrays,
    *,
    shape: Sequence[int | str] = ("n", 2),
    outputs: Sequence[str] = ("y",),
    inputs: Sequence[str] = ("x",),
    out_shape: Sequence[int | str] = ("n", 2),
    functions: Sequence[onnx.FunctionProto] = (),
    kinds: tuple[int, int] = (TensorProto.FLOAT, TensorProto.FLOAT),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kinds[0], shape) for name in inputs],
        [helper.make_tensor_value_info(name, kinds[1], out_shape) for name in outputs],
        [numpy_helper.from_array(values, name) for name, values in arrays.items()],
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9, functions=list(functions))


LAYERS = [
    node("Gemm", "x w b", "z", transB=1),
    node("Relu", "z", "h"),
    node("Gemm", "h v c", "y", transB=1),
]
PLAIN: Arrays = {"w": EYE, "b": NONE, "v": EYE, "c": FIVE}
SCALAR = [
    node("MatMul", "x w", "p"),
    node("Add", "p s", "z"),
    node("Relu", "z", "h"),
    node("MatMul", "h v", "y"),
]


def duplicated() -> onnx.ModelProto:
    made = model(LAYERS, PLAIN)
    made.graph.initializer.append(numpy_helper.from_array(-9 * EYE, "v"))
    return made


def local_function() -> onnx.ModelProto:
    versions = [helper.make_opsetid("", 17)]
    body = helper.make_function("custom", "Relu", ["a"], ["r"], [node("Neg", "a", "r")], versions)
    return model(
        [LAYERS[0], node("Relu", "z", "h", domain="custom"), LAYERS[2]], PLAIN, functions=[body]
    )


MISREAD: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "two outputs": (lambda: model(LAYERS, PLAIN, outputs=["z", "y"]), "1 inputs and 2 outputs"),
    "two inputs": (lambda: model(LAYERS, PLAIN, inputs=["x", "q"]), "2 inputs and 1 outputs"),
    "local function": (local_function, "functions of its own, as 'Relu'"),
    "duplicate": (duplicated, "v initializer name is not unique"),
    "3-D": (
        lambda: model(
            [node("MatMul", "x w", "z"), node("Relu", "z", "h"), node("MatMul", "h v", "y")],
            {"w": EYE, "v": EYE},
            shape=(1, 2, 2),
            out_shape=(1, 2, 2),
        ),
        "acts on shape .2, 2.; only vectors are read exactly",
    ),
    "Flatten": (
        lambda: model(
            [node("Flatten", "x", "f", axis=2), node("Gemm", "f w b", "z", transB=1), *LAYERS[1:]],
            PLAIN,
            shape=(1, 2, 2),
            out_shape=(2, 2),
        ),
        "only layers in a row are read here",
    ),
    "batch": (
        lambda: model(
            LAYERS,
            {**PLAIN, "b": np.array([[5], [-5]], np.float32)},
            shape=(2, 2),
            out_shape=(2, 2),
        ),
        r"input 'x' has shape \[2, 2\]",
    ),
    "column bias": (
        lambda: model(LAYERS, {**PLAIN, "b": np.array([[5], [-5]], np.float32)}),
        r"node '#0' \(Gemm\): malformed, or not read",
    ),
}
READ: dict[str, onnx.ModelProto] = {
    "hidden output": model(LAYERS, PLAIN, outputs=["z"]),
    "scalar bias": model(SCALAR, {"w": EYE, "v": EYE, "s": np.array([1], np.float32)}),
    "beside": model([LAYERS[0], node("Relu", "x", "h"), LAYERS[2]], PLAIN),
    "composed": model([LAYERS[0], node("Gemm", "z v c", "y", transB=1)], PLAIN),
}


@pytest.mark.parametrize("case", MISREAD)
def test_a_file_that_says_something_else_than_its_operators_in_order_is_refused(case: str) -> None:
    make, message = MISREAD[case]
    with pytest.raises(Unsupported, match=message):
        read_file(make().SerializeToString())


@pytest.mark.parametrize("case", READ)
def test_a_file_is_read_as_onnx_runtime_runs_it(case: str) -> None:
    content = READ[case].SerializeToString()
    points = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    (expected,) = open_onnx(content).run(None, {"x": points})
    assert read_file(content).in_float32(points.astype(np.float64))[0] == pytest.approx(
        expected, abs=1e-6
    )


def test_what_onnx_runtime_computes_is_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(model(LAYERS, PLAIN), tmp_path / "m.onnx")
    file = property_of(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 2, "(<= Y_0 -1)")
    assert verify(tmp_path / "m.onnx", file, engine="exact").answer.value == "unsat"
    right = read_file((tmp_path / "m.onnx").read_bytes())
    first, last = right.maps
    wrong = ExactNetwork(
        (first, Affine(last.weight, last.bias + Dyadic.of(np.array([2.0**-10, 0.0]))))
    )
    monkeypatch.setattr("pipelines.smt.querying.read_file", lambda _: wrong)
    with pytest.raises(Unsupported, match=r"m\.onnx: ONNX Runtime computes .* and its layers give"):
        verify(tmp_path / "m.onnx", file, engine="exact")


def between_floats(shift: float = 0.0) -> Property:
    """0.1 in float64, which lies between two float32 numbers."""
    end = torch.tensor([0.1 + shift], dtype=torch.float64)
    return Property(0, 0, 0.0, end, end)


def identity_layer(weight: list[list[int]], bias: list[int]) -> Layer:
    w, b = np.array(weight), np.array(bias)
    ends = np.stack([w * -128, w * 127])
    runs = tuple(tabulate(np.positive, ends.min(0).sum(1) + b, ends.max(0).sum(1) + b))
    return Layer(w, b, runs)


def integers(*layers: Layer) -> IntegerNetwork:
    return IntegerNetwork(layers, Grid(0.01, 0, -128, 127), (layers[0].weight.shape[1],))


def test_no_class_is_compared_outside_of_the_box() -> None:
    floats = of(linear([[1e9], [-1e9]], [-1e8, 1e8]))
    quantized = integers(identity_layer([[1], [0]], [300, 0]))
    found = SameClass(floats, quantized, Limits(5.0, float("inf"))).query(
        between_floats(1e-11), None, 5.0
    )
    assert (found.verdict, found.counterexample) == (Verdict.UNKNOWN, None)


def test_rounding_in_float64_is_no_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    # h = gelu(z) is z to more places than floats have: the products, of about 2^39, cancel, and
    # 2^-20 is left
    p, q, k = 1025, 1365, 8191
    hidden = linear([[p * k * 2.0**-20], [q * k * 2.0**-20]], [0.0, 0.0])
    for rest, expected in ((2.0**-20, Verdict.HOLDS), (-1000.0, Verdict.VIOLATED)):
        smooth = of(hidden, nn.GELU(), linear([[float(q), float(-p)], [0.0, 0.0]], [rest, 0.0]))
        point = torch.tensor([1.25e7])
        box = Property.robustness(point, sample=0, label=0, eps=0.0, domain=(0.0, 2e7))
        exact = read_curved(smooth)
        with monkeypatch.context() as patched:  # an error in the last place
            patched.setattr(
                ExactNetwork, "in_float32", lambda *_: (np.array([[-(2.0**-13), 0.0]]), None)
            )
            search = Search(exact, _Agreeing(smooth, exact, 0), Limits(5.0, math.inf))
            found = search.query(box, point, 5.0)
        assert (
            found.verdict in (expected, Verdict.UNKNOWN) if rest > 0 else found.verdict is expected
        )


class _Agreeing(Judge):
    """Float32 is wrong by rounding alone at many of these points: whether at this one is not
    what is asked.
    """

    def runs_wrong(self, property_: Property, point: torch.Tensor) -> bool:
        return property_.contains(point)


def test_operators_of_other_domains_are_not_read_as_integers() -> None:
    versions = [helper.make_opsetid("", 17)]
    body = helper.make_function(
        "custom", "Max", ["a", "b"], ["r"], [node("Min", "a b", "r")], versions
    )
    for functions in ([body], []):
        made = model(
            [node("MatMulInteger", "x w", "z"), node("Max", "z k", "y", domain="custom")],
            {"w": np.array([[1, -1]], np.int8), "k": np.array([0, 50], np.int32)},
            shape=("n", 1),
            functions=functions,
            kinds=(TensorProto.INT8, TensorProto.INT32),
        )
        helper.set_model_props(made, {"input_scale": "1.0", "input_zero_point": "0"})
        with pytest.raises(Unsupported, match=r"functions of its own|custom\.Max"):
            read_integer_onnx(made.SerializeToString())


def decided_of(
    content: bytes, ends: tuple[list[float], list[float]], seconds: float = 20
) -> Decided:
    exact = read_file(content)
    lower, upper = (Dyadic.of(np.array(each)) for each in ends)
    count = exact.classes
    rows = Affine(Dyadic.identity(count), Dyadic.zeros(count))
    return decide_rows(Asked(exact, lower, upper, rows), Blind(), seconds=seconds)


def alike() -> tuple[bytes, Decided]:
    """y = 3/2 + x0 - max(x0 + x1, 0) on [-1, 1]^2: either phase gives 1/2 in the same words, and
    both together not.
    """
    arrays = {
        "w": np.array([[1, 1], [1, 0]], np.float32),
        "b": np.array([0, 2], np.float32),
        "v": np.array([[-1, 1]], np.float32),
        "c": np.array([-0.5], np.float32),
    }
    content = model(LAYERS, arrays, out_shape=("n", 1)).SerializeToString()
    return content, decided_of(content, ([-1.0, -1.0], [1.0, 1.0]))


def test_halves_in_the_same_words_are_not_one() -> None:
    content, decided = alike()
    assert decided.verdict is Verdict.HOLDS
    proof = proof_of(decided, content)
    statement = check_proof(proof, content)
    assert statement.leaves == 2
    assert statement.bounds[0] > 0


def test_a_default_is_never_listed(tmp_path: Path) -> None:
    torch.manual_seed(1)
    content = model(
        LAYERS,
        {
            "w": torch.randn(8, 2).numpy(),
            "b": torch.randn(8).numpy(),
            "v": torch.randn(2, 8).numpy(),
            "c": np.array([2, 4], np.float32),
        },
    ).SerializeToString()
    decided = decided_of(content, ([-1.0, -1.0], [1.0, 1.0]))
    assert decided.verdict is Verdict.HOLDS
    proof = json.loads(proof_text(partial(proof_of, decided), content))
    leaves = [leaf for tree in proof["trees"] for leaf in leaves_of(tree)]
    listed = sum(len(leaf["p"]) for leaf in leaves)
    assert 0 < listed < decided.neurons * len(leaves)


def test_no_proof_is_written_that_the_checker_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    content, decided = alike()
    monkeypatch.setattr("netverify.proofs._WORK", 10)
    with pytest.raises(ProofError, match="more than 10 products"):
        check_proof(proof_of(decided, content), content)
    with pytest.raises(Unsupported, match=r"refused by its checker: .*more than 10 products"):
        proof_text(partial(proof_of, decided), content)


def test_long_weights_count_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {**PLAIN, "c": np.array([8, 8], np.float32)}
    worth = []
    for tiny in (1.0, 2.0**-120):
        arrays["w"] = np.array([[1, tiny], [0, 1]], np.float32)
        content = model(LAYERS, arrays).SerializeToString()
        proof = proof_of(decided_of(content, ([1.0, 1.0], [2.0, 2.0])), content)
        # The least limit under which it is checked.
        for limit in range(8, 4000, 8):
            monkeypatch.setattr("netverify.proofs._WORK", limit)
            try:
                check_proof(proof, content)
            except ProofError:
                continue
            worth.append(limit)
            break
    assert worth[1] > 3 * worth[0]


@pytest.mark.parametrize(
    ("depth", "powers", "word", "message"),
    [
        (65, (0, 0), "unsat", "65 affine layers, and a proof file holds 64"),
        # float32 overflows
        (64, (-149, 127), "unsat-real", "more than 4000 digits or 9999 binary places"),
    ],
)
def test_the_answer_is_told_though_its_proof_does_not_fit(
    tmp_path: Path, depth: int, powers: tuple[int, int], word: str, message: str
) -> None:
    diagonal = np.diag([2.0 ** powers[0], 2.0 ** powers[1]]).astype(np.float32)
    arrays: Arrays = {"w": diagonal, "b": np.full(2, 2.0**-20, np.float32)}
    nodes, current = [], "x"
    for k in range(depth):
        nodes.append(node("Gemm", f"{current} w b", f"z{k}" if k < depth - 1 else "y"))
        nodes += [node("Relu", f"z{k}", f"h{k}")] if k < depth - 1 else []
        current = f"h{k}"
    onnx.save(model(nodes, arrays), tmp_path / "m.onnx")
    file = property_of(tmp_path / "p.vnnlib", [(0.1, 0.2)] * 2, 2, "(<= (+ Y_0 Y_1) 0)")
    asked = [
        "smt",
        "--onnx",
        f"{tmp_path}/m.onnx",
        "--vnnlib",
        str(file),
        "--proof",
        f"{tmp_path}/p.json",
    ]
    told = CliRunner().invoke(app, asked)
    assert (told.exit_code, told.stdout) == (2, f"{word}\n")
    assert message in told.stderr
    assert "the answer stands" in told.stderr


def wide(count: int) -> bytes:
    generator = np.random.default_rng(0)
    arrays: Arrays = {
        "w": generator.standard_normal((count, 2)).astype(np.float32),
        "b": np.zeros(count, np.float32),
        "v": generator.standard_normal((2, count)).astype(np.float32),
        "c": NONE,
    }
    content: bytes = model(LAYERS, arrays).SerializeToString()
    return content


def test_interval_arithmetic_is_looser_and_true() -> None:
    exact = read_file(wide(9))
    lower, upper = Dyadic.of(np.array([-0.25, 0.5])), Dyadic.of(np.array([0.25, 0.75]))
    rows = Affine(Dyadic.of(np.array([[1.0, -2.0], [-1.0, 0.0]])), Dyadic.of(np.array([0.5, 0.0])))
    asked = Asked(exact, lower, upper, rows)
    loose, tight = bound_rows(asked).fractions(), reduce(asked).least.fractions()
    generator = np.random.default_rng(1)
    for _ in range(50):
        y = exact.logits(
            [Fraction(float(v)) for v in generator.uniform([-0.25, 0.5], [0.25, 0.75])]
        )
        for bound, value in zip(loose, (y[0] - 2 * y[1] + Fraction(1, 2), -y[0]), strict=True):
            assert bound <= value
    assert all(one <= other for one, other in zip(loose, tight, strict=True))
    assert loose != tight


def test_too_many_neurons_are_said_and_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.smt.search.decision._MOST_NEURONS", 20)
    decided = decided_of(wide(30), ([-1.0, -1.0], [1.0, 1.0]))
    assert (decided.verdict, decided.reason) == (Verdict.UNKNOWN, TOO_MANY.format(30, 20))


def test_time_ends_the_reading_and_the_cases(tmp_path: Path) -> None:
    onnx.save(model(LAYERS, PLAIN), tmp_path / "m.onnx")
    cases = " ".join(f"(and (<= Y_0 {-i}) (<= Y_1 {-i}))" for i in range(2, 300))
    file = property_of(tmp_path / "p.vnnlib", [(-1, 1)] * 2, 2, f"(or {cases})")
    found = verify(tmp_path / "m.onnx", file, engine="exact", timeout=1e-9)
    assert (found.answer.value, found.proofs) == ("timeout", ())
    assert "while reading the files" in found.reason


def test_a_single_integer_input_is_evaluated() -> None:
    # the bounds of separate neurons do not see that they are of one input
    network_ = integers(identity_layer([[2], [3], [4]], [0, 0, 0]))
    for label, first_wins in ((2, False), (0, True), (1, True)):
        for low in (-4, -1, 0, 1, 33):
            query = Query(np.array([low]), np.array([low + 2]), label, first_wins)
            points = query.all_points()
            truth = len(query.violated_by(network_, points)) > 0
            assert decide_integers(network_, query, seconds=10).verdict is (
                Verdict.VIOLATED if truth else Verdict.HOLDS
            )


@pytest.mark.parametrize(
    ("low", "high", "label", "message"),
    [
        ([0], [3], -1, "label must be >= 0 and < 3, got -1"),
        ([0], [3], 3, "label must be >= 0 and < 3, got 3"),
        ([120], [400], 1, r"input 0: \[120, 400\] is not within the grid's \[-128, 127\]"),
        ([-1000], [-500], 1, "is not within the grid's"),
        ([0, 0], [1, 1], 1, "a box of 2 integers, for a network of 1 inputs"),
    ],
)
def test_integer_questions_are_of_their_network(
    low: list[int], high: list[int], label: int, message: str
) -> None:
    network_ = integers(identity_layer([[1], [-1], [0]], [0, 0, 5]))
    with pytest.raises(ValueError, match=message):
        decide_integers(network_, Query(np.array(low), np.array(high), label), seconds=3)


def test_real_questions_are_of_their_network() -> None:
    exact = read(of(linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])))
    for classes, label, message in ((2, -1, "got -1"), (2, 2, "got 2"), (1, 0, "one output")):
        with pytest.raises(ValueError, match=message):
            label_margins(classes, label)
    ends = Dyadic.zeros(3)
    with pytest.raises(ValueError, match=r"\(3,\) and \(3,\) ends, for a network of 2 inputs"):
        reduce(Asked(exact, ends, ends, label_margins(2, 0)))
    smooth = of(linear([[1.0], [2.0]], [0.0, 0.0]), nn.GELU(), linear([[1.0, 0.0]] * 2, [1.0, 0.0]))
    with pytest.raises(ValueError, match="got 5"):
        decider(smooth)(
            Property(0, 5, 0.0, torch.zeros(1).double(), torch.zeros(1).double()), seconds=1
        )


def test_a_point_that_satisfies_a_conjunction_is_found(tmp_path: Path) -> None:
    # y = (x0, -x0 + x1 / 8): the first alone holds in half of the box, the second too, both in a
    # strip
    arrays = {"w": np.array([[1, 0], [-1, 0.125]], np.float32), "b": NONE}
    onnx.save(model([node("Gemm", "x w b", "y", transB=1)], arrays), tmp_path / "m.onnx")
    file = property_of(tmp_path / "p.vnnlib", [(0, 1)] * 2, 2, "(and (<= Y_0 0.5) (<= Y_1 -0.48))")
    found = verify(tmp_path / "m.onnx", file, engine="exact")
    assert (found.answer.value, found.reason) == ("sat", "falsifier")
    assert found.witness is not None
    assert found.witness.outputs[0] <= 0.5
    assert found.witness.outputs[1] <= -0.48
    never = property_of(
        tmp_path / "n.vnnlib", [(0, 1)] * 2, 2, "(and (<= Y_0 0.25) (<= Y_1 -0.48))"
    )
    assert verify(tmp_path / "m.onnx", never, engine="exact").answer.value == "unsat"


def bump(act: nn.Module, again: nn.Module) -> Network:
    """Logits (1/2 - 100 (0.001 - |x - 0.37|)+ ..., 0): negative only next to x = 0.37, by the
    second activation.
    """
    first = linear([[1.0], [1.0], [1.0]], [-0.369, -0.37, -0.371])
    second = linear(
        [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [-1000.0, 2000.0, -1000.0]], [0.0, 0.0, 0.0, 1e-6]
    )
    last = linear([[-600.0, 1200.0, -600.0, -1.0], [0.0, 0.0, 0.0, 0.0]], [0.5, 0.0])
    return of(first, act, second, again, last)


@pytest.mark.parametrize("method", ["search", "z3"])
def test_an_activation_that_is_there_twice_is_read_twice(method: Any, tmp_path: Path) -> None:
    act = nn.ReLU()
    shared = bump(act, act)
    assert int(shared.module(torch.tensor([[0.37]])).argmax()) == 1
    bench = bench_of(torch.tensor([[0.0]]), torch.tensor([0]), tmp_path)
    outcome = Smt(eps=(0.45,), samples=1, method=method).run(shared, bench)
    (found,) = [each.verdict for each in outcome.metrics if each.name == "robustness"]
    assert found is not Verdict.HOLDS
    assert len(read(shared).maps) == 3


@pytest.mark.slow
def test_curves_that_are_there_twice_are_read_twice() -> None:
    act = nn.GELU()
    asked = Property.robustness(torch.tensor([0.3]), sample=0, label=0, eps=0.2, domain=(0.0, 1.0))
    shared, copied = (decider(bump(act, each))(asked, seconds=5.0) for each in (act, nn.GELU()))
    assert [each.bound() for each in shared.trees] == [each.bound() for each in copied.trees]


def test_layers_that_are_changed_from_outside_are_refused() -> None:
    hooked, root, patched = (bump(nn.ReLU(), nn.ReLU()) for _ in range(3))
    hooked.module[2].register_forward_hook(lambda *_: None)
    root.module.register_forward_pre_hook(lambda *_: None)
    patched.module[1].forward = lambda x: x  # type: ignore[method-assign]
    for changed, where in (
        (hooked, "layer '2'"),
        (root, "the network has"),
        (patched, "layer '1'"),
    ):
        with pytest.raises(Unsupported, match=where):
            read(changed)


def jumping(z: Any) -> Any:
    """Up by 100 where even, down by 100 where odd, and clipped: what a relaxation knows nothing
    of.
    """
    return np.where(z % 2 == 0, np.clip(z + 100, 0, 255), np.clip(z - 100, 0, 255))


@pytest.mark.slow
def test_sums_over_many_layers_of_integers_do_not_wrap_around() -> None:
    bytes_ = np.array([0]), np.array([255])
    hidden = Layer(np.array([[1]]), np.array([0]), tuple(tabulate(jumping, *bytes_)))
    weight = np.array([[-64000], [64000]])
    ends = np.minimum(weight[:, 0] * 255, 0), np.maximum(weight[:, 0] * 255, 0)
    last = Layer(
        weight, np.zeros(2, dtype=np.int64), tuple(tabulate(lambda z: z // 4096 * 4096, *ends))
    )
    deep = IntegerNetwork((*[hidden] * 170, last), Grid(1 / 255, 0, 0, 255), (1,))
    assert decide_integers(deep, Query(*bytes_, 0), seconds=20).verdict is Verdict.VIOLATED


def floored(z: Any) -> Any:
    return np.clip(z // 1024, 0, 255)


@pytest.mark.slow
def test_the_search_for_integer_counterexamples_ends_in_time() -> None:
    width, classes = 96, 30
    generator = np.random.default_rng(0)
    weights = [generator.integers(-127, 128, (outputs, width)) for outputs in (width, classes)]
    weights[1][0] = 0
    biases = (
        np.zeros(width, dtype=np.int64),
        np.r_[625 * 1024, np.zeros(classes - 1, dtype=np.int64)],
    )

    def layer(weight: Any, bias: Any, function: Any) -> Layer:
        ends = np.stack([0 * weight, 255 * weight])
        runs = tuple(tabulate(function, ends.min(0).sum(1) + bias, ends.max(0).sum(1) + bias))
        return Layer(weight, bias, runs)

    layers = (
        layer(weights[0], biases[0], floored),
        layer(weights[1], biases[1], lambda z: z // 1024),
    )
    wide = IntegerNetwork(layers, Grid(1 / 255, 0, 0, 255), (width,))
    middle = np.full(width, 128)
    # The first class wins by far, which bounds do not see; to fail for each of the others takes the
    # attack much longer.
    found = decide_integers(wide, Query(middle - 100, middle + 100, 0), seconds=1.0)
    assert found.verdict is Verdict.TIMEOUT


def test_radii_that_are_not_asked_about_are_not_counted() -> None:
    asked = []

    def decide(property_: Property) -> Settled:
        asked.append(property_.eps)
        return Settled(Verdict.HOLDS if property_.eps == 0 else Verdict.UNKNOWN, "")

    center, domain = torch.zeros(2), (0.0, 1.0)
    at_center = Property.robustness(center, sample=0, label=0, eps=0.0, domain=domain)
    found = Bracket(decide, center, at_center, domain).narrowed(2)
    assert (
        (found.questions, found.undecided, found.decided) == (len(asked), 2, False) == (3, 2, False)
    )


@pytest.mark.parametrize("kind", [nn.GELU, nn.LeakyReLU, nn.ReLU])
def test_a_subclass_of_an_activation_is_not_taken_for_it(kind: Any) -> None:
    class Capped(kind):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            value: torch.Tensor = super().forward(x).clamp(max=2.0)
            return value

    capped = of(linear([[1.0]], [0.0]), Capped(), linear([[1.0], [0.0]], [0.0, 2.5]))
    with pytest.raises(Unsupported, match=r"layer '1' .Capped."):
        read_curved(capped)

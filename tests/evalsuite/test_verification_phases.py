"""Branching over the phases of ReLU: bounds by any multipliers, affine parts, and the answers of
the bisection.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import onnx
import pytest
import torch
from cases import seeds
from files_of_mlps import network, property_of
from torch import nn
from typer.testing import CliRunner
from written import affine, mlp

from evalsuite import Answer, Unsupported, verify
from evalsuite.cli import app
from lambda_gelu.activations import RELU
from netverify.bisection import Bisection
from netverify.cascade import ENGINES, decide
from netverify.difference import side_by_side
from netverify.dual import Dual, Parts, is_relu_network, tightened
from netverify.falsifier import Attack
from netverify.graph import Affine, Graph, Node, Pointwise
from netverify.linear import Dense, Linear, Same
from netverify.onnx_reader import graph_of
from netverify.phases import PhaseSearch
from netverify.propagation import Propagation
from netverify.specification import Box, Case, Constraint, Specification
from netverify.witness import Witnesses


def residual(seed: int, inputs: int, width: int, outputs: int) -> Graph:
    """Three layers, the second with its input added, so that values are used twice."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    def affine(size: int, *parts: tuple[int, Linear]) -> Node:
        return Node(
            "affine",
            Affine(tuple(map_ for _, map_ in parts), normal(size)),
            tuple(at for at, _ in parts),
            size,
        )

    nodes = (
        affine(width, (0, Dense(normal(width, inputs)))),
        Node("relu", Pointwise(RELU), (1,), width),
        affine(width, (2, Dense(normal(width, width))), (1, Same())),
        Node("relu", Pointwise(RELU), (3,), width),
        affine(outputs, (4, Dense(normal(outputs, width))), (2, Dense(normal(outputs, width)))),
    )
    return Graph(nodes, len(nodes), (1, inputs), (1, outputs), "x")


def module_of(seed: int, *sizes: int) -> nn.Sequential:
    module = mlp(*sizes, seed=seed)
    with torch.no_grad():
        for each in module.parameters():
            each.mul_(3.0)
    return module


def file_of(
    module: nn.Sequential, path: Path, activation: str = "Relu"
) -> tuple[onnx.ModelProto, Graph]:
    """Written without torch's exporter, which takes long."""
    layers = [
        (each.weight.detach().numpy(), each.bias.detach().numpy())
        for each in module
        if isinstance(each, nn.Linear)
    ]
    model = onnx.load(network(path, layers, activation))
    return model, graph_of(model, "m")


def around(inputs: int, radius: str = "1") -> Box:
    return Box((-Fraction(radius),) * inputs, (Fraction(radius),) * inputs)


def at_most(bound: float, *terms: tuple[int, int]) -> Constraint:
    """sum of factor * Y_i <= bound."""
    return Constraint(tuple((i, Fraction(factor)) for i, factor in terms), Fraction(bound))


def answer_of(
    kind: type[Bisection] | type[PhaseSearch],
    model: onnx.ModelProto,
    graph: Graph,
    asked: Specification,
    most: int = 2000,
) -> Answer:
    """`most`: so often the search may look at its clock before it is out of time."""
    steps = 0

    def check() -> None:
        nonlocal steps
        steps += 1
        if steps > most:
            raise TimeoutError

    attack = Attack(
        graph.to(torch.float32),
        asked,
        Witnesses(asked, model.SerializeToString()),
        seed=0,
        check=lambda: None,
    )
    try:
        search = kind(graph, asked.cases[0].box, list(enumerate(asked.cases)), attack, check)
        if search.run() is not None:
            return Answer.SAT
    except TimeoutError:
        return Answer.TIMEOUT
    assert search.done
    return Answer.UNSAT if search.proven else Answer.UNKNOWN


@pytest.mark.parametrize("seed", seeds(2, 5))
def test_any_multipliers_bound_every_point_of_their_part(seed: int) -> None:
    graph, random = residual(seed, 4, 8, 3), torch.Generator().manual_seed(seed)
    lower, upper = (each[None] for each in around(4, "0.5").outer())
    root = Propagation(graph, lower, upper)
    tightened(graph, root, lambda: None, steps=5)
    rows, bounds = (
        torch.randn(3, 3, generator=random).double(),
        torch.randn(3, generator=random).double(),
    )
    dual = Dual(graph, root, rows, bounds)
    points = lower + (upper - lower) * torch.rand(3000, 4, generator=random, dtype=torch.float64)
    values = graph.values(points)
    inputs = torch.cat([values[1], values[3]], 1)
    for source in (1, 3):
        low, high = root.intervals[source]
        assert bool(((low <= values[source]) & (values[source] <= high)).all())
    whole = dual.whole(torch.ones(1, 3, dtype=torch.bool))
    for _ in range(10):
        held = torch.where(torch.rand(16, generator=random) < 0.25, inputs[0].sign(), 0.0).to(
            torch.int8
        )
        part = Parts(
            torch.where(dual.free, held, whole.phases[0])[None],
            torch.rand(1, 16, generator=random),
            3 * torch.rand(1, 16, generator=random),
            torch.randn(1, 3, generator=random),
        )
        signs = part.phases[0] * dual.free
        inside = ((inputs * signs >= 0) | (signs == 0)).all(1)
        assert bool(inside[0])
        weighed = (values[-1] @ rows.T - bounds) @ part.rows.double().softmax(-1)[0]
        assert dual.bounds(part).value.item() <= weighed[inside].min().item()
        raised, found = dual.ascend(part, 30, stop=False)
        assert found.value.item() >= dual.ascend(part, 0)[1].value.item()
        better = (values[-1] @ rows.T - bounds) @ raised.rows.double().softmax(-1)[0]
        assert dual.bounds(raised).value.item() <= better[inside].min().item()


def dual_of(inputs: int, first: Linear, last: Linear, beside: Linear | None = None) -> Dual:
    """Of last relu(first x) + beside x >= 0, for x in [-1, 1]."""
    zeros, sources = torch.zeros(inputs, dtype=torch.float64), (2,) if beside is None else (2, 0)
    nodes = (
        Node("affine", Affine((first,), zeros), (0,), inputs),
        Node("relu", Pointwise(RELU), (1,), inputs),
        Node(
            "affine", Affine((last,) if beside is None else (last, beside), zeros[:1]), sources, 1
        ),
    )
    graph = Graph(nodes, 3, (1, inputs), (1, 1), "x")
    root = Propagation(graph, *(each[None] for each in around(inputs).outer()))
    return Dual(graph, root, torch.ones(1, 1, dtype=torch.float64), zeros[:1])


def test_the_ascent_ends_near_the_relaxation_s_optimum() -> None:
    # y = relu(x1 + x2) + relu(x1 - x2) - x1 >= 0, with equality at x1 = |x2|. CROWN's slopes, 1 or
    # 0 for both, prove -1; slopes of a half prove the optimum, 0.
    first = Dense(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))
    last = (
        Dense(torch.ones(1, 2, dtype=torch.float64)),
        Dense(torch.tensor([[-1.0, 0.0]], dtype=torch.float64)),
    )
    dual = dual_of(2, first, *last)
    whole = dual.whole(torch.ones(1, 1, dtype=torch.bool))
    assert dual.bounds(whole).value.item() == pytest.approx(-1)
    raised, _ = dual.ascend(whole, 60)
    assert -0.02 < dual.bounds(raised).value.item() <= 0


def test_the_line_above_is_not_below_either_end() -> None:
    # y = -relu(x) on [-1, 1]: the chord (x + 1) / 2 touches ReLU at both ends, so that the bound is
    # y's least value.
    dual = dual_of(1, Same(), Dense(-torch.ones(1, 1, dtype=torch.float64)))
    found = dual.bounds(dual.whole(torch.ones(1, 1, dtype=torch.bool))).value.item()
    assert -1 - 1e-9 < found <= -1


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_where_all_neurons_are_held_a_linear_program_decides(seed: int) -> None:
    graph, random = residual(seed, 3, 4, 2), torch.Generator().manual_seed(seed)
    lower, upper = (each[None] for each in around(3, "0.5").outer())
    root = Propagation(graph, lower, upper)
    points = lower + (upper - lower) * torch.rand(5000, 3, generator=random, dtype=torch.float64)
    values = graph.values(points)
    inputs, y = torch.cat([values[1], values[3]], 1), values[-1]
    rows = torch.tensor([[1.0, -1.0], [0.0, 1.0]], dtype=torch.float64)
    for index in range(10):
        inside = (inputs.sign() == inputs[index].sign()).all(1)
        least = (y[inside] @ rows.T).amin(0)
        for moved, empty in ((-0.5, True), (1e-3, False)):
            dual = Dual(graph, root, rows, least + moved)
            whole = dual.whole(torch.tensor([[True, False], [False, True], [True, True]]))
            phases = torch.where(dual.free, inputs[index].sign().to(torch.int8), whole.phases[0])
            for case in range(3):
                part = replace(whole[case : case + 1], phases=phases[None])
                solved = dual.solved(part)
                assert solved is not None
                point, better = solved
                proven = dual.bounds(better).value.item() > 0
                if case < 2 and not empty:  # a sampled point satisfies the row
                    assert not proven
                if not proven:  # the program's optimum does, as far as float64 can tell
                    asked = rows[[case]] if case < 2 else rows
                    ends = (least + moved)[[case]] if case < 2 else least + moved
                    assert bool((graph(point[None])[0] @ asked.T <= ends + 1e-6).all())


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_both_searches_agree_and_no_sampled_point_contradicts_them(
    seed: int, tmp_path: Path
) -> None:
    random = torch.Generator().manual_seed(seed)
    inputs, outputs = 1 + seed % 3, 1 + seed % 2
    module = module_of(seed, inputs, 6, 6, outputs)
    model, graph = file_of(module, tmp_path / "m.onnx")
    points = 2 * torch.rand(5000, inputs, generator=random) - 1
    with torch.no_grad():
        values = module(points).double()
    spread = (values.amax(0) - values.amin(0)).tolist()
    for share in (-0.02, 0.0, 0.05):  # below the least value that was seen, at it, above it
        bounds = [
            float(least) + share * wide for least, wide in zip(values.amin(0), spread, strict=True)
        ]
        rows = [at_most(bound, (i, 1)) for i, bound in enumerate(bounds)]
        # Each output by itself, and all of them at once, which fewer points satisfy.
        cases = [Case(around(inputs), (row,)) for row in rows] + [Case(around(inputs), tuple(rows))]
        asked = Specification(
            inputs, outputs, tuple(replace(each, box=cases[0].box) for each in cases)
        )
        found, other = (answer_of(kind, model, graph, asked) for kind in (PhaseSearch, Bisection))
        assert {found, other} != {Answer.SAT, Answer.UNSAT}
        seen = bool((values <= torch.tensor(bounds) - 1e-4).any())
        assert not (seen and found is Answer.UNSAT)
        if share > 0:
            assert found is Answer.SAT
        if share < 0:
            assert found is not Answer.SAT or seen or other is Answer.SAT


def test_rows_that_only_together_cannot_hold(tmp_path: Path) -> None:
    # |x| and x: no row alone is beyond reach, and no x has |x| <= 0.4 and x >= 0.5.
    first, last = affine([[1.0], [-1.0]], [0.0, 0.0]), affine([[1.0, 1.0], [-1.0, 1.0]], [0.0, 0.0])
    model, graph = file_of(nn.Sequential(first, nn.ReLU(), last), tmp_path / "m.onnx")
    for bound, answer in ((0.4, Answer.UNSAT), (0.6, Answer.SAT)):
        case = Case(around(1), (at_most(bound, (0, 1)), at_most(-0.5, (1, 1))))
        assert answer_of(PhaseSearch, model, graph, Specification(1, 2, (case,))) is answer


@pytest.mark.slow
def test_neurons_settle_in_few_parts_what_inputs_do_not(tmp_path: Path) -> None:
    module = module_of(3, 20, 24, 24, 1)
    model, graph = file_of(module, tmp_path / "m.onnx")
    box = around(20, "0.1")
    points = 0.2 * torch.rand(256, 20, generator=torch.Generator().manual_seed(0)) - 0.1
    for _ in range(100):
        points = points.detach().requires_grad_()
        (slope,) = torch.autograd.grad(module(points).sum(), points)
        points = (points - 0.01 * slope.sign()).clamp(-0.1, 0.1)
    least, middle = module(points).min().item(), module(torch.zeros(1, 20)).item()
    asked = Specification(20, 1, (Case(box, (at_most(least - 0.1 * (middle - least), (0, 1)),)),))
    assert answer_of(PhaseSearch, model, graph, asked) is Answer.UNSAT
    assert answer_of(Bisection, model, graph, asked, most=300) is Answer.TIMEOUT
    found = decide(model, graph, asked, timeout=60)
    assert (found.answer, found.reason) == (Answer.UNSAT, "phases")


def test_networks_of_other_activations_have_no_phases(tmp_path: Path) -> None:
    for kind in ("Relu", "Gelu", "LeakyRelu", "Identity"):
        _, graph = file_of(module_of(0, 2, 3, 1), tmp_path / "m.onnx", kind)
        assert is_relu_network(graph) is (kind == "Relu")


def test_a_search_that_was_not_run_to_its_end_proves_nothing(tmp_path: Path) -> None:
    model, graph = file_of(module_of(0, 2, 6, 6, 1), tmp_path / "m.onnx")
    case = Case(around(2), (at_most(-1e6, (0, 1)),))
    asked = Specification(2, 1, (case,))
    attack = Attack(
        graph.to(torch.float32),
        asked,
        Witnesses(asked, model.SerializeToString()),
        seed=0,
        check=lambda: None,
    )
    for kind in (PhaseSearch, Bisection):
        search = kind(graph, case.box, [(0, case)], attack, lambda: None)
        assert search.run(until=0.0) is None
        assert (search.open_share, search.proven) == (1, False)
        assert search.run() is None
        assert (search.open_share, search.proven) == (0, True)


def test_engines_say_the_same_and_what_they_cannot_do(tmp_path: Path) -> None:
    file_of(module_of(1, 2, 5, 5, 1), tmp_path / "relu.onnx")
    file_of(module_of(1, 2, 5, 1), tmp_path / "gelu.onnx", "Gelu")
    for bound, answer in (("-1000", Answer.UNSAT), ("1000", Answer.SAT)):
        property_of(tmp_path / "p.vnnlib", [("-1", "1")] * 2, 1, f"(<= Y_0 {bound})")
        for engine in ENGINES:
            assert (
                verify(tmp_path / "relu.onnx", tmp_path / "p.vnnlib", engine=engine).answer
                is answer
            )
    with pytest.raises(
        Unsupported,
        match="engine 'neurons' holds neurons of ReLU networks, and this one has others",
    ):
        verify(tmp_path / "gelu.onnx", tmp_path / "p.vnnlib", engine="neurons")
    asked = [
        "verify",
        "--onnx",
        str(tmp_path / "relu.onnx"),
        "--vnnlib",
        str(tmp_path / "p.vnnlib"),
        "--engine",
    ]
    said = CliRunner().invoke(app, [*asked, "z4"])
    assert (
        said.exit_code,
        "engine must be one of auto, inputs, neurons, exact, marabou, z3, got 'z4'" in said.output,
    ) == (2, True)
    assert CliRunner().invoke(app, [*asked, "neurons"]).exit_code == 0


def test_phases_of_two_networks_at_once(tmp_path: Path) -> None:
    first = module_of(1, 2, 4, 4, 1)
    second = copy.deepcopy(first)
    with torch.no_grad():
        for each in second.parameters():
            each += 0.01 * torch.randn(each.shape, generator=torch.Generator().manual_seed(1))
    (model, graph), (other, beside) = (
        file_of(module, tmp_path / f"{name}.onnx") for name, module in (("a", first), ("b", second))
    )
    points = 2 * torch.rand(5000, 2, generator=torch.Generator().manual_seed(1)) - 1
    with torch.no_grad():
        apart = (first(points) - second(points)).abs().max().item()
    both = side_by_side(graph, beside)
    assert is_relu_network(both)
    for share, answer in ((0.9, Answer.SAT), (2.0, Answer.UNSAT)):
        box, distance = around(2), share * apart
        cases = tuple(Case(box, (at_most(-distance, (0, sign), (1, -sign)),)) for sign in (1, -1))
        asked = Specification(2, 2, cases)
        judge = Witnesses(asked, model.SerializeToString(), other.SerializeToString())
        attack = Attack(both.to(torch.float32), asked, judge, seed=0, check=lambda: None)
        search = PhaseSearch(both, box, list(enumerate(cases)), attack, lambda: None)
        found = (
            Answer.SAT
            if search.run() is not None
            else Answer.UNSAT
            if search.proven
            else Answer.UNKNOWN
        )
        assert found is answer

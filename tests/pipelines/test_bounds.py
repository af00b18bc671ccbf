"""Bound propagation: hand-computed intervals, soundness by sampling, refusals, rounding and
guards.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from bounds_sampled import Sampled, around_0, boxes
from cases import slow
from torch import fx, nn
from written import Written, affine

from evalsuite import Bench, LambdaGELU, Network, Property, Unsupported
from evalsuite.plugins import entries
from netverify import falsify
from netverify.propagation import LowerBounds
from netverify.propagation import Propagation as OfGraph
from opgraph.modules import in_modules
from pipelines.bounds import Bounds, adapter
from pipelines.bounds import propagation as propagation_module
from pipelines.bounds.adapter import ALLOWED, plain
from pipelines.bounds.margins import Margins, proven
from pipelines.bounds.options import METHODS
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.regions import Regions
from pipelines.bounds.rounding import Rounding
from pipelines.bounds.surroundings import OPERATOR

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]


def each_method(
    propagation: Propagation, properties: list[Property]
) -> Iterator[tuple[str, Margins]]:
    """The bounds of each method that manages the network; only that of forward bounds may depend
    on it.
    """
    found: Margins | None = None
    for method in METHODS[:-1] if propagation.second.unoptimized else METHODS:
        try:
            # The last one starts from the one before it: that of CROWN.
            found = propagation.bounds(
                properties, method, start=found if method == "alpha-crown" else None
            )
            yield method, found
        except Unsupported as error:
            if "auto_LiRPA" not in str(error) or method != "forward":
                raise


def two_by_two(activation: nn.Module) -> Network:
    first, last = (
        affine([[1.0, -1.0], [2.0, 1.0]], [0.0, -1.0]),
        affine([[1.0, 1.0], [-1.0, 2.0]], [0.5, 0.0]),
    )
    return Network("hand", nn.Sequential(first, activation, last).eval(), (2,), 2)


def test_ibp_by_hand() -> None:
    box = Property(0, 1, 0.0, torch.tensor([0.0, 0.0]).double(), torch.tensor([1.0, 1.0]).double())
    found = Propagation(two_by_two(nn.ReLU())).bounds([box], "ibp")
    # Before ReLU: [-1, 1] and [-1, 2]; after: [0, 1] and [0, 2]. The margin is -2 a + b - 0.5.
    assert found.lower[0].tolist() == pytest.approx([0.5, -1.0], abs=1e-8)
    assert found.upper[0].tolist() == pytest.approx([3.5, 4.0], abs=1e-8)
    assert found.margins[0].tolist() == pytest.approx([-2.5], abs=1e-8)
    assert found.unstable.tolist() == [2]


def test_crown_by_hand() -> None:
    box = Property(0, 1, 0.0, torch.tensor([0.6, 0.0]).double(), torch.tensor([1.0, 0.25]).double())
    found = Propagation(two_by_two(nn.ReLU())).bounds([box], "crown")
    # Both activations are on: the network is affine there, so the bound is exact: 3 y - 1.5, at y
    # = 0.
    assert found.unstable.tolist() == [0]
    assert found.margins[0].tolist() == pytest.approx([-1.5], abs=1e-8)
    loose = Propagation(two_by_two(nn.ReLU())).bounds([box], "ibp")
    # -2 [0.35, 1] + [0.2, 1.25] - 0.5
    assert loose.margins[0].tolist() == pytest.approx([-2.3], abs=1e-6)


@pytest.mark.parametrize(
    ("workload", "eps", "variant"),
    [
        *(("digits-mlp", 0.0625, variant) for variant in ("gelu", "lambda-gelu", "relu")),
        ("digits-cnn", 0.03125, "relu"),
        *(slow("digits-cnn", 0.03125, variant) for variant in ("gelu", "lambda-gelu")),
    ],
)
def test_bounds_hold_in_sampled_points(
    network: MakeNetwork, bench: MakeBench, workload: str, variant: str, eps: float
) -> None:
    subject = network(workload, variant)
    # All lines of a convolutional network take seconds for each sample.
    properties = bench(workload).properties(eps, 1 if workload == "digits-cnn" else 3)
    sampled = Sampled(subject, properties, 1000)
    found = dict(each_method(Propagation(subject, iterations=10), properties))
    assert tuple(found) == METHODS
    for each in found.values():
        sampled.check(each)
    assert (
        (found["crown"].upper - found["crown"].lower) < (found["ibp"].upper - found["ibp"].lower)
    ).all()
    assert (found["alpha-crown"].margins >= found["crown"].margins).all()
    assert (found["crown"].unstable <= found["ibp"].unstable).all()


def test_a_point_has_exact_bounds(network: MakeNetwork, bench: MakeBench) -> None:
    subject = network("digits-mlp", "gelu")
    properties = bench("digits-mlp").properties(0.0, 3)
    logits = torch.cat(Sampled(subject, properties, 1).logits)
    propagation = Propagation(subject)
    for method in METHODS:
        found = propagation.bounds(properties, method)
        assert torch.allclose(found.lower, logits, atol=1e-7, rtol=0)
        assert torch.allclose(found.upper, logits, atol=1e-7, rtol=0)
        assert (found.lower < logits).all()


def test_batches_do_not_matter(network: MakeNetwork, bench: MakeBench) -> None:
    properties = bench("digits-mlp").properties(0.03125, 7)
    propagation = Propagation(network("digits-mlp", "gelu"))
    whole = propagation.bounds(properties, "crown")
    propagation.batch = 3
    parts = propagation.bounds(properties, "crown")
    assert len(parts) == 7
    assert torch.allclose(whole.margins, parts.margins, atol=1e-9, rtol=0)
    assert torch.equal(whole.unstable, parts.unstable)


def test_a_conversion_that_computes_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = adapter.plain

    def off(traced: fx.GraphModule) -> nn.Module:
        found = right(traced)
        found.get_parameter("2.bias")[0] += 1e-6
        return found

    monkeypatch.setattr(adapter, "plain", off)
    propagation = Propagation(two_by_two(nn.ReLU()))
    told = "auto_LiRPA: its conversion of the network computes another function"
    assert propagation.second.refusal == told
    properties = boxes((2,), 0.1, classes=2)
    crown = propagation.bounds(properties, "crown")
    assert propagation.compare(properties, crown) == (None, told)
    with pytest.raises(Unsupported, match=told):
        propagation.bounds(properties, "alpha-crown")


def test_bounds_that_are_not_numbers_prove_nothing() -> None:
    number, logits = torch.ones(1, 9, dtype=torch.float64), torch.zeros(1, 10, dtype=torch.float64)
    little = torch.full_like(number, 1e-4)

    def holds(margins: torch.Tensor, allowance: torch.Tensor) -> object:
        return proven(Margins(margins, logits, logits, allowance, [])).item()

    assert holds(number, little)
    for useless in (torch.nan, torch.inf, -torch.inf, 1e-5):
        assert not holds(torch.full_like(number, useless), little)
    for useless in (torch.nan, torch.inf, 2.0):
        assert not holds(number, torch.full_like(number, useless))


def twice(
    join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[nn.Module], nn.Module]:
    def make(act: nn.Module) -> nn.Module:
        return Written(
            lambda m, x: m.c(join(m.b(m.act(m.a(x.flatten(1)))), m.act(m.a(x.flatten(1))))),
            a=nn.Linear(25, 6),
            b=nn.Linear(6, 6),
            c=nn.LazyLinear(4),
            act=act,
        )

    return make


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(4))


# Each operator that is allowed, with the ONNX name that it has in the graph, and each kind of
# window.
ARCHITECTURES: dict[str, tuple[str, Callable[[nn.Module], nn.Module]]] = {
    "plain": (
        "Conv Flatten Gemm",
        lambda act: chain(nn.Conv2d(1, 3, 3, 2, 1), act, nn.Conv2d(3, 2, 2, 1, 1), act),
    ),
    "rectangle": (
        "Conv",
        lambda act: chain(nn.Conv2d(1, 3, 3, 2), act, nn.Conv2d(3, 2, (1, 3), padding=(0, 1)), act),
    ),
    "strides": (
        "Conv",
        lambda act: chain(nn.Conv2d(1, 3, 3, 1, 1), act, nn.Conv2d(3, 2, 2, (1, 2), 1), act),
    ),
    "dilated": (
        "Conv",
        lambda act: chain(nn.Conv2d(1, 3, 2, 1, 1, 2), act, nn.Conv2d(3, 3, 3, 1, 1, 1, 3), act),
    ),
    "average": (
        "AveragePool",
        lambda act: chain(nn.Conv2d(1, 3, 3, 1, 1), act, nn.AvgPool2d(2), nn.Conv2d(3, 2, 2)),
    ),
    "maximum": (
        "MaxPool",
        lambda act: chain(nn.Conv2d(1, 3, 3, 1, 1), act, nn.MaxPool2d(2), nn.Conv2d(3, 2, 2)),
    ),
    "global": (
        "GlobalAveragePool",
        lambda act: chain(nn.Conv2d(1, 3, 3), act, nn.AdaptiveAvgPool2d(1)),
    ),
    "norm": (
        "BatchNormalization",
        lambda act: chain(nn.Conv2d(1, 3, 3), act, nn.BatchNorm2d(3), act),
    ),
    "add": ("Add", twice(torch.add)),
    "sub": ("", twice(torch.sub)),
    "cat": ("Concat", twice(lambda one, other: torch.cat([one, other], 1))),
    "constant": (
        "",
        lambda act: Written(
            lambda m, x: 1 - m.act(m.a(x.flatten(1) - 0.5)), a=nn.Linear(25, 4), act=act
        ),
    ),
    "unsqueeze": (
        "Flatten",
        lambda act: Written(
            lambda m, x: m.b(m.act(m.a(x.flatten(1))).unsqueeze(1).flatten(1)),
            a=nn.Linear(25, 6),
            b=nn.Linear(6, 4),
            act=act,
        ),
    ),
    "reshape": (
        "Flatten",
        lambda act: Written(
            lambda m, x: m.b(m.act(m.a(x)).reshape(-1, 75)),
            a=nn.Conv2d(1, 3, 3, padding=1),
            b=nn.Linear(75, 4),
            act=act,
        ),
    ),
    "gather": (
        "",
        lambda act: Written(
            lambda m, x: m.b(m.act(m.a(x.flatten(1)))[:, [2, 0, 1, 1]]),
            a=nn.Linear(25, 6),
            b=nn.Linear(4, 4),
            act=act,
        ),
    ),
    "folded": (
        "Conv",
        lambda act: chain(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            act,
            nn.Conv2d(4, 4, 3, padding=1, groups=2),
            act,
        ),
    ),
    "dropout": (
        "Conv",
        lambda act: chain(
            nn.Conv2d(1, 4, 3, 1, 1), act, nn.Dropout2d(), nn.Conv2d(4, 4, 3, 2), act
        ),
    ),
    "residual": (
        "Add",
        lambda act: Written(
            lambda m, x: m.c(torch.relu((y := m.act(m.a(x))) + m.b(y)).flatten(1)),
            a=nn.Conv2d(1, 3, 3, padding=1),
            b=nn.Conv2d(3, 3, 3, padding=1),
            c=nn.LazyLinear(4),
            act=act,
        ),
    ),
    "view": (
        "Flatten",
        lambda act: Written(
            lambda m, x: m.b(m.act(m.a(x)).view(len(x), -1)),
            a=nn.Conv2d(1, 3, 3, padding=1),
            b=nn.Linear(75, 4),
            act=act,
        ),
    ),
    "one dimension": (
        "",
        lambda act: Written(
            lambda m, x: m.c(m.act(m.b(m.act(m.a(x.flatten(2))))).flatten(1)),
            a=nn.Conv1d(1, 3, 4, 2, 1),
            b=nn.ConvTranspose1d(3, 2, 3, 2),
            c=nn.LazyLinear(4),
            act=act,
        ),
    ),
    "three dimensions": (
        "",
        lambda act: Written(
            lambda m, x: m.c(m.act(m.b(m.act(m.a(x.reshape(-1, 1, 5, 5, 1))))).flatten(1)),
            a=nn.Conv3d(1, 3, (2, 3, 1), (1, 2, 1)),
            b=nn.ConvTranspose3d(3, 2, (1, 2, 2)),
            c=nn.LazyLinear(4),
            act=act,
        ),
    ),
}


def made(kind: str, activation: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = ARCHITECTURES[kind][1](activation()).eval()
    module(torch.rand(1, 1, 5, 5))
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            nn.init.normal_(each.running_mean)
            nn.init.uniform_(each.running_var, 0.5, 2)
            nn.init.uniform_(each.weight, -1, 1)
    return module


# What auto_LiRPA is not given, and what its alpha-CROWN fails on.
OWN = {"sub", "constant", "gather", "one dimension", "three dimensions"}


def test_every_allowed_operator_has_a_network_here() -> None:
    seen = {OPERATOR, "onnx::Relu"}
    for kind, (names, _) in ARCHITECTURES.items():
        named = {f"onnx::{name}" for name in names.split()}
        if named <= seen:
            continue
        try:
            read = plain(in_modules(made(kind, nn.ReLU, 0), torch.rand(2, 1, 5, 5), exact=True))
        except Unsupported:  # auto_LiRPA does not get it
            assert kind in OWN
            continue
        operators = {name for name, _ in adapter.operators(read, (1, 5, 5))}
        assert named <= operators
        seen |= operators
    assert seen == ALLOWED


@pytest.mark.parametrize(
    ("activation", "seed"),
    [(nn.ReLU, 0), slow(nn.GELU, 1), slow(lambda: LambdaGELU(hardness=30.0), 2)],
)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_operator_is_bounded_soundly(
    kind: str, activation: Callable[[], nn.Module], seed: int
) -> None:
    subject = Network(kind, made(kind, activation, seed), (1, 5, 5), 4)
    properties = boxes((1, 5, 5), 0.3, 3, 4)
    sampled, propagation = Sampled(subject, properties, 500), Propagation(subject, iterations=3)
    assert bool(propagation.second.refusal) == (kind in OWN)
    assert bool(propagation.second.unoptimized) == (kind in {"maximum", *OWN})
    for _, found in each_method(propagation, properties):
        sampled.check(found)


def test_the_rounding_bound_by_hand() -> None:
    # relu(x + 2048) - 2048, x in [0, 1]: u (1 + 2) (1 + 2048) for the first sum, the same again for
    # the second one.
    module = nn.Sequential(
        affine([[1.0]], [2048.0]), nn.ReLU(), affine([[1.0], [0.0]], [-2048.0, 0.0])
    ).eval()
    rounding = Rounding(in_modules(module, torch.rand(2, 1), exact=True))
    single, double = rounding.errors(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
    assert single[0, 0].item() == pytest.approx(3 * 2.0**-24 * (2049 + 2049 + 2048), rel=1e-5)
    assert single[0, 1].item() < 1e-30
    assert 0 < double[0, 0].item() < 1e-10


@pytest.mark.parametrize("big", [2048.0, 2.0**24])
def test_what_float32_loses_is_not_proven(big: float) -> None:
    module = nn.Sequential(
        affine([[1.0]], [big]), nn.ReLU(), affine([[1.0], [0.0]], [-big, 0.0])
    ).eval()
    box = Property(0, 0, 0.0, torch.tensor([4e-5]).double(), torch.tensor([4.1e-5]).double())
    assert falsify(module, [box], seed=0)[0] is not None
    propagation = Propagation(Network("n", module, (1,), 2))
    for method in METHODS:
        assert not proven(propagation.bounds([box], method)).any()


@pytest.mark.parametrize("last", [[[1e20], [5e19]], [[1e-40], [0.0]]])
def test_what_overflows_float32_is_not_proven(last: list[list[float]]) -> None:
    middle = [] if last[0][0] > 1 else [affine([[1e20]], [0.0]), nn.ReLU()]
    module = nn.Sequential(
        affine([[1e20]], [0.0]), nn.ReLU(), *middle, affine(last, [0.0, 0.0])
    ).eval()
    box = Property(0, 0, 0.0, torch.tensor([0.5]).double(), torch.tensor([1.0]).double())
    propagation = Propagation(Network("n", module, (1,), 2))
    for method in METHODS:
        found = propagation.bounds([box], method)
        assert (found.margins > 0).all()
        assert not proven(found).any()
    assert falsify(module, [box], seed=0)[0] is not None


# x relu6(x + 3) and x (1 + erf x), which some kernels compute on the way, and others do not.
@pytest.mark.parametrize(("act", "at", "times"), [(nn.Hardswish(), 1e38, 6), (nn.GELU(), 2e38, 2)])
def test_what_overflows_float32_within_an_activation_is_not_proven(
    act: nn.Module, at: float, times: int
) -> None:
    module = nn.Sequential(act, affine([[1.0], [0.0]], [0.0, 0.0])).eval()
    box = Property(0, 0, 0.0, torch.tensor([0.9 * at]).double(), torch.tensor([at]).double())
    assert (torch.tensor(at) * times).isinf()
    assert not proven(Propagation(Network("n", module, (1,), 2)).bounds([box], "crown")).any()


def test_bounds_of_an_input_as_it_is_hold_its_ends() -> None:
    subject = Network("n", Written(lambda _, x: x[:, :3]), (4,), 3)
    properties = boxes((4,), 0.3, 100, centers=around_0, domain=(-9.0, 9.0))
    Sampled(subject, properties, 100).check(Propagation(subject).bounds(properties, "crown"))


def test_what_float32_computes_is_held_against_its_bound() -> None:
    module = nn.Sequential(
        affine([[1.0]], [2048.0]), nn.ReLU(), affine([[1.0], [0.0]], [-2048.0, 0.0])
    ).eval()
    propagation, regions = (
        Propagation(Network("n", module, (1,), 2)),
        Regions.of(boxes((1,), 0.1, classes=2)),
    )
    bound = torch.full((3, 2), 1e-3).double()
    propagation._check_rounding(regions, bound)
    propagation._check_rounding(regions, torch.full_like(bound, torch.inf))
    with pytest.raises(Unsupported, match="beyond its bound"):
        propagation._check_rounding(regions, bound / 100)
    between = Property(
        0, 0, 0.0, *torch.tensor([[0.3 + 1e-12], [0.3 + 2e-12]], dtype=torch.float64)
    )
    # there is no float32 number in it
    propagation._check_rounding(Regions.of([between]), bound[:1] / 100)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    module = nn.Sequential(
        affine([[value]], [0.0]), nn.ReLU(), affine([[1.0], [0.0]], [0.0, 0.0])
    ).eval()
    with pytest.raises(Unsupported, match=r"0\.weight has values that are not finite"):
        Propagation(Network("n", module, (1,), 2))


def functional(function: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    return Written(lambda net, x: function(net.linear(x.flatten(1))), linear=nn.Linear(64, 10))


def normed(y: torch.Tensor) -> torch.Tensor:
    return y / (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()


def dense(last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), last)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (dense(nn.LogSoftmax(-1)), "2: no bound of the rounding of log_softmax"),
        (dense(nn.CELU()), "2: no bound of the rounding of celu"),
        (
            functional(lambda y: y.log_softmax(1)),
            "softmax: no bound of the rounding of log_softmax",
        ),
        (functional(normed), "power: no bound of the rounding of pow"),
        (functional(torch.erf), "erf"),
        (
            functional(lambda y: torch.relu(y).cumsum(1)),
            "cumulativesum: no bound of the rounding of cumsum",
        ),
        (Written(lambda m, x: m.a(x.flatten(1).float()), a=nn.Linear(64, 10)), "fails in float64"),
        (
            dense(nn.PReLU(10)),
            r"2\.pair: no bound .* slopes a it is torch\.relu\(x\) - a \* torch\.relu\(-x\)",
        ),
        (
            nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Flatten(), nn.Linear(16, 10)),
            "node '0': a MaxPool with ceil_mode",
        ),
        (dense(nn.BatchNorm1d(10, track_running_stats=False)), r"2 \(BatchNorm1d"),
    ],
)
def test_what_can_not_be_bounded_is_refused_by_name(module: nn.Module, name: str) -> None:
    with pytest.raises(Unsupported, match=name):
        Propagation(Network("refused", module.eval(), (1, 8, 8), 10))


@pytest.mark.parametrize(("module", "name"), [(functional(torch.erf), "erf")])
def test_what_no_engine_can_bound_is_refused_by_the_stage(
    module: nn.Module, name: str, bench: MakeBench
) -> None:
    with pytest.raises(Unsupported, match=name):
        Bounds().run(Network("refused", module.eval(), (64,), 10), bench("digits-mlp"))


def test_bounds_that_exclude_a_corner_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, properties = two_by_two(nn.ReLU()), boxes((2,), 0.1, classes=2)
    propagation = Propagation(subject)
    right = propagation_module.OfGraph.lower_bounds

    def off(self: OfGraph, rows: torch.Tensor, value: int | None = None) -> LowerBounds:
        found = right(self, rows, value)
        return found if value is not None else replace(found, value=found.value + 0.1)

    monkeypatch.setattr(propagation_module.OfGraph, "lower_bounds", off)
    with pytest.raises(Unsupported, match="bounds exclude a value of the network, a defect"):
        propagation.bounds(properties, "crown")


def test_engines_that_exclude_each_other_are_not_believed() -> None:
    subject, properties = two_by_two(nn.ReLU()), boxes((2,), 0.1, classes=2)
    propagation = Propagation(subject)
    crown = propagation.bounds(properties, "crown")
    ratio, reason = propagation.compare(properties, crown)
    assert reason == ""
    assert 0.5 < (ratio or 0.0) < 1 + 1e-9
    off = replace(crown, lower=crown.lower + 100, upper=crown.upper + 100)
    with pytest.raises(Unsupported, match="the graph's exclude each other"):
        propagation.compare(properties, off)


@pytest.mark.slow
def test_another_process_gives_the_same_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import torch; from torch import nn; from evalsuite import Network, Property\nfrom"
        " pipelines.bounds.propagation import Propagation\ntorch.manual_seed(0); module ="
        " nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()\nbox ="
        " Property.robustness(torch.full((4,), 0.5), sample=0, label=0, eps=0.3, domain=(0.0,"
        " 1.0))\nfound = Propagation(Network('n', module, (4,), 3)).bounds([box],"
        " 'alpha-crown')\nprint(found.margins.tolist(), found.lower.tolist())"
    )
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", code]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exec(code, {})
    assert first == capsys.readouterr().out
    assert first.startswith("[[")


# Those that train or swap with other activations than the default's are the recipe's to
# parametrise.
REGISTERED = [
    each.name for each in entries("variants") if each.name not in ("trained", "swapped", "given")
]
VARIANTS = ["gelu", "relu", "prelu", *REGISTERED]


# Epochs of training, boxes and points in each: what bounds of a workload cost decides.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "epochs", "count", "points", "variants"),
    [
        ("digits-mlp", 3, 8, 800, VARIANTS),
        ("adult-mlp", 1, 4, 600, VARIANTS),
        ("digits-cnn", 1, 2, 600, VARIANTS),
        ("digits-resnet", 1, 1, 600, ["gelu", "swap-recalibrated"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_point_lies_outside_on_any_variant(
    workload: str,
    epochs: int,
    count: int,
    points: int,
    variants: list[str],
    network: MakeNetwork,
    bench: MakeBench,
) -> None:
    networks = 0
    for variant in variants:
        try:
            subject = network(workload, variant, epochs=epochs)
        except Unsupported:
            continue  # swap-recalibrated, of a network without BatchNorm
        networks, propagation = networks + 1, Propagation(subject)
        for eps in (0.01, 0.1):
            properties = bench(workload, epochs=epochs).properties(eps, count)
            sampled = Sampled(subject, properties, points, climbing=8)
            sampled.check(propagation.bounds(properties, "crown"), propagation.layers)
    assert networks >= len(variants) - ("resnet" not in workload)


def test_auto_lirpa_leaves_the_depth_of_calls_as_it_was() -> None:
    """It raises the limit to a million for the whole process, and deeply nested JSON then ended
    it by a crash.
    """
    code = (
        "import sys; before = sys.getrecursionlimit(); import pipelines.bounds.adapter; "
        "assert sys.getrecursionlimit() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

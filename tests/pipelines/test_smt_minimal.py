"""The minimal adversarial distance: by hand, against scans, with deciders that give up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import nn

from evalsuite import Network, Property, Verdict
from netverify import falsify
from pipelines.smt.counterexample import Judge
from pipelines.smt.deciding import Z3
from pipelines.smt.measuring import Bracket, nearest_above
from pipelines.smt.reading import read
from pipelines.smt.settling import Limits as QueryLimits
from pipelines.smt.settling import Settled


def said(verdict: Verdict, counterexample: torch.Tensor | None = None) -> Settled:
    return Settled(verdict, "", counterexample=counterexample)


def tie_at(
    distance: float, gives_up: Callable[[float], bool] = lambda eps: False
) -> Callable[[Property], Settled]:
    """A decider for one input 0 whose class changes `distance` to the right, and which may give
    up.
    """

    def decide(property_: Property) -> Settled:
        if gives_up(property_.eps):
            return said(Verdict.TIMEOUT)
        if float(property_.upper) < distance:
            return said(Verdict.HOLDS)
        return said(Verdict.VIOLATED, torch.tensor([distance]))

    return decide


def bracket_around(
    decide: Callable[[Property], Settled], center: torch.Tensor, label: int = 0, **options: float
) -> Bracket:
    domain = (-9.0, 9.0)
    asked = Property.robustness(center, sample=0, label=label, eps=0.0, domain=domain)
    return Bracket(decide, center, asked, domain, **options).narrowed()


def search(decide: Callable[[Property], Settled], center: float = 0.0, **options: float) -> Bracket:
    return bracket_around(decide, torch.tensor([center]), **options)


def decider_of(network: Network) -> Callable[[Property], Settled]:
    exact = read(network)
    decider = Z3(exact, Judge(network, exact, 0), QueryLimits(30.0, time.monotonic() + 60))
    return lambda property_: decider.query(
        property_, falsify(network.module, [property_], seed=0)[0], 1.0
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_against_a_scan_of_a_random_network(seed: int) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    center = torch.rand(2)
    label = int(module(center[None]).argmax())
    grid = torch.linspace(-0.5, 0.5, 1001)
    offsets = torch.cartesian_prod(grid, grid)
    wrong = module(center + offsets).argmax(1) != label
    scanned = float(offsets[wrong].abs().amax(1).min()) if bool(wrong.any()) else math.inf
    network = Network("tiny", module, (2,), 3)
    found = bracket_around(decider_of(network), center, label, tolerance=2**-9)
    assert found.decided
    if found.violated is None:
        assert found.holds == Fraction(1, 2)
        assert scanned == math.inf
    else:
        # Where the wrong region's corner lies between two points of the grid, the scan is too
        # great.
        assert float(found.holds or 0) <= scanned <= float(found.violated) + 2e-3
        assert float(found.violated) <= scanned + 2**-9


@pytest.mark.parametrize("tolerance", [2**-4, 2**-10, 0.003])
@pytest.mark.parametrize("distance", [0.1, 0.25, 0.4999, 1e-9])
def test_the_bracket_is_as_narrow_as_asked(distance: float, tolerance: float) -> None:
    found = search(tie_at(distance), tolerance=tolerance)
    exact = Fraction(float(torch.tensor(distance)))
    assert found.violated == exact  # the counterexample's own distance, not the radius asked about
    assert found.holds is not None
    assert 0 <= found.holds < exact
    assert found.decided
    assert exact - found.holds <= Fraction(tolerance)
    assert found.questions <= 3 + math.ceil(math.log(0.5 / tolerance, 4 / 3))


def test_ends_of_the_range() -> None:
    beyond = search(tie_at(3.0), greatest=0.5)
    assert (beyond.holds, beyond.violated, beyond.decided, beyond.questions) == (
        Fraction(1, 2),
        None,
        True,
        2,
    )
    wrong = search(tie_at(0.0))
    assert (wrong.holds, wrong.violated, wrong.decided, wrong.questions) == (None, 0, True, 1)


def test_what_is_undecided_is_passed_over() -> None:
    found = search(tie_at(0.3, lambda eps: 0.2 < eps < 0.28), tolerance=2**-10)
    assert found.holds is not None
    assert found.violated is not None
    assert not found.decided or found.holds >= Fraction(0.28)
    assert found.violated - found.holds <= Fraction(1, 500)  # holds again above the gap
    vain = search(tie_at(0.3, lambda eps: 0.2 < eps < 0.4), tolerance=2**-6)
    assert not vain.decided
    assert vain.undecided > 0
    assert vain.holds is not None
    assert Fraction(0.2) - Fraction(1, 64) <= vain.holds <= Fraction(0.2)
    assert vain.violated == Fraction(float(torch.tensor(0.3)))
    none = search(tie_at(0.3, lambda eps: True))
    assert (none.holds, none.violated, none.decided, none.questions) == (None, None, False, 1)


def test_it_ends_at_any_time_with_a_true_bracket() -> None:
    def slow(property_: Property) -> Settled:
        time.sleep(0.05)
        return tie_at(0.3)(property_)

    found = search(slow, seconds=0.12, tolerance=2**-20)
    assert not found.decided
    assert found.questions <= 4
    assert found.holds is not None
    assert found.holds < Fraction(float(torch.tensor(0.3))) == found.violated


def test_boxes_contain_the_exact_ball() -> None:
    center = 0.1 + 2**-30
    radii = []

    def decide(property_: Property) -> Settled:
        exact = Fraction(float(torch.tensor(center)))
        assert Fraction(float(property_.lower)) <= exact - Fraction(property_.eps)
        assert Fraction(float(property_.upper)) >= exact + Fraction(property_.eps)
        radii.append(property_.eps)
        return tie_at(0.5)(property_)

    search(decide, center, tolerance=2**-8)
    assert all((radius * 2**10).is_integer() for radius in radii[:3])
    assert (
        nearest_above(Fraction(1, 3))
        > Fraction(1, 3)
        > math.nextafter(nearest_above(Fraction(1, 3)), 0)
    )


def test_contradictions_are_errors() -> None:
    with pytest.raises(RuntimeError, match="outside its box"):
        search(lambda property_: said(Verdict.VIOLATED, torch.tensor([8.0])))

    def fickle(property_: Property) -> Settled:
        return (
            said(Verdict.HOLDS)
            if property_.eps < 0.4
            else said(Verdict.VIOLATED, torch.tensor([0.0]))
        )

    with pytest.raises(RuntimeError, match="radius 0 holds, but a counterexample is at distance 0"):
        search(fickle)

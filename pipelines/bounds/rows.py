"""Write what was found of the properties and of each activation layer as the metrics of the stage's
outcome.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from evalsuite import Direction, Metric, Property, Verdict
from pipelines.bounds.margins import Margins, Points
from pipelines.bounds.radius import Radii

_ROUNDED = "proven for real arithmetic, but rounding gives a float32 counterexample"
_LAYERED = ("ibp", "crown")
WORST = "worst-attack"  # stands for all of AutoAttack's attacks together
Setting = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Found:
    """Holds what one method says of the properties.

    Args:
        method: its name.
        holds: (properties,) bool.
        late: (properties,) bool: not tried for want of time.
        rounded: (properties,) bool: proven, but of real arithmetic only.
        seconds: what it took.
        bounds: of the first properties, as many as were in time.
        reason: what to know about it.
        refused: the method does not work on this network.
    """

    method: str
    holds: torch.Tensor
    late: torch.Tensor
    rounded: torch.Tensor
    seconds: float
    bounds: Margins | None
    reason: str = ""
    refused: bool = False

    @staticmethod
    def none(method: str, count: int, reason: str, seconds: float = 0.0) -> Found:
        """Return what there is of a method that refuses the network."""
        nothing = torch.zeros(count, dtype=torch.bool)
        return Found(method, nothing, nothing, nothing, seconds, None, reason, refused=True)


@dataclass(frozen=True, slots=True)
class Attacked:
    """Holds what one of AutoAttack's attacks found of the properties.

    Args:
        points: of each property a counterexample, or None.
        late: (properties,) bool: not attacked for want of time.
        seconds: what it took where no smaller ball had a counterexample.
        reason: what to know about it.
    """

    points: Points
    late: torch.Tensor
    seconds: float
    reason: str = ""

    @property
    def broken(self) -> torch.Tensor:
        """(properties,) bool."""
        return torch.tensor([point is not None for point in self.points])


class Rows:
    """Metrics of balls in one norm, which is told where it is not L-infinity, of `positions` of
    tokens.
    """

    def __init__(self, norm: str, positions: int) -> None:
        self._ball: Setting = {} if norm == "linf" else {"norm": norm}
        self._ball.update({"positions": positions} if positions else {})
        # Of each radius, (properties,) bool: what the attacks that had time broke.
        self._broken: dict[float, torch.Tensor] = {}

    def _setting(self, **setting: float | str) -> Setting:
        return {**setting, **self._ball}

    def clean(self, correct: torch.Tensor) -> Metric:
        """The accuracy on the samples that are certified."""
        return Metric(
            "clean_accuracy", correct.double().mean().item(), "fraction", Direction.HIGHER
        )

    def attack(
        self,
        properties: list[Property],
        points: Sequence[torch.Tensor | None],
        late: torch.Tensor,
        seconds: float,
    ) -> list[Metric]:
        """Report what PGD left standing; its seconds are those of the search where no smaller ball
        had a counterexample.
        """
        eps = properties[0].eps
        violated = torch.tensor([point is not None for point in points])
        left = None if bool(late.all()) else (~violated).double().mean().item()
        self._attacked(eps, violated, late)
        result = Found("pgd", violated, late, torch.zeros_like(late), seconds, None)
        setting, reason = self._setting(eps=eps), _told(late)
        return [
            Metric(
                "pgd_accuracy",
                left,
                "fraction",
                Direction.HIGHER,
                setting,
                reason=reason,
            ),
            *self._verdicts(properties, result, Verdict.VIOLATED),
        ]

    def attacks(self, properties: list[Property], attacked: Mapping[str, Attacked]) -> list[Metric]:
        """Report what each of AutoAttack's attacks left standing, and what all of them did; after
        `attack`. Samples that both they and PGD left are what bounds may prove.
        """
        eps = properties[0].eps
        # 1. Each attack by itself.
        metrics = []
        for name, attacked_by in attacked.items():
            setting = self._setting(eps=eps, method=name)
            reason = "; ".join(
                text for text in (_told(attacked_by.late), attacked_by.reason) if text
            )
            metrics += [
                self._accuracy(attacked_by.broken, attacked_by.late, setting, reason),
                Metric("seconds", attacked_by.seconds, "s", Direction.LOWER, setting, timing=True),
            ]
        # 2. A sample is broken where one attack breaks it, and late where none does and one had no
        # time.
        broken = torch.stack([result.broken for result in attacked.values()]).any(0)
        late = torch.stack([result.late for result in attacked.values()]).any(0) & ~broken
        seconds = sum(result.seconds for result in attacked.values())
        worst = Found(WORST, broken, late, torch.zeros_like(late), seconds, None)
        self._attacked(eps, broken, late)
        return [
            self._accuracy(broken, late, self._setting(eps=eps), _told(late)),
            *metrics,
            *self._verdicts(properties, worst, Verdict.VIOLATED),
        ]

    def unattacked(self, eps: float, reason: str) -> Metric:
        """The row that says why AutoAttack's attacks were not run."""
        setting = self._setting(eps=eps)
        return Metric(
            "attacked_accuracy", None, "fraction", Direction.HIGHER, setting, reason=reason
        )

    def _accuracy(
        self, broken: torch.Tensor, late: torch.Tensor, setting: Setting, reason: str
    ) -> Metric:
        value = None if bool(late.all()) else (~broken).double().mean().item()
        return Metric(
            "attacked_accuracy", value, "fraction", Direction.HIGHER, setting, reason=reason
        )

    def _attacked(self, eps: float, broken: torch.Tensor, late: torch.Tensor) -> None:
        """Count what one more attack broke; where all were late nothing is known."""
        before = self._broken.get(eps)
        if not bool(late.all()):
            self._broken[eps] = broken if before is None else before | broken

    def found(
        self, properties: list[Property], result: Found, layers: Sequence[str] = ()
    ) -> list[Metric]:
        """Report what one method says at one radius, after `attack`. `layers` are the names of the
        activations.
        """
        setting = self._setting(eps=properties[0].eps, method=result.method)
        reason = "; ".join(text for text in (_told(result.late), result.reason) if text)
        certified = None if result.refused else result.holds.double().mean().item()
        # What the attacks left and no bound proved is undecided.
        broken = self._broken.get(properties[0].eps)
        undecided = (
            None
            if broken is None or certified is None
            else (~broken).double().mean().item() - certified
        )
        unattacked = reason if undecided is not None else reason or "the attacks had no time"
        metrics = [
            Metric(
                "certified_accuracy",
                certified,
                "fraction",
                Direction.HIGHER,
                setting,
                reason=reason,
            ),
            Metric(
                "undecided_fraction",
                undecided,
                "fraction",
                Direction.LOWER,
                setting,
                reason=unattacked,
            ),
            *self._verdicts(properties, result, Verdict.HOLDS),
        ]
        if result.method == "alpha-crown":
            # It leaves the bounds of logits and activation inputs as CROWN gave them.
            return metrics
        return metrics + self._widths(result, setting, reason, layers)

    def _widths(
        self, result: Found, setting: Setting, reason: str, layers: Sequence[str]
    ) -> list[Metric]:
        """The widths of the logits' bounds, and which activations' inputs are unstable, in all and
        layer by layer.

        An input is unstable where its interval has 0 strictly inside, and off where it has nothing
        above 0. Means are over all properties and inputs. These counts have no direction: a ReLU
        whose interval does not contain 0 is linear, a GELU is not.
        """
        bounds = result.bounds
        width = None if bounds is None else (bounds.upper - bounds.lower).mean().item()
        count = None if bounds is None else bounds.unstable.double().mean().item()
        metrics = [
            _width("bound_width", width, "logit", setting, reason),
            Metric("unstable_neurons", count, "count", Direction.NEUTRAL, setting, reason=reason),
        ]
        if bounds is None or result.method not in _LAYERED:
            return metrics
        for name, (low, high) in zip(layers, bounds.inputs, strict=True):
            where = {**setting, "layer": name}
            metrics.append(
                _width("layer_width", (high - low).mean().item(), "activation", where, reason)
            )
            shares = {"unstable_share": (low < 0) & (high > 0), "stable_off_share": high <= 0}
            metrics += [
                Metric(
                    share,
                    some.double().mean().item(),
                    "share",
                    Direction.NEUTRAL,
                    where,
                    reason=reason,
                )
                for share, some in shares.items()
            ]
        return metrics

    def engines(self, eps: float, ratio: float | None, reason: str) -> Metric:
        """The widths of CROWN's bounds over auto_LiRPA's, or why there are none to compare with."""
        setting = self._setting(eps=eps, method="crown")
        return Metric(
            "second_engine_width", ratio, "ratio", Direction.NEUTRAL, setting, reason=reason
        )

    def radii(self, radii: Radii, method: str, seconds: float) -> list[Metric]:
        """Certified radii, and what the bisection took after the grid."""
        setting = self._setting(method=method)
        clock = Metric("radius_seconds", seconds, "s", Direction.LOWER, setting, timing=True)
        return [*radii.metrics(setting), clock]

    def no_radius(self, method: str, reason: str) -> Metric:
        """The row that says by its reason why a method has no certified radii."""
        setting = self._setting(method=method)
        return Metric("certified_radius", None, "input", Direction.HIGHER, setting, reason=reason)

    def memory(self, peaks: Mapping[str, tuple[int | None, str]]) -> list[Metric]:
        """The most memory that each method took, or why that is not known."""
        unit, direction = "bytes", Direction.LOWER
        return [
            Metric(
                "peak_memory",
                value,
                unit,
                direction,
                self._setting(method=method),
                timing=True,
                reason=reason,
            )
            for method, (value, reason) in peaks.items()
        ]

    def _verdicts(
        self, properties: list[Property], result: Found, verdict: Verdict
    ) -> list[Metric]:
        """Report what the method took, and one row per property: decided, out of time, or
        neither.
        """
        setting = self._setting(eps=properties[0].eps, method=result.method)
        otherwise = Verdict.UNSUPPORTED if result.refused else Verdict.UNKNOWN
        said = [flags.tolist() for flags in (result.holds, result.late, result.rounded)]
        return [
            Metric("seconds", result.seconds, "s", Direction.LOWER, setting, timing=True),
            *(
                Metric(
                    "robustness",
                    None,
                    "verdict",
                    Direction.NEUTRAL,
                    setting,
                    sample=prop.sample,
                    verdict=verdict if decided else Verdict.TIMEOUT if late else otherwise,
                    reason=_ROUNDED if rounded else "",
                )
                for prop, decided, late, rounded in zip(properties, *said, strict=True)
            ),
        ]


def _width(name: str, value: float | None, unit: str, setting: Setting, reason: str) -> Metric:
    """The metric, without a value where bounds are infinite."""
    if value is not None and not math.isfinite(value):
        value, reason = (
            None,
            "; ".join(text for text in (reason, "some bounds are infinite") if text),
        )
    return Metric(name, value, unit, Direction.LOWER, setting, reason=reason)


def _told(late: torch.Tensor) -> str:
    missing = int(late.sum())
    return f"{missing} of {len(late)} properties not tried in time" if missing else ""

"""What bounds are held against: points of boxes, and what a network computes there in float64
and in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

from evalsuite import Network, Property, census
from pipelines.bounds.margins import Margins
from pipelines.bounds.options import METHODS
from pipelines.bounds.propagation import Propagation

_STEPS = 10  # of an ascent


def boxes(
    shape: tuple[int, ...],
    eps: float,
    count: int = 3,
    classes: int = 3,
    *,
    centers: Callable[..., torch.Tensor] = torch.rand,
    domain: tuple[float, float] = (0.0, 1.0),
) -> list[Property]:
    """Around random centers, (count, *shape), the same each time; labels in turn."""
    middles = centers(count, *shape, generator=torch.Generator().manual_seed(0))
    return [
        Property.robustness(each, sample=i, label=i % classes, eps=eps, domain=domain)
        for i, each in enumerate(middles)
    ]


def around_0(*shape: int, generator: torch.Generator) -> torch.Tensor:
    """Uniform in [-1, 1]."""
    return 2 * torch.rand(shape, generator=generator) - 1


def points_in(region: Property, count: int) -> torch.Tensor:
    """(count, *shape) float64: random points of the box, half of them corners."""
    generator = torch.Generator().manual_seed(1 + region.sample)
    share = torch.rand(count, *region.lower.shape, generator=generator, dtype=torch.float64)
    share[::2] = share[::2].round()
    return region.lower + share * (region.upper - region.lower)


class Sampled:
    """A network at points of boxes: what its bounds may not exclude.

    Args:
        subject: the network.
        properties: their boxes.
        points: of each box, or how many random ones.
        climbing: from how many of them each logit's ascent and descent begin, whose ends are points
            too.
    """

    def __init__(
        self,
        subject: Network,
        properties: list[Property],
        points: int | list[torch.Tensor],
        *,
        climbing: int = 0,
    ) -> None:
        self.properties = properties
        self.points = (
            [points_in(each, points) for each in properties] if isinstance(points, int) else points
        )
        self._exact = copy.deepcopy(subject.module).double().eval()
        if climbing:
            self.points = [
                self._climbed(*each, climbing) for each in zip(properties, self.points, strict=True)
            ]
        self._inputs = list[dict[str, torch.Tensor]]()
        self.logits = [self._run(each) for each in self.points]
        with torch.no_grad():
            self._off = [
                self._rounding(subject, *each) for each in zip(properties, self.points, strict=True)
            ]

    def _climbed(self, region: Property, points: torch.Tensor, count: int) -> torch.Tensor:
        size = 0.2 * (region.upper - region.lower)
        ways = torch.eye(self._exact(points[:1]).shape[1], dtype=torch.float64)
        ways = torch.cat([ways, -ways]).repeat_interleave(count, 0)
        at = points[:count].repeat(len(ways) // count, *[1] * region.lower.ndim)
        for _ in range(_STEPS):
            at.requires_grad_()
            (up,) = torch.autograd.grad((self._exact(at) * ways).sum(), at)
            at = (at.detach() + size * up.sign()).clamp(region.lower, region.upper)
        return torch.cat([points, at])

    @torch.no_grad()
    def _run(self, points: torch.Tensor) -> torch.Tensor:
        seen: dict[str, torch.Tensor] = {}
        hooks = [
            each.module.register_forward_pre_hook(
                lambda _, given, path=each.path: (seen.setdefault(path, given[0].clone()), None)[1]
            )
            for each in census(self._exact, gates=True)
        ]
        logits: torch.Tensor = self._exact(points)
        for hook in hooks:
            hook.remove()
        self._inputs.append(seen)
        return logits

    def _rounding(self, subject: Network, region: Property, points: torch.Tensor) -> torch.Tensor:
        """How far float32 is off; corners that it rounds outward are not in the box."""
        single = points.float()
        inside = (
            ((single.double() >= region.lower) & (single.double() <= region.upper))
            .flatten(1)
            .all(1)
        )
        assert inside.sum() >= len(points) / 4
        off: torch.Tensor = subject.module(single[inside]).double() - self._exact(
            single[inside].double()
        )
        return off

    def check(self, found: Margins, layers: Sequence[str] = ()) -> None:
        """That nothing is outside: logits, margins, errors of float32, and inputs of what
        `layers` name.
        """
        for row, each in enumerate(self.properties):
            logits, off = self.logits[row], self._off[row]
            others = [j for j in range(logits.shape[1]) if j != each.label]
            assert ((found.lower[row] <= logits) & (logits <= found.upper[row])).all()
            assert (found.margins[row] <= logits[:, [each.label]] - logits[:, others]).all()
            assert ((off[:, [each.label]] - off[:, others]).abs() <= found.allowance[row]).all()
            ends = dict(zip(layers, found.inputs, strict=bool(layers)))
            for path in ends.keys() & self._inputs[row].keys():
                # Bounds of inputs are those of real arithmetic, up to float64's rounding.
                value, (low, high) = self._inputs[row][path], (end[row] for end in ends[path])
                slack = 1e-9 * (1 + value.abs())
                assert ((low - slack <= value) & (value <= high + slack)).all()


def check_each(
    propagation: Propagation, sampled: Sampled, methods: Sequence[str] = METHODS
) -> dict[str, Margins]:
    """The bounds by these methods, which are finite and hold."""
    found = {method: propagation.bounds(sampled.properties, method) for method in methods}
    for each in found.values():
        assert each.lower.isfinite().all()
        assert each.upper.isfinite().all()
        sampled.check(each, propagation.layers)
    return found

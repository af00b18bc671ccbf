"""The attacks of AutoAttack on classifiers: APGD on two losses, and Square.

F. Croce, M. Hein: Reliable evaluation of adversarial robustness with an ensemble of diverse
parameter-free attacks, ICML 2020 (arXiv 2003.01690); M. Andriushchenko, F. Croce, N. Flammarion,
M. Hein: Square Attack, ECCV 2020 (arXiv 1912.00049). Written after the papers' algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from netverify.falsifier import float32_box, margin, violates_alone
from netverify.properties import Property

ATTACKS = ("apgd-ce", "apgd-dlr", "square")
"""The attacks, as they run: cross entropy, targeted difference of logits ratio, random search."""

Loss = Callable[[torch.Tensor], torch.Tensor]

# Of APGD's Algorithm 1: the weight of a step beside the momentum, and the share of steps that must
# have raised the loss.
_STEP, _RAISED = 0.75, 0.75
_RATIO_TAKES = 4  # classes
# Of Square: the share of an image that the first window covers, and at which of 10,000 queries it
# is halved.
_FIRST_SHARE = 0.8
_HALVED = (10, 50, 200, 1000, 2000, 4000, 6000, 8000)
_SCHEDULED = 10_000
_LEAST_SIDE = 3  # of a window in the Euclidean norm, whose middle differs from its rim
_TINY = 1e-12


def attack(
    module: nn.Module,
    properties: Sequence[Property],
    samples: torch.Tensor,
    name: str,
    *,
    seed: int,
    steps: int = 50,
    targets: int = 3,
    queries: int = 500,
) -> list[torch.Tensor | None]:
    """A counterexample for each property that one of `ATTACKS` breaks, else None.

    Each counterexample is a float32 point of the property that violates it, evaluated alone in
    float32; a sample that is misclassified is its own. None proves nothing.

    Args:
        module: gives the logits (batch, classes), and is differentiable.
        properties: of margins, in boxes or in balls with a `center`.
        samples: what the boxes are around, (properties, *input_shape), float32.
        name: which attack.
        seed: of its random numbers.
        steps: of APGD.
        targets: of APGD-DLR, how many other classes are aimed at, the most likely first.
        queries: of Square.

    Raises:
        ValueError: the attack is unknown, or a property is of an interval.
    """
    if name not in ATTACKS:
        raise ValueError(f"attack must be one of {', '.join(ATTACKS)}, got {name!r}")
    if any(prop.ends is not None for prop in properties):
        raise ValueError("these attacks are of classifiers: a property asks for an interval")
    if not properties:
        return []
    search = _Search(module, list(properties), samples, torch.Generator().manual_seed(seed))
    if name == "square":
        _square(search, queries)
    elif name == "apgd-ce":
        _apgd(search, search.open, lambda rows: _cross_entropy(search.labels[rows]), steps)
    else:
        _aimed(search, steps, targets)
    return search.points


def dlr_note(classes: int) -> str:
    """Return what APGD-DLR raises where there are too few classes for its ratio; empty
    elsewhere.
    """
    if classes >= _RATIO_TAKES:
        return ""
    return f"the difference of logits, since the targeted ratio takes {_RATIO_TAKES} classes"


# Balls, and what was broken in them.


@dataclass(frozen=True)
class _Ball:
    """Boxes of some rows, each (rows, *shape); of balls in the Euclidean norm their radius too,
    (rows, 1...), by as much smaller as float32 may round points outward.
    """

    center: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    radius: torch.Tensor | None

    def some(self, rows: torch.Tensor) -> _Ball:
        """The balls of some of the rows."""
        radius = None if self.radius is None else self.radius[rows]
        return _Ball(self.center[rows], self.low[rows], self.high[rows], radius)

    def into(self, points: torch.Tensor) -> torch.Tensor:
        """The points moved into their balls; clipped to a box that has the center they come nearer
        to it.
        """
        if self.radius is not None:
            offset = points - self.center
            share = (self.radius / _lengths(offset).clamp(min=_TINY)).clamp(max=1)
            points = self.center + share * offset
        return torch.minimum(torch.maximum(points, self.low), self.high)

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """The step of steepest ascent of the radius' length."""
        if self.radius is None:
            return torch.maximum(self.high - self.center, self.center - self.low) * gradient.sign()
        return self.radius * gradient / _lengths(gradient).clamp(min=1e-30)

    def drawn(self, generator: torch.Generator) -> torch.Tensor:
        """A random point of each ball's rim, then clipped to the data's range."""
        if self.radius is None:
            noise = 2 * torch.rand(self.center.shape, generator=generator) - 1
            noise = noise / noise.flatten(1).abs().amax(1).clamp(min=_TINY).view(_ones(noise))
            reach = torch.where(noise > 0, self.high - self.center, self.center - self.low)
            return self.into(self.center + reach * noise)
        noise = torch.randn(self.center.shape, generator=generator)
        return self.into(self.center + self.radius * noise / _lengths(noise).clamp(min=_TINY))


def _ones(points: torch.Tensor) -> tuple[int, ...]:
    """A shape by which one number a row spreads over the row."""
    return (-1, *[1] * (points.ndim - 1))


def _lengths(points: torch.Tensor) -> torch.Tensor:
    """The Euclidean length of each row."""
    lengths: torch.Tensor = torch.linalg.vector_norm(points.flatten(1), dim=1)
    return lengths.view(_ones(points))


class _Search:
    """Properties with the counterexamples so far; a point counts once it was evaluated alone."""

    def __init__(
        self,
        module: nn.Module,
        properties: list[Property],
        samples: torch.Tensor,
        generator: torch.Generator,
    ) -> None:
        self._module, self._properties, self.generator = module, properties, generator
        self.labels = torch.tensor([prop.label for prop in properties])
        self.points: list[torch.Tensor | None] = [None] * len(properties)
        low, high = float32_box(properties)
        center = torch.minimum(torch.maximum(samples.float(), low), high)
        self.ball = _Ball(center, low, high, _radii(properties, center))
        self.empty = (low > high).flatten(1).any(1)
        self.first = self.logits(center)
        self.note(center, torch.arange(len(properties)), self.first)

    @torch.no_grad()
    def logits(self, points: torch.Tensor) -> torch.Tensor:
        """The network's logits without their gradient."""
        logits: torch.Tensor = self._module(points)
        return logits

    def ascent(self, points: torch.Tensor, loss: Loss) -> tuple[torch.Tensor, ...]:
        """Logits, losses (rows,) and the losses' gradients at points."""
        points = points.detach().requires_grad_()
        with torch.enable_grad():
            logits = self._module(points)
            losses = loss(logits.double())
            (gradient,) = torch.autograd.grad(losses.sum(), points)
        return logits.detach(), losses.detach(), gradient.nan_to_num(0.0, 0.0, 0.0)

    @property
    def open(self) -> torch.Tensor:
        """The properties without a counterexample."""
        unbroken = torch.tensor([point is None for point in self.points]) & ~self.empty
        return torch.nonzero(unbroken)[:, 0]

    def note(self, points: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor) -> None:
        """Keep what breaks the properties `rows`, of points with their logits."""
        broken = ~(margin(logits, self.labels[rows]) > 0)
        for place in torch.nonzero(broken)[:, 0].tolist():
            row = int(rows[place])
            if (
                self.points[row] is None
                and not self.empty[row]
                and violates_alone(self._module, points[place], self._properties[row])
            ):
                self.points[row] = points[place].clone()

    def unbroken(self, rows: torch.Tensor) -> torch.Tensor:
        """Which of the rows are of properties that still have no counterexample, (rows,) bool."""
        return torch.tensor([self.points[row] is None for row in rows.tolist()], dtype=torch.bool)


def _radii(properties: list[Property], center: torch.Tensor) -> torch.Tensor | None:
    balls = [prop.center is not None for prop in properties]
    if not any(balls):
        return None
    if not all(balls):
        raise ValueError("balls of one norm are attacked at once")
    eps = torch.tensor([prop.eps for prop in properties], dtype=torch.float64)
    # Rounding to float32 moves each of n coordinates by half a unit in the last place at most.
    size = center[0].numel() ** 0.5 if len(center) else 1.0
    slack = 2.0**-23 * size * (center.flatten(1).abs().amax(1).double() + eps)
    return (eps * (1 - 1e-6) - slack).clamp(min=0).float().view(_ones(center))


# APGD.


def _cross_entropy(labels: torch.Tensor) -> Loss:
    def loss(logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, labels, reduction="none")

    return loss


def _ratio(labels: torch.Tensor, aims: torch.Tensor) -> Loss:
    """The targeted difference of logits ratio, in which the logits' scale cancels: equation (7) of
    arXiv 2003.01690. It takes four classes; of fewer the difference alone.
    """

    def loss(logits: torch.Tensor) -> torch.Tensor:
        label_logits, aimed = (
            logits.gather(1, classes[:, None])[:, 0] for classes in (labels, aims)
        )
        if logits.shape[1] < _RATIO_TAKES:
            return aimed - label_logits
        ranked = logits.sort(1, descending=True).values
        return (aimed - label_logits) / (ranked[:, 0] - (ranked[:, 2] + ranked[:, 3]) / 2 + _TINY)

    return loss


def _aimed(search: _Search, steps: int, targets: int) -> None:
    """APGD on the targeted ratio, one run for each of the most likely other classes, all at
    once.
    """
    rows, labels, classes = search.open, search.labels, search.first.shape[1]
    others = search.first[rows].scatter(1, labels[rows][:, None], -torch.inf)
    count = min(targets, classes - 1)
    aims = others.topk(count, dim=1).indices.flatten()
    repeated = rows.repeat_interleave(count)
    _apgd(search, repeated, lambda kept, aim: _ratio(labels[kept], aim), steps, aims)


def checkpoints(steps: int) -> list[int]:
    """At which steps APGD may halve the step: section 3.2 of arXiv 2003.01690."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return sorted({min(steps, math.ceil(round(share * steps, 9))) for share in shares})


def _apgd(
    search: _Search,
    rows: torch.Tensor,
    loss_of: Callable[..., Loss],
    steps: int,
    *parts: torch.Tensor,
) -> None:
    """Auto-PGD, Algorithm 1 of arXiv 2003.01690: gradient steps with momentum, whose length is
    halved where the loss no longer rises, from the best point so far on.

    Args:
        search: that keeps counterexamples.
        rows: the properties to attack; one may stand there several times.
        loss_of: rows, and those of each of `parts`, to the loss that is to rise.
        steps: how many.
        parts: numbers of each row, for the loss.
    """
    if not len(rows):
        return
    # 1. A first step of twice the radius from a random point of the ball.
    ball = search.ball.some(rows)
    point = ball.drawn(search.generator)
    logits, value, gradient = search.ascent(point, loss_of(rows, *parts))
    search.note(point, rows, logits)
    best, best_value, best_gradient = point, value, gradient
    before = point
    length = torch.full_like(value, 2.0)
    raised = torch.zeros_like(value)
    # What the last checkpoint knew: the step's length, the greatest loss, whether it was halved.
    marked, halved = value.clone(), torch.zeros_like(value, dtype=torch.bool)
    marks = checkpoints(steps)
    for step in range(1, steps + 1):
        # 2. A step along the gradient, and momentum from the step before.
        scaled = length.view(_ones(point)).float()
        ahead = ball.into(point + scaled * ball.direction(gradient))
        weight = _STEP if step > 1 else 1.0
        moved = ball.into(point + weight * (ahead - point) + (1 - weight) * (point - before))
        before, last, point = point, value, moved
        logits, value, gradient = search.ascent(point, loss_of(rows, *parts))
        search.note(point, rows, logits)
        raised += value > last
        better = value > best_value
        spread = better.view(_ones(point))
        best = torch.where(spread, point, best)
        best_gradient = torch.where(spread, gradient, best_gradient)
        best_value = torch.where(better, value, best_value)
        if step not in marks:
            continue
        # 3. At a checkpoint: halve where too few steps raised the loss, or where neither the length
        # nor the best loss changed since the last one; go on from the best point there.
        since = step - marks[marks.index(step) - 1]
        halve = (raised < _RAISED * since) | (~halved & (best_value <= marked))
        length = torch.where(halve, length / 2, length)
        again = halve.view(_ones(point))
        point, before = torch.where(again, best, point), torch.where(again, best, before)
        gradient = torch.where(again, best_gradient, gradient)
        value = torch.where(halve, best_value, value)
        marked, halved, raised = best_value.clone(), halve, torch.zeros_like(raised)
        # 4. Go on with the properties that still stand.
        keep = search.unbroken(rows)
        if not bool(keep.any()):
            return
        if bool(keep.all()):
            continue
        rows, ball, parts = rows[keep], ball.some(keep), tuple(part[keep] for part in parts)
        point, before, best, gradient, best_gradient = (
            tensor[keep] for tensor in (point, before, best, gradient, best_gradient)
        )
        value, best_value, length, raised, marked, halved = (
            state[keep] for state in (value, best_value, length, raised, marked, halved)
        )


# Square.


def _share(query: int, queries: int) -> float:
    """Which share of the input a window covers: halved as in section 5 of arXiv 1912.00049, whose
    schedule is of 10,000 queries.
    """
    scheduled = query / queries * _SCHEDULED
    return float(_FIRST_SHARE * 0.5 ** sum(scheduled > step for step in _HALVED))


def _square(search: _Search, queries: int) -> None:
    """Random search, Algorithm 1 of arXiv 1912.00049: a window of the input is changed, and kept
    so where the label's margin shrinks. No gradient is asked for.
    """
    rows = search.open
    if not len(rows):
        return
    ball = search.ball.some(rows)
    windows = _Windows(tuple(ball.center.shape[1:]), search.generator)
    if ball.radius is None:
        point = ball.into(_corners(ball, windows.stripes(len(rows))))
    else:
        point = ball.into(ball.center + ball.radius * windows.bumps(len(rows)))
    logits = search.logits(point)
    search.note(point, rows, logits)
    value = margin(logits, search.labels[rows])
    for query in range(1, queries):
        # 1. Change a window of each row.
        share = _share(query, queries)
        if ball.radius is None:
            inside, signs = windows.window(len(rows), share)
            tried = torch.where(inside, _corners(ball, signs), point)
        else:
            tried = windows.shifted(point - ball.center, ball.radius, share) + ball.center
        tried = ball.into(tried)
        # 2. Keep what is nearer to another class.
        logits = search.logits(tried)
        search.note(tried, rows, logits)
        margins = margin(logits, search.labels[rows])
        nearer = (margins < value) | margins.isnan()
        point = torch.where(nearer.view(_ones(point)), tried, point)
        value = torch.where(nearer, margins, value)
        # 3. Go on with the properties that still stand.
        keep = search.unbroken(rows)
        if not bool(keep.any()):
            return
        if not bool(keep.all()):
            rows, ball, point, value = rows[keep], ball.some(keep), point[keep], value[keep]


def _corners(ball: _Ball, signs: torch.Tensor) -> torch.Tensor:
    """The ends of the boxes that the signs point to."""
    return torch.where(signs > 0, ball.high, ball.low)


class _Windows:
    """Draws windows of inputs: squares of images (channels, height, width); of other inputs, which
    have no neighbours, random coordinates.
    """

    def __init__(self, shape: tuple[int, ...], generator: torch.Generator) -> None:
        self._shape, self._generator = shape, generator
        self._image = len(shape) == 3 and min(shape[1:]) > 1

    def _signs(self, *shape: int) -> torch.Tensor:
        return 2.0 * torch.randint(2, shape, generator=self._generator) - 1

    def _place(self, count: int, side: int) -> torch.Tensor:
        """A square at random of each image, (count, 1, height, width) bool."""
        along = []
        for size in self._shape[1:]:
            first = torch.randint(size - side + 1, (count, 1), generator=self._generator)
            index = torch.arange(size)[None]
            along.append((index >= first) & (index < first + side))
        return (along[0][:, :, None] & along[1][:, None, :])[:, None]

    def _side(self, share: float) -> int:
        height, width = self._shape[1:]
        return min(height, width, max(1, round(math.sqrt(share * height * width))))

    def _coordinates(self, count: int, share: float) -> torch.Tensor:
        """Some coordinates of each row, (count, *shape) bool."""
        size = math.prod(self._shape)
        keys = torch.rand(count, size, generator=self._generator)
        chosen = keys.topk(max(1, round(share * size)), dim=1).indices
        return torch.zeros(count, size).scatter(1, chosen, 1.0).bool().view(count, *self._shape)

    def stripes(self, count: int) -> torch.Tensor:
        """Signs of the first point, vertical stripes of each channel of an image."""
        if not self._image:
            return self._signs(count, *self._shape)
        return self._signs(count, self._shape[0], 1, self._shape[2]).expand(count, *self._shape)

    def window(self, count: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
        """A window and the signs in it, one a channel: Algorithm 2 of arXiv 1912.00049."""
        if not self._image:
            return self._coordinates(count, share), self._signs(count, *self._shape)
        inside = self._place(count, self._side(share)).expand(count, *self._shape)
        return inside, self._signs(count, self._shape[0], 1, 1).expand(count, *self._shape)

    def bumps(self, count: int) -> torch.Tensor:
        """First points in the Euclidean norm, of length 1: a grid of bumps with random signs."""
        if not self._image:
            whole = self._signs(count, *self._shape)
            return whole / _lengths(whole)
        side = max(_LEAST_SIDE, min(self._shape[1:]) // 5)
        side = min(side, *self._shape[1:])
        whole = torch.zeros(count, *self._shape)
        for top in range(0, self._shape[1] - side + 1, side):
            for left in range(0, self._shape[2] - side + 1, side):
                bump = self._bump(count, side) * self._signs(count, self._shape[0], 1, 1)
                whole[:, :, top : top + side, left : left + side] = bump
        return whole / _lengths(whole).clamp(min=_TINY)

    def _bump(self, count: int, side: int) -> torch.Tensor:
        """Two bumps of opposite sign beside one another, or above: (count, 1, side, side) of
        length 1, equation (2) of arXiv 1912.00049.
        """
        half = side // 2
        both = torch.cat([_hill(half, side), -_hill(side - half, side)])
        both = both / both.norm().clamp(min=_TINY)
        turned = torch.randint(2, (count, 1, 1, 1), generator=self._generator).bool()
        return torch.where(turned, both.T[None, None], both[None, None])

    def shifted(self, offset: torch.Tensor, radius: torch.Tensor, share: float) -> torch.Tensor:
        """Offsets whose length of one window is moved into another, with what the ball leaves
        unused: Algorithm 3 of arXiv 1912.00049.
        """
        count = len(offset)
        over = (2, 3) if self._image else tuple(range(1, offset.ndim))
        unused = (radius.square() - _lengths(offset).square()).clamp(min=0)
        # 1. The window that gains and the one that loses, and the direction of the gain.
        if self._image:
            height, width = self._shape[1:]
            side = min(height, width, max(_LEAST_SIDE, self._side(share)))
            gains, loses = self._place(count, side), self._place(count, side)
            bump = self._bump(count, side) * self._signs(count, self._shape[0], 1, 1)
            push = torch.zeros_like(offset)
            push[gains.expand_as(push)] = bump.flatten()
            channels = self._shape[0]
        else:
            gains, loses = self._coordinates(count, share / 2), self._coordinates(count, share / 2)
            push = self._signs(count, *self._shape) * gains
            push = push / _lengths(push)
            channels = 1

        def size(values: torch.Tensor) -> torch.Tensor:
            return values.square().sum(over, keepdim=True).sqrt()

        # 2. Of each channel: as long as both windows were, and its share of what is unused.
        kept = offset * gains
        ahead = push + kept / size(kept).clamp(min=_TINY)
        room = (size(offset * (gains | loses)).square() + unused / channels).sqrt()
        moved = torch.where(loses, torch.zeros_like(offset), offset)
        return torch.where(gains, ahead * room / size(ahead).clamp(min=_TINY), moved)


def _hill(height: int, width: int) -> torch.Tensor:
    """The sum of 1 / (k + 1)^2 from a place's distance to the middle on, which grows to the middle:
    (height, width).
    """
    down = (torch.arange(height) - height // 2).abs()[:, None]
    across = (torch.arange(width) - width // 2).abs()[None]
    distance = torch.maximum(down.expand(height, width), across.expand(height, width))
    steps = torch.arange(max(height, width) // 2 + 1)
    terms = 1.0 / (steps + 1.0).square()
    return (terms * (steps >= distance[..., None])).sum(-1)

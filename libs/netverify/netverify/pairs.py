"""State what is asked of two networks of the same inputs: Y_0 to Y_(n-1) are outputs of the first,
the next n the second's.

As in every specification, `sat` is what must not happen: that they tell different classes, or lie
too far apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import permutations

import torch

from netverify.specification import Box, Case, Constraint, Specification
from netverify.witness import Witness, Witnesses

_ONE = Fraction(1)
_MOST_CLASSES = 50


def of_two(
    specification: Specification, outputs: int, within: Fraction | None, where: str
) -> tuple[Specification, bool]:
    """The property itself where it constrains outputs, else what is asked on its boxes; and whether
    that is the class.

    Raises:
        ValueError: both are asked; classes that are too many to compare.
    """
    boxes = list({id(case.box): case.box for case in specification.cases}.values())
    constrained = any(case.constraints for case in specification.cases)
    if constrained and within is not None:
        raise ValueError(
            f"{where}: constrains Y_i already, so that no distance is asked for; bound X_i alone"
        )
    if constrained:
        return specification, False
    if within is not None:
        return farther_apart(specification.inputs, outputs, boxes, within), False
    return other_class(specification.inputs, outputs, boxes), True


def other_class(inputs: int, outputs: int, boxes: Iterable[Box]) -> Specification:
    """The networks have different classes. Of equal outputs the first counts, as for argmax.

    Raises:
        ValueError: fewer than 2 classes, or too many for a case for each two of them.
    """
    if not 2 <= outputs <= _MOST_CLASSES:
        raise ValueError(
            f"classes of {outputs} outputs: 2 to {_MOST_CLASSES} are compared; ask for a distance"
            " instead"
        )
    # A case for each ordered pair of classes: the first network's class is `own`, the second one's
    # `other`. Constraints are shared between cases, as there are few different ones.
    places = [(label, other) for label, other in permutations(range(outputs), 2)]
    first, second = ({place: _above(offset, *place) for place in places} for offset in (0, outputs))
    cases = [
        (
            *(first[label, output] for output in range(outputs) if output != label),
            *(second[other, output] for output in range(outputs) if output != other),
            _change(label, other, outputs),
        )
        for label, other in places
    ]
    return _specification(inputs, outputs, boxes, cases)


def _above(offset: int, label: int, other: int) -> Constraint:
    """The constraint that, in the network whose outputs begin at `offset`, `label` counts before
    the other one.
    """
    return Constraint(
        ((offset + other, _ONE), (offset + label, -_ONE)), Fraction(0), strict=other < label
    )


def _change(label: int, other: int, outputs: int) -> Constraint:
    """From `label` before the other in the first network to the reverse in the second.

    It follows from two constraints, but bounds of it know what the networks have in common.
    """
    terms = ((label, -_ONE), (other, _ONE), (outputs + label, _ONE), (outputs + other, -_ONE))
    return Constraint(terms, Fraction(0), strict=True)


def farther_apart(
    inputs: int, outputs: int, boxes: Iterable[Box], distance: Fraction
) -> Specification:
    """An output of the first network differs from the second one's by more than `distance`."""
    apart = [
        (Constraint(((output, -sign), (outputs + output, sign)), -distance, strict=True),)
        for output in range(outputs)
        for sign in (_ONE, -_ONE)
    ]
    return _specification(inputs, outputs, boxes, apart)


def _specification(
    inputs: int, outputs: int, boxes: Iterable[Box], broken: Sequence[tuple[Constraint, ...]]
) -> Specification:
    cases = tuple(Case(box, constraints) for box in boxes for constraints in broken)
    return Specification(inputs, 2 * outputs, cases)


class Crossing:
    """Looks for different classes on the line from a box's middle to each point that it is to
    judge.

    Where the two ends have different classes, each network changes somewhere in between, and hardly
    ever both at the same float32 point: that is where networks differ which are nearly the same.

    Args:
        judge: of `other_class`.
        middle: (inputs,) float32.
        outputs: of each network.
    """

    def __init__(self, judge: Witnesses, middle: torch.Tensor, outputs: int) -> None:
        self._judge, self._middle, self._outputs = judge, middle, outputs

    def label(self, point: torch.Tensor) -> int:
        """The class that the first network gives a float32 point (inputs,); of equal outputs the
        first counts.
        """
        outputs = self._judge.outputs(point)[: self._outputs]
        return outputs.index(max(outputs))

    def witness(self, point: torch.Tensor) -> Witness | None:
        """A point of the line with two classes. Wherever it looks, both networks agree, or that
        is the witness.
        """
        # Bisect the line: `far` keeps the class of the point, and `near` has another one, until no
        # float32 point lies between.
        near, far = self._middle, point
        witness, label = self._judge.witness(far), self.label(far)
        if witness is not None or label == self.label(near):
            return witness
        while True:
            between = ((near.double() + far.double()) / 2).float()
            if torch.equal(between, near) or torch.equal(between, far):
                return None
            witness = self._judge.witness(between)
            if witness is not None:
                return witness
            near, far = (near, between) if self.label(between) == label else (between, far)


def crossings(asked: Specification, judge: Witnesses) -> Iterator[tuple[Specification, Crossing]]:
    """For each box of `other_class` what leaves the class of its middle, in either network, and
    who judges that.
    """
    outputs = asked.outputs // 2
    for box in {id(case.box): case.box for case in asked.cases}.values():
        lower, upper = box.inner()
        if bool((lower <= upper).all()):
            middle = ((lower.double() + upper.double()) / 2).float()
            crossing = Crossing(judge, middle, outputs)
            label = crossing.label(middle)
            # Any class before that of the middle, in either network: where one network leaves it,
            # the other may leave it at another point of the line.
            left = [
                (_above(offset, output, label),)
                for offset in (0, outputs)
                for output in range(outputs)
                if output != label
            ]
            yield _specification(asked.inputs, outputs, [box], left), crossing

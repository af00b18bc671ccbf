"""The budget of AutoAttack's attacks, what they do not attack, and what several attacks broke."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pipelines.bounds.margins import Points
from pipelines.bounds.options import BoundsOptions

EMBEDDED = "AutoAttack's attacks are of real inputs: the vectors of tokens are attacked by PGD"
INTERVAL = "AutoAttack's attacks are of classifiers: outputs within an interval are attacked by PGD"


class Budget(TypedDict):
    """Limits what `netverify.attacks.attack` may take."""

    seed: int
    steps: int
    targets: int
    queries: int


def budget(options: BoundsOptions, seed: int) -> Budget:
    """The budget that the options of the stage give each attack."""
    return Budget(
        seed=seed,
        steps=options.attack_steps,
        targets=options.attack_targets,
        queries=options.attack_queries,
    )


def any_of(attacked: Sequence[Points]) -> Points:
    """The first counterexample of each property that an attack found."""
    return [
        next((point for point in points if point is not None), None)
        for points in zip(*attacked, strict=True)
    ]

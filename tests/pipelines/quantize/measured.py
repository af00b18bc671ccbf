"""What a stage measured."""

from __future__ import annotations

from evalsuite import Outcome


def values(outcome: Outcome) -> dict[str, float]:
    """The metrics that have no setting, by name."""
    return {
        each.name: each.value
        for each in outcome.metrics
        if not each.setting and each.value is not None
    }

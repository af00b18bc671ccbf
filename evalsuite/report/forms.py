"""The forms in which a stage's networks can be deployed, as its section declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Form:
    """Declares what a stage tells of a form in which networks can be deployed; forms of one name
    are joined.

    Args:
        name: in a few words; "{key}" stands for an option of the step.
        stage: whose steps measure it.
        quality: metrics, of which the first that a workload has is taken.
        size: the metric of its bytes.
        shrunk: the metric of how many times smaller than this form that is, where `size` is of
            another one.
        times: the metric of a clock whose value is relative to the baseline in the form `float`.
        faster: instead of `times`, the metric of how many times faster this form is than the
            variant's own in the form `float`.
        setting: what the setting of either has to say.
    """

    name: str
    stage: str
    quality: tuple[str, ...] = ()
    size: str = ""
    times: str = ""
    faster: str = ""
    shrunk: str = ""
    setting: Mapping[str, str] = field(default_factory=dict)

"""Differences that hold whatever the answer to what was left open: both ends of each, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalsuite import SIGNIFICANT, Compared, Estimate, Scale, between, holm, interval_text, p_text


@dataclass(frozen=True)
class Bracket:
    """Where a variant's difference to the baseline lies.

    `least` is the lower end of what the variant may have less the upper end of what the baseline may have, `most` the
    reverse; they are one where nothing was left open. `p_holm` is Holm's over what it was adjusted with.
    """

    least: Compared
    most: Compared
    p_holm: float | None = None

    @property
    def variant(self) -> str:
        """The variant that is compared with the baseline."""
        return self.least.variant

    @property
    def open(self) -> bool:
        """Whether the two ends differ, because a question was left open."""
        return self.least is not self.most

    @property
    def difference(self) -> Estimate | None:
        """From the one end's interval to the other's."""
        least, most = self.least.difference, self.most.difference
        return None if least is None or most is None else between(least, most)

    @property
    def p(self) -> float | None:
        """Of no difference, by the end nearer to 0; 1 where 0 lies between the ends, None without a test."""
        return None if self.difference is None else self.difference.p

    @property
    def resolved(self) -> bool:
        """Whether the end nearer to 0 is resolved, with no adjustment for the number of tests."""
        found = self.difference
        return found is not None and found.p is not None and found.resolved

    @property
    def higher(self) -> bool:
        """Whether the variant has more, as far as that can be told."""
        return self.difference is not None and self.difference.mean > 0

    @property
    def tone(self) -> str:
        """ "better" or "worse" where there is a better way and Holm's p is at most 0.05, else ""."""
        if not self.least.way or self.p_holm is None or self.p_holm > SIGNIFICANT:
            return ""
        return "better" if self.higher == (self.least.way > 0) else "worse"

    def text(self, scale: Scale) -> str:
        """ "+2.0 pp [1.1, 2.9]", or of a range "+1.0 to +3.0 pp [0.2, 3.9]"; then Holm's p."""
        least, most = self.least.difference, self.most.difference
        if least is None or most is None:
            return self.least.reason or self.most.reason
        told = interval_text(between(least, most), scale)
        if self.open:
            ends = f"{scale.number(least.mean, sign=True)} to {scale.number(most.mean, sign=True)}"
            told = f"{ends} {told.partition(' ')[2]}"
        return told + ("" if self.p_holm is None else f" (Holm's p {p_text(self.p_holm)})")


def adjusted(brackets: Sequence[Bracket]) -> list[Bracket]:
    """With Holm's p over all of these that are tests."""
    return [replace(each, p_holm=p) for each, p in zip(brackets, holm(each.p for each in brackets), strict=True)]

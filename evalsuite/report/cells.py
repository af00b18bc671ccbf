"""The cells of a decision matrix: a question on one workload, or on all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from evalsuite.report.numerals import Scale, listed, of_few
from evalsuite.report.paired import interval_text
from evalsuite.report.statistics import Estimate

LEVEL = 0.05


class Reading(str, Enum):
    """The conclusions that a cell of the decision matrix may draw about the variant, in the words
    that readers see.
    """

    HELPS = "helps"
    COSTS = "costs"
    MIXED = "mixed"
    NO_WORSE = "no worse than the margin"
    FACT = "a fact, not tested"
    SATURATED = "at one end of the scale in both"
    UNRESOLVED = "not resolved"
    UNMEASURED = "not measured"
    DOUBTED = "no verdict"


TONES = {Reading.HELPS: "better", Reading.COSTS: "worse", Reading.MIXED: "mixed"}
CONCLUDED = (*TONES, Reading.NO_WORSE)


@dataclass(frozen=True)
class MatrixCell:
    """One question on one workload, or on all.

    Args:
        reading: what the cell concludes.
        estimate: the difference to the baseline in the endpoint's unit, over seeds; of all
            workloads, their mean.
        p_adjusted: what "helps" and "costs" go by, see `read_screens`.
        margin_p: what "no worse than the margin" goes by: of a loss of the margin or more, adjusted
            likewise.
        against: members of the family that are resolved the other way.
        losses: those that are resolved as a loss of the margin or more.
        needed: how many seeds, or test samples where these are the replicates, would resolve a
            difference of the margin.
        label: what was measured.
        reason: why there is no conclusion.
        pooled: whether the cell is of all workloads.
        asked: the seeds, or of all workloads the workloads, that the run has.
        small: the whole interval lies within the margin.
        ends: the least and the greatest difference that there may be, one twice where no question
            was left open; `estimate` is then from the one's interval to the other's.
        place: the step, metric and setting of a number that is a line of the comparison too.
        clock: why a reading of a clock is not concluded from; empty where it may be, and of all
            else.
        values: the differences by seed, where no question was left open and the cell is of one
            workload.
        rivals: the estimate without each one of the seeds.
        fragile: the conclusion would not stand without some one seed.
        open_losses: of all workloads, those that lose the margin or more, of which nothing is
            resolved.
        cuts: the seeds' parts are cut at random from the same data.
        levels: the means of the variant and of the baseline, where the difference is one of them;
            else None.
        arms: the means of what was compared, whatever it is; None where questions were left open.
        few: the test samples that the means are fractions of, where they are few and of one network
            of each variant; else 0.
        sampled: of how many test samples the means are, as "100 of 10,000"; empty where they are of
            all.
        over_samples: the difference of the same networks, where there are several of each variant,
            with its interval over test samples; None where that is not known.
        close: the seeds lie closer together than those of other cells, so that neither a difference
            nor, as the second says, that there is no loss of the margin is concluded, see
            `moderation`.
        these_samples: what the cell concludes would not stand over other test samples like these.
    """

    reading: Reading
    estimate: Estimate | None = None
    p_adjusted: float | None = None
    against: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    needed: int | None = None
    label: str = ""
    reason: str = ""
    pooled: bool = False
    asked: int = 0
    small: bool = False
    ends: tuple[Estimate, Estimate] | None = None
    place: tuple[str, str, str] | None = None
    margin_p: float | None = None
    clock: str = ""
    values: tuple[float, ...] = ()
    rivals: tuple[Estimate, ...] = ()
    fragile: bool = False
    open_losses: tuple[str, ...] = ()
    cuts: bool = False
    levels: tuple[float, float] | None = None
    arms: tuple[float, float] | None = None
    few: int = 0
    sampled: str = ""
    over_samples: Estimate | None = None
    these_samples: bool = False
    close: tuple[bool, bool] = (False, False)

    @property
    def p(self) -> float | None:
        """The p value of no difference; None without a test."""
        return None if self.estimate is None or self.clock else self.estimate.p

    @property
    def bracketed(self) -> bool:
        """Whether open questions leave a range of differences: more seeds do not close that."""
        return self.ends is not None and self.ends[0] != self.ends[1]

    @property
    def resolved(self) -> bool:
        """Whether the adjusted p value says that there is a difference, and the moderated one
        too.
        """
        return self.p_adjusted is not None and self.p_adjusted <= LEVEL and not self.close[0]

    @property
    def tested_close(self) -> bool:
        """Whether a conclusion is not drawn because the seeds lie close together."""
        p_values = (self.p_adjusted, self.margin_p)
        return any(
            close and p is not None and p <= LEVEL
            for close, p in zip(self.close, p_values, strict=True)
        )

    @property
    def no_loss(self) -> bool:
        """Whether the adjusted p value excludes a loss of the margin, and the moderated one
        too.
        """
        return self.margin_p is not None and self.margin_p <= LEVEL and not self.close[1]

    @property
    def tone(self) -> str:
        """How the cell is marked: "better", "worse" or "mixed" where the adjusted p value
        concludes so, else "".
        """
        return TONES.get(self.reading, "")

    def difference(self, scale: Scale) -> str:
        """ "+2.4 pp [0.7, 3.7]"; empty without one."""
        if self.estimate is None:
            return ""
        if self.counted is not None:
            return f"{self.counted[0]} test samples against {self.counted[1]}"
        text = interval_text(self.estimate, scale)
        if self.pooled:
            text = text.removesuffix(f" in all {self.estimate.n} seeds").replace(
                "seeds", "workloads"
            )
        return f"{text}, {self.lacking}" if self.lacking else text

    @property
    def saturated(self) -> str:
        """ "0 %" or "100 %" where every network of both arms has that share: such a question tells
        them apart in no way; else empty.
        """
        if self.pooled or self.few or self.arms is None or self.arms[0] != self.arms[1]:
            return ""
        return {0.0: "0 %", 1.0: "100 %"}.get(self.arms[0], "")

    @property
    def replicates(self) -> str:
        """The interval is over these replicates, in words."""
        if self.pooled:
            return "workloads"
        known = self.estimate
        return "seeds" if known is None or known.samples is None else "test samples"

    @property
    def counted(self) -> tuple[str, str] | None:
        """Both arms as counts of the few samples that were asked, ("4 of 5", "5 of 5"); else
        None.
        """
        if not self.few or self.arms is None:
            return None
        variant_count, other = (of_few(mean, self.few) for mean in self.arms)
        return (variant_count, other) if variant_count and other else None

    @property
    def lacking(self) -> str:
        """ "n = 3 of 5 seeds", or "2 of 5 workloads"; empty where none is missing."""
        known = self.estimate
        if known is None or known.samples is not None or known.n >= self.asked:
            return ""
        counted = f"{known.n} of {self.asked}"
        return f"{counted} workloads" if self.pooled else f"n = {counted} seeds"

    @property
    def words(self) -> str:
        """The reading, with what a reader must know of it: how it is limited, or the reason why
        there is none.
        """
        if self.reading is Reading.SATURATED:
            return f"{self.saturated} in both" if self.saturated else self.reading.value
        if self.reading is Reading.UNRESOLVED and not self.reason:
            # Its own interval excludes 0, which would look like a contradiction beside the word
            # alone.
            adjusted = " after Holm's adjustment" if self.p is not None and self.p <= LEVEL else ""
            seeds = (
                f" (a difference of the margin would take about {self.needed:,} {self.replicates})"
                if self.needed
                else ""
            )
            return f"{self.reading.value}{adjusted}{seeds}"
        if (
            self.reading in (Reading.UNRESOLVED, Reading.UNMEASURED, Reading.DOUBTED)
            and self.reason
        ):
            return f"{self.reading.value}: {self.reason}"
        if self.reading is Reading.MIXED and not self.resolved and self.losses:
            return f"{self.reading.value}: no worse on the mean, and costs at {listed(self.losses)}"
        if self.reading is Reading.MIXED and self.against:
            return f"{self.reading.value}: the other way at {listed(self.against)}"
        return ", ".join([self.reading.value, *self.limits])

    @property
    def limits(self) -> list[str]:
        """List the limits of a conclusion: "less than the margin", "fragile", "on these data", a
        loss that is left open.
        """
        if self.reading not in CONCLUDED:
            return []
        limits = {
            "less than the margin": self.small,
            "fragile": self.fragile,
            "on these data": self.cuts,
            "on these test samples": self.these_samples,
            self.open_loss: bool(self.open_loss),
        }
        return [text for text, holds in limits.items() if holds]

    @property
    def open_loss(self) -> str:
        """Where all workloads together hide that one may lose the margin or more; empty where
        none does.
        """
        if not self.open_losses:
            return ""
        return f"but a loss of the margin or more is not excluded on {listed(self.open_losses)}"

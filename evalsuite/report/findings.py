"""How many differences would look resolved by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def intervals(compared: pd.DataFrame) -> int:
    """How many differences have an interval of some width: each could exclude 0 by chance."""
    clock = compared["timing"].astype(bool) & (compared["unit"] != "ratio")
    return int((compared["diff_low"].notna() & ~compared["constant"] & ~clock).sum())


def chance_text(compared: pd.DataFrame, baseline: str, seeds: int) -> str:
    """How many differences could look resolved by chance, and how wide intervals over so few seeds are."""
    count = intervals(compared)
    if not count:
        return "No difference has an interval of some width: nothing here is a test."
    return (
        f"The intervals are per cell and not adjusted for their number: of {count} differences with an interval of "
        f"some width, about 5 % ({0.05 * count:.0f}) would exclude 0 by chance even if no variant differed from "
        f"{baseline}. Seeds are the only replicates; the test samples are the same for all of them. {_width(seeds)}"
    )


def _width(seeds: int) -> str:
    """How wide a t interval over so few seeds is."""
    from scipy.stats import t

    if not 2 <= seeds < 5:
        return ""
    return f"With {seeds} seeds an interval is ± {t.ppf(0.975, seeds - 1):.1f} standard errors: use 5 or more."

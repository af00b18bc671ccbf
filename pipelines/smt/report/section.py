"""The report's section on exact verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalsuite import (
    Contrast,
    Direction,
    Endpoint,
    Evidence,
    Headline,
    Measure,
    Part,
    Run,
    Section,
    counterexample_pictures,
    parse_setting,
)
from pipelines.smt.report.cost import cost_grids, proofs_grid
from pipelines.smt.report.figures import exact_figures
from pipelines.smt.report.findings import RULE, finding, overall
from pipelines.smt.report.tables import (
    AGREEMENT,
    DISTANCE,
    DISTANCE_UPPER,
    GAP,
    STAGE,
    UNDECIDED,
    VERIFIED,
    VIOLATED,
    exact_tables,
)
from pipelines.smt.report.text import (
    agreement_grid,
    agreement_of,
    distance_grid,
    distances,
    verified_grid,
)

if TYPE_CHECKING:
    import pandas as pd


def _part(run: Run) -> Part:
    """Each method of each smt step of each workload; the tables are of robustness."""
    every = run.once(exact_tables)
    tables = [each for each in every if each.method != AGREEMENT]
    agreements = [each for each in every if each.method == AGREEMENT]
    found = distances(tables)
    grids = [*cost_grids(tables), distance_grid(tables, found), proofs_grid(tables)]
    for table in tables:
        grids.append(verified_grid(table))
        agreement = agreement_of(table, agreements)
        grids += [agreement_grid(agreement)] if agreement else []
    findings = [overall(tables), *(finding(table, found, agreements) for table in tables)]
    drawings = [drawing for table in tables for drawing in exact_figures(table)]
    return Part.of(findings, grids, (), drawings, rule=RULE if tables else "", tables=tables)


def _over_radii(metric: str) -> Measure:
    """The mean over all radii of the first step on networks as trained, and each radius."""

    def measure(run: Run, workload: str, variant: str) -> Evidence | None:
        table = next((each for each in run.once(exact_tables)
                      if each.workload == workload and not each.after and each.method != AGREEMENT), None)  # fmt: skip
        if table is None:
            return None
        names = (variant, run.baseline)
        lacking = next((name for name in names if not table.over_radii(name, metric)), "")
        reason = f"{lacking}: {table.reason(lacking, metric)}" if lacking else ""
        family = [
            _contrast(table.radius(at), table.ends(variant, metric, at), table.ends(run.baseline, metric, at))
            for at in table.radii
        ]
        own_means, other_means = (table.mean_ends(name, metric) for name in names)
        primary = _contrast("mean over the radii", own_means, other_means, reason)
        return Evidence(primary, [each for each in family if each.own and each.other])

    return measure


_Ends = tuple[dict[int, float], dict[int, float]]


def _contrast(label: str, own: _Ends, other: _Ends, reason: str = "") -> Contrast:
    """Of numbers between two ends; of numbers alone, where nothing was left open."""
    if own[0] == own[1] and other[0] == other[1]:
        return Contrast(label, own[0], other[0], reason, 1.0)
    return Contrast(f"{label}, open questions counted both ways", own[0], other[0], reason, 1.0, own[1], other[1])


def _bracketed(compared: pd.DataFrame) -> pd.Series[bool]:
    """Lines of one end of a distance or share, and of radii in grid steps: their tables have both ends, and the steps.

    The ε of grid steps are each network's own, so equal ones pair nothing.
    """
    own = compared["stage"] == STAGE
    steps = compared["setting"].map(lambda text: "steps" in parse_setting(str(text))).astype(bool)
    # Lines of a share of which some arm's open questions would make another.
    place = compared["workload"] + "/" + compared["step"] + "/" + compared["setting"]
    undecided = place[own & (compared["metric"] == UNDECIDED) & (compared["mean"] > 0)]
    left_open = compared["metric"].isin((VERIFIED, VIOLATED, GAP)) & place.isin(set(undecided))
    return own & (steps | left_open) | compared["metric"].isin((DISTANCE, DISTANCE_UPPER))


SECTION = Section(
    title="Exact verification",
    question="For how many samples is it decided, without any gap, whether an input near them is another class?",
    stages=(STAGE,),
    part=_part,
    endpoints=(
        Endpoint("accuracy verified exactly", _over_radii(VERIFIED), "fraction", Direction.HIGHER, 0.01),
        Endpoint("questions left undecided", _over_radii(UNDECIDED), "fraction", Direction.LOWER, 0.01),
    ),
    headlines=(
        Headline(STAGE, VERIFIED),
        Headline(STAGE, UNDECIDED, figure=False),
    ),
    terms={
        "verified accuracy": "The share of samples whose class is proven for every input of a ball around them.",
        "exactness gap": "What a search proves beyond what bounds alone prove.",
        "PAR-2": "Seconds of a question; one left open counts twice, at its limit where that is of seconds.",
        "counterexample": "An input of a ball that the network gives another class.",
        "both ways": "Open questions answered against a variant and for the baseline, and the reverse.",
    },
    kept=_bracketed,
    pictures=lambda folder: counterexample_pictures(folder, (VERIFIED, VIOLATED, UNDECIDED)),
)

"""The report's section on verdicts of single samples: what each method says, and whether two
contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from evalsuite.contract import Verdict
from evalsuite.report.findings import Finding
from evalsuite.report.grids import Grid
from evalsuite.report.section import Part, RunView, Section
from evalsuite.results import JOB_FAILURES, parse_setting

if TYPE_CHECKING:
    import pandas as pd

_EVERY = tuple(verdict.value for verdict in Verdict)
_OPPOSITE = {
    Verdict.HOLDS.value: Verdict.VIOLATED.value,
    Verdict.VIOLATED.value: Verdict.HOLDS.value,
}
_READ = ("workload", "variant", "seed", "step", "metric", "setting", "sample", "verdict")
_COUNT_COLUMNS = ("workload", "step", "variant", "eps", "method")
# What is claimed, by the metric's name, of which inputs and network.
_PROPERTY = ("workload", "variant", "seed", "sample", "metric", "eps", "norm", "network")


class Contradictions(NamedTuple):
    """The contradicting pairs, one a row, and how many pairs were compared."""

    rows: pd.DataFrame
    comparisons: int


def _said(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.loc[frame["sample"].notna() & (frame["verdict"] != ""), list(_READ)]


def _with_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with what their settings say as columns of text; empty where they say nothing.

    `radius` is ε, or the steps of the input's grid where the setting has them: each network's ε of
    these is its own.
    """
    settings = {text: parse_setting(text) for text in rows["setting"].unique()}
    for keys in settings.values():
        keys["radius"] = f"{keys['steps']} grid steps" if "steps" in keys else keys.get("eps", "")
    absent = {"eps": "", "radius": "", "method": "", "norm": "linf"}
    return rows.assign(
        **{
            key: (
                rows["setting"]
                .map({text: keys.get(key, lack) for text, keys in settings.items()})
                .astype(object)
            )
            for key, lack in absent.items()
        }
    )


def verdict_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Counts by verdict for each workload, step, variant, eps and method, over all seeds and
    samples.

    `seeds` counts the networks behind a line. A verifying step's job that failed has a line of
    zeros whose `note` says so: "unsupported (3/3): ...", out of all seeds of the workload.
    """
    import pandas as pd

    # Samples together: a few hundred lines.
    alike = ["workload", "step", "variant", "seed", "setting", "verdict"]
    rows = _with_settings(
        _said(frame).groupby(alike, sort=False).size().rename("count").reset_index()
    )
    # 1. A line for each setting with verdicts.
    rows = rows.assign(eps=rows["radius"])
    lines: list[dict[str, Any]] = []
    for key, group in rows.groupby(list(_COUNT_COLUMNS), sort=False):
        counts = group.groupby("verdict")["count"].sum().reindex(_EVERY, fill_value=0)
        lines.append(
            {
                **dict(zip(_COUNT_COLUMNS, key, strict=True)),
                **counts,
                "total": group["count"].sum(),
                "seeds": group["seed"].nunique(),
                "note": "",
            }
        )
    # 2. A line of zeros for jobs of the same steps that failed: without it a method that decided
    # nothing would not show.
    failed = frame[
        (frame["metric"] == "")
        & frame["status"].isin(JOB_FAILURES)
        & frame["step"].isin(rows["step"].unique())
    ]
    seeds = frame.groupby("workload")["seed"].nunique()
    same = ["workload", "step", "variant", "status", "reason"]
    counted = failed.groupby(same, sort=False)["seed"].nunique().reset_index()
    for workload, step, variant, status, reason, count in counted.itertuples(
        index=False, name=None
    ):
        lines.append(
            {
                "workload": workload,
                "step": step,
                "variant": variant,
                "eps": "",
                "method": "",
                **dict.fromkeys((*_EVERY, "total", "seeds"), 0),
                "note": f"{status} ({count}/{seeds[workload]}): {reason}",
            }
        )
    table = pd.DataFrame(lines, columns=[*_COUNT_COLUMNS, *_EVERY, "total", "seeds", "note"])
    return _in_frame_order(table, frame)


def _in_frame_order(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Workloads, steps and variants as the frame has them; settings by number where they are
    numbers.
    """
    import pandas as pd

    def ranks(column: pd.Series[Any]) -> Any:
        if column.name == "eps":
            return pd.to_numeric(column, errors="coerce")
        every = (frame if column.name in frame else table)[column.name].unique()
        return column.map({value: i for i, value in enumerate(every)})

    return table.sort_values(list(_COUNT_COLUMNS), key=ranks, ignore_index=True)


def contradictions(frame: pd.DataFrame, after: Mapping[str, str] | None = None) -> Contradictions:
    """Pairs of methods of which one says holds and the other violated, of the same property of the
    same network.

    A pair counts as compared where one of the two decided and the other could have said the
    opposite, as it does of some property in this frame: two methods that only ever prove cannot
    contradict each other, and are no check.

    Args:
        frame: rows as `read_results` gives them.
        after: step -> what it follows. Steps that follow different ones measure different networks
            (a pruned one is another network) and are not compared. None: all steps measure the
            network as trained.
    """
    import numpy as np
    import pandas as pd

    # 1. What was claimed of which property by whom. Rows without a radius claim nothing comparable.
    rows = _with_settings(_said(frame))
    rows = rows.assign(
        eps=pd.to_numeric(rows["eps"], errors="coerce"),
        network=rows["step"]
        .map({step: (after or {}).get(step, "") for step in rows["step"].unique()})
        .astype(object),
        source=(rows["step"] + " " + rows["method"]).str.strip(),
    ).dropna(subset=["eps"])
    properties = rows.groupby(list(_PROPERTY), sort=False, dropna=False)
    spoken = rows.groupby(["source", "verdict"])
    names: list[Any] = list(spoken.groups)  # (source, verdict)
    ever = {
        source: {verdict for verdict_source, verdict in names if verdict_source == source}
        for source, _ in names
    }
    # Which property has which (source, verdict): a million rows say one of a few dozen things of
    # each.
    said = np.zeros((properties.ngroups, len(names)), bool)
    said[properties.ngroup().to_numpy(), spoken.ngroup().to_numpy()] = True
    # 2. Compare things said in pairs, for all properties at once: they clash if one is the opposite
    # of the other.
    clashes, compared = [], 0
    for (i, (source, verdict)), (j, (other, other_verdict)) in combinations(enumerate(names), 2):
        both = said[:, i] & said[:, j]
        if _OPPOSITE.get(verdict) in ever[other] or _OPPOSITE.get(other_verdict) in ever[source]:
            compared += int(both.sum())
        if _OPPOSITE.get(verdict) == other_verdict:
            clashes += [
                (place, {verdict: source, other_verdict: other})
                for place in np.flatnonzero(both).tolist()
            ]
    # 3. List the clashes in the order of the properties, with who said what.
    clashes.sort(key=lambda clash: clash[0])
    every = rows.drop_duplicates(list(_PROPERTY))[list(_PROPERTY)]
    of_property = every.iloc[[place for place, _ in clashes]].to_dict("records")
    found = [
        {**property_keys, **clash}
        for property_keys, (_, clash) in zip(of_property, clashes, strict=True)
    ]
    return Contradictions(pd.DataFrame(found, columns=[*_PROPERTY, *_OPPOSITE]), compared)


_WRONG = "at least one method is wrong about each of these. Do not trust its other verdicts."
_UNCHECKED = "No two methods could contradict each other here, so nothing was checked."
_NONE = (
    "verdicts of two methods on the same network, sample and ε, where one decided and the other"
    " could have said the opposite."
)


def _part(run: RunView) -> Part:
    """The part on contradictions between the methods of all steps; empty where there are no
    verdicts of single samples.
    """
    table = verdict_table(run.frame)
    if table.empty:
        return Part()
    contradicted = contradictions(run.frame, run.record.after)
    count = len(contradicted.rows)
    text = (
        f"{count} contradiction{'s' * (count != 1)} in {contradicted.comparisons:,} comparisons:"
        f" {_WRONG if count else _NONE}"
    )
    text = text if contradicted.comparisons else _UNCHECKED
    clashes = Grid.of(
        "contradictions", "Contradictions: which step and method says what", contradicted.rows
    )
    counts = Grid.of("verdicts", "Counts of verdicts over all seeds and samples", table)
    finding = Finding("all methods", text, ())
    if count:
        return Part([finding], [clashes], [counts], alarm=text)
    # Their file, which may be there from other rows, says so too.
    return Part([finding], [], [clashes, counts])


VERDICTS = Section(
    title="Verdicts",
    question="What does each method say of single samples, and does any contradict another?",
    stages=(),
    part=_part,
)

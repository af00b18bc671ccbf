"""Per-sample verdicts: how many there are of each, drawn as shares, and whether two methods contradict each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from evalsuite.contract import Verdict
from evalsuite.report.canvas import MUTED_COLOUR, RULE_COLOUR, VERDICT_COLOURS, Drawing, number_of, panels
from evalsuite.results import JOB_FAILURES, parse_setting
from evalsuite.verification.report.radii import radius_text

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = tuple(verdict.value for verdict in Verdict)
_OPPOSITE = {Verdict.HOLDS.value: Verdict.VIOLATED.value, Verdict.VIOLATED.value: Verdict.HOLDS.value}
_READ = ("workload", "variant", "seed", "step", "metric", "setting", "sample", "verdict")
_COUNT_COLUMNS = ("workload", "step", "variant", "eps", "method")
_MOST_RADII = 4  # Of panels beside one another.
# What is claimed, by the metric's name, of which inputs and network.
_PROPERTY = ("workload", "variant", "seed", "sample", "metric", "eps", "norm", "network")


class Contradictions(NamedTuple):
    """The contradicting pairs, one a row, and how many pairs were compared."""

    rows: pd.DataFrame
    comparisons: int


def _with_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """The per-sample verdict rows, with what their settings say as columns of text; empty where they say nothing.

    `radius` is ε, or the steps of the input's grid where the setting has them: each network's ε of these is its own.
    """
    rows = frame.loc[frame["sample"].notna() & (frame["verdict"] != ""), list(_READ)]
    settings = {text: parse_setting(text) for text in rows["setting"].unique()}
    for keys in settings.values():
        keys["radius"] = f"{keys['steps']} grid steps" if "steps" in keys else keys.get("eps", "")
    absent = {"eps": "", "radius": "", "method": "", "norm": "linf"}
    return rows.assign(**{
        key: rows["setting"].map({text: each.get(key, lack) for text, each in settings.items()}).astype(object)
        for key, lack in absent.items()
    })  # fmt: skip


def verdict_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Counts by verdict for each workload, step, variant, eps and method, over all seeds and samples.

    `seeds` counts the networks behind a line. A verifying step's job that failed has a line of zeros whose `note`
    says so: "unsupported (3/3): ...", out of all seeds of the workload.
    """
    import pandas as pd

    rows = _with_settings(frame)
    rows = rows.assign(eps=rows["radius"])
    lines: list[dict[str, Any]] = []
    for key, group in rows.groupby(list(_COUNT_COLUMNS), sort=False):
        counts = group["verdict"].value_counts().reindex(VERDICTS, fill_value=0)
        lines.append({**dict(zip(_COUNT_COLUMNS, key, strict=True)), **counts, "total": len(group),
                      "seeds": group["seed"].nunique(), "note": ""})  # fmt: skip
    failed = frame[
        (frame["metric"] == "") & frame["status"].isin(JOB_FAILURES) & frame["step"].isin(rows["step"].unique())
    ]
    seeds = frame.groupby("workload")["seed"].nunique()
    same = ["workload", "step", "variant", "status", "reason"]
    counted = failed.groupby(same, sort=False)["seed"].nunique().reset_index()
    for workload, step, variant, status, reason, count in counted.itertuples(index=False, name=None):
        lines.append({"workload": workload, "step": step, "variant": variant, "eps": "", "method": "",
                      **dict.fromkeys((*VERDICTS, "total", "seeds"), 0),
                      "note": f"{status} ({count}/{seeds[workload]}): {reason}"})  # fmt: skip
    table = pd.DataFrame(lines, columns=[*_COUNT_COLUMNS, *VERDICTS, "total", "seeds", "note"])
    return _in_frame_order(table, frame)


def _in_frame_order(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Workloads, steps and variants as the frame has them; settings by number where they are numbers."""
    import pandas as pd

    def ranks(column: pd.Series[Any]) -> Any:
        if column.name == "eps":
            return pd.to_numeric(column, errors="coerce")
        every = (frame if column.name in frame else table)[column.name].unique()
        return column.map({each: i for i, each in enumerate(every)})

    return table.sort_values(list(_COUNT_COLUMNS), key=ranks, ignore_index=True)


def contradictions(frame: pd.DataFrame, after: Mapping[str, str] | None = None) -> Contradictions:
    """Pairs of methods of which one says holds and the other violated, of the same property of the same network.

    A pair counts as compared where one of the two decided and the other could have said the opposite, as it does of
    some property in this frame: two methods that only ever prove cannot contradict each other, and are no check.

    Args:
        frame: rows as `read_results` gives them.
        after: step -> what it follows. Steps that follow different ones measure different networks (a pruned one is
            another network) and are not compared. None: all steps measure the network as trained.
    """
    import numpy as np
    import pandas as pd

    rows = _with_settings(frame)
    rows = rows.assign(
        eps=pd.to_numeric(rows["eps"], errors="coerce"),
        network=rows["step"].map({step: (after or {}).get(step, "") for step in rows["step"].unique()}).astype(object),
        source=(rows["step"] + " " + rows["method"]).str.strip(),
    ).dropna(subset=["eps"])
    properties = rows.groupby(list(_PROPERTY), sort=False, dropna=False)
    spoken = rows.groupby(["source", "verdict"])
    names: list[Any] = list(spoken.groups)  # (source, verdict)
    ever = {source: {verdict for each, verdict in names if each == source} for source, _ in names}
    # Which property has which (source, verdict): a million rows say one of a few dozen things of each.
    said = np.zeros((properties.ngroups, len(names)), bool)
    said[properties.ngroup().to_numpy(), spoken.ngroup().to_numpy()] = True
    clashes, compared = [], 0
    for (i, (source, verdict)), (j, (other, other_verdict)) in combinations(enumerate(names), 2):
        both = said[:, i] & said[:, j]
        if _OPPOSITE.get(verdict) in ever[other] or _OPPOSITE.get(other_verdict) in ever[source]:
            compared += int(both.sum())
        if _OPPOSITE.get(verdict) == other_verdict:
            clashes += [(place, {verdict: source, other_verdict: other}) for place in np.flatnonzero(both).tolist()]
    clashes.sort(key=lambda each: each[0])
    every = rows.drop_duplicates(list(_PROPERTY))[list(_PROPERTY)]
    of_property = every.iloc[[place for place, _ in clashes]].to_dict("records")
    found = [{**each, **own} for each, (_, own) in zip(of_property, clashes, strict=True)]
    return Contradictions(pd.DataFrame(found, columns=[*_PROPERTY, *_OPPOSITE]), compared)


def verdict_figures(verdicts: pd.DataFrame, workload: str, variants: Sequence[str]) -> list[Drawing]:
    """Shares of the verdicts: one figure; where there are more radii than it has room for, one of each step."""
    name, title = f"verdicts-{workload}", f"Verdicts, {workload}"
    counted = verdicts[verdicts["total"] > 0]
    steps = list(dict.fromkeys(counted["step"]))
    if counted["eps"].nunique() <= _MOST_RADII or len(steps) < 2:
        return [verdict_bars(verdicts, name, title, variants)]
    return [
        verdict_bars(verdicts[verdicts["step"] == step], f"{name}-{step}" if i else name, f"{title}, {step}", variants)
        for i, step in enumerate(steps)
    ]


def verdict_bars(verdicts: pd.DataFrame, name: str, title: str, variants: Sequence[str]) -> Drawing:
    """Shares of the verdicts: a row of panels per method, a column per eps, a bar per variant."""
    from matplotlib.patches import Patch

    caption = (
        "What each method says of the same samples, all seeds together. An attack can only find violations, and bound "
        "propagation can only find proofs; what neither decides stays unknown."
    )
    counted = verdicts[verdicts["total"] > 0]
    if counted.empty:
        return Drawing(name, title, caption, reason="no verdicts of single samples")
    methods = list(dict.fromkeys(zip(counted["step"], counted["method"], strict=True)))
    every = sorted(counted["eps"].unique(), key=number_of)
    if len(every) > _MOST_RADII:
        caption += f" Of {len(every)} radii {_MOST_RADII} are shown; the counts of all are in the table."
        every = [every[round(i * (len(every) - 1) / (_MOST_RADII - 1))] for i in range(_MOST_RADII)]
    noted = [row for row in verdicts.to_dict("records") if row["note"]]
    notes = {(row["step"], row["variant"]): row["note"].split(" (")[0] for row in noted}
    with panels(
        len(methods) * len(every), len(every), 0.3 + 0.17 * len(variants), more=0.5, sharex=True, sharey=True
    ) as figure:
        for axes_row, (step, method) in zip(figure.grid, methods, strict=True):
            for axes, eps in zip(axes_row, every, strict=True):
                panel = counted[(counted["step"] == step) & (counted["method"] == method) & (counted["eps"] == eps)]
                _bars(axes, panel, variants, {variant: notes.get((step, variant), "") for variant in variants})
                radius = eps if math.isnan(number_of(eps)) else radius_text(number_of(eps))
                head = f"{method or step}, ε = {radius}" if eps else method or step
                axes.set_title(head, fontweight="normal", fontsize=8)
        handles = [Patch(facecolor=VERDICT_COLOURS[each], edgecolor=RULE_COLOUR, linewidth=0.5, label=each)
                   for each in VERDICTS]  # fmt: skip
        figure.figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), columnspacing=1.4,
                             handlelength=1.2)  # fmt: skip
    alt = f"{title}: shares by method and eps; the counts are in the table."
    return Drawing(name, title, caption, alt, figure.svg)


def _bars(axes: Any, panel: pd.DataFrame, variants: Sequence[str], notes: Mapping[str, str]) -> None:
    axes.set_yticks(range(len(variants)), variants, fontsize=7)
    axes.tick_params(length=0)
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100], ["0", "50", "100 %"], fontsize=7)
    axes.spines["left"].set_visible(False)
    if panel.empty:
        middle = (len(variants) - 1) / 2
        axes.text(50, middle, "not run", ha="center", va="center", color=MUTED_COLOUR, fontsize=7, style="italic")
        return
    rows = {row["variant"]: row for row in panel.to_dict("records")}
    for i, variant in enumerate(variants):
        left = 0.0
        if variant not in rows:
            axes.text(
                2, i, notes[variant] or "no verdicts", va="center", color=MUTED_COLOUR, fontsize=7, style="italic"
            )
            continue
        for verdict in VERDICTS:
            share = 100 * rows[variant][verdict] / rows[variant]["total"]
            if share:
                axes.barh(i, share, left=left, height=0.72, color=VERDICT_COLOURS[verdict], linewidth=0)
            left += share

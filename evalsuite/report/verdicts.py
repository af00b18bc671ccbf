"""Per-sample verdicts: how many there are of each, and whether two methods ever contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from evalsuite.contract import Verdict
from evalsuite.results import JOB_FAILURES, parse_setting

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = tuple(verdict.value for verdict in Verdict)
_OPPOSITE = {Verdict.HOLDS.value: Verdict.VIOLATED.value, Verdict.VIOLATED.value: Verdict.HOLDS.value}
_COUNT_COLUMNS = ("workload", "step", "variant", "eps", "method")
# What is claimed, by the metric's name, of which inputs and network.
_PROPERTY = ("workload", "variant", "seed", "sample", "metric", "eps", "norm", "network")


class Contradictions(NamedTuple):
    """The contradicting pairs, one a row, and how many pairs were compared."""

    rows: pd.DataFrame
    comparisons: int


def _with_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """The per-sample verdict rows, with `eps` and `method` as columns of text; empty where the setting has none."""
    rows = frame[frame["sample"].notna() & (frame["verdict"] != "")]
    settings = {text: parse_setting(text) for text in rows["setting"].unique()}
    return rows.assign(
        eps=[settings[text].get("eps", "") for text in rows["setting"]],
        method=[settings[text].get("method", "") for text in rows["setting"]],
        norm=[settings[text].get("norm", "linf") for text in rows["setting"]],
    )


def verdict_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Counts by verdict for each workload, step, variant, eps and method, over all seeds and samples.

    `seeds` counts the networks behind a line. A verifying step's job that failed has a line of zeros whose `note`
    says so: "unsupported (3/3): ...", out of all seeds of the workload.
    """
    import pandas as pd

    rows = _with_settings(frame)
    lines: list[dict[str, Any]] = []
    for key, group in rows.groupby(list(_COUNT_COLUMNS), sort=False):
        counts = group["verdict"].value_counts()
        columns = dict(zip(_COUNT_COLUMNS, key, strict=True))
        columns |= {verdict: int(counts.get(verdict, 0)) for verdict in VERDICTS}
        lines.append({**columns, "total": len(group), "seeds": group["seed"].nunique(), "note": ""})
    failed = frame[
        (frame["metric"] == "") & frame["status"].isin(JOB_FAILURES) & frame["step"].isin(rows["step"].unique())
    ]
    seeds = {str(name): rows_of["seed"].nunique() for name, rows_of in frame.groupby("workload")}
    for (workload, step, variant, status, reason), group in failed.groupby(
        ["workload", "step", "variant", "status", "reason"], sort=False
    ):
        columns = {"workload": workload, "step": step, "variant": variant, "eps": "", "method": ""}
        columns |= dict.fromkeys(VERDICTS, 0) | {"total": 0, "seeds": 0}
        lines.append({**columns, "note": f"{status} ({group['seed'].nunique()}/{seeds[str(workload)]}): {reason}"})
    table = pd.DataFrame(lines, columns=[*_COUNT_COLUMNS, *VERDICTS, "total", "seeds", "note"])
    return _in_frame_order(table, frame)


def _in_frame_order(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Workloads, steps and variants as the frame has them; settings by number where they are numbers."""
    import pandas as pd

    keys = {name: {each: i for i, each in enumerate(frame[name].unique())} for name in ("workload", "step", "variant")}
    ranks = table[list(_COUNT_COLUMNS)].copy()
    for name, places in keys.items():
        ranks[name] = [places[each] for each in table[name]]
    ranks["eps"] = pd.to_numeric(table["eps"], errors="coerce")
    ranks["method"] = [list(table["method"].unique()).index(each) for each in table["method"]]
    order = ranks.sort_values(list(_COUNT_COLUMNS), kind="stable", na_position="last").index
    return table.loc[order].reset_index(drop=True)


def contradictions(frame: pd.DataFrame, after: Mapping[str, str] | None = None) -> Contradictions:
    """Pairs of methods of which one says holds and the other violated, of the same property of the same network.

    A pair counts as compared where one of the two decided and the other could have said the opposite, as it does of
    some property in this frame: two methods that only ever prove cannot contradict each other, and are no check.

    Args:
        frame: rows as `read_results` gives them.
        after: step -> what it follows. Steps that follow different ones measure different networks (a pruned one is
            another network) and are not compared. None: all steps measure the network as trained.
    """
    import pandas as pd

    rows = _with_settings(frame)
    rows = rows.assign(
        eps=pd.to_numeric(rows["eps"], errors="coerce"),
        network=[(after or {}).get(step, "") for step in rows["step"]],
        source=[f"{step} {method}".strip() for step, method in zip(rows["step"], rows["method"], strict=True)],
    ).dropna(subset=["eps"])
    said: dict[tuple[Any, ...], set[tuple[str, str]]] = {}
    ever: dict[str, set[str]] = {}
    for *key, source, verdict in rows[[*_PROPERTY, "source", "verdict"]].itertuples(index=False, name=None):
        said.setdefault(tuple(key), set()).add((source, verdict))
        ever.setdefault(source, set()).add(verdict)
    clashes, compared = [], 0
    for key_, found in said.items():
        for (source, verdict), (other, other_verdict) in combinations(sorted(found), 2):
            compared += _OPPOSITE.get(verdict) in ever[other] or _OPPOSITE.get(other_verdict) in ever[source]
            if _OPPOSITE.get(verdict) == other_verdict:
                clashes.append({**dict(zip(_PROPERTY, key_, strict=True)), verdict: source, other_verdict: other})
    return Contradictions(pd.DataFrame(clashes, columns=[*_PROPERTY, *_OPPOSITE]), compared)

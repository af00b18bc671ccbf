"""Per-sample verdicts: how many there are of each, and whether two methods ever contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from evalsuite.contract import Verdict
from evalsuite.results import JOB_FAILURES, parse_setting

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = tuple(verdict.value for verdict in Verdict)
_OPPOSITE = {Verdict.HOLDS.value: Verdict.VIOLATED.value, Verdict.VIOLATED.value: Verdict.HOLDS.value}
_READ = ("workload", "variant", "seed", "step", "metric", "setting", "sample", "verdict")
_COUNT_COLUMNS = ("workload", "step", "variant", "eps", "method")
# What is claimed, by the metric's name, of which inputs and network.
_PROPERTY = ("workload", "variant", "seed", "sample", "metric", "eps", "norm", "network")


class Contradictions(NamedTuple):
    """The contradicting pairs, one a row, and how many pairs were compared."""

    rows: pd.DataFrame
    comparisons: int


def _with_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """The per-sample verdict rows, with `eps` and `method` as columns of text; empty where the setting has none."""
    rows = frame.loc[frame["sample"].notna() & (frame["verdict"] != ""), list(_READ)]
    settings = {text: parse_setting(text) for text in rows["setting"].unique()}
    absent = {"eps": "", "method": "", "norm": "linf"}
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
        network=rows["step"].map({step: (after or {}).get(step, "") for step in rows["step"].unique()}).astype(object),
        source=(rows["step"] + " " + rows["method"]).str.strip(),
    ).dropna(subset=["eps"])
    spoken = rows[["source", "verdict"]].drop_duplicates()
    names = sorted(spoken.itertuples(index=False, name=None))
    ever: dict[str, set[str]] = {}
    for source, verdict in names:
        ever.setdefault(source, set()).add(verdict)
    clashes, compared = [], 0
    for said, places in _alike(rows, names).items():
        for (source, verdict), (other, other_verdict) in combinations([names[each] for each in said], 2):
            if _OPPOSITE.get(verdict) in ever[other] or _OPPOSITE.get(other_verdict) in ever[source]:
                compared += len(places)
            if _OPPOSITE.get(verdict) == other_verdict:
                clashes += [(place, {verdict: source, other_verdict: other}) for place in places]
    clashes.sort(key=lambda each: each[0])
    of_property = rows.iloc[[place for place, _ in clashes]][list(_PROPERTY)].to_dict("records")
    found = [{**each, **said} for each, (_, said) in zip(of_property, clashes, strict=True)]
    return Contradictions(pd.DataFrame(found, columns=[*_PROPERTY, *_OPPOSITE]), compared)


def _alike(rows: pd.DataFrame, names: Sequence[tuple[str, str]]) -> dict[tuple[int, ...], list[int]]:
    """What is said of a property, as places in `names`, in order -> the first row of each property of which it is.

    A million rows say one of a few dozen things of each property.
    """
    codes = {name: code for code, name in enumerate(names)}
    every = rows.groupby(list(_PROPERTY), sort=False, dropna=False).ngroup().to_numpy().tolist()
    said: dict[int, set[int]] = {}
    first: dict[int, int] = {}
    spoken = zip(rows["source"].tolist(), rows["verdict"].tolist(), strict=True)
    for place, (each, name) in enumerate(zip(every, spoken, strict=True)):
        said.setdefault(each, set()).add(codes[name])
        first.setdefault(each, place)
    found: dict[tuple[int, ...], list[int]] = {}
    for each, told in said.items():
        found.setdefault(tuple(sorted(told)), []).append(first[each])
    return found

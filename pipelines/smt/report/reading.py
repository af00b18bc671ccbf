"""The tables of exact verification from the rows of smt steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evalsuite import Measured, Run, Values, Verdict, labels, number_of, parse_setting
from pipelines.smt.report.tables import AGREEMENT, METRICS, QUERY, STAGE, STEPPED, VERIFIED, Counted, ExactTable

if TYPE_CHECKING:
    import pandas as pd

_DECIDED = (Verdict.HOLDS.value, Verdict.VIOLATED.value)


def exact_tables(run: Run) -> list[ExactTable]:
    """A table for each method of each smt step of each workload; also of a step of which every job failed.

    Those of the method `AGREEMENT` come last, under the labels of the steps that they are of.
    """
    measured = run.measured
    samples = _samples(run.frame)
    made = []
    for workload in measured.workloads:
        arms = measured.arms(workload, run.baseline)
        for step in measured.steps(workload, STAGE):
            found, sizes = _found(measured, workload, step, arms["variants"])
            own = samples[(samples["workload"] == workload) & (samples["step"] == step)]
            limits = measured.options.get(step, {})
            for method in list(dict.fromkeys(method for method, _, _, _ in found)) or [""]:
                values = {key[1:]: each for key, each in found.items() if key[0] == method}
                limit = number_of(str(limits.get("integer_time_limit" if method in STEPPED else "query_time_limit")))
                rows = own[own["method"] == method]
                made.append(ExactTable(
                    **arms, step=step, method=method, label=workload,
                    radii=tuple(sorted({radius for _, _, radius in values if radius is not None})),
                    after=run.record.after.get(step, ""), found=values, verdicts=_verdicts(rows), times=_times(rows),
                    reasons=measured.reasons(workload, step, arms["variants"], VERIFIED),
                    sizes=sizes if method in STEPPED else {}, limit=limit if math.isfinite(limit) else None,
                ))  # fmt: skip
    agreements = [each for each in made if each.method == AGREEMENT]
    return [*_labelled([each for each in made if each.method != AGREEMENT]), *_labelled(agreements)]


def _labelled(tables: Sequence[ExactTable]) -> list[ExactTable]:
    """Labels that tell tables apart: workload, integers, what the step follows, and its name and method if needed."""
    told = [
        (each.workload, *(["in integers"] if each.stepped else []), *([f"after {each.after}"] if each.after else []))
        for each in tables
    ]
    every = labels(told, [each.step for each in tables], [each.method for each in tables])
    return [replace(each, label=label) for each, label in zip(tables, every, strict=True)]


def _found(
    measured: Measured, workload: str, step: str, variants: Sequence[str]
) -> tuple[dict[tuple[str, str, str, float | None], Values], dict[float, tuple[float, float]]]:
    """(method, variant, metric, radius) -> values, and the least and greatest ε of each radius in grid steps."""
    found: dict[tuple[str, str, str, float | None], dict[int, float]] = {}
    sizes: dict[float, list[float]] = {}
    for variant in variants:
        for metric in METRICS:
            for text, keys in measured.settings(workload, variant, step, metric).items():
                at = number_of(keys.get("steps", keys.get("eps")))  # Steps where the setting has them.
                radius = None if math.isnan(at) else at
                place = (keys.get("method", ""), variant, metric, radius)
                # Two networks may have different ε for one number of steps, and so different settings.
                found.setdefault(place, {}).update(measured.values(workload, variant, step, metric, text))
                if "steps" in keys and radius is not None and "eps" in keys:
                    sizes.setdefault(radius, []).append(number_of(keys["eps"]))
    # What a step says once, such as the accuracy of the integer network, may name no method: it goes to the only one.
    named = {method for method, _, _, _ in found if method not in ("", AGREEMENT)}
    if len(named) == 1:
        (only,) = named
        found = {(method or only, variant, metric, at): each for (method, variant, metric, at), each in found.items()}
    return {**found}, {radius: (min(each), max(each)) for radius, each in sizes.items()}


def _samples(frame: pd.DataFrame) -> pd.DataFrame:
    """The smt rows of single samples that are verdicts or seconds, with `method` and `radius` as columns."""
    wanted = (frame["verdict"] != "") | (frame["metric"] == QUERY)
    columns = ["workload", "variant", "seed", "step", "metric", "setting", "sample", "value", "verdict", "reason"]
    rows = frame.loc[(frame["stage"] == STAGE) & frame["sample"].notna() & wanted, columns]
    settings = {text: parse_setting(str(text)) for text in rows["setting"].unique()}
    return rows.assign(
        method=[settings[text].get("method", "") for text in rows["setting"]],
        radius=[number_of(settings[text].get("steps", settings[text].get("eps"))) for text in rows["setting"]],
    )


def _verdicts(rows: pd.DataFrame) -> dict[tuple[str, float], Counted]:
    said = rows[(rows["verdict"] != "") & rows["radius"].notna()]
    found = {}
    place: Any
    for place, own in said.groupby(["variant", "radius"], sort=False):
        counts = Counter(own["verdict"])
        by = Counter(own.loc[own["verdict"].isin(_DECIDED) & (own["reason"] != ""), "reason"])
        found[place] = Counted(
            counts[Verdict.HOLDS.value], counts[Verdict.VIOLATED.value], counts[Verdict.UNKNOWN.value],
            counts[Verdict.TIMEOUT.value], own["seed"].nunique(), dict(sorted(by.items())),
            counts[Verdict.UNSUPPORTED.value],
        )  # fmt: skip
    return found


def _times(rows: pd.DataFrame) -> dict[str, tuple[tuple[float, bool], ...]]:
    """Variant -> (seconds, decided) of each timed question, all seeds and radii together."""
    columns = ["variant", "seed", "radius", "sample"]
    timed = rows[(rows["metric"] == QUERY) & rows["value"].notna()]
    said = rows[rows["verdict"] != ""]
    decided = {tuple(key): verdict in _DECIDED for *key, verdict in said[[*columns, "verdict"]].itertuples(index=False)}
    found: dict[str, list[tuple[float, bool]]] = {}
    every: list[list[Any]] = timed[[*columns, "value"]].to_numpy().tolist()
    for *key, seconds in every:
        if tuple(key) in decided:
            found.setdefault(str(key[0]), []).append((float(seconds), decided[tuple(key)]))
    return {variant: tuple(each) for variant, each in found.items()}

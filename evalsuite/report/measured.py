"""The values of single networks, for tables that compare two metrics, or two variants of which
none is the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalsuite.results import Status, parse_setting

if TYPE_CHECKING:
    import pandas as pd

TRAIN = "train"
_PLACE = ("workload", "variant", "step", "metric", "setting")


def root_reason(reason: str) -> str:
    """Cut a reason to its end: without "w/v/0/train unsupported:" before it, which differs from
    seed to seed.
    """
    head, mark, tail = reason.partition(": ")
    return root_reason(tail) if mark and head.count("/") >= 3 else reason


class Measured:
    """Holds what a run measured of whole networks, by workload, variant, step, metric, setting and
    seed.

    Args:
        frame: rows as `read_results` gives them, in the recipe's order.
        after: step -> what it follows; empty for a step that measures the network as trained.

    `options` are each step's, `uses` the treatment that each variant is, under whatever name.
    `reasons` are workload, variant, step and metric -> the first reason that a row gives why it has
    no value, with its status.
    """

    def __init__(self, frame: pd.DataFrame, after: Mapping[str, str] | None = None) -> None:
        # 1. Rows of single samples are no values of a network.
        rows = frame[frame["sample"].isna()]
        self.frame = rows
        self.workloads = [str(name) for name in frame["workload"].unique()]
        self.variants = [str(name) for name in frame["variant"].unique()]
        # 2. The options of steps and variants.
        steps = frame.loc[frame["step"] != TRAIN, ["step", "options"]].drop_duplicates("step")
        self.options: dict[str, dict[str, Any]] = dict(
            zip(steps["step"], steps["options"], strict=True)
        )
        named = frame.drop_duplicates("variant")
        self.uses: dict[str, str] = dict(zip(named["variant"], named["variant_use"], strict=True))
        self._after = after or {}
        self._values: dict[tuple[str, ...], dict[int, float]] = {}
        self.reasons: dict[tuple[str, ...], str] = {}
        self._settings: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
        self._steps: dict[tuple[str, str], dict[str, None]] = {}
        # 3. The values by place and seed; of a place without any, the first reason.
        columns = [*_PLACE, "seed", "value", "status", "reason", "stage"]
        row: Any
        for row in rows[columns].itertuples(index=False):
            place = row[: len(_PLACE)]
            self._steps.setdefault((row.workload, row.stage), {})[row.step] = None
            if row.status == Status.OK.value and math.isfinite(row.value):
                self._values.setdefault(place, {})[row.seed] = row.value
                settings = self._settings.setdefault(place[:-1], {})
                if row.setting not in settings:
                    settings[row.setting] = parse_setting(row.setting)
            elif row.reason:
                self.reasons.setdefault(place[:-1], f"{row.status}: {root_reason(row.reason)}")

    def step(self, workload: str, stage: str) -> str:
        """The first step of a stage that measures the networks as trained; empty where there is
        none.
        """
        return next(iter(self.plain_steps(workload, stage)), "")

    def plain_steps(self, workload: str, stage: str) -> list[str]:
        """The steps of a stage that take networks as trained, in the order of the rows."""
        return [step for step in self.steps(workload, stage) if not self._after.get(step)]

    def steps(self, workload: str, stage: str) -> list[str]:
        """All steps of a stage, in the order of the rows."""
        return list(self._steps.get((workload, stage), {}))

    def values(
        self, workload: str, variant: str, step: str, metric: str, setting: str = ""
    ) -> dict[int, float]:
        """Seed -> value; empty where there is none."""
        return dict(self._values.get((workload, variant, step, metric, setting), {}))

    def settings(
        self, workload: str, variant: str, step: str, metric: str
    ) -> dict[str, dict[str, str]]:
        """The settings that have a value: text -> its keys and values, in the order of the rows."""
        return dict(self._settings.get((workload, variant, step, metric), {}))

    def reason(self, workload: str, variant: str, step: str, metric: str) -> str:
        """Why there is no value, with the status; "absent" where there is no row either."""
        places = ((step, metric), (step, ""), (TRAIN, ""))
        reasons = (self.reasons.get((workload, variant, *place)) for place in places)
        return next(filter(None, reasons), "absent: no row of it in this run")

    def layers(
        self, workload: str, variant: str, metric: str, step: str = TRAIN
    ) -> dict[str, dict[int, float]]:
        """The values of a metric in each layer: the layer's path -> seed -> value, in the network's
        order.
        """
        settings = self.settings(workload, variant, step, metric)
        return {
            keys["layer"]: self.values(workload, variant, step, metric, text)
            for text, keys in settings.items()
            if "layer" in keys
        }

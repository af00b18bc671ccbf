"""Gates: what a run must not lose against the one before it, shown by an interval and not by a
mean.

    gates:
      - metric: "*accuracy"       # a pattern, as of file names margin: 0.01              # in the
        metric's unit: a loss of less is no loss workload: "digits-*"      # also variant, step and
        setting; all of them where nothing is said
      - {metric: float_islands, margin: 0.5, level: 0.99}

A gate passes on a measurement where the interval of the paired difference excludes a loss of the
margin (non-inferiority). A pattern passes over metrics without direction, unless the gate gives
one. That a gate must pass on every measurement it names makes an adjustment for their number
needless: a run that is worse by the margin somewhere passes with a probability of at most (1 -
level) / 2.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalsuite.contract import Direction
from evalsuite.document import DocumentError, plain, position, read_text, read_tree
from evalsuite.plugins import did_you_mean
from evalsuite.report.tables import SAMPLED
from evalsuite.studies.comparing import Line
from evalsuite.studies.pairing import Refused

PASSES, FAILS, UNMEASURED = "passes", "fails", "not measured"


class Gate(BaseModel):
    """One gate: patterns of the measurements that it speaks of, and the `margin` of a loss that
    they must exclude.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    metric: str = Field(min_length=1)
    margin: float = Field(gt=0, allow_inf_nan=False)
    workload: str = "*"
    variant: str = "*"
    step: str = "*"
    setting: str = "*"
    direction: Literal["higher", "lower", ""] = ""
    level: float = Field(default=0.95, gt=0.5, lt=1)

    def matches(self, line: Line) -> bool:
        """Whether it is of that measurement."""
        names = ("metric", "workload", "variant", "step", "setting")
        return all(fnmatchcase(getattr(line, name), getattr(self, name)) for name in names)

    @property
    def name(self) -> str:
        """Name what is asked and of which measurements, in words: "*accuracy of digits-*, margin
        0.01".
        """
        where = [
            getattr(self, field_name) for field_name in ("workload", "variant", "step", "setting")
        ]
        place = ", ".join(condition for condition in where if condition != "*")
        return f"{self.metric}{f' of {place}' if place else ''}, margin {self.margin:g}"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    gates: list[Gate] = Field(min_length=1)


@dataclass(frozen=True)
class Judgement:
    """The judgement of a gate on a measurement or, without one, that it found none."""

    gate: Gate
    line: Line | None
    outcome: str
    text: str


def read_gates(path: Path) -> list[Gate]:
    """The gates of a file.

    Raises:
        Refused: with file, line and column.
    """
    try:
        tree = read_tree(read_text(path))
    except DocumentError as error:
        raise Refused(
            f"{path}:{error.line}:{error.column} cannot read the gates: {error}"
        ) from error
    if not isinstance(tree, dict) or "gates" not in tree:
        raise Refused(
            f"{path}:1:1 gates are a list under the key `gates`, each with `metric` and `margin`"
        )
    # By way of JSON, for pydantic's places; `_problem` finds their lines in the tree.
    try:
        return _Document.model_validate_json(json.dumps(plain(tree))).gates
    except ValidationError as error:
        raise Refused(
            "\n".join(_problem(path, tree, dict(problem)) for problem in error.errors())
        ) from error


def _problem(path: Path, tree: Any, error: dict[str, Any]) -> str:
    place = tuple(error["loc"])
    line, column = position(tree, place)
    where = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in place
    ).removeprefix(".")
    if error["type"] == "extra_forbidden":
        return (
            f"{path}:{line}:{column} {where}: unknown"
            f" key{did_you_mean(str(place[-1]), Gate.model_fields)}"
        )
    if error["type"] == "missing":
        return f"{path}:{line}:{column} {where}: is missing; a gate has a metric and a margin"
    return f"{path}:{line}:{column} {where}: {error['msg'].lower()}, got {error['input']!r}"


def judge(gates: list[Gate], lines: list[Line]) -> list[Judgement]:
    """Every gate on every measurement that it names.

    Raises:
        Refused: a gate names a metric without direction, and says none itself.
    """
    judgements = []
    # A pattern passes over metrics without direction, but a gate that names nothing else is a
    # mistake.
    for gate in gates:
        every = [line for line in lines if gate.matches(line)]
        named = [
            line for line in every if gate.direction or line.direction != Direction.NEUTRAL.value
        ]
        if every and not named:
            which = every[0].metric
            raise Refused(
                f"the gate {gate.name!r}: {which} has no direction; give the gate `direction:"
                " higher` or lower"
            )
        judgements += [Judgement(gate, line, *_judged(gate, line)) for line in named]
        if not named:
            near = did_you_mean(gate.metric, {line.metric for line in lines})
            judgements.append(
                Judgement(
                    gate,
                    None,
                    UNMEASURED,
                    f"no measurement that both runs may have is named so{near}",
                )
            )
    return judgements


def _judged(gate: Gate, line: Line) -> tuple[str, str]:
    # 1. What no interval can tell: clocks, a number that is gone, and too few seeds.
    if line.clock:
        return (
            UNMEASURED,
            (
                "clocks of two runs met different neighbours: gate a ratio of two that were timed"
                " in turn"
            ),
        )
    if line.first and not line.second:
        return FAILS, f"it was measured, and is not any more: {line.reason}"
    interval = line.interval(gate.level)
    if interval is None:
        return UNMEASURED, line.reason or "no common seed"
    if interval.low is None or interval.high is None:
        return UNMEASURED, f"{line.text}: take two seeds or more"
    higher = (gate.direction or line.direction) == Direction.HIGHER.value
    # 2. A constant difference of a fraction of samples has no spread, but is no proof either.
    if interval.constant and interval.mean and line.unit == SAMPLED:
        lost = -interval.mean if higher else interval.mean
        why = (
            "the same difference of a fraction of samples in every seed says nothing of its spread"
        )
        return FAILS if lost >= gate.margin else UNMEASURED, f"{line.text}: {why}"
    # 3. Non-inferiority: the end of the interval on the side of loss is less than the margin.
    lost = -interval.low if higher else interval.high
    outcome, verb = (PASSES, "excludes") if lost < gate.margin else (FAILS, "does not exclude")
    return (
        outcome,
        f"{line.text}; the interval {verb} a loss of {gate.margin:g} (level {gate.level:g})",
    )


def exit_code(judgements: list[Judgement], lines: list[Line]) -> int:
    """1 where a gate fails, 3 where one, or without gates the whole comparison, has nothing that
    was measured.
    """
    if any(judgement.outcome == FAILS for judgement in judgements):
        return 1
    known = {judgement.gate for judgement in judgements if judgement.outcome != UNMEASURED}
    empty = any(judgement.gate not in known for judgement in judgements) or all(
        line.estimate is None for line in lines
    )
    return 3 if empty else 0

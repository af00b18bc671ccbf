"""Everything that a run built, as points of quality over cost: each variant in each form that
can be deployed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.contract import Direction
from evalsuite.report.clocks import clock_doubts
from evalsuite.report.numerals import grouped

if TYPE_CHECKING:
    from evalsuite.report.forms import Form
    from evalsuite.report.run import Run


@dataclass(frozen=True)
class Point:
    """A variant in one form: means over seeds, and over the workloads of the plane."""

    variant: str
    form: str
    quality: float
    cost: float


@dataclass(frozen=True)
class Plane:
    """Quality over cost.

    Args:
        points: at least two.
        workloads: over which both are means.
        unit: of the quality.
        way: 1 where more is better, -1 where less is.
        cost: what it is, in words.
        base: the form of the baseline whose cost is 1.
    """

    points: tuple[Point, ...]
    workloads: tuple[str, ...]
    unit: str
    way: int
    cost: str
    base: str

    @property
    def frontier(self) -> list[Point]:
        """The points that none is better and cheaper than, by cost."""
        best = -math.inf
        frontier = []
        for point in sorted(self.points, key=lambda point: (point.cost, -self.way * point.quality)):
            if self.way * point.quality > best:
                best = self.way * point.quality
                frontier.append(point)
        return frontier


FLOAT = "float"  # the form that others are timed beside
Place = tuple[str, int, str]  # The form, which of its steps, the variant.


@dataclass
class _Network:
    """The means over seeds that are known of a place on one workload; `faster` is how many times
    faster it is than the variant's network in float.
    """

    quality: float | None = None
    size: float | None = None
    time: float | None = None
    faster: float | None = None


def plane_of(run: Run) -> Plane | None:
    """The plane of a run; None where fewer than two networks have a quality and a cost.

    Workloads of one unit of quality stand together: those of which there are most. The cost is a
    latency only where all clocks were read without other work beside them, and else the size of the
    file.
    """
    # 1. Workloads whose quality has one unit and one direction: means over others would add what
    # cannot be added.
    forms = [form for section in run.sections.values() for form in section.forms]
    kinds = {
        workload: kind
        for workload in run.measured.workloads
        if (kind := _kind(run, forms, workload))
    }
    if not kinds:
        return None
    alike = grouped((kind, workload) for workload, kind in kinds.items())
    (unit, direction), workloads = max(alike.items(), key=lambda item: len(item[1]))
    networks = {workload: _networks(run, forms, workload) for workload in workloads}
    way = 1 if direction == Direction.HIGHER.value else -1
    # 2. Latency, where no clock of these is in doubt, and several forms were timed.
    clocks = [clock for form in forms for clock in (form.times, form.faster) if clock]
    rows = run.frame[run.frame["workload"].isin(workloads) & run.frame["metric"].isin(clocks)]
    if not clock_doubts(rows, ["workload"]):
        points, base = _points(networks, run.baseline, "time")
        if len({point.form for point in points}) > 1:
            return Plane(points, tuple(workloads), unit, way, "time of one sample", base)
    # 3. Else the size of the file, which no other work on the machine disturbs.
    points, base = _points(networks, run.baseline, "size")
    return (
        Plane(points, tuple(workloads), unit, way, "size of the file", base)
        if len(points) > 1
        else None
    )


def _kind(run: Run, forms: Sequence[Form], workload: str) -> tuple[str, str] | None:
    """The unit and the direction of a workload's quality."""
    rows = run.measured.frame
    rows = rows[(rows["workload"] == workload) & rows["value"].notna()]
    for form in forms:
        for metric in form.quality:
            rows_of_metric = rows[(rows["stage"] == form.stage) & (rows["metric"] == metric)]
            if len(rows_of_metric):
                return str(rows_of_metric["unit"].iloc[0]), str(rows_of_metric["direction"].iloc[0])
    return None


def _networks(run: Run, forms: Sequence[Form], workload: str) -> dict[Place, _Network]:
    networks: dict[Place, _Network] = {}
    # Steps of a stage whose forms have one name are told apart by their place: the n-th on one
    # workload is the n-th on another.
    for form in forms:
        seen: dict[str, int] = {}
        for step in run.measured.plain_steps(workload, form.stage):
            options = run.measured.options.get(step, {})
            try:
                name = form.name.format_map(options)
            except KeyError:
                continue
            place = seen[name] = seen.get(name, -1) + 1
            for variant in run.measured.variants:
                network = networks.setdefault((name, place, variant), _Network())
                _measure(network, run, form, (workload, variant, step))
    # What is timed beside its own network in float is as many times faster than that one's time.
    for (_, _, variant), network in networks.items():
        whole = networks.get((FLOAT, 0, variant))
        if network.faster and whole is not None and whole.time:
            network.time = whole.time / network.faster
    return networks


def _measure(network: _Network, run: Run, form: Form, place: tuple[str, str, str]) -> None:
    qualities = (run.measured.values(*place, metric) for metric in form.quality)
    network.quality = _mean(next(filter(None, qualities), {})) if form.quality else network.quality
    size = _mean(run.measured.values(*place, form.size)) if form.size else None
    if size is not None and form.shrunk:
        factor = _mean(run.measured.values(*place, form.shrunk))
        size = None if factor is None else size * factor
    network.size = network.size or size
    network.time = network.time or _clock(run, place, form.times, form.setting)
    network.faster = network.faster or _clock(run, place, form.faster, form.setting)


def _clock(
    run: Run, place: tuple[str, str, str], metric: str, setting: Mapping[str, str]
) -> float | None:
    """The mean reading of a clock at the first setting that has what is wanted of it."""
    if not metric:
        return None
    settings = run.measured.settings(*place, metric)
    wanted = (text for text, keys in settings.items() if setting.items() <= keys.items())
    return _mean(run.measured.values(*place, metric, next(wanted, "")))


def _mean(values: Mapping[int, float]) -> float | None:
    return math.fsum(values.values()) / len(values) if values else None


def _points(
    networks: Mapping[str, Mapping[Place, _Network]], baseline: str, cost: str
) -> tuple[tuple[Point, ...], str]:
    """The points of all places that every workload has, and the form of the baseline whose cost is
    1.

    A cost is the geometric mean over workloads of the cost there over the baseline's; that is taken
    in the first form whose cost every workload knows, so that one number is one thing.
    """
    shared = [
        place
        for place in next(iter(networks.values()))
        if all(place in places for places in networks.values())
    ]
    bases = [
        place
        for place in shared
        if place[2] == baseline and all(_cost(places[place], cost) for places in networks.values())
    ]
    if not bases:
        return (), ""
    points = [point for place in shared if (point := _point(place, bases[0], networks, cost))]
    return tuple(points), bases[0][0]


def _point(
    place: Place, base: Place, networks: Mapping[str, Mapping[Place, _Network]], cost: str
) -> Point | None:
    """The point of a place, or None where a workload lacks its quality or its cost."""
    qualities = [places[place].quality for places in networks.values()]
    ratios = [
        _cost(places[place], cost) / _cost(places[base], cost) for places in networks.values()
    ]
    known = [quality for quality in qualities if quality is not None]
    if len(known) < len(qualities) or min(ratios) <= 0:
        return None
    mean_cost = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return Point(place[2], place[0], math.fsum(known) / len(known), mean_cost)


def _cost(network: _Network, cost: str) -> float:
    """The size or the time of a network; 0 where it is not known."""
    value: float | None = getattr(network, cost)
    return value or 0.0

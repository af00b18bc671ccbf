"""Two runs as one: each network of a workload and variant is a workload, and the runs stand where
variants do.

So all that a report says of variants and a baseline it says of a run and the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.report.numerals import grouped
from evalsuite.report.record import Record
from evalsuite.report.run import Run
from evalsuite.results import OPTIONS

if TYPE_CHECKING:
    import pandas as pd

_MOMENT = "measured"  # When, among what is said of the machine.
_NETWORK = ["workload", "variant"]


class Refused(ValueError):
    """Runs that cannot be taken together; the text names the culprit, the value and the cure."""


@dataclass(frozen=True)
class Pair:
    """Two runs side by side: `content` compares the second with the first, which is its
    baseline.
    """

    first: str
    second: str
    content: Run
    warnings: tuple[str, ...]
    networks: Mapping[str, tuple[str, str]]
    """What the pair calls a workload -> the workload and the variant."""


def side_by_side(first: Path, second: Path) -> Pair:
    """Pair two runs by workload, variant, step, metric, setting and seed.

    Raises:
        DamagedResults: a folder has no results, or they cannot be read.
        Refused: the runs have no network in common.
    """
    one, other = (folder.resolve().name for folder in (first, second))
    labels = (one, other) if one != other else (f"{one} (first)", f"{other} (second)")
    # 1. The networks that both runs have.
    frames, records = zip(*(_read(folder) for folder in (first, second)), strict=True)
    every = [dict.fromkeys(frame[_NETWORK].itertuples(index=False, name=None)) for frame in frames]
    common = [network for network in every[0] if network in every[1]]
    if not common:
        listed_networks = " and ".join(
            f"{label} has {_listed(names)}" for label, names in zip(labels, every, strict=True)
        )
        raise Refused(
            f"{first} and {second} have no network in common: {listed_networks}; compare runs of"
            " the same recipe"
        )
    # 2. Name each network as a workload, and each run as a variant: then a run's report compares
    # the two.
    names = {network: ", ".join(network) for network in common}
    alone = [
        f"not compared, since only {label} has them: {_listed(lacking)}"
        for frame_of_run, rest, label in ((*every, labels[0]), (*reversed(every), labels[1]))
        if (lacking := [network for network in frame_of_run if network not in rest])
    ]
    parts = [_renamed(frame, names, label) for frame, label in zip(frames, labels, strict=True)]
    import pandas as pd

    joined = pd.concat(parts, ignore_index=True)
    record = _record(records, labels, names)
    question = f"Does {labels[1]} differ from {labels[0]}?"
    # 3. Beside it, what else differs: the reader must know that the code is not all that changed.
    return Pair(
        *labels,
        Run(joined, record, labels[0], question),
        (*alone, *_differing(records, parts, labels)),
        {name: network for network, name in names.items()},
    )


def _read(folder: Path) -> tuple[pd.DataFrame, Record]:
    run = Run.of(folder)
    if run.frame.empty:
        raise Refused(f"{folder / 'results.parquet'} has no rows: wait for the run's first jobs")
    return run.frame, run.record


def _renamed(frame: pd.DataFrame, names: Mapping[tuple[str, str], str], label: str) -> pd.DataFrame:
    networks = [
        names.get(itertuple, "") for itertuple in frame[_NETWORK].itertuples(index=False, name=None)
    ]
    import numpy as np

    renamed = frame.assign(workload=np.array(networks, dtype=object), variant=label)
    return renamed[renamed["workload"] != ""]


def _record(
    records: Sequence[Record], labels: Sequence[str], names: Mapping[tuple[str, str], str]
) -> Record:
    """Join what is recorded of both; where they differ, what each says."""
    first, second = records
    # The steps in the first run's order; data by the paired networks' names.
    steps = {str(step["name"]): step for record in (second, first) for step in record.steps}
    order = dict.fromkeys(str(step["name"]) for record in records for step in record.steps)
    data = {**second.table("data"), **first.table("data")}
    finished = [record.entries.get("finished") or "" for record in records]
    entries: dict[str, Any] = {
        "name": f"{labels[1]} against {labels[0]}",
        "baseline": labels[0],
        "variants": list(labels),
        "workloads": list(names.values()),
        "steps": [steps[name] for name in order],
        "data": {name: data[network[0]] for network, name in names.items() if network[0] in data},
        "versions": _both(records, "versions"),
        "machine": _both(records, "machine"),
        "started": " / ".join(record.text("started") for record in records),
        "finished": " / ".join(map(str, finished)) if all(finished) else "",
        "recipe_text": first.text("recipe_text"),
    }
    return Record(entries if any(record.entries for record in records) else {"baseline": labels[0]})


def _both(records: Sequence[Record], key: str) -> dict[str, str]:
    tables = [record.table(key) for record in records]
    names = dict.fromkeys(name for table in tables for name in table)
    values = {
        name: dict.fromkeys(str(table.get(name, "not recorded")) for table in tables)
        for name in names
    }
    return {name: " / ".join(values_of_both) for name, values_of_both in values.items()}


def _differing(
    records: Sequence[Record], frames: Sequence[pd.DataFrame], labels: Sequence[str]
) -> list[str]:
    """List what differs beside what is to be compared: machine, versions, data, options, seeds."""
    differences = []
    # 1. The machine and the versions, but for the moment.
    for key, what in (("machine", "the machine"), ("versions", "the versions")):
        one, other = (record.table(key) for record in records)
        names = [
            name
            for name in {**one, **other}
            if one.get(name) != other.get(name) and name != _MOMENT
        ]
        both = "; ".join(
            f"{name} {one.get(name, 'not recorded')} against {other.get(name, 'not recorded')}"
            for name in names
        )
        differences += [f"{what} differ{'s' * (key == 'machine')}: {both}"] if both else []
    # 2. The data, by their fingerprints; then options and seeds.
    for name in records[0].table("data").keys() & records[1].table("data").keys():
        earlier, now = (record.text("data", name, "fingerprint") for record in records)
        differences += (
            [f"the data of {name} differ: fingerprint {earlier[:12]} against {now[:12]}"]
            if earlier != now
            else []
        )
    return [
        *differences,
        *differing_options(frames, ["workload"]),
        *_differing_seeds(frames, labels),
    ]


def differing_options(
    frames: Sequence[pd.DataFrame], network: Sequence[str], columns: Sequence[str] = OPTIONS
) -> list[str]:
    """Describe the options that differ between two runs: those of each step, and of the variant and
    the workload of each network, as the rows carry them.

    Args:
        network: the columns that name one. The splits of its seeds are compared seed by seed.
        columns: which options.
    """
    differences = []
    # For each kind of options, the value at each place in either run.
    for column in columns:
        key = [*network, "step"] if column == "options" else [*network]
        # A split differs between seeds by design, so it alone is compared seed by seed.
        for names, by_seed in ((key, False), ([*key, "seed"], True)):
            one, other = (
                {
                    tuple(map(str, place)): value
                    for *place, value in frame.drop_duplicates(names)[[*names, column]].itertuples(
                        index=False
                    )
                }
                for frame in frames
            )
            for place in one.keys() & other.keys():
                before, now = one[place], other[place]
                differ = sorted(
                    name
                    for name in before | now
                    if before.get(name) != now.get(name) and (name == "split") is by_seed
                )
                changes = ", ".join(
                    f"{name} {before.get(name)!r} against {now.get(name)!r}" for name in differ
                )
                of = "/".join(place)
                where = (
                    place[len(network)]
                    if column == "options"
                    else f"{column.removesuffix('_options')} of {of}"
                )
                differences += [((column, changes), where)] * bool(changes)
    # One sentence for each difference, which may be found at many places.
    return sorted(
        f"the options of {min(where)}{f' and {more} more' if (more := len({*where}) - 1) else ''}"
        f" differ: {sentence}"
        for (_, sentence), where in grouped(differences).items()
    )


def _differing_seeds(frames: Sequence[pd.DataFrame], labels: Sequence[str]) -> list[str]:
    one, other = ({int(seed) for seed in frame["seed"].unique()} for frame in frames)
    return [
        f"only {label} has the seed{'s' * (len(alone) > 1)} {', '.join(map(str, sorted(alone)))}"
        for label, alone in zip(labels, (one - other, other - one), strict=True)
        if alone
    ]


def _listed(networks: Iterable[tuple[str, str]]) -> str:
    return ", ".join("/".join(network) for network in networks)

"""Several runs as one folder: of the same recipe on several machines, or with other seeds,
workloads or variants.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.document import DocumentError, plain, read_tree, written
from evalsuite.report.numerals import sentence
from evalsuite.results import Status, as_table, read_results, write_table
from evalsuite.run.record import (
    RunRecord,
    commit_of,
    merged_conditions,
    read_record,
    source_of,
    write_record,
)
from evalsuite.studies.pairing import Refused, differing_options
from evalsuite.sums import digest_of, write_sums

if TYPE_CHECKING:
    import pandas as pd

_LISTS = ("workloads", "variants", "seeds", "steps")
_JOB = ["workload", "variant", "seed", "step"]
_MEASURED = ["metric", "setting", "sample", "value", "status", "verdict"]


def merge(out: Path, folders: Sequence[Path]) -> list[str]:
    """Write results.parquet, run.json and the artefacts of several runs into `out`, which is made.

    A job that several runs have is taken from the first of them, with its artefacts and its log, if
    all of it but clock readings is the same.

    Returns:
        What differs between them and does no harm to the rows: recipes, but for their seeds,
            machines and versions.

    Raises:
        DamagedResults: a folder has no results, or they cannot be read.
        Refused: `out` has results, the runs are not of one kind, or a job has two outcomes.
    """
    import pandas as pd

    if len(folders) < 2:
        raise Refused(f"merge takes two runs or more, got {len(folders)}")
    if (out / "results.parquet").exists():
        raise Refused(f"{out}: has results already; name a new folder")
    # 1. Read all, and refuse runs in which one name means two things.
    records = [_record(folder) for folder in folders]
    frames = [read_results(folder).drop(columns="run") for folder in folders]
    _check_alike(folders, records, frames)
    # 2. Of each job one run's rows, with that run's files.
    owners = _owners(folders, frames)
    united = pd.concat([rows for _, rows in owners.values()], ignore_index=True)
    files = [file for job, (folder, _) in owners.items() for file in _files_of(job, folder)]
    out.mkdir(parents=True, exist_ok=True)
    for folder, file in files:
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / file, out / file, follow_symlinks=False)
    # 3. Write rows, record and digests as a run does, so that the folder reads as a run's.
    write_table(as_table(united), out / "results.parquet")
    record = _merged_record(folders, records, united)
    write_record(replace(record, results=digest_of(out / "results.parquet")), out)
    write_sums(out)
    return _differing(records)


def _files_of(job: tuple[Any, ...], folder: Path) -> Iterator[tuple[Path, Path]]:
    """The run's folder, and each file in it that is of a job: its artefacts and its log travel with
    its rows.

    Raises:
        Refused: the job's name leads elsewhere, or a file is a link or no file: it could be any
            file of this machine.
    """
    names = [str(name) for name in job]
    if any(name in ("", ".", "..") or "/" in name or "\\" in name for name in names):
        raise Refused(f"{folder}: {'/'.join(names)!r} is no name of a job that a run gives")
    for place in (Path("artefacts", *names), Path("logs", *names[:-1], f"{names[-1]}.log")):
        parents = [parent for parent in place.parents if parent != Path()]
        inside = sorted((folder / place).rglob("*")) if (folder / place).is_dir() else []
        for path in [*(folder / parent for parent in parents), folder / place, *inside]:
            if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
                raise Refused(
                    f"{path}: is a link or no file, which no run leaves there; take it away"
                )
        files = inside if (folder / place).is_dir() else [folder / place]
        yield from ((folder, path.relative_to(folder)) for path in files if path.is_file())


def _record(folder: Path) -> RunRecord:
    record = read_record(folder)
    if record is None:
        raise Refused(
            f"{folder / 'run.json'}: is missing, or no record of a run; a run writes it when it"
            " begins"
        )
    return record


def _check_alike(
    folders: Sequence[Path], records: Sequence[RunRecord], frames: Sequence[pd.DataFrame]
) -> None:
    """Refuse runs in which one name means different things: baseline, data, step and options,
    whatever workload they are of.
    """
    # Each pair: a name that only one of two has cannot differ.
    runs = zip(folders, records, frames, strict=True)
    for (first, before, measured), (folder, record, frame) in combinations(runs, 2):
        both, pair = f"{first} and {folder}", [measured, frame]
        if record.baseline != before.baseline:
            raise Refused(f"{both} have other baselines, {before.baseline} and {record.baseline}")
        for name in record.data.keys() & before.data.keys():
            if record.data[name].get("fingerprint") != before.data[name].get("fingerprint"):
                raise Refused(
                    f"{both}: the data of {name} differ; give the workloads different names"
                )
        # A step's name means its stage and the step that it follows; its options are compared
        # below, as the rows carry them.
        one, other = (
            {step["name"]: (step["stage"], step["after"]) for step in r.steps}
            for r in (before, record)
        )
        for name in one.keys() & other.keys():
            if one[name] != other[name]:
                stages = f"{one[name][0]} and {other[name][0]}"
                raise Refused(
                    f"{both}: the step {name} is {stages}, or follows other steps; give them"
                    " different names"
                )
        steps = [frame[frame["step"].isin(one.keys() | other.keys())] for frame in pair]
        differing = [
            *differing_options(steps, [], ["options"]),
            *differing_options(pair, ["variant"], ["variant_options"]),
            *differing_options(pair, ["workload", "variant"], ["workload_options"]),
        ]
        if differing:
            raise Refused(f"{both}: {'; '.join(differing)}; give them different names")


def _owners(
    folders: Sequence[Path], frames: Sequence[pd.DataFrame]
) -> dict[tuple[Any, ...], tuple[Path, pd.DataFrame]]:
    """Job -> the run that it is taken from, the first that has it, and its rows there.

    Raises:
        Refused: another run that has it has other rows of it.
    """
    owner: dict[tuple[Any, ...], tuple[Path, pd.DataFrame]] = {}
    for folder, frame in zip(folders, frames, strict=True):
        for job, rows in frame.groupby(_JOB, sort=False):
            first, before = owner.setdefault(job, (folder, rows))
            if before is rows:
                continue
            # What the same job gives again: all but what clocks say.
            one, other = (
                frame.loc[~frame["timing"], _MEASURED].reset_index(drop=True)
                for frame in (before, rows)
            )
            if not other.equals(one):
                where = "/".join(map(str, job))
                raise Refused(
                    f"{first} and {folder} have different outcomes of {where}: take it out of one"
                )
    return owner


def _merged_record(
    folders: Sequence[Path], records: Sequence[RunRecord], united: pd.DataFrame
) -> RunRecord:
    # The first record, with all that differs between the runs united; it has no digest, because
    # it is no recipe's run.
    jobs = united.drop_duplicates(_JOB)
    counts = Counter(
        Status.OK.value if metric else status
        for metric, status in zip(jobs["metric"], jobs["status"], strict=True)
    )
    finished = [record.finished for record in records]
    name = "-and-".join(dict.fromkeys(record.name for record in records))
    return replace(
        records[0],
        name=name,
        digest="",
        workloads=list(dict.fromkeys(name for record in records for name in record.workloads)),
        variants=list(dict.fromkeys(name for record in records for name in record.variants)),
        seeds=sorted({seed for record in records for seed in record.seeds}),
        steps=list({step["name"]: step for record in records for step in record.steps}.values()),
        recipe_text=_one_recipe(name, folders, records),
        data={name: value for record in records for name, value in record.data.items()},
        variants_help={
            name: value for record in records for name, value in record.variants_help.items()
        },
        versions={
            name: str(value)
            for name, value in merged_conditions([record.versions for record in records]).items()
        },
        machine=merged_conditions([record.machine for record in records]),
        command=f"evalsuite merge of {', '.join(folder.resolve().name for folder in folders)}",
        started=min(record.started for record in records),
        finished=max(finished) if all(finished) else "",
        jobs={"total": len(jobs), **counts},
        seconds=round(sum(record.seconds for record in records), 1),
        peak_mib=max(record.peak_mib for record in records),
        source=source_of(
            filter(
                None, [*united["source"]] if any(united["source"]) else [r.source for r in records]
            )
        ),
        **commit_of(
            filter(None, [*united["commit"]] if any(united["commit"]) else _commits(records))
        ),
    )


def _commits(records: Sequence[RunRecord]) -> list[str]:
    """As rows name them, of records whose rows name none."""
    named = [(name, record.dirty) for record in records for name in record.commit.split(", ")]
    return [f"{name}-dirty" if dirty and name else name for name, dirty in named]


def _one_recipe(name: str, folders: Sequence[Path], records: Sequence[RunRecord]) -> str:
    """The text of a recipe that plans the jobs of all, and more where jobs are not all of a
    product's.

    Where they differ in more than lists, their texts in a row.
    """
    texts = [record.recipe_text for record in records]
    # Lists are united in the first recipe's tree, whose comments stay. Where something else
    # differs, no one recipe plans all the jobs.
    try:
        first, *others = (read_tree(text) for text in texts)
        for other in others:
            _add(first, other)
        if any(record.name != name for record in records):
            first["name"] = name
        text = written(first)
        if plain(read_tree(text)) != plain(first):
            raise Refused("the recipes use one anchor for two things")
    except (DocumentError, Refused):
        return "\n".join(
            f"# {folder.resolve().name}\n{text}"
            for folder, text in zip(folders, texts, strict=True)
        )
    return texts[0] if plain(read_tree(texts[0])) == plain(first) else text


def _add(first: Any, other: Any) -> None:
    """Add to the lists of a recipe what another has besides.

    Raises:
        Refused: they differ in more than that.
    """
    if not (isinstance(first, dict) and isinstance(other, dict)):
        raise Refused("a recipe is missing")
    if any(
        first.get(name) != other.get(name)
        for name in (first.keys() | other.keys()) - {"name", *_LISTS}
    ):
        raise Refused("the recipes differ in more than their lists")
    for name in _LISTS:
        known = {_called(entry): entry for entry in first[name]}
        for entry in other[name]:
            if known.setdefault(_called(entry), entry) != entry:
                raise Refused(f"{name} of one name differ")
        first[name].extend(list(known.values())[len(first[name]) :])
    first["seeds"].sort()


def _called(entry: Any) -> Any:
    """The name that a recipe's workload, variant or step goes by; of a seed, the seed."""
    return entry.get("name", entry.get("use")) if isinstance(entry, Mapping) else entry


def _asked(record: RunRecord) -> dict[str, Any]:
    """Read what its recipe asks for; seeds are what merge is for."""
    try:
        tree = plain(read_tree(record.recipe_text))
    except DocumentError:  # of several recipes in a row
        tree = None
    named = {
        "workloads": record.workloads,
        "variants": record.variants,
        "steps": [step["name"] for step in record.steps],
    }
    rest = (
        {name: value for name, value in tree.items() if name not in _LISTS}
        if isinstance(tree, dict)
        else {}
    )
    return {
        **rest,
        **{name: f"[{', '.join(seeds_of_name)}]" for name, seeds_of_name in named.items()},
    }


def _differing(records: Sequence[RunRecord]) -> list[str]:
    compared: dict[str, list[Any]] = {
        "recipe": [_asked(record) for record in records],
        "machine": [record.machine for record in records],
        "versions": [record.versions for record in records],
    }
    differences = []
    for what, tables in compared.items():
        names = dict.fromkeys(name for table in tables for name in table if name != "measured")
        values = {name: dict.fromkeys(str(table.get(name)) for table in tables) for name in names}
        sentences = (
            f"{name} {', '.join(several)}" for name, several in values.items() if len(several) > 1
        )
        differences.append(sentence(f"{what}: ", sentences, "; ", end=""))
    return [*filter(None, differences)]

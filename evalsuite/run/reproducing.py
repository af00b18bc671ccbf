"""Which jobs of a recorded run today's code would run again as it did: by the source digest of each job's cache key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evalsuite.plan import code_of, jobs_of
from evalsuite.recipe import RecipeError, parse_recipe
from evalsuite.run.record import FILE, read_record
from evalsuite.run.results import RESULTS
from evalsuite.sources import digest


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run's rows stand to today's code.

    Args:
        folder: of the run.
        same: jobs whose rows name the source digest that today's code has.
        other: those whose rows name another.
        unrecorded: those whose rows name none, or which have none.
        commits: that the rows name.
        lack: why nothing can be told; empty where it can.
    """

    folder: Path
    same: int = 0
    other: int = 0
    unrecorded: int = 0
    commits: tuple[str, ...] = ()
    lack: str = ""

    @property
    def reproduced(self) -> bool:
        """Whether every job would be run by the same source; data, libraries and processor are further conditions."""
        return self.same > 0 and not (self.other or self.unrecorded)

    @property
    def text(self) -> str:
        """How many jobs would be run by the same source, in words."""
        if self.lack:
            return self.lack
        total = self.same + self.other + self.unrecorded
        told = [f"{self.same} of {total} jobs by today's source"]
        told += [f"{self.other} by another"] if self.other else []
        told += [f"{self.unrecorded} without a recorded source"] if self.unrecorded else []
        return "; ".join([", ".join(told), *([f"measured at {', '.join(self.commits)}"] if self.commits else [])])


def standings(folder: Path) -> Iterator[Standing]:
    """That of the run in a folder, or of each run in the folders inside it, by name."""
    if (folder / FILE).is_file():
        yield standing(folder)
        return
    inside = sorted(each.parent for each in folder.glob(f"*/{FILE}"))
    if not inside:
        yield Standing(folder, lack=f"no {FILE} here, nor in a folder of it")
    yield from map(standing, inside)


def standing(folder: Path) -> Standing:
    """Compare each job of the recorded recipe with its rows. Nothing is run, and no data are read."""
    import pyarrow.parquet as pq

    record = read_record(folder)
    if record is None:
        return Standing(folder, lack=f"{FILE} is damaged")
    columns = ["workload", "variant", "seed", "step", "commit", "source"]
    try:
        jobs = [job for job in jobs_of(parse_recipe(record.recipe_text, str(folder / FILE))) if job.shown]
        rows = pq.read_table(folder / RESULTS, columns=columns).group_by(columns).aggregate([]).to_pylist()
    except (RecipeError, OSError, ValueError) as error:
        return Standing(folder, lack=f"today's code does not read it: {str(error).splitlines()[0]}")
    found = {f"{row['workload']}/{row['variant']}/{row['seed']}/{row['step']}": row for row in rows}
    told = [(found.get(job.id, {}).get("source") or "", digest(*code_of(job))) for job in jobs]
    return Standing(
        folder,
        sum(then == now for then, now in told),
        sum(bool(then) and then != now for then, now in told),
        sum(not then for then, _ in told),
        tuple(sorted({str(row["commit"]) for row in rows if row["commit"]})),
    )

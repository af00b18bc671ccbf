"""What a run costs beside its stages: planning, driving, starting jobs, a second worker, limits, and a large report.

`python -m benchmarks.runs [PART ...]` prints these parts alone. Where a line says "of the processor", other work on the
machine matters little; where it does not, the machine should be quiet.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.driver import SAMPLE, again, driving, planning
from benchmarks.processes import interrupting, limiting, starting, working

Figure = tuple[str, float]
_REPORT = """\
import resource, sys, time
from pathlib import Path
from evalsuite.report import write_report
begun = time.perf_counter()
files = write_report(Path(sys.argv[1]))
size = next(each for each in files if each.suffix == ".html").stat().st_size
print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, size / 1e6)
"""


def write_large(folder: Path, rows: int) -> int:
    """A run of at least so many rows, which is the sample's with more seeds; how many rows it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = pq.read_table(SAMPLE / "results.parquet")
    place = whole.schema.get_field_index("seed")
    seeds = len(set(whole["seed"].to_pylist()))
    parts: list[pa.Table] = []
    while sum(len(each) for each in parts) < rows:
        shifted = pa.compute.add(whole["seed"], len(parts) * seeds).cast(whole.schema.field(place).type)
        parts.append(whole.set_column(place, whole.schema.field(place), shifted))
    pq.write_table(pa.concat_tables(parts), folder / "results.parquet")
    record = json.loads((SAMPLE / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "seeds": list(range(seeds * len(parts)))}))
    return sum(len(each) for each in parts)


def reporting(rows: int = 10**6) -> Iterator[Figure]:
    """A report of a million rows."""
    with tempfile.TemporaryDirectory() as folder:
        count = write_large(Path(folder), rows)
        command = [sys.executable, "-c", _REPORT, folder]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    seconds, gib, megabytes = map(float, told)
    yield f"s to report {count:,} rows", seconds
    yield f"GiB at most to report {count:,} rows", gib
    yield f"MB has the page of {count:,} rows", megabytes


PARTS: tuple[Callable[[], Iterator[Figure]], ...] = (
    planning,
    driving,
    again,
    starting,
    working,
    limiting,
    interrupting,
    reporting,
)


def runs() -> Iterator[Figure]:
    """All of it."""
    for part in PARTS:
        yield from part()


if __name__ == "__main__":
    for each in PARTS:
        if each.__name__ in sys.argv[1:] or len(sys.argv) == 1:
            for what, value in each():
                print(f"{value:8.2f}  {what}", flush=True)

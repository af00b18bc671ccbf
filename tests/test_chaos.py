"""A run whose processes are killed says the same; `python -m benchmarks.chaos` does many such
rounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import chaos
from benchmarks.chaos import MARK, Round, rounds, told

SAMPLE = Path(__file__).parents[1] / "reports" / "sample"


@pytest.mark.slow
def test_a_round_of_chaos_changes_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "RECIPE", chaos.RECIPE.replace("[gelu, gelu-swap]", "[gelu]"))
    assert rounds(tmp_path, "local", range(1)) == 0


@pytest.mark.parametrize(
    ("part", "said"), [("lost", "rows, "), ("doubled", "1 rows are doubled"), ("whole", "")]
)
def test_rows_that_are_lost_or_doubled_and_processes_that_stay_are_found(
    tmp_path: Path, part: str, said: str
) -> None:
    whole = pq.read_table(SAMPLE / "results.parquet").filter(pa.compute.field("step") == "train")
    pq.write_table(whole, tmp_path / "results.parquet")
    expected = told(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    row = int(expected.index[~expected["timing"]][0])
    found = {
        "lost": whole.slice(len(whole) // 2),
        "doubled": pa.concat_tables([whole, whole.slice(row, 1)]),
    }
    pq.write_table(found.get(part, whole), out / "results.parquet")
    wait = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(wait, env={**os.environ, MARK: part}) as left:
        round_ = Round(tmp_path, "local", {}, part)
        round_.check(expected, 0.0)
        assert left.wait(30) < 0
    assert round_.faults[0].startswith("left behind: ")
    assert [said in each for each in round_.faults[1:]] == ([True] if said else [])

"""The commands for several runs: compare, query, merge and index."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from evalsuite.terminal import say, write


@contextmanager
def _refusing() -> Iterator[None]:
    """Tell what is wrong with the runs in one message, with exit code 2."""
    from evalsuite.plugins import PluginError
    from evalsuite.results import DamagedResults
    from evalsuite.run.console import stop
    from evalsuite.studies.pairing import Refused

    try:
        yield
    except (Refused, DamagedResults, PluginError) as error:
        stop(error)
    except OSError as error:
        stop(
            f"{error.filename or 'a file'}: {error.strerror or error}; make it usable, or choose"
            " another with --out"
        )


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="The folder of the run to compare with.")
    ],
    second: Annotated[
        Path, typer.Argument(metavar="B", help="The folder of the run that is compared.")
    ],
    gate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="gates.yaml: what B must not lose.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the files go [runs/B-against-A].")
    ] = None,
) -> None:
    """Compare run B with run A, network by network and seed by seed; exit code 1 if a gate fails.

    Writes report.html, report.md, tables, compare.json and junit.xml. Exit code 3: a gate, or
    without gates the whole comparison, found nothing that was measured in both runs. Gates are
    patterns of metrics with a margin each:

        gates: [{metric: "*accuracy", margin: 0.01}]
    """
    from evalsuite.studies.comparing import lines_of
    from evalsuite.studies.comparison_files import write_comparison
    from evalsuite.studies.gates import exit_code, judge, read_gates
    from evalsuite.studies.pairing import side_by_side

    with _refusing():
        gates = read_gates(gate) if gate else []
        pair = side_by_side(first, second)
        lines = lines_of(pair)
        judgements = judge(gates, lines)
        folder = out or Path("runs") / f"{second.resolve().name}-against-{first.resolve().name}"
        page = write_comparison(pair, lines, judgements, (first, second), folder)
    for warning in pair.warnings:
        say(f"evalsuite: warning: {warning}", file=sys.stderr)
    for line in lines:
        if line.reading in ("better", "worse", "changed"):
            say(f"{line.reading:<8} {line.name}: {line.text}")
    counts = Counter(line.reading for line in lines)
    counted = ", ".join(f"{count} {reading}" for reading, count in sorted(counts.items()))
    say(
        f"{pair.second} against {pair.first}: {len(lines)} measurements: {counted or 'none'} (Holm"
        " over all, 5 %)"
    )
    for judgement in judgements:
        say(
            f"{judgement.outcome:<12} {judgement.gate.name}:"
            f" {judgement.line.name if judgement.line else '(none)'}:"
            f" {judgement.text}"
        )
    say(page)
    if code := exit_code(judgements, lines):
        raise typer.Exit(code)


def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="Of the table `rows`: SELECT ... FROM rows ...")
    ],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Runs [every one in runs/].")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text, csv or json.")
    ] = "text",
) -> None:
    """Ask the rows of one or many runs by SQL (DuckDB; pip install 'evalsuite[sql]').

    The table is `rows`, with the folder's name as `run`; options are structs, as options.sparsity.
    """
    from evalsuite.run.console import stop
    from evalsuite.studies.querying import FORMATS, answer, runs_below

    if form not in FORMATS:
        stop(f"--format is one of {', '.join(FORMATS)}; got {form!r}")
    with _refusing():
        text = answer(sql, runs or runs_below(Path("runs")), form)
    if form == "text":
        say(text, end="")
    else:
        write(text)


def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Two or more runs' folders.")
    ],
) -> None:
    """Unite runs of one recipe, as of several machines or other seeds, in a folder that `report`
    takes.

    Where recipes, machines or versions differ, that is said. A job that several runs have is taken
    from the first; where its numbers differ, or one name means two things, the runs are refused.
    """
    from evalsuite.studies.merging import merge as unite

    with _refusing():
        differing = unite(out, runs)
    for difference in differing:
        say(f"evalsuite: warning: differs between the runs: {difference}", file=sys.stderr)
    say(f"{out / 'results.parquet'}\nNext: evalsuite report {out}")


def index(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with runs in it, at any depth.")
    ],
) -> None:
    """Write index.html into a folder: what every run in it answers, with links to their reports."""
    from evalsuite.studies.index import write_index
    from evalsuite.studies.querying import runs_below

    with _refusing():
        say(write_index(folder, runs_below(folder)))

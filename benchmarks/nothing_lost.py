"""`python -m benchmarks.nothing_lost BEFORE AFTER`: what two checkouts say differently.

Both are asked by the command line alone, as a user would, each with its own source and a cache of
its own. What they say becomes facts, a name and a text for each: an option's help, a row of the
quickstart that is no timing, a file of an integer-only network, a line of a committed study's
tables, a verdict, a test of a document. Each fact that only one of them has, or that differs, is a
line of the output, and the exit code is 1 where there is any that no `--named` pattern names. A
change that means to change nothing is run through this before and after.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

Facts = dict[str, str]

# Studies of other kinds of networks each: their tables hold every kind of row.
STUDIES = ("cifar10", "language-downstream", "quantize", "prune", "smt")
# What tells one row from the others.
ROW = ["workload", "variant", "seed", "step", "stage", "metric", "setting", "sample"]
SAID = ["value", "status", "verdict", "reason"]
INTEGER_FILES = ("quantized.onnx", "integer.onnx")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with the source, and a scratch folder for what its commands write."""

    root: Path
    scratch: Path

    def __post_init__(self) -> None:
        if not (self.root / "evalsuite").is_dir():
            raise SystemExit(f"{self.root} is no checkout: it has no folder evalsuite")

    def python(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run this checkout's source in a process of its own, with its own cache."""
        libraries = [str(path) for path in sorted((self.root / "libs").glob("*"))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.root), *libraries]),
            "EVALSUITE_CACHE": str(self.scratch / "cache"),
            "COLUMNS": "100",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )

    def evalsuite(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Call this checkout's command."""
        return self.python("-c", "from evalsuite.cli import main; main()", *arguments)


def _by_line(name: str, text: str) -> Facts:
    """A fact for each line; lines that are alike are counted apart."""
    facts: Facts = {}
    for line in text.splitlines():
        key = f"{name}: {line.strip()}"
        facts[key] = str(int(facts.get(key, "0")) + 1)
    return facts


def command_names(help_text: str) -> list[str]:
    """The commands that the help lists, under whichever headings.

    >>> command_names("Options:\\n  -h  Help.\\n\\nDo:\\n  run  Run.\\n       Again.\\n  tune  Do.")
    ['run', 'tune']
    """
    names, listing = [], False
    for line in help_text.splitlines():
        if line and not line.startswith(" "):
            listing = line.endswith(":") and line not in ("Options:", "Arguments:")
        elif listing and line.startswith("  ") and line[2:3].strip():
            names.append(line.split()[0])
    return names


def help_facts(checkout: Checkout) -> Facts:
    """Every line of every command's help."""
    general = checkout.evalsuite("--help").stdout
    facts = _by_line("help", general)
    for name in command_names(general):
        facts |= _by_line(f"help of {name}", checkout.evalsuite(name, "--help").stdout)
    return facts


def row_facts(rows: pd.DataFrame) -> Facts:
    """Each row's value, state, verdict and reason; rows that a clock has a part in are left out."""
    steady = rows[~rows["timing"]]
    names = steady[ROW].map(str).agg("/".join, axis="columns")
    texts = steady[SAID].map(str).agg(" | ".join, axis="columns")
    return dict(zip("row " + names, texts, strict=True))


def quickstart_facts(checkout: Checkout) -> Facts:
    """The rows of the quickstart with one seed, and the digests of its integer networks' files."""
    out = checkout.scratch / "quickstart"
    done = checkout.evalsuite(
        "run", "pipelines/recipes/quickstart.yaml", "--seeds", "0", "--out", out
    )
    if not (out / "results.parquet").exists():
        return {"quickstart": f"no rows: {done.stderr[-2000:]}"}
    facts = row_facts(pd.read_parquet(out / "results.parquet"))
    for name in INTEGER_FILES:
        for path in sorted(out.rglob(name)):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            facts[f"file {path.relative_to(out)}"] = digest
    return facts


def study_facts(checkout: Checkout) -> Facts:
    """The tables of committed studies, rendered anew from their rows."""
    facts: Facts = {}
    for study in STUDIES:
        folder = checkout.scratch / study
        shutil.copytree(checkout.root / "reports" / study, folder)
        shutil.rmtree(folder / "tables", ignore_errors=True)
        done = checkout.evalsuite("report", folder)
        facts[f"study {study}"] = f"exit code {done.returncode}"
        for path in sorted(folder.rglob("*.csv")):
            facts |= _by_line(f"study {study}, {path.relative_to(folder)}", path.read_text())
    return facts


def verdict_facts(checkout: Checkout, instances: Path) -> Facts:
    """The first word for each line of a list of VNN-COMP instances; `timeout` and `unknown` hang
    on the clock.
    """
    out = checkout.scratch / "verdicts.csv"
    done = checkout.evalsuite("verify", "--instances", instances, "--out", out)
    if not out.exists():
        return {f"verdicts of {instances}": done.stderr[-2000:]}
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {f"verdict of {row['onnx']}, {row['vnnlib']}": row["result"] for row in rows}


def document_facts(checkout: Checkout) -> Facts:
    """Whether each documented snippet does what its document says."""
    tests = (
        "-m",
        "pytest",
        "tests/test_documents.py",
        "-m",
        "slow or not slow",
        "-rA",
        "-q",
        "-p",
        "no:cacheprovider",
    )
    lines = checkout.python(*tests).stdout.splitlines()
    outcomes = [
        line.split(maxsplit=1)
        for line in lines
        if line.startswith(("PASSED ", "FAILED ", "ERROR "))
    ]
    return {f"document {test.split(' - ')[0]}": outcome for outcome, test in outcomes}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """A line for each fact that is not the same.

    >>> list(differences({"a": "1", "b": "2"}, {"b": "3", "c": "4"}))
    ['lost: a (1)', 'differs: b: 2 -> 3', 'new: c (4)']
    """
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"lost: {name} ({before[name]})"
        elif name not in before:
            yield f"new: {name} ({after[name]})"
        elif before[name] != after[name]:
            yield f"differs: {name}: {before[name]} -> {after[name]}"


def main() -> int:
    """Ask both checkouts, print what differs, and give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nothing_lost")
    parser.add_argument("before", type=Path, help="a checkout, as `git worktree add` makes one")
    parser.add_argument("after", type=Path, help="another")
    parser.add_argument(
        "--instances", type=Path, help="instances.csv of VNN-COMP, for the verdicts"
    )
    parser.add_argument(
        "--only",
        action="append",
        help="help, quickstart, studies, verdicts or documents; repeatable",
    )
    parser.add_argument(
        "--named", action="append", default=[], help="a pattern of lines that CHANGELOG explains"
    )
    options = parser.parse_args()
    sources: dict[str, Callable[[Checkout], Facts]] = {
        "help": help_facts,
        "studies": study_facts,
        "documents": document_facts,
        "quickstart": quickstart_facts,
    }
    if options.instances:
        instances = options.instances.resolve()
        sources["verdicts"] = lambda checkout: verdict_facts(checkout, instances)
    unknown = set(options.only or ()) - sources.keys()
    if unknown:
        parser.error(f"--only takes {', '.join(sources)}, not {', '.join(sorted(unknown))}")
    unnamed = 0
    for name in options.only or sources:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            before = sources[name](Checkout(options.before.resolve(), Path(first)))
            after = sources[name](Checkout(options.after.resolve(), Path(second)))
        lines = list(differences(before, after))
        is_named = [
            any(fnmatch.fnmatchcase(line, pattern) for pattern in options.named) for line in lines
        ]
        print(
            f"# {name}: {len(before)} facts before, {len(after)} after, {len(lines)} differ",
            flush=True,
        )
        for line, named in zip(lines, is_named, strict=True):
            print(f"{'named ' if named else ''}{line}")
        unnamed += is_named.count(False)
    return int(unnamed > 0)


if __name__ == "__main__":
    sys.exit(main())

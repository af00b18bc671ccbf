"""Progress on stderr: a live bar on a terminal, plain lines elsewhere, or JSON lines for programs."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from typing import Protocol

from evalsuite.results import Status
from evalsuite.run.journal import Entry

STYLES = ("auto", "rich", "plain", "json", "none")


class Progress(Protocol):
    """Told of the run's beginning and of each job's end."""

    def begin(self, total: int) -> None:
        """The run begins: the folder is ours."""
        ...

    def update(self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int) -> None:
        """`left` counts the jobs still to do by step."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class Estimate:
    """Seconds to go: for each step the mean of its finished jobs, or of all where it has none yet."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, entry: Entry) -> None:
        """Learn from a job that ran."""
        if not entry.cached and entry.status is not Status.SKIPPED:
            self._seconds[entry.job.rsplit("/", 1)[-1]].append(entry.seconds)

    def seconds(self, left: dict[str, int], workers: int) -> float | None:
        """None as long as nothing ran."""
        if not self._seconds:
            return None
        usual = statistics.mean(value for values in self._seconds.values() for value in values)
        total = sum(
            count * (statistics.mean(self._seconds[step]) if step in self._seconds else usual)
            for step, count in left.items()
        )
        return total / workers


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _outcome(entry: Entry) -> str:
    if entry.cached:
        return "cached"
    return entry.status.value if entry.status is Status.OK else f"{entry.status.value}: {entry.reason}"


class Silent:
    """Says nothing."""

    def begin(self, total: int) -> None:
        """See `Progress`."""

    def update(self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int) -> None:
        """See `Progress`."""

    def close(self) -> None:
        """See `Progress`."""


class Plain:
    """A line per job that ran."""

    def __init__(self) -> None:
        self._estimate = Estimate()

    def begin(self, total: int) -> None:
        """See `Progress`."""

    def update(self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int) -> None:
        """See `Progress`."""
        self._estimate.add(entry)
        if entry.cached:
            return
        eta = _clock(self._estimate.seconds(left, workers))
        print(
            f"[{done}/{total}] {entry.job} {entry.seconds:.1f} s {_outcome(entry)} (ETA {eta})",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        """See `Progress`."""


class Json:
    """A JSON object per job."""

    def __init__(self) -> None:
        self._estimate = Estimate()

    def begin(self, total: int) -> None:
        """See `Progress`."""

    def update(self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int) -> None:
        """See `Progress`."""
        self._estimate.add(entry)
        event = {
            "job": entry.job, "status": entry.status.value, "cached": entry.cached, "seconds": entry.seconds,
            "reason": entry.reason, "done": done, "total": total, "eta_s": self._estimate.seconds(left, workers),
        }  # fmt: skip
        print(json.dumps(event), file=sys.stderr, flush=True)

    def close(self) -> None:
        """See `Progress`."""


class Rich:
    """A live bar; failures stay above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._estimate = Estimate()
        self._drawn = 0.0
        self._bar = Bar(
            BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("ETA {task.fields[eta]}"),
            TextColumn("{task.description}"), console=Console(stderr=True), transient=False,
        )  # fmt: skip
        self._task = self._bar.add_task("loading libraries", total=None, eta="?")

    def begin(self, total: int) -> None:
        """Draw the bar: only now, so that a run which cannot begin leaves the terminal alone."""
        self._bar.update(self._task, total=total)
        self._bar.start()

    def update(self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int) -> None:
        """See `Progress`."""
        from rich.markup import escape

        self._estimate.add(entry)
        if entry.status not in (Status.OK, Status.UNSUPPORTED, Status.SKIPPED):
            self._bar.console.print(f"[red]{escape(entry.job)}[/red] {escape(_outcome(entry))}")
        if entry.cached and done < total and time.monotonic() - self._drawn < 0.1:
            return  # hundreds of cached jobs a second need no redraw each
        self._drawn = time.monotonic()
        eta = _clock(self._estimate.seconds(left, workers))
        self._bar.update(self._task, completed=done, total=total, description=escape(entry.job), eta=eta)

    def close(self) -> None:
        """See `Progress`."""
        self._bar.stop()


def progress_of(style: str) -> Progress:
    """The progress of that style; "auto" is rich on a terminal and plain elsewhere."""
    if style == "auto":
        style = "rich" if sys.stderr.isatty() else "plain"
    styles: dict[str, type[Progress]] = {"rich": Rich, "plain": Plain, "json": Json, "none": Silent}
    return styles[style]()

"""Progress on stderr: a live bar on a terminal, plain lines elsewhere, or JSON lines for
programs.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from evalsuite.results import Status
from evalsuite.run.journal import Entry
from evalsuite.terminal import printable, say

_SHOWN = 3  # names of jobs that run, in the bar
STYLES = ("auto", "rich", "plain", "json", "none")


class Estimate:
    """Seconds to go, from the means of jobs of the same workload and step, cached ones too."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()

    def add(self, entry: Entry) -> None:
        """Learn from a job that ran, now or then."""
        if entry.status is not Status.SKIPPED:
            kind = f"{entry.job.partition('/')[0]}/{entry.job.rpartition('/')[2]}"
            self._seconds[kind] += entry.seconds
            self._counts[kind] += 1

    def seconds(self, left: dict[str, int], workers: int) -> tuple[float, bool]:
        """How many, and whether that is all: what has never run counts as nothing, since nobody
        knows.
        """
        means = {
            kind: self._seconds[kind] / self._counts[kind] for kind in left if self._counts[kind]
        }
        total = sum(left[kind] * mean for kind, mean in means.items())
        return max([total / workers, *means.values()]), len(means) == len(left)

    def text(self, left: dict[str, int], workers: int) -> str:
        """In minutes and seconds; "> 0:40" where more is to come than is known."""
        seconds, whole = self.seconds(left, workers)
        known = f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
        return known if whole else f"> {known}" if seconds else "?"


class Progress:
    """Told of the run's beginning and of each job's end. This one is the style "none", which
    shows nothing of it.
    """

    def __init__(self) -> None:
        self._estimate = Estimate()

    def begin(self, total: int) -> None:
        """The run begins: the folder is ours."""

    def update(
        self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int
    ) -> None:
        """`left` counts the jobs still to do, those that run included, by WORKLOAD/STEP."""

    def running(self, jobs: Sequence[str]) -> None:
        """`jobs` are the ids of those that run now; called whenever one has started or ended."""

    def close(self) -> None:
        """The run has ended, well or not, and nothing is shown afterwards."""


def _outcome(entry: Entry) -> str:
    if entry.cached:
        return "cached"
    return (
        entry.status.value
        if entry.status is Status.OK
        else printable(f"{entry.status.value}: {entry.reason}")
    )


class Plain(Progress):
    """A line per job that ran."""

    def update(
        self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int
    ) -> None:
        self._estimate.add(entry)
        if entry.cached:
            return
        said = (
            f"{entry.job} {entry.seconds:.1f} s {_outcome(entry)} (ETA"
            f" {self._estimate.text(left, workers)})"
        )
        say(f"[{done}/{total}] {said}", file=sys.stderr, flush=True)


class Json(Progress):
    """Prints a JSON object on a line of stderr for each job that has ended, for programs that
    watch a run.
    """

    _running: Sequence[str] = ()

    def running(self, jobs: Sequence[str]) -> None:
        self._running = list(jobs)

    def update(
        self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int
    ) -> None:
        self._estimate.add(entry)
        seconds, whole = self._estimate.seconds(left, workers)
        event = {
            "job": entry.job,
            "status": entry.status.value,
            "cached": entry.cached,
            "seconds": entry.seconds,
            "reason": entry.reason,
            "done": done,
            "total": total,
            "eta_s": seconds,
            "eta_is_whole": whole,
            "running": self._running,
        }
        print(json.dumps(event), file=sys.stderr, flush=True)


class Rich(Progress):
    """A live bar; failures stay above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        super().__init__()
        self._drawn = 0.0
        self._bar = Bar(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA {task.fields[eta]}"),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            transient=False,
        )
        self._task = self._bar.add_task("loading libraries", total=None, eta="?")

    def begin(self, total: int) -> None:
        """Draw the bar: only now, so that a run which cannot begin leaves the terminal alone."""
        self._bar.update(self._task, total=total)
        self._bar.start()

    def update(
        self, entry: Entry, done: int, total: int, left: dict[str, int], workers: int
    ) -> None:
        from rich.markup import escape

        self._estimate.add(entry)
        if entry.status not in (Status.OK, Status.UNSUPPORTED, Status.SKIPPED):
            self._bar.console.print(
                f"[red]{escape(printable(entry.job))}[/red] {escape(_outcome(entry))}"
            )
        if entry.cached and done < total and time.monotonic() - self._drawn < 0.1:
            return  # hundreds of cached jobs a second need no redraw each
        self._drawn = time.monotonic()
        eta = self._estimate.text(left, workers)
        self._bar.update(self._task, completed=done, total=total, eta=eta)

    def running(self, jobs: Sequence[str]) -> None:
        from rich.markup import escape

        more = f" and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else ""
        self._bar.update(self._task, description=escape(printable(", ".join(jobs[:_SHOWN]) + more)))

    def close(self) -> None:
        self._bar.stop()


def progress_of(style: str) -> Progress:
    """The progress of that style; "auto" is rich on a terminal and plain elsewhere."""
    if style == "auto":
        style = "rich" if sys.stderr.isatty() else "plain"
    styles: dict[str, type[Progress]] = {
        "rich": Rich,
        "plain": Plain,
        "json": Json,
        "none": Progress,
    }
    return styles[style]()

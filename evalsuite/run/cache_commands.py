"""`evalsuite cache`: what the cache holds, and how to make room in it. Imports late, so that
--help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalsuite.run.console import CacheFolder, cache_in, stop
from evalsuite.terminal import say

app = typer.Typer(
    no_args_is_help=True, help="Look at the cache of finished jobs, check it, and make room in it."
)


@app.command(name="ls")
def list_(cache: CacheFolder = None) -> None:
    """List what the cache holds: key, size, days since its last use, and the job."""
    from evalsuite.run.inventory import inventory

    folder = cache_in(cache)
    total = count = 0
    for held in inventory(folder):
        say(held.line())
        total, count = total + held.size, count + 1
    say(f"{count} jobs, {total / 2**20:.1f} MiB in {folder.folder}")


@app.command()
def why(
    name: Annotated[
        str,
        typer.Argument(
            metavar="KEY|JOB", help="The beginning of a key, or WORKLOAD/VARIANT/SEED/STEP."
        ),
    ],
    cache: CacheFolder = None,
) -> None:
    """Tell all that is known of an entry: by which commit, where and when it was measured, and
    whether it holds.
    """
    from evalsuite.run.inventory import matching, told

    helds = matching(cache_in(cache), name)
    if not helds:
        stop(f"the cache holds nothing of {name!r}; `evalsuite cache ls` lists what it holds")
    say("\n\n".join("\n".join(told(held)) for held in helds))


@app.command()
def gc(
    days: Annotated[
        float, typer.Option(min=0, help="Remove what was not used for so many days.")
    ] = 30.0,
    keep: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Keep what this run names; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    cache: CacheFolder = None,
) -> None:
    """Remove what was not used for long. What a run needs again it measures again."""
    from evalsuite.run.inventory import collect, used_by
    from evalsuite.run.journal import JOURNAL

    for run in keep or []:
        if not (run / JOURNAL).is_file():
            stop(f"--keep {run}: no run is there, since it has no {JOURNAL}")
    folder = cache_in(cache)
    removed = collect(folder, days, used_by(keep or []), dry=dry_run)
    for entry in removed:
        say(entry.line())
    said = "would be removed" if dry_run else "removed"
    say(
        f"{len(removed)} jobs, {sum(held.size for held in removed) / 2**20:.1f} MiB {said} from"
        f" {folder.folder}"
    )


@app.command()
def verify(cache: CacheFolder = None) -> None:
    """Check every entry by its digests; a damaged one is removed and said. Exit code 1 if there
    was one.
    """
    from evalsuite.run.inventory import damaged

    folder = cache_in(cache)
    count, broken = sum(1 for _ in folder.homes()), damaged(folder)
    for entry in broken:
        say(f"{entry.key} was damaged, and is removed: its job runs again where it is needed")
    say(f"{count - len(broken)} of {count} jobs are whole in {folder.folder}")
    if broken:
        raise typer.Exit(1)

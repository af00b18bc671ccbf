"""The report of a run: `report.html`, `report.md` and the tables, from its rows and its record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalsuite.report.run import Run

__all__ = ["write_content", "write_report"]


def write_report(folder: Path) -> list[Path]:
    """Write the report into a run's folder, over an older one; the same rows, record and artefacts
    give the same bytes.

    Args:
        folder: holds `results.parquet` and, if the runner got so far, `run.json`, and perhaps the
            jobs' `artefacts`.

    Returns:
        The files written: the page first.

    Raises:
        DamagedResults: the rows or the record cannot be read.
        ValueError: there are no rows, or none of the baseline.
    """
    from evalsuite.report.run import Run

    content = Run.of(folder)
    if content.frame.empty:
        raise ValueError(f"{folder / 'results.parquet'} has no rows: nothing to report yet")
    return write_content(content, folder)


def write_content(content: Run, folder: Path) -> list[Path]:
    """Write the page, the Markdown and the tables of a content into an existing folder; the page
    first.
    """
    from evalsuite.report.documents import markdown, table_files
    from evalsuite.report.page import render
    from evalsuite.sums import add_sums

    texts = {"report.html": render(content), "report.md": markdown(content)}
    texts |= {f"tables/{name}": text for name, text in table_files(content).items()}
    (folder / "tables").mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    written = [folder / name for name in texts]
    add_sums(folder, written)
    return written

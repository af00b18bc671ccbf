"""One page over many runs: what the first screen of each report answers, and where the report
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from evalsuite.report.cells import TONES
from evalsuite.report.documents import filled
from evalsuite.report.matrix import ALL, Matrix
from evalsuite.report.page import content_policy
from evalsuite.report.record import Record
from evalsuite.report.run import Run
from evalsuite.results import DamagedResults


@dataclass(frozen=True)
class Entry:
    """A run on the page; `reason` says why it answers nothing."""

    place: str
    record: Record
    facts: str = ""
    matrices: Sequence[Matrix] = ()
    report: str = ""
    reason: str = ""


def write_index(folder: Path, runs: Sequence[Path]) -> Path:
    """Write `index.html` into `folder`, over the runs at or below it; the same runs give the
    same bytes.
    """
    entries = [_entry(run, folder) for run in runs]
    path = folder / "index.html"
    path.write_text(_page(entries), encoding="utf-8", newline="\n")
    return path


def _entry(run: Path, folder: Path) -> Entry:
    place = run.relative_to(folder).as_posix()
    try:
        content = Run.of(run)
    except DamagedResults as error:
        return Entry(place, Record({}), reason=str(error))
    frame, record = content.frame, content.record
    if frame.empty:
        return Entry(place, record, reason="no rows yet")
    facts = (
        f"{record.text('name')}; {', '.join(map(str, frame['workload'].unique()))};"
        f" {content.seeds_text}; finished: {record.text('finished')}"
    )
    page = run / "report.html"
    link = quote(page.relative_to(folder).as_posix()) if page.is_file() else ""
    answered = [matrix for matrix in content.matrices if matrix.rows]
    reason = "" if answered else "measured no primary endpoint of a variant and the baseline"
    return Entry(place, record, facts, answered, link, reason)


def _page(entries: Sequence[Entry]) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    style = _part("index.css")
    shown = {
        "entries": entries,
        "all": ALL,
        "tones": TONES,
        "style": Markup(style),
        "policy": content_policy(style, ""),
        "guide": filled("answer.txt", {"baseline": "the baseline", "first": "the first variant"}),
    }
    return environment.from_string(_part("index.html.j2")).render(shown)


def _part(name: str) -> str:
    return (files("evalsuite.studies") / name).read_text(encoding="utf-8")

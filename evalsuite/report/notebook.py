"""The answer of a run as a notebook shows it: the four lines, the strip plot and the plane."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from evalsuite.report.documents import file_name, filled
from evalsuite.report.opening import LINE_TONES, facts_of, opening_of
from evalsuite.report.page import style_sheet

if TYPE_CHECKING:
    from evalsuite.report.run import Run

_HEIGHT = 820  # CSS pixels of the frame: the lines and both figures beside each other


def notebook_html(run: Run) -> str:
    """Return a frame that holds the answer with the page's own style, which then cannot change
    the notebook's. Links to the evidence, which stands on the page alone, are shown as text.
    """
    opening = opening_of(run, lambda _variant, _question: "#", keyed=True)
    shown: dict[str, Any] = {
        "content": run,
        "facts": facts_of(run),
        "file_name": file_name,
        "line_tones": LINE_TONES,
        "opening": opening,
        "place": lambda _variant, _question: "#",
        "screen": opening.screens[0] if opening.screens else None,
        "style": style_sheet(),
    }
    document = filled("notebook.html.j2", shown, autoescape=True)
    return (
        f'<iframe sandbox srcdoc="{escape(document)}" title="{escape(run.question)}"'
        f' style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
    )

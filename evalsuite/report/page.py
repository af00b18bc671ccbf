"""report.html: one file, no network, a content policy that admits only its own style and script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib.resources import files
from itertools import chain, count
from typing import Any

from evalsuite.report.canvas import Drawing
from evalsuite.report.documents import LATEX, data_lines, file_name, filled
from evalsuite.report.explorer import explorer_data, packed
from evalsuite.report.inline import inline_svg
from evalsuite.report.matrix import TONES
from evalsuite.report.record import NOT_RECORDED, Record
from evalsuite.report.run import Run
from evalsuite.report.tables import merged


def _part(name: str) -> str:
    return (files("evalsuite.report") / "template" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The source expression of the content policy for an inline element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def content_policy(style: str, script: str) -> str:
    """What the page may load: its own style and script by digest, images that it holds itself, and nothing else."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _anchors() -> Callable[[str, str], str]:
    """Names for places of the page, none twice."""
    used: set[str] = set()

    def anchor(kind: str, name: str) -> str:
        first = f"{file_name(kind)}-{file_name(name)}"
        found = next(each for each in chain([first], (f"{first}-{i}" for i in count(2))) if each not in used)
        used.add(found)
        return found

    return anchor


def _steps(record: Record) -> list[dict[str, str]]:
    names = ("name", "stage", "origin", "version", "help")
    return [
        {name: str(step.get(name) or NOT_RECORDED) for name in names} | {"after": record.after[str(step["name"])]}
        for step in record.steps
    ]


def render(content: Run) -> str:
    """The page as text, always the same for the same content."""
    from markupsafe import Markup

    failed = content.failures
    style, script = _part("page.css"), _part("page.js") + _part("explorer.js")
    parts: dict[str, str] = {}  # What is shown on demand: parsed with the page, it would be most of its elements.

    def pack(name: str, text: str) -> str:
        parts[name] = str(text)
        return ""

    def inline(drawing: Drawing, name: str) -> str:
        return Markup(inline_svg(drawing.svg or "", drawing.alt or drawing.title, name))

    shown: dict[str, Any] = {
        "content": content,
        "tones": TONES,
        "policy": content_policy(style, script),
        # Both come from this package; escaping them would change their digests.
        "style": Markup(style),
        "script": Markup(script),
        "anchor": _anchors(),
        "file_name": file_name,
        "inline": inline,
        "pack": pack,
        "packed": lambda: packed({**explorer_data(content), "parts": parts, "latex": LATEX}),
        "jobs_failed": merged(failed[failed["metric"] == ""]),
        "metrics_failed": merged(failed[failed["metric"] != ""]),
        "data": data_lines(content),
        "steps": _steps(content.record),
    }
    return filled("page.html.j2", shown, autoescape=True)

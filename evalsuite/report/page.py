"""report.html: one file, no network, a content policy that admits only its own style and script.

Figures are part of it: matplotlib's SVG with few elements, which takes the page's colours and type.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from html import escape
from importlib.resources import files
from itertools import chain, count
from typing import Any
from xml.etree import ElementTree

from evalsuite.report.canvas import INK_COLOUR, MUTED_COLOUR, RULE_COLOUR
from evalsuite.report.cells import TONES
from evalsuite.report.documents import LATEX, data_lines, file_name, filled, note_lines
from evalsuite.report.drawings import Drawing
from evalsuite.report.explorer import explorer_data, packed
from evalsuite.report.numerals import grouped
from evalsuite.report.opening import LINE_TONES, facts_of, opening_of
from evalsuite.report.record import NOT_RECORDED, Record
from evalsuite.report.run import Run
from evalsuite.report.tables import merged

_COLOURS = {
    INK_COLOUR: "currentColor",
    MUTED_COLOUR: "var(--soft)",
    RULE_COLOUR: "var(--rule)",
    "#ffffff": "var(--raised)",
    "white": "var(--raised)",
}
_KEPT = (
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "fill-opacity",
    "stroke-opacity",
    "opacity",
    "font-size",
    "font-weight",
    "font-style",
    "text-anchor",
    "stroke-linecap",
)
_TURNED = re.compile(r"(?:translate\((\S+)[ ,]+(\S+)\) *)?(?:rotate\((\S+?)[ ,)].*)?$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_COMMAND = re.compile(r"([A-Zz])([^A-Zz]*)")

_BACKGROUND = (("fill", "var(--raised)"),)

Attributes = tuple[tuple[str, str], ...]


def inline_svg(svg: str, label: str, name: str) -> str:
    """The drawing as one `svg` element: marks of one look in one path for each panel, text as text.

    Args:
        svg: what `canvas.panels` drew.
        label: for those who do not see it.
        name: of the figure, unlike that of any other on the page.
    """
    # 1. What matplotlib defines once and uses often: the shapes of marks, and the rectangles that
    # panels are clipped to.
    root = ElementTree.fromstring(svg)
    shapes = {
        child.get("id"): child for child in root.iter() if _tag(child) == "path" and child.get("id")
    }
    clips = {child.get("id"): child[0] for child in root.iter() if _tag(child) == "clipPath"}
    figure = next(child for child in root if _tag(child) == "g")
    # 2. The marks of each panel, by their look; clips get short names, unlike any other on the
    # page.
    panels = [list(_marks(panel, shapes)) for panel in figure]
    used = dict.fromkeys(
        clip for panel in panels for look, _, _ in panel for key, clip in look if key == "clip-path"
    )
    number = {clip: f"{name}-{rank}" for rank, clip in enumerate(used)}
    boxes = {
        clip: [(key, _short(clips[clip].get(key, "0"))) for key in ("x", "y", "width", "height")]
        for clip in used
    }
    held = "".join(
        f'<clipPath id="{number[clip]}"><rect {_told(box)}/></clipPath>'
        for clip, box in boxes.items()
    )
    # 3. Write it anew, with few elements: a page has many figures, and is to stay fast.
    body = "".join(_panel(panel, number) for panel in panels)
    return (
        f'<svg viewBox="{root.get("viewBox")}" role="img" aria-label="{escape(label)}">'
        f"{held and f'<defs>{held}</defs>'}{body}</svg>"
    )


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _marks(
    element: ElementTree.Element, shapes: dict[str | None, ElementTree.Element], clip: str = ""
) -> Iterator[tuple[Attributes, str, str]]:
    """Look, path and text of all that a group draws, in order; either path or text is empty."""
    # A clip holds for all that is inside; matplotlib draws marks by references to shapes, which
    # are resolved here.
    clip = element.get("clip-path", "")[5:-1] or clip
    tag = _tag(element)
    if tag in ("defs", "metadata"):
        return
    if tag == "text":
        yield _look(element, "", element), "", "".join(element.itertext()).strip()
    elif tag in ("path", "use"):
        shape = (
            shapes[element.get("{http://www.w3.org/1999/xlink}href", "")[1:]]
            if tag == "use"
            else element
        )
        place = float(element.get("x", 0)), float(element.get("y", 0))
        yield _look(element, clip, shape), _moved(shape.get("d", ""), *place), ""
    for child in element:
        yield from _marks(child, shapes, clip)


def _look(element: ElementTree.Element, clip: str, shape: ElementTree.Element) -> Attributes:
    """The style as attributes, since the page's content policy admits no style in an element."""
    styles = ";".join(shown.get("style", "") for shown in (shape, element))
    shown_look = {
        key.strip(): text.strip()
        for key, _, text in (part.partition(":") for part in styles.split(";"))
        if text
    }
    look = {key: _colour(shown_look[key]).removesuffix("px") for key in _KEPT if key in shown_look}
    if _tag(element) == "text":
        x, y, angle = _TURNED.match(element.get("transform", "")).groups()  # type: ignore[union-attr]
        look |= {"x": _short(x or element.get("x", "0")), "y": _short(y or element.get("y", "0"))}
        if angle and float(angle):
            look["transform"] = f"rotate({_short(angle)} {look['x']} {look['y']})"
    else:
        look.setdefault("fill", "currentColor")
        if clip:
            look["clip-path"] = clip
    return tuple(look.items())


def _colour(text: str) -> str:
    """Replace a nearly black colour by the colour of text, which is seen on dark paper too."""
    dark = re.fullmatch("#([0-5][0-9a-f]){3}", text)
    return _COLOURS.get(text, "currentColor" if dark else text)


def _moved(path: str, x: float, y: float) -> str:
    """The path, whose commands are all absolute, at another place and in tenths of a point; lines
    go on from point to point, which takes half the characters.
    """
    written, start, end = [], (0, 0), (0, 0)
    for command, numbers in _COMMAND.findall(path):
        lengths = [float(number) for number in _NUMBER.findall(numbers)]
        places = [round(10 * (length + (x, y)[at % 2])) for at, length in enumerate(lengths)]
        if command == "L":
            written.append(f"l{_tenths([places[0] - end[0], places[1] - end[1]])}")
        else:
            written.append(f"{command}{_tenths(places)}")
        end = (places[-2], places[-1]) if places else start
        start = end if command == "M" else start
    return "".join(written)


def _tenths(places: Iterable[int]) -> str:
    """Lengths in tenths of a point as text, apart only where a sign does not part them."""
    texts = (f"{place / 10:.1f}".removesuffix(".0") for place in places)
    shortened = (re.sub(r"^(-?)0\.", r"\1.", text) for text in texts)
    return " ".join("0" if text == "-0" else text for text in shortened).replace(" -", "-")


def _short(number: str) -> str:
    """A length in tenths, without what says nothing."""
    text = f"{float(number):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _panel(marks: list[tuple[Attributes, str, str]], number: dict[str, str]) -> str:
    """Paths first, those of one look together, then text."""
    drawn = ""
    for look, parts in grouped(
        (look, path) for look, path, _ in marks if path and look != _BACKGROUND
    ).items():
        named = [
            (key, f"url(#{number[text]})" if key == "clip-path" else text) for key, text in look
        ]
        drawn += f'<path d="{"".join(parts)}" {_told(named)}/>'
    return drawn + "".join(
        f"<text {_told(look)}>{escape(text)}</text>" for look, _, text in marks if text
    )


def _told(look: Iterable[tuple[str, str]]) -> str:
    return " ".join(f'{key}="{escape(text)}"' for key, text in look)


def _part(name: str) -> str:
    return (files("evalsuite.report") / "template" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The source expression of the content policy for an inline element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def content_policy(style: str, script: str) -> str:
    """Allow the page to load its own style and script by digest, images that it holds itself, and
    nothing else.
    """
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _anchors() -> Callable[[str, str], str]:
    """Names for places of the page, none twice."""
    used: set[str] = set()

    def anchor(kind: str, name: str) -> str:
        first = f"{file_name(kind)}-{file_name(name)}"
        free_name = next(
            candidate
            for candidate in chain([first], (f"{first}-{number}" for number in count(2)))
            if candidate not in used
        )
        used.add(free_name)
        return free_name

    return anchor


def _steps(record: Record) -> list[dict[str, str]]:
    names = ("name", "stage", "origin", "version", "help")
    return [
        {name: str(step.get(name) or NOT_RECORDED) for name in names}
        | {"after": record.after[str(step["name"])]}
        for step in record.steps
    ]


def style_sheet() -> Any:
    """The page's style sheet, which templates take as it is."""
    from markupsafe import Markup

    return Markup(_part("page.css"))


def render(content: Run) -> str:
    """The page as text, always the same for the same content."""
    from markupsafe import Markup

    failed = content.failures
    style, script = _part("page.css"), _part("page.js") + _part("explorer.js")
    # What is shown on demand: parsed with the page, it would be most of its elements.
    parts: dict[str, str] = {}

    def pack(name: str, text: str) -> str:
        parts[name] = str(text)
        return ""

    def inline(drawing: Drawing, name: str) -> str:
        return Markup(inline_svg(drawing.svg or "", drawing.alt or drawing.title, name))

    # The same anchors in the matrix and in the answer that links to it.
    anchor = _anchors()
    places = {
        (matrix.variant, row.endpoint.question): "#"
        + anchor(f"answer-{matrix.variant}", row.endpoint.question)
        for matrix in content.matrices
        for row in matrix.rows
    }

    def place(variant: str, question: str) -> str:
        return places[variant, question]

    shown: dict[str, Any] = {
        "content": content,
        "opening": opening_of(content, place),
        "line_tones": LINE_TONES,
        "facts": facts_of(content),
        "place": place,
        "tones": TONES,
        "policy": content_policy(style, script),
        # Both come from this package; escaping them would change their digests.
        "style": Markup(style),
        "script": Markup(script),
        "anchor": anchor,
        "file_name": file_name,
        "inline": inline,
        "pack": pack,
        "packed": lambda: packed({**explorer_data(content), "parts": parts, "latex": LATEX}),
        "jobs_failed": merged(failed[failed["metric"] == ""]),
        "metrics_failed": merged(failed[failed["metric"] != ""]),
        "data": data_lines(content),
        "looks": note_lines(content),
        "steps": _steps(content.record),
    }
    return filled("page.html.j2", shown, autoescape=True)

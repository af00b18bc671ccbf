"""Figures as part of the page: matplotlib's SVG with few elements, which takes the page's colours and type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from xml.etree import ElementTree

from evalsuite.report.canvas import INK_COLOUR, MUTED_COLOUR, RULE_COLOUR

_COLOURS = {
    INK_COLOUR: "currentColor", MUTED_COLOUR: "var(--soft)", RULE_COLOUR: "var(--rule)", "#ffffff": "var(--raised)",
    "white": "var(--raised)",
}  # fmt: skip
_KEPT = ("fill", "stroke", "stroke-width", "stroke-dasharray", "fill-opacity", "stroke-opacity", "opacity", "font-size",
         "font-weight", "font-style", "text-anchor", "stroke-linecap")  # fmt: skip
_TURNED = re.compile(r"(?:translate\((\S+)[ ,]+(\S+)\) *)?(?:rotate\((\S+?)[ ,)].*)?$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")

_BACKGROUND = (("fill", "var(--raised)"),)

Attributes = tuple[tuple[str, str], ...]


def inline_svg(svg: str, label: str, name: str) -> str:
    """The drawing as one `svg` element: marks of one look in one path for each panel, text as text.

    Args:
        svg: what `canvas.panels` drew.
        label: for those who do not see it.
        name: of the figure, unlike that of any other on the page.
    """
    root = ElementTree.fromstring(svg)
    shapes = {each.get("id"): each for each in root.iter() if _tag(each) == "path" and each.get("id")}
    clips = {each.get("id"): each[0] for each in root.iter() if _tag(each) == "clipPath"}
    figure = next(each for each in root if _tag(each) == "g")
    panels = [list(_marks(panel, shapes)) for panel in figure]
    used = dict.fromkeys(clip for panel in panels for look, _, _ in panel for key, clip in look if key == "clip-path")
    number = {clip: f"{name}-{i}" for i, clip in enumerate(used)}
    boxes = {clip: [(key, _short(clips[clip].get(key, "0"))) for key in ("x", "y", "width", "height")] for clip in used}
    held = "".join(f'<clipPath id="{number[clip]}"><rect {_told(box)}/></clipPath>' for clip, box in boxes.items())
    body = "".join(_panel(panel, number) for panel in panels)
    return (
        f'<svg viewBox="{root.get("viewBox")}" role="img" aria-label="{escape(label)}">'
        f"{held and f'<defs>{held}</defs>'}{body}</svg>"
    )


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _marks(element: ElementTree.Element, shapes: dict[str | None, ElementTree.Element],
           clip: str = "") -> Iterator[tuple[Attributes, str, str]]:  # fmt: skip
    """Look, path and text of all that a group draws, in order; either path or text is empty."""
    clip = element.get("clip-path", "")[5:-1] or clip
    tag = _tag(element)
    if tag in ("defs", "metadata"):
        return
    if tag == "text":
        yield _look(element, "", element), "", "".join(element.itertext()).strip()
    elif tag in ("path", "use"):
        shape = shapes[element.get("{http://www.w3.org/1999/xlink}href", "")[1:]] if tag == "use" else element
        place = float(element.get("x", 0)), float(element.get("y", 0))
        yield _look(element, clip, shape), _moved(shape.get("d", ""), *place), ""
    for each in element:
        yield from _marks(each, shapes, clip)


def _look(element: ElementTree.Element, clip: str, shape: ElementTree.Element) -> Attributes:
    """The style as attributes, since the page's content policy admits no style in an element."""
    styles = ";".join(each.get("style", "") for each in (shape, element))
    found = {key.strip(): text.strip() for key, _, text in (part.partition(":") for part in styles.split(";")) if text}
    look = {key: _colour(found[key]).removesuffix("px") for key in _KEPT if key in found}
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
    """What is nearly black takes the colour of text, which is seen on dark paper too."""
    dark = re.fullmatch("#([0-5][0-9a-f]){3}", text)
    return _COLOURS.get(text, "currentColor" if dark else text)


def _moved(path: str, x: float, y: float) -> str:
    """The path, whose commands are all absolute, at another place and in tenths of a point."""
    at = iter(range(len(path)))

    def shifted(found: re.Match[str]) -> str:
        return _short(str(float(found[0]) + (x, y)[next(at) % 2]))

    return re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(_NUMBER.sub(shifted, path).split()))


def _short(number: str) -> str:
    """A length in tenths, without what says nothing."""
    text = f"{float(number):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _panel(marks: list[tuple[Attributes, str, str]], number: dict[str, str]) -> str:
    """Paths first, those of one look together, then text."""
    paths: dict[Attributes, list[str]] = {}
    for look, path, _ in marks:
        if path and look != _BACKGROUND:
            paths.setdefault(look, []).append(path)
    drawn = ""
    for look, parts in paths.items():
        named = [(key, f"url(#{number[text]})" if key == "clip-path" else text) for key, text in look]
        drawn += f'<path d="{"".join(parts)}" {_told(named)}/>'
    return drawn + "".join(f"<text {_told(look)}>{escape(text)}</text>" for look, _, text in marks if text)


def _told(look: Iterable[tuple[str, str]]) -> str:
    return " ".join(f'{key}="{escape(text)}"' for key, text in look)

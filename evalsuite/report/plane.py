"""The plane of quality over cost, drawn: each variant in each form, and the frontier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from evalsuite.report.canvas import looks
from evalsuite.report.frontier import Plane, Point
from evalsuite.report.numerals import grouped, listed, scale_of

_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 468.0, 8.0, 158.0
_SHAPES = (
    "M{x} {y}m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    "M{x} {y}m-4.6 -4.6h9.2v9.2h-9.2z",
    "M{x} {y}m0 -5.6l5.4 9.8h-10.8z",
    "M{x} {y}m0 -6l6 6l-6 6l-6 -6z",
    "M{x} {y}m-2 -6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    "M{x} {y}m0 5.6l5.4 -9.8h-10.8z",
)
_NAMED = 9  # variants with a colour of their own
# of the range from the best to the worst that must be drawn: what lies below that is left out
_BELOW = 0.5


def plane_svg(
    plane: Plane, names: Mapping[str, str], baseline: str, *, keyed: bool = True
) -> tuple[str, str]:
    """The plane as an `svg` element that takes the page's colours, and its caption.

    Args:
        plane: what is drawn.
        names: variant -> what it is, in words.
        baseline: whose first form costs 1.
        keyed: whether the key of colours stands under it; the ranking has it, too.
    """
    # 1. The range: networks that fall far below the others would press all marks together, and
    # are counted instead.
    low, high = _range(plane, baseline)
    shown = [point for point in plane.points if low <= plane.way * point.quality <= high]
    most = max(point.cost for point in shown) * 1.06
    least = min(0.0, *(point.cost for point in shown))
    if min(point.cost for point in shown) > 0.6 * most:
        least = min(point.cost for point in shown) * 0.96

    def place(point: Point) -> tuple[str, str]:
        across = _LEFT + 8 + (point.cost - least) / (most - least) * (_RIGHT - _LEFT - 16)
        down = _BOTTOM - (plane.way * point.quality - low) / (high - low) * (_BOTTOM - _TOP)
        return f"{across:.1f}", f"{down:.1f}"

    # 2. The frontier under the marks, then a mark for each network: colour for the variant, shape
    # for the form.
    forms = list(dict.fromkeys(point.form for point in plane.points))
    colours = _colours(plane, names)
    scale = scale_of(plane.unit, [point.quality for point in shown], [(high - low) / 4])
    body = _axes(plane, (low, high), (least, most))
    front = [point for point in plane.frontier if point in shown]
    body += (
        f'<path class="front" d="M{"L".join(" ".join(place(point)) for point in front)}"/>'
        if front
        else ""
    )
    for point in shown:
        across, down = place(point)
        path = _SHAPES[forms.index(point.form) % len(_SHAPES)].format(x=across, y=down)
        title = (
            f"{names[point.variant]}, {point.form}: {scale.number(point.quality)} {scale.unit}, "
            f"{plane.cost} {point.cost:.2f}"
        )
        body += f'<path {colours[point.variant]} d="{path}"><title>{escape(title)}</title></path>'
    # 3. Legend and caption; every mark has its numbers as a title.
    legend, height = _legend(names, colours if keyed else {}, forms)
    left = len(plane.points) - len(shown)
    over = f"Means over {listed(plane.workloads)}. " if len(plane.workloads) > 1 else ""
    beyond = (
        f" {left} point{'s' * (left != 1)} of lower quality {'are' if left != 1 else 'is'} not"
        " drawn." * bool(left)
    )
    caption = f"{over}Dashed: nothing is better and cheaper.{beyond}"
    label = escape(f"Quality over {plane.cost} of {len(plane.points)} networks")
    return (
        (
            f'<svg class="plane" viewBox="0 0 480 {height:g}" role="group"'
            f' aria-label="{label}">{body}{legend}</svg>'
        ),
        caption,
    )


def _range(plane: Plane, baseline: str) -> tuple[float, float]:
    """The least and the greatest quality that are drawn, turned so that more is better.

    Every form of the baseline is drawn, and the best of each form.
    """
    qualities = grouped((point.form, plane.way * point.quality) for point in plane.points)
    qualities_of_baseline = [
        plane.way * point.quality for point in plane.points if point.variant == baseline
    ]
    bests = [max(values) for values in qualities.values()]
    best, least = max(bests), min([*bests, *qualities_of_baseline])
    floor = least - _BELOW * (best - least)
    lowest = min(value for values in qualities.values() for value in values if value >= floor)
    room = max(0.08 * (best - lowest), abs(best) * 1e-4, 1e-9)
    return lowest - room, best + room


def key_of(plane: Plane, names: Mapping[str, str]) -> dict[str, str]:
    """Variant -> its mark in the key of colours, as an `svg` element."""
    mark = _SHAPES[1].format(x="6", y="6")
    return {
        name: f'<svg class="plane key" viewBox="0 0 12 12" aria-hidden="true"><path {look}'
        f' d="{mark}"/></svg>'
        for name, look in _colours(plane, names).items()
    }


def _colours(plane: Plane, names: Mapping[str, str]) -> dict[str, str]:
    """A look as attributes; beyond so many variants a colour says nothing, and the mouse names
    the point.
    """
    drawn = {point.variant for point in plane.points}
    variants = [name for name in names if name in drawn]
    chosen = looks(variants)
    dark = "#222222"
    return {
        name: (
            'class="other"'
            if place >= _NAMED
            else ('class="ink"' if chosen[name].colour == dark else f'fill="{chosen[name].colour}"')
        )
        for place, name in enumerate(variants)
    }


def _axes(plane: Plane, heights: tuple[float, float], costs: tuple[float, float]) -> str:
    (low, high), (least, most) = heights, costs
    scale = scale_of(plane.unit, [max(abs(low), abs(high))], [high - low])
    body = ""
    # Ticks of quality with a line through the plane, and of cost without: the eye compares
    # heights.
    for tick in _ticks(low, high):
        down = _BOTTOM - (tick - low) / (high - low) * (_BOTTOM - _TOP)
        text = escape(
            f"{_short(plane.way * tick / scale.divisor)}{' %' if scale.unit == '%' else ''}"
        )
        body += f'<path class="rule" d="M{_LEFT:g} {down:.1f}H{_RIGHT:g}"/>'
        place = f'x="{_LEFT - 6:g}" y="{down + 4:.1f}"'
        body += f'<text class="soft" {place} text-anchor="end">{text}</text>'
    for tick in _ticks(least, most):
        across = _LEFT + 8 + (tick - least) / (most - least) * (_RIGHT - _LEFT - 16)
        body += (
            f'<text class="soft" x="{across:.1f}" y="{_BOTTOM + 16:g}"'
            f' text-anchor="middle">{_short(tick)}</text>'
        )
    return body + f'<path class="axis" d="M{_LEFT:g} {_TOP:g}V{_BOTTOM:g}H{_RIGHT:g}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * place for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "−")


def _legend(
    names: Mapping[str, str], colours: Mapping[str, str], forms: Sequence[str]
) -> tuple[str, float]:
    """Explain the colours and the shapes, in lines as wide as the plane; and return the height of
    it all.
    """
    # Colours by variant, then shapes by form, each in lines that are broken by an estimate of the
    # text's width.
    entries = [(colours[name], _SHAPES[1], names[name]) for name in list(colours)[:_NAMED]]
    entries += [('class="other"', _SHAPES[1], "others")] if len(colours) > _NAMED else []
    shapes = [
        ('class="soft"', _SHAPES[place % len(_SHAPES)], form) for place, form in enumerate(forms)
    ]
    body, down = "", _BOTTOM + 36
    for group in (entries, shapes):
        across = 8.0
        for look, shape, text in group:
            wide = 7.0 * len(text) + 30
            if across + wide > 478 and across > 8:
                across, down = 8.0, down + 17
            body += f'<path {look} d="{shape.format(x=f"{across + 6:.1f}", y=f"{down - 4:g}")}"/>'
            body += f'<text x="{across + 16:.1f}" y="{down:g}">{escape(text)}</text>'
            across += wide
        down += 17
    return body, down - 8

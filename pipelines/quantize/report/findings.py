"""What the accuracies of quantized networks say in words: where variants differ, and what of it
is the placement's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.report.areas import AREA_SCALE
from evalsuite.report.numerals import Scale, grouped, listed, percent_text, sentence
from evalsuite.report.paired import Compared, ends_text, interval_text, resolved_text
from evalsuite.report.section import Finding
from evalsuite.report.statistics import Estimate, after_holm, mean_by_seed, mean_interval
from pipelines.quantize.report.tables import Quality, QuantizationTable, Quantized
from pipelines.quantize.report.text import MACS, table_scale

LEAST_BITS = 3
MARGIN = 0.005  # Half a point: a gap that moves by less moves by nothing that matters.
UNEXPLAINED = "unexplained_differences"


def overall(tables: Sequence[QuantizationTable]) -> Finding | None:
    """The count of all differences, and each gap's move; None where one workload says it all."""
    cells = [cell for table in tables for cell in table.cells.values() if cell.p is not None]
    if len({table.workload for table in tables}) < 2 or not cells:
        return None
    told = f"{resolved_text(cells, f'differences to {tables[0].baseline}')}."
    return Finding(
        "all workloads",
        told,
        tuple(filter(None, (_pooled(tables, name) for name in tables[0].others))),
    )


def _pooled(tables: Sequence[QuantizationTable], variant: str) -> str:
    """How far a variant's gap to the baseline is from its gap in float, at 3 bits and more, by
    method and placement.

    By seed, the mean over the widths of each workload, then over the workloads: these are fixed,
    and the interval is over seeds. What a workload has not got is left out for all. Which moves are
    shown to be less than the margin is told by each one's own 95 % interval, a test of equivalence.
    """
    tables = [table for table in tables if table.quality == Quality()]
    if not tables:
        return ""
    found = {}
    # 1. Each method and placement: a mean by seed over widths and workloads, its interval over
    # seeds.
    for panel in dict.fromkeys(panel for table in tables for panel in table.panels):
        means = mean_by_seed([_gaps(table, variant, panel) for table in tables])
        if means and (each := mean_interval(list(means.values()), magnitude=1.0)).low is not None:
            found[panel] = each
    # 2. A whole interval within the margin shows equivalence, which a test that resolves nothing
    # does not.
    within = sum(
        not each.constant
        and each.low is not None
        and each.high is not None
        and each.low > -MARGIN
        and each.high < MARGIN
        for each in found.values()
    )
    shown = (
        f"by less than {AREA_SCALE.number(MARGIN)} pp in {within} of {len(found)} methods and"
        " placements"
    )
    source, many = tables[0].source, len({table.workload for table in tables})
    return sentence(
        f"{variant}: from float to {LEAST_BITS} bits and more ({source}, mean over {many} workloads"
        f" and their widths) its gap to {tables[0].baseline} is shown to move {shown}: ",
        (f"{panel} {interval_text(each, AREA_SCALE)}" for panel, each in found.items()),
        "; ",
    )


def _gaps(table: QuantizationTable, variant: str, panel: str) -> dict[int, float]:
    """Seed -> the mean over the widths of the gap less that in float; of the seeds that have all
    of them.
    """
    chosen = [
        each
        for each in table.panels.get(panel, ())
        if not (each.after or each.budget)
        and min(each.weight_bits or 0, each.act_bits or 0) >= LEAST_BITS
    ]
    means, plain = (
        mean_by_seed([table.cell(each, variant).gap for each in chosen]),
        table.plain[variant].gap,
    )
    return {seed: mean - plain[seed] for seed, mean in means.items() if seed in plain}


def finding(table: QuantizationTable) -> Finding:
    """At which widths, with which method and placement the variants differ from the baseline,
    and what survives.
    """
    tested = [cell for cell in table.cells.values() if cell.bracketed]
    resolved = {cell.variant for cell in tested if cell.resolved}
    quiet = [name for name in table.others if name in {cell.variant for cell in tested} - resolved]
    elsewhere, source = _elsewhere(table), table.source
    # Why some accuracies are not of the integer-only network, where a row says so.
    reasons = grouped(
        dict.fromkeys(
            (cell.reason, cell.variant)
            for cell in table.cells.values()
            if cell.mean and cell.reason and not cell.reason.startswith(f"{table.baseline}: ")
        )
    )
    sentences = [
        *(_variant_sentence(table, name) for name in table.others if name in resolved),
        sentence(
            "",
            quiet,
            end=(
                ": no difference is resolved at any width, with any method or placement"
                f" ({source})."
            ),
        ),
        sentence(
            "Resolved in other arithmetic, though not there: ",
            (f"{source}: {', '.join(each)}" for source, each in elsewhere.items()),
            "; ",
        ),
        sentence(
            f"No {table.quality.words} of the integer-only network everywhere for ",
            (f"{', '.join(variants)} ({reason})" for reason, variants in reasons.items()),
            "; ",
        ),
        _coverage(table),
        _checks(table),
    ]
    return Finding(
        table.workload,
        _headline(table, tested, sum(map(len, elsewhere.values()))),
        tuple(filter(None, sentences)),
    )


def _headline(table: QuantizationTable, tested: Sequence[Quantized], elsewhere: int) -> str:
    if not tested:
        none = f"No quantized network can be compared with {table.baseline}."
        paired = any(cell.difference for cell in table.cells.values())
        return "One seed: no interval, so nothing is claimed." if paired else none
    resolved = [cell for cell in tested if cell.resolved]
    of = f"of {len(tested)} differences to {table.baseline} ({table.source})"
    more = (
        f"; other arithmetic resolves {elsewhere}{' more' * bool(resolved)}." if elsewhere else "."
    )
    if not resolved:
        return f"None {of} is resolved{more}"
    widths = list(dict.fromkeys(treatment.width for treatment in table.treatments))
    found = [width for width in widths if any(cell.treatment.width == width for cell in resolved)]
    rest = [width for width in widths if width not in found]
    text = (
        f"{len(resolved)} {of} are resolved, at"
        f" {listed(found)}{f'; none at {listed(rest)}' if rest else ''}"
    )
    return f"{text}; {after_holm(cell.p for cell in tested)}{more}"


def _elsewhere(table: QuantizationTable) -> dict[str, list[str]]:
    """What other accuracies of the same networks resolve where the table's own does not, by what
    they are of.
    """
    scale, found = table_scale(table), []
    for treatment, name in itertools.product(table.treatments, table.others):
        own = table.cell(treatment, name)
        for metric, source in table.quality.sources.items() if not own.resolved else ():
            for setting in table.measured.settings(table.workload, name, treatment.step, metric):
                values, other = (
                    table.values(treatment, each, metric, setting)
                    for each in (name, table.baseline)
                )
                cell = Compared(name, values, other, table.quality.way)
                if (
                    cell.difference is not None
                    and cell.resolved
                    and (metric, setting) != (own.metric, "")
                ):
                    what = f"{source}, {setting.replace('=', ' ')}" if setting else source
                    found.append(
                        (what, f"{name} {treatment.label} {interval_text(cell.difference, scale)}")
                    )
    return grouped(found)


def _variant_sentence(table: QuantizationTable, variant: str) -> str:
    scale = table_scale(table)
    cells = [table.cell(treatment, variant) for treatment in table.treatments]
    places = grouped(
        ((each.treatment.method, each.treatment.width), each) for each in cells if each.bracketed
    )
    found = []
    for (method, width), own in places.items():
        head, remark = _placements(own, scale)
        estimates = [(cell.treatment.placement, cell.difference) for cell in own if cell.difference]
        found.append((head, _Place(method, width, estimates, remark)))
    parts = grouped(found)
    quiet = parts.pop("", [])
    text = f"{variant}: " + "; ".join(
        f"{head}: {_told(each, scale)}" for head, each in parts.items()
    )
    text += f"; not resolved: {_told(quiet, scale, numbers=False)}." if quiet else "."
    return text + _beyond(table, variant, scale)


@dataclass(frozen=True)
class _Place:
    """A width of a method, or of a method and placement, with its estimates by placement."""

    method: str
    width: str
    estimates: Sequence[tuple[str, Estimate]]
    remark: str = ""


def _told(places: Sequence[_Place], scale: Scale, *, numbers: bool = True) -> str:
    """ "PTQ W8A8, W6A6 (−6.0 to −3.1 pp), QAT 5 epochs W3A3 (post −3.0 pp [−4.0, −2.0])": a
    range for several.
    """
    texts = []
    for method, own in grouped((place.method, place) for place in places).items():
        head = f"{method} {', '.join(each.width for each in own)}".strip()
        if not numbers:
            texts.append(head)
        elif len(own) == 1 or any(each.remark for each in own):
            for each in own:
                told = ", ".join(
                    f"{name} {interval_text(gap, scale)}".strip() for name, gap in each.estimates
                )
                texts.append(f"{method} {each.width} ({told}{each.remark})".strip())
        else:
            every = [
                gap
                for each in own
                for _, gap in each.estimates
                if gap.resolved and not gap.constant
            ]
            texts.append(f"{head} ({ends_text(every, scale)})")
    return ", ".join(texts)


def _placements(cells: Sequence[Quantized], scale: Scale) -> tuple[str, str]:
    """Return what the placements of one width and method say together, and a remark; two "" where
    none is resolved.
    """
    resolved = [cell for cell in cells if cell.resolved]
    if not resolved:
        return "", ""
    ways = sorted({cell.tone for cell in resolved})
    if len(cells) == 1:
        return (
            f"{ways[0]}, measured with {cells[0].treatment.placement or 'one placement'} only",
            "",
        )
    if len(resolved) == len(cells):
        return (
            f"{ways[0]} with every placement" if len(ways) == 1 else "turning with the placement"
        ), ""
    # That one placement resolves a gap and another does not is no difference between the two: the
    # difference of their gaps has a test of its own.
    apart = Compared("", resolved[0].gap, next(cell for cell in cells if not cell.resolved).gap)
    head = (
        f"{' and '.join(ways)} with {listed([cell.treatment.placement for cell in resolved])} only"
    )
    if apart.difference is not None and apart.resolved:
        return (
            f"{head}, the placement's",
            f"; the gaps differ by {interval_text(apart.difference, scale)}",
        )
    return head, ""


def _beyond(table: QuantizationTable, variant: str, scale: Scale) -> str:
    """Whether the gaps are other than the gap that the same networks have in float."""
    plain = table.plain[variant]
    if plain.difference is None or not plain.bracketed:
        return ""
    told = f"In float its gap is {interval_text(plain.difference, scale)}"
    if not plain.resolved:
        return f" {told}, not resolved."
    found = []
    for treatment in table.treatments:
        moved = Compared(
            variant, {} if treatment.after else table.cell(treatment, variant).gap, plain.gap
        )
        if moved.difference is not None and moved.resolved:
            found.append(_Place(treatment.panel, treatment.width, [("", moved.difference)]))
    changed = f"by: {_told(found, scale)}" if found else "nowhere"
    return f" {told} already; quantization changes that gap resolvedly {changed}."


def _coverage(table: QuantizationTable) -> str:
    """The integer share at the widest bits, by placement."""
    first, told = table.treatments[0], []
    for treatment in (
        each
        for each in table.treatments
        if (each.width, each.method) == (first.width, first.method)
    ):
        every = {name: table.values(treatment, name, MACS) for name in table.variants}
        shares = grouped(
            (percent_text(sum(values.values()) / len(values)), name)
            for name, values in every.items()
            if values
        )
        texts = (
            f"{share} for {'every variant' if len(shares) == 1 else ', '.join(names)}"
            for share, names in shares.items()
        )
        told += [f"{treatment.label}: {', '.join(texts)}"] if shares else []
    return sentence("MACs in integers in ONNX Runtime, ", told, "; ")


def _checks(table: QuantizationTable) -> str:
    """The worst of all integer-only networks against the simulation and against their ONNX graphs.

    A network with grids that the simulation lacks is another one: it has no count of unexplained
    differences, and what it differs by is told apart.
    """
    same, other = _by_grids(table)
    parts = _agreement(same)
    if found := list(same.get(UNEXPLAINED, {}).values()):
        count = sum(found)
        parts.append(
            f"leave {count:,.0f} differences unexplained by rounding ties"
            if count
            else "leave no difference unexplained by rounding ties"
        )
    equal = [
        value
        for found in (same, other)
        for value in found.get("integer_onnx_agreement", {}).values()
    ]
    if equal:
        parts.append(f"are equal in every bit to their ONNX graphs on {_least(equal)}")
    text = f"The integer-only networks {listed(parts)}." if parts else ""
    if told := _agreement(other, "its"):
        names = ", ".join(
            dict.fromkeys(variant for found in other.values() for _, variant, _ in found)
        )
        head = (
            "Those with a grid more, at the input of a smooth activation, are other networks than"
            " Brevitas'"
        )
        text += f" {head} ({names}): they {listed(told)}."
    return text


_Found = dict[str, dict[tuple[str, str, int], float]]  # Metric -> step, variant and seed -> value.


def _by_grids(table: QuantizationTable) -> tuple[_Found, _Found]:
    """What the checks found of networks on the simulation's grids, and of others; all are the
    first if none is told.
    """
    metrics = ("integer_agreement", "differing_logits", UNEXPLAINED, "integer_onnx_agreement")
    every: _Found = {
        metric: {
            (treatment.step, name, seed): value
            for treatment in table.treatments
            for name in table.variants
            for seed, value in table.values(treatment, name, metric).items()
        }
        for metric in metrics
    }
    counted = every[UNEXPLAINED] or {place for found in every.values() for place in found}
    same, other = (
        {
            metric: {place: value for place, value in found.items() if (place in counted) is wanted}
            for metric, found in every.items()
        }
        for wanted in (True, False)
    )
    return same, other


def _agreement(found: _Found, whose: str = "Brevitas'") -> list[str]:
    parts = []
    if shares := list(found.get("integer_agreement", {}).values()):
        parts.append(f"give {whose} class on {_least(shares)}")
    if shares := list(found.get("differing_logits", {}).values()):
        parts.append(f"differ from it in at most {percent_text(max(shares))} of a network's logits")
    return parts


def _least(shares: Sequence[float]) -> str:
    return (
        "every sample" if min(shares) == 1 else f"at least {percent_text(min(shares))} of samples"
    )

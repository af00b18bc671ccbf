"""What the accuracies of quantized networks say in words: where variants differ, and what of it is the placement's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite import (
    AREA_SCALE,
    Compared,
    Estimate,
    Finding,
    Scale,
    after_holm,
    ends_text,
    interval_text,
    listed,
    mean_by_seed,
    mean_interval,
    percent_text,
    resolved_text,
)
from pipelines.quantize.report.tables import SOURCES, QuantizationTable, Quantized
from pipelines.quantize.report.text import MACS, table_scale

LEAST_BITS = 3
MARGIN = 0.005  # Half a point: a gap that moves by less moves by nothing that matters.
UNEXPLAINED = "unexplained_differences"
RULE = (
    "A gap that shows only with one placement of the quantizers is not counted as the activation's. It is called the "
    "placement's where the gaps under the two placements differ resolvedly, paired by seed."
)


def overall(tables: Sequence[QuantizationTable]) -> Finding | None:
    """The count of all differences, and each gap's move; None where one workload says it all."""
    cells = [cell for table in tables for cell in table.cells.values() if cell.p is not None]
    if len({table.workload for table in tables}) < 2 or not cells:
        return None
    told = f"{resolved_text(cells, f'differences to {tables[0].baseline}')}."
    sentences = (_pooled(tables, variant) for variant in tables[0].others)
    return Finding("all workloads", told, tuple(filter(None, sentences)))


def _moves(tables: Sequence[QuantizationTable], variant: str) -> dict[str, Estimate]:
    """Method and placement -> how far a variant's gap to the baseline is from its gap in float, at 3 bits and more.

    By seed, the mean over the widths of each workload, then over the workloads: these are fixed, and the interval is
    over seeds. What a workload has not got is left out for all.
    """
    found = {}
    for panel in dict.fromkeys(panel for table in tables for panel in table.panels):
        means = mean_by_seed([_gaps(table, variant, panel) for table in tables])
        if means:
            found[panel] = mean_interval(list(means.values()), magnitude=1.0)
    return found


def _gaps(table: QuantizationTable, variant: str, panel: str) -> dict[int, float]:
    """Seed -> the mean over the widths of the gap less that in float; of the seeds that have all of them."""
    chosen = [each for each in table.panels.get(panel, ()) if not (each.after or each.budget)
              and min(each.weight_bits or 0, each.act_bits or 0) >= LEAST_BITS]  # fmt: skip
    means, plain = mean_by_seed([table.cell(each, variant).gap for each in chosen]), table.plain[variant].gap
    return {seed: mean - plain[seed] for seed, mean in means.items() if seed in plain}


def _pooled(tables: Sequence[QuantizationTable], variant: str) -> str:
    """Which moves are shown to be less than the margin; each by its own 95 % interval, a test of equivalence."""
    found = {panel: each for panel, each in _moves(tables, variant).items() if each.low is not None}
    if not found:
        return ""
    within = [each for each in found.values() if not each.constant and each.low is not None and each.high is not None
              and each.low > -MARGIN and each.high < MARGIN]  # fmt: skip
    told = "; ".join(f"{panel} {interval_text(each, AREA_SCALE)}" for panel, each in found.items())
    verdict = f"by less than {AREA_SCALE.number(MARGIN)} pp in {len(within)} of {len(found)} methods and placements"
    baseline, many = tables[0].baseline, len({table.workload for table in tables})
    source = SOURCES[tables[0].metric]
    return (
        f"{variant}: from float to {LEAST_BITS} bits and more ({source}, mean over {many} workloads and their widths) "
        f"its gap to {baseline} is shown to move {verdict}: {told}."
    )


def finding(table: QuantizationTable) -> Finding:
    """At which widths, with which method and placement the variants differ from the baseline, and what survives."""
    tested = [cell for cell in table.cells.values() if cell.bracketed]
    resolved = {cell.variant for cell in tested if cell.resolved}
    sentences = [_variant_sentence(table, name) for name in table.others if name in resolved]
    quiet = [name for name in table.others if name in {cell.variant for cell in tested} - resolved]
    if quiet:
        every = f"at any width, with any method or placement ({SOURCES[table.metric]})"
        sentences.append(f"{', '.join(quiet)}: no difference is resolved {every}.")
    if elsewhere := _elsewhere(table):
        told = "; ".join(f"{source}: {', '.join(each)}" for source, each in elsewhere.items())
        sentences.append(f"Resolved in other arithmetic, though not there: {told}.")
    sentences += [text for text in (_stand_ins(table), _coverage(table), _checks(table)) if text]
    return Finding(table.workload, _headline(table, tested, sum(map(len, elsewhere.values()))), tuple(sentences))


def _headline(table: QuantizationTable, tested: Sequence[Quantized], elsewhere: int) -> str:
    if not tested:
        paired = any(cell.difference for cell in table.cells.values())
        return "One seed: no interval, so nothing is claimed." if paired else (
            f"No quantized network can be compared with {table.baseline}."
        )  # fmt: skip
    resolved = [cell for cell in tested if cell.resolved]
    of = f"of {len(tested)} differences to {table.baseline} ({SOURCES[table.metric]})"
    more = f"; other arithmetic resolves {elsewhere}{' more' if resolved else ''}" if elsewhere else ""
    if not resolved:
        return f"None {of} is resolved{more}."
    widths = list(dict.fromkeys(each.width for each in table.treatments))
    found = [width for width in widths if any(cell.treatment.width == width for cell in resolved)]
    rest = [width for width in widths if width not in found]
    text = f"{len(resolved)} {of} are resolved, at {listed(found)}"
    text += f"; none at {listed(rest)}" if rest else ""
    return f"{text}; {after_holm(cell.p for cell in tested)}{more}."


def _elsewhere(table: QuantizationTable) -> dict[str, list[str]]:
    """What other accuracies of the same networks resolve where the table's own does not, by what they are of."""
    scale = table_scale(table)
    found: dict[str, list[str]] = {}
    for treatment, name in itertools.product(table.treatments, table.variants):
        own = table.cell(treatment, name)
        for metric, source in SOURCES.items() if not own.resolved and name != table.baseline else ():
            for setting in table.measured.settings(table.workload, name, treatment.step, metric):
                values = [table.values(treatment, each, metric, setting) for each in (name, table.baseline)]
                cell = Compared(name, values[0], values[1])
                if cell.difference is not None and cell.resolved and (metric, setting) != (own.metric, ""):
                    what, told = f"{source}, {setting.replace('=', ' ')}", interval_text(cell.difference, scale)
                    found.setdefault(what if setting else source, []).append(f"{name} {treatment.label} {told}")
    return found


def _variant_sentence(table: QuantizationTable, variant: str) -> str:
    scale = table_scale(table)
    places: dict[tuple[str, str], list[Quantized]] = {}
    for treatment in table.treatments:
        cell = table.cell(treatment, variant)
        if cell.bracketed:
            places.setdefault((treatment.method, treatment.width), []).append(cell)
    parts: dict[str, list[_Place]] = {}
    for (method, width), cells in places.items():
        head, remark = _placements(cells, scale)
        estimates = [(cell.treatment.placement, cell.difference) for cell in cells if cell.difference]
        parts.setdefault(head, []).append(_Place(method, width, estimates, remark))
    quiet = parts.pop("", [])
    text = f"{variant}: " + "; ".join(f"{head}: {_told(each, scale)}" for head, each in parts.items())
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
    """ "PTQ W8A8, W6A6 (−6.0 to −3.1 pp), QAT 5 epochs W3A3 (post −3.0 pp [−4.0, −2.0])": a range for several."""
    texts = []
    for method in dict.fromkeys(each.method for each in places):
        own = [each for each in places if each.method == method]
        head = f"{method} {', '.join(each.width for each in own)}".strip()
        if not numbers:
            texts.append(head)
        elif len(own) == 1 or any(each.remark for each in own):
            for each in own:
                told = ", ".join(
                    f"{placement} {interval_text(gap, scale)}".strip() for placement, gap in each.estimates
                )
                texts.append(f"{method} {each.width} ({told}{each.remark})".strip())
        else:
            every = [gap for each in own for _, gap in each.estimates if gap.resolved and not gap.constant]
            texts.append(f"{head} ({ends_text(every, scale)})")
    return ", ".join(texts)


def _placements(cells: Sequence[Quantized], scale: Scale) -> tuple[str, str]:
    """Of one width and method: what the placements say together, and a remark; two "" where none is resolved."""
    resolved = [cell for cell in cells if cell.resolved]
    if not resolved:
        return "", ""
    ways = sorted({cell.tone for cell in resolved})
    if len(cells) == 1:
        return f"{ways[0]}, measured with {cells[0].treatment.placement or 'one placement'} only", ""
    if len(resolved) == len(cells):
        return f"{ways[0]} with every placement" if len(ways) == 1 else "turning with the placement", ""
    apart = Compared("", resolved[0].gap, next(cell for cell in cells if not cell.resolved).gap)
    head = f"{' and '.join(ways)} with {listed([cell.treatment.placement for cell in resolved])} only"
    if apart.difference is not None and apart.resolved:
        return f"{head}, the placement's", f"; the gaps differ by {interval_text(apart.difference, scale)}"
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
    for each in table.treatments:
        moved = Compared(variant, {} if each.after else table.cell(each, variant).gap, plain.gap)
        if moved.difference is not None and moved.resolved:
            found.append(_Place(each.panel, each.width, [("", moved.difference)]))
    changed = f"by: {_told(found, scale)}" if found else "nowhere"
    return f" {told} already; quantization changes that gap resolvedly {changed}."


def _stand_ins(table: QuantizationTable) -> str:
    """Why some accuracies are not of the integer-only network, where a row says so."""
    reasons: dict[str, dict[str, None]] = {}
    for cell in table.cells.values():
        if cell.mean and cell.reason and not cell.reason.startswith(f"{table.baseline}: "):
            reasons.setdefault(cell.reason, {})[cell.variant] = None
    told = "; ".join(f"{', '.join(variants)} ({reason})" for reason, variants in reasons.items())
    return f"No accuracy of the integer-only network everywhere for {told}." if told else ""


def _coverage(table: QuantizationTable) -> str:
    """The integer share at the widest bits, by placement."""
    first = table.treatments[0]
    widest = [each for each in table.treatments if (each.width, each.method) == (first.width, first.method)]
    told = []
    for treatment in widest:
        shares: dict[str, list[str]] = {}
        for variant in table.variants:
            values = table.values(treatment, variant, MACS)
            if values:
                shares.setdefault(percent_text(sum(values.values()) / len(values)), []).append(variant)
        texts = [f"{share} for {'every variant' if len(shares) == 1 else ', '.join(names)}"
                 for share, names in shares.items()]  # fmt: skip
        told += [f"{treatment.label}: {', '.join(texts)}"] if texts else []
    return f"MACs in integers in ONNX Runtime, {'; '.join(told)}." if told else ""


def _checks(table: QuantizationTable) -> str:
    """The worst of all integer-only networks against the simulation and against their ONNX graphs.

    A network with grids that the simulation lacks is another one: it has no count of unexplained differences, and what
    it differs by is told apart.
    """
    same, other = _by_grids(table)
    parts = _agreement(same)
    if found := list(same.get(UNEXPLAINED, {}).values()):
        count = sum(found)
        parts.append(f"leave {count:,.0f} differences unexplained by rounding ties" if count else
                     "leave no difference unexplained by rounding ties")  # fmt: skip
    equal = [value for found in (same, other) for value in found.get("integer_onnx_agreement", {}).values()]
    if equal:
        parts.append(f"are equal in every bit to their ONNX graphs on {_least(equal)}")
    text = f"The integer-only networks {listed(parts)}." if parts else ""
    if told := _agreement(other, "its"):
        names = dict.fromkeys(variant for found in other.values() for _, variant, _ in found)
        text += (
            " Those with a grid more, at the input of a smooth activation, are other networks than Brevitas' "
            f"({', '.join(names)}): they {listed(told)}."
        )
    return text


_Found = dict[str, dict[tuple[str, str, int], float]]  # Metric -> step, variant and seed -> value.


def _by_grids(table: QuantizationTable) -> tuple[_Found, _Found]:
    """What the checks found of networks on the simulation's grids, and of others; all are the first if none is told."""
    metrics = ("integer_agreement", "differing_logits", UNEXPLAINED, "integer_onnx_agreement")
    every: _Found = {
        metric: {(each.step, name, seed): value for each in table.treatments for name in table.variants
                 for seed, value in table.values(each, name, metric).items()}
        for metric in metrics
    }  # fmt: skip
    counted = every[UNEXPLAINED] or {place for found in every.values() for place in found}
    same, other = (
        {metric: {place: value for place, value in found.items() if (place in counted) is wanted}
         for metric, found in every.items()}
        for wanted in (True, False)
    )  # fmt: skip
    return same, other


def _agreement(found: _Found, whose: str = "Brevitas'") -> list[str]:
    parts = []
    if shares := list(found.get("integer_agreement", {}).values()):
        parts.append(f"give {whose} class on {_least(shares)}")
    if shares := list(found.get("differing_logits", {}).values()):
        parts.append(f"differ from it in at most {percent_text(max(shares))} of a network's logits")
    return parts


def _least(shares: Sequence[float]) -> str:
    return "every sample" if min(shares) == 1 else f"at least {percent_text(min(shares))} of samples"

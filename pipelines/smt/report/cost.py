"""What exact verification costs: what decided each question, seconds, nodes and solver calls; and checked proofs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from evalsuite import Grid, GridCell, Sheet, listed, percent_text, scale_of
from pipelines.smt.report.tables import (
    CALLS,
    NODES,
    PAR2,
    PROOF_BYTES,
    PROOFS,
    SECONDS,
    UNSTABLE,
    ExactTable,
    mean_of,
)

COST_NOTE = (
    "Questions of robustness; all radii, seeds and samples of a variant together. What was decided splits into what "
    "bounds proved, what the attack broke, and what took a search. PAR-2 is the mean of the seconds of a question, an "
    "undecided one counting twice, at its limit where that is of seconds; where it was not measured, mean time counts "
    "it once. The median is of the decided ones. These are clock readings of jobs that ran side by side: no verdicts. "
    "Nodes and unstable neurons are means over the questions; solver calls are all of a network's at one radius. A "
    "neuron of a GELU network is curved whether it is unstable or not."
)
PROOFS_NOTE = (
    "Of the samples that hold, those whose proof was written to a file and checked again by the separate checker, "
    "which recomputes it in exact arithmetic from the network's ONNX file. What holds without one rests on the prover "
    "alone."
)
_SPLIT = "bounds · attack · search"
_COLUMNS = ("decided", _SPLIT, "PAR-2", "mean time", "median", "nodes", "unstable", "solver calls")


def cost_grids(tables: Sequence[ExactTable]) -> list[Grid | None]:
    """A row per workload and variant; a table each for networks as trained, for those after a step, and for integers.

    Columns of which nothing is known are left out.
    """
    kinds: dict[str, list[ExactTable]] = {}
    for table in tables:
        kinds.setdefault(table.label.removeprefix(table.workload), []).append(table)
    return [_cost_grid(own, kind, i) for i, (kind, own) in enumerate(kinds.items())]


def _cost_grid(tables: Sequence[ExactTable], kind: str, place: int) -> Grid | None:
    sheet, made = Sheet(), []
    for table in tables:
        for variant in table.variants:
            if not table.counted(variant).total:
                continue
            line = _costs(table, variant)
            sheet.lines.append({"workload": table.workload, "step": table.step, "after": table.after,
                                "method": table.method, "variant": variant, **line})  # fmt: skip
            made.append((table.workload, variant, [_told(line, each) for each in _COLUMNS]))
    known = [i for i, _ in enumerate(_COLUMNS) if any(cells[i].text != "–" for *_, cells in made)]
    for workload, variant, cells in made:
        sheet.add(workload, variant, *(cells[i] for i in known))
    heads = ("workload", "variant", *(_COLUMNS[i] for i in known))
    name, caption = "exact-cost" + (f"-{place}" if place else ""), f"What was decided, by what, and what it cost{kind}"
    return sheet.grid(name, caption, heads, COST_NOTE)


def _costs(table: ExactTable, variant: str) -> dict[str, float | None]:
    count = table.counted(variant)
    known = bool(count.by)
    bounds, attack = count.by.get("bounds", 0), count.by.get("falsifier", 0)
    seconds = [each for each, decided in table.times.get(variant, ()) if decided]
    par2 = mean_of(table.over_radii(variant, PAR2))
    return {
        "questions": count.total,
        "decided": count.decided,
        "by bounds": bounds if known else None,
        "by attack": attack if known else None,
        "by search": count.decided - bounds - attack if known else None,
        "PAR-2": par2,
        "mean time": mean_of(table.over_radii(variant, SECONDS)) if par2 is None else None,
        "median": median(seconds) if seconds else None,
        "nodes": mean_of(table.over_radii(variant, NODES)),
        "unstable": mean_of(table.over_radii(variant, UNSTABLE)),
        "solver calls": mean_of(table.over_radii(variant, CALLS)),
    }


def _told(line: Mapping[str, float | None], name: str) -> GridCell:
    if name == _SPLIT:
        parts = [line[each] for each in ("by bounds", "by attack", "by search")]
        return GridCell("–" if None in parts else " · ".join(f"{each:,.0f}" for each in parts if each is not None))
    value = line[name]
    if value is None:
        return GridCell("–")
    if name in ("PAR-2", "mean time", "median"):
        return GridCell(scaled_text(value, "s"), sort=repr(value))
    text = scale_of("count", [value]).number(value)
    asked = line["questions"]
    if name == "decided" and asked:
        return GridCell(f"{text} of {asked:,.0f}", f"({percent_text(value / asked)})", repr(value / asked))
    return GridCell(text, sort=repr(value))


def scaled_text(value: float, unit: str) -> str:
    """ "0.21 s", "3.1 ms" or "3.06 kB"."""
    scale = scale_of(unit, [value])
    return f"{scale.number(value)} {scale.unit}"


def proofs_grid(tables: Sequence[ExactTable]) -> Grid | None:
    """How many of the samples that hold have a checked proof; None where no proof was asked for."""
    sheet = Sheet()
    lacks: dict[str, dict[str, None]] = {}
    for table in (each for each in tables if each.has(PROOFS)):
        cells = []
        for variant in table.variants:
            found, size, holds = checked(table, variant), _bytes(table, variant), table.counted(variant).holds
            if not table.counted(variant).total:
                cells.append(GridCell(table.reason(variant), tone="lack"))
                continue
            if holds and not found and (why := proofs_lack(table, variant)):
                lacks.setdefault(why, {})[variant] = None
            told = f"{found or 'none'} of {holds}" if holds else "–"
            mean = f"mean {scaled_text(size / found, 'bytes')}" if found and size else ""
            cells.append(GridCell(told, mean, repr(found)))
            sheet.lines.append({"workload": table.workload, "step": table.step, "after": table.after,
                                "variant": variant, "holds": holds, "checked": found, "bytes": size})  # fmt: skip
        sheet.add(table.label, *cells)
    note = " ".join([PROOFS_NOTE, *(f"None of {listed(names)}: {why}." for why, names in lacks.items())])
    heads = ("workload", *(tables[0].variants if tables else ()))
    return sheet.grid("exact-proofs", "Proofs: samples that hold with a checked proof", heads, note)


def checked(table: ExactTable, variant: str) -> int:
    """How many proofs of a variant were checked, over all seeds and radii."""
    return round(math.fsum(each for at in (*table.radii, None) for each in table.values(variant, PROOFS, at).values()))


def proofs_lack(table: ExactTable, variant: str) -> str:
    """Why no proof of a variant was checked; empty where no row says so."""
    return table.measured.reasons.get((table.workload, variant, table.step, PROOFS), "").partition(": ")[2]


def _bytes(table: ExactTable, variant: str) -> float:
    """Of all checked proofs together: a row has the mean of those of one seed and radius."""
    return math.fsum(mean * table.values(variant, PROOFS, at).get(seed, 0.0) for at in (*table.radii, None)
                     for seed, mean in table.values(variant, PROOF_BYTES, at).items())  # fmt: skip

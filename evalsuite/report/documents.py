"""The report in other forms: Markdown, CSV with exact numbers, LaTeX with booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalsuite.report.content import GUIDE, Content
from evalsuite.report.grids import MARKS, Grid, csv_text
from evalsuite.report.matrix import ALL, matrix_frame
from evalsuite.report.record import NOT_RECORDED
from evalsuite.report.section import Part, Section
from evalsuite.report.tables import TextLine

if TYPE_CHECKING:
    import pandas as pd

_DATA = ("train", "calibration", "validation", "test", "fingerprint")
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "−": r"$-$", "Δ": r"$\Delta$", "×": r"$\times$", "ε": r"$\varepsilon$",
    "ρ": r"$\rho$", "λ": r"$\lambda$", "→": r"$\to$", "≤": r"$\le$", "∞": r"$\infty$",
    "µ": r"$\mu$", "–": "--",  "“": "``", "”": "''", "…": r"\dots{}", "·": r"$\cdot$",
}  # fmt: skip
_RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_PLAIN = str.maketrans(_RAISED, "-0123456789")
_PIECE = re.compile(f"[{_RAISED}]+|.")


def latex(text: str) -> str:
    """Text that LaTeX sets as it reads here, also with an old engine; other characters outside ASCII become "?"."""
    return _PIECE.sub(_latex, " ".join(text.split()))


def _latex(piece: re.Match[str]) -> str:
    found = piece[0]
    if found[0] in _RAISED:
        return f"$^{{{found.translate(_PLAIN)}}}$"
    return LATEX.get(found, found if found.isascii() else "?")


def latex_table(lines: Sequence[TextLine], variants: Sequence[str], caption: str) -> str:
    """A line per metric, a column per variant; the first line of a step names it, and is set apart."""
    rows: list[list[str]] = []
    step = ""
    for line in lines:
        detail = ", ".join(part for part in (line.setting, line.unit_label) if part)
        name = line.label + (f" ({detail})" if detail else "")
        head = "" if line.step == step else r"\addlinespace " * bool(rows) + latex(line.step)
        rows.append([head, *map(latex, (name, *(line.cells[each].plain for each in variants)))])
        step = line.step
    return _booktabs(["step", "metric", *map(latex, variants)], rows, latex(caption))


def latex_grid(grid: Grid, tail: str) -> str:
    """A small table; `tail` ends its caption."""
    rows = [[latex(cell.plain) for cell in row] for row in grid.rows]
    return _booktabs([*map(latex, grid.columns)], rows, latex(f"{grid.caption}. {grid.note} {tail}"))


def _booktabs(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A table that goes on over pages, of texts in LaTeX."""
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=list(head))
    with pd.option_context("styler.render.max_elements", max(frame.size, 1)):  # else a long table is cut off
        table = frame.style.hide(axis="index").to_latex(
            environment="longtable", hrules=True, column_format="l" * len(head), caption=caption
        )
    return f"% Needs \\usepackage{{booktabs,longtable}}.\n{table}"


def _cell(text: object) -> str:
    """Markdown with no way to become a link, HTML or a new column."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(str(text).split()))


def _grid(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table without padding.

    tabulate fills every cell up to its column's widest: our reports would be 1.3 to 3 times as long, and look the same.
    """
    shown = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*shown, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]) + "\n"


def _lines_grid(lines: Sequence[TextLine], variants: Sequence[str]) -> str:
    rows = [
        [line.step, line.label, line.setting, line.unit_label,
         *(line.cells[each].plain + MARKS.get(line.cells[each].better, "") for each in variants)]
        for line in lines
    ]  # fmt: skip
    return _grid(["step", "metric", "setting", "unit", *map(_cell, variants)], rows)


def _frame_grid(frame: pd.DataFrame) -> str:
    return _grid(list(frame.columns), frame.to_numpy().tolist())


def _small(grid: Grid) -> list[str]:
    rows = [[cell.marked for cell in row] for row in grid.rows]
    return [f"**{_cell(grid.caption)}**", _grid([_cell(each) for each in grid.columns], rows), _cell(grid.note)]


def _section(section: Section, part: Part) -> list[str]:
    parts = [f"## {_cell(section.title)}", _cell(section.question)]
    for found in part.findings:
        told = "".join(f"\n  - {_cell(sentence)}" for sentence in found.sentences)
        parts.append(f"- **{_cell(found.subject)}: {_cell(found.headline)}**{told}")
    parts += [part.rule] if part.rule else []
    return parts + [text for grid in [*part.grids, *part.details] for text in _small(grid)]


def _answers(content: Content) -> list[str]:
    parts = ["## The answer"] if content.matrices else []
    for matrix in content.matrices:
        head = ["question", ALL, *matrix.workloads]
        rows = [
            [f"{row.endpoint.question} ({row.measured + ', ' if row.measured else ''}margin {row.margin})",
             *(" ".join(part for part in (cell.words, cell.difference(row.scale) and f"({cell.difference(row.scale)})")
                        if part) for cell in (row.pooled, *row.cells.values()))]
            for row in matrix.rows
        ]  # fmt: skip
        parts += [f"**{_cell(matrix.sentence)}**", *([_grid([_cell(each) for each in head], rows)] if rows else [])]
    return [*parts, *filter(None, [content.unanswered]), _cell(content.answer_guide)] if parts else []


def markdown(content: Content) -> str:
    """report.md: what the page says, without figures."""
    parts = [f"# {_cell(content.question)}", f"{_cell(content.seeds_text)}; baseline {_cell(content.baseline)}.", GUIDE]
    parts += [f"**{text}**" for text in [content.unfinished] if text]
    parts += _answers(content)
    parts.append("## At a glance")
    for workload in content.workloads:
        parts += [f"### {_cell(workload)}", _lines_grid(content.glance(workload), content.variants)]
    parts.append(_cell(content.chance))
    for name, part in content.parts.items():
        parts += _section(content.sections[name], part)
    parts += ["## Verdicts", f"**{content.contradiction_text}**"]
    parts += [_frame_grid(each) for each in (content.contradictions.rows, content.verdicts) if len(each)]
    parts += ["## Failures and gaps", _frame_grid(content.failures) if len(content.failures) else "None."]
    parts += [
        "## All measurements",
        "They are in `tables/comparison.csv`, and report.html shows, filters and draws them.",
    ]
    parts += ["## Terms", "\n".join(f"- **{_cell(word)}**: {_cell(text)}" for word, text in content.terms.items())]
    return "\n\n".join(part.rstrip("\n") for part in [*parts, *_provenance(content)]) + "\n"


def _provenance(content: Content) -> list[str]:
    record = content.record
    facts = [f"- {name}: {_cell(record.text(name))}" for name in ("name", "command", "started", "finished")]
    for key in ("jobs", "versions", "machine"):
        told = ", ".join(f"{name} {value}" for name, value in record.table(key).items())
        facts.append(f"- {key}: {_cell(told or NOT_RECORDED)}")
    data = [list(each.values()) for each in data_lines(content)]
    recipe = "\n".join(f"    {line}" for line in record.text("recipe_text").splitlines())
    return ["## Provenance", "\n".join(facts), _grid(["workload", *_DATA], data), "Recipe:", recipe]


def data_lines(content: Content) -> list[dict[str, str]]:
    """What is recorded of the data of each workload."""
    return [{"workload": each, **{key: content.record.text("data", each, key) for key in _DATA}}
            for each in content.workloads]  # fmt: skip


def file_name(text: str) -> str:
    """A name that is safe in any file system."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip(".-") or "unnamed"


def table_files(content: Content) -> dict[str, str]:
    """File name -> text, for the folder `tables`: exact numbers as CSV, the wide tables as LaTeX."""
    found = {
        "matrix.csv": csv_text(matrix_frame(content.matrices)),
        "comparison.csv": csv_text(content.compared),
        "verdicts.csv": csv_text(content.verdicts),
        "contradictions.csv": csv_text(content.contradictions.rows),
        "failures.csv": csv_text(content.failures),
    }
    tail = f"{content.seeds_text}; mean ± half the 95 % t interval, Δ paired with {content.baseline}."
    for i, workload in enumerate(content.workloads):
        name = file_name(workload)
        if f"{name}-glance.tex" in found:
            name = f"{name}-{i}"
        glance = content.glance(workload)
        if glance:
            found[f"{name}-glance.tex"] = latex_table(glance, content.variants, f"{workload}, {tail}")
    for grid in (grid for part in content.parts.values() for grid in (*part.grids, *part.details)):
        name = file_name(grid.name)
        while f"{name}.tex" in found:
            name += "-table"
        found[f"{name}.tex"] = latex_grid(grid, f"{content.seeds_text}.")
        if grid.frame is not None and len(grid.frame.columns):  # no reader takes a file without a column
            found[f"{name}.csv"] = csv_text(grid.frame)
    return found

"""The report in other forms: Markdown, CSV with exact numbers, LaTeX with booktabs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from evalsuite.report.answer import Answer
from evalsuite.report.grids import MARKS, Grid, csv_text
from evalsuite.report.matrix import matrix_frame
from evalsuite.report.opening import answers_json, best_of, facts_of, ranking_of
from evalsuite.report.record import NOT_RECORDED
from evalsuite.report.run import Run
from evalsuite.report.sentences import lines_of, summary_of
from evalsuite.report.statistics import t_quantile
from evalsuite.report.tables import TextLine

if TYPE_CHECKING:
    import jinja2

_DATA = ("train", "calibration", "validation", "test", "fingerprint")
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
    "ε": r"$\varepsilon$",
    "ρ": r"$\rho$",
    "λ": r"$\lambda$",
    "→": r"$\to$",
    "≤": r"$\le$",
    "∞": r"$\infty$",
    "µ": r"$\mu$",
    "–": "--",
    "“": "``",
    "”": "''",
    "…": r"\dots{}",
    "·": r"$\cdot$",
}
_RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_PLAIN = str.maketrans(_RAISED, "-0123456789")
_PIECE = re.compile(f"[{_RAISED}]+|.")


def filled(name: str, shown: Mapping[str, Any], *, autoescape: bool = False) -> str:
    """A document by its template, always the same for the same values."""
    return _templates(autoescape).get_template(name).render(shown)


@cache
def _templates(autoescape: bool) -> jinja2.Environment:
    """The templates of documents, each of which is compiled once in a process."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("evalsuite.report", "template"),
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["escaped"] = _cell
    environment.globals |= {"marks": MARKS, "not_recorded": NOT_RECORDED, "t_quantile": t_quantile}
    return environment


def latex(text: str) -> str:
    """Text that LaTeX sets as it reads here, also with an old engine; other characters outside
    ASCII become "?".
    """
    return _PIECE.sub(_latex, " ".join(text.split()))


def _latex(piece: re.Match[str]) -> str:
    character = piece[0]
    if character[0] in _RAISED:
        return f"$^{{{character.translate(_PLAIN)}}}$"
    return LATEX.get(character, character if character.isascii() else "?")


def latex_table(lines: Sequence[TextLine], variants: Sequence[str], caption: str) -> str:
    """A line per metric, a column per variant; the first line of a step names it, and is set
    apart.
    """
    rows: list[list[str]] = []
    step = ""
    for line in lines:
        detail = ", ".join(part for part in (line.setting, line.unit_label) if part)
        name = line.label + (f" ({detail})" if detail else "")
        head = "" if line.step == step else r"\addlinespace " * bool(rows) + latex(line.step)
        rows.append(
            [head, *map(latex, (name, *(line.cells[variant].plain for variant in variants)))]
        )
        step = line.step
    return _booktabs(["step", "metric", *map(latex, variants)], rows, latex(caption))


def latex_grid(grid: Grid, tail: str) -> str:
    """A small table; `tail` ends its caption."""
    rows = [[latex(cell.plain) for cell in row] for row in grid.rows]
    return _booktabs(
        [*map(latex, grid.columns)], rows, latex(f"{grid.caption}. {grid.note} {tail}")
    )


def _booktabs(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A table that goes on over pages, of texts in LaTeX."""
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=list(head))
    # else a long table is cut off
    with pd.option_context("styler.render.max_elements", max(frame.size, 1)):
        table = frame.style.hide(axis="index").to_latex(
            environment="longtable", hrules=True, column_format="l" * len(head), caption=caption
        )
    return f"% Needs \\usepackage{{booktabs,longtable}}.\n{table}"


def _cell(text: object) -> str:
    """Markdown with no way to become a link, HTML or a new column."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(str(text).split()))


def markdown(content: Run) -> str:
    """report.md: what the page says, without figures."""
    ranking = ranking_of(content)
    rows = (
        [
            [row.words, *(f"{text} (best)" if best else text for text, best in row.cells)]
            for row in ranking.rows
        ]
        if ranking
        else []
    )
    failed = content.failures
    jobs_failed = failed[failed["metric"] == ""]
    shown = {
        "content": content,
        "jobs_failed": jobs_failed.to_numpy().tolist(),
        "metrics_failed": len(failed) - len(jobs_failed),
        "failure_columns": [*failed.columns],
        "data_columns": ["workload", *_DATA],
        "file_name": file_name,
        "facts": facts_of(content),
        "lines": lines_of(Answer.of(content.matrices[0])) if content.matrices else [],
        "summary": summary_of(Answer.of(content.matrices[0])) if content.matrices else "",
        "best": best_of(content),
        "ranking": ranking,
        "ranked": rows,
        "data": [list(data_line.values()) for data_line in data_lines(content)],
        "looks": [list(line.values()) for line in note_lines(content)],
    }
    return filled("report.md.j2", shown)


def data_lines(content: Run) -> list[dict[str, str]]:
    """List what is recorded of the data of each workload."""
    return [
        {"workload": workload, **{key: content.record.text("data", workload, key) for key in _DATA}}
        for workload in content.workloads
    ]


def note_lines(content: Run) -> list[dict[str, str]]:
    """List what a look at each workload's model and data has found: the order of classes, the
    columns, warnings.
    """
    lines = []
    for workload in content.workloads:
        recorded = content.record.table("data").get(workload)
        notes = recorded.get("notes") if isinstance(recorded, Mapping) else None
        for note in notes if isinstance(notes, list) else ():
            if isinstance(note, list) and len(note) == 2:
                lines.append({"workload": workload, "what": str(note[0]), "finding": str(note[1])})
    return lines


def file_name(text: str) -> str:
    """A name that is safe in any file system."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip(".-") or "unnamed"


def table_files(content: Run) -> dict[str, str]:
    """File name -> text, for the folder `tables`: exact numbers as CSV, what is shown as LaTeX."""
    # 1. What concerns the whole run.
    files = {
        # A run of one variant compares nothing.
        **({"matrix.csv": csv_text(matrix_frame(content.matrices))} if content.matrices else {}),
        **({"answer.json": answers_json(content)} if content.matrices else {}),
        "comparison.csv": csv_text(content.compared),
        "failures.csv": csv_text(content.failures),
    }
    tail = (
        f"{content.seeds_text}; mean ± half the 95 % t interval, Δ paired with {content.baseline}."
    )
    # 2. A glance of each workload; two whose names give the same file name are numbered.
    for number, workload in enumerate(content.workloads):
        name = file_name(workload)
        if f"{name}-glance.tex" in files:
            name = f"{name}-{number}"
        glance = content.glance(workload)
        if glance:
            files[f"{name}-glance.tex"] = latex_table(
                glance, content.variants, f"{workload}, {tail}"
            )
    # 3. Every table of every section: LaTeX of what is shown, and exact numbers of all that has
    # columns.
    parts = content.parts.values()
    shown = [(grid, True) for part in parts for grid in part.grids]
    for grid, printed in shown + [(grid, False) for part in parts for grid in part.details]:
        name = file_name(grid.name)
        while {f"{name}.tex", f"{name}.csv"} & files.keys():
            name += "-table"
        # No reader takes a file without a column.
        framed = grid.frame is not None and len(grid.frame.columns)
        if printed or not framed:  # Nobody prints what is on demand.
            files[f"{name}.tex"] = latex_grid(grid, f"{content.seeds_text}.")
        if grid.frame is not None and framed:
            files[f"{name}.csv"] = csv_text(grid.frame)
    return files

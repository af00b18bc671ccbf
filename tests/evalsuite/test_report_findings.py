"""What a table says in words, whatever it is of."""

from __future__ import annotations

from evalsuite.report.findings import Finding, finding_of, findings_of
from evalsuite.report.grids import Grid, GridCell
from evalsuite.report.statistics import Estimate, mean_interval


def cell(values: list[float], tone: str = "") -> GridCell:
    estimate = mean_interval(values)
    text = f"{estimate.mean:.2f}"
    return GridCell(text, "Δ", repr(estimate.mean), tone, estimate)


def grid(*rows: tuple[GridCell, ...], caption: str = "w, accuracy (%, Δ in pp)") -> Grid:
    heads = ("step", "gelu", "relu", "annealed")
    return Grid("name", caption, heads, rows)


def row(name: str, relu: GridCell, annealed: GridCell) -> tuple[GridCell, ...]:
    return GridCell(name), GridCell("0.9", sort="0.9"), relu, annealed


LOSS, GAIN, NOTHING = [-0.30, -0.31, -0.29], [0.10, 0.11, 0.09], [0.1, -0.1, 0.02]


def test_the_headline_counts_and_the_sentences_place_the_largest() -> None:
    table = grid(
        row("8 bits", cell(GAIN, "better"), cell(NOTHING)),
        row("4 bits", cell(LOSS, "worse"), cell(NOTHING)),
        row("3 bits", cell([0.2, 0.21, 0.19], "better"), cell(NOTHING)),
    )
    assert finding_of(table, "gelu") == Finding(
        "w",
        "Accuracy: of 6 differences to gelu 2 are better and 1 is worse after Holm's adjustment.",
        (
            "relu: better in 2 of 3, most at 3 bits, 0.20 Δ; worse in 1 of 3: 4 bits, -0.30 Δ.",
            "annealed: none is better or worse.",
        ),
    )


def test_without_a_mark_one_sentence_says_so() -> None:
    (finding,) = findings_of([grid(row("8 bits", cell(NOTHING), cell(NOTHING)))], "gelu")
    assert finding.headline.endswith(
        "of 2 differences to gelu none is better or worse after Holm's adjustment."
    )
    assert finding.sentences == ()


def test_a_table_without_a_test_says_nothing() -> None:
    one_seed = Estimate(0.1, None, None, 1, constant=False, p=None)
    bare = GridCell("0.9", difference=one_seed)
    assert findings_of([grid(row("8 bits", bare, bare)), grid()], "gelu") == []

"""The written report: self-contained, escaped, reproducible, and complete for odd runs too."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from report_workshop import (
    CRASH,
    NO_ERF,
    Page,
    csv_lines,
    page_of,
    read_run,
    sample_record,
    sample_rows,
    write_run,
    written_page,
)

from evalsuite.report import write_report
from evalsuite.report.documents import latex_grid
from evalsuite.report.explorer import VERDICTS
from evalsuite.report.grids import Grid, GridCell
from evalsuite.report.page import render
from evalsuite.results import DamagedResults, Row

FEW: dict[str, Any] = {"workloads": ("digits-mlp",), "variants": ("gelu", "relu"), "seeds": (0, 1)}
# Each section's heading, and its tables to print and to compute with, of one workload.
SECTIONS = {
    "Quantization": ["digits-mlp-quantized"],
    "Pruning": ["digits-mlp-pruned", "pruning-areas"],
    "Certified robustness": ["digits-mlp-bounds-certified", "bounds-heights"],
    "Exact verification": ["digits-mlp-smt-smt-verified", "exact-cost"],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of one report, which most tests read."""
    return write_report(
        write_run(tmp_path_factory.mktemp("run") / "quickstart", sample_rows(), sample_record())
    )


@pytest.fixture(scope="module")
def run(written: list[Path]) -> Path:
    return written[0].parent


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return page_of(run)


def test_every_section_is_in_every_document(run: Path, page: Page, written: list[Path]) -> None:
    assert written[0] == run / "report.html"
    # A table without a column would be an empty line.
    assert all(path.stat().st_size > 1 for path in written)
    assert (run / "report.html").stat().st_size < 300_000
    text, links = (
        (run / "report.md").read_text(encoding="utf-8"),
        {each["href"] for each in page.attributes("a")},
    )
    assert {"#section-quantize", "#section-prune", "#section-bounds", "#section-exact"} <= links
    for heading, tables in SECTIONS.items():
        assert heading in page.whole
        assert f"\n## {heading}\n" in text
        for name in tables:
            assert (run / "tables" / f"{name}.csv").is_file()
            assert "?" not in (run / "tables" / f"{name}.tex").read_text(encoding="utf-8")
    # What is shown on demand is no table to print.
    assert {
        "verdicts.csv",
        "digits-mlp-widths.csv",
        "digits-mlp-coverage.csv",
        "digits-mlp-pruning-cost.csv",
        "digits-mlp-pruned-before-tuning.csv",
    } <= {path.name for path in written}


def test_page_refers_to_nothing_outside_itself(page: Page) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            target = attributes.get(name, "#")
            assert target.startswith("#"), (tag, target)
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    assert "url(" not in page.inline["style"]
    assert "@import" not in page.inline["style"]
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|eval\(", page.inline["script"])
    every = [page, *page.parts.values()]
    names = [
        attributes["id"] for each in every for _, attributes in each.tags if "id" in attributes
    ]
    assert len(names) == len(set(names))
    assert {attributes["href"][1:] for each in every for attributes in each.attributes("a")} <= {
        *names
    }


def test_content_policy_admits_exactly_the_style_and_script(page: Page) -> None:
    policy = next(each["content"] for each in page.attributes("meta") if each.get("http-equiv"))
    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        digest = base64.b64encode(hashlib.sha256(page.inline[tag].encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert not {name for name in rules if name.endswith("-src")} - {
        "default-src",
        "style-src",
        "script-src",
        "img-src",
    }
    assert len(page.attributes("style")) == 1
    assert [each.get("type") for each in page.attributes("script")] == [
        "application/octet-stream",
        None,
    ]


def test_figures_are_sound_svg_with_a_text_for_those_who_cannot_see_them(
    run: Path, page: Page
) -> None:
    text = (run / "report.html").read_text(encoding="utf-8") + "".join(page.data["parts"].values())
    figures = re.findall(r"<svg (?!class=.(?:strip|plane)).*?</svg>", text)
    assert len(figures) == 4
    for svg in map(ElementTree.fromstring, figures):
        assert svg.get("aria-label")
        assert {each.tag for each in svg.iter()} <= {
            "svg",
            "defs",
            "clipPath",
            "rect",
            "path",
            "text",
        }
        assert len(list(svg.iter())) < 150
        assert "currentColor" in {each.get("fill") for each in svg}
        assert not [each for each in svg.iter() if each.get("style")]


def test_page_says_what_the_numbers_and_the_record_say(page: Page) -> None:
    for text in (
        "3 seeds (0, 1, 2)",
        NO_ERF,
        CRASH,
        "unsupported (3/3)",
        "0 contradictions in",
        "not adjusted for their number",
        "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
        "torch 2.13.0",
        "memory gib: 7.7",
        "evalsuite run quickstart.yaml",
        "seeds: [0, 1, 2]",
        "n = 2 of 3",
    ):
        assert text in page.whole, text
    assert "nan" not in re.findall(r"[a-z]+", page.text.lower())


def test_tables_sort_by_keyboard_and_tell_their_order(page: Page) -> None:
    columns = [each for each in page.attributes("th") if "aria-sort" in each]
    assert columns
    assert all(each["aria-sort"] == "none" for each in columns)
    assert len([each for each in page.attributes("button") if not each.keys() - {"type"}]) == len(
        columns
    )


@pytest.mark.slow
def test_report_is_the_same_bytes_again_and_for_rows_in_another_order(
    written: list[Path], tmp_path: Path
) -> None:
    jobs: dict[str, list[Row]] = {}
    for row in sample_rows():
        jobs.setdefault(row.key, []).append(row)
    shuffled = [
        row
        for key in sorted(jobs, key=lambda key: hashlib.sha256(key.encode()).digest())
        for row in jobs[key]
    ]
    other = write_run(tmp_path / "quickstart", shuffled, sample_record())
    again = write_report(other)
    assert [path.relative_to(other) for path in again] == [
        path.relative_to(written[0].parent) for path in written
    ]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_csv_holds_exact_numbers(run: Path) -> None:
    rows = csv_lines(run / "tables" / "comparison.csv")
    place = ("digits-mlp", "relu", "accuracy", "accuracy")
    values = [
        row.value
        for row in sample_rows()
        if (row.workload, row.variant, row.step, row.metric) == place
    ]
    found = next(
        each
        for each in rows
        if tuple(each[name] for name in ("workload", "variant", "step", "metric")) == place
    )
    assert float(found["mean"]) == pytest.approx(
        sum(value for value in values if value) / 3, rel=1e-15
    )
    assert all(each["mean"] != "nan" for each in rows)


@pytest.mark.slow
def test_malicious_text_stays_text(tmp_path: Path) -> None:
    evil = (
        "<script>alert(1)</script> \"' 50% $x_1$ \\input{/etc/passwd} & #~^ {a} |"
        " [b](http://example.org)"
    )
    rows = [replace(row, reason=evil) if row.reason else row for row in sample_rows(**FEW)]
    names = {"gelu": "g<u>elu"}
    rows = [
        replace(row, variant=names.get(row.variant, row.variant.replace("relu", "re<i>lu_&")))
        for row in rows
    ]
    rows = [replace(row, workload="w|<b>_%") for row in rows]
    record = sample_record(
        name=evil,
        recipe_text=f"</pre>{evil}",
        command=evil,
        variants=["g<u>elu", "re<i>lu_&"],
        baseline="g<u>elu",
    )
    folder = tmp_path / "run"
    page = written_page(folder, rows, record)
    assert len(page.attributes("script")) == 2
    assert evil in page.text
    assert "re<i>lu_&" in page.text
    assert not page.attributes("i")
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    outside_code = "\n".join(line for line in markdown.splitlines() if not line.startswith("    "))
    assert not re.search(r"(?<!\\)<\w", outside_code)
    assert not re.search(r"(?<!\\)\]\(", outside_code)
    for path in (folder / "tables").glob("*.tex"):
        body = path.read_text(encoding="utf-8").split("\n", 1)[1]
        assert body.isascii()
        assert "\\input" not in body
        assert not re.search(r"(?<!\\)[%#_](?!\{)", body)
        table = re.search(r"\\begin\{longtable\}\{(l+)\}", body)
        assert table
        columns = len(table[1])
        for line in body.splitlines():
            if line.endswith("\\\\") and not line.startswith(("\\multicolumn", "\\caption")):
                assert len(re.findall(r"(?<!\\)&", line)) == columns - 1


def test_latex_tables_go_on_over_pages_and_say_what_they_need(run: Path) -> None:
    for path in (run / "tables").glob("*.tex"):
        text = re.sub(r"\\[{}]", "", path.read_text(encoding="utf-8"))
        assert text.count("{") == text.count("}")
        assert text.isascii()
    text = (run / "tables" / "digits-mlp-glance.tex").read_text(encoding="utf-8")
    assert text.startswith(
        "% Needs"
        " \\usepackage{booktabs,longtable}.\n\\begin{longtable}{lllllll}\n\\caption{digits-mlp, "
    )
    for rule in ("\\toprule", "\\midrule", "\\bottomrule", "\\endhead", "\\endlastfoot"):
        assert rule in text
    rows = [line for line in text.split("\\endlastfoot\n")[1].splitlines() if "&" in line]
    steps = [line.split(" & ")[0].removeprefix("\\addlinespace ") for line in rows]
    named = [step for step in steps if step]
    assert len(named) == len(set(named)) > 1  # each step once, in front of its lines
    assert rows[0].startswith(f"{named[0]} & ")


def test_no_line_of_a_long_latex_table_is_cut_off() -> None:
    with pd.option_context("styler.render.max_elements", 50):
        text = latex_grid(
            Grid(
                "long",
                "Long",
                ("a", "b"),
                tuple((GridCell(str(i)), GridCell("x")) for i in range(200)),
            ),
            "",
        )
    assert [line for line in text.splitlines() if line == "199 & x \\\\"]
    assert sum(line.endswith(" & x \\\\") for line in text.splitlines()) == 200


def test_markdown_tables_are_whole(run: Path) -> None:
    blocks = re.split(r"\n\n+", (run / "report.md").read_text(encoding="utf-8"))
    grids = [block.splitlines() for block in blocks if block.startswith("| ")]
    assert len(grids) >= 6
    for grid in grids:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in grid}) == 1


def test_single_seed_claims_nothing(tmp_path: Path) -> None:
    page = written_page(
        tmp_path / "run", sample_rows(**FEW | {"seeds": (7,)}), sample_record(seeds=[7])
    )
    for text in ("1 seed (7)", "n = 1, no interval", "one seed"):
        assert text in page.whole
    assert set(page.data["cells"]["verdict"]) == {
        VERDICTS.index("not compared"),
        VERDICTS.index("no value"),
    }
    assert not [
        attributes
        for attributes in page.attributes("td")
        if attributes.get("class") in ("better", "worse")
    ]
    assert "✓ better" not in page.whole


ODD_ENTRIES = {
    "data": None,
    "steps": [None, {"name": "accuracy"}],
    "seeds": 3,
    "jobs": [],
    "machine": "x",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "record", "told"),
    [
        (
            lambda row: row if row.variant == "gelu" else None,
            sample_record(variants=["gelu"]),
            "here is a test",
        ),
        (lambda row: row, None, "(not recorded.*){11}"),
        (lambda row: row, {}, "(not recorded.*){11}"),
        (lambda row: row, ODD_ENTRIES, "not recorded"),
        (
            lambda row: None if (row.variant, row.seed, row.step) == ("relu", 1, "smt") else row,
            sample_record(finished=None),
            r"This run has not finished.*absent \(1/2\)",
        ),
        # Variants and stages of others need no change here.
        (
            lambda row: replace(row, variant=f"{row.variant}-mine", stage="mine"),
            {"baseline": "gelu-mine"},
            "^(?!.*none of the headline metrics was measured).*relu-mine",
        ),
    ],
    ids=[
        "the baseline alone",
        "no record",
        "an empty record",
        "odd entries",
        "unfinished",
        "others",
    ],
)
def test_odd_runs_have_a_page_that_says_so(
    change: Callable[[Row], Row | None], record: dict[str, Any] | None, told: str, tmp_path: Path
) -> None:
    rows = [row for row in map(change, sample_rows(**FEW)) if row]
    assert re.search(told, written_page(tmp_path / "run", rows, record).whole, re.DOTALL)


def test_contradictions_are_at_the_top(tmp_path: Path) -> None:
    rows = sample_rows(("digits-mlp",), ("gelu",), (0,), samples=3)
    wrong = [
        (
            replace(row, verdict="violated")
            if (row.setting, row.sample) == ("eps=0.015625, method=pgd", 0)
            else row
        )
        for row in rows
    ]
    page = written_page(tmp_path / "run", wrong, sample_record())
    assert re.search(
        r"[1-9]\d* contradictions in [\d,]+ comparisons: at least one method is wrong", page.text
    )
    assert page.text.index("contradictions in") < page.text.index("Failures and gaps")
    file = tmp_path / "run" / "tables" / "contradictions.csv"
    assert "digits-mlp,gelu," in file.read_text(encoding="utf-8")
    written_page(tmp_path / "run", rows, sample_record())
    # Those of the rows before are gone.
    assert len(file.read_text(encoding="utf-8").splitlines()) == 1


def test_empty_run_and_damaged_record_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no rows: nothing to report yet"):
        write_report(write_run(tmp_path / "empty", []))
    folder = write_run(tmp_path / "damaged", sample_rows(seeds=(0,)))
    (folder / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(DamagedResults, match=r"run\.json: not JSON"):
        write_report(folder)
    (folder / "run.json").write_text(json.dumps({"baseline": "swish"}), encoding="utf-8")
    with pytest.raises(ValueError, match="baseline 'swish' has no rows; this run has gelu"):
        write_report(folder)
    shutil.rmtree(folder)
    with pytest.raises(DamagedResults):
        write_report(folder)


def test_a_stage_that_ran_has_its_section_which_names_steps_of_unknown_options() -> None:
    rows = sample_rows(**FEW)
    parts = read_run(rows, **sample_record()).parts
    found = {
        name: [each.label for each in parts[name].tables[0].treatments]
        for name in ("quantize", "prune")
    }
    assert found == {"quantize": ["quantize-w8", "quantize-w4"], "prune": ["prune"]}
    sections = {"quantize": "quantize", "prune": "prune", "bounds": "bounds", "smt": "exact"}
    assert parts.keys() >= {*sections.values()}
    without = read_run([row for row in rows if row.stage not in sections], **sample_record())
    assert not without.parts.keys() & {*sections.values()}
    shown = {each.get("id") for each in Page(render(without)).attributes("section")}
    assert not shown & {f"section-{name}" for name in sections.values()}

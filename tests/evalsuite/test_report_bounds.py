"""The report's section on certified robustness: heights and intervals against scipy, tables by
hand, what is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from report_workshop import job as job_of
from report_workshop import marked, metric_rows, part_of, read_run
from scipy.stats import ttest_1samp

from evalsuite.contract import Direction, Metric
from evalsuite.report.grids import Grid
from evalsuite.results import Row, Status, failure_row, row_of
from evalsuite.verification.report.radii import is_geometric, radius_axis, radius_text
from pipelines.bounds.report.section import _curves, _points, certified_curves
from pipelines.bounds.report.tables import (
    BoundsTable,
    Height,
    Place,
    bounds_tables,
    heights,
)
from pipelines.bounds.report.text import (
    decisions_grid,
    heights_grid,
    radius_grid,
    shown_radii,
)

HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL
THREE = (0.125, 0.25, 0.5)
EIGHT = tuple(2.0**-k for k in range(8, 0, -1))
# Seeds of the baseline at three radii, and of variants that lie above and below it.
GELU = {0.125: (0.90, 0.92, 0.91), 0.25: (0.60, 0.66, 0.63), 0.5: (0.20, 0.26, 0.22)}
Curve = Mapping[float, Sequence[float | None]]


def beside(*by: float) -> Curve:
    """A variant that differs from the baseline by these at each radius."""
    return {
        eps: tuple(value + each for value, each in zip(values, by, strict=True))
        for eps, values in GELU.items()
    }


UP, NEAR = beside(0.04, 0.05, 0.06), beside(0.02, -0.02, 0.01)
HIGH, LOW = beside(0.050, 0.051, 0.049), beside(-0.050, -0.051, -0.049)


def job(variant: str, seed: int, step: str = "bounds", workload: str = "w") -> dict[str, object]:
    return job_of(variant, seed, step, "bounds", workload)


def rows_of(
    name: str,
    variants: Mapping[str, Curve],
    step: str = "bounds",
    workload: str = "w",
    reason: str = "",
    **setting: Any,
) -> list[Row]:
    """One metric of the seeds 0, 1, ... at each radius; 0 stands for no radius, and a seed with
    None has no row.
    """
    return [
        row
        for variant, curve in variants.items()
        for eps, every in curve.items()
        for row in metric_rows(
            name,
            {variant: every},
            step,
            "bounds",
            workload,
            reason,
            **({"eps": eps} if eps else {}),
            **setting,
        )
    ]


def certified(variants: Mapping[str, Curve], method: str = "crown", **more: Any) -> list[Row]:
    return rows_of("certified_accuracy", variants, method=method, **more)


def attacked(variants: Mapping[str, Curve], **more: Any) -> list[Row]:
    return rows_of("pgd_accuracy", variants, **more)


def table_of(rows: list[Row], **entries: Any) -> BoundsTable:
    (table,) = bounds_tables(read_run(rows, **entries))
    return table


def heights_of(rows: list[Row]) -> dict[str, Height]:
    found = heights(bounds_tables(read_run(rows)))
    return {f"{each.table.label} {each.method} {each.variant}": each for each in found}


@pytest.mark.parametrize(
    ("radii", "logarithmic"),
    [
        (EIGHT, True),
        (THREE, True),
        ((0.01, 0.02, 0.03), False),
        ((1 / 255, 2 / 255, 8 / 255), True),
        ((0.0, 0.1, 1.0), False),
        ((0.1, 1.0), False),
        ((0.1,), False),
        ((), False),
    ],
)
def test_radii_are_on_the_scale_on_which_they_are_even(
    radii: Sequence[float], logarithmic: bool
) -> None:
    assert is_geometric(radii) is logarithmic


@pytest.mark.parametrize(
    ("eps", "text"),
    [
        (0.015625, "1/64"),
        (0.046875, "3/64"),
        (0.75, "3/4"),
        (0.3, "0.3"),
        (1 / 255, "1/255"),
        (8 / 255, "8/255"),
        (0.5, "1/2"),
        (1.0, "1"),
        (2.5, "2.5"),
        (0.0, "0"),
        (0.1, "1/10"),
        (0.03, "0.03"),
        (1e-5, "1e-05"),
    ],
)
def test_radii_read_as_the_fractions_they_are(eps: float, text: str) -> None:
    assert radius_text(eps) == text


@pytest.mark.parametrize(
    ("radii", "axis"),
    [
        ((0.1, 0.2, 0.8), np.log),
        ((0.1, 0.3, 0.4), np.array),
    ],
    ids=["over the logarithm", "even radii, over the radius itself"],
)
def test_height_against_scipy(
    radii: Sequence[float], axis: Callable[[Sequence[float]], Any]
) -> None:
    own = ((0.9, 0.8, 0.9), (0.7, 0.6, 0.5), (0.4, 0.1, 0.2))
    other = ((0.85, 0.8, 0.9), (0.5, 0.55, 0.45), (0.3, 0.15, 0.1))
    curves = {
        "gelu": dict(zip(radii, other, strict=True)),
        "relu": dict(zip(radii, own, strict=True)),
    }
    (found,) = heights(bounds_tables(read_run(certified(curves))))
    x = axis(radii)
    wanted = np.trapezoid(np.subtract(own, other), x, axis=0) / (x[-1] - x[0])
    assert [found.values[seed] for seed in range(3)] == pytest.approx(wanted)
    test = ttest_1samp(wanted, 0.0)
    interval = test.confidence_interval(0.95)
    assert found.difference.mean == pytest.approx(wanted.mean())
    assert [found.difference.low, found.difference.high] == pytest.approx(
        [interval.low, interval.high]
    )
    assert found.p == pytest.approx(test.pvalue)
    assert [found.low, found.high] == pytest.approx([radii[0], radii[-1]])


def test_heights_are_of_the_tightest_method_and_the_attack() -> None:
    curves: dict[str, Curve] = {"gelu": GELU, "relu": UP, "annealed": NEAR}
    rows = [*certified(curves), *certified(curves, "ibp"), *attacked(curves)]
    rows += [*certified(curves, step="l2", norm="l2"), *attacked(curves, step="l2", norm="l2")]
    found = heights_of(rows)
    assert len(found) == 8
    p = float(ttest_1samp([0.04, 0.05, 0.06], 0.0).pvalue)
    for name in ("w, L∞ crown", "w, L2 crown", "w, L2 pgd"):
        assert found[f"{name} relu"].p == pytest.approx(p)
        assert (found[f"{name} relu"].tone, found[f"{name} annealed"].tone) == ("better", "")


def test_radii_that_one_arm_lacks_are_not_bridged() -> None:
    bent = {**GELU, 0.25: (None, 0.0, 0.0)}
    found = heights_of(certified({"gelu": GELU, "relu": bent}))["w crown relu"]
    assert found.values[0] == 0
    assert found.values[1] == pytest.approx(-0.33)


def test_heights_that_there_are_not_have_a_reason() -> None:
    fourth = {0.125: (None, None, None, 0.9), 0.25: (None, None, None, 0.9)}
    curves: dict[str, Curve] = {"gelu": GELU, "one": {0.125: (0.9, 0.8)}, "apart": fourth}
    rows = certified(curves)
    rows += [
        failure_row(job("failed", seed), Status.UNSUPPORTED, "softmax has no bounds")
        for seed in range(3)
    ]
    found = heights_of(rows)
    assert found["w crown one"].reason == "one radius is no curve"
    assert found["w crown apart"].reason == "no seed in common with the baseline"
    assert found["w crown failed"].reason == "unsupported: softmax has no bounds"
    (row,) = [
        row for row in marked(heights_grid(list(found.values()), "gelu")) if row[1] == "crown"
    ]
    assert row[-1] == "unsupported: softmax has no bounds"


def detail_of(rows: Sequence[Row], name: str) -> Grid:
    """The table of a name that the section declares."""
    (grid,) = [each for each in read_run(rows).parts["bounds"].details if each.name == name]
    return grid


def test_decisions_by_hand() -> None:
    left = {eps: tuple(min(1.0, value + 0.05) for value in values) for eps, values in GELU.items()}
    rows = [
        *certified({"gelu": GELU, "relu": UP}),
        *certified({"gelu": GELU, "relu": UP}, "ibp"),
        *attacked({"gelu": left, "relu": left}),
    ]
    # What is measured as undecided comes before what the other two leave.
    measured = rows_of("undecided_fraction", {"gelu": {0.125: (0.3,) * 3}}, method="crown")
    own = table_of([*rows, *measured])
    assert own.values("gelu", Place("undecided_fraction", 0.125, "crown")) == {
        0: 0.3,
        1: 0.3,
        2: 0.3,
    }
    assert own.values("gelu", Place("undecided_fraction", 0.25, "crown")) == pytest.approx(
        {0: 0.05, 1: 0.05, 2: 0.05}
    )
    table = table_of(rows)
    assert (table.methods, table.tightest, table.radii) == (("ibp", "crown"), "crown", THREE)
    grid = decisions_grid(table)
    assert [[cell.marked for cell in row] for row in grid.rows][:3] == [
        ["1/8", "certified", "91.0 ± 2.5", "96.0 [91.7, 100.0] Δ +5.0 [2.5, 7.5] ✓ better"],
        ["1/8", "PGD", "96.0 ± 2.5", "96.0 ± 2.5 Δ 0 in all 3 seeds"],
        # 0.95 - 0.90 and 0.97 - 0.92 differ in the last bit, and are the same share of samples.
        ["1/8", "undecided", "5.0 ± 0", "0 [0, 2.5] Δ −5.0 [−7.5, −2.5]"],
    ]
    assert [row[0].sort for row in grid.rows][::3] == ["0.125", "0.25", "0.5"]
    by_method = detail_of(rows, "w-certified-by-method")
    assert {row[1].text for row in by_method.rows} == {"ibp", "crown"}
    assert len(by_method.rows) == 6
    assert (
        list(grid.frame.query("variant == 'relu' and metric == 'certified_accuracy'")["resolved"])
        == [True] * 3
    )


def test_ratios_of_widths_against_scipy() -> None:
    own, other = (2.0, 3.0, 5.0), (4.0, 5.0, 11.0)
    rows = certified({"gelu": GELU, "relu": UP})
    for metric, more in (
        ("layer_width", {"layer": "0"}),
        ("layer_width", {"layer": "2"}),
        ("bound_width", {}),
    ):
        rows += rows_of(
            metric,
            {"gelu": dict.fromkeys(THREE, other), "relu": dict.fromkeys(THREE, own)},
            method="crown",
            **more,
        )
    table = table_of(rows)
    ratio = table.compared("relu", Place("layer_width", 0.25, "crown", "2")).ratio
    logs = np.log(np.array(own) / np.array(other))
    interval = ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert [ratio.mean, ratio.low, ratio.high] == pytest.approx(
        np.exp([logs.mean(), interval.low, interval.high])
    )
    # Three radii: those at a quarter and at half of the grid; the logits last.
    lines = marked(detail_of(rows, "w-widths"))
    assert sorted({line[3] for line in lines}) == ["1/4", "1/8"]
    assert [line[1] for line in lines if line[3] == "1/8"] == ["0", "2", "–"]
    assert lines[0][4].startswith("6.67")
    assert [shown_radii(each) for each in (EIGHT, THREE[:1], ())] == [[1 / 64, 1 / 16], [0.125], []]


def test_narrower_bounds_are_better_and_unstable_neurons_neither() -> None:
    curves: dict[str, Curve] = {"gelu": HIGH, "relu": GELU}
    rows = [
        *rows_of("bound_width", curves, method="crown"),
        *rows_of("unstable_neurons", curves, method="crown"),
    ]
    table = table_of(rows)
    width, unstable = (
        table.compared("relu", Place(each, 0.25, "crown"))
        for each in ("bound_width", "unstable_neurons")
    )
    assert width.tone == "better"
    assert unstable.resolved
    assert unstable.tone == ""
    none = rows_of(
        "bound_width", {"gelu": {0.25: (0.0, 1.0)}, "relu": {0.25: (1.0, 1.0)}}, method="crown"
    )
    found = table_of(none).compared("relu", Place("bound_width", 0.25, "crown"))
    assert found.ratio is None


def layered(variants: Sequence[str] = ("gelu", "relu")) -> list[Row]:
    rows: list[Row] = []
    for i, metric in enumerate(("layer_width", "unstable_share", "stable_off_share")):
        for layer in ("0", "2"):
            values = {
                name: {eps: (0.1 + i * eps, 0.2 + i * eps, 0.3) for eps in THREE}
                for name in variants
            }
            rows += rows_of(metric, values, method="crown", layer=layer)
    return rows


def test_single_layers_have_tables_of_their_own() -> None:
    content = read_run([*certified({"gelu": GELU, "relu": UP}), *layered()])
    assert {line.metric for line in content.lines} == {"certified_accuracy"}
    assert len([line for line in content.lines if line.raw["relu"]["n_pairs"]]) == 3
    assert set(content.compared["metric"]) > {"layer_width", "unstable_share", "stable_off_share"}
    lines = marked(next(each for each in content.parts["bounds"].details if "stab" in each.name))
    assert [line[0] for line in lines] == ["unstable"] * 4 + ["stable off"] * 4
    (drawing,) = [
        each for each in part_of(content, "bounds").drawings if each.name.startswith("widths-")
    ]
    assert drawing.svg is not None


def test_radii_table() -> None:
    rows = certified({"gelu": GELU, "relu": UP})
    radii: dict[str, Curve] = {"gelu": {0: (0.10, 0.12, 0.11)}, "relu": {0: (0.14, 0.17, 0.17)}}
    reason = "7 of 50 samples hold at the greatest eps: their radius is at least that"
    rows += rows_of("certified_radius", radii, method="crown", reason=reason)
    rows += [
        row_of(
            Metric("certified_radius", 9.0, "input", HIGHER, {"method": "crown"}, sample=3),
            job("gelu", 0),
        )
    ]
    rows.append(
        row_of(
            Metric("certified_radius", None, "input", HIGHER, {"method": "ibp"}, reason="late"),
            job("gelu", 1),
        )
    )
    content = read_run(rows)
    (table,) = part_of(content, "bounds").tables
    low, high = ttest_1samp([0.04, 0.05, 0.06], 0.0).confidence_interval(0.95)
    assert marked(radius_grid([table])) == [
        [
            "w",
            "mean, crown",
            "0.110 ± 0.025",
            f"0.160 ± 0.043 Δ +0.050 [{low:.3f}, {high:.3f}] ✓ better",
        ]
    ]


def with_radii(radii: Mapping[str, Sequence[float]], workload: str = "w", **more: Any) -> list[Row]:
    curves: dict[str, Curve] = {name: {0: values} for name, values in radii.items()}
    return rows_of("certified_radius", curves, workload=workload, method="crown", **more)


def test_the_mean_radius_is_what_the_section_answers_by() -> None:
    """Two workloads, opposite ways; each and their mean are tests of the screen, and the mean
    has the smallest p.
    """
    base, up, down = (0.10, 0.12, 0.11), (0.150, 0.170, 0.161), (0.090, 0.108, 0.100)
    rows = [*certified({"gelu": GELU, "relu": UP}), *with_radii({"gelu": base, "relu": up})]
    rows += [
        *certified({"gelu": GELU, "relu": UP}, workload="v"),
        *with_radii({"gelu": base, "relu": down}, "v"),
    ]
    content = read_run(rows)
    p = [ttest_1samp(np.subtract(each, base), 0.0).pvalue for each in (up, down)]
    assert p[0] < 0.001
    assert 0.001 < p[1] < 0.025
    # Both are marked in the section's table as the screen concludes.
    (grid,) = [each for each in content.parts["bounds"].grids if each.name == "bounds-radii"]
    cells = content.matrices[0].rows[0].cells
    assert [row[-1].tone for row in grid.rows] == [cells[name].tone for name in "wv"]
    assert [row[-1].tone for row in grid.rows] == ["better", "worse"]
    # The one endpoint of the section is the radius; a run without radii is answered by the height
    # of its curve.
    (row,) = content.matrices[0].rows
    assert (row.endpoint.question, row.endpoint.unit, row.endpoint.margin) == (
        "mean certified radius",
        "input",
        1 / 255,
    )
    (row,) = read_run(certified({"gelu": GELU, "relu": UP})).matrices[0].rows
    assert row.endpoint.question == "certified accuracy"


def test_one_seed_claims_nothing() -> None:
    single = {eps: values[:1] for eps, values in GELU.items()}
    content = read_run(certified({"gelu": single, "relu": dict.fromkeys(GELU, (1.0,))}))
    assert not [
        cell.tone
        for grid in part_of(content, "bounds").grids
        for row in grid.rows
        for cell in row
        if cell.tone
    ]


def test_jobs_that_failed_show_with_the_reason() -> None:
    rows = certified({"gelu": GELU})
    rows += [
        failure_row(job("relu", seed), Status.UNSUPPORTED, "w/relu/0/bounds: softmax")
        for seed in range(3)
    ]
    (grid,) = [each for each in part_of(read_run(rows), "bounds").grids if "certified" in each.name]
    assert {row[-1].text for row in grid.rows} == {"unsupported: softmax"}
    none = [failure_row(job(name, 0), Status.CRASHED, "signal 11") for name in ("gelu", "relu")]
    section = part_of(read_run(none, options={"bounds": {"norm": "l2"}}), "bounds")
    assert [row.plain for row in section.grids[0].rows[0]] == [
        "–",
        "",
        "crashed: signal 11",
        "crashed: signal 11",
    ]
    assert heights(section.tables) == []
    failed = read_run(none)
    assert [row.measured for matrix in failed.matrices for row in matrix.rows] == ["mean over ε"]


def test_a_method_without_any_value_is_no_headline_where_another_has_one() -> None:
    lack = Metric(
        "certified_accuracy",
        None,
        "fraction",
        HIGHER,
        {"eps": 0.01, "method": "crown"},
        reason="a graph",
    )
    lacking = [row_of(lack, job(name, 0)) for name in ("gelu", "relu")]
    graph = certified({"gelu": {0.01: [0.5]}, "relu": {0.01: [0.5]}}, "graph-crown")
    (line,) = read_run([*lacking, *graph]).glance("w")
    assert line.setting == "eps=0.01, method=graph-crown"


def test_steps_are_told_apart_by_norm_and_by_what_they_follow() -> None:
    rows = [
        row
        for step, more in (("a", {}), ("b", {"norm": "l2"}), ("c", {}), ("d", {}))
        for row in certified({"gelu": GELU}, step=step, **more)
    ]
    run = read_run(rows, steps=[{"name": "c", "after": "prune"}, {"name": "a"}])
    assert [each.label for each in part_of(run, "bounds").tables] == [
        "w, L∞, a",
        "w, L2",
        "w, L∞, after prune",
        "w, L∞, d",
    ]


FIVE = ("gelu", "gelu-swap", "swap-refit", "annealed", "relu")


def test_curves_of_five_variants_at_eight_radii_stay_apart() -> None:
    flat = dict.fromkeys(EIGHT, (0.5, 0.6, 0.4))
    table = table_of(certified(dict.fromkeys(FIVE, flat)))
    axes = Figure().subplots()
    radius_axis(axes, EIGHT)
    assert axes.get_xscale() == "log"
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["", "1/128", "", "1/32", "", "1/8", "", "1/2"]
    _curves(axes, _points(table, FIVE, "certified_accuracy", "crown"), EIGHT, dashed=False)
    bars = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    drawn: list[Any] = [each.lines[0].get_xdata() for each in bars]
    places = [np.log(np.array(each, dtype=float)) for each in drawn]
    order = [place[i] for i in range(8) for place in places]
    assert len(order) == 40
    assert np.all(np.diff(order) > 0)
    # Five in a group, and as much room again to the next one at least.
    widest = max(places[-1][i] - places[0][i] for i in range(8))
    assert widest <= math.log(2) / 2 + 1e-12


def test_a_figure_for_each_norm() -> None:
    rows = [*certified({"gelu": GELU}), *certified({"gelu": GELU}, step="l2", norm="l2")]
    drawings = certified_curves(part_of(read_run(rows), "bounds").tables)
    assert [(each.name, each.title) for each in drawings] == [
        ("certified-w", "Certified accuracy, w, L∞"),
        ("certified-w-l2", "Certified accuracy, w, L2"),
    ]
    assert all("log scale" in each.caption and each.svg for each in drawings)
    single = certified_curves([table_of(certified({"gelu": {0.5: (0.5,)}}))])
    assert [each.reason for each in single] == [
        "certified_accuracy needs values at two eps at least"
    ]


def many() -> list[Row]:
    curve = {eps: (0.9 - eps, 0.8 - eps, 0.85 - eps) for eps in EIGHT}
    rows = attacked({"gelu": curve, "relu": curve})
    for method in ("ibp", "crown", "alpha-crown"):
        rows += certified({"gelu": curve, "relu": curve}, method)
        rows += rows_of("undecided_fraction", {"gelu": curve}, method=method)
    return [*rows, *layered()]


def test_many_radii_do_not_flood_the_headlines_and_figures() -> None:
    content = read_run(many())
    assert [line.setting for line in content.glance("w")] == [
        f"eps={eps:g}, method=alpha-crown" for eps in EIGHT[:4]
    ]
    looser = [*certified({"gelu": GELU}, "crown"), *certified({"gelu": GELU}, "ibp")]
    found = read_run(looser).glance("w")
    assert [line.setting for line in found] == [f"eps={eps}, method=crown" for eps in THREE]
    (drawing,) = [
        each for each in part_of(content, "bounds").drawings if each.name == "certified-w"
    ]
    assert (
        "The last panel: what PGD did not break and alpha-crown did not prove." in drawing.caption
    )

"""What README and the documents claim, computed once more from the committed rows, by other code
than the report's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
STUDIES = (ROOT / "docs/studies.md").read_text(encoding="utf-8")
SIGNS = {"−": "-"}
NUMBER = r"([−+]?[\d.]+)"
CELL = re.compile(
    rf"\[([\w-]+)\]\(\.\./reports/([\w-]+)/report\.md\) {NUMBER} (\w+(?: units)?)"
    rf" (?:\[{NUMBER}, {NUMBER}\]|in all (\d+) seeds)([^;|]*)"
)
MEAN = re.compile(rf"^\*\*([^*]+)\*\* {NUMBER} (\w+(?: units)?)(?: \[{NUMBER}, {NUMBER}\])?")
# Of which the answer says that nothing can be told: clocks, and brackets of open questions.
UNTOLD = {
    "relative latency in 8 bits (ONNX Runtime)",
    "accuracy after pruning, at equal latency (ONNX Runtime)",
    "accuracy verified exactly",
    "questions left undecided",
}
FACTORS = {"pp": 100.0, "bits": 1.0, "input units": 1.0}
OLD = {
    "reluize",
    "reluize-text",
    "reluize-gated",
    "quantize",
    "quantize-vit",
    "prune",
    "bounds",
    "bounds-norms",
}


@cache
def rows(study: str) -> pd.DataFrame:
    columns = ["workload", "variant", "seed", "step", "metric", "setting", "sample", "value"]
    frame = pd.read_parquet(ROOT / "reports" / study / "results.parquet", columns=columns)
    return frame[frame["sample"].isna() & frame["value"].notna()]


def gap(study: str, workload: str, steps: str, metric: str, setting: str = "") -> pd.Series:
    """Annealed less GELU by seed: the mean over the steps and settings that match."""
    frame = rows(study)
    own = frame[
        (frame["workload"] == workload)
        & frame["step"].str.fullmatch(steps)
        & (frame["metric"] == metric)
        & frame["setting"].str.fullmatch(setting)
    ]
    means = own.groupby(["seed", "variant"])["value"].mean().unstack()
    return (means["annealed"] - means["gelu"]).dropna()


def pruned(study: str, workload: str, metric: str) -> pd.Series:
    """The quality of pruned networks: at the one sparsity, or the mean height over the share of
    MACs left.
    """
    frame = rows(study)
    own = frame[(frame["workload"] == workload) & frame["step"].str.startswith("prune")]
    if own["step"].nunique() == 1:
        return gap(study, workload, "prune.*", metric)

    def height(network: pd.DataFrame) -> float:
        points = network.pivot_table(index="step", columns="metric", values="value").sort_values(
            "mac_fraction"
        )
        share = points["mac_fraction"].to_numpy()
        return float(np.trapezoid(points[metric], share) / (share[-1] - share[0]))

    chosen = own[own["metric"].isin([metric, "mac_fraction"])]
    heights = {place: height(network) for place, network in chosen.groupby(["seed", "variant"])}
    table = pd.Series(heights).unstack()
    return table["annealed"] - table["gelu"]


W8, W4 = r"(quantize-)?w8(-both-sides)?", r"(quantize-)?w4(-both-sides)?"
CLAIMS: dict[str, Callable[[str, str], pd.Series]] = {
    "accuracy in float": lambda study, name: gap(study, name, "accuracy", "accuracy"),
    "accuracy in float with SGD": lambda study, name: gap(study, name, "accuracy", "accuracy"),
    "bits per byte in float": lambda study, name: gap(study, name, "accuracy", "bits_per_byte"),
    "accuracy in 8 bits": lambda study, name: gap(study, name, W8, "integer_accuracy"),
    "accuracy in 4 bits": lambda study, name: gap(study, name, W4, "integer_accuracy"),
    "bits per byte in 8 bits": lambda study, name: gap(study, name, W8, "integer_bits_per_byte"),
    "bits per byte in 4 bits": lambda study, name: gap(study, name, W4, "integer_bits_per_byte"),
    "share of 8-bit multiplications (ONNX Runtime)": lambda study, name: gap(
        study, name, W8, "integer_mac_fraction"
    ),
    "accuracy after pruning, at equal multiplications": lambda study, name: pruned(
        study, name, "accuracy"
    ),
    "bits per byte after pruning, at equal multiplications": lambda study, name: pruned(
        study, name, "bits_per_byte"
    ),
    "accuracy under attack": lambda study, name: gap(
        study, name, "bounds", "pgd_accuracy", "eps=.*"
    ),
    "certified accuracy": lambda study, name: gap(
        study, name, "bounds", "certified_accuracy", ".*method=ibp"
    ),
    "mean certified radius": lambda study, name: gap(
        study, name, "bounds", "certified_radius", ".*method=crown"
    ),
}


def lines() -> dict[str, tuple[str, str]]:
    """Question -> the cell of its mean, and that of its workloads, of the table of answers."""
    block = STUDIES.partition("<!-- answers table -->\n")[2].partition("<!-- end -->")[0]
    table = block.splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]
    return {
        cell[0].partition(" (margin")[0]: (cell[1] if len(cell) == 3 else "", cell[-1])
        for cell in cells
    }


def parts(text: str) -> dict[str, str]:
    """Part of the answer -> its lines."""
    return dict(re.findall(r"^- \*\*([^*]+)\*\*:(.*(?:\n    - .*)*)$", text, re.M))


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def close(text: str, value: float) -> bool:
    """Whether a printed number is a value, rounded."""
    digits = len(text.partition(".")[2])
    return abs(number(text) - value) <= 0.51 * 10.0**-digits


@pytest.mark.parametrize("question", list(CLAIMS))
def test_every_number_of_the_answer_is_what_the_rows_say(question: str) -> None:
    mean, workloads = lines()[question]
    cells = CELL.findall(workloads)
    assert cells
    assert workloads.count("](../reports/") == len(cells)
    samples = []
    for name, study, middle, unit, low, high, same, words in cells:
        assert study not in OLD
        factor = FACTORS[unit]
        gaps = CLAIMS[question](study, name).to_numpy()
        samples.append(gaps)
        assert close(middle, factor * gaps.mean()), (name, middle, factor * gaps.mean())
        if same:
            assert np.ptp(gaps) < 1e-12
            assert len(gaps) == int(same)
            continue
        ends = stats.ttest_1samp(gaps, 0.0).confidence_interval(0.95)
        assert close(low, factor * ends.low)
        assert close(high, factor * ends.high)
        resolved = "**costs" in words or "**helps" in words
        assert not resolved or ends.low * ends.high > 0
    if mean and np.ptp(samples[0]) > 1e-12:
        assert_mean(mean, samples)


def assert_mean(cell: str, samples: list[np.ndarray]) -> None:
    """The mean of the workloads' means; the variance of each, and Satterthwaite's degrees of
    freedom.
    """
    match = MEAN.match(cell)
    assert match
    _, middle, unit, low, high = match.groups()
    count = len(samples)
    variances = np.array([sample.var(ddof=1) / len(sample) for sample in samples])
    degrees = variances.sum() ** 2 / sum(
        v**2 / (len(s) - 1) for v, s in zip(variances, samples, strict=True)
    )
    center = np.mean([sample.mean() for sample in samples])
    half = stats.t.ppf(0.975, degrees) * math.sqrt(variances.sum()) / count
    for text, value in ((middle, center), (low, center - half), (high, center + half)):
        assert close(text, FACTORS[unit] * value)


def test_the_answer_leaves_out_no_question_and_no_resolved_cost() -> None:
    assert lines().keys() == CLAIMS.keys() | UNTOLD
    bullets = parts(README)
    for question, (mean, workloads) in lines().items():
        for name, _, middle, _, _, _, _, words in CELL.findall(workloads):
            for word, part in (("**costs", "Costs"), ("**mixed", "Costs"), ("**helps", "Buys")):
                assert (word in words) <= (f"{name} {middle}" in bullets[part]), (question, name)
            assert question not in UNTOLD or "**" not in words
        assert ("**costs" in mean) <= (question in bullets["Costs"])
    # What a review found resolved, after the reports' own adjustment, and told nowhere. Two of
    # them are of three seeds, which cannot tell an effect from skewed differences.
    for few in ("cifar10-resnet8 −0.37 pp", "cifar10-resnet8 −7.83 pp"):
        assert f"{few} [" in bullets["Cannot be told"]
    for cost in (
        "fashion-mlp −0.27 pp",
        "fashion-mlp −0.18 pp",
        "adult-mlp −0.15 pp",
        "the mean over these 3 workloads −2.53 pp",
        "the mean over these 5 workloads −0.24 pp",
    ):
        assert cost in bullets["Costs"]


def test_no_clock_and_no_old_language_model_feeds_the_answer() -> None:
    answer = README.partition("<!-- answers -->")[2].partition("<!-- end -->")[0]
    assert "text-gpt" not in answer
    assert "10.6" not in answer
    bullets = parts(answer)
    assert (
        "latency" not in bullets["Buys"] + bullets["Costs"] + bullets["No difference that matters"]
    )
    assert "pydoc-gpt" not in lines()["accuracy in float"][1]


def test_the_conclusions_in_the_studies_are_the_answers() -> None:
    """Each number of a generated conclusion stands in the table of answers beside the same
    workload and study.
    """
    blocks = re.findall(r"<!-- conclusions ([\w-]+) -->\n(.*?)<!-- end -->", STUDIES, re.S)
    assert {name for name, _ in blocks} >= {
        "cifar10",
        "downstream",
        "language",
        "language-downstream",
        "ablations",
    }
    for study, text in blocks:
        number_ = rf"([\w-]+) {NUMBER} (?:pp|bits|input units)(?= \[| in all)"
        for name, middle in re.findall(number_, text):
            assert f"[{name}](../reports/{study}/report.md) {middle}" in STUDIES
    superseded = re.findall(r"<!-- superseded ([\w-]+) -->\n\*Superseded\* by", STUDIES)
    assert set(superseded) == {"reluize", "quantize", "prune", "bounds", "quantize-vit"}


@pytest.mark.parametrize(
    ("study", "line", "workloads", "steps", "metric"),
    [
        (
            "downstream",
            "4-bit integers, points",
            ("fashion-mlp", "adult-mlp"),
            W4,
            "integer_accuracy",
        ),
        (
            "downstream",
            "half of the channels, points",
            ("fashion-mlp", "adult-mlp"),
            "prune-50",
            "accuracy",
        ),
        (
            "language-downstream",
            "4-bit integers, bits",
            ("pydoc-gpt",),
            W4,
            "integer_bits_per_byte",
        ),
        (
            "language-downstream",
            "half of the features, bits",
            ("pydoc-gpt",),
            "prune-50",
            "bits_per_byte",
        ),
    ],
)
def test_deployed_quality_is_the_tested_endpoint(
    study: str, line: str, workloads: tuple[str, ...], steps: str, metric: str
) -> None:
    block = STUDIES.partition(f"<!-- contrasts {study} -->")[2].partition("<!-- end -->")[0]
    (found,) = re.findall(rf"^\| {line} \| `annealed` − `gelu` \| (.*) \|$", block, re.M)
    cells = found.split(" | ")
    gaps = [gap(study, name, steps, metric).to_numpy() for name in workloads]
    p = [stats.ttest_1samp(own, 0.0).pvalue for own in gaps]
    for place, own in enumerate(gaps):
        middle, low, high = re.findall(NUMBER, cells[3 * place])
        ends = stats.ttest_1samp(own, 0.0).confidence_interval(0.95)
        factor = 100.0 if "points" in line else 1.0
        assert close(middle, factor * own.mean())
        assert close(low, factor * ends.low)
        assert close(high, factor * ends.high)
        assert float(cells[3 * place + 1]) >= p[place] * 0.99  # tested, and adjusted
    beside = re.findall(
        r"^\| [^|]*less float[^|]*\| `annealed` − `gelu` \| [^|]*\|([^|]*)\|([^|]*)\|", block, re.M
    )
    assert beside
    assert {cell.strip() for cells in beside for cell in cells} == {""}  # shown, and not tested


def test_the_advice_has_the_answers_numbers() -> None:
    """What is said by hand of whether to ReLU-ize."""
    text = " ".join((ROOT / "docs/should-i-relu-ize.md").read_text(encoding="utf-8").split())
    bullets = parts(README)
    for said, number_ in (
        (
            "by 0.24 points on average over five data sets",
            "the mean over these 5 workloads −0.24 pp",
        ),
        ("in 8 bits, by 0.22 over three", "the mean over these 3 workloads −0.22 pp"),
        ("up to 0.2 points more on two of three", "fashion-mlp −0.18 pp"),
    ):
        assert said in text
        assert number_ in bullets["Costs"]
    # Of three seeds: it is said, and that it is no conclusion.
    assert "by 7.8 points on average over two radii" in text
    assert "cifar10-resnet8 −7.83 pp" in bullets["Cannot be told"]
    assert "too few to tell an effect from skewed differences" in text
    assert "a language model is better by 0.025 bits per byte" in text
    assert "pydoc-gpt −0.0249 bits" in bullets["Buys"]

"""Scores of single test samples: from a task's tallies over the run's file to the answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from report_workshop import job, metric_rows, write_run
from scipy import stats

from evalsuite.contract import Direction, Metric, SampleScores, Split, Task
from evalsuite.report.answer import Answer, Kind
from evalsuite.report.opening import terminal_lines
from evalsuite.report.run import Run
from evalsuite.results import DamagedResults, Row, row_of
from evalsuite.scores_file import SCORES_FILE, read_scores, write_scores
from evalsuite.tasks import (
    Classification,
    Embedding,
    LanguageModel,
    MultiLabel,
    Regression,
    Score,
    TokenClassification,
    score,
)
from evalsuite.tasks.samples import sample_tallies
from evalsuite.tasks.score import worsening

COUNT = 60


def _identity(inputs: torch.Tensor) -> torch.Tensor:
    return inputs


def _cases() -> list[tuple[Task, torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)

    def reals(*shape: int) -> torch.Tensor:
        return torch.randn(COUNT, *shape, generator=draw)

    def classes(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(most, (COUNT, *shape), generator=draw)

    tokens, labels, values = classes(5, 7), classes(2, 4), reals(2)
    tokens[torch.rand(COUNT, 7, generator=draw) < 0.3] = -100
    labels[3, 1] = labels[8] = -100
    values[5, 0] = torch.nan
    return [
        (Classification(), reals(5), classes(5)),
        (TokenClassification(), reals(7, 5), tokens),
        (LanguageModel(), reals(7, 5), classes(5, 7)),
        (MultiLabel(), reals(4), labels),
        (Regression(), reals(2), values),
        (Regression(), reals(1), reals()),
        (Embedding(), reals(4), reals(4)),
    ]


CASES = _cases()


@pytest.mark.parametrize(("task", "outputs", "targets"), CASES)
def test_tallies_of_samples_add_up_to_that_of_all(
    task: Task, outputs: torch.Tensor, targets: torch.Tensor
) -> None:
    single = sample_tallies(task, outputs, targets)
    assert single is not None
    assert len(single) == COUNT
    alone = torch.stack([task.tally(outputs[i : i + 1], targets[i : i + 1]) for i in range(COUNT)])
    assert torch.allclose(single, alone, atol=1e-12)
    assert torch.allclose(single.sum(0), task.tally(outputs, targets), atol=1e-12)


@pytest.mark.parametrize(("task", "outputs", "targets"), CASES)
def test_scores_of_samples_have_the_metric_as_their_mean(
    task: Task, outputs: torch.Tensor, targets: torch.Tensor
) -> None:
    split = Split(outputs, targets, task)
    for metric in score(_identity, split, batch=17).metrics:
        assert metric.scores is not None
        values = metric.scores.values()
        assert values.shape == (int(split.labelled.sum()),)
        assert values.mean().item() == pytest.approx(metric.value, abs=1e-9)
        assert (metric.scores.blocks is not None) == isinstance(task, LanguageModel)


def test_scores_of_a_mean_are_the_samples_own() -> None:
    task, outputs, targets = CASES[0]
    accuracy, nll = score(_identity, Split(outputs, targets, task)).metrics
    assert accuracy.scores is not None
    assert nll.scores is not None
    right = (outputs.argmax(1) == targets).double()
    assert torch.equal(accuracy.scores.values(), right)
    losses = torch.nn.functional.cross_entropy(outputs.double(), targets, reduction="none")
    assert torch.allclose(nll.scores.values(), losses, atol=1e-9)


def test_scores_of_a_root_move_as_its_derivative_says() -> None:
    # RMSE's influence of a sample is (error² - mean) / (2 RMSE).
    draw = torch.Generator().manual_seed(1)
    outputs, targets = (torch.randn(4000, generator=draw) for _ in range(2))
    rmse = score(_identity, Split(outputs[:, None], targets, Regression())).metrics[0]
    assert rmse.scores is not None
    assert rmse.value is not None
    squares = (outputs - targets).double().square()
    influence = rmse.value + (squares - squares.mean()) / (2 * rmse.value)
    assert torch.allclose(rmse.scores.values(), influence, atol=0.01)


def test_a_text_has_blocks_of_windows_that_follow_one_another() -> None:
    split = Split(torch.randn(200, 3, 5), torch.randint(5, (200, 3)), LanguageModel())
    scores = score(_identity, split).metrics[0].scores
    assert scores is not None
    assert scores.blocks is not None
    assert scores.blocks.tolist() == sorted(scores.blocks.tolist())
    assert scores.blocks.unique(return_counts=True)[1].tolist() == [4] * 50


@dataclass(frozen=True)
class _Weighted(Classification):
    """A subclass that changes the tally alone: the parent's tallies are not of it."""

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 2 * super().tally(outputs, targets)


@dataclass(frozen=True)
class _OfMany(Classification):
    """Takes no sample alone."""

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(targets) < 2:
            raise RuntimeError("two samples at least")
        return super().tally(outputs, targets)


def test_a_task_that_changes_its_tally_is_asked_itself() -> None:
    _, outputs, targets = CASES[0]
    single = sample_tallies(_Weighted(), outputs, targets)
    assert single is not None
    assert torch.allclose(single.sum(0), _Weighted().tally(outputs, targets), atol=1e-12)
    found = score(_identity, Split(outputs, targets, _OfMany()))
    assert found.headline.value == pytest.approx(
        score(_identity, Split(outputs, targets, Classification())).headline.value
    )
    assert found.headline.scores is None


def test_the_file_keeps_what_belongs_to_its_metric_alone(tmp_path: Path) -> None:
    task, outputs, targets = CASES[2]
    bits = score(_identity, Split(outputs, targets, task)).metrics[0]
    stale = replace(bits, name="of_another", value=1.0)
    worse = worsening(bits, replace(bits, name="bits"))
    assert worse.scores is None
    assert (
        write_scores([stale, worse, Metric("size", 1.0, "bytes", Direction.LOWER)], tmp_path)
        is None
    )
    assert read_scores(tmp_path) == {}
    named = replace(bits, name="runtime_bits", setting={"bits": 8})
    assert write_scores([stale, bits, named], tmp_path) == tmp_path / SCORES_FILE
    kept = read_scores(tmp_path)
    assert list(kept) == [("bits_per_token", ""), ("runtime_bits", "bits=8")]
    found = kept["runtime_bits", "bits=8"]
    assert bits.scores is not None
    assert np.allclose(found.values, bits.scores.values().numpy(), atol=1e-6)
    assert found.blocks is not None
    assert found.blocks.tolist() == bits.scores.blocks.tolist()  # type: ignore[union-attr]


def test_outputs_that_are_known_have_the_same_scores() -> None:
    task, outputs, targets = CASES[0]
    split = Split(outputs, targets, task)
    known, run = Score.of(outputs, split), score(_identity, split)
    for one, other in zip(known.metrics, run.metrics, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-12)
        assert one.scores is not None
        assert other.scores is not None
        assert torch.allclose(one.scores.values(), other.scores.values(), atol=1e-9)
    first = Score.of(outputs[:20], split).headline
    assert first.value == (outputs[:20].argmax(1) == targets[:20]).double().mean().item()
    assert first.scores is not None
    assert len(first.scores.values()) == 20


def _scored(
    folder: Path, variant: str, seed: int, values: Sequence[float], name: str = "accuracy"
) -> Row:
    """The row of an accuracy, with the file that a run keeps of it."""
    held = torch.tensor(values, dtype=torch.float64)
    metric = Metric(
        name,
        held.mean().item(),
        "fraction",
        Direction.HIGHER,
        scores=SampleScores(lambda: held),
    )
    write_scores([metric], folder / "artefacts" / "w" / variant / str(seed) / "accuracy")
    return row_of(metric, job(variant, seed))


def _right(count: int, both: int, own: int, other: int) -> tuple[list[float], list[float]]:
    """Two networks' right and wrong answers: of the variant, and of the baseline."""
    neither = count - both - own - other
    variant = [1.0] * both + [1.0] * own + [0.0] * other + [0.0] * neither
    baseline = [1.0] * both + [0.0] * own + [1.0] * other + [0.0] * neither
    return variant, baseline


def _answer(folder: Path, rows: list[Row]) -> Answer:
    run = Run.of(write_run(folder, rows, {"baseline": "gelu"}))
    return Answer.of(run.matrices[0])


def _of_one_network(folder: Path, *counts: int) -> Answer:
    own, other = _right(*counts)
    return _answer(folder, [_scored(folder, "gelu", 0, other), _scored(folder, "relu", 0, own)])


def test_one_network_gets_an_answer_from_its_samples(tmp_path: Path) -> None:
    worse = _of_one_network(tmp_path / "worse", 1000, 900, 5, 40)
    (statement,) = worse.part(Kind.COSTS)["accuracy in float"]
    assert statement.cell.p_adjusted == pytest.approx(stats.binomtest(5, 45).pvalue)
    assert statement.record["counts"] == {"both": 900, "own": 5, "other": 40, "neither": 55}
    assert statement.record["replicates"] == "test samples"
    assert statement.record["n"] == 1000
    same = _of_one_network(tmp_path / "same", 5000, 4800, 15, 15)
    assert list(same.part(Kind.SAME)) == ["accuracy in float"]
    open_ = _of_one_network(tmp_path / "open", 300, 280, 3, 3)
    (statement,) = open_.part(Kind.UNKNOWN)["accuracy in float"]
    assert statement.cell.needed == pytest.approx(6300, rel=0.05)
    better = _of_one_network(tmp_path / "better", 1000, 900, 40, 5)
    assert list(better.part(Kind.BUYS)) == ["accuracy in float"]


def test_terminal_and_page_say_what_one_network_speaks_of(tmp_path: Path) -> None:
    from evalsuite.report import write_report

    _of_one_network(tmp_path, 1000, 900, 5, 40)
    head, *lines = terminal_lines(Run.of(tmp_path))
    assert "of these networks, on samples like these" in head
    assert any("3.5 points lower [2.3, 5.0]" in line for line in lines)
    page = write_report(tmp_path)[0].read_text(encoding="utf-8")
    assert "on samples like these" in page
    told = json.loads((tmp_path / "tables" / "answer.json").read_text(encoding="utf-8"))
    assert told["answers"][0]["statements"][0]["n"] == 1000


def test_without_scores_one_seed_stays_without_an_answer(tmp_path: Path) -> None:
    rows = metric_rows("accuracy", {"gelu": [0.9], "relu": [0.8]})
    answer = _answer(tmp_path, rows)
    assert list(answer.part(Kind.UNKNOWN)) == ["accuracy in float"]


def test_scores_of_other_rows_conclude_nothing(tmp_path: Path) -> None:
    own, other = _right(1000, 900, 5, 40)
    kept = [_scored(tmp_path, "gelu", 0, other), _scored(tmp_path, "relu", 0, own)]
    moved = [kept[0], replace(kept[1], value=0.99)]
    assert list(_answer(tmp_path, moved).part(Kind.UNKNOWN)) == ["accuracy in float"]
    _scored(tmp_path, "relu", 0, own[:500] + own[501:])
    assert list(_answer(tmp_path, kept).part(Kind.UNKNOWN)) == ["accuracy in float"]


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    own, other = _right(1000, 900, 5, 40)
    rows = [_scored(tmp_path, "gelu", 0, other), _scored(tmp_path, "relu", 0, own)]
    path = tmp_path / "artefacts" / "w" / "relu" / "0" / "accuracy" / SCORES_FILE
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DamagedResults, match=r"sample-scores\.npz"):
        _answer(tmp_path, rows)


def test_several_seeds_are_told_apart_from_samples(tmp_path: Path) -> None:
    """Networks that all gain the same few samples: seeds agree, other samples might not."""
    draw = np.random.default_rng(0)
    rows = []
    for seed in range(5):
        own, other = _right(400, 360, 5, 1)
        order = draw.permutation(394) + 6
        places = [*range(360, 366), *(each - 6 if each < 366 else each for each in order)]
        rows.append(_scored(tmp_path, "gelu", seed, [other[at] for at in places]))
        moved = [own[at] for at in places]
        moved[-1 - seed // 2] = 1.0 - moved[-1 - seed // 2]
        rows.append(_scored(tmp_path, "relu", seed, moved))
    cell = _answer(tmp_path, rows).statements[0].cell
    assert cell.estimate is not None
    assert cell.estimate.samples is None
    assert cell.estimate.n == 5
    assert cell.over_samples is not None
    assert cell.over_samples.n == 400
    assert cell.over_samples.mean == pytest.approx(cell.estimate.mean)
    # Each interval is of its own kind of chance.
    assert cell.over_samples.half_width != pytest.approx(cell.estimate.half_width)


@pytest.mark.parametrize(("gains", "limited"), [(5, True), (60, False)])
def test_what_seeds_gain_on_few_samples_is_limited_to_these(
    tmp_path: Path, gains: int, limited: bool
) -> None:
    own, other = _right(400, 300, gains, 0)
    rows = []
    for seed in range(5):
        moved = list(own)
        moved[seed] = float(seed % 2)  # every second seed loses a sample
        rows += [_scored(tmp_path, "gelu", seed, other), _scored(tmp_path, "relu", seed, moved)]
    (statement,) = _answer(tmp_path, rows).part(Kind.BUYS)["accuracy in float"]
    assert statement.cell.these_samples == limited
    assert ("on these test samples" in statement.notes) == limited


NETWORK = """
import torch
from torch import nn
def net(): return nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 3))
def swapped():
    made = net(); made[1] = nn.ReLU(); return made
"""


@pytest.mark.slow
def test_a_trained_network_is_answered_as_a_few_lines_have_it(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(3000, 6)).astype("float32")
    y = (x[:, :3] + 0.4 * draw.normal(size=(3000, 3))).argmax(1)
    parts = {"train": slice(0, 1000), "test": slice(1000, 3000)}
    held = {f"{name}_{part}": values[at] for part, at in parts.items()
            for name, values in (("x", x), ("y", y))}  # fmt: skip
    np.savez(tmp_path / "data.npz", **held)
    (tmp_path / "my.py").write_text(NETWORK)
    script = (
        "import numpy as np, torch, my\n"
        "from torch.nn import functional\n"
        "held = np.load('data.npz'); torch.manual_seed(0); net = my.net()\n"
        "x, y = torch.tensor(held['x_train']), torch.tensor(held['y_train'])\n"
        "step = torch.optim.Adam(net.parameters(), 5e-3)\n"
        "for _ in range(150):\n"
        "    loss = functional.cross_entropy(net(x), y)\n"
        "    step.zero_grad(); loss.backward(); step.step()\n"
        "torch.save(net.state_dict(), 'net.pt')\n"
        "relu = my.swapped(); relu.load_state_dict(net.state_dict())\n"
        "x, y = torch.tensor(held['x_test']), held['y_test']\n"
        "right = [(each(x).argmax(1).numpy() == y) for each in (relu, net)]\n"
        "print(int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum()))\n"
    )
    own, other = map(int, _python(tmp_path, "-c", script).split())
    _python(
        tmp_path, "-m", "evalsuite", "assess", "my.py:net", "--data", "data.npz", "--weights",
        "net.pt", "--stages", "accuracy", "--quick", "--cache", "cache", "--out", "run",
    )  # fmt: skip
    run = Run.of(tmp_path / "run")
    answer = next(Answer.of(each) for each in run.matrices if each.variant == "gelu-swap")
    (statement,) = answer.statements
    counts = statement.record["counts"]
    assert (counts["own"], counts["other"]) == (own, other)
    assert sum(counts.values()) == 2000
    assert statement.cell.p == pytest.approx(stats.binomtest(own, own + other).pvalue)


def _python(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    return done.stdout

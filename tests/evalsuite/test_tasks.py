"""Tasks: metrics against closed forms and scikit-learn's, in any batches, and with a user's loss
and metrics.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, jaccard_score, mean_absolute_error, r2_score

from evalsuite import Direction, Metric, Split, Task
from evalsuite.contract import IGNORED
from evalsuite.own.tasks import TaskChoice, task_of
from evalsuite.tasks import (
    Classification,
    Embedding,
    LanguageModel,
    MultiLabel,
    Regression,
    Segmentation,
    TokenClassification,
    score,
)
from opgraph.errors import OwnError


def scored(
    task: Task, outputs: torch.Tensor, targets: torch.Tensor, batch: int = 4
) -> dict[str, float | None]:
    """The metrics of these outputs, gathered in batches, the last of them smaller."""
    places = torch.arange(len(outputs), dtype=torch.float32)
    found = score(lambda inputs: outputs[inputs.long()], Split(places, targets, task), batch=batch)  # type: ignore[index, union-attr]
    return {each.name: each.value for each in found.metrics}


def test_a_regression_of_several_values_is_scikit_learns() -> None:
    draw = np.random.default_rng(0)
    # Means far apart: one R squared over both columns would hide that the second is not explained
    # at all.
    targets = draw.normal(size=(11, 2)) * [1, 5] + [1000, 0]
    outputs = np.stack(
        [targets[:, 0] + 0.1 * draw.normal(size=11), np.full(11, targets[:, 1].mean())], 1
    )
    found = scored(Regression(), torch.tensor(outputs), torch.tensor(targets))
    assert found["rmse"] == pytest.approx(math.sqrt(((outputs - targets) ** 2).mean()))
    assert found["mae"] == pytest.approx(mean_absolute_error(targets, outputs))
    assert found["r2"] == pytest.approx(r2_score(targets, outputs))


def test_targets_that_are_nan_count_nowhere() -> None:
    targets, outputs = (
        torch.tensor([1.0, math.nan, 3.0, 8.0]),
        torch.tensor([[2.0], [7.0], [3.0], [6.0]]),
    )
    found = scored(Regression(), outputs, targets, batch=3)
    assert found == pytest.approx({"rmse": math.sqrt(5 / 3), "mae": 1.0, "r2": 1 - 5 / 26})
    assert Regression().loss(outputs, targets).item() == pytest.approx(5 / 3)


def test_equal_targets_have_no_r_squared() -> None:
    found = Regression().metrics(Regression().tally(torch.zeros(3, 1), torch.ones(3)))
    assert [(each.name, each.value, each.reason) for each in found][-1] == (
        "r2",
        None,
        "all targets are equal",
    )


def test_several_labels_are_scikit_learns() -> None:
    draw = torch.Generator().manual_seed(0)
    targets, outputs = torch.randint(2, (13, 4), generator=draw), torch.randn(13, 4, generator=draw)
    found = scored(MultiLabel(), outputs, targets)
    assert found["f1_micro"] == pytest.approx(f1_score(targets, outputs > 0, average="micro"))
    assert found["label_accuracy"] == pytest.approx(
        ((outputs > 0) == targets.bool()).float().mean().item()
    )
    assert found["exact_match"] == pytest.approx(
        ((outputs > 0) == targets.bool()).all(1).float().mean().item()
    )
    assert found["bce"] == pytest.approx(MultiLabel().loss(outputs, targets).item(), rel=1e-6)


def test_labels_that_are_ignored_count_in_no_metric() -> None:
    targets, outputs = torch.tensor([[1, -100], [0, 1]]), torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    found = scored(MultiLabel(), outputs, targets)
    assert (found["f1_micro"], found["label_accuracy"], found["exact_match"]) == pytest.approx(
        (2 / 3, 2 / 3, 1 / 2)
    )


def test_segmentation_is_scikit_learns() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(9, 4, 5, 6, generator=draw), torch.zeros(9, 5, 6).long()
    targets[3:] = torch.randint(3, (6, 5, 6), generator=draw)  # none is of class 3
    targets[0, 0] = IGNORED
    counted = targets != IGNORED
    wanted, decided = targets[counted], outputs.argmax(1)[counted]
    found = scored(Segmentation(), outputs, targets)
    assert next(iter(found)) == "mean_iou"
    assert found["mean_iou"] == pytest.approx(jaccard_score(wanted, decided, average="macro"))
    assert found["accuracy"] == pytest.approx((wanted == decided).double().mean().item())
    loss = torch.nn.functional.cross_entropy(outputs, targets, ignore_index=IGNORED).item()
    assert found["nll"] == pytest.approx(loss, rel=1e-6)
    assert Segmentation().loss(outputs, targets).item() == pytest.approx(loss, rel=1e-6)


def test_classes_that_are_nowhere_count_in_no_mean() -> None:
    outputs = torch.zeros(2, 7, 3, 3)
    outputs[:, 2] = 1
    targets = torch.full((2, 3, 3), 2)
    targets[0, 0, 0] = 5
    found = scored(Segmentation(), outputs, targets)
    assert found["mean_iou"] == pytest.approx((17 / 18 + 0) / 2)


def test_two_classes_by_one_logit_are_those_of_two() -> None:
    draw = torch.Generator().manual_seed(0)
    one, targets = torch.randn(8, 1, 3, 3, generator=draw), torch.randint(2, (8, 3, 3))
    targets[1, 1] = IGNORED
    two = torch.cat([torch.zeros_like(one), one], 1)
    assert scored(Segmentation(), one, targets) == pytest.approx(
        scored(Segmentation(), two, targets), rel=1e-6
    )
    teacher = torch.randn(8, 1, 3, 3, generator=draw)
    task = Segmentation()
    assert task.loss(one, targets).item() == pytest.approx(task.loss(two, targets).item())
    # The teacher itself is imitated best, of one logit and of two.
    for wanted in (teacher, torch.cat([-teacher, teacher], 1)):
        own = wanted.clone().requires_grad_()
        task.imitation(own, wanted, targets).backward()
        assert float(own.grad.abs().max()) < 1e-6
        (away,) = torch.autograd.grad(task.imitation(own + 1, wanted, targets), own)
        assert own.shape[1] > 1 or float(away.abs().max()) > 1e-4


def test_pictures_are_the_samples_of_segmentation() -> None:
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (40, 4, 4), generator=draw)
    outputs = torch.nn.functional.one_hot(targets, 3).movedim(-1, 1).float()
    outputs += torch.randn(outputs.shape, generator=draw)
    split = Split(torch.arange(40.0), targets, Segmentation())
    found = score(lambda batch: outputs[batch.long()], split)  # type: ignore[index, union-attr]
    iou, accuracy, _ = found.metrics
    assert iou.scores is not None
    assert accuracy.scores is not None
    right = (outputs.argmax(1) == targets).double().mean((1, 2))
    assert torch.allclose(accuracy.scores.values(), right)
    # The jackknife's, by sums over all pictures but one.
    values = iou.scores.values()
    assert values.shape == (40,)
    assert float(values.mean()) == pytest.approx(iou.value)
    rest = [place for place in range(40) if place != 7]
    without = jaccard_score(
        targets[rest].flatten(), outputs.argmax(1)[rest].flatten(), average="macro"
    )
    whole = jaccard_score(targets.flatten(), outputs.argmax(1).flatten(), average="macro")
    everyone = [
        whole
        - 39
        * (
            jaccard_score(
                targets[torch.arange(40) != out].flatten(),
                outputs.argmax(1)[torch.arange(40) != out].flatten(),
                average="macro",
            )
            - whole
        )
        for out in range(40)
    ]
    shift = whole - float(np.mean(everyone))
    assert float(values[7]) == pytest.approx(whole - 39 * (without - whole) + shift)


def test_classes_and_tokens() -> None:
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 2.0]], [[0.0, 2.0], [2.0, 0.0]]])
    targets = torch.tensor([[0, 0], [1, -100]])
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    nats = (2 * right + wrong) / 3
    expected = {"accuracy": 2 / 3, "nll": nats}
    assert scored(TokenClassification(), outputs, targets, batch=1) == pytest.approx(expected)
    assert scored(Classification(), outputs, targets) == pytest.approx(expected)
    found = scored(LanguageModel(per="byte"), outputs, targets, batch=1)
    assert found == pytest.approx(
        {"bits_per_byte": nats / math.log(2), **expected, "perplexity": math.exp(nats)}
    )
    assert next(iter(found)) == "bits_per_byte"
    # Two tokens for five bytes: the same loss is spread over more of them, and nothing else
    # changes.
    spread = scored(LanguageModel(per="byte", tokens_per_byte=0.4), outputs, targets, batch=1)
    assert spread == pytest.approx(
        found | {"bits_per_byte": 0.4 * nats / math.log(2), "perplexity": math.exp(0.4 * nats)}
    )
    for wrong_use, said in (
        ({"per": "byte", "tokens_per_byte": 0.0}, r"tokens_per_byte must be in \(0, 1\], got 0.0"),
        (
            {"tokens_per_byte": 0.5},
            "tokens_per_byte belongs to per='byte', got 0.5 with per='token'",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            LanguageModel(**wrong_use)


def test_embeddings_are_compared_by_their_direction() -> None:
    targets = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    outputs = torch.tensor([[5.0, 0.0], [2.0, 0.0], [4.0, 3.0]])
    found = scored(Embedding(), outputs, targets, batch=2)
    assert found["cosine"] == pytest.approx((1 + 0 + 24 / 25) / 3)
    assert found["cosine_under_95"] == pytest.approx(1 / 3)
    assert found["squared_distance"] == pytest.approx((16 + 8 + 2) / 3)
    assert Embedding().loss(outputs, targets).item() == pytest.approx(1 - (1 + 0 + 24 / 25) / 3)


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's loss and metrics, in a file of theirs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wanted.py").write_text(
        "def cubed(outputs, targets): return (outputs[:, 0] - targets).abs().pow(3).mean()\n"
        "def off(outputs, targets): return (outputs[:, 0] - targets).abs()\n"
        "off.direction = 'lower'\n"
        "def one(outputs, targets): return (outputs[:, 0] - targets).abs().mean()\n"
    )


@pytest.mark.parametrize(
    "given",
    [
        "shape=classification,colour=regression",
        {"shape": "classification", "colour": "regression"},
        {"use": "heads", "of": {"shape": "classification", "colour": "regression"}},
    ],
)
def test_tasks_of_outputs_keep_their_order(given: str | dict[str, Any]) -> None:
    """Outputs without names are those of the tasks in their order."""
    choice = TaskChoice.of(given)
    assert choice.make().names == ("shape", "colour")  # type: ignore[attr-defined]
    other = TaskChoice.of({"colour": "regression", "shape": "classification"})
    assert other.make().names == ("colour", "shape")  # type: ignore[attr-defined]
    assert choice != other  # so that no result of one is taken for the other's
    assert repr(choice) != repr(other)


@pytest.mark.usefixtures("functions")
def test_a_users_loss_and_metrics_leave_the_task_what_it_is() -> None:
    choice = TaskChoice.of({"use": "regression", "tolerance": 0.5})
    task = task_of(choice, "wanted.py:cubed", ("wanted.py:off", "mae"))
    # Readers of data and stages ask for the class; a verifier for the tolerance.
    assert isinstance(task, Regression)
    assert (task.asks, task.tolerance) == ("interval", 0.5)
    outputs, targets = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([1.0, 4.0, 4.0])
    assert scored(task, outputs, targets, batch=2) == pytest.approx({"off": 1.0, "mae": 1.0})
    assert task.loss(outputs.requires_grad_(), targets).item() == pytest.approx((0 + 8 + 1) / 3)
    with torch.no_grad():
        assert task.loss(outputs, targets).item() == pytest.approx(3.0)
    assert task == task_of(choice, "wanted.py:cubed", ("wanted.py:off", "mae"))
    assert task != task_of(choice, "", ("mae",)) != choice.make()


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        (("wanted.py:one",), "wanted.py:one must give a value for each of 3 samples, got shape ()"),
        (("rmsse",), "the task has no metric 'rmsse'; did you mean 'rmse'?"),
    ],
)
def test_a_metric_that_is_none_is_refused(metrics: tuple[str, ...], text: str) -> None:
    with pytest.raises(OwnError) as error:
        scored(
            task_of(TaskChoice("regression"), "", metrics),
            torch.zeros(3, 1),
            torch.tensor([0.0, 1.0, 2.0]),
        )
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("positions", "classes", "largest"), [(1, 3, 256), (64, 4096, 64), (64, 2**19, 1)]
)
def test_batches_are_bounded_by_outputs(positions: int, classes: int, largest: int) -> None:
    """256 windows of 1,024 tokens with GPT-2's vocabulary held 249 GB. One number stands for all
    logits here.
    """
    sizes: list[int] = []

    def run(inputs: torch.Tensor) -> torch.Tensor:
        sizes.append(len(inputs))
        return torch.zeros(1, 1, 1).expand(len(inputs), positions, classes)

    class Nothing(LanguageModel):
        def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return torch.zeros(4, dtype=torch.float64)

        def metrics(self, tally: torch.Tensor) -> list[Metric]:
            return [Metric("nothing", 0.0, "nats", Direction.LOWER)]

    inputs = torch.zeros(300, positions, dtype=torch.int64)
    targets = torch.full_like(inputs, classes - 1)
    score(run, Split(inputs, targets, Nothing()))
    assert (max(sizes), sum(sizes)) == (largest, 300)

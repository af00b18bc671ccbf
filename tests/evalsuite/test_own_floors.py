"""What a trained baseline must be better than, before anything is concluded from it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from evalsuite.contract import Data, Split, Task
from evalsuite.own.floors import Floor, doubts_of, floors
from evalsuite.tasks import Classification, Embedding, LanguageModel, MultiLabel, Regression, score

DRAW = np.random.default_rng(0)


def data_of(inputs: torch.Tensor, targets: torch.Tensor, task: Task, classes: int = 2) -> Data:
    """The first half for training, the second for everything else."""
    half = len(inputs) // 2
    train, test = (
        Split(inputs[:half], targets[:half], task),
        Split(inputs[half:], targets[half:], task),
    )
    return Data(train, train, test, test, (0.0, 1.0), classes, "")


def table(count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns, and a number that is linear in them but for a little noise."""
    columns = torch.tensor(DRAW.normal(size=(count, 3)), dtype=torch.float32)
    noise = torch.tensor(DRAW.normal(0, 0.1, count), dtype=torch.float32)
    return columns, columns @ torch.tensor([1.0, -2.0, 0.5]) + noise


def rows(metric: str, *scores: float, stage: str = "accuracy") -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"variant": "gelu", "stage": stage, "metric": metric, "value": each, "sample": None}
            for each in scores
        ]
    )


def test_the_most_frequent_class_by_hand() -> None:
    targets = torch.tensor([0] * 100 + [1] * 36 + [0] * 64)
    majority, *_ = floors(data_of(torch.zeros(200, 1, 2, 2), targets, Classification()))
    assert majority.score == 0.64
    assert majority.spread == pytest.approx(2 * np.sqrt(66 / 104 * 38 / 104 / 104))


def test_a_linear_model_is_fitted_to_tables_of_either_task() -> None:
    columns, values = table()
    _, linear = floors(data_of(columns, (values > 0).long(), Classification()))
    assert linear.score > 0.93
    mean, linear = floors(data_of(columns, values, Regression()))
    assert mean.score == 0
    assert linear.score > 0.98


def test_what_is_no_table_has_no_linear_model() -> None:
    columns, values = table()
    pictures = columns.reshape(-1, 1, 1, 3)
    assert len(floors(data_of(pictures, (values > 0).long(), Classification()))) == 1
    assert len(floors(data_of(pictures, values, Regression()))) == 1
    assert len(floors(data_of(columns, columns, Embedding()))) == 1


def test_labels_have_the_entropy_of_their_frequencies() -> None:
    labels = torch.tensor(DRAW.random((2000, 2)) < [0.1, 0.5]).long()
    labels[3, 1] = labels[1500, 0] = -100
    (frequencies,) = floors(data_of(torch.zeros(2000, 3), labels, MultiLabel()))
    entropies = [-p * np.log(p) - (1 - p) * np.log(1 - p) for p in (0.1, 0.5)]
    assert frequencies.score == pytest.approx(np.mean(entropies), abs=0.02)
    # A network of constant logits is no better; one that knows half of it is.
    constant = Split(torch.zeros(2000, 2), labels, MultiLabel())
    logits = torch.tensor([[0.1, 0.5]]).logit().expand(2000, 2)
    (*_, bce) = score(lambda _: logits, constant, batch=2000).metrics
    assert bce.value is not None
    assert frequencies.doubt(bce.value)
    assert not frequencies.doubt(bce.value / 2)
    doubts = doubts_of(rows("bce", bce.value), "gelu", (frequencies,))
    assert doubts[0].startswith("no better than naming each label by its frequency: bce is")


def test_embeddings_have_the_mean_direction() -> None:
    directions = torch.tensor(DRAW.normal(size=(400, 8)) + 1.0, dtype=torch.float32)
    (mean,) = floors(data_of(torch.zeros(400, 3), directions, Embedding()))
    halves = torch.nn.functional.normalize(directions[:200], dim=1).mean(0), directions[200:]
    cosines = torch.nn.functional.cosine_similarity(halves[0][None], halves[1])
    assert mean.score == pytest.approx(cosines.mean().item(), abs=1e-5)
    assert mean.doubt(mean.score)
    assert not mean.doubt(0.99)


def test_the_unigram_is_the_entropy_of_tokens() -> None:
    tokens = torch.tensor(DRAW.choice(2, (100, 20), p=[0.9, 0.1]))
    (unigram,) = floors(data_of(tokens, tokens, LanguageModel()))
    assert unigram.score == pytest.approx(-0.9 * np.log(0.9) - 0.1 * np.log(0.1), abs=0.05)
    assert unigram.doubt(unigram.score)
    assert not unigram.doubt(unigram.score / 2)


GUESS = Floor("accuracy", 0.6, 0.05, "always naming the most frequent class")
LINEAR = Floor("accuracy", 0.85, 0.05, "a linear model", least=False)


@pytest.mark.parametrize(
    ("scores", "doubt"),
    [
        ((0.6, 0.62), "better by no more than chance than always naming"),
        ((0.64, 0.64), "better by no more than chance than always naming"),
        ((0.7, 0.7), "worse than a linear model"),
        ((0.82, 0.82), ""),  # as good as a linear model, which may be all that there is to learn
        ((0.95, 0.95), ""),
    ],
)
def test_a_doubt_is_beyond_chance_and_of_the_mean_over_seeds(
    scores: tuple[float, ...], doubt: str
) -> None:
    for frame in (rows("accuracy", *scores), rows("validation_accuracy", *scores, stage="train")):
        sentences = doubts_of(frame, "gelu", (GUESS, LINEAR))
        assert bool(sentences) == bool(doubt)
        assert all(sentence.startswith(doubt) for sentence in sentences)


def test_metrics_that_were_not_measured_raise_no_doubt() -> None:
    assert doubts_of(rows("mine", 0.1), "gelu", (GUESS, LINEAR)) == []
    assert doubts_of(rows("accuracy", 0.1).assign(variant="relu"), "gelu", (GUESS,)) == []

"""Floors: a trained baseline must be better than a predictor that looks at no input and, of tables,
than a linear model.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from evalsuite.contract import Data
from evalsuite.own.outputs import each_output
from evalsuite.tasks import (
    Classification,
    Embedding,
    Heads,
    LanguageModel,
    MultiLabel,
    Regression,
    Segmentation,
)
from evalsuite.tasks.samples import pseudo_values
from evalsuite.tasks.segmentation import tallies_of

if TYPE_CHECKING:
    import pandas as pd

_MOST_SAMPLES = 20_000  # that a linear model is fitted to
_MOST_COLUMNS = 1_000
_LOSSES = ("nll", "bce")
_ERRORS = 2.0  # standard errors that chance may make of a score


@dataclass(frozen=True)
class Floor:
    """A score on the test part that needs no network.

    Args:
        metric: of the task; greater is better but for losses.
        score: of the simple predictor.
        spread: how far chance may move a score of a network that is as good.
        words: what the predictor is.
        least: whether a network that is only as good is untrained; else one that is worse.
    """

    metric: str
    score: float
    spread: float
    words: str
    least: bool = True

    def doubt(self, score: float) -> str:
        """Why a baseline with this score is no trained network; "" where it is better."""
        is_loss = self.metric.rpartition("_")[2] in _LOSSES
        gain = self.score - score if is_loss else score - self.score
        if gain > self.spread or (gain >= -self.spread and not self.least):
            return ""
        higher = "no better than" if gain <= 0 else "better by no more than chance than"
        compared = higher if self.least else "worse than"
        cure = "train longer, or look at the targets, their order and the inputs"
        return (
            f"{compared} {self.words}: {self.metric} is {score:.4g}, and that has {self.score:.4g};"
            f" {cure}"
        )


def floors(data: Data) -> tuple[Floor, ...]:
    """The floors of the data's task: none of a task without a simple predictor."""
    task = getattr(data.task, "task", data.task)
    known: tuple[Floor, ...] = ()
    if isinstance(task, Heads):
        for _, name, part in each_output(data):
            known += tuple(
                replace(floor, metric=f"{name}_{floor.metric}", words=f"{floor.words} for {name}")
                for floor in floors(part)
            )
    elif isinstance(task, LanguageModel):
        known = (_unigram(data),)
    elif isinstance(task, Classification):
        known = (_majority(data), *_linear_classes(data))
    elif isinstance(task, Regression):
        count = int(data.test.counted.sum())
        # The R² of values that have nothing to do with the targets is about chi²(1) / n at most.
        mean = Floor("r2", 0.0, _ERRORS**2 / count, "always giving the mean")
        known = (mean, *_linear_values(data))
    elif isinstance(task, MultiLabel):
        known = (_frequencies(data),)
    elif isinstance(task, Segmentation):
        known = (_one_class(data, task),)
    elif isinstance(task, Embedding):
        known = (_mean_direction(data),)
    return known


def doubts_of(frame: pd.DataFrame, baseline: str, floors_of_data: tuple[Floor, ...]) -> list[str]:
    """Why nothing is to be concluded from a baseline, by its mean scores over seeds on the test
    part; where a run measured none, by those on the validation part.
    """
    rows = frame[(frame.variant == baseline) & frame.value.notna() & frame["sample"].isna()]
    sentences = []
    for floor in floors_of_data:
        tested = rows[(rows.stage == "accuracy") & (rows.metric == floor.metric)]
        scores = tested if len(tested) else rows[rows.metric == f"validation_{floor.metric}"]
        if len(scores):
            sentences.append(floor.doubt(float(scores.value.mean())))
    return [sentence for sentence in sentences if sentence][:1]


def _majority(data: Data) -> Floor:
    targets = data.test.targets[data.test.counted]
    share = float(targets.unique(return_counts=True)[1].max()) / len(targets)  # type: ignore[no-untyped-call]
    return Floor(
        "accuracy", share, _error(share, len(targets)), "always naming the most frequent class"
    )


def _one_class(data: Data, task: Segmentation) -> Floor:
    """The most frequent class of training at each place, whatever the picture."""
    test, known = data.test, data.train.targets[data.train.counted]
    count = max(2, data.classes)
    frequent = torch.full_like(test.targets, int(torch.bincount(known).argmax()))
    tallies = tallies_of(frequent, test.targets, count, torch.zeros(len(test)).double())
    tallies = tallies[test.labelled]
    # Chance is of pictures, not of their places, which depend on one another.
    values = pseudo_values(tallies, task, 0) if len(tallies) > 1 else tallies[:, 0]
    spread = _ERRORS * float(values.std()) / math.sqrt(len(values)) if len(tallies) > 1 else 0.0
    score = task.metrics(tallies.sum(0))[0].value or 0.0
    return Floor("mean_iou", score, spread, "naming the most frequent class at each place")


def _unigram(data: Data) -> Floor:
    """Each token by its frequency in training, where one more is counted of each."""
    train, test = (part.targets[part.counted] for part in (data.train, data.test))
    tokens = max(data.vocabulary or data.classes, int(test.max()) + 1)
    counts = torch.bincount(train, minlength=tokens).double() + 1
    losses = -(counts / counts.sum()).log()[test]
    spread = _ERRORS * float(losses.std()) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
    return Floor("nll", float(losses.mean()), spread, "naming each token by its frequency")


def _frequencies(data: Data) -> Floor:
    """Each label by its frequency in training, where one sample more has it and one has not.

    It is a floor of the loss: of rare labels a network that is trained may find none, as this does.
    """
    # Laplace's rule, so that no label has a share of 0, whose logarithm would be infinite.
    train, test = data.train, data.test
    known = train.counted
    present = ((train.targets == 1) & known).sum(0).double() + 1
    share = present / (known.sum(0).double() + 2)
    # The mean loss is a ratio of two sums over samples; its spread goes by the residuals of that
    # ratio.
    wanted = test.targets == 1
    losses = -torch.where(wanted, share.log(), (1 - share).log()).where(test.counted, 0.0)
    labels = test.counted.sum(1).double()
    score = float(losses.sum() / labels.sum())
    residuals = (losses.sum(1) - score * labels)[test.labelled]
    spread = _ERRORS * float(residuals.std()) * math.sqrt(len(residuals)) / float(labels.sum())
    return Floor("bce", score, spread, "naming each label by its frequency")


def _mean_direction(data: Data) -> Floor:
    """The mean of the training targets' directions, whatever the input."""
    directions = torch.nn.functional.normalize(data.train.targets.double(), dim=-1)
    cosines = torch.nn.functional.cosine_similarity(
        data.test.targets.double(), directions.mean(0, keepdim=True), dim=-1
    )
    spread = _ERRORS * float(cosines.std()) / math.sqrt(len(cosines)) if len(cosines) > 1 else 0.0
    return Floor("cosine", float(cosines.mean()), spread, "always giving the mean direction")


def _error(share: float, count: int) -> float:
    """Two standard errors of a share of so many; of 0 and 1 too it is not 0 (Agresti and Coull
    1998).
    """
    smoothed = (share * count + 2) / (count + 4)
    return _ERRORS * math.sqrt(smoothed * (1 - smoothed) / (count + 4))


def _columns(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Inputs and targets of training and test, standardised by training; None where the data are
    no table.
    """
    # 1. Tables alone: a linear model of pixels says little, and takes long.
    train = data.train.inputs
    if not isinstance(train, torch.Tensor) or train.dim() != 2 or not train.is_floating_point():
        return None
    whole = (
        bool(data.train.counted.all() and data.test.counted.all()) and data.train.targets.dim() == 1
    )
    if not whole or train.shape[1] > _MOST_COLUMNS:
        return None
    # 2. Standardise by training, so that one penalty serves all columns; constant columns become
    # 0.
    chosen = slice(0, _MOST_SAMPLES)
    x, tested = train[chosen].double().numpy(), data.test.inputs[:].double().numpy()
    mean, width = x.mean(0), x.std(0)
    width = np.where(width > 0, width, 1.0)
    return (
        (x - mean) / width,
        data.train.targets[chosen].numpy(),
        (tested - mean) / width,
        data.test.targets.numpy(),
    )


def _linear_classes(data: Data) -> tuple[Floor, ...]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    table = _columns(data)
    if table is None or len(np.unique(table[1])) < 2:
        return ()
    x, y, tested, wanted = table
    with warnings.catch_warnings():
        # a floor need not be the best linear model
        warnings.simplefilter("ignore", ConvergenceWarning)
        share = float(LogisticRegression(max_iter=300).fit(x, y).score(tested, wanted))
    return (Floor("accuracy", share, _error(share, len(wanted)), "a linear model", least=False),)


def _linear_values(data: Data) -> tuple[Floor, ...]:
    from sklearn.linear_model import Ridge

    table = _columns(data)
    if table is None or np.ptp(table[3]) == 0:
        return ()
    x, y, tested, wanted = table
    errors = (Ridge().fit(x, y).predict(tested) - wanted) ** 2
    around = (wanted - wanted.mean()) ** 2
    score = 1 - float(errors.sum() / around.sum())
    spread = _ERRORS * float(errors.std()) * math.sqrt(len(errors)) / float(around.sum())
    return (Floor("r2", score, spread, "a linear model", least=False),)

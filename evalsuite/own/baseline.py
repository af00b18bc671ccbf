"""A trained model before it is treated: is it better than a guess, and would another order of
classes make it right?
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from evalsuite.contract import IGNORED, Data
from evalsuite.data.parts import CUT
from evalsuite.own.outputs import OneOutput, each_output, heads_of
from evalsuite.tasks import Classification, MultiLabel, Segmentation

_SAMPLES = 512
_BATCH = 32
# Values of outputs, of all samples and at once, and the fewest samples whatever they have.
_OUTPUTS, _OUTPUTS_AT_ONCE, _LEAST = 2**28, 2**25, 4
_MATCHED = 2048  # classes whose order is looked into, at most
_TARGETS = 2048  # of more classes than that: enough to see whether it is better than a guess
_FEWEST = 20  # targets that tell anything
_GAIN = 0.1  # of accuracy, by another order
_MOSTLY = 0.5  # of the samples of a class that are called another
# of the mean correlation of labels with the outputs that stand for them, by another order
_LINKED = 0.3
_SHOWN = 12


def leaks(data: Data) -> list[str]:
    """The warning that a model which is trained already may have seen the test samples, unless
    that part was given.
    """
    if "test" not in dict(data.notes).get(CUT, "").split(", "):
        return []
    said = (
        "the model is trained already, and no test part was given: the test samples may be its"
        " training samples"
    )
    return [f"{said}, and its scores then too good; give samples that it never saw as `test`"]


def doubts(module: nn.Module, data: Data) -> list[str]:
    """Look for what is doubtful in a trained classifier, on samples of the training part, as
    sentences; there are none for other tasks.
    """
    if (heads := heads_of(data)) is not None:
        return [
            f"the output {name}: {sentence}"
            for place, name, part in each_output(data)
            for sentence in doubts(OneOutput(module, heads, place), part)
        ]
    # 1. Labels: another order shows in the correlations of targets and outputs.
    task = getattr(data.task, "task", data.task)
    if isinstance(task, MultiLabel):
        swaps = _swapped_labels(*_answers(module, data), data.class_names)
        return (
            [f"another order of the labels would make it right: {swaps}; see `data.labels`"]
            if swaps
            else []
        )
    if not isinstance(task, (Classification, Segmentation)):
        return []
    # 2. Classes: what a few training samples are, and what they are called.
    wanted, called = _decided(module, data)
    count = len(wanted)
    if count < _FEWEST:
        return []
    right = int((wanted == called).sum()) / count
    most = int(torch.bincount(wanted).max()) / count
    # No better than naming the most frequent class: it may be trained for other data.
    sentences = []
    if right <= most:
        guess = f"always naming the most frequent class is right for {most:.0%}"
        sentences.append(
            f"the model is right for {right:.0%} of {count:,} training targets, no better than a"
            f" guess: {guess}"
        )
    # A permutation that makes it right tells that data and model number the classes differently.
    # Words have an order that no tokenizer changes: so many classes are not matched.
    size = int(torch.cat([wanted, called]).max()) + 1
    if size > _MATCHED:
        return sentences
    confusion = torch.bincount(wanted * size + called, minlength=size * size).reshape(size, size)
    if swaps := _swaps(confusion.numpy(), right, data.class_names):
        sentences.append(
            f"another order of the classes would make it right: {swaps}; see `data.labels` and"
            " `data.order`"
        )
    return sentences


def _answers(module: nn.Module, data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets of some training samples, and the module's outputs for them."""
    targets, outputs = zip(*_batches(module, data), strict=True)
    return torch.cat(targets), torch.cat(outputs)


@torch.no_grad()
def _batches(module: nn.Module, data: Data) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Targets of some training samples, and the module's outputs for them, batch by batch: fewer
    samples where a sample has many outputs, as of a text with the logits of all words.
    """
    labelled = data.train.labelled.nonzero().flatten()
    places = data.train.targets[0].numel()
    values = places * max(1, data.classes)
    most = _OUTPUTS // values if data.classes <= _MATCHED else _TARGETS // places
    count = min(_SAMPLES, len(labelled), max(_LEAST, most))
    spaced = torch.linspace(0, len(labelled) - 1, count).long().unique()  # type: ignore[no-untyped-call]
    chosen = labelled[spaced]
    was_training = module.training
    module.eval()
    size = max(1, min(_BATCH, _OUTPUTS_AT_ONCE // values))
    for batch in torch.split(chosen, size):
        yield data.train.targets[batch], module(data.train.inputs[batch])
    module.train(was_training)


def _decided(module: nn.Module, data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """The classes of the targets of some training samples, and those that the module names, each
    (targets,).
    """
    wanted, called = [], []
    for targets, outputs in _batches(module, data):
        counted = targets != IGNORED
        wanted.append(targets[counted])
        called.append(data.task.decisions(outputs)[counted])
    return torch.cat(wanted), torch.cat(called)


def _swapped_labels(targets: torch.Tensor, outputs: torch.Tensor, names: tuple[str, ...]) -> str:
    """The labels that outputs of other labels tell, by the phi coefficient of each two; "" where
    none are.
    """
    from scipy.optimize import linear_sum_assignment

    known = (targets != IGNORED).all(-1)
    if int(known.sum()) < _FEWEST or targets.shape != outputs.shape:
        return ""
    # 1. The correlation of each label, in rows, with each output's decision; 0 of what never
    # changes.
    both = [(values[known] > 0).double() for values in (targets, outputs)]
    moved = [values - values.mean(0) for values in both]
    wanted, called = (values / values.norm(dim=0).clamp(min=1e-12) for values in moved)
    phi = (wanted.T @ called).numpy()
    # 2. The order in which labels and outputs agree the most.
    rows, columns = linear_sum_assignment(phi, maximize=True)
    if phi[rows, columns].mean() < phi.diagonal().mean() + _LINKED:
        return ""
    told = [
        f"label {_name(row, names)} is present where {_name(column, names)} is found "
        f"(correlation {phi[row, column]:.2f})"
        for row, column in zip(rows, columns, strict=True)
        if row != column and phi[row, column] > _MOSTLY
    ]
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return ", ".join(told[:_SHOWN] + more)


def _swaps(confusion: np.ndarray, right: float, names: tuple[str, ...]) -> str:
    """The classes that are called others, where calling them so would make the model right; ""
    where it would not.
    """
    from scipy.optimize import linear_sum_assignment

    # 1. The order of classes in which most answers would be right: an assignment (Kuhn 1955) over
    # the confusion matrix.
    rows, columns = linear_sum_assignment(confusion, maximize=True)
    sizes = confusion.sum(1)
    if confusion[rows, columns].sum() / sizes.sum() < right + _GAIN:
        return ""
    # 2. Of it the classes that are mostly called another's name.
    shares = [
        (row, column, confusion[row, column] / max(1, sizes[row]))
        for row, column in zip(rows, columns, strict=True)
    ]
    moved = [
        (row, column, share) for row, column, share in shares if row != column and share > _MOSTLY
    ]
    told = [
        f"class {_name(row, names)} is called {_name(column, names)} in {share:.0%} of cases"
        for row, column, share in moved[:_SHOWN]
    ]
    more = [f"and {len(moved) - _SHOWN} more"] if len(moved) > _SHOWN else []
    return ", ".join(told + more)


def _name(place: Any, names: tuple[str, ...]) -> str:
    """The class's number, and its name where that is another."""
    name = names[place] if place < len(names) else str(place)
    return name if name == str(place) else f"{place} ({name})"

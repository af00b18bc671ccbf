"""Targets of -100, torch's `ignore_index`, count nowhere: not in accuracies, not in losses, not in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import MakeBench, MakeNetwork
from torch import nn
from torch.nn import functional

from evalsuite.contract import Split
from evalsuite.reluize.training import distilled, fit
from evalsuite.run.child import _validation
from evalsuite.run.making import make_bench
from evalsuite.tasks import Classification
from evalsuite.workloads.digits import DigitsMLP


def padded(split: Split, every: int) -> Split:
    """The split with the targets of one in `every` samples ignored."""
    targets = split.targets.clone()
    targets[::every] = -100
    return Split(split.inputs, targets)


def test_a_split_of_ignored_targets_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="a split without targets: all 6 are -100"):
        Split(torch.zeros(3, 1), torch.full((3, 2), -100))


def test_accuracy_is_of_the_targets_that_count() -> None:
    split = Split(torch.zeros(3, 2), torch.tensor([[0, 1], [1, -100], [-100, -100]]))
    assert split.accuracy(torch.tensor([[0, 1], [0, 1], [1, 1]])) == pytest.approx(2 / 3)
    assert split.labelled.tolist() == [True, True, False]
    with pytest.raises(ValueError, match="classes of shape"):
        split.accuracy(torch.zeros(3))


def test_the_validation_rows_are_of_the_samples_with_a_target(network: MakeNetwork) -> None:
    trained, data = network("digits-mlp", "gelu"), DigitsMLP().data()
    some = padded(data.validation, 3)
    kept = Split(some.inputs[some.labelled], some.targets[some.labelled])
    found, wanted = (
        {each.name: each.value for each in _validation(trained, replace(data, validation=part))}
        for part in (some, kept)
    )
    assert found["validation_accuracy"] == wanted["validation_accuracy"] > 0.8
    assert found["validation_nll"] == pytest.approx(wanted["validation_nll"], abs=1e-6)


def test_samples_without_a_target_teach_nothing() -> None:
    budget, whole = DigitsMLP(epochs=1, batch_size=16), DigitsMLP().data().train
    # All ignored but for 40 samples: most batches would have no loss at all.
    targets = torch.full_like(whole.targets, -100)
    targets[:40] = whole.targets[:40]
    modules = []
    for part in (Split(whole.inputs, targets), Split(whole.inputs[:40], whole.targets[:40])):
        torch.manual_seed(0)
        modules.append(nn.Linear(64, 10))
        assert fit(modules[-1], part, budget, seed=0) > 0
    assert torch.equal(modules[0].weight, modules[1].weight)
    assert modules[0].weight.isfinite().all()


def test_a_teacher_is_not_imitated_where_the_target_is_ignored() -> None:
    torch.manual_seed(0)
    logits, teacher = torch.randn(2, 3, 5), nn.Linear(4, 5)
    inputs, targets = torch.randn(2, 3, 4), torch.tensor([[1, 2, -100], [-100, 0, 4]])
    found = distilled(Classification(), teacher)(inputs, logits, targets).item()
    counted = targets != -100
    student, wanted = (functional.log_softmax(each[counted] / 2, -1) for each in (logits, teacher(inputs)))
    divergence = 4 * (wanted.exp() * (wanted - student)).sum(-1).mean()
    assert found == pytest.approx(((Classification().loss(logits, targets) + divergence) / 2).item(), abs=1e-6)


def test_properties_are_of_samples_with_a_target(bench: MakeBench, tmp_path: Path) -> None:
    data = bench("digits-mlp").data
    there = make_bench(DigitsMLP(), replace(data, test=padded(data.test, 2)), seed=0, folder=tmp_path, time_limit=1.0)
    found = there.properties(0.1, 3)
    assert [each.sample for each in found] == [1, 3, 5]
    assert [each.label for each in found] == data.test.targets[[1, 3, 5]].tolist()

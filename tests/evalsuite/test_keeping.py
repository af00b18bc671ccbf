"""The best weights of a training, by validation data and beyond chance, in every arm alike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from evalsuite.own.options import own_of
from evalsuite.reluize.keeping import Best, mean_loss
from evalsuite.run.child import _training
from evalsuite.run.making import make_network
from evalsuite.run.validation import errors_of
from evalsuite.variants import standing
from evalsuite.variants.finetuned import SwapFinetuned
from evalsuite.variants.post_hoc import PostHoc

NOISE = torch.linspace(-0.5, 0.5, 200).double()


class Weight(nn.Module):
    """A network of one weight, whose error is its distance from 3."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.0))


def _errors(network: nn.Module) -> list[torch.Tensor]:
    assert isinstance(network, Weight)
    return [(network.weight.detach().double() - 3).abs() + 1 + NOISE]


@pytest.mark.parametrize(
    ("course", "kept", "weight"),
    [
        ({0.5: 1.0, 0.75: 3.0, 1.0: 5.0}, 0.75, 3.0),
        ({0.5: 1.0, 0.75: 3.0, 1.0: 3.005}, 1.0, 3.005),  # less than 1 %
        ({0.25: 3.0, 0.75: 5.0, 1.0: 5.0}, 1.0, 5.0),  # the first half does not count
        ({0.5: 2.0, 0.75: 4.0, 1.0: math.nan}, 0.5, 2.0),
        ({1.0: 5.0}, 1.0, 5.0),
    ],
)
def test_weights_that_are_better_beyond_chance_come_back(
    course: dict[float, float], kept: float, weight: float
) -> None:
    module = Weight()
    best = Best(module, _errors, lambda copied: copied)
    for progress, value in course.items():
        with torch.no_grad():
            module.weight.fill_(value)
        best(progress)
    assert best.restore() == kept
    assert module.weight.item() == pytest.approx(weight)


def test_a_gain_in_loss_that_misses_more_is_none() -> None:
    module = Weight()
    missed = {3.0: torch.ones(200).double(), 5.0: torch.zeros(200).double()}
    best = Best(
        module, lambda one: [*_errors(one), missed[one.weight.item()]], lambda copied: copied
    )  # type: ignore[union-attr, index]
    for progress, value in ((0.75, 3.0), (1.0, 5.0)):
        with torch.no_grad():
            module.weight.fill_(value)
        best(progress)
    assert best.restore() == 1.0


def test_what_is_deployed_is_looked_at() -> None:
    seen = []
    best = Best(Weight(), lambda one: seen.append(one) or _errors(Weight()), lambda _: nn.ReLU())  # type: ignore[func-returns-value]
    best(0.6)
    assert [type(one) for one in seen] == [nn.ReLU]
    assert not seen[0].training


@pytest.fixture
def overfitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty training samples, a third with a wrong class, which a network learns by heart."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(640, 8)).astype("f4")
    y = (x[:, 0] > 0).astype(np.int64)
    y[:40] ^= draw.random(40) < 0.3
    ends = {"train": slice(0, 40), "validation": slice(40, 440), "test": slice(440, 640)}
    parts = {f"x_{name}": x[at] for name, at in ends.items()}
    np.savez("d.npz", **parts, **{f"y_{name}": y[at] for name, at in ends.items()})
    Path("my.py").write_text(
        "from torch import nn\n"
        "def net(): return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 2))\n"
    )


@pytest.mark.parametrize("name", ["gelu", "relu", "annealed", "hard-switch"])
def test_each_arm_gets_its_best_weights(name: str, overfitting: None) -> None:
    losses, kept = [], []
    for keep in (True, False):
        own = own_of(
            {
                "model": "my.py:net",
                "data": "d.npz",
                "epochs": 40,
                "learning_rate": 0.02,
                "keep_best": keep,
            }
        )
        network, made = make_network(own, own.data(), standing(name), 0, name="w")
        losses.append(mean_loss(errors_of(network.module, own.data().validation)))
        kept.append(made.kept)
        rows = _training(made, 1.0, own, own.task_chosen())
        assert {each.name: each.value for each in rows}.get("kept_at") == made.kept
    assert kept[1] is None
    assert kept[0] is not None
    assert 0.5 <= kept[0] < 1
    assert losses[0] < losses[1]


@pytest.mark.parametrize("kind", [SwapFinetuned, PostHoc])
def test_a_repair_gets_its_best_weights(
    kind: type[SwapFinetuned | PostHoc], overfitting: None
) -> None:
    """As what it is compared with does: else a repair would be judged by weights that overfit."""
    losses, kept = [], []
    for keep in (True, False):
        options = {"epochs": 40, "learning_rate": 0.02, "keep_best": keep}
        own = own_of({"model": "my.py:net", "data": "d.npz", **options})
        base, _ = make_network(own, own.data(), standing("gelu"), 0, name="base")
        repair = kind(base="gelu", share=1.0, rate=1.0)
        network, made = make_network(own, own.data(), repair, 0, name="w", base=base.module)
        losses.append(mean_loss(errors_of(network.module, own.data().validation)))
        kept.append(made.kept)
    assert kept[1] is None
    assert kept[0] is not None
    assert 0.5 <= kept[0] < 1
    assert losses[0] < losses[1]

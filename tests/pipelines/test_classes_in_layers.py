"""A class with a `forward` of its own, and activations that are functions, through the stages
that read layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from conftest import MakeBench, MakeNetwork
from torch import nn
from torch.nn import functional

from evalsuite import Metric, Network, Property, Unsupported, Verdict
from pipelines.bounds import Bounds
from pipelines.prune.exact import ExactPrune
from pipelines.smt.reading import layered, reach, read, read_curved
from pipelines.swap_certificate import Certificate

Function = Callable[[torch.Tensor], torch.Tensor]


class _Class(nn.Module):
    """The layers of a digits-mlp, called in `forward`."""

    def __init__(self, layers: nn.Module, act: Function) -> None:
        super().__init__()
        self.dense = nn.ModuleList(each for each in layers.modules() if isinstance(each, nn.Linear))
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.dense[:-1]:
            x = self.act(layer(x))
        return self.dense[-1](x)  # type: ignore[no-any-return]


def _as_class(network: Network, act: Function) -> Network:
    return dataclasses.replace(network, module=_Class(network.module, act).eval())


def test_smt_reads_the_same_numbers(network: MakeNetwork) -> None:
    given = network("digits-mlp", "annealed", epochs=4)
    ours, theirs = read(_as_class(given, functional.relu)), read(given)
    assert len(ours.maps) == len(theirs.maps) == 3
    for one, other in zip(ours.maps, theirs.maps, strict=True):
        assert one.weight.fractions() == other.weight.fractions()
        assert one.bias.fractions() == other.bias.fractions()


def test_smt_reads_a_functional_gelu(network: MakeNetwork) -> None:
    found = read_curved(_as_class(network("digits-mlp", "gelu", epochs=4), functional.gelu))
    assert [each.traits.name for each in found.curves] == ["gelu", "gelu"]


def test_smt_refuses_a_residual_by_name(network: MakeNetwork) -> None:
    given = _as_class(network("digits-mlp", "annealed", epochs=4), lambda x: x + functional.relu(x))
    with pytest.raises(Unsupported, match=r"the network \(sum\) takes other values"):
        read(given)


def test_exact_prune_and_the_certificate_give_equal_rows(
    network: MakeNetwork, bench: MakeBench
) -> None:
    given = network("digits-mlp", "gelu", epochs=4)
    pair = given, _as_class(given, functional.gelu)
    stages = (
        ExactPrune(query_time_limit=0.1),
        Certificate(eps=(0.01,), samples=3, hardness=(2.0,), sweep_samples=2),
    )
    for stage in stages:
        theirs, ours = (stage.run(each, bench("digits-mlp", epochs=4)).metrics for each in pair)
        assert [(each.name, each.value) for each in ours] == [
            (each.name, each.value) for each in theirs
        ]


@pytest.mark.parametrize(
    ("variant", "act"), [("gelu", functional.gelu), ("annealed", nn.ReLU(inplace=True))]
)
def test_bounds_certifies_the_same(
    network: MakeNetwork, bench: MakeBench, variant: str, act: Function
) -> None:
    given = network("digits-mlp", variant, epochs=4)
    stage = Bounds(eps=(0.01,), samples=8, methods=("ibp", "crown"))

    def verdicts(metrics: list[Metric]) -> list[object]:
        return [
            (each.setting, each.sample, each.verdict)
            for each in metrics
            if each.name == "robustness"
        ]

    theirs, ours = (
        stage.run(each, bench("digits-mlp", epochs=4)).metrics
        for each in (given, _as_class(given, act))
    )
    assert verdicts(ours) == verdicts(theirs)
    assert Verdict.HOLDS in {each.verdict for each in ours if each.setting.get("method") == "crown"}


def test_smt_bounds_the_values_of_a_class(network: MakeNetwork) -> None:
    given = network("digits-mlp", "gelu", epochs=4)
    low = torch.zeros(given.input_shape, dtype=torch.float64)
    box = Property(0, 0, 1.0, low, low + 1)
    ours = _as_class(given, functional.gelu)
    assert reach(layered(ours), box) == pytest.approx(reach(given, box), rel=1e-12)
    with pytest.raises(Unsupported, match="_Class"):
        reach(ours, box)
    unknown = dataclasses.replace(given, module=nn.Sequential(nn.Flatten(), nn.Softmax(-1)))
    with pytest.raises(Unsupported, match="no bound of its values"):
        reach(unknown, box)

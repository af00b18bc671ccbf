"""Does a stage keep the contract? It is run twice on really trained networks, and on an odd one."""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from evalsuite.contract import Bench, Network, Outcome, Stage, Unsupported
from evalsuite.run.making import make_bench, make_network
from evalsuite.testing.rules import (
    check_outcome,
    check_stage_declaration,
    check_unchanged,
    disturb,
    fingerprint,
    key_of,
    require,
    torch_state_kept,
)
from evalsuite.variants import standing
from evalsuite.workloads.digits import DigitsMLP

CHECKS = (
    "declaration",
    "metrics",
    "artefacts",
    "handed_on_network",
    "torch_state",
    "input_unchanged",
    "determinism",
    "odd_network",
)
_WORKLOAD = DigitsMLP(epochs=5)
_SEED = 0
_TIME_LIMIT = 60.0


def check_stage(
    stage: Stage, *, network: Network | None = None, bench: Bench | None = None
) -> list[str]:
    """Run `stage` and check the contract; return the names of the checks passed.

    Args:
        stage: an instance, with the options to check it under: quick ones, as it runs twice per
            network.
        network: what to run it on; by default a GELU network and an annealed ReLU network of
            `digits-mlp`, of which the stage must be able to measure at least one.
        bench: the bench that fits `network`; give both or neither. Artefacts go to a temporary
            folder, not to its own.

    Raises:
        AssertionError: a rule is broken; the text names rule, culprit and cure.
    """
    if (network is None) != (bench is None):
        raise ValueError(
            "give check_stage both network and bench, or neither: the bench's data must fit the"
            " network"
        )
    check_stage_declaration(stage)
    if bench is None:
        with TemporaryDirectory() as folder:  # each run gets a folder of its own
            bench = make_bench(
                _WORKLOAD, _WORKLOAD.data(), seed=_SEED, folder=Path(folder), time_limit=_TIME_LIMIT
            )
    # Copies: a stage that changes its network must not spoil it for the next check.
    networks = (
        [copy.deepcopy(trained_network) for trained_network in _trained()]
        if network is None
        else [network]
    )
    refusals = [
        refusal
        for trained_network in networks
        if (refusal := _check_on(stage, trained_network, bench))
    ]
    require(
        len(refusals) < len(networks),
        "the kit needs a network that the stage can measure",
        f"{type(stage).__name__} says {'; '.join(refusals)}",
        "pass check_stage a fitting network and bench",
    )
    _check_odd_network(stage, bench)
    return list(CHECKS)


def _check_on(stage: Stage, network: Network, bench: Bench) -> str:
    """Check two runs on one network; the reason where the stage says Unsupported."""
    before = _fingerprint(network, bench)
    first = _run(stage, network, bench, 1)
    check_unchanged(before, _fingerprint(network, bench), stage, "stage", "network.module")
    second = _run(stage, network, bench, 2)
    if isinstance(first, Outcome) and isinstance(second, Outcome):
        _check_reproducible(stage, first, second, bench)
        return ""
    require(
        first == second,
        "the same seed gives the same outcome",
        f"{type(stage).__name__} gave {first} then {second}",
        "decide by the network alone whether it is Unsupported",
    )
    return f"{network.name}: {first}"


def _run(stage: Stage, network: Network, bench: Bench, disturbance: int) -> Outcome | str:
    """One checked run in an empty folder, or the text of its Unsupported."""
    with TemporaryDirectory() as folder, torch_state_kept(stage, "stage"):
        disturb(disturbance)
        there = dataclasses.replace(bench, folder=Path(folder))
        try:
            outcome = stage.run(network, there)
        except Unsupported as reason:
            require(
                str(reason) != "",
                "Unsupported says why",
                type(stage).__name__,
                "raise Unsupported('the reason')",
            )
            return str(reason)
        except Exception as error:
            culprit = (
                f"{type(stage).__name__} raised {type(error).__name__}: {error}, of {network.name}"
            )
            cure = (
                "raise Unsupported(reason) where the network is not what the stage can handle; a"
                " bug is to be mended"
            )
            rule = "a stage measures a network, or says Unsupported, and raises nothing else"
            require(False, rule, culprit, cure, error)
        check_outcome(stage, outcome, there)
        return outcome


def _check_reproducible(stage: Stage, first: Outcome, second: Outcome, bench: Bench) -> None:
    one, two = (
        {
            key_of(metric): (metric.value, metric.verdict)
            for metric in outcome.metrics
            if not metric.timing
        }
        for outcome in (first, second)
    )
    different = [
        f"{' '.join(map(str, key))}: {one.get(key)} then {two.get(key)}"
        for key in sorted(one.keys() | two.keys())
        if one.get(key) != two.get(key)
    ]
    if first.network is not None and second.network is not None:
        inputs = bench.data.test.inputs
        with torch.no_grad():
            if not torch.equal(first.network.module(inputs), second.network.module(inputs)):
                different.append("networks handed on with different logits")
    require(
        not different,
        "the same seed gives the same numbers",
        f"{type(stage).__name__} gave {'; '.join(different[:5])}",
        "draw from a generator seeded with bench.seed; mark clock and memory readings timing=True",
    )


class _Odd(nn.Module):
    """A network that few stages can handle: it sorts, and multiplies along, its hidden units."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, 8)
        self.activation = nn.ReLU()
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.activation(self.hidden(x.flatten(1)))
        logits: torch.Tensor = self.head(
            torch.cumprod(torch.sort(hidden, dim=1).values + 0.5, dim=1)
        )
        return logits


def _check_odd_network(stage: Stage, bench: Bench) -> None:
    """The stage measures a network that it was not made for, or says Unsupported."""
    data = bench.data
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        module = _Odd(math.prod(data.input_shape), data.classes).eval()
    _run(
        stage,
        Network(
            "a network with torch.sort and torch.cumprod", module, data.input_shape, data.classes
        ),
        bench,
        3,
    )


def _fingerprint(network: Network, bench: Bench) -> dict[str, object]:
    parts = {
        part: getattr(bench.data, part) for part in ("train", "calibration", "validation", "test")
    }
    return fingerprint({"module": network.module, "unswapped": network.unswapped}, parts)


@cache
def _trained() -> tuple[Network, ...]:
    data = _WORKLOAD.data()
    return tuple(
        make_network(
            _WORKLOAD, data, standing(variant), _SEED, name=f"digits-mlp/{variant}/{_SEED}"
        )[0]
        for variant in ("gelu", "annealed")
    )

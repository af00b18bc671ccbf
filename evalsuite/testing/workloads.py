"""Does a workload keep the contract? Its data are read twice; its network is built, run, trained
and saved.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from evalsuite.contract import Data, Network, Split
from evalsuite.networks import load_network, save_network
from evalsuite.plugins import load
from evalsuite.reluize.training import fit
from evalsuite.run.making import PARTS, check_disjoint
from evalsuite.testing.rules import check_declaration, content, disturb, require, torch_state_kept
from evalsuite.workloads import Workload
from evalsuite.workloads.options import Budget
from lambda_gelu.swapping import build_executing
from opgraph.inputs import leaves

CHECKS = (
    "declaration",
    "budget",
    "data",
    "disjoint_parts",
    "build",
    "executes",
    "training",
    "saving",
)
_BATCH = 256
_ACTIVATIONS = ("gelu", "relu")


def check_workload(workload: Workload) -> list[str]:
    """Check `workload`, and train it for one epoch; return the names of the checks passed.

    Args:
        workload: an instance, with the options to check it under.

    Raises:
        AssertionError: a rule is broken; the text names rule, culprit and cure.
    """
    check_declaration(workload, "workload")
    name = type(workload).__name__
    missing = [field.name for field in fields(Budget) if not hasattr(workload, field.name)]
    require(
        not missing,
        "a workload has a budget",
        f"{name} has no {', '.join(missing)}",
        "inherit evalsuite.workloads.options.Budget",
    )
    with torch.random.fork_rng(devices=[]), torch_state_kept(workload, "workload"):
        data = _checked_data(workload, name)
        _check_build(workload, name)
        for activation in _ACTIVATIONS:
            _check_network(workload, data, activation, name)
    return list(CHECKS)


def _checked_data(workload: Workload, name: str) -> Data:
    disturb(1)
    data, fingerprint = workload.data(), workload.fingerprint()
    disturb(2)
    again = workload.data()
    require(
        isinstance(data, Data),
        "data() returns Data",
        f"{name}: {type(data).__name__}",
        "use evalsuite.workloads.workload.split",
    )
    require(
        isinstance(fingerprint, str)
        and fingerprint != ""
        and fingerprint == workload.fingerprint(),
        "fingerprint() is a text, the same at every call: it enters the cache key",
        f"{name} gave {fingerprint!r} then {workload.fingerprint()!r}",
        "return the SHA-256 of the raw data, as evalsuite.workloads.workload.sha256 gives it",
    )
    require(
        data.fingerprint == fingerprint,
        "the data have the fingerprint that fingerprint() gives",
        f"{name}: {data.fingerprint!r} and {fingerprint!r}",
        "pass fingerprint=self.fingerprint()",
    )
    for part in PARTS:
        one, two = getattr(data, part), getattr(again, part)
        require(
            content(one.inputs) == content(two.inputs)
            and content(one.targets) == content(two.targets),
            "data() is the same at every call",
            f"{name}: part {part!r} is not",
            "split, shuffle and draw with a generator of a fixed seed",
        )
        _check_part(data, part, name)
    try:
        check_disjoint(data)
    except ValueError as error:
        rule = "the four parts are disjoint: what is trained on, or chosen by, is not measured on"
        shared, _, cure = str(error).partition(": ")
        require(False, rule, f"{name}: {shared}", cure, error)
    return data


def _check_part(data: Data, part: str, name: str) -> None:
    split: Split = getattr(data, part)
    inputs, targets, counted = split.inputs, split.targets, split.targets[split.counted]
    low, high = data.domain
    tokens = data.vocabulary is not None
    kind = torch.int64 if tokens else torch.float32
    require(
        inputs.dtype == kind and inputs.shape[1:] == data.input_shape,
        "inputs are float32, or int64 where there is a vocabulary, of one shape in all parts",
        f"{name}: {part} has {inputs.dtype} {tuple(inputs.shape)}, train {data.input_shape}",
        "make the parts by labelled or split of evalsuite.workloads.workload",
    )
    low, high = (0, (data.vocabulary or 1) - 1) if tokens else (low, high)
    ranges = [leaf.aminmax() for batch, _ in split.batches(_BATCH) for leaf in leaves(batch)]
    lowest, highest = (
        torch.stack([range_.min for range_ in ranges]).min(),
        torch.stack([range_.max for range_ in ranges]).max(),
    )
    require(
        low < high and bool(low <= lowest) and bool(highest <= high),  # False where an input is NaN
        "inputs lie in the domain, tokens in the vocabulary",
        f"{name}: {part} goes from {lowest} to {highest}, not [{low}, {high}]",
        "scale the inputs by the training part and clip them, or widen `domain`",
    )
    fits = (
        targets.shape == inputs.shape[: targets.ndim]
        and 0 <= int(counted.min()) <= int(counted.max()) < data.classes
    )
    require(
        targets.dtype == torch.int64 and targets.ndim in (1, 2) and fits,
        "targets are int64, (samples,) or (samples, positions), from 0 to classes - 1",
        f"{name}: {part} has {targets.dtype} {tuple(targets.shape)}, {counted.min()} to"
        f" {counted.max()}",
        "number the classes from 0",
    )


def _built(
    workload: Workload, activation: str, seed: int
) -> tuple[dict[str, object], torch.Tensor]:
    """Initial weights but for the activations' own, by name, and the generator's state after
    them.
    """
    torch.manual_seed(seed)
    module = workload.build(load("activations", activation).target.make)
    return {
        key: content(value) for key, value in module.state_dict().items()
    }, torch.get_rng_state()


def _check_build(workload: Workload, name: str) -> None:
    asked: list[object] = []

    def activation(channels: int) -> nn.Module:
        asked.append(channels)
        return nn.GELU()

    module = workload.build(activation)
    require(
        isinstance(module, nn.Module)
        and asked != []
        and all(isinstance(size, int) and size > 0 for size in asked),
        "build(activation) makes a module, each of whose activations is activation(channels)",
        f"{name}.build gave a {type(module).__name__} and asked for activations of {asked}"
        " channels",
        "call the function that build is given, with the number of channels, once for each"
        " activation",
    )
    gelu, relu = (_built(workload, activation, 0) for activation in _ACTIVATIONS)
    require(
        gelu[0] == relu[0] and torch.equal(gelu[1], relu[1]),
        "the initial weights of one seed are the same for every activation",
        f"{name}.build draws other numbers for {' than for '.join(_ACTIVATIONS)}",
        "draw no random number that depends on the activation",
    )
    require(
        gelu[0] != _built(workload, "gelu", 1)[0],
        "build() initialises freshly: other weights for another seed of torch's generator",
        f"{name}.build gave the same weights after torch.manual_seed(0) and (1)",
        "set no seed in build",
    )


def _check_network(workload: Workload, data: Data, activation: str, name: str) -> None:
    torch.manual_seed(0)
    make = load("activations", activation).target.make
    try:
        module = build_executing(workload.build, make, activation, data.train.inputs[:2])
    except ValueError as error:
        rule, cure = (
            "a network executes the activation that build() is given, and no other",
            "make each one by it",
        )
        require(False, rule, f"{name}: {error}", cure)
    inputs, targets = data.test.inputs[:5], data.test.targets[:5]
    with torch.no_grad():
        shape = tuple(module.eval()(inputs).shape)
    require(
        shape == (*targets.shape, data.classes),
        "logits are (samples, classes), or (samples, positions, classes)",
        f"{name}: targets {tuple(targets.shape)} of {data.classes} classes, but logits {shape}",
        "make the last layer as wide as there are classes, and add no softmax",
    )
    loss = fit(module, data.train, workload, seed=0, share=1 / workload.epochs)
    require(
        all(bool(tensor.isfinite().all()) for tensor in (torch.tensor(loss), *module.parameters())),
        "one epoch of training leaves finite weights",
        f"{name}, {activation}: its loss is {loss}",
        "lower learning_rate, or scale the inputs",
    )
    network = Network(
        f"{name}/{activation}", module, data.input_shape, data.classes, vocabulary=data.vocabulary
    )
    check_saved(network, workload, data, name)


def check_saved(network: Network, workload: Workload, data: Data, culprit: str) -> None:
    """The network can be saved, and loaded the same."""
    inputs = data.test.inputs[:5]
    with TemporaryDirectory() as folder:
        try:
            save_network(network, Path(folder), workload)
            restored = load_network(Path(folder), workload, data)
            with torch.no_grad():
                same, difference = (
                    torch.equal(restored.module(inputs), network.module(inputs)),
                    "it computes something else",
                )
        except Exception as error:
            same, difference = False, f"{type(error).__name__}: {error}"
        require(
            same,
            "a network can be saved, and loaded the same",
            f"{culprit}: {difference}",
            "keep what is learnt in parameters and buffers, and let build() make the same"
            " architecture at every call",
        )

"""The adapter: a user's model called with one batch, giving one tensor, as every network here
is.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from evalsuite.contract import Task
from evalsuite.own.cures import cure_of
from evalsuite.plugins import did_you_mean
from evalsuite.references import line_of
from evalsuite.tasks import Embedding, Heads
from opgraph.errors import OwnError
from opgraph.inputs import Inputs, leaves

_LISTED = 5  # outputs without names that a message lists, at most
MEAN = "mean"
"""The `output` that is the mean of `last_hidden_state` over the positions that `attention_mask`
counts.
"""
_STATE, _MASK = "last_hidden_state", "attention_mask"


class Adapted(nn.Module):
    """`network` called with the parts of one batch; what it returns gives one tensor.

    Which parts, and how they are handed on, is settled when it is made, so that torch.export and fx
    can follow it.

    Args:
        network: the user's own, with the user's own state dict.
        keys: of the parts of a batch, names of a mapping or places of a tuple; empty where a batch
            is one tensor.
        names: of the arguments that take them; empty where they are positional.
        output: which attribute, key or index of what is returned is the output; "" where that is a
            tensor; see `MEAN`. Names with commas between are several, flattened beside one another.
    """

    def __init__(
        self, network: nn.Module, keys: tuple[Any, ...], names: tuple[str, ...], output: str
    ) -> None:
        super().__init__()
        self.network = network
        self._keys, self._names = keys, names
        self._output = ",".join(name.strip() for name in output.split(","))

    def forward(self, batch: Any) -> torch.Tensor:
        """The output that was chosen of what the network returns for a batch: a tensor (samples,
        ...).
        """
        parts = [batch[key] for key in self._keys] if self._keys else [batch]
        named = dict(zip(self._names, parts, strict=False))
        returned = self.network(**named) if named else self.network(*parts)
        if self._output == MEAN:  # (samples, positions, width) to (samples, width)
            states: torch.Tensor = _picked(returned, _STATE)
            mask: torch.Tensor | None = named.get(_MASK)
            if mask is None:
                return states.mean(1)
            counted = mask.unsqueeze(-1).to(states.dtype)
            return (states * counted).sum(1) / counted.sum(1).clamp(min=1)
        if "," in self._output:  # several outputs, each (samples, ...), to (samples, width)
            outputs = [_picked(returned, name) for name in self._output.split(",")]
            flat = [
                tensor.flatten(1) if tensor.ndim > 1 else tensor.unsqueeze(1) for tensor in outputs
            ]
            return torch.cat(flat, 1)
        return _picked(returned, self._output)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Which parts of a batch it takes and which output it gives, for print(module)."""
        return f"keys={list(self._keys)}, output={self._output!r}"


def own_network(module: nn.Module) -> nn.Module:
    """The user's own module inside, or `module` itself where none was needed."""
    return module.network if isinstance(module, Adapted) else module


def adapted(
    module: nn.Module,
    example: Inputs,
    inputs: tuple[str, ...] = (),
    output: str = "",
    task: Task | None = None,
) -> nn.Module:
    """`module` as a network that takes one batch and gives one tensor; itself where it does so
    already.

    A mapping becomes keyword arguments, a tuple positional ones. Without an `output`, of a mapping
    or an object that is returned `logits` are taken, or the only tensor; of hidden states, where
    the task is an embedding, their mean (`MEAN`).

    Args:
        module: the user's.
        example: a batch, on which it is run once.
        inputs: which entries of a mapping are handed on; of a tuple or a tensor the names of the
            arguments.
        output: see `Adapted`.
        task: what the model is for.

    Raises:
        OwnError: it cannot be called so, raises, or gives no tensor; the text says which names
            there are.
    """
    keys, names = _parts(example, inputs)
    probe = Adapted(module, keys, names, "")
    returned = _called(probe, example)
    heads = getattr(task, "task", task)
    if isinstance(heads, Heads):
        output = _of_heads(returned, heads.names, output)
    if not keys and not names and not output and isinstance(returned, torch.Tensor):
        _check_numbers(returned, module)
        return module
    network = Adapted(module, keys, names, output or _default(returned, task))
    output_tensor = _called(network, example)
    if not isinstance(output_tensor, torch.Tensor):
        raise OwnError(
            f"the model: its output {network._output!r} is {_kind(output_tensor)}, not a"
            f" tensor{_choose(returned)}"
        )
    _check_numbers(output_tensor, module)
    return network


def _check_numbers(output: torch.Tensor, module: nn.Module) -> None:
    if bool(output.isnan().any()):
        raise OwnError(
            f"the model: {type(module).__name__} gives NaN on a batch of the data; look at its"
            " weights, and at the inputs' scale"
        )


def _parts(example: Inputs, inputs: tuple[str, ...]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The keys of the batch and the names of the arguments: see `Adapted`."""
    if isinstance(example, Mapping):
        for name in inputs:
            if name not in example:
                raise OwnError(f"inputs: the data have no {name!r}{did_you_mean(name, example)}")
        chosen = inputs or tuple(example)
        return chosen, chosen
    count = len(leaves(example))
    if inputs and len(inputs) != count:
        raise OwnError(
            f"inputs: {len(inputs)} names ({', '.join(inputs)}) for a batch of {count}; name each"
            " part"
        )
    return (tuple(range(count)) if isinstance(example, tuple) else ()), inputs


def _called(module: Adapted, example: Inputs) -> Any:
    """Call a copy in evaluation mode, and return its output before it is picked where `output` is
    "".
    """
    name = type(module.network).__name__
    # 1. Whether forward takes what the data give, by its signature alone: its own error could
    # mean anything.
    parts = [example[key] for key in module._keys] if module._keys else [example]
    positional, named = (
        ([], dict(zip(module._names, parts, strict=True))) if module._names else (parts, {})
    )
    try:
        inspect.signature(module.network.forward).bind(*positional, **named)
    except TypeError as error:
        takes = [
            parameter
            for parameter in inspect.signature(module.network.forward).parameters
            if parameter != "self"
        ]
        described = ", ".join(map(str, named)) or f"{len(positional)} positional"
        raise OwnError(
            f"the model: {name}.forward takes {', '.join(takes)}, but the data give {described}"
            f" ({error}); choose by `inputs: [...]`, or name the data's fields as forward does"
        ) from error
    # 2. Call it in evaluation mode, and give each module its own mode back.
    modes = {layer: layer.training for layer in module.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return module.eval()(example)
    except OwnError:
        raise
    except (Exception, SystemExit) as error:  # a user's forward may raise anything
        said = " ".join(str(error).split())[:300]
        said = "; ".join(filter(None, (said, cure_of(module, module.network, example, error))))
        labels = (
            [f"{key} " for key in example]
            if isinstance(example, Mapping)
            else [""] * len(leaves(example))
        )
        described = ", ".join(
            f"{label}{list(leaf.shape)}"
            for label, leaf in zip(labels, leaves(example), strict=True)
        )
        raise OwnError(
            f"{line_of(error)}the model: {name}.forward raises {type(error).__name__} on a batch of"
            f" the data ({described}): {said}"
        ) from error
    finally:
        for each, training in modes.items():
            each.training = training


def _of_heads(returned: Any, names: tuple[str, ...], output: str) -> str:
    """The outputs that have tasks, by the names or the places that the network calls them by."""
    named = named_outputs(returned)
    chosen = tuple(name.strip() for name in output.split(",")) if output else names
    # A tuple names nothing: its places are in the order of the tasks.
    if not output and len(named) == len(names) and all(name.isdecimal() for name in named):
        chosen = tuple(named)
    absent = [name for name in chosen if not isinstance(named.get(name), torch.Tensor)]
    if len(chosen) != len(names) or absent:
        known = ", ".join(named) or _kind(returned)
        cure = "write `output:` with commas, the model's own names in the order of the tasks"
        said = f"tasks are of the outputs {', '.join(names)}, and it returns {known}"
        raise OwnError(f"the model: {said}; {cure}")
    return ",".join(chosen)


def _default(returned: Any, task: Task | None) -> str:
    """The output where none is named. Raises OwnError: what is returned does not tell."""
    if isinstance(returned, torch.Tensor):
        return ""
    named = named_outputs(returned)
    if "logits" in named:
        return "logits"
    if isinstance(task, Embedding) and _STATE in named:
        return MEAN
    # One tensor is the output, whatever it is wrapped in.
    tensors = [name for name, value in named.items() if isinstance(value, torch.Tensor)]
    if len(tensors) == 1:
        return tensors[0]
    raise OwnError(f"the model: it returns {_kind(returned)}, not a tensor{_choose(returned)}")


def named_outputs(returned: Any) -> dict[str, Any]:
    """Name the outputs of a network: those of a mapping by its keys, of a dataclass or a named
    tuple by its fields, of a tuple or a list by the numbers of its places; of anything else there
    are none.
    """
    if isinstance(returned, Mapping):
        return {str(name): value for name, value in returned.items()}
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        return {entry.name: getattr(returned, entry.name) for entry in dataclasses.fields(returned)}
    if isinstance(returned, tuple) and hasattr(returned, "_fields"):
        return dict(zip(returned._fields, returned, strict=True))
    if isinstance(returned, (tuple, list)):
        return {str(place): value for place, value in enumerate(returned)}
    return {}


def _choose(returned: Any) -> str:
    named = named_outputs(returned)
    if not named:
        return "; choose an attribute of it by `output:`, or return a tensor"
    if len(named) > _LISTED and all(name.isdecimal() for name in named):
        return f"; choose one by `output:`, an index below {len(named)}"
    names = [
        f"{name} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else name
        for name, value in named.items()
    ]
    names += [MEAN] if _STATE in named else []
    return f"; choose one by `output:` ({', '.join(names)})"


def _picked(returned: Any, output: str) -> Any:
    if not output:
        return returned
    try:
        if output.isdecimal():
            return returned[int(output)]
        return returned[output] if isinstance(returned, Mapping) else getattr(returned, output)
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise OwnError(
            f"output: the model returns {_kind(returned)} without {output!r}{_choose(returned)}"
        ) from error


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def output_shapes(module: nn.Module, example: Inputs) -> tuple[tuple[int, ...], ...]:
    """The shape of each output of an adapted network of several, of one sample."""
    assert isinstance(module, Adapted)
    returned = _called(Adapted(module.network, module._keys, module._names, ""), example)
    outputs = [_picked(returned, name) for name in module._output.split(",")]
    return tuple(tuple(output.shape[1:]) for output in outputs)


def first_run(module: nn.Module, example: Inputs, inputs: tuple[str, ...] = ()) -> Any:
    """Run the user's module on a batch, in which lazy layers take their shapes. Raises OwnError:
    see `adapted`.
    """
    return _called(Adapted(module, *_parts(example, inputs), ""), example)

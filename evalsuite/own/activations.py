"""The activations of a user's network: which one it computes, where, and putting others in their
places.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from evalsuite.own.adapter import own_network
from lambda_gelu.activations import RELU, Hardenable, census
from lambda_gelu.activations.census import duplicate, let_stay, made_like, substitute
from lambda_gelu.activations.recognition import known
from lambda_gelu.activations.runs import Use, census_of_run
from lambda_gelu.activations.traits import Activation
from lambda_gelu.rewrite import modes_in
from lambda_gelu.swapping import expose
from opgraph.errors import OwnError
from opgraph.inputs import Inputs, mapped

_FEATURES_LAST = (nn.Linear, nn.Bilinear, nn.Embedding, nn.LayerNorm)
_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)
_CLOSENESS = 1e-6


@dataclass(frozen=True)
class Place:
    """Where a network executes an activation: the path of its module, the channels, and which
    dimension they are.
    """

    path: str
    channels: int
    dimension: int


@dataclass(frozen=True)
class OwnActivations:
    """The activations of an architecture that variants replace; the same for every fresh module of
    it.

    Args:
        name: the registered name of the activation: the one that is smooth, and like ReLU for large
            |x|.
        places: where it stands, when the network is exposed.
        stay: the paths of other activations, which stay.
        example: what to expose a fresh module with; None where all activations are modules, and no
            run is needed.
    """

    name: str
    places: tuple[Place, ...]
    stay: tuple[str, ...]
    example: tuple[Inputs] | None

    @classmethod
    def of(cls, module: nn.Module, example: Inputs, chosen: str = "") -> OwnActivations:
        """The activations of `module`, a network that takes one batch, found by running it on the
        example.

        Args:
            module: freshly built; it is not changed.
            example: a batch.
            chosen: the registered name of the activation that is replaced where there are several;
                the others stay.

        Raises:
            OwnError: it has none that can be replaced, or what replaces them would compute
                something else.
        """
        _refuse_random(module, example)
        exposed, needed = _exposed(module, example)
        # 1. Count the replaceable activations that a run executes, and choose one of them.
        counts, sites = _places(exposed, example)
        if not counts:
            raise OwnError(_none(module, census_of_run(module, example)))
        said = " and ".join(f"{name} x {counts[name]}" for name in sorted(counts))
        if chosen and chosen not in counts:
            raise OwnError(
                f"activation: {chosen!r}, but {type(module).__name__} executes {said}; name one of"
                " these"
            )
        if len(counts) > 1 and not chosen:
            raise OwnError(
                f"the model: {type(module).__name__} executes {said}: variants put one activation"
                " in the place of one; name by the option `activation` which, and the others stay,"
                " or write all of them as one"
            )
        name = chosen or next(iter(counts))
        # 2. Collect where it stands; all other activations stay as they are.
        places = tuple(sites[name].values())
        paths = {place.path for place in places}
        stay = tuple(use.path for use in census(exposed, gates=True) if use.path not in paths)
        activations = cls(name, places, stay, needed)
        # 3. Put the same activation in anew, as a variant would: the outputs must not change.
        activations._check(module, example)
        return activations

    def replaced(self, module: nn.Module, make: Callable[[int], nn.Module]) -> nn.Module:
        """A copy of `module` with what `make` makes, given the number of channels, in each place.
        Raises OwnError: it has no activation there: it is of another architecture.
        """
        # 1. Expose the activations as they were found, and mark those that stay.
        exposed = expose(module, self.example)
        present = dict(exposed.named_modules())
        for path in self.stay:
            if path in present:
                let_stay(present[path])
        # 2. Put a new one in each place, with the place's channels; in place where the old one
        # was, since a forward may drop what is returned.
        for place in self.places:
            if place.path not in present:
                raise OwnError(
                    f"the model: it has no activation at {place.path}, where it had one before: let"
                    " what builds it make the same layers at every call"
                )
            activation = make(place.channels)
            if isinstance(activation, Hardenable):
                activation.dimension = place.dimension
            if getattr(present[place.path], "inplace", False) and hasattr(activation, "inplace"):
                vars(activation)["inplace"] = True
            exposed = substitute(exposed, {id(present[place.path]): made_like(exposed, activation)})
        return exposed

    def _check(self, module: nn.Module, example: Inputs) -> None:
        """The network with its own activation put in anew computes what it did."""
        row = next(traits for traits in known() if traits.name == self.name)
        off = _off(
            *(outputs_of(network, example) for network in (module, self.replaced(module, row.make)))
        )
        if off:
            raise OwnError(
                f"the model: with its {self.name} replaced by modules of the same its outputs are"
                f" off by {off:.3g}: an activation that works in place, or is called in another way"
                " in another pass; use a module of its own for each, such as nn.GELU()"
            )


def is_replaceable(row: Activation) -> bool:
    """Whether a row is smooth or bent, without parameters, and like ReLU for large |x|."""
    return (
        row.limits == (0.0, 1.0)
        and row.swaps
        and not row.gate
        and not row.parameters
        and row.name != RELU.name
    )


def _off(before: torch.Tensor, after: torch.Tensor) -> float:
    """The greatest difference of two outputs; 0 where rounding explains it."""
    distance, size = float((after - before).abs().max()), float(before.abs().max())
    return 0.0 if distance <= _CLOSENESS * max(size, 1.0) else distance


@torch.no_grad()
def _refuse_random(module: nn.Module, example: Inputs) -> None:
    with torch.random.fork_rng(devices=[]):
        evaluated = duplicate(module).eval()
        off = _off(*(evaluated(mapped(example, torch.clone)) for _ in range(2)))
    if off:
        raise OwnError(
            f"the model: in evaluation mode its outputs change by {off:.3g} from one run on a batch"
            " to the next: its forward is random, as F.dropout(x) without training=self.training,"
            " or changes its own state; remove that"
        )


def _exposed(module: nn.Module, example: Inputs) -> tuple[nn.Module, tuple[Inputs] | None]:
    """The network with every activation a module, and the example, where a run is needed for
    that.
    """
    try:
        plain, whole = expose(module), expose(module, (example,))
    except ValueError as error:
        raise OwnError(f"the model: {' '.join(str(error).split())[:400]}") from error
    if modes := modes_in(duplicate(whole)):
        name = type(own_network(module)).__name__
        raise OwnError(
            f"the model: {name} writes activations by hand beside {', '.join(modes)}, whose mode a"
            " traced network cannot change; write them as modules such as nn.GELU()"
        )
    same = {path for path, _ in plain.named_modules()} == {
        path for path, _ in whole.named_modules()
    }
    return (plain, None) if same else (whole, (example,))


def _places(
    network: nn.Module, example: Inputs
) -> tuple[Counter[str], dict[str, dict[str, Place]]]:
    """How often a run executes each replaceable row; and by row and path where, with the
    channels.
    """
    # Run a copy whose hooks tell two things: which layer made a tensor, and which tensor an
    # activation took. The layer decides which dimension holds the channels.
    watched = duplicate(network).eval()
    rows = {use.path: use.traits.name for use in census(watched) if is_replaceable(use.traits)}
    counts: Counter[str] = Counter()
    sites: dict[str, dict[str, Place]] = defaultdict(dict)
    makers: dict[int, tuple[weakref.ref[torch.Tensor], nn.Module]] = {}

    def note(layer: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            makers[id(output)] = weakref.ref(output), layer

    def see(_: nn.Module, args: tuple[torch.Tensor, ...], *, path: str) -> None:
        x = args[0]
        # An id alone may be that of a tensor that is gone: the reference tells whether it is this
        # one.
        reference, layer = makers.get(id(x), (None, None))
        dimension = _dimension(x, layer if reference is not None and reference() is x else None)
        counts.update([rows[path]])
        sites[rows[path]].setdefault(path, Place(path, x.shape[dimension], dimension))

    for path, module in watched.named_modules():
        if path in rows:
            module.register_forward_pre_hook(partial(see, path=path))
        elif not module._modules:
            module.register_forward_hook(note)
    outputs_of(watched, example)
    return counts, sites


def _dimension(x: torch.Tensor, layer: nn.Module | None) -> int:
    """Which dimension the channels are, as `Hardenable` has it: 1, or -1 where features come
    last.
    """
    if x.ndim <= 2 or isinstance(layer, _CHANNELS_FIRST):
        return 1 if x.ndim > 1 else -1
    if isinstance(layer, _FEATURES_LAST) or type(layer).__name__ == "Conv1D":
        return -1
    return -1 if x.ndim == 3 else 1


def outputs_of(module: nn.Module, example: Inputs) -> torch.Tensor:
    """Compute the outputs of a copy of the network in evaluation mode."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        output: torch.Tensor = duplicate(module).eval()(example)
    return output


def _none(module: nn.Module, uses: list[Use]) -> str:
    name = type(own_network(module)).__name__
    # What the run did execute, so that its author sees what was taken for what.
    called = [
        (
            (
                use.traits.name + (f" at hardness {use.hardness:.4g}" if use.hardness != 1 else ""),
                use.path,
            )
            if use.traits
            else (use.function, use.path)
        )
        for use in uses
    ]
    calls = sorted({f"{what} at {path or name}" for what, path in called})
    said = ", ".join(calls[:5]) + (f" and {len(calls) - 5} more" if len(calls) > 5 else "")
    # ReLU is told apart: there is nothing to gain.
    if any(use.traits is RELU for use in uses):
        return (
            f"the model: {name} executes ReLU already ({said}), and no smooth activation to"
            " replace; bring the network with its smooth activation, such as GELU, or measure this"
            " one by the stages of a workload plugin"
        )
    return (
        f"the model: {name} executes no activation that ReLU could replace"
        f" ({said or 'none at all'}); those known are listed by `evalsuite activations`: write it"
        " as one of these, such as nn.GELU()"
    )

"""Folding lambda into the neighbouring layers: a lambda-GELU network is a GELU network with other
weights.

What is safe to fold is known from who makes a tensor, and who takes it, in one run of the network.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from lambda_gelu.activations.census import duplicate, identify, substitute
from lambda_gelu.activations.gated import GatedUnit
from lambda_gelu.activations.hardenable import Hardenable
from lambda_gelu.activations.recognition import known
from lambda_gelu.activations.runs import as_call

# Functions of torch that a positive factor passes through: one per channel (dimension 1), or only
# one per tensor.
_PER_CHANNEL = frozenset(
    {
        "dropout",
        "dropout1d",
        "dropout2d",
        "feature_dropout",
        "contiguous",
        "clone",
        "detach",
        "relu",
        "max_pool1d",
    }
    | {"max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d"}
)
_SHAPING = frozenset({"view", "reshape", "flatten", "permute", "transpose", "squeeze", "unsqueeze"})
_PER_TENSOR = _PER_CHANNEL | _SHAPING
# Functions that are affine in their input, where input, weight and bias are among their arguments,
# and the dimension of the weight that counts outputs (inputs, behind the activation).
_BEFORE = {
    "linear": (0, 1, 2, 0),
    "conv1d": (0, 1, 2, 0),
    "conv2d": (0, 1, 2, 0),
    "conv3d": (0, 1, 2, 0),
    "addmm": (1, 2, 0, 1),
    "batch_norm": (0, 3, 4, 0),
    "layer_norm": (0, 2, 3, 0),
}
_BEHIND = {"linear": 1, "conv1d": 1, "conv2d": 1, "conv3d": 1, "addmm": 0}
# Functions of torch that may give back the very tensor that they were given, unchanged.
_UNCHANGING = frozenset(
    {"dropout", "dropout1d", "dropout2d", "feature_dropout", "contiguous", "to", "float", "double"}
)
_ASKING = frozenset(
    {"__get__", "size", "dim", "numel", "stride", "is_floating_point", "is_contiguous", "__len__"}
)


@dataclass(eq=False, slots=True)
class Step:
    """A call in a run: a function of torch, or (`activation` set) a whole hardenable activation."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    activation: Hardenable | None = None

    def argument(self, position: int, name: str) -> Any:
        """An argument, given by position or by name; None if not given."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A parameter to multiply by lambda, or to divide by it, along `dimension` if there is one
    lambda per channel.
    """

    parameter: nn.Parameter
    dimension: int
    divide: bool


def scaled_parameters(
    before: Any, bias: Any, *behind: Any, dimension: int = 0, inputs: int = 1
) -> list[Scaled]:
    """Return what folding scales: weight and bias of the layer before, and the weights behind."""
    tensors = [
        Scaled(before, dimension, False),
        *([Scaled(bias, 0, False)] if bias is not None else []),
    ]
    return [*tensors, *(Scaled(weight, inputs, True) for weight in behind)]


class Dataflow(TorchFunctionMode):
    """The steps of one run of `network`, each tensor's maker and takers. Tensors are kept, so
    that ids stay unique.
    """

    def __init__(
        self, network: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.maker: dict[int, Step] = {}
        self.takers: defaultdict[int, list[Step]] = defaultdict(list)
        self.calls: Counter[int] = Counter()
        self._muted = 0
        # Record who makes and who takes each tensor in one run. Hooks make every hardenable
        # activation one step, and mute the functions that it calls inside.
        layers = [module for module in network.modules() if isinstance(module, Hardenable)]
        handles = [handle for layer in layers for handle in self._hook(layer)]
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), self:
                output = network(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        # The outputs are taken too, by the caller: a tensor that is returned cannot be scaled.
        self._add(Step("output", tuple(tree_leaves(output)), {}, None))

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = str(getattr(func, "__name__", "?")).partition(".")[0]
        is_question = name in _ASKING and not any(
            isinstance(tree_leaf, torch.Tensor) for tree_leaf in tree_leaves(result)
        )
        is_nothing = name in _UNCHANGING and bool(args) and result is args[0]
        if not self._muted and not is_question and not is_nothing:
            self._add(Step(name, args, kwargs, result))
        return result

    def _hook(self, module: Hardenable) -> tuple[Any, Any]:
        def before(*_: Any) -> None:
            self._muted += 1

        def after(module: Hardenable, args: tuple[Any, ...], result: Any) -> None:
            self._muted -= 1
            self.calls[id(module)] += 1
            self._add(Step("activation", args, {}, result, module))

        return module.register_forward_pre_hook(before), module.register_forward_hook(after)

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        for tree_leaf in tree_leaves((step.args, step.kwargs)):
            if isinstance(tree_leaf, torch.Tensor):
                self.takers[id(tree_leaf)].append(step)
        for tree_leaf in tree_leaves(step.result):
            if isinstance(tree_leaf, torch.Tensor):
                # an operator in place gives back what it was given: from then on nobody is the one
                # maker
                self.maker[id(tree_leaf)] = (
                    step
                    if id(tree_leaf) not in self.takers
                    else Step("in place", (), {}, tree_leaf)
                )


def neighbours(
    network: nn.Module, layer: Hardenable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Scaled]:
    """The parameters into which lambda of `layer` can go without a change of any output; none:
    there are no such.

    Each must be used once in the run, in an affine function before or behind the activation, and
    every tensor between must be used by nothing else.
    """
    flow = Dataflow(network, args, kwargs)
    uses = [step for step in flow.steps if step.activation is layer]
    if len(uses) != 1 or flow.calls[id(layer)] != 1:
        return []
    tied = Counter(
        id(parameter) for _, parameter in network.named_parameters(remove_duplicate=False)
    )
    search = _Search(flow, tied, per_channel=bool(layer.hardness.ndim))
    before = search.before(uses[0].args[0])
    behind = search.behind(uses[0].result)
    return [*before, *behind] if before and behind else []


@dataclass(frozen=True, slots=True)
class _Search:
    """From an activation to the affine functions around it, along tensors that nothing else
    uses.
    """

    flow: Dataflow
    tied: Counter[int]
    per_channel: bool

    def before(self, operand: torch.Tensor) -> list[Scaled]:
        """Weight and bias of the affine function that makes the operand; empty if it is none."""
        step = self.flow.maker.get(id(operand))
        if step is None or len(self.flow.takers[id(operand)]) != 1 or step.result is not operand:
            return []
        if step.name in _BEFORE:
            return self._affine(step, operand)
        passing = step.name in (_PER_CHANNEL if self.per_channel else _PER_TENSOR)
        return (
            self.before(step.args[0])
            if passing and step.args and isinstance(step.args[0], torch.Tensor)
            else []
        )

    def _affine(self, step: Step, operand: torch.Tensor) -> list[Scaled]:
        _, weight_at, bias_at, dimension = _BEFORE[step.name]
        product = step.name == "addmm"
        # lambda per channel scales dimension 1 of x. The outputs of a linear layer, and what a
        # LayerNorm scales, are the last dimension, which is that one in two dimensions alone.
        if self.per_channel and (
            step.name == "layer_norm" or (step.name in ("linear", "addmm") and operand.ndim != 2)
        ):
            return []
        weight = step.argument(weight_at, "mat2" if product else "weight")
        bias = step.argument(bias_at, "input" if product else "bias")
        # Weight and bias must be parameters that the network uses here alone, or the fold would
        # scale other layers too.
        free = (
            self._is_free(weight) and (bias is None or self._is_free(bias)) and weight is not bias
        )
        if not free or (product and step.kwargs):  # beta and alpha
            return []
        return scaled_parameters(weight, bias, dimension=dimension)

    def behind(self, output: torch.Tensor) -> list[Scaled]:
        """The weights of all affine functions that take the output; empty if
        anything else takes it."""
        scaled: list[Scaled] = []
        for step in self.flow.takers[id(output)]:
            through = self._through(step, output)
            if not through:
                return []
            scaled += through
        return scaled

    def _through(self, step: Step, output: torch.Tensor) -> list[Scaled]:
        # Two arguments that are y, as in y * y, would scale the result by lambda squared.
        if sum(tree_leaf is output for tree_leaf in tree_leaves((step.args, step.kwargs))) != 1:
            return []
        # An affine layer that takes y ends the search: its weight is divided by lambda.
        if step.name in _BEHIND:
            return self._weight(step, output)
        # Else lambda may pass through what commutes with a scaling, and the search goes on
        # behind.
        first = bool(step.args) and step.args[0] is output
        passing = step.name in (_PER_CHANNEL if self.per_channel else _PER_TENSOR) and first
        # Channel i of a product is to be that of y times something; for one lambda every product
        # serves.
        alike = not self.per_channel or (
            isinstance(step.result, torch.Tensor) and step.result.shape == output.shape
        )
        if not passing and not (step.name in ("mul", "__mul__", "__rmul__") and alike):
            return []
        return (
            self.behind(step.result)
            if isinstance(step.result, torch.Tensor) and step.result is not output
            else []
        )

    def _weight(self, step: Step, output: torch.Tensor) -> list[Scaled]:
        axis = _BEFORE[step.name][0]
        weight = step.argument(_BEFORE[step.name][1], "weight" if step.name != "addmm" else "mat2")
        if len(step.args) <= axis or step.args[axis] is not output or not self._is_free(weight):
            return []
        if self.per_channel:
            if step.name in ("linear", "addmm") and output.ndim != 2:
                return []
            if step.name.startswith("conv") and weight.shape[1] != output.shape[1]:  # groups
                return []
        if step.name == "addmm" and step.kwargs:
            return []
        return [Scaled(weight, _BEHIND[step.name], True)]

    def _is_free(self, value: Any) -> bool:
        """A parameter that one call takes, and one place of the network holds."""
        return (
            isinstance(value, nn.Parameter)
            and len(self.flow.takers[id(value)]) == 1
            and self.tied[id(value)] == 1
        )


def copies_agree(
    first: nn.Module, second: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether two networks give the same outputs, to 1e-9 of the largest, computed in float64.

    A network that does not run in float64 cannot be compared so closely: then the answer is no.
    """
    # In float64 only an exact fold agrees to 1e-9; the same seed lets random operators agree too.
    named = {name: _double(tensor) for name, tensor in kwargs.items()}
    outputs = []
    for module in (first, second):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                outputs.append(
                    tree_leaves(duplicate(module).double()(*map(_double, args), **named))
                )
            except RuntimeError:
                return False
    return all(
        float((one - other).abs().max()) <= 1e-9 * max(1.0, float(one.abs().max()))
        for one, other in zip(*outputs, strict=True)
        if isinstance(one, torch.Tensor) and one.numel() and one.is_floating_point()
    )


def _double(value: Any) -> Any:
    """The argument in float64; of a batch that is a tuple or a mapping each part."""

    def one(tensor: Any) -> Any:
        return (
            tensor.double()
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            else tensor
        )

    return tree_map(one, value)


# Layers that a positive factor, one per tensor or per channel, passes through unchanged.
_HOMOGENEOUS = (
    nn.Flatten,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Dropout,
)
_AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d)


def fold_hardness(module: nn.Module, example: Any = None) -> nn.Module:
    """A copy of `module`, in evaluation mode, whose hardness is moved into the weights: f(x) =
    g(lambda x) / lambda exactly.

    LambdaGELU becomes nn.GELU and Swish nn.SiLU: lambda multiplies the affine layer before and
    divides those behind. Without an example, these neighbours are known in nn.Sequential (pooling,
    dropout and flattening may lie between), in torch's transformer layers and in GatedUnit. With
    one, they are found by following the tensors of a run, in any network; each fold is then checked
    by running the network in float64, and taken back if an output moves. Where lambda has no place
    to go an activation is kept as it is: no affine neighbour, one that is called several times or
    whose weights are shared, a tensor that is used elsewhere too (a residual), a lambda per channel
    behind which the channels are flattened, or whose channels are not surely the outputs of the
    layer before: behind a linear layer only an example shows whether dimension 1 holds them.

    Args:
        module: any network.
        example: inputs: a tensor, a tuple of arguments or a mapping of named ones.
    """
    folded = duplicate(module).eval()
    # Without a run the neighbours are known by the structure alone, and no output is compared.
    if example is None:
        for layer, scaled in list(_by_structure(folded)):
            _apply(layer, scaled)
            folded = substitute(folded, {id(layer): _plain(layer)})
        return folded
    args, kwargs = as_call(example)
    # One activation at a time, in the network as folded so far: each fold changes weights that
    # the next may scale again.
    for path in [path for path, layer in folded.named_modules() if isinstance(layer, Hardenable)]:
        activation = folded.get_submodule(path)
        scaled = (
            neighbours(folded, activation, args, kwargs)
            if isinstance(activation, Hardenable)
            else []
        )
        # The search trusts that each tensor is read as it seems; the outputs in float64 prove it.
        if scaled and copies_agree(*_folded_exactly(folded, path, scaled), args, kwargs):
            folded = _folded(folded, path, scaled)
    return folded


def _folded_exactly(
    network: nn.Module, path: str, scaled: list[Scaled]
) -> tuple[nn.Module, nn.Module]:
    """Copies in float64, unfolded and folded: folded float32 weights are rounded, and agree to
    1e-7 only.
    """
    memo: dict[int, Any] = {}
    exact = copy.deepcopy(network, memo)
    # In place: the copied parameters stay the same objects.
    exact.double()
    copied = [Scaled(memo[id(part.parameter)], part.dimension, part.divide) for part in scaled]
    return exact, _folded(exact, path, copied)


def _folded(network: nn.Module, path: str, scaled: list[Scaled]) -> nn.Module:
    memo: dict[int, Any] = {}
    candidate = copy.deepcopy(network, memo)
    layer = candidate.get_submodule(path)
    if not isinstance(layer, Hardenable):
        raise TypeError(f"{path} is no Hardenable")
    _apply(
        layer, [Scaled(memo[id(part.parameter)], part.dimension, part.divide) for part in scaled]
    )
    return substitute(candidate, {id(layer): _plain(layer)})


@torch.no_grad()
def _apply(layer: Hardenable, scaled: list[Scaled]) -> None:
    hardness = layer.hardness.double()
    for part in scaled:
        shape = [1] * part.parameter.ndim
        if hardness.ndim:
            shape[part.dimension] = -1
        factor = hardness.reshape(shape) if hardness.ndim else hardness
        exact = part.parameter.double()
        part.parameter.copy_(exact / factor if part.divide else exact * factor)


def _plain(layer: Hardenable) -> nn.Module:
    recognised = identify(layer)
    if recognised is None:
        raise TypeError(
            f"{type(layer).__name__} is a Hardenable that no row of traits describes; register"
            " its row"
        )
    row = next(
        row for row in known() if row.value is recognised.traits.value and not row.parameters
    )
    return row.make(1).eval()


def _by_structure(network: nn.Module) -> Iterator[tuple[Hardenable, list[Scaled]]]:
    """Each activation between affine layers that nothing else uses, as far as the modules alone
    show it.
    """
    # A module or a parameter that stands at two places has other neighbours there.
    places = Counter(id(module) for _, module in network.named_modules(remove_duplicate=False))
    tied = Counter(
        id(parameter) for _, parameter in network.named_parameters(remove_duplicate=False)
    )
    for parent in list(network.modules()):
        for layer, before, behind in _neighbours(parent):
            parameters = [*before.parameters(), *behind.parameters()]
            alone = all(places[id(layer_here)] == 1 for layer_here in (layer, before, behind))
            if (
                alone
                and all(tied[id(parameter)] == 1 for parameter in parameters)
                and _fits(layer, before, behind)
            ):
                yield layer, scaled_parameters(before.weight, before.bias, behind.weight)


def _neighbours(parent: nn.Module) -> Iterator[tuple[Hardenable, nn.Module, nn.Module]]:
    if isinstance(parent, nn.Sequential):
        yield from _in_sequence(list(parent))
    elif (
        isinstance(parent, GatedUnit)
        and isinstance(parent.gate, Hardenable)
        and not parent.gate.hardness.ndim
    ):
        yield parent.gate, parent.gate_proj, parent.down
    elif isinstance(parent, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        activation = parent.activation
        if isinstance(activation, Hardenable) and not activation.hardness.ndim:
            yield activation, parent.linear1, parent.linear2


def _in_sequence(layers: list[nn.Module]) -> Iterator[tuple[Hardenable, nn.Module, nn.Module]]:
    for index, layer in enumerate(layers):
        if not isinstance(layer, Hardenable) or not index:
            continue
        # What lies between must commute with lambda. Flattening ends that for lambda per channel,
        # since each channel becomes many features.
        for behind in layers[index + 1 :]:
            if not isinstance(behind, _HOMOGENEOUS):
                yield layer, layers[index - 1], behind
                break
            if layer.hardness.ndim and isinstance(behind, nn.Flatten):
                break


def _fits(layer: Hardenable, before: nn.Module, behind: nn.Module) -> bool:
    if not isinstance(before, _AFFINE) or not isinstance(behind, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        return False
    if layer.hardness.ndim and getattr(behind, "groups", 1) != 1:
        return False
    if layer.hardness.ndim and not _alike(layer) and not _along_outputs(layer, before):
        return False
    # BatchNorm without weights has nothing to fold into
    return bool(getattr(before, "affine", True))


def _alike(layer: Hardenable) -> bool:
    """Whether all channels have one lambda: then it does not matter which dimension they are."""
    return bool((layer.hardness == layer.hardness.flatten()[0]).all())


def _along_outputs(layer: Hardenable, before: nn.Module) -> bool:
    """Whether the channels of the activation are the outputs of the layer before it, whatever
    the input's shape is. Behind a linear layer dimension 1 is that of its outputs only where the
    input has two dimensions, which modules do not show: there an example is needed.
    """
    return layer.dimension == (-1 if isinstance(before, (nn.Linear, nn.LayerNorm)) else 1)

"""Bounds of a network's margins over the boxes of properties: preparation, guards, batches and outward slack."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from evalsuite import Found, Network, Property, Unsupported, census, replace
from pipelines.bounds import METHODS
from pipelines.bounds.adapter import Engine, Gelu

_LAYERS = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU,
    nn.Flatten, nn.Identity, nn.MaxPool2d,
    nn.AvgPool2d, nn.AdaptiveAvgPool2d, Gelu,
)  # fmt: skip
# float64 bounds are off by about 1e-14 of the logits; widening by 1e-10 of them costs nothing.
_SLACK = 1e-10
_BYTES = 2**27
# What auto_LiRPA raises for networks that it accepted but can't treat, by experience.
_FAILURES = (AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError)
_ROWS = ("margins", "lower", "upper")


@dataclass(frozen=True, slots=True)
class Margins:
    """Bounds over boxes, float64, one row per property.

    Args:
        margins: (properties, classes - 1) lower bounds of logit[label] - logit[j], j ascending without the label.
        lower: (properties, classes) of the logits.
        upper: (properties, classes) of the logits.
        inputs: of each activation, lower and upper bounds (properties, *shape) of its input.
    """

    margins: torch.Tensor
    lower: torch.Tensor
    upper: torch.Tensor
    inputs: list[tuple[torch.Tensor, torch.Tensor]]

    @property
    def unstable(self) -> torch.Tensor:
        """(properties,) int64: the activation inputs whose interval has 0 strictly inside."""
        return torch.stack([((low < 0) & (high > 0)).flatten(1).sum(1) for low, high in self.inputs]).sum(0)

    def __len__(self) -> int:
        return len(self.margins)

    def __getitem__(self, index: torch.Tensor | slice) -> Margins:
        """The bounds of some of the properties."""
        inputs = [(low[index], high[index]) for low, high in self.inputs]
        return Margins(self.margins[index], self.lower[index], self.upper[index], inputs)

    @staticmethod
    def joined(parts: list[Margins]) -> Margins:
        """The bounds of all the parts' properties."""
        layers = zip(*[each.inputs for each in parts], strict=True)
        inputs = [(torch.cat([low for low, _ in each]), torch.cat([high for _, high in each])) for each in layers]
        margins, lower, upper = (torch.cat([getattr(each, name) for each in parts]) for name in _ROWS)
        return Margins(margins, lower, upper, inputs)


def _prepared(module: nn.Module) -> nn.Module:
    """A float64 copy: GELUs as `Gelu`, no Dropout, BatchNorm folded into the convolution before it.

    Folding spares bound propagation an operator whose input bounds it would compute for nothing.
    """
    ready = copy.deepcopy(module).double().eval()
    if census(ready):
        ready = replace(ready, _stand_in)
    for parent in list(ready.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (nn.Dropout, nn.Dropout1d, nn.Dropout2d)):
                setattr(parent, name, nn.Identity())
        if isinstance(parent, nn.Sequential):
            _fold_norms(parent)
        elif isinstance(parent, nn.Linear) and "bias" not in dict(parent.named_parameters()):
            # With a bias it is traced as one operator, without as a product that could be of two activations.
            parent.bias = nn.Parameter(parent.weight.new_zeros(parent.out_features))
    return ready.requires_grad_(False).eval()


def _stand_in(found: Found) -> nn.Module:
    return found.module if found.traits.name == "relu" else Gelu(found.traits.hardness(found.module))


def _fold_norms(sequence: nn.Sequential) -> None:
    for index in range(1, len(sequence)):
        layer, norm = sequence[index - 1], sequence[index]
        if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            sequence[index - 1] = nn.utils.fuse_conv_bn_eval(layer, norm)
            sequence[index] = nn.Identity()


def _refuse(module: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Raise Unsupported, naming what there are no trustworthy bounds for."""
    unknown = {
        type(each).__name__ if list(each.children()) else str(each)
        for each in module.modules()
        if type(each).__module__.startswith("torch.nn") and type(each) not in _LAYERS
    }
    if unknown:
        raise Unsupported(f"no sound bounds for {', '.join(sorted(unknown))}")
    try:
        operators = Engine.unsupported(module, input_shape)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise Unsupported(f"the network could not be traced: {str(error).splitlines()[0]}") from error
    if operators:
        raise Unsupported(f"no sound bounds for {', '.join(each.removeprefix('onnx::') for each in operators)}")


def _rows(properties: list[Property], classes: int) -> torch.Tensor:
    """(properties, 2 classes - 1, classes): what the logits are multiplied by for the margins, then themselves."""
    labels = torch.tensor([each.label for each in properties])
    identity = torch.eye(classes, dtype=torch.float64)
    others = torch.stack([torch.cat([identity[:label], identity[label + 1 :]]) for label in labels.tolist()])
    margins = identity[labels][:, None] - others
    return torch.cat([margins, identity.expand(len(labels), -1, -1)], 1)


class Propagation:
    """Bounds of one network, whose module is copied.

    What is bounded is the real function of the float32 weights; `allowance` covers its evaluation in float32.

    Raises:
        Unsupported: an operator without trustworthy bounds, or a conversion that computes something else.
    """

    def __init__(self, network: Network, *, iterations: int = 20) -> None:
        self._network = network
        self._reference = copy.deepcopy(network.module).double().eval()
        module = _prepared(network.module)
        _refuse(module, network.input_shape)
        self._engine, self.optimizes = self._converted(module, iterations)
        largest = sorted(self._engine.sizes())[-2:]
        # The coefficients of one layer's outputs by another's, for both sides, and as much again in between.
        self.batch = max(1, min(64, int(_BYTES / (largest[0] * largest[-1] * 8 * 4))))

    def _converted(self, module: nn.Module, iterations: int) -> tuple[Engine, bool]:
        """An engine that works on two small boxes, and whether its alpha-CROWN does."""
        low = torch.stack([torch.full(self._network.input_shape, each, dtype=torch.float64) for each in (0.1, 0.6)])
        rows = torch.eye(self._network.classes, dtype=torch.float64).expand(2, -1, -1)
        chain = all(isinstance(each, nn.Sequential) for each in module.modules() if list(each.children()))
        failure: Exception | None = None
        for patches in (True, False) if chain else (False,):
            try:
                engine = Engine(module, self._network.input_shape, iterations, patches=patches)
                self._compare(engine, low)
                for method in ("ibp", "crown"):
                    inputs = engine.bound(low, low + 0.1, rows, method)[2]
            except _FAILURES as error:
                failure = error
                continue
            try:
                engine.optimize(low, low + 0.1, rows, inputs, lambda lower: lower.amin(1, keepdim=True) > torch.inf)
            except _FAILURES:
                # The failed optimizer leaves its state behind.
                return Engine(module, self._network.input_shape, iterations, patches=patches), False
            return engine, True
        raise Unsupported(f"auto_LiRPA does not manage this network: {failure}") from failure

    def bounds(self, properties: list[Property], method: str, *, start: Margins | None = None) -> Margins:
        """Bounds by "ibp", "crown" or "alpha-crown", `batch` properties at a time.

        alpha-CROWN improves the margins of CROWN alone; `start` are CROWN's bounds where they are known already.
        """
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if not properties:
            raise ValueError("bounds of no properties")
        parts = []
        for at in range(0, len(properties), self.batch):
            some = slice(at, at + self.batch)
            if method != "alpha-crown":
                parts.append(self._propagated(properties[some], method))
            else:
                crown = start[some] if start else self._propagated(properties[some], "crown")
                parts.append(self._optimized(properties[some], crown))
        return Margins.joined(parts)

    def _propagated(self, properties: list[Property], method: str) -> Margins:
        low, high = _box(properties)
        rows = _rows(properties, self._network.classes)
        lower, upper, inputs = self._engine.bound(low, high, rows, method)
        split = self._network.classes - 1
        slack = _slack(lower[:, split:], upper[:, split:])
        lower, upper = _or_nothing(lower - slack, -torch.inf), _or_nothing(upper + slack, torch.inf)
        self._check(low + (high - low) / 2, rows, lower, upper)
        return Margins(lower[:, :split], lower[:, split:], upper[:, split:], inputs)

    def _optimized(self, properties: list[Property], crown: Margins) -> Margins:
        low, high = _box(properties)
        rows = _rows(properties, self._network.classes)[:, : self._network.classes - 1]
        goal = 2 * allowance(crown)[:, None]
        found = self._engine.optimize(
            low, high, rows, crown.inputs, lambda margins: (margins > goal).all(1, keepdim=True)
        )
        found = _or_nothing(found - _slack(crown.lower, crown.upper), -torch.inf)
        self._check(low + (high - low) / 2, rows, found, torch.full_like(found, torch.inf))
        return Margins(torch.maximum(crown.margins, found), crown.lower, crown.upper, crown.inputs)

    @torch.no_grad()
    def _compare(self, engine: Engine, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._reference(inputs)
        if not torch.allclose(engine.forward(inputs), logits, rtol=1e-9, atol=1e-9):
            raise Unsupported("auto_LiRPA's conversion of the network computes another function")
        return logits

    @torch.no_grad()
    def _check(self, center: torch.Tensor, rows: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor) -> None:
        """Nothing is believed of a conversion that computes something else, or of bounds that exclude a value."""
        logits = self._compare(self._engine, center)
        values = torch.einsum("bkc,bc->bk", rows, logits)
        if not bool(((lower <= values) & (values <= upper)).all()):
            raise RuntimeError("a bound excludes the value at the center of its box: the bounds are not sound")


def _box(properties: list[Property]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([each.lower for each in properties]), torch.stack([each.upper for each in properties])


def _slack(lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
    """What rounding may have cost, (properties, 1), given the bounds of the logits."""
    return _SLACK * (1 + torch.maximum(lower.abs(), upper.abs()).amax(1, keepdim=True))


def _or_nothing(bound: torch.Tensor, nothing: float) -> torch.Tensor:
    """A bound that is not a number says nothing."""
    return torch.where(bound.isnan(), nothing, bound)


def allowance(bounds: Margins) -> torch.Tensor:
    """What a margin's lower bound must exceed for the property to hold in float32 too, (properties,).

    float32 logits differ from the real ones by about 1e-6 of the largest.
    """
    return 1e-5 * (1 + torch.maximum(bounds.lower.abs(), bounds.upper.abs()).amax(1))


def proven(bounds: Margins) -> torch.Tensor:
    """Which properties hold, (properties,) bool; NaN and infinite bounds prove nothing."""
    return bounds.margins.amin(1) > allowance(bounds)

"""The swap's certificate where a network is no chain of layers: by bounds of both networks' graphs side by side.

Each network has its own relaxations, so that bounds are looser than those of `SwapBounds`, which follow the difference
from layer to layer; on narrow boxes it matters little.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property

import torch

from evalsuite import (
    Graph,
    Network,
    Pointwise,
    Propagation,
    SwapCertificate,
    Unsupported,
    graph_of_network,
    swap_to_relu,
    with_difference,
)


class OutOfTime(Exception):
    """Raised while a certificate is computed when the deadline has passed."""


def with_swap(network: Network) -> Network:
    """The network after its swap, beside itself before: a network that was not swapped, with what a swap would make.

    Raises:
        Unsupported: nothing can be swapped.
    """
    if network.unswapped is not None:
        return network
    try:
        swapped = swap_to_relu(network.module, (network.example(2),))
    except ValueError as error:
        raise Unsupported(f"nothing to swap: {error}") from error
    return replace(network, module=swapped, unswapped=network.module)


class GraphSwapBounds:
    """As `SwapBounds`, of one hardness: the network's own; certificates raise OutOfTime at the `deadline`.

    Args:
        network: after its swap, beside itself before.
        deadline: of the monotonic clock.
    """

    batch = 1

    def __init__(self, network: Network, deadline: float) -> None:
        self._network, self._deadline = network, deadline

    @cached_property
    def _graph(self) -> Graph:
        network = self._network
        assert network.unswapped is not None
        first, second = (
            graph_of_network(replace(network, module=each, unswapped=None))[1]
            for each in (network.unswapped, network.module)
        )
        curves = [each.operation.traits for each in first.nodes if isinstance(each.operation, Pointwise)]
        if all(each.name == "relu" or not each.swaps or each.gate for each in curves):
            raise Unsupported("nothing to swap: the network has no activation but ReLU")
        return with_difference(first, second)

    def check(self) -> None:
        """Read both networks, which is done when bounds are asked for first.

        Raises:
            Unsupported: nothing was swapped, or an operation has no sound bounds.
        """
        self._outputs  # noqa: B018

    @property
    def _outputs(self) -> int:
        return self._graph.outputs // 3

    @torch.no_grad()
    def certify(self, lower: torch.Tensor, upper: torch.Tensor, *, hardness: float | None = None) -> SwapCertificate:
        """The certificate of each box, (boxes, *input_shape), for the class that is predicted at its middle. Raises
        ValueError where a hardness is given: a graph is certified at its own.
        """
        if hardness is not None:
            raise ValueError("of its own hardness alone")
        self._check()
        lower, upper = lower.double().flatten(1), upper.double().flatten(1)
        labels = self._parts((lower + upper) / 2)[1].argmax(1)
        found = [self._certified(*each) for each in zip(lower, upper, labels, strict=True)]
        names = SwapCertificate.__dataclass_fields__
        return SwapCertificate(**{name: torch.stack([getattr(each, name) for each in found]) for name in names})

    def _certified(self, lower: torch.Tensor, upper: torch.Tensor, label: torch.Tensor) -> SwapCertificate:
        """Of one box, without the first dimension."""
        count = self._outputs
        eye, whole = torch.eye(count, dtype=torch.float64), torch.zeros(0, 3 * count, dtype=torch.float64)
        others = torch.arange(count) != label
        margins = (eye[label] - eye)[others]
        for place, rows in ((0, eye), (0, -eye), (1, margins), (2, margins)):
            asked = torch.zeros(len(rows), 3 * count, dtype=torch.float64)
            asked[:, place * count : (place + 1) * count] = rows
            whole = torch.cat([whole, asked])
        bounds = Propagation(self._graph, lower[None], upper[None], check=self._check)
        found = bounds.lower_bounds(whole).value[0]
        low, high, before, after = torch.split(found, [count, count, count - 1, count - 1])
        return SwapCertificate(low, -high, label, before, after)

    def _check(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime

    def difference(self, x: torch.Tensor, *, hardness: float | None = None) -> torch.Tensor:
        """d at inputs (batch, *input_shape), (batch, outputs): evaluated in float64, not bounded; differentiable."""
        del hardness
        return self._parts(x.double().flatten(1))[0]

    def _parts(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(self._graph(x), self._outputs, 1)

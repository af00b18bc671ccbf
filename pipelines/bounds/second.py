"""auto_LiRPA as the second engine of networks that it reads: forward bounds, alpha-CROWN, and a
second opinion on CROWN.

It is given layers that it bounds soundly, and activations with our lines; whatever else a network
has, it refuses. The bounds of the activations' inputs that alpha-CROWN starts from are the graph's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import fx

from evalsuite import Network, Unsupported
from pipelines.bounds.curved import same
from pipelines.bounds.margins import Margins, Pairs
from pipelines.bounds.regions import Regions

if TYPE_CHECKING:
    from pipelines.bounds.adapter import Engine

# What auto_LiRPA raises for networks that it accepted but can't treat, by experience.
_FAILURES = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
_LARGEST_BATCH = 100
_CLOSE = 1e-9
# Its metadata asks for a torch of 2022, which pip cannot resolve beside a present one.
_ABSENT = "auto_LiRPA is not installed: pip install --no-deps auto-LiRPA==0.3"
_ALONE = "the margins' lines alone are optimized"
Done = Callable[..., torch.Tensor]
"""Given lower bounds (batch, k), and which of the properties they are of, those that need no more
work, (batch, 1) bool.
"""


class Second:
    """auto_LiRPA on one network, converted when it is first asked.

    Args:
        network: what is bounded.
        traced: as `in_modules` gives it.
        points: (points, *input_shape) float64.
        inputs: of each activation, what it is given at the points: the order of `Margins.inputs`.
        iterations: of alpha-CROWN.
        memory: bytes that a batch may take, roughly.
        all_lines: whether all lines may be optimized.

    Attributes:
        limited: why alpha-CROWN optimized the margins' lines alone, where all are asked for; else
            "".
    """

    def __init__(
        self,
        network: Network,
        traced: fx.GraphModule,
        points: torch.Tensor,
        inputs: list[torch.Tensor],
        *,
        iterations: int,
        memory: int,
        all_lines: bool,
    ) -> None:
        self._network, self._traced, self._points, self._inputs = network, traced, points, inputs
        self._iterations, self._memory, self._all_lines = iterations, memory, all_lines
        self.limited = ""

    @cached_property
    def _tried(self) -> tuple[Engine | None, list[int], list[int], str]:
        """The engine; of each of its activations the place among `inputs` of what it is given, and
        the other way round; and why there is none.
        """
        if find_spec("auto_LiRPA") is None:
            return None, [], [], _ABSENT
        try:
            engine = self._converted()
            return engine, *self._places(engine), ""
        except Unsupported as refusal:
            return None, [], [], f"auto_LiRPA: {refusal}"
        except _FAILURES as error:
            return None, [], [], f"auto_LiRPA does not manage this network: {_line(error)}"

    def _converted(self) -> Engine:
        # Loaded where it is needed: all other methods work without it.
        from pipelines.bounds.adapter import Engine, plain, refuse_operators

        module = plain(self._traced)
        refuse_operators(module, self._network.input_shape)
        return Engine(module, self._network.input_shape, self._iterations)

    def _places(self, engine: Engine) -> tuple[list[int], list[int]]:
        """Compare the converted network with the network, and find its activations by what they
        are given. The conversion makes one of evaluations that are equal.
        """
        expected = copy.deepcopy(self._network.module).double().eval()(self._points).detach()
        seen = engine.inputs_at(self._points)
        if not torch.allclose(engine.forward(self._points), expected, rtol=_CLOSE, atol=_CLOSE):
            raise Unsupported("its conversion of the network computes another function")
        return _found(seen, self._inputs), _found(self._inputs, seen)

    @property
    def refusal(self) -> str:
        """Why it does not take the network; "" where it does."""
        return self._tried[3]

    @property
    def unoptimized(self) -> str:
        """Why alpha-CROWN does not work on this network; "" where it does."""
        engine = self._tried[0]
        if engine is not None and not engine.optimizes:
            return "auto_LiRPA's alpha-CROWN of MaxPool fails"
        return self.refusal

    @property
    def batch(self) -> int:
        """How many inputs at once; 1 where it does not take the network."""
        engine = self._tried[0]
        return 1 if engine is None else engine.batch(self._memory, _LARGEST_BATCH)

    def _engine(self) -> Engine:
        engine, *_, refusal = self._tried
        if engine is None:
            raise Unsupported(refusal)
        return engine

    def _bound(
        self, method: str, regions: Regions, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Pairs]:
        engine = self._engine()
        try:
            lower, upper, operands = engine.bound(regions, rows, method)
        except _FAILURES as error:
            self._begin_anew()
            raise Unsupported(
                f"auto_LiRPA does not manage this network by {method}: {_line(error)}"
            ) from error
        return lower, upper, [operands[place] for place in self._tried[2]]

    def _begin_anew(self) -> None:
        """Convert the network again: what failed leaves its state behind."""
        self.__dict__["_tried"] = self._converted(), *self._tried[1:]

    def forward(
        self, regions: Regions, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Pairs]:
        """Forward bounds of `rows` (batch, k, classes) times the logits, and of the activations'
        inputs. Raises Unsupported: auto_LiRPA does not take the network, or fails.
        """
        return self._bound("forward", regions, rows)

    def crown(self, regions: Regions, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """CROWN's bounds of `rows` (batch, k, classes) times the logits. Raises Unsupported:
        auto_LiRPA does not take the network, or fails.
        """
        return self._bound("crown", regions, rows)[:2]

    def optimized(
        self, regions: Regions, rows: torch.Tensor, crown: Margins, done: Done
    ) -> torch.Tensor:
        """Lower bounds of `rows` by alpha-CROWN, first by the lines of these bounds alone, then,
        of what `done` leaves open, by all lines.

        Raises:
            Unsupported: auto_LiRPA does not take the network, or fails.
        """
        engine = self._engine()
        if self.unoptimized:
            raise Unsupported(self.unoptimized)
        inputs = [crown.inputs[place] for place in self._tried[1]]
        # 1. Optimize the lines of the margins' own bounds.
        try:
            optimized_bounds = engine.optimize(regions, rows, inputs, done)
        except _FAILURES as error:
            self._begin_anew()
            raise Unsupported(f"auto_LiRPA's alpha-CROWN fails: {_line(error)}") from error
        # 2. For what is still open optimize all lines, as many inputs at once as memory allows.
        hidden = self._all_lines and len(inputs) > 1
        together = engine.batch_of_all_lines(self._memory, self.batch, rows.shape[1])
        if hidden and not together:
            self.limited = f"{_ALONE}: those of all lines do not fit into memory"
        if not hidden or not together:
            return optimized_bounds
        for some in torch.split(torch.nonzero(~done(optimized_bounds)[:, 0])[:, 0], together):
            if not len(some) or bool(done(optimized_bounds[some], some).all()):
                continue
            known = optimized_bounds[some]

            def enough(
                margins: torch.Tensor, some: torch.Tensor = some, known: torch.Tensor = known
            ) -> torch.Tensor:
                return done(torch.fmax(margins, known), some)

            try:
                better = self._engine().optimize(
                    regions[some],
                    rows[some],
                    [(low[some], high[some]) for low, high in inputs],
                    enough,
                    all_lines=True,
                )
            except _FAILURES as error:
                self._begin_anew()
                self.limited = f"{_ALONE}: auto_LiRPA does not manage all lines: {_line(error)}"
                break
            optimized_bounds[some] = torch.fmax(known, better)
        return optimized_bounds


def _found(wanted: list[torch.Tensor], among: list[torch.Tensor]) -> list[int]:
    """The place of each tensor among others. Raises Unsupported where one is none of them."""
    places = list[int]()
    for tensor in wanted:
        place = next(
            (index for index, candidate in enumerate(among) if same(candidate, tensor, _CLOSE)),
            None,
        )
        if place is None:
            raise Unsupported("its conversion of the network has other activations")
        places.append(place)
    return places


def _line(error: Exception) -> str:
    return f"{type(error).__name__} {(str(error).splitlines() or [''])[0]}"

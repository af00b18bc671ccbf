"""auto_LiRPA as the second engine of networks that it reads: forward bounds, alpha-CROWN, and a
second opinion on CROWN.

It is given layers that it bounds soundly, and activations with our lines; whatever else a network
has, it refuses. The bounds of the activations' inputs that alpha-CROWN starts from are the graph's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property

import torch
from torch import fx, nn

from evalsuite import Network, Unsupported
from pipelines.bounds.adapter import Engine, refuse_operators
from pipelines.bounds.curved import Shape, activations, path_of, same, with_stand_ins
from pipelines.bounds.margins import Margins, Pairs
from pipelines.bounds.regions import Regions

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
_KEPT = (nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.Flatten, nn.AdaptiveAvgPool2d)
_LARGEST_BATCH = 100
_CLOSE = 1e-9
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
        try:
            engine = self._converted()
            return engine, *self._places(engine), ""
        except Unsupported as refusal:
            return None, [], [], f"auto_LiRPA: {refusal}"
        except _FAILURES as error:
            return None, [], [], f"auto_LiRPA does not manage this network: {_line(error)}"

    def _converted(self) -> Engine:
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
            lower, upper, own = engine.bound(regions, rows, method)
        except _FAILURES as error:
            self._begin_anew()
            raise Unsupported(
                f"auto_LiRPA does not manage this network by {method}: {_line(error)}"
            ) from error
        return lower, upper, [own[place] for place in self._tried[2]]

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
            found = engine.optimize(regions, rows, inputs, done)
        except _FAILURES as error:
            self._begin_anew()
            raise Unsupported(f"auto_LiRPA's alpha-CROWN fails: {_line(error)}") from error
        # 2. For what is still open optimize all lines, as many inputs at once as memory allows.
        hidden = self._all_lines and len(inputs) > 1
        together = engine.batch_of_all_lines(self._memory, self.batch, rows.shape[1])
        if hidden and not together:
            self.limited = f"{_ALONE}: those of all lines do not fit into memory"
        if not hidden or not together:
            return found
        for some in torch.split(torch.nonzero(~done(found)[:, 0])[:, 0], together):
            if not len(some) or bool(done(found[some], some).all()):
                continue
            known = found[some]

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
            found[some] = torch.fmax(known, better)
        return found


def plain(traced: fx.GraphModule) -> nn.Module:
    """A float64 copy of what `in_modules` gives, in layers that auto_LiRPA bounds soundly, with our
    activations.

    Raises:
        Unsupported: a layer or function is none of these, by its path.
    """
    module = copy.deepcopy(traced).double().requires_grad_(False)
    known = activations(module)
    with_stand_ins(module, Shape.own)
    _fold_norms(module)
    shapes = {node: node.meta.get("shape", ()) for node in module.graph.nodes}
    for node in list(module.graph.nodes):
        if node.op in ("placeholder", "get_attr", "output") or str(node.target) in known:
            continue
        layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        flat = len(shapes[node]) == 2
        if node.target is torch.reshape and flat:
            # auto_LiRPA knows this reshape by the name of its layer.
            module.add_submodule(f"flat_{node.name}", nn.Flatten())
            with module.graph.inserting_before(node):
                made = module.graph.call_module(f"flat_{node.name}", (node.args[0],))
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)
            continue
        if isinstance(layer, nn.Linear) and flat and getattr(layer, "bias", None) is None:
            # Without a bias it is traced as a product, which could be of two activations.
            bias = layer.weight.new_zeros(layer.out_features)
            layer.bias = nn.Parameter(bias, requires_grad=False)
        operands = node.all_input_nodes
        added = node.target.__class__.__name__ and getattr(node.target, "__name__", "") == "add"
        if not (
            isinstance(layer, _KEPT)
            or (isinstance(layer, nn.Linear) and flat)
            or _tiles(layer)
            or (added and {shapes[each] for each in operands} == {shapes[node]})
            or type(getattr(layer, "operation", None)).__name__ == "Concat"
        ) or any(each.op == "get_attr" for each in operands):
            raise Unsupported(f"{path_of(node)} is none of the layers that it is given")
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module.eval()


def _tiles(layer: nn.Module | None) -> bool:
    """Whether it is a pool of square windows that do not overlap."""
    if (
        not isinstance(layer, nn.MaxPool2d | nn.AvgPool2d)
        or layer.kernel_size != layer.stride
        or layer.ceil_mode
    ):
        return False
    window = layer.kernel_size
    square = isinstance(window, int) or len(set(window)) == 1
    return square and layer.padding in (0, (0, 0)) and getattr(layer, "dilation", 1) in (1, (1, 1))


def _fold_norms(traced: fx.GraphModule) -> None:
    """Fold BatchNorm into the convolution before it: an operator less, whose input would be
    bounded for nothing.
    """
    for node in list(traced.graph.nodes):
        norm = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        # auto_LiRPA asks for weights
        if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and not norm.affine:
            norm.weight = nn.Parameter(torch.ones(norm.num_features).double(), requires_grad=False)
            norm.bias = nn.Parameter(torch.zeros(norm.num_features).double(), requires_grad=False)
        if not isinstance(norm, nn.BatchNorm2d):
            continue
        (before,) = node.all_input_nodes
        layer = traced.get_submodule(str(before.target)) if before.op == "call_module" else None
        if isinstance(layer, nn.Conv2d) and len(before.users) == 1:
            traced.set_submodule(str(before.target), nn.utils.fuse_conv_bn_eval(layer, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)


def _found(wanted: list[torch.Tensor], among: list[torch.Tensor]) -> list[int]:
    """The place of each tensor among others. Raises Unsupported where one is none of them."""
    places = list[int]()
    for tensor in wanted:
        place = next((at for at, each in enumerate(among) if same(each, tensor, _CLOSE)), None)
        if place is None:
            raise Unsupported("its conversion of the network has other activations")
        places.append(place)
    return places


def _line(error: Exception) -> str:
    return f"{type(error).__name__} {(str(error).splitlines() or [''])[0]}"

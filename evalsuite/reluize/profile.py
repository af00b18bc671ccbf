"""The hardness profile: each layer's lambda over the course of training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from evalsuite.contract import Direction, Metric
from lambda_gelu.activations.census import census
from lambda_gelu.activations.hardenable import Hardenable


@dataclass(frozen=True, slots=True)
class LayerHardness:
    """lambda of one layer, the mean over its channels where it has one for each.

    Args:
        layer: its dotted path.
        course: (progress, lambda) from progress 0 to 1.
        learnt: lambda when learning ended: where hardening began, else at the end of training.
        spread: the standard deviation of the learnt lambda over channels; None for a single lambda.
    """

    layer: str
    course: tuple[tuple[float, float], ...]
    learnt: float
    spread: float | None = None

    def metrics(self) -> Iterator[Metric]:
        """`hardness` at the end, `learnt_hardness`, `hardness_drift` since initialisation,
        `hardness_profile`.
        """
        where = {"layer": self.layer}
        values = {
            "hardness": self.course[-1][1],
            "learnt_hardness": self.learnt,
            "hardness_drift": self.learnt - self.course[0][1],
        }
        for name, value in values.items():
            yield Metric(name, value, "lambda", Direction.NEUTRAL, where)
        if self.spread is not None:
            yield Metric("hardness_spread", self.spread, "lambda", Direction.NEUTRAL, where)
        for progress, value in self.course:
            yield Metric(
                "hardness_profile",
                value,
                "lambda",
                Direction.NEUTRAL,
                {**where, "progress": progress},
            )


def learnt_parameters(module: nn.Module) -> Iterator[Metric]:
    """Measure the parameters that activations other than those with a hardness have learnt: the
    mean over a layer's channels.

    A parameter `raw_p` that stands for a p > 0 is told as p.
    """
    for use in census(module):
        if isinstance(use.module, Hardenable):
            continue
        for name in use.traits.parameters:
            word = name.removeprefix("raw_")
            value = float(getattr(use.module, word).detach().double().mean())
            setting = {"layer": use.path, "parameter": word}
            yield Metric("learnt_parameter", value, "coefficient", Direction.NEUTRAL, setting)


class HardnessProfile:
    """Records lambda at `points` + 1 places of training; call it with the progress before each
    step.

    Args:
        module: the network in training.
        learning_until: the progress at which lambda stops being learnt.
        points: how many parts the course is divided into.
    """

    def __init__(self, module: nn.Module, *, learning_until: float = 1.0, points: int = 20) -> None:
        self._layers = {
            path: module_there
            for path, module_there in module.named_modules()
            if isinstance(module_there, Hardenable)
        }
        self._until, self._points = learning_until, points
        self._courses: dict[str, list[tuple[float, float]]] = {path: [] for path in self._layers}
        self._learnt: dict[str, tuple[float, float | None]] = {}
        self._recorded = 0
        self._note_learnt()
        self._record(0.0)

    def __call__(self, progress: float) -> None:
        while self._recorded < self._points and progress >= (due := self._recorded / self._points):
            self._record(due)  # several at once where steps are fewer than places
        if progress <= self._until:
            self._note_learnt()

    def finish(self) -> list[LayerHardness]:
        """The profile, layer by layer, with lambda as it is now at progress 1."""
        if self._until >= 1:
            self._note_learnt()
        self._record(1.0)
        return [
            LayerHardness(path, tuple(course), *self._learnt[path])
            for path, course in self._courses.items()
        ]

    def _record(self, progress: float) -> None:
        self._recorded += 1
        for path, layer in self._layers.items():
            self._courses[path].append((round(progress, 4), float(layer.hardness.detach().mean())))

    def _note_learnt(self) -> None:
        for path, layer in self._layers.items():
            hardness = layer.hardness.detach()
            spread = float(hardness.std()) if hardness.ndim and len(hardness) > 1 else None
            self._learnt[path] = float(hardness.mean()), spread

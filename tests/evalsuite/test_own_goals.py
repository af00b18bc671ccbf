"""Goals of an assessment: the cheapest treatment that meets them on validation data."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from report_workshop import metric_rows, write_run
from torch import nn

from evalsuite import export_onnx
from evalsuite.contract import Data, Split
from evalsuite.latency import Latency
from evalsuite.own.goals import Goals, goal_lines, with_stages
from evalsuite.own.partial_swap import partial_swap
from evalsuite.own.treated import Timed
from evalsuite.tasks import Classification, score
from opgraph.errors import OwnError
from opgraph.onnx_network import OnnxNetwork

COUNT = 1000
# How many samples each has wrong on the validation data and on the test data, and its speed.
MADE = {
    ("gelu", "float"): (20, 20, 1.0),
    ("gelu", "8 bits"): (22, 30, 1.1),
    ("gelu-swap", "float"): (60, 60, 2.0),
    ("swap-refit", "float"): (24, 40, 1.6),
    ("swap-refit", "8 bits"): (25, 25, 3.0),
}
FILES = {"float": ("export", "model.onnx"), "8 bits": ("quantize-w8", "quantized.onnx")}


class _Knows(nn.Module):
    """Right for all samples but so many of each part: an input is a place, and its part."""

    def __init__(self, validation: int, test: int) -> None:
        super().__init__()
        self.register_buffer("wrong", torch.tensor([float(validation), float(test)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place, part = x[:, :1], x[:, 1:]
        limit = self.wrong[0] * (1 - part) + self.wrong[1] * part
        return torch.cat([place - limit + 0.5, torch.zeros_like(place)], 1)


def _part(number: int) -> Split:
    places = torch.arange(COUNT).float()
    inputs = torch.stack([places, torch.full((COUNT,), float(number))], 1)
    return Split(inputs, torch.zeros(COUNT, dtype=torch.int64), Classification())


DATA = Data(_part(0), _part(0), _part(0), _part(1), (0.0, float(COUNT)), 2, "")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for (variant, form), (validation, test, _) in MADE.items():
        step, name = FILES[form]
        place = tmp_path / "artefacts" / "w" / variant / "0" / step
        place.mkdir(parents=True, exist_ok=True)
        export_onnx(_Knows(validation, test).eval(), (2,), place / name)
    variants = {variant: [0.9] for variant, _ in MADE}
    return write_run(tmp_path, metric_rows("accuracy", variants), {"baseline": "gelu"})


def _clock(own: Path, other: Path, data: Data, batches: Sequence[int]) -> Iterator[Timed]:
    """Readings as they are made up, each with an interval of 2 %."""
    form = next(form for form, (_, name) in FILES.items() if name == own.name)
    assert other.parts[-4:] == ("gelu", "0", "export", "model.onnx")
    ratio = 1 / MADE[own.parts[-4], form][2]
    intervals = {"ratio": (0.98 * ratio, 1.02 * ratio)}
    for batch in batches:
        yield Timed(batch, Latency(ratio, 1.0, ratio, intervals, 100, 0.0))  # type: ignore[arg-type]


def _said(run: Path, **goals: float) -> list[str]:
    return [*goal_lines(Goals(**goals), run, "w", DATA, _clock)]  # type: ignore[arg-type]


def test_the_cheapest_that_meets_both_is_chosen_and_tested(run: Path) -> None:
    asked, *reasons, chosen, tested = _said(run, max_loss=0.5, min_speedup=1.5)
    assert asked.startswith("Goals: a loss of at most 0.5 points of accuracy and 1.5 x the speed")
    assert reasons == [
        "  gelu in 8 bits: is too slow, 1.10 x the speed",
        "  gelu-swap in float: loses too much, 4.0 points",
    ]
    assert chosen == "  swap-refit in float: meets them. Loss 0.4 points, 1.60 x the speed"
    # Chosen by validation data; the test data say what came of it.
    assert tested.startswith("On the test data accuracy is 96.0 %, and 98.0 % before: −2.0 pp [−3.")
    file = run / "artefacts" / "w" / "swap-refit" / "0" / "export" / "model.onnx"
    assert tested.endswith(f"over 1,000 samples like these. Its file: {file}")


def test_one_goal_alone_and_the_slow_end_of_an_interval(run: Path) -> None:
    assert _said(run, max_loss=0.25)[1].startswith("  gelu in 8 bits: meets them. Loss 0.2 points")
    assert "gelu-swap in float: meets them" in _said(run, min_speedup=1.9)[-2]
    # 2 x, of which 1.96 x is sure.
    assert "gelu-swap in float: is too slow" in _said(run, min_speedup=1.98)[2]
    assert "swap-refit in 8 bits: meets them" in _said(run, min_speedup=1.98)[-2]


def test_where_none_meets_them_it_is_said(run: Path) -> None:
    assert _said(run, max_loss=0.0)[-1].startswith("No treatment that was made meets them")

    def noisy(*_: object) -> Iterator[Timed]:
        yield Timed(1, None, "noisy: other work took 1.7 processors beside it")

    lines = [*goal_lines(Goals(None, 1.5), run, "w", DATA, noisy)]
    assert "its speed was not measured: noisy" in lines[1]
    assert lines[-1].startswith("None is known to meet them")


def test_goals_are_checked_and_bring_their_stages(run: Path) -> None:
    for wrong in ({"target": "tensorrt"}, {"max_loss": -1.0}, {"min_speedup": 0.0}):
        with pytest.raises(OwnError, match=f"--{next(iter(wrong)).replace('_', '-')}"):
            Goals(**wrong)  # type: ignore[arg-type]
    assert not Goals().given
    assert with_stages(["accuracy"]) == ("accuracy", "export", "quantize")
    assert with_stages(["all"]) == ("all",)
    (run / "artefacts" / "w" / "gelu" / "0" / "export" / "model.onnx").unlink()
    with pytest.raises(OwnError, match="goals need the original's ONNX file"):
        _said(run, max_loss=0.5)


class _Layers(nn.Sequential):
    """Four layers of GELU; in the second and the fourth the curve of GELU decides, since their
    inputs are small; in the others it is nearly ReLU.
    """

    def __init__(self) -> None:
        torch.manual_seed(3)
        linear = [nn.Linear(8, 16), *(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 3)]
        with torch.no_grad():
            for layer, scale in zip(linear[:4], (60.0, 0.01, 3000.0, 0.0005), strict=True):
                layer.weight *= scale
                layer.bias.zero_()
        pairs = [each for layer in linear[:4] for each in (layer, nn.GELU())]
        super().__init__(*pairs, linear[4])


def _layered() -> tuple[_Layers, Data]:
    """The network and data that it has all right: the classes are its own."""
    network = _Layers().eval()
    parts = []
    with torch.no_grad():
        network[-1].bias -= network(torch.randn(2000, 8)).mean(0)  # all classes occur
        for seed in (0, 1):
            x = torch.randn(COUNT, 8, generator=torch.Generator().manual_seed(seed))
            parts.append(Split(x, network(x).argmax(1), Classification()))
    validation, test = parts
    return network, Data(validation, validation, validation, test, (-6.0, 6.0), 3, "")


def _lost(network: _Layers, keep: Collection[str], split: Split) -> float:
    """The share of samples that are lost, by putting ReLU in by hand."""
    changed = copy.deepcopy(network)
    for place, each in enumerate(network):
        if isinstance(each, nn.GELU) and str(place) not in keep:
            changed[place] = nn.ReLU()
    with torch.no_grad():
        wrong = changed(split.inputs[:]).argmax(1) != split.targets
    return wrong.double().mean().item()


def test_layers_whose_swap_costs_most_keep_their_activation() -> None:
    network, data = _layered()
    paths, split = ["1", "3", "5", "7"], data.validation
    alone = {path: _lost(network, set(paths) - {path}, split) for path in paths}
    ranked = sorted(paths, key=lambda path: -alone[path])
    assert alone[ranked[0]] > alone[ranked[1]] > alone[ranked[2]]
    losses = [_lost(network, ranked[:count], split) for count in range(4)]
    assert losses[0] > losses[1] > losses[2]  # else there was nothing to choose
    for count in (1, 2, 3):
        found = partial_swap(network, split, losses[count])
        assert found is not None
        smaller = [place for place in range(1, count + 1) if losses[place] <= losses[count]]
        assert found.kept == tuple(ranked[: smaller[0]])
        assert _lost(network, found.kept, split) == pytest.approx(losses[smaller[0]])
    assert partial_swap(network, split, min(losses) - 0.001) is None
    assert partial_swap(nn.Sequential(nn.Linear(8, 3), nn.GELU()), split, 1.0) is None


def test_a_partial_swap_stands_between_the_direct_one_and_the_repairs(tmp_path: Path) -> None:
    network, data = _layered()
    relu = copy.deepcopy(network)
    for place in (1, 3, 5, 7):
        relu[place] = nn.ReLU()
    for variant, module in (("gelu", network), ("gelu-swap", relu), ("swap-refit", network)):
        place = tmp_path / "artefacts" / "w" / variant / "0" / "export"
        place.mkdir(parents=True)
        export_onnx(module, (8,), place / "model.onnx")
    variants = {variant: [0.9] for variant in ("gelu", "gelu-swap", "swap-refit")}
    write_run(tmp_path, metric_rows("accuracy", variants), {"baseline": "gelu"})
    limit = 100 * _lost(network, ["3", "7"], data.validation)
    lines = [*goal_lines(Goals(limit), tmp_path, "w", data, _clock, network)]
    assert lines[1].startswith("  gelu-swap in float: loses too much")
    assert re.match("  gelu-swap with gelu kept at [37](, [37])? in float: meets them", lines[2])
    file = Path(lines[3].rpartition("Its file: ")[2])
    kept = re.findall(r"\d", lines[2].partition("kept at ")[2].partition(" in float")[0])
    found = score(OnnxNetwork(file), data.test).headline.value
    assert found == pytest.approx(1 - _lost(network, kept, data.test), abs=0.002)
    # Where nothing may be treated, the repairs come next.
    assert [*goal_lines(Goals(limit), tmp_path, "w", data, _clock)][2].startswith("  swap-refit")

"""A preview to verify by eye before anything is measured: three samples as the model gets them,
decoded, and the baseline's first score.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evalsuite.contract import IGNORED, Data, InputColumn, Split
from evalsuite.own.brought import tokenizer_folder
from evalsuite.reluize.training import fit
from evalsuite.report.numerals import scale_of
from evalsuite.samples import Chosen
from evalsuite.tasks import score
from evalsuite.workloads.options import Budget
from opgraph.errors import OwnError
from opgraph.inputs import Inputs, leaves

if TYPE_CHECKING:
    from evalsuite.contract import Metric
    from evalsuite.data.source import Source
    from evalsuite.data.tokenizers import Tokenizer
    from evalsuite.own.asked_model import Model
    from evalsuite.own.floors import Floor
    from evalsuite.own.own import Own

_COUNT = 3  # samples
_SHOWN = 200  # characters of one
_VALUES = 8  # of arrays, names of labels and the like
_COLUMNS = 20
_SCORED = 512  # samples of the first score
_STEPS = 100  # of training before it, of a network that is trained
_SECONDS = 10.0  # that they may take
_TIMED = 5  # steps that tell how long one takes
_FEW = 2  # samples of those steps at first; batch normalization cannot train on one
_ROUNDING = 2.0**-24  # of float32 in [0, 1]
_DAY = 86_400
_EPOCH = datetime.datetime(1970, 1, 1)


def sample_lines(data: Data, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Three training samples, the first, the middle and the last one, with their targets."""
    inputs, targets = _chosen(data)
    for place in range(len(targets)):
        target = _target(targets[place], data, tokenizer)
        yield f"{_input(inputs, place, data, tokenizer)} -> {target}"


def draw_samples(source: Source, data: Data, file: Path) -> bool:
    """Draw the same samples, where they are images, into a PNG file; whether they are."""
    if data.image_shape is None or not isinstance(data.train.first(1), torch.Tensor):
        return False
    from matplotlib.figure import Figure

    inputs, targets = _chosen(data)
    images = leaves(inputs)[0].reshape(-1, *data.image_shape)
    figure = Figure(figsize=(2.4 * len(images), 2.8), layout="constrained")
    for place, axes in enumerate(figure.subplots(1, len(images), squeeze=False)[0]):
        pixels = _pixels(images[place], source, data)
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(_cut(_target(targets[place], data, None), 30), fontsize=9)
        axes.set_axis_off()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120, metadata={"Software": None})
    return True


@dataclass(frozen=True)
class First:
    """The baseline's first score.

    Args:
        metric: the task's headline, on test samples.
        compared: the first metric of the score that has a floor; None where there is none.
        samples: how many.
        steps: of training before it; None of a network that is measured as it is.
        floor: the simple predictor that the network should be better than, by that metric.
        step_seconds: how long a training step takes; 0 where none was taken.
        sample_seconds: how long the network takes for a test sample.
    """

    metric: Metric
    compared: Metric | None
    samples: int
    steps: int | None
    floor: Floor | None
    step_seconds: float
    sample_seconds: float

    @property
    def words(self) -> str:
        """The score beside that of the simple predictor."""
        after = ""
        if self.steps is not None:
            after = f"after {self.steps} steps of training: " if self.steps else "untrained: "
        metric, compared, floor = self.metric, self.compared, self.floor
        values = [metric.value, *([floor.score] if floor and compared is metric else [])]
        said = f"{after}{_said(metric, values)}"
        if metric.value is not None:
            said = f"{said} on {self.samples:,} test samples"
        if compared is None or floor is None:
            return said
        both = [compared.value, floor.score]
        simple = _said(replace(compared, value=floor.score), both)
        if compared is metric:
            return f"{said}; {floor.words} has {simple.removeprefix(f'{metric.name} ')}"
        # A headline such as RMSE has no floor: a metric beside it has.
        return f"{said}, {_said(compared, both)}; {floor.words} has {simple}"


def _said(metric: Metric, values: Iterable[float | None]) -> str:
    """A metric's name and value, on the scale that fits these values."""
    if metric.value is None:
        return f"{metric.name} has no value: {metric.reason}"
    known = [value for value in values if value is not None]
    scale = scale_of(metric.unit, known, known)
    return f"{metric.name} {scale.number(metric.value)} {scale.unit}".rstrip()


def first_score(own: Own, data: Data, floors: Iterable[Floor]) -> First:
    """The baseline's score: of a model that is measured as it is at once, of another after a short
    training.
    """
    known_floors = list(floors)
    # 1. A training of a few seconds shows whether targets and inputs belong together; a network of
    # which one step takes longer is scored as it is.
    budget = Budget(**{field.name: getattr(own, field.name) for field in fields(Budget)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, step_seconds = own.given().eval(), 0.0
        steps: int | None = None
        if not own.is_onnx:
            step_seconds = _seconds_of_a_step(budget, data, own.given())
        if own.start != "trained" and not own.is_onnx:
            steps = min(_STEPS, int(_SECONDS / max(step_seconds, 1e-6)))
            if steps:
                _train(budget, data, module, steps)
    # 2. Score it on some test samples.
    chosen = _spaced(data.test, _SCORED)
    inputs = data.test.inputs
    some = inputs[chosen] if isinstance(inputs, torch.Tensor) else Chosen(inputs, chosen.tolist())
    split = Split(some, data.test.targets[chosen], data.test.task)
    began = time.perf_counter()
    scored = score(module, split)
    taken = (time.perf_counter() - began) / len(split)
    # 3. The first of its metrics that a simple predictor has, too.
    compared, floor = next(
        (
            (metric, simple)
            for metric in scored.metrics
            for simple in known_floors
            if simple.metric == metric.name and metric.value is not None
        ),
        (None, None),
    )
    return First(scored.headline, compared, len(split), steps, floor, step_seconds, taken)


def _train(
    budget: Budget,
    data: Data,
    module: torch.nn.Module,
    steps: int,
    note: Callable[[float], None] | None = None,
) -> None:
    one: Any = replace(budget, epochs=1)
    per_epoch = max(1, len(range(0, int(data.train.labelled.sum()) - 1, budget.batch_size)))
    fit(module, data.train, one, seed=0, share=steps / per_epoch, after_step=note)


def _seconds_of_a_step(budget: Budget, data: Data, module: torch.nn.Module) -> float:
    """Measure a training step; where a few would take too long, those of a few samples tell it."""
    # 1. Steps of a few samples, in proportion to a batch: it takes so long, or less.
    samples = min(budget.batch_size, int(data.train.labelled.sum()))
    few = min(_FEW, samples)
    estimate = samples / few * _median_step(replace(budget, batch_size=few), data, module)
    # 2. Whole steps, where they are quick: many samples at once take less for each.
    if _TIMED * estimate > _SECONDS or samples == few:
        return estimate
    return _median_step(budget, data, module)


def _median_step(budget: Budget, data: Data, module: torch.nn.Module) -> float:
    """The median seconds of a few training steps, without the first, which is slower."""
    times: list[float] = []
    _train(budget, data, module, _TIMED, lambda _: times.append(time.perf_counter()))
    steps = sorted(later - earlier for earlier, later in pairwise(times))
    return steps[len(steps) // 2] if steps else 0.0


def _spaced(split: Split, count: int) -> torch.Tensor:
    """Indices of so many samples with a target, from the first to the last at equal distances."""
    labelled = split.labelled.nonzero().flatten()
    places = torch.linspace(0, len(labelled) - 1, min(count, len(labelled))).long()
    return labelled[places.unique()]  # type: ignore[no-untyped-call]


def _chosen(data: Data) -> tuple[Inputs, torch.Tensor]:
    chosen = _spaced(data.train, _COUNT)
    return data.train.inputs[chosen], data.train.targets[chosen]


def file_tokenizer(source: Source, model: Model, data: Data) -> Tokenizer | None:
    """The tokenizer by which a file's texts became tokens; None of other inputs, and of tokens
    that a function gives.
    """
    if data.vocabulary is None or source.is_function or source.path.endswith((".npz", ".npy")):
        return None
    from evalsuite.data.tokenizers import tokenizer_of

    try:
        return tokenizer_of(source.tokenizer or tokenizer_folder(model) or "bytes", source.path)
    except OwnError:  # the reader of the data has said so where it matters
        return None


def _input(inputs: Inputs, place: int, data: Data, tokenizer: Tokenizer | None) -> str:
    """One sample of a batch, decoded where it is known what it was."""
    named: dict[Any, torch.Tensor] = (
        inputs if isinstance(inputs, dict) else dict(enumerate(leaves(inputs)))
    )
    # 1. Texts: tokens of the first input that are no padding.
    first = next(iter(named.values()))[place]
    if tokenizer is not None and not first.is_floating_point():
        mask = named.get("attention_mask")
        counted = first if mask is None else first[mask[place] != 0]
        return f'"{_cut(tokenizer.text(counted.tolist()))}"'
    # 2. Rows of a table, with the values that the file has.
    if data.columns and len(data.columns) == first.numel():
        return _row(first, data)
    # 3. Images and other arrays by their shape and values.
    if data.image_shape is not None and len(named) == 1:
        channels, height, width = data.image_shape
        channel = "one channel" if channels == 1 else f"{channels} channels"
        ends = f"from {first.min():.3g} to {first.max():.3g}, mean {first.mean():.3g}"
        return f"an image of {height} x {width} pixels, {channel}, {ends}"
    return ", ".join(
        f"{name} {_array(tensor[place])}" if len(named) > 1 else _array(tensor[place])
        for name, tensor in named.items()
    )


def _row(values: torch.Tensor, data: Data) -> str:
    said, absent = dict[str, str](), set[str]()
    for column, value in zip(data.columns, values.flatten().tolist(), strict=True):
        if column.flag and value:
            said[column.name] = column.name
            name, missing, _ = column.name.rpartition(" is missing")
            absent.update([name] if missing else [])
        elif not column.flag:
            said[column.name] = f"{column.name} {_value(value, column)}"
    # A number that is missing stands as the mean, which is not the file's.
    kept = [shown for name, shown in said.items() if name not in absent]
    more = f", and {len(kept) - _COLUMNS} more" if len(kept) > _COLUMNS else ""
    return ", ".join(kept[:_COLUMNS]) + more


def _value(scaled: float, column: InputColumn) -> str:
    """A number or a date of the file, as far as float32 in [0, 1] tells it."""
    width = column.one - column.zero
    value, resolution = column.zero + scaled * width, width * _ROUNDING
    if not column.date:
        return _number(round(value, -math.ceil(math.log10(resolution))))
    # A range of 194 days is told by the second.
    steps = (1, 60, 3600) if "%H" in column.date else ()
    step = next((step for step in steps if resolution * _DAY <= step), _DAY)
    moment = _EPOCH + datetime.timedelta(seconds=round(value * _DAY / step) * step)
    return moment.strftime(column.date if step != 60 else column.date.replace(":%S", ""))


def _number(value: float) -> str:
    """A number with nine digits, and all of a whole one."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else f"{value:.9g}"


def _array(values: torch.Tensor) -> str:
    flat = values.flatten().tolist()
    shown = ", ".join(
        _number(number) if float(number).is_integer() else f"{number:.4g}"
        for number in flat[:_VALUES]
    )
    more = f", ... of shape {tuple(values.shape)}" if len(flat) > _VALUES else ""
    return f"[{shown}{more}]"


def _target(target: torch.Tensor, data: Data, tokenizer: Tokenizer | None) -> str:
    """One target, with the names of its classes."""
    from evalsuite.tasks import Classification, LanguageModel, MultiLabel, TokenClassification

    task = getattr(data.task, "task", data.task)
    known = target[target != IGNORED] if not target.is_floating_point() else target
    # 1. Whole numbers are classes, tokens, or labels that are present.
    if isinstance(task, LanguageModel):
        tokens = known.flatten().tolist()
        return f'"{_cut(tokenizer.text(tokens))}"' if tokenizer is not None else _array(known)
    if isinstance(task, MultiLabel):
        present = (target.flatten() == 1).nonzero().flatten().tolist()
        labels = ", ".join(_named(label, data) for label in present[:_VALUES])
        return f"{labels}{', ...' if len(present) > _VALUES else ''}" if present else "no label"
    if isinstance(task, (Classification, TokenClassification)) and not target.is_floating_point():
        if target.dim() == 0:
            return _named(int(target), data)
        counts = zip(*(column.tolist() for column in known.unique(return_counts=True)), strict=True)  # type: ignore[no-untyped-call]
        said = [f"{_named(number, data)} x {count}" for number, count in counts]
        return ", ".join(said[:_VALUES]) + (", ..." if len(said) > _VALUES else "")
    # 2. Others are values.
    if target.numel() > 1:
        return _array(target)
    # Of 0.1 float32 keeps 0.100000001: seven digits, where they are read as the same number.
    value = target.item()
    short = float(f"{value:.7g}")
    return _number(short if torch.tensor(short, dtype=target.dtype).item() == value else value)


def _named(number: int, data: Data) -> str:
    name = data.class_names[number] if number < len(data.class_names) else str(number)
    return name if name == str(number) else f"{number} ({name})"


def _pixels(image: torch.Tensor, source: Source, data: Data) -> Any:
    """The image as matplotlib takes it, (height, width, 3) or (height, width), in [0, 1]."""
    low, high = data.domain
    if source.mean and len(source.mean) == len(image):
        image = image * torch.tensor(source.std)[:, None, None]
        image = image + torch.tensor(source.mean)[:, None, None]
    elif (low, high) != (0.0, 1.0) and math.isfinite(high - low):
        image = (image - low) / (high - low)
    shown = image.clamp(0, 1).permute(1, 2, 0).numpy()
    return shown[:, :, 0] if shown.shape[2] == 1 else shown


def _cut(text: str, length: int = _SHOWN) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 3]}..."

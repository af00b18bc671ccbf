"""A look at a user's model, data and task before anything is trained: what was found, and what
would go wrong.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from evalsuite.contract import IGNORED, Data, Task
from evalsuite.data.classes import Naming, whole_number
from evalsuite.data.tables import is_table
from evalsuite.own.adapter import own_network
from evalsuite.own.asked_model import changes_of
from evalsuite.own.baseline import doubts, leaks
from evalsuite.own.brought import Brought, forget
from evalsuite.own.cures import cure_of
from evalsuite.own.floors import Floor, floors
from evalsuite.own.hugging_face import names_by_number
from evalsuite.own.outputs import each_output, heads_of
from evalsuite.own.preprocessing import misprepared
from evalsuite.references import line_of
from evalsuite.run.making import PARTS, check_disjoint
from lambda_gelu.activations import census
from lambda_gelu.activations.census import duplicate
from opgraph.errors import OwnError
from opgraph.inputs import leaves, mapped
from opgraph.limits import reading
from opgraph.onnx_network import OnnxNetwork

if TYPE_CHECKING:
    from evalsuite.data.source import Source
    from evalsuite.own.asked_model import Model
    from opgraph.inputs import Inputs

_STEP = 8  # samples in the one training step
_MIXED = 0.01  # beyond rounding, in half precision too


@dataclass(frozen=True)
class Examined:
    """The findings of a look at a user's model and data.

    Args:
        activation: the registered name of the activation that variants replace; "" of an ONNX file.
        lines: (what, finding) for the user, in the order of the examination.
        width: from the lowest to the highest input.
        normalised: whether the model has BatchNorm.
        floors: scores that a trained baseline exceeds.
    """

    activation: str
    lines: tuple[tuple[str, str], ...]
    width: float
    normalised: bool
    floors: tuple[Floor, ...] = ()

    def told(self, what: str, finding: str) -> Examined:
        """A copy with another finding in the place of the one of `what`."""
        return replace(
            self,
            lines=tuple((name, finding if name == what else text) for name, text in self.lines),
        )


def examine(workload: Brought) -> Examined:
    """Load model and data, find the activations, take one training step, and compare outputs with
    targets. Raises OwnError: something would go wrong; the text names the culprit, the value and
    the cure.
    """
    # 1. Data whose parts share no sample: else a test would be met by what was learnt by heart.
    forget()
    data = workload.data()
    try:
        check_disjoint(data)
    except ValueError as error:
        raise OwnError(f"the data: {error}") from error
    # 2. The model, and the activations that variants replace.
    torch.manual_seed(0)
    module = _given(workload, data)
    if isinstance(module, OnnxNetwork):
        _check_taken(data.train.first(1), workload.inputs, module)
    lines = [("model", _model(workload.model_choice, module))]
    if not workload.is_onnx:
        others = Counter(
            use.traits.name
            for use in census(module, gates=True)
            if use.traits.name != workload.original
        )
        stay = ", ".join(f"{name} x {count}" for name, count in sorted(others.items()))
        said = (
            f"{workload.original} x {len(workload.places.places)}, which variants"
            f" replace{f'; {stay} stay' if stay else ''}"
        )
        lines.append(("activations", said))
    # 3. The data, and one training step, in which most mistakes show themselves.
    counts = ", ".join(f"{part} {len(getattr(data, part)):,}" for part in PARTS)
    lines += [
        ("data", counts),
        ("inputs", _inputs(workload.data_choice, data, trained=workload.start != "scratch")),
        *data.notes,
    ]
    lines.append(("task", _task(data.task, _step(module, data), data)))
    steps = len(range(0, len(data.train) - 1, workload.batch_size))
    budget = f"{workload.epochs} epochs of {steps} steps; --set epochs=N for others"
    lines.append(("start", _start(workload.start, budget, treated=not workload.is_onnx)))
    naming = Naming(workload.data_choice.labels, kept=workload.start == "trained")
    _check_names(workload.model_choice.path, naming, module, data)
    # 4. A trained model can be doubted by what it answers.
    if workload.start == "trained":
        lines += [("warning", sentence) for sentence in (*leaks(data), *doubts(module, data))]
    if workload.start != "scratch" and not workload.is_onnx:
        prepared = misprepared(workload.model_choice, module, workload.data_choice, data)
        lines += [("warning", sentence) for sentence in prepared]
    # 5. What recipes go by: the inputs' range, for noise and boxes, and whether BatchNorm can be
    # recalibrated.
    normalised = any(
        isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) for layer in module.modules()
    )
    return Examined(
        "" if workload.is_onnx else workload.original,
        tuple(lines),
        _width(module, data),
        normalised,
        floors(data),
    )


def _width(module: nn.Module, data: Data) -> float:
    """How far apart inputs are: of real numbers their range; of tokens, whose numbers are names,
    the range of what they are embedded to, 1 where that is not found.
    """
    low, high = data.domain
    if data.vocabulary is None:
        return high - low
    tables = (each.weight for each in module.modules() if isinstance(each, nn.Embedding))
    words = [table.detach() for table in tables if len(table) >= data.vocabulary]
    return float(words[0].max() - words[0].min()) if words else 1.0


def _given(workload: Brought, data: Data) -> nn.Module:
    """The model as it is measured; where it does not take the data's columns, the error names
    these.
    """
    try:
        return workload.given()
    except OwnError as error:
        columns = next((finding for what, finding in data.notes if what == "columns"), "")
        if columns and "batch of the data" in str(error):
            raise OwnError(f"{error}; the columns are {columns}") from error
        raise


def _model(model: Model, module: nn.Module) -> str:
    if isinstance(module, OnnxNetwork):
        return f"{module.path}: an ONNX file, output {module.output!r}"
    parameters = sum(parameter.numel() for parameter in module.parameters())
    named = getattr(module, "network", module)
    changes = "".join(f"; {change}" for change in changes_of(model))
    return f"{model.path}: {type(named).__name__}, {parameters:,} parameters{changes}"


def _check_names(path: str, known: Naming, module: nn.Module, data: Data) -> None:
    """Check that a module of the user's own calls its outputs what the data call them.

    `known` has the names that the user chose, and whether the order of the model is kept.
    """
    # 1. Names that the model's configuration has; numbers name nothing.
    inner = getattr(module, "network", module)
    by_number = getattr(getattr(inner, "config", None), "id2label", None)
    if not by_number or all(whole_number(name) is not None for name in data.class_names):
        return
    names = names_by_number(by_number, None, f"the model: {path}: its configuration")
    # 2. What the order of classes was decided by; where the names are equal, nothing is wrong.
    naming, chosen = Naming(model=names, kept=known.kept), known.chosen
    if not chosen:
        naming = naming.told_apart(data.class_names, "the classes")
    if not naming.named or naming.named == data.class_names or (chosen and naming.twice):
        return
    # 3. The same names in another order make a trained model wrong for no reason that it could be
    # blamed for; other names leave open which is which.
    listed, classes = ", ".join(naming.named), ", ".join(data.class_names)
    if set(naming.named) & set(data.class_names):
        said = f"the model calls its outputs {listed}, the data {classes}"
        raise OwnError(f"the classes: {said}, in these orders; write `data.labels: [{listed}]`")
    if known.kept and not chosen:
        said = f"the model calls its outputs {listed}, the data {classes}"
        raise OwnError(
            f"the classes: {said}; give `labels`, the data's names in the order of the model's"
            " outputs"
        )


def _check_taken(batch: Inputs, chosen: tuple[str, ...], module: OnnxNetwork) -> None:
    """Check that the file takes all that the data give, but for what `inputs` leave out."""
    taken = [argument.name for argument in module.session.get_inputs()]
    left = (
        [name for name in batch if name not in taken]
        if isinstance(batch, dict) and not chosen
        else []
    )
    if left:
        wanted = ", ".join(taken)
        raise OwnError(
            f"{module.path}: takes {wanted}, but the data give {', '.join(left)} too; choose by"
            " `inputs: [...]`"
        )


def _inputs(source: Source, data: Data, *, trained: bool) -> str:
    first: Inputs = data.train.first(1)
    names = list(first) if isinstance(first, dict) else [""] * len(leaves(first))
    tensors = [
        f"{name} {str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape[1:])}".strip()
        for name, leaf in zip(names, leaves(first), strict=True)
    ]
    low, high = data.domain
    within = (
        f"{data.vocabulary:,} tokens"
        if data.vocabulary is not None
        else f"from {low:.4g} to {high:.4g}"
    )
    columns = isinstance(first, torch.Tensor) and first.dim() == 2 and first.is_floating_point()
    scaled = ""
    if columns and not source.is_function and is_table(source.place):
        # A model that was trained elsewhere knows nothing of it.
        cure = "; if the model was trained on other values, give those as .npz" if trained else ""
        scaled = f", each column scaled by its range in training{cure}"
    return f"{', '.join(tensors)}; {within}{scaled}"


def _start(start: str, budget: str, *, treated: bool) -> str:
    return {
        "scratch": f"each variant is trained from its initial weights, {budget}",
        "pretrained": f"each variant is fine-tuned from the given weights, {budget}",
        "trained": ("the model is measured as it is" + "; the other variants treat it" * treated),
    }[start]


def _step(module: nn.Module, data: Data) -> torch.Tensor:
    """The outputs for a few training samples, after the gradients of a training step were found
    to be sound.
    """
    # a small file can ask for outputs of any size between its layers
    if isinstance(module, OnnxNetwork):
        with reading(module.path):
            return _stepped(module, data)
    return _stepped(module, data)


def _stepped(module: nn.Module, data: Data) -> torch.Tensor:
    # 1. Outputs of a few training samples that have a target, and whether they belong to the
    # targets.
    chosen = data.train.labelled.nonzero().flatten()[:_STEP]
    inputs, targets = data.train.inputs[chosen], data.train.targets[chosen]
    module = duplicate(module).train()
    outputs = _outputs(module, inputs)
    if misfit := _misfit(data.task, outputs, data):
        raise OwnError(misfit)
    # 2. A sample's output must not depend on the others of its batch: tests are counted one by
    # one.
    if getattr(module, "batch", None) is None:  # else it is a file that takes batches of one size
        _check_alone(duplicate(module).eval(), inputs)
    if isinstance(module, OnnxNetwork):
        if not bool(outputs.isfinite().all()):
            raise OwnError(
                f"{module.path}: gives NaN or infinity on the data; look at its weights, and at the"
                " inputs"
            )
        return outputs
    # 3. One step: the loss is finite, reaches parameters, and its gradients are finite.
    loss = data.task.loss(outputs, targets)
    if not bool(loss.isfinite()):
        raise OwnError(
            f"the loss of the first {len(targets)} training samples is {loss.item()}: scale the"
            " inputs"
        )
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    graded = [
        (name, parameter.grad)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    ]
    if not graded:
        raise OwnError(
            "no parameter gets a gradient in a training step: does forward detach, or run under"
            " no_grad?"
        )
    broken = [name for name, gradient in graded if not gradient.isfinite().all()]
    if broken:
        raise OwnError(
            f"the gradient of {broken[0]} is not finite after one training step: scale the inputs"
        )
    return outputs.detach()


def _outputs(module: nn.Module, inputs: Inputs) -> torch.Tensor:
    try:
        return module(inputs)  # type: ignore[no-any-return]
    except OwnError:
        raise
    except (Exception, SystemExit) as error:  # a user's forward may raise anything
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves(inputs))
        said = " ".join(str(error).split())[:200]
        failure = f"{line_of(error)}the model fails on inputs of shape {shapes}"
        cure = f"; {cure}" if (cure := cure_of(module, own_network(module), inputs, error)) else ""
        raise OwnError(f"{failure}: {type(error).__name__}: {said}{cure}") from error


@torch.no_grad()
def _check_alone(evaluated: nn.Module, inputs: Inputs) -> None:
    """In evaluation mode a sample's outputs are its own, whatever else is in its batch."""
    # The first sample, with the others and alone.
    together, alone = (
        _outputs(evaluated, inputs)[:1],
        _outputs(evaluated, mapped(inputs, lambda leaf: leaf[:1])),
    )
    if alone.shape != together.shape:
        shapes = (
            f"{tuple(alone.shape)} for a batch of one sample, where {tuple(together.shape)} is"
            " wanted"
        )
        raise OwnError(
            f"the model gives outputs of shape {shapes}: keep dimension 0, which squeeze() drops"
        )
    off = float((alone - together).abs().max())
    if off > _MIXED * max(1.0, float(together.abs().max())):
        raise OwnError(
            f"the model: a sample's outputs change by {off:.3g} with the other samples of its"
            " batch, in evaluation mode too: compute nothing over dimension 0, such as a mean"
        )


def _misfit(task: Task, outputs: torch.Tensor, data: Data) -> str:
    """Why the model's outputs and the targets do not belong together; empty where they do."""
    if (heads := heads_of(data)) is None:
        return _misfit_of_one(task, outputs, data)
    for place, name, part in each_output(data):
        if said := _misfit_of_one(part.task, heads.output_of(place, outputs), part):
            return f"the output {name}: {said}"
    return ""


def _misfit_of_one(task: Task, outputs: torch.Tensor, data: Data) -> str:
    from evalsuite.tasks import (
        Classification,
        Embedding,
        MultiLabel,
        Regression,
        Segmentation,
    )

    # 1. Shapes without the batch.
    task, targets = getattr(task, "task", task), data.train.targets
    wanted, shape = tuple(targets.shape[1:]), tuple(outputs.shape[1:])
    shapes = (
        f"the model gives outputs of shape {shape} for a sample, but its targets have shape"
        f" {wanted}"
    )
    if not outputs.is_floating_point():
        return (
            f"the model's outputs are {outputs.dtype}: give logits or values, not classes, or"
            " choose another `output`"
        )
    # 2. What each task asks of them.
    if isinstance(task, (Classification, Segmentation)):
        return _misfit_of_classes(task, shapes, shape, data)
    if isinstance(task, (MultiLabel, Embedding)) and shape != wanted:
        return f"{shapes}: they must be equal"
    if isinstance(task, Regression) and outputs[:1].numel() != targets[:1].numel():
        return f"{shapes}: as many values are needed"
    return ""


def _misfit_of_classes(task: Task, shapes: str, shape: tuple[int, ...], data: Data) -> str:
    """Why logits do not belong to the targets: their shape, or too few classes."""
    from evalsuite.tasks import LanguageModel, Segmentation, TokenClassification

    wanted = tuple(data.train.targets.shape[1:])
    # Both orders of dimensions may fit, as of 16 classes in pictures of 16 x 16.
    last, second = bool(shape) and shape[:-1] == wanted, bool(wanted) and shape[1:] == wanted
    named = isinstance(task, (LanguageModel, TokenClassification, Segmentation))
    if last and second and not named:
        return (
            f"{shapes}, so that either its first or its last dimension is the classes: choose"
            " task segmentation for the first, token-classification for the last"
        )
    of_places = isinstance(task, Segmentation)
    if of_places and not second:
        return (
            f"{shapes}: logits are (classes, {', '.join(map(str, wanted))}); resize them in"
            " forward by F.interpolate, or choose another `output`"
        )
    if not of_places and not last:
        cure = (
            "for a class at each place choose task segmentation"
            if second
            else "choose another `output`"
        )
        return f"{shapes}: logits have one dimension more, the classes; {cure}"
    return _too_few(shape[0] if of_places else shape[-1], data, of_places=of_places)


def _too_few(logits: int, data: Data, *, of_places: bool) -> str:
    """Why there are fewer logits than the labels ask for; empty where there are enough."""
    highest = max(int(getattr(data, part).targets.max()) for part in PARTS)
    if highest < (2 if of_places and logits == 1 else logits):
        return ""
    said = f"the labels go up to {highest}, but the model gives {logits} logits"
    labels = data.train.targets[data.train.counted].unique()  # type: ignore[no-untyped-call]
    if of_places and len(labels) <= highest:
        listed = [*map(str, labels[:8].tolist()), *(["..."] if len(labels) > 8 else [])]
        return (
            f"{said}: there are the labels {', '.join(listed)}; number classes from 0 on, and give"
            f" {IGNORED} to places that shall count nowhere"
        )
    return f"{said}: make its last layer {highest + 1} wide"


def _task(task: Task, outputs: torch.Tensor, data: Data) -> str:
    from evalsuite.tasks import Classification, Heads, Regression, Segmentation

    # 1. The metrics of this task, tried on the outputs there are.
    with torch.no_grad():
        targets = data.train.targets[data.train.labelled.nonzero().flatten()[: len(outputs)]]
        metrics = task.metrics(task.tally(outputs, targets))
    named = ", ".join(
        f"{metric.name} ({metric.unit}, {metric.direction.value} is better)" for metric in metrics
    )
    kind, known = getattr(task, "task", task), data.train.targets
    ends = (
        f"; targets from {known.min():.4g} to {known.max():.4g}, not scaled"
        if isinstance(kind, Regression)
        else ""
    )
    # 2. A softmax at the end: the loss takes logits, and would have a second one in front.
    classes = 1 if isinstance(kind, Segmentation) else -1
    if isinstance(kind, (Classification, Segmentation)) and bool(
        (outputs >= 0).all() & ((outputs.sum(classes) - 1).abs() < _MIXED).all()
    ):
        ends = (
            "; the outputs sum to 1: where they are probabilities, leave the softmax out, since"
            " logits are meant"
        )
    of = f" ({', '.join(kind.names)})" if isinstance(kind, Heads) else ""
    return f"{type(kind).__name__}{of}: {named}{ends}"

"""A user's model, data and task, as a recipe or the command line names them."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file, save_file

from evalsuite.contract import Data, Task
from evalsuite.data.classes import Naming
from evalsuite.data.fingerprint import fingerprint
from evalsuite.data.parts import PARTS
from evalsuite.data.reading import read_data
from evalsuite.data.source import USUAL_LENGTH, Source, source_of
from evalsuite.own.asked_model import Model
from evalsuite.own.hugging_face import (
    class_names,
    names_by_number,
    place_of,
    positions_of,
    words_of,
)
from evalsuite.own.tasks import TaskChoice, task_of
from evalsuite.sources import default_folder
from evalsuite.tasks import (
    Classification,
    Embedding,
    Heads,
    LanguageModel,
    MultiLabel,
    TokenClassification,
)
from evalsuite.tasks.amended import shaped
from evalsuite.workloads.options import Budget
from opgraph.errors import OwnError
from opgraph.inputs import Inputs, leaves, mapped
from opgraph.onnx_model import stored_names

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.own.activations import OwnActivations


def originals_folder() -> Path:
    """The folder `originals` of the default cache, where outputs of users' models are kept; it
    need not exist.
    """
    return default_folder() / "originals"


class Originals:
    """The outputs of a model by the content of each batch: every job needs them, and one run of the
    model is enough.

    Args:
        key: the digest of model and data.
        run: gives the outputs for a batch, (samples, width).
    """

    def __init__(self, key: str, run: Callable[[Inputs], torch.Tensor]) -> None:
        self._file, self._run = originals_folder() / f"{key}.safetensors", run
        self._known = load_file(self._file) if os.access(self._file, os.R_OK) else {}
        self._new = False

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """The model's outputs for a batch, (samples, width), computed once for each batch."""
        digest = hashlib.sha256(
            b"".join(leaf.numpy().tobytes() for leaf in leaves(inputs))
        ).hexdigest()
        if digest not in self._known:
            self._known[digest], self._new = self._run(inputs).contiguous(), True
        return self._known[digest]

    def keep(self) -> None:
        """Write what is new, whole or not at all, with the rights that the umask leaves; nothing
        where it may not.
        """
        if not self._new:
            return
        partial = self._file.with_suffix(f".{os.getpid()}.partial")
        # another user's cache: the outputs are computed again next time
        with suppress(PermissionError):
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.touch()
            mode = partial.stat().st_mode
            save_file(self._known, partial)  # for its writer alone, whatever the umask says
            partial.chmod(mode)
            partial.replace(self._file)


STARTS = ("scratch", "pretrained", "trained")
_OPTION = {"source": "data"}
_RATES = {"scratch": 1e-3, "pretrained": 5e-5, "trained": 5e-4}


@dataclass(frozen=True)
class Brought(Budget):
    """Holds what a user brings: a model, data and a task, and the activations that variants
    replace.

    Args:
        model: `my.py:make`, a function that makes it; `hf:FOLDER` of Hugging Face, `timm:NAME`, or
            `net.onnx`. With arguments or weights: {path, args, weights}.
        data: a file, a folder, or `my.py:make_data`; with options, as columns and sizes: {path,
            ...}.
        task: classification, segmentation, multi-label, regression, language-model,
            token-classification, embedding, or `my.py:MyTask`; with options {use, ...}. Of several
            outputs {NAME: TASK, ...}, or NAME=TASK with commas between.
        inputs: which named inputs the model is given; all by default.
        output: which of several outputs is measured, by its name or number; of several that have
            tasks their names, with commas between.
        activation: the registered name of the activation that variants replace, where the model has
            several smooth ones; the others stay.
        loss: `my.py:loss`, a function of (outputs, targets), instead of the task's.
        metrics: which of the task's are measured, the headline first, or `my.py:metric`, a function
            of (outputs, targets) that gives a value for each sample; all of the task's by default.
        start: "scratch" trains each variant from its initial weights, "pretrained" from the
            weights, and "trained" trains no baseline: the model is measured as it is, and treated.
        depends: files and folders that the model or the data need besides; their contents enter the
            cache key.
        epochs: passes over the training data.
        keep_best: a network that is trained or fine-tuned gets the weights of that epoch, of the
            second half of its training, which is better on the validation data than the last one
            beyond chance. The fine-tuning inside a stage, as behind pruning, keeps the last.
        learning_rate: its peak; 0 stands for 0.001, or from pretrained weights 0.00005. The repairs
            of a trained model take a tenth of 0.0005.
    """

    version: ClassVar[str] = "2"
    # what a mapping of these may hold
    inside: ClassVar[dict[str, type]] = {"model": Model, "data": Source}
    model: str | dict[str, Any] = field(kw_only=True)
    source: str | dict[str, Any] = field(kw_only=True, metadata={"option": "data"})
    task: str | dict[str, Any] = "classification"
    inputs: tuple[str, ...] = ()
    output: str = ""
    activation: str = ""
    loss: str = ""
    metrics: tuple[str, ...] = ()
    start: str = "scratch"
    depends: tuple[str, ...] = ()
    epochs: int = 3
    keep_best: bool = True
    learning_rate: float = 0.0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}, got {self.start!r}")
        if self.learning_rate == 0:
            object.__setattr__(self, "learning_rate", _RATES[self.start])
        for name, resolve_option in (
            ("model", _model_of),
            ("source", source_of),
            ("task", TaskChoice.of),
        ):
            option = getattr(self, name)
            if not option:
                raise ValueError(
                    f"{_OPTION.get(name, name)} is missing; `evalsuite workloads own` says what it"
                    " may be"
                )
            # Frozen, so that what was loaded for it can be found again.
            object.__setattr__(self, name, resolve_option(option))
        super().__post_init__()

    def fingerprint(self) -> str:
        """The digest of the data, of the model's own files and of what it depends on."""
        whole = hashlib.sha256(fingerprint(self.data_choice).encode())
        for place in (*self.model_choice.files, *map(Path, self.depends)):
            for file in _files(place):
                whole.update(f"{file}:{hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
        return whole.hexdigest()

    @property
    def libraries(self) -> tuple[str, ...]:
        """The distributions whose versions enter the keys of its jobs, since the model is
        theirs.
        """
        kind = self.model_choice.path.partition(":")[0]
        return {"hf": ("transformers",), "timm": ("timm",)}.get(kind, ())

    @property
    def preloaded(self) -> tuple[str, ...]:
        """Modules of installed packages that its jobs import, and that take seconds to load."""
        parts = ("activations", "modeling_utils", "models.auto.modeling_auto")
        return (
            tuple(f"transformers.{part}" for part in parts)
            if self.libraries == ("transformers",)
            else ()
        )

    @property
    def covered(self) -> list[Path]:
        """Files and folders whose contents the fingerprint decides, so that a job need not note
        each that it opens.
        """
        data = [] if self.data_choice.is_function else [self.data_choice.place]
        return [*data, *self.model_choice.files, *map(Path, self.depends), originals_folder()]

    def data(self) -> Data:
        return _data(self)

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        """See `Workload`: the user's model with `activation` in the place of each of its own."""
        places = _places(self)
        return places.replaced(self.given(), activation)

    def given(self, example: Inputs | None = None) -> nn.Module:
        """The user's model with its own activations, taking one batch and giving one tensor."""
        if self.is_onnx:
            from opgraph.onnx_network import OnnxNetwork

            return OnnxNetwork(Path(self.model_choice.path), self.output or None)
        example = _data(self).train.first(2) if example is None else example
        return self.adapted(self.unadapted(example), example)

    def unadapted(self, example: Inputs | None = None) -> nn.Module:
        """The user's model as it was made, with its weights loaded; lazy layers take their shapes
        from the example, or from the data.
        """
        from evalsuite.own.adapter import first_run
        from evalsuite.own.models import load_model

        task = self.task_chosen()
        # Of an embedding the model itself may give the targets, and so their width.
        own_targets = isinstance(task, Embedding)
        # Of several outputs it tells the shapes.
        classes = None if own_targets or isinstance(_inner(task), Heads) else _data(self).classes
        if example is None and not own_targets:
            example = _data(self).train.first(2)

        def run(module: nn.Module) -> object:
            return first_run(module, example, self.inputs)  # type: ignore[arg-type]

        return load_model(
            self.model_choice,
            task=task,
            classes=classes,
            start=self.start,
            run=None if example is None else run,
        )

    def adapted(self, module: nn.Module, example: Inputs) -> nn.Module:
        """The user's model as a network that takes one batch, such as the example, and gives one
        tensor.
        """
        from evalsuite.own.adapter import adapted

        return adapted(module, example, self.inputs, self.output, self.task_chosen())

    @property
    def is_onnx(self) -> bool:
        """Whether the model is an ONNX file, which can be neither trained nor treated."""
        return self.model_choice.path.endswith(".onnx")

    @property
    def original(self) -> str:
        """The registered name of the activation that the model has, and that variants replace."""
        return self.places.name

    @property
    def places(self) -> OwnActivations:
        """The places of the model's activations."""
        return _places(self)

    @property
    def model_choice(self) -> Model:
        """The option `model`, once it was checked."""
        return cast(Model, self.model)

    @property
    def data_choice(self) -> Source:
        """The option `data`, once it was checked."""
        return cast(Source, self.source)

    def task_chosen(self) -> Task:
        """The task, with the user's loss and metrics."""
        chosen, source = cast(TaskChoice, self.task), self.data_choice
        by_bytes = (source.tokenizer or tokenizer_folder(self.model_choice) or "bytes") == "bytes"
        if by_bytes and not source.is_function and not source.path.endswith((".npz", ".npy")):
            chosen = chosen.told_of_bytes()
        return task_of(chosen, self.loss, self.metrics)


def _model_of(option: Any) -> Model:
    if isinstance(option, Model):
        return option
    try:
        return TypeAdapter(Model).validate_python(option)
    except ValidationError as error:
        said = error.errors()[0]
        where = ".".join(["model", *map(str, said["loc"])])
        raise OwnError(f"{where}: {said['msg'].removeprefix('Value error, ')}") from error


def forget() -> None:
    """Read models and data anew: between two looks of one process, as in a notebook, their files
    may change.
    """
    _data.cache_clear()
    _places.cache_clear()


# Kept, since a job asks for the same data and places several times.
@cache
def _data(own: Brought) -> Data:
    task = own.task_chosen()
    tokenizer = tokenizer_folder(own.model_choice)
    original: list[nn.Module] = []

    def outputs_of(inputs: Inputs) -> torch.Tensor:
        if not original:
            original.append(own.given(mapped(inputs, lambda leaf: leaf[:2])).eval())
        return original[0](inputs)  # type: ignore[no-any-return]

    digest = own.fingerprint()
    source, notes = _of_length(own.data_choice, own.model_choice, _inner(task))
    with torch.random.fork_rng(devices=[]):
        originals = Originals(_told_apart(own, digest), outputs_of)
        data = read_data(
            source,
            task,
            tokenizer=tokenizer,
            targets_of=originals,
            naming=_naming(
                own.data_choice.labels, own.model_choice, task, kept=own.start == "trained"
            ),
        )
        originals.keep()
        data = replace(data, fingerprint=digest, notes=(*data.notes, *notes))
        if isinstance(_inner(task), LanguageModel) and own.model_choice.path.startswith("hf:"):
            # Often it has more words than its tokenizer has tokens, and an output for each.
            data = replace(data, classes=max(data.classes, words_of(own.model_choice) or 0))
        if not isinstance(_inner(task), Heads):
            return data
        if own.is_onnx:
            cure = "choose one by `output`, and its task"
            said = f"{own.model_choice.path}: an ONNX file is measured by one output"
            raise OwnError(f"{said}: {cure}")
        return _with_outputs(data, own.given(data.train.first(2)))


def _inner(task: Task) -> Task:
    """The task without the user's loss and metrics."""
    inner: Task = getattr(task, "task", task)
    return inner


def _with_outputs(data: Data, module: nn.Module) -> Data:
    """The data of several outputs, whose task knows their shapes from a run of the model."""
    from evalsuite.own.adapter import output_shapes

    shapes = output_shapes(module, data.train.first(2))
    task = shaped(data.task, outputs=shapes)
    parts = {name: replace(getattr(data, name), task=task) for name in PARTS}
    return replace(data, classes=sum(math.prod(shape) for shape in shapes), **parts)


def _of_length(
    source: Source, model: Model, heads: Task
) -> tuple[Source, tuple[tuple[str, str], ...]]:
    """The data with samples no longer than the model has positions, where no length is given; and
    what to say of it.
    """
    if isinstance(heads, Heads) and not source.target:
        source = replace(source, target=heads.names)
    positions = positions_of(model) if model.path.startswith("hf:") else None
    if source.length or positions is None or positions >= USUAL_LENGTH:
        return source, ()
    note = ("length", f"at most {positions} tokens a sample, as many as the model has positions")
    return replace(source, length=positions), (note,)


def _naming(labels: tuple[str, ...], model: Model, task: Task, *, kept: bool) -> Naming:
    """Ask the model for the order of classes: by names in its configuration, or as timm sorts."""
    kind = model.path.partition(":")[0]
    order = "natural" if kind == "timm" else ""
    names: tuple[str, ...] = ()
    if isinstance(task, (Classification, MultiLabel, TokenClassification)):
        if kind == "hf":
            names = class_names(model)
        elif model.path.endswith(".onnx"):
            names = listed_names(Path(model.path).expanduser())
    return Naming(labels, names, kept, order)


def listed_names(path: Path) -> tuple[str, ...]:
    """Read the names that an ONNX file's own metadata give its outputs, by number; there may be
    none. Raises OwnError: see `names_by_number`.
    """
    names = stored_names(path)
    by_number = names if isinstance(names, dict) else dict(enumerate(names))
    return names_by_number(by_number, None, f"the model: {path}: its metadata")


def _told_apart(own: Brought, digest: str) -> str:
    """Digest all that the original's outputs depend on, beside the data: the model as it was asked
    for, and its weights.
    """
    whole = hashlib.sha256(digest.encode())
    if isinstance(own.task_chosen(), Embedding):
        asked = (
            own.model_choice,
            own.model_choice.weights_key,
            own.inputs,
            own.output,
            own.start,
            torch.__version__,
        )
        whole.update(f"{asked} {[_version(library) for library in own.libraries]}".encode())
        torch.manual_seed(0)
        for name, tensor in sorted(own.unadapted().state_dict().items()):
            whole.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return whole.hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


@cache
def _places(own: Brought) -> OwnActivations:
    from evalsuite.own.activations import OwnActivations

    # the first look must not move the weights that are drawn next
    with torch.random.fork_rng(devices=[]):
        return OwnActivations.of(own.given(), _data(own).train.first(2), chosen=own.activation)


def tokenizer_folder(model: Model) -> str | None:
    """The folder of a Hugging Face model, where it has a tokenizer."""
    if not model.path.startswith("hf:"):
        return None
    folder = place_of(model.path)
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
    return folder if any((Path(folder) / name).is_file() for name in names) else None


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise OwnError(f"{place} is named in the workload, but there is no such file or folder")
    return sorted(file for file in place.rglob("*") if file.is_file())

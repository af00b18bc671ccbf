"""Models of Hugging Face: a folder with config.json, and safetensors where it starts from
weights; or a hub's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.own.hugging_face_files import WEIGHTS, check_stored
from evalsuite.own.prepared import converted
from evalsuite.own.vision import make_importable
from evalsuite.plugins import did_you_mean
from opgraph.errors import OwnError

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.contract import Task
    from evalsuite.own.asked_model import Model

_OTHERS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
_COMPUTED = ("position_ids", "inv_freq", "masked_bias")  # buffers of older releases
_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load_hugging_face(
    model: Model, task: Task | None, classes: int | None, start: str
) -> nn.Module:
    """The model of a folder, or of a name on the hub, with the head that the task asks for. See
    `load_model`.

    Nothing is unpickled, and no code of the folder is run. Raises OwnError: there is no such
    folder, its configuration cannot be read, or its weights are missing, pickled, of another head,
    or not finite.
    """
    from evalsuite.own.asked_model import check_weights, note_change
    from evalsuite.own.checkpoints import chosen, closest_alone, read_checkpoint

    try:
        import transformers
    except ImportError as error:
        raise OwnError(
            f"the model: {model.path} needs transformers: pip install evalsuite[transformers]"
        ) from error
    make_importable()
    # 1. The configuration decides the architecture, and the task its head.
    place = _place(model, start)
    local = {"local_files_only": Path(place).is_dir(), "trust_remote_code": False}
    with quiet(transformers), _told(model):
        config = transformers.AutoConfig.from_pretrained(place, **local)
    stored = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    if stored != "float32":
        config.dtype = "float32"
        if start != "scratch" and not model.weights:
            note_change(model, converted([stored]))
    kind = _kind(transformers, config, task, model.path)
    _configure(config, model, kind.__name__, classes, start)
    # 2. The module: with initial weights, with weights of a file, or with those of the folder.
    with quiet(transformers), _told(model):
        if start == "scratch":
            fresh: nn.Module = _from_config(kind, config)
            return fresh.train()
        if model.weights:
            # The library takes its files' own layout too, which is not the module's where it was
            # changed since.
            fresh = _from_config(kind, config)
            states = chosen(
                read_checkpoint(Path(model.weights).expanduser()), model.weights, model.weights_key
            )
            tensors = closest_alone(states, fresh, model.weights)
            network, report = _loaded(type(fresh), None, config, state_dict=tensors)
        else:
            network, report = _loaded(kind, place, config, use_safetensors=True, **local)
    # 3. What transformers passes over in silence: weights that were missing, left out or not
    # finite.
    source = model.weights or model.path
    _check_report(report, network, source, start)
    if any(name.startswith("pooler.") for name in report["missing_keys"]):
        network.register_module("pooler", None)  # it would have random weights
    if not model.weights:
        check_stored(place, network)
    check_weights(network, source)
    return network.train()


def _loaded(kind: Any, place: str | None, config: Any, **options: Any) -> tuple[nn.Module, Any]:
    import torch

    network, report = kind.from_pretrained(
        place,
        config=config,
        dtype=torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **options,
    )
    return network, report


def place_of(path: str) -> str:
    """The folder of a model `hf:FOLDER`, or the name on the hub. Raises OwnError: there is no such
    folder, or it holds no configuration.
    """
    name = path.removeprefix("hf:")
    folder = Path(name).expanduser()
    # What is no folder may be a name on the hub; what looks like a path is not asked for there.
    if not folder.is_dir():
        if not _HUB.fullmatch(name) or name.startswith("."):
            beside = [
                str(folder_beside)
                for folder_beside in folder.parent.glob("*/")
                if not folder_beside.name.startswith((".", "__"))
            ]
            raise OwnError(
                "the model: there is no folder"
                f" {name}{did_you_mean(name, beside) if beside else ''}"
            )
        return name
    if not (folder / "config.json").is_file():
        raise OwnError(
            f"the model: {name} has no config.json; name a folder that save_pretrained wrote"
        )
    return str(folder)


def class_names(model: Model) -> tuple[str, ...]:
    """Read the names that the configuration of a model `hf:...` gives its outputs, by number; there
    are none where it says nothing, or cannot be read, which loading the model tells. Raises
    OwnError: `id2label` and `label2id` contradict each other, or they do not number the classes
    from 0 on without a gap.
    """
    config = {**_configured(place_of(model.path)), **model.args}
    by_name = None if "id2label" in model.args else config.get("label2id")
    return names_by_number(
        config.get("id2label"), by_name, f"the model: {model.path}: its config.json"
    )


# What configurations call the number of positions; of the second kind some are before the first
# token, as many as the number of the padding token and one.
_POSITIONS = ("n_positions", "n_ctx", "max_seq_len", "max_position_embeddings")
_PADDED = ("roberta", "camembert", "xlm-roberta", "longformer", "mpnet", "data2vec-text")


def positions_of(model: Model) -> int | None:
    """How many tokens a sample of a model `hf:...` may have, by its configuration; None where that
    says nothing.
    """
    config = {**_configured(place_of(model.path)), **model.args}
    count = next((config[name] for name in _POSITIONS if isinstance(config.get(name), int)), None)
    if count is None:
        return None
    padded = str(config.get("model_type", "")) in _PADDED
    usable = count - (int(config.get("pad_token_id") or 0) + 1) * padded
    return usable if usable > 0 else None


def words_of(model: Model) -> int | None:
    """How many words a language model `hf:...` has, each with an output, by its configuration; None
    where that says nothing.
    """
    count = {**_configured(place_of(model.path)), **model.args}.get("vocab_size")
    return count if isinstance(count, int) else None


def names_by_number(id2label: Any, label2id: Any, said: str) -> tuple[str, ...]:
    """The names of classes by number, as a configuration has them in one form or the other; empty
    where it has none. Raises OwnError, which `said` begins: one is no mapping, or see
    `class_names`.
    """
    # 1. Both forms as names by number, which must agree where both are there.
    for key, mapping in (("id2label", id2label), ("label2id", label2id)):
        if mapping and not isinstance(mapping, Mapping):
            form = '{"0": "cat", ...}' if key == "id2label" else '{"cat": 0, ...}'
            raise OwnError(
                f"{said} has {key} as a {type(mapping).__name__}, not a mapping; write {form}"
            )
    by_number = {str(number): str(name) for number, name in (id2label or {}).items()}
    by_name = {str(number): str(name) for name, number in (label2id or {}).items()}
    if by_number and by_name and by_number != by_name:
        differing = sorted(
            key
            for key in by_number.keys() | by_name.keys()
            if by_number.get(key) != by_name.get(key)
        )
        names = (
            f"{by_number.get(differing[0])!r} by id2label and {by_name.get(differing[0])!r}"
            " by label2id"
        )
        raise OwnError(f"{said} calls class {differing[0]} {names}; correct it")
    # 2. Numbers without gaps, from 0.
    names_of = by_number or by_name
    numbers = [str(number) for number in range(len(names_of))]
    if set(numbers) != set(names_of):
        listed = ", ".join(list(names_of)[:5])
        cure = "correct id2label and label2id"
        raise OwnError(
            f"{said} numbers its classes {listed}, not from 0 to {len(names_of) - 1}; {cure}"
        )
    return tuple(names_of[number] for number in numbers)


def _configured(place: str) -> dict[str, Any]:
    file = Path(place) / "config.json"
    try:
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
            return config if isinstance(config, dict) else {}
        import transformers

        with quiet(transformers):
            hub: dict[str, Any] = transformers.AutoConfig.from_pretrained(
                place, trust_remote_code=False
            ).to_dict()
    except Exception:  # of many kinds; loading the model meets them again, and says so
        return {}
    return hub


def _place(model: Model, start: str) -> str:
    """The folder, or the name on the hub, where there are weights if it starts from them."""
    name, folder = model.path.removeprefix("hf:"), Path(place := place_of(model.path))
    weights = model.weights or any((folder / weight).is_file() for weight in WEIGHTS)
    if start == "scratch" or weights or not folder.is_dir():
        return place
    if pickled := [other for other in _OTHERS if (folder / other).is_file()]:
        raise OwnError(
            f"the model: {name} has its weights in {pickled[0]}, which is refused, as a pickle may"
            " run code; convert it where you trust it:"
            " AutoModel.from_pretrained(...).save_pretrained(...) writes model.safetensors"
        )
    raise OwnError(
        f"the model: {name} has a config.json, but no model.safetensors, which `start: {start}`"
        " begins from; add it, give `weights`, or write `start: scratch`"
    )


def _kind(transformers: Any, config: Any, task: Task | None, path: str) -> Any:
    """The Auto class for the task; for a user's own task the class that the folder was saved by."""
    from evalsuite.tasks import (
        Classification,
        Embedding,
        LanguageModel,
        MultiLabel,
        Regression,
        Segmentation,
        TokenClassification,
    )

    # Sequence and image classification are one task here; the configuration's model type tells
    # which it is.
    auto = transformers.models.auto.modeling_auto
    image = config.model_type in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    if isinstance(task, LanguageModel):
        name, known = "AutoModelForCausalLM", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    elif isinstance(task, Segmentation):
        name, known = (
            "AutoModelForSemanticSegmentation",
            auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES,
        )
    elif isinstance(task, TokenClassification):
        name, known = (
            "AutoModelForTokenClassification",
            auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
        )
    elif isinstance(task, (Classification, MultiLabel, Regression)) and image:
        name, known = (
            "AutoModelForImageClassification",
            auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        )
    elif isinstance(task, (Classification, MultiLabel, Regression)):
        name, known = (
            "AutoModelForSequenceClassification",
            auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        )
    # A task of the user's own asks for no head that is known: the class by which the folder was
    # saved has the right one.
    else:
        saved = (config.architectures or [""])[0]
        if not isinstance(task, Embedding) and hasattr(transformers, saved):
            return getattr(transformers, saved)
        name, known = "AutoModel", auto.MODEL_MAPPING_NAMES
    if config.model_type not in known:
        raise OwnError(
            f"the model: {path} is a {config.model_type!r}, for which transformers has no {name};"
            " choose another task, or bring the model by my.py:make"
        )
    return getattr(transformers, name)


def _configure(config: Any, model: Model, kind: str, classes: int | None, start: str) -> None:
    """The recipe's changes, and as many outputs as the data have classes."""
    for key, value in model.args.items():
        if not hasattr(config, key):
            hint = did_you_mean(key, config.to_dict())
            raise OwnError(f"the model: {model.path} has no {key!r} in its configuration{hint}")
        setattr(config, key, value)
    if getattr(config, "use_cache", False):
        config.use_cache = False  # what is kept for the next token is no output here
    if classes is None:
        return
    if "ForCausalLM" in kind:
        if config.vocab_size < classes:
            raise OwnError(
                f"the model: {model.path} has a vocabulary of {config.vocab_size} tokens, but the"
                f" data have {classes}; give the tokenizer that it was trained with"
            )
    elif "Classification" in kind and config.num_labels != classes:
        if start == "trained" and not model.weights:
            raise OwnError(
                f"the model: {model.path} gives {config.num_labels} outputs, but the data ask for"
                f" {classes}; give data of its classes, or write `start: pretrained`, which gives"
                " it a new head"
            )
        config.num_labels = classes


def _from_config(kind: Any, config: Any) -> nn.Module:
    make = getattr(kind, "from_config", None) or kind._from_config
    module: nn.Module = make(config)
    return module


def _check_report(report: Any, network: Any, path: str, start: str) -> None:
    """Only a head may be new, and only where it is trained then; and nothing of the file may be
    left out.
    """
    # 1. Weights of the module that the file lacks: inside the body always a mistake, in the head
    # only where it is not trained.
    body = f"{network.base_model_prefix}."
    mismatched = [tensor[0] for tensor in report["mismatched_keys"]]
    headed = any(name.startswith(body) for name, _ in network.named_parameters())
    # A pooler without a head is a part that few models have, and that few outputs are computed of.
    unused = "pooler." if not headed or start != "trained" else None
    absent = [
        name
        for name in [*report["missing_keys"], *mismatched]
        if unused is None or unused not in name
    ]
    absent.sort()
    inside = [name for name in absent if name.startswith(body) or not headed]
    if inside or (absent and start == "trained"):
        first = (inside or absent)[0]
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        cure = (
            "name the folder of a whole model"
            if inside
            else "write `start: pretrained` to train a new head"
        )
        shape = " of that shape" if first in mismatched else ""
        raise OwnError(
            f"the model: {path} has no {first}{more}{shape} for a {type(network).__name__}; {cure}"
        )
    # 2. Weights of the file that the module lacks: they would be left out in silence.
    beside = sorted(
        name
        for name in report["unexpected_keys"]
        if not _is_aside(name, network, start if headed else "")
    )
    if beside:
        more = f" and {len(beside) - 1} more" if len(beside) > 1 else ""
        kind = type(network).__name__
        said = f"has {beside[0]}{more}, which a {kind} has not, and would be left out"
        cure = "name the architecture of these weights, and merge adapters into them"
        raise OwnError(f"the model: {path} {said}; {cure}")


def _is_aside(name: str, network: Any, start: str) -> bool:
    """Whether a tensor of the file is of another head, or a buffer that the model computes
    itself.
    """
    prefix = f"{network.base_model_prefix}."
    buffers = {buffer for buffer, _ in network.named_buffers()}
    bare = name.removeprefix(prefix)
    if {name, bare, prefix + name} & buffers or name.rpartition(".")[2] in _COMPUTED:
        return True
    if start == "trained":
        return False
    body = getattr(network, network.base_model_prefix, network)
    return bare.partition(".")[0] not in {part for part, _ in body.named_children()}


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """A context in which transformers shows no progress bars and logs errors alone; afterwards
    both are as before.
    """
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _told(model: Model) -> Iterator[None]:
    """Tell an error of the library in one line."""
    try:
        yield
    except OwnError:
        raise
    except Exception as error:  # errors of many kinds, some of several pages
        said = " ".join(str(error).split())[:240]
        name = model.path.removeprefix("hf:")
        where = "" if Path(name).expanduser().is_dir() else f"; {name} is no folder here either"
        raise OwnError(
            f"the model: {model.path} cannot be loaded: {type(error).__name__}: {said}{where}"
        ) from error

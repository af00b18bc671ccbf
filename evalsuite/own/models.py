"""Models that a recipe names, and their weights.

A model is a function or class of the user's, a Hugging Face folder, or a name of timm's; weights
are safetensors, or a state dict that torch.load takes with `weights_only`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evalsuite.own.asked_model import HOW, Model, check_weights, note_change
from evalsuite.own.checkpoints import fitted, read_checkpoint
from evalsuite.own.prepared import converted, prepared
from evalsuite.plugins import did_you_mean
from evalsuite.references import blame, is_reference, resolve
from lambda_gelu.activations.census import duplicate
from opgraph.errors import OwnError

if TYPE_CHECKING:
    from evalsuite.contract import Task


def load_model(
    model: Model,
    *,
    task: Task | None = None,
    classes: int | None = None,
    start: str,
    run: Callable[[nn.Module], object] | None = None,
) -> nn.Module:
    """The user's own module, freshly made; with its weights where it starts from them. Not adapted.

    Initial weights are drawn from torch's present random state.

    Args:
        model: what the recipe names.
        task: what it is for: it decides which head a Hugging Face model has.
        classes: how many outputs the data ask for, None where that is not known.
        start: "scratch", "pretrained" or "trained".
        run: calls a module on a batch of the data, where lazy layers need one.

    Raises:
        OwnError: it cannot be made so; the text names the culprit and the cure.
    """
    # 1. What contradicts itself, or is no model.
    if start == "scratch" and model.weights:
        raise OwnError(
            f"weights: {model.weights} is given, but `start: scratch` uses none; write `start:"
            " trained` or `start: pretrained`, or leave the weights out"
        )
    if model.path.endswith(".onnx"):
        raise OwnError(
            f"the model: {model.path} is an ONNX file, which cannot be trained or changed as it is;"
            " give what made it, as my.py:make, or a function that returns"
            " evalsuite.from_onnx(file, example)"
        )
    # 2. A model of Hugging Face, of timm, or of the user's.
    if model.path.startswith("hf:"):
        from evalsuite.own.hugging_face import load_hugging_face

        return load_hugging_face(model, task, classes, start)
    if model.path.startswith("timm:"):
        from evalsuite.own.timm_models import load_timm

        return _finished(load_timm(model, classes), model, start)
    if not is_reference(model.path):
        raise OwnError(f"the model: {model.path!r} names no model; {HOW}")
    make = _factory(model, run)
    module = make()
    # Initial weights must come from torch's random state alone, so that each seed's network can
    # be made again.
    if not model.weights and model not in _REPEATED:
        _check_repeats(make, model)
    return _finished(module, model, start)


_REPEATED: set[Model] = set()  # what was shown to make the same twice, in this process


def _factory(model: Model, run: Callable[[nn.Module], object] | None) -> Callable[[], nn.Module]:
    # what is imported only once must not move the initial weights
    with torch.random.fork_rng(devices=[]):
        target, name = resolve(model.path, what="the model"), model.path.rpartition(":")[2]
    if isinstance(target, nn.Module):
        raise OwnError(
            f"the model: {model.path} is a module, but every variant and seed needs a fresh one;"
            f" name a function that makes it, as def make(): return {type(target).__name__}(...)"
        )
    # Any function that can be called, and of classes modules alone.
    if not callable(target) or (isinstance(target, type) and not issubclass(target, nn.Module)):
        kind = (
            "a class, but no nn.Module"
            if isinstance(target, type)
            else f"a {type(target).__name__}"
        )
        raise OwnError(
            f"the model: {model.path} is {kind}; name a function that returns an nn.Module, or its"
            " class"
        )
    _check_arguments(target, model)

    def make() -> nn.Module:
        try:
            network = target(**model.args)
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise blame(error, f"{name}()", model.path) from error
        if not isinstance(network, nn.Module) or isinstance(network, torch.jit.ScriptModule):
            raise _no_module(network, model.path)
        network, changes = prepared(network, model.path, run)
        for change in changes:
            note_change(model, change)
        _check_module(network, model.path)
        return network

    return make


def _no_module(returned: Any, path: str) -> OwnError:
    if isinstance(returned, torch.jit.ScriptModule):
        said = "a compiled ScriptModule; return the module before torch.jit.script"
    else:
        said = f"a {type(returned).__name__}; it must return an nn.Module"
    return OwnError(f"the model: {path} returns {said}")


def _check_arguments(target: Callable[..., Any], model: Model) -> None:
    try:
        signature = inspect.signature(target)
    except ValueError:  # of some compiled functions
        return
    try:
        signature.bind(**model.args)
    except TypeError as error:
        unknown = [argument for argument in model.args if argument not in signature.parameters]
        hint = did_you_mean(unknown[0], signature.parameters) if unknown else "; give it in `args`"
        raise OwnError(f"the model: {model.path}: {error}{hint}") from error


def _check_module(network: nn.Module, path: str) -> None:
    # What variants do to a module, in the order in which it would fail: change layers, train,
    # copy.
    if not list(network.parameters()):
        raise OwnError(
            f"the model: {path} returns a {type(network).__name__} without parameters: nothing can"
            " be trained"
        )
    try:
        duplicate(network)
    except Exception as error:  # whatever a part of it raises
        said = f"{path} cannot be copied, as each variant is ({type(error).__name__}: {error})"
        raise OwnError(
            f"the model: {said}; keep files, locks and the like out of the module"
        ) from error


def _check_repeats(make: Callable[[], nn.Module], model: Model) -> None:
    """Check that the same random state gives the same initial weights: variants of a seed must
    begin alike.
    """
    digests = set()
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):
            torch.manual_seed(0)
            digests.add(_digest(make()))
    if len(digests) != 1:
        raise OwnError(
            f"the model: {model.path} makes other initial weights at a second call with the same"
            " torch.manual_seed; draw them by torch alone, and keep no state between calls"
        )
    _REPEATED.add(model)


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(f"{name}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()


def _finished(module: nn.Module, model: Model, start: str) -> nn.Module:
    if model.weights:
        for kind in load_weights(module, model.weights, model.weights_key):
            note_change(model, converted([kind]))
    elif start != "scratch":
        if model.path.startswith("timm:"):
            raise OwnError(
                f"the model: {model.path} is made without weights, but `start: {start}`; give"
                " `weights`"
            )
        check_weights(module, model.path)
    return module


def load_weights(module: nn.Module, file: str, key: str = "") -> list[str]:
    """Give `module` the weights in `file`, in place: all of its own, and no others. Return the
    kinds of real numbers in the file that the module has not, by their names. Raises OwnError:
    there is no such file, it is no safetensors file or a pickle of more than tensors, its tensors
    are not the module's, or some are NaN or infinite; the text names the first of them. `key`: see
    `fitted`.
    """
    tensors = fitted(module, read_checkpoint(Path(file).expanduser()), str(file), key)
    dtypes = {name: tensor.dtype for name, tensor in module.state_dict().items()}
    module.load_state_dict(tensors)
    check_weights(module, file)
    others = {
        str(tensor.dtype).removeprefix("torch.")
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.dtype != dtypes.get(name, tensor.dtype)
    }
    return sorted(others)

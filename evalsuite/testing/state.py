"""What a plugin must leave as it was: torch's global state, and the networks and data that it is given."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import nn

from evalsuite.conformance import require
from evalsuite.contract import Split
from evalsuite.samples import Samples, leaves

_BATCH = 256


@contextmanager
def torch_state_kept(plugin: object, kind: str) -> Iterator[None]:
    """Restores torch's global state, and says so where the plugin had changed it."""
    readers: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "thread count": (torch.get_num_threads, torch.set_num_threads),
    }
    before = {name: read() for name, (read, _) in readers.items()}
    changed: dict[str, Any] = {}
    try:
        yield
    finally:
        changed = {name: read() for name, (read, _) in readers.items() if read() != before[name]}
        for name in changed:
            readers[name][1](before[name])
    require(
        not changed,
        f"a {kind} leaves torch's global state as it was",
        f"{type(plugin).__name__} left {', '.join(f'{name} {value}' for name, value in changed.items())}",
        "use context managers such as torch.no_grad(), or restore in `finally`",
    )


def disturb(number: int) -> None:
    """A plugin that draws from a global generator without seeding it must not pass by luck."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def fingerprint(modules: Mapping[str, nn.Module | None], splits: Mapping[str, Split]) -> dict[str, object]:
    """All of some networks and data that a plugin might change, by name."""
    found: dict[str, object] = {}
    for role, root in modules.items():
        if root is None:
            continue
        for path, module in root.named_modules(prefix=role):
            hooks = len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
            found[f"type, mode or hooks of {path}"] = (type(module), module.training, hooks)
        for path, tensor in root.state_dict(prefix=f"{role}.").items():
            found[f"weights {path}"] = content(tensor)
        for path, parameter in root.named_parameters(prefix=role):
            found[f"requires_grad of {path}"] = parameter.requires_grad
            found[f"gradient of {path}"] = None if parameter.grad is None else content(parameter.grad)
    for part, split in splits.items():
        found[f"data.{part}.inputs"], found[f"data.{part}.targets"] = content(split.inputs), content(split.targets)
    return found


def check_unchanged(before: dict[str, object], after: dict[str, object], plugin: object, kind: str, given: str) -> None:
    """The fingerprints are the same; `given` names the network that is to be copied."""
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    require(
        not changed,
        f"a {kind} copies; it never changes what it was given",
        f"{type(plugin).__name__} changed {', '.join(changed[:5])}",
        f"work on copy.deepcopy({given}), and on clones of the data",
    )


def content(tensor: torch.Tensor | Samples) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes, to compare; of samples that are read when asked for a digest of the bytes."""
    if isinstance(tensor, Samples):
        digest = sha256()
        for start in range(0, len(tensor), _BATCH):
            for each in leaves(tensor[start : start + _BATCH]):
                digest.update(each.contiguous().numpy().tobytes())
        return str(tensor.dtype), tuple(tensor.shape), digest.digest()
    return str(tensor.dtype), tuple(tensor.shape), tensor.detach().contiguous().numpy().tobytes()

"""What a user's original model gives for its data: the targets of an embedding, computed once and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from safetensors.torch import load_file, save_file

from evalsuite.run.cache import default_folder
from evalsuite.samples import Inputs, leaves


def originals_folder() -> Path:
    """The folder `originals` of the default cache, where outputs of users' models are kept; it need not exist."""
    return default_folder() / "originals"


class Originals:
    """The outputs of a model by the content of each batch: every job needs them, and one run of the model is enough.

    Args:
        key: the digest of model and data.
        run: gives the outputs for a batch, (samples, width).
    """

    def __init__(self, key: str, run: Callable[[Inputs], torch.Tensor]) -> None:
        self._file, self._run = originals_folder() / f"{key}.safetensors", run
        self._known = load_file(self._file) if self._file.is_file() else {}
        self._new = False

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """The model's outputs for a batch, (samples, width), computed once for each batch."""
        digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in leaves(inputs))).hexdigest()
        if digest not in self._known:
            self._known[digest], self._new = self._run(inputs).contiguous(), True
        return self._known[digest]

    def keep(self) -> None:
        """Write what is new, whole or not at all."""
        if not self._new:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=self._file.parent, suffix=".partial", delete=False) as partial:
            pass
        save_file(self._known, partial.name)
        Path(partial.name).replace(self._file)

"""Counterexamples as a file: what a verifier found against a network, beside its other
artefacts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Data, Property

if TYPE_CHECKING:
    import torch
    from torch import nn

FILE = "counterexamples.json"


def write_counterexamples(
    folder: Path,
    data: Data,
    module: nn.Module | Mapping[int, nn.Module],
    found: Iterable[tuple[Property, torch.Tensor]],
) -> Path:
    """Write `counterexamples.json`: a list of objects, in the order given, whose numbers read back
    exactly.

    Each has the `sample`, its radius `eps`, the `input` that was found and the `clean` one, both of
    the input's shape (of tokens, what they are embedded to), and `picture`, their (channels,
    height, width), or null where they are no images. Where a margin was asked there are `label`,
    the `logits` of the input, its `class`, which is that of the greatest logit besides the label's,
    and `clean_class`; where an interval was, `lowest` and `highest`, null where nothing is asked of
    an output.

    Args:
        folder: where the file goes.
        data: whose test samples the properties are of.
        module: gives (batch, outputs) of (batch, *input_shape); by sample, where each has its own.
        found: properties, and a float32 point of each, of the shape of one input, that violates it.

    Returns:
        The file.
    """
    import torch

    path = folder / FILE
    with torch.no_grad():
        entries = [
            _entry(
                data,
                module[property_.sample] if isinstance(module, Mapping) else module,
                property_,
                point,
            )
            for property_, point in found
        ]
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


def _entry(
    data: Data, module: nn.Module, property_: Property, point: torch.Tensor
) -> dict[str, Any]:
    # Tokens have no clean real input: there it is the middle of the box, which is what they are
    # embedded to.
    middle, shape = (property_.lower / 2 + property_.upper / 2).float(), data.image_shape
    clean = middle if data.vocabulary is not None else data.test.inputs[property_.sample]
    found = {
        "sample": property_.sample,
        "eps": property_.eps,
        "input": point.tolist(),
        "clean": clean.tolist(),
        "picture": list(shape) if shape else None,
    }
    if property_.ends is not None:
        # JSON has no infinity: null where nothing is asked of an output.
        ends = (
            [value if math.isfinite(value) else None for value in end.tolist()]
            for end in property_.ends
        )
        return found | dict(zip(("lowest", "highest"), ends, strict=True))
    # One at a time, since a batch may round differently.
    before, after = module(clean[None])[0], module(point[None])[0]
    others = after.clone()
    # A tie violates too, and the label may be the first of those that tie.
    others[property_.label] = -math.inf
    return found | {
        "label": property_.label,
        "logits": [_written(each) for each in after.tolist()],
        "class": int(others.argmax()),
        "clean_class": int(before.argmax()),
    }


def _written(logit: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return logit if math.isfinite(logit) else str(logit)

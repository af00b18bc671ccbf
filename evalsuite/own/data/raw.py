"""What a reader of one kind of source gives: inputs, raw targets, and what is known of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evalsuite.samples import Samples

PARTS = ("train", "calibration", "validation", "test")
_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("calibration", "calib"), "calibration"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def part_named(name: str) -> str:
    """The part that a name speaks of, as `wiki.valid.tokens` of validation; "" where it speaks of none."""
    words = "".join(each if each.isalpha() else " " for each in name.lower()).split()
    found = {_NAMES[each] for each in words if each in _NAMES}
    return found.pop() if len(found) == 1 else ""


@dataclass
class Part:
    """A part of the data as it is given.

    `targets` are as the source has them: names or numbers, one for each sample; None where there are none. `keys` tell
    equal samples, as digests of their content; None: the inputs do. `where` names a sample in a message.
    """

    inputs: torch.Tensor | Samples
    targets: Any
    where: Callable[[int], str]
    keys: Sequence[object] | None = None


@dataclass
class Raw:
    """The parts that are given, the training part among them.

    `domain` is the range of inputs, None where those in memory tell. `labels` are names of classes that the source
    itself lists. `fit` makes, from the inputs of the training part as it is after cutting, a function that encodes
    inputs. `consecutive`: parts are cut off the end, not drawn.
    """

    parts: dict[str, Part]
    domain: tuple[float, float] | None = None
    vocabulary: int | None = None
    labels: tuple[str, ...] = ()
    fit: Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]] | None = None
    consecutive: bool = False
    said: str = field(default="data", kw_only=True)

"""Shapes with a batch of any size: a size is a number of entries, or -k for k times the batch."""

from __future__ import annotations

from collections.abc import Sequence

from opgraph.errors import Unsupported

Shape = tuple[int, ...]
# What depends on the batch shows at two sizes of it, which no usual size is a multiple of.
BATCHES = (5, 7)


def at(shape: Sequence[int], batch: int) -> tuple[int, ...]:
    """The shape for a batch of this size."""
    return tuple(-extent * batch if extent < 0 else extent for extent in shape)


def size(first: int, second: int) -> int:
    """The size that is `first` and `second` for the two batches of `BATCHES`. Raises Unsupported
    for any other.
    """
    if first == second and first >= 0:
        return first
    times, rest = divmod(first, BATCHES[0])
    if rest or times < 1 or times * BATCHES[1] != second:
        sizes = f"{first} for a batch of {BATCHES[0]} and {second} for one of {BATCHES[1]}"
        raise Unsupported(f"a size is {sizes}: neither fixed nor a multiple of the batch")
    return -times


def shape(first: Sequence[int], second: Sequence[int]) -> Shape:
    """The shape that is `first` and `second` for the two batches of `BATCHES`. Errors as for
    `size`.
    """
    if len(first) != len(second):
        raise Unsupported(
            f"the number of dimensions depends on the batch: {tuple(first)} and {tuple(second)}"
        )
    return tuple(size(one, other) for one, other in zip(first, second, strict=True))

"""What a count of bytes reaches where the GPT is tested: n-grams with Witten and Bell's back-off, on the same windows.

`python -m benchmarks.ngram` takes some ten seconds. The GPT sees 64 bytes at most and starts each window without any;
so does the count: a byte's context is what stands before it in its own window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

BYTES = 256


class Ngrams:
    """Counts of all contexts of up to `order` - 1 bytes, interpolated (Witten and Bell 1991, method C).

    A context gives a byte (count + kinds * shorter) / (total + kinds), where `kinds` is the number of different bytes
    that followed it and `shorter` what the context without its first byte gives; the empty one leads to 1 / 256.
    """

    def __init__(self, text: bytes, order: int) -> None:
        if order < 1:
            raise ValueError(f"order must be >= 1, got {order}")
        self.order = order
        self._counts: defaultdict[bytes, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        for place, byte in enumerate(text):
            for length in range(min(order, place + 1)):
                self._counts[text[place - length : place]][byte] += 1

    def probability(self, context: bytes, byte: int) -> float:
        """Of a byte behind a context, of which the last `order` - 1 bytes count."""
        found = 1 / BYTES
        for length in range(min(self.order, len(context) + 1)):
            counts = self._counts.get(context[len(context) - length :])
            if counts is None:
                break  # a longer context was not seen either
            total, kinds = sum(counts.values()), len(counts)
            found = (counts.get(byte, 0) + kinds * found) / (total + kinds)
        return found

    def bits(self, pairs: Iterable[tuple[bytes, bytes]]) -> float:
        """Mean bits of a target, over windows of inputs and targets of equal length.

        Raises:
            ValueError: there is no target.
        """
        lost = [
            -math.log2(self.probability(inputs[: place + 1], byte))
            for inputs, targets in pairs
            for place, byte in enumerate(targets)
        ]
        if not lost:
            raise ValueError("bits of no byte")
        return math.fsum(lost) / len(lost)


def windows(text: bytes, context: int) -> list[tuple[bytes, bytes]]:
    """Inputs and targets as `evalsuite.workloads.text.windows` cuts them."""
    ends = range(context, len(text), context)
    return [(text[end - context : end], text[end - context + 1 : end + 1]) for end in ends]


def main() -> None:
    """Bits per byte by order, on the validation text, by which an order is chosen, and on the test text."""
    from evalsuite.workloads.text import CONTEXT, corpus

    train, _, validation, test = corpus()
    print("order  validation  test  (bits per byte)")
    for order in range(1, 8):
        model = Ngrams(train, order)
        found = [model.bits(windows(text, CONTEXT)) for text in (validation, test)]
        print(f"{order:5}  {found[0]:10.3f}  {found[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()

"""Measure what n-grams and xz reach where a GPT is tested: counts with Witten and Bell's back-off,
on the same windows.

`python -m benchmarks.ngram [WORKLOAD]` takes from ten seconds to some minutes. A GPT starts each
window without what stands before it; so does the count: a byte's context is what stands before it
in its own window. xz has the whole text of training before it, and the test text up to the byte.
"""

from __future__ import annotations

import argparse
import lzma
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

# The text of training; the texts of validation and test, and their windows; the workload's
# fingerprint.
Parts = tuple[bytes, list[bytes], list[list[tuple[bytes, int]]], str]
BYTES = 256


class Ngrams:
    """Counts of all contexts of up to `order` - 1 bytes, interpolated (Witten and Bell 1991, method
    C).

    A context gives a byte (count + kinds * shorter) / (total + kinds), where `kinds` is the number
    of different bytes that followed it and `shorter` what the context without its first byte gives;
    the empty one leads to 1 / 256.
    """

    def __init__(self, text: bytes, order: int) -> None:
        if order < 1:
            raise ValueError(f"order must be >= 1, got {order}")
        self.order = order
        self._counts: defaultdict[bytes, defaultdict[int, int]] = defaultdict(
            lambda: defaultdict(int)
        )
        for place, byte in enumerate(text):
            for length in range(min(order, place + 1)):
                self._counts[text[place - length : place]][byte] += 1

    def probability(self, context: bytes, byte: int) -> float:
        """The probability of a byte behind a context, of which the last `order` - 1 bytes count."""
        found = 1 / BYTES
        for length in range(min(self.order, len(context) + 1)):
            counts = self._counts.get(context[len(context) - length :])
            if counts is None:
                break  # a longer context was not seen either
            total, kinds = sum(counts.values()), len(counts)
            found = (counts.get(byte, 0) + kinds * found) / (total + kinds)
        return found

    def bits(self, windows: Iterable[tuple[bytes, int]]) -> float:
        """Mean bits of a byte, over windows: the bytes of each, and how many of them at its start
        are given.

        Raises:
            ValueError: there is no byte that is not given.
        """
        lost = [
            -math.log2(self.probability(window[:place], window[place]))
            for window, given in windows
            for place in range(given, len(window))
        ]
        if not lost:
            raise ValueError("bits of no byte")
        return math.fsum(lost) / len(lost)


def byte_windows(text: bytes, context: int) -> list[tuple[bytes, int]]:
    """The windows of `evalsuite.workloads.text.windows`, of which the first byte is given."""
    ends = range(context, len(text), context)
    return [(text[end - context : end + 1], 1) for end in ends]


def token_windows(text: bytes, lengths: Sequence[int], context: int) -> list[tuple[bytes, int]]:
    """The bytes behind the windows of tokens, of which the first token is given; `lengths` are
    those of the tokens.
    """
    starts = [0, *accumulate(lengths)]
    ends = range(context, len(lengths), context)
    return [(text[starts[end - context] : starts[end + 1]], lengths[end - context]) for end in ends]


def compressed(train: bytes, text: bytes) -> float:
    """Bits per byte that `xz -9e` needs for a text behind the text of training."""
    sizes = [
        len(lzma.compress(each, preset=9 | lzma.PRESET_EXTREME)) for each in (train, train + text)
    ]
    return 8 * (sizes[1] - sizes[0]) / len(text)


def _of_text() -> Parts:
    from evalsuite.workloads.text import CONTEXT, TextGPT, corpus

    train, _, *parts = corpus()
    return train, parts, [byte_windows(part, CONTEXT) for part in parts], TextGPT().fingerprint()


def _of_pydoc() -> Parts:
    from evalsuite.workloads.pydoc import PydocGPT, corpus, encoded

    train, _, *parts = corpus()
    pydoc_gpt = PydocGPT()
    lengths = [encoded(part, pydoc_gpt.vocabulary)[1].tolist() for part in parts]
    windows = [
        token_windows(part, each, pydoc_gpt.context)
        for part, each in zip(parts, lengths, strict=True)
    ]
    return train, parts, windows, pydoc_gpt.fingerprint()


_PARTS = {"text-gpt": _of_text, "pydoc-gpt": _of_pydoc}


def main(workload: str) -> None:
    """Bits per byte by order, on the validation text, by which an order is chosen, and on the
    test text; then xz's.
    """
    train, texts, windows, fingerprint = _PARTS[workload]()
    print("baseline,validation,test,fingerprint")
    for order in range(1, 8):
        model = Ngrams(train, order)
        bits = ",".join(f"{model.bits(part):.4f}" for part in windows)
        print(f"{order}-grams,{bits},{fingerprint}", flush=True)
    print(f"xz -9e,{','.join(f'{compressed(train, text):.4f}' for text in texts)},{fingerprint}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Bits per byte of n-grams and xz where a GPT is tested."
    )
    parser.add_argument("workload", choices=sorted(_PARTS), nargs="?", default="text-gpt")
    main(parser.parse_args().workload)

"""What studies are held against: n-grams by hand and against a sum over all bytes, and the power
of a paired t test.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import chi, norm, t

from benchmarks.detectable import ENDPOINTS, REPORTS, Asked, detectable, gaps, table
from benchmarks.ngram import Ngrams, byte_windows, compressed, token_windows
from evalsuite.workloads.text import windows as tensor_windows


def test_ngrams_by_hand() -> None:
    """Of "abab": after nothing a and b twice each; after a always b, twice; after b only a,
    once.
    """
    model = Ngrams(b"abab", 2)
    unigram = (2 + 2 / 256) / 6
    assert model.probability(b"", ord("a")) == pytest.approx(unigram)
    assert model.probability(b"a", ord("b")) == pytest.approx((2 + unigram) / 3)
    assert model.probability(b"xb", ord("a")) == pytest.approx((1 + unigram) / 2)
    # Never seen: the shorter context.
    assert model.probability(b"z", ord("a")) == pytest.approx(unigram)
    first, second = model.probability(b"a", ord("b")), model.probability(b"ab", ord("z"))
    assert model.bits([(b"abz", 1)]) == pytest.approx(-(math.log2(first) + math.log2(second)) / 2)
    with pytest.raises(ValueError, match="order must be >= 1"):
        Ngrams(b"abab", 0)
    with pytest.raises(ValueError, match="bits of no byte"):
        model.bits([])


@pytest.mark.parametrize("context", [b"", b"t", b"th", b"xyz", b"in the"])
def test_ngrams_are_a_distribution(context: bytes) -> None:
    model = Ngrams(b"in the beginning there was the thing in itself", 4)
    assert math.fsum(model.probability(context, byte) for byte in range(256)) == pytest.approx(1.0)


@pytest.mark.parametrize("length", [8, 9, 15, 16, 17])
def test_windows_are_those_that_the_network_is_tested_on(length: int) -> None:
    text = bytes(range(length))
    split = tensor_windows(text, 4)
    wanted = [
        (bytes(a.tolist()), bytes(b.tolist()))
        for a, b in zip(split.inputs, split.targets, strict=True)
    ]
    assert [(window[:-1], window[given:]) for window, given in byte_windows(text, 4)] == wanted
    assert token_windows(text, [1] * length, 4) == byte_windows(text, 4)


def test_windows_of_tokens_are_the_bytes_behind_them() -> None:
    """Tokens "ab", "c", "def", "g", "hi": two windows of two, and the token after each."""
    assert token_windows(b"abcdefghi", [2, 1, 3, 1, 2], 2) == [(b"abcdef", 2), (b"defghi", 3)]


def test_xz_knows_the_text_of_training() -> None:
    text = bytes(np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8))
    assert compressed(b"-", text) > 8
    assert compressed(text, text) < 0.2


@pytest.mark.parametrize(("seeds", "level"), [(5, 0.05), (5, 0.05 / 7), (10, 0.05), (3, 0.05)])
def test_a_detectable_difference_has_the_power_that_was_asked(seeds: int, level: float) -> None:
    """Integrated over what the seeds' deviation may be: the chance that |mean| is beyond its
    critical value.
    """
    size = detectable(0.02, seeds, level)
    critical, shift = t.ppf(1 - level / 2, seeds - 1), math.sqrt(seeds) * size / 0.02

    def resolved(spread: float) -> float:
        beyond = critical * spread / math.sqrt(seeds - 1)
        return float(
            chi.pdf(spread, seeds - 1) * (norm.sf(beyond - shift) + norm.cdf(-beyond - shift))
        )

    assert quad(resolved, 0, np.inf)[0] == pytest.approx(0.8, abs=1e-6)
    with pytest.raises(ValueError, match="no such test"):
        detectable(0.0, seeds, level)


def test_contrasts_are_paired_means_of_whole_endpoints() -> None:
    asked = Asked("x", "study", ("a", "b"), "accuracy", 0.01, "points")
    values = {
        ("gelu", "a"): (0.5, 0.6),
        ("gelu", "b"): (0.7, 0.8),
        ("annealed", "a"): (0.6, 0.6),
        ("annealed", "b"): (0.8,),
    }
    rows = [
        {
            "workload": "w",
            "variant": variant,
            "seed": seed,
            "step": step,
            "metric": "accuracy",
            "setting": "",
            "sample": np.nan,
            "value": value,
        }
        for (variant, step), every in values.items()
        for seed, value in enumerate(every)
    ]
    # Seed 1 lacks a step of one arm.
    assert gaps(pd.DataFrame(rows), asked) == {"w": [pytest.approx(0.1)]}


@pytest.mark.slow
def test_the_protocol_has_the_table_of_the_committed_rows() -> None:
    protocol = (REPORTS / "PROTOCOL.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in protocol
    assert {each.study for each in ENDPOINTS} <= {each.name for each in REPORTS.iterdir()}

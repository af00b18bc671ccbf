"""Provide what pretrained.yaml names: a pretrained recogniser of printed words, words for it, and
the task.

The network is PP-OCRv6's small recogniser (13 GELUs by Erf, 18,708 characters) as the package
rapidocr ships it (Apache-2.0). The words are those of the documentation of Python's built-in names,
printed in Pillow's own font with noise of several strengths; no word is both trained on and tested
on.
"""

from __future__ import annotations

import builtins
import copy
import hashlib
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import torch
from onnx.utils import Extractor
from onnx.version_converter import convert_version
from onnxruntime.tools.onnx_model_utils import make_dim_param_fixed
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.nn import functional

from evalsuite import Data, Direction, Metric, Split
from evalsuite.contract import IGNORED
from opgraph.from_onnx import from_onnx

HEIGHT, WIDTH = 48, 160  # as the network takes a line, and as much of it as a word needs
LETTERS = 3, 9  # of a word
PARTS = 256, 32, 64, 256  # words to train on, to calibrate and to validate by, and to test on
NOISE = 90.0  # the greatest deviation, in grey levels


@dataclass(frozen=True)
class Words:
    """Reading words by connectionist temporal classification (Graves et al. 2006): class 0 says
    nothing.

    Outputs are (samples, places, classes), targets (samples, letters), filled up with `IGNORED`.
    """

    version: ClassVar[str] = "1"
    asks: ClassVar[str] = ""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean over words of a letter's negative log-likelihood, 0-d. Outputs are (words,
        places, letters), targets (words, length).
        """
        places = torch.full((len(outputs),), outputs.shape[1])
        letters = (targets != IGNORED).sum(1)
        return functional.ctc_loss(
            outputs.log_softmax(-1).transpose(0, 1), targets.clamp(min=0), places, letters
        )

    def imitation(
        self, outputs: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """The mean over places of the divergence from the teacher's outputs, (words, places,
        letters): 0-d.
        """
        reading, wanted = (
            outputs.log_softmax(-1).flatten(0, 1),
            teacher.detach().log_softmax(-1).flatten(0, 1),
        )
        return functional.kl_div(reading, wanted, reduction="batchmean", log_target=True)

    def decisions(self, outputs: torch.Tensor) -> torch.Tensor:
        """The class at each place, (samples, places)."""
        return outputs.argmax(-1)

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sums, float64 (5,): letters, letters that would have to be changed, words, words that are
        right, and the words' loss.
        """
        counts = []
        for places, word in zip(self.decisions(outputs).tolist(), targets.tolist(), strict=True):
            read = [
                place
                for place, before in zip(places, [0, *places], strict=False)
                if place not in (0, before)
            ]
            wanted = [letter for letter in word if letter != IGNORED]
            counts.append((len(wanted), _edits(read, wanted), 1, read == wanted))
        sums = torch.tensor(counts, dtype=torch.float64).sum(0)
        return torch.cat([sums, self.loss(outputs, targets).double().reshape(1) * len(targets)])

    def metrics(self, tally: torch.Tensor) -> list[Metric]:
        """The metrics of a tally (5,): the share of letters that need no change, the share of words
        that are right, the loss.
        """
        letters, edits, words, right, lost = tally.tolist()
        return [
            Metric("letter_accuracy", 1 - edits / letters, "fraction", Direction.HIGHER),
            Metric("word_accuracy", right / words, "fraction", Direction.HIGHER),
            Metric("loss", lost / words, "nats", Direction.LOWER),
        ]


def network() -> nn.Module:
    """(samples, 3, 48, 160) in [-1, 1] to logits (samples, 20, 18710)."""
    return copy.deepcopy(_network())


def words() -> Data:
    """Pictures of words, (samples, 3, 48, 160) in [-1, 1], and their letters."""
    known = {letter: number for number, letter in enumerate(_letters(), start=1)}
    chance = np.random.default_rng(0)
    vocabulary = [word for word in _vocabulary() if known.keys() >= set(word)]
    chosen = [vocabulary[place] for place in chance.permutation(len(vocabulary))[: sum(PARTS)]]
    pictures = np.stack([_printed(word, chance) for word in chosen])
    letters = np.full((len(chosen), LETTERS[1]), IGNORED, dtype=np.int64)
    for row, word in zip(letters, chosen, strict=True):
        row[: len(word)] = [known[letter] for letter in word]
    digest = hashlib.sha256(pictures.tobytes() + letters.tobytes()).hexdigest()
    splits, start = [], 0
    for count in PARTS:
        part = slice(start, start := start + count)
        splits.append(
            Split(torch.from_numpy(pictures[part]), torch.from_numpy(letters[part]), Words())
        )
    train, calibration, validation, test = splits
    return Data(train, calibration, validation, test, (-1.0, 1.0), len(known) + 1, digest)


@cache
def _model() -> onnx.ModelProto:
    spec = find_spec("rapidocr")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "the package rapidocr is missing: pip install --no-deps rapidocr==3.10.0"
        )
    return onnx.load(str(Path(spec.origin).parent / "models/PP-OCRv6_rec_small.onnx"))


def _letters() -> list[str]:
    held = next(
        metadata_prop.value
        for metadata_prop in _model().metadata_props
        if metadata_prop.key == "character"
    )
    return [*held.split("\n"), " "]


@cache
def _network() -> nn.Module:
    model = copy.deepcopy(_model())
    make_dim_param_fixed(model.graph, "DynamicDimension.1", WIDTH)
    model = onnx.shape_inference.infer_shapes(convert_version(model, 13))
    # Behind the last layer the file has a softmax, which the loss brings along.
    last = next(node for node in reversed(model.graph.node) if node.op_type == "Softmax")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "logits.onnx"
        onnx.save(Extractor(model).extract_model(["x"], [last.input[0]]), str(file))
        return from_onnx(
            file, torch.rand(2, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
        )


def _vocabulary() -> list[str]:
    texts = (str(getattr(builtins, name).__doc__) for name in dir(builtins))
    lengths = range(LETTERS[0], LETTERS[1] + 1)
    return sorted(
        {word for text in texts for word in re.findall(r"[A-Za-z]+", text) if len(word) in lengths}
    )


def _printed(word: str, chance: np.random.Generator) -> np.ndarray[Any, Any]:
    """Black on white with noise, (3, 48, 160) in [-1, 1]."""
    picture = Image.new("L", (WIDTH, HEIGHT), 255)
    font = ImageFont.load_default(size=28)
    ImageDraw.Draw(picture).text((4, HEIGHT // 2), word, fill=0, font=font, anchor="lm")
    grey = np.asarray(picture, dtype=np.float32) + chance.normal(
        0, chance.uniform(0, NOISE), (HEIGHT, WIDTH)
    )
    return np.repeat(np.clip(grey / 127.5 - 1, -1, 1).astype(np.float32)[None], 3, axis=0)


def _edits(read: list[int], wanted: list[int]) -> int:
    """How many letters must be changed, left out or put in (Levenshtein)."""
    row = list(range(len(wanted) + 1))
    for number, letter in enumerate(read, start=1):
        before, row = row, [number]
        for place, other in enumerate(wanted, start=1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != other)))
    return row[-1]

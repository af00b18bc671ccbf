"""Tasks: what a model is for. One file each, found by the entry-point group `evalsuite.tasks`."""

from __future__ import annotations

from evalsuite.tasks.classification import Classification, TokenClassification
from evalsuite.tasks.embedding import Embedding
from evalsuite.tasks.heads import Heads
from evalsuite.tasks.language_model import LanguageModel
from evalsuite.tasks.multi_label import MultiLabel
from evalsuite.tasks.regression import Regression
from evalsuite.tasks.score import Score, score
from evalsuite.tasks.segmentation import Segmentation

__all__ = [
    "Classification",
    "Embedding",
    "Heads",
    "LanguageModel",
    "MultiLabel",
    "Regression",
    "Score",
    "Segmentation",
    "TokenClassification",
    "score",
]

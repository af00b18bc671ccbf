"""scikit-learn's digits, read as this module is loaded: the server that jobs are forked from has
them for all.

To read them from text takes longer than many a job.
"""

from __future__ import annotations

from sklearn.datasets import load_digits

_FOUND = load_digits()
IMAGES, CLASSES = _FOUND.data, _FOUND.target
"""(1797, 64) float64 of 0 to 16, and (1797,) int64."""
IMAGES.flags.writeable = CLASSES.flags.writeable = False

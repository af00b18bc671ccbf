"""Loaded by the server that jobs are forked from: an export and a split, so that no job must
prepare for its first one.

The exporter builds a registry of its operators, and scikit-learn looks for plugins among all that
is installed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from evalsuite.workloads.workload import partition
from opgraph.deployment import export_onnx

torch.set_num_threads(1)  # A pool of threads would not survive the fork.
with tempfile.TemporaryDirectory() as _folder:
    export_onnx(nn.Sequential(nn.Linear(2, 2), nn.GELU()), (2,), Path(_folder) / "warm.onnx")
partition(np.arange(8) % 2, [2])

"""Loaded by the server that jobs are forked from: one export, so that no job must build the exporter's registry."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from evalsuite.deployment import export_onnx

torch.set_num_threads(1)  # A pool of threads would not survive the fork.
with tempfile.TemporaryDirectory() as _folder:
    export_onnx(nn.Sequential(nn.Linear(2, 2), nn.GELU()), (2,), Path(_folder) / "warm.onnx")

"""The public names, and the modules that define them."""

__version__: str
from .cascade import verify as verify
from .certificate import SwapBounds as SwapBounds
from .certificate import SwapCertificate as SwapCertificate
from .certificate import UnitBounds as UnitBounds
from .certificate import certify_swap as certify_swap
from .certificate import preactivation_bounds as preactivation_bounds
from .falsifier import falsify as falsify
from .falsifier import float32_box as float32_box
from .falsifier import margin as margin
from .onnx_reader import read_onnx as read_onnx
from .properties import Property as Property
from .properties import Verdict as Verdict
from .question import Answer as Answer
from .question import Question as Question
from .question import Verification as Verification
from .relaxations import SIGMOID as SIGMOID
from .relaxations import SOFTPLUS as SOFTPLUS
from .relaxations import TANH as TANH
from .relaxations import envelope as envelope
from .relaxations import gated as gated
from .relaxations import interval as interval
from .relaxations import product as product
from .relaxations import relax as relax
from .vnnlib import read_vnnlib as read_vnnlib
from .witness import Replay as Replay

"""Names that the suite gives on from its libraries, for `from evalsuite import ...`."""

from lambda_gelu.activations import (
    GELU,
    LAMBDA_GELU,
    RELU,
    Activation,
    Found,
    GatedUnit,
    Hardenable,
    LambdaGELU,
    Swish,
    census,
    matched_hidden,
    replace,
)
from lambda_gelu.activations.gelu_tanh import GELU_TANH
from lambda_gelu.activations.relu6 import RELU6, clip
from lambda_gelu.activations.runs import Call, census_of_run
from lambda_gelu.activations.silu import SILU
from lambda_gelu.activations.traits import Scalar, unit_hardness
from lambda_gelu.folding import fold_hardness
from lambda_gelu.functional import redirect_calls
from lambda_gelu.harden_network import harden
from lambda_gelu.hardening import Hardening
from lambda_gelu.parameters import parameter_groups
from lambda_gelu.repair import distill_loss, recalibrate_batchnorm, refit, refit_bias
from lambda_gelu.schedules import target_for, target_for_certificate
from lambda_gelu.swapping import expose, swap, swap_to_relu
from netverify.cascade import decide, verify
from netverify.certificate import (
    SwapBounds,
    SwapCertificate,
    UnitBounds,
    certify_swap,
    preactivation_bounds,
)
from netverify.difference import with_difference
from netverify.dual import Carried, Dual, Parts, dual_of_forms
from netverify.falsifier import Attack, falsify, float32_box, margin, violated
from netverify.graph import Graph, Pointwise
from netverify.integer_proofs import INTEGER_PROOF, IntegerProofError, check_integer_proof
from netverify.onnx_reader import read_onnx
from netverify.phases import Branching
from netverify.proofs import ProofError, check_proof
from netverify.propagation import Propagation
from netverify.question import Answer, Question, Verification
from netverify.relaxations import SIGMOID, SOFTPLUS, TANH, envelope, gated, interval, product, relax
from netverify.smooth_proofs import (
    SMOOTH_PROOF,
    SmoothBoundError,
    SmoothProofError,
    check_smooth_proof,
    read_smooth_network,
    recompute_smooth_proof,
)
from netverify.specification import Box, Case, Specification, specification_of
from netverify.vnnlib import read_vnnlib
from netverify.witness import Replay, Witness, Witnesses
from opgraph.deployment import export_onnx, feed, graph_digest, input_names, run_onnx
from opgraph.errors import OwnError
from opgraph.from_onnx import from_onnx
from opgraph.inputs import Inputs, leaves, mapped
from opgraph.layers import FileLayer, in_layers, layers_in_file
from opgraph.modules import in_modules
from opgraph.onnx_network import OnnxNetwork, copy_onnx, open_onnx

__all__ = [
    "GELU",
    "GELU_TANH",
    "INTEGER_PROOF",
    "LAMBDA_GELU",
    "RELU",
    "RELU6",
    "SIGMOID",
    "SILU",
    "SMOOTH_PROOF",
    "SOFTPLUS",
    "TANH",
    "Activation",
    "Answer",
    "Attack",
    "Box",
    "Branching",
    "Call",
    "Carried",
    "Case",
    "Dual",
    "FileLayer",
    "Found",
    "GatedUnit",
    "Graph",
    "Hardenable",
    "Hardening",
    "Inputs",
    "IntegerProofError",
    "LambdaGELU",
    "OnnxNetwork",
    "OwnError",
    "Parts",
    "Pointwise",
    "ProofError",
    "Propagation",
    "Question",
    "Replay",
    "Scalar",
    "SmoothBoundError",
    "SmoothProofError",
    "Specification",
    "SwapBounds",
    "SwapCertificate",
    "Swish",
    "UnitBounds",
    "Verification",
    "Witness",
    "Witnesses",
    "census",
    "census_of_run",
    "certify_swap",
    "check_integer_proof",
    "check_proof",
    "check_smooth_proof",
    "clip",
    "copy_onnx",
    "decide",
    "distill_loss",
    "dual_of_forms",
    "envelope",
    "export_onnx",
    "expose",
    "falsify",
    "feed",
    "float32_box",
    "fold_hardness",
    "from_onnx",
    "gated",
    "graph_digest",
    "harden",
    "in_layers",
    "in_modules",
    "input_names",
    "interval",
    "layers_in_file",
    "leaves",
    "mapped",
    "margin",
    "matched_hidden",
    "open_onnx",
    "parameter_groups",
    "preactivation_bounds",
    "product",
    "read_onnx",
    "read_smooth_network",
    "read_vnnlib",
    "recalibrate_batchnorm",
    "recompute_smooth_proof",
    "redirect_calls",
    "refit",
    "refit_bias",
    "relax",
    "replace",
    "run_onnx",
    "specification_of",
    "swap",
    "swap_to_relu",
    "target_for",
    "target_for_certificate",
    "unit_hardness",
    "verify",
    "violated",
    "with_difference",
]

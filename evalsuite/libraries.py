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
    "LAMBDA_GELU",
    "RELU",
    "RELU6",
    "SILU",
    "Activation",
    "Call",
    "FileLayer",
    "Found",
    "GatedUnit",
    "Hardenable",
    "Hardening",
    "Inputs",
    "LambdaGELU",
    "OnnxNetwork",
    "OwnError",
    "Scalar",
    "Swish",
    "census",
    "census_of_run",
    "clip",
    "copy_onnx",
    "distill_loss",
    "export_onnx",
    "expose",
    "feed",
    "fold_hardness",
    "from_onnx",
    "graph_digest",
    "harden",
    "in_layers",
    "in_modules",
    "input_names",
    "layers_in_file",
    "leaves",
    "mapped",
    "matched_hidden",
    "open_onnx",
    "parameter_groups",
    "recalibrate_batchnorm",
    "redirect_calls",
    "refit",
    "refit_bias",
    "replace",
    "run_onnx",
    "swap",
    "swap_to_relu",
    "target_for",
    "target_for_certificate",
    "unit_hardness",
]

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

__all__ = [
    "GELU",
    "GELU_TANH",
    "LAMBDA_GELU",
    "RELU",
    "RELU6",
    "SILU",
    "Activation",
    "Call",
    "Found",
    "GatedUnit",
    "Hardenable",
    "Hardening",
    "LambdaGELU",
    "Scalar",
    "Swish",
    "census",
    "census_of_run",
    "clip",
    "distill_loss",
    "expose",
    "fold_hardness",
    "harden",
    "matched_hidden",
    "parameter_groups",
    "recalibrate_batchnorm",
    "redirect_calls",
    "refit",
    "refit_bias",
    "replace",
    "swap",
    "swap_to_relu",
    "target_for",
    "target_for_certificate",
    "unit_hardness",
]

"""evalsuite: what does replacing GELU by ReLU buy, and cost, downstream?

The public names, all that a plugin may import. They load on first use: `import evalsuite` itself imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalsuite.activations import (
        GATED,
        GELU,
        LAMBDA_GELU,
        RELU,
        Activation,
        Found,
        Gated,
        GatedUnit,
        Hardenable,
        LambdaGELU,
        Swish,
        census,
        matched_hidden,
        replace,
    )
    from evalsuite.activations.relu6 import RELU6, clip
    from evalsuite.activations.runs import Call, Use, census_of_operators, census_of_run
    from evalsuite.activations.traits import Scalar, unit_hardness
    from evalsuite.certificate import SwapBounds, SwapCertificate, UnitBounds, certify_swap, preactivation_bounds
    from evalsuite.contract import (
        IGNORED,
        Bench,
        Data,
        Direction,
        FineTune,
        Metric,
        Network,
        Outcome,
        Property,
        Split,
        Stage,
        Task,
        Unsupported,
        Verdict,
    )
    from evalsuite.deployment import Latency, compare_latency, export_onnx, run_onnx
    from evalsuite.graph.layers import in_layers
    from evalsuite.onnx_network import OnnxNetwork, copy_onnx, is_file, open_onnx, output_of, parameters_of, running
    from evalsuite.own.calling import Assessment, assess
    from evalsuite.own.decorated import workload
    from evalsuite.own.saving import load_own
    from evalsuite.references import OwnError
    from evalsuite.relaxations import (
        MISH,
        SIGMOID,
        SOFTPLUS,
        TANH,
        Envelope,
        Lines,
        Planes,
        envelope,
        gated,
        interval,
        product,
        relax,
    )
    from evalsuite.reluize.folding import fold_hardness
    from evalsuite.reluize.functional import redirect_calls
    from evalsuite.reluize.harden import harden
    from evalsuite.reluize.hardening import Hardening
    from evalsuite.reluize.optimizer import parameter_groups
    from evalsuite.reluize.profile import HardnessProfile
    from evalsuite.reluize.repair import distill_loss, recalibrate_batchnorm, refit, refit_bias
    from evalsuite.reluize.schedules import target_for, target_for_certificate, target_for_distance
    from evalsuite.reluize.swap import check_executes, check_swapped, expose, swap, swap_to_relu
    from evalsuite.resizing import load_module, save_module
    from evalsuite.samples import Inputs, Samples, Several, batch_of, leaves, mapped, pieces
    from evalsuite.tasks import (
        Classification,
        Embedding,
        LanguageModel,
        MultiLabel,
        Regression,
        Score,
        TokenClassification,
        score,
    )
    from evalsuite.tasks.score import changes, mean_loss, scores, worsening
    from evalsuite.variants.swapped import Swapped
    from evalsuite.variants.trained import Trained
    from evalsuite.variants.variant import Made, Setup, Variant, train
    from evalsuite.verification import (
        Answer,
        Replay,
        Verification,
        falsify,
        float32_box,
        margin,
        read_onnx,
        read_vnnlib,
        verify,
    )
    from evalsuite.verification.cascade import decide
    from evalsuite.verification.falsifier import violated
    from evalsuite.verification.graph import Graph, Pointwise
    from evalsuite.verification.of_network import graph_of_network
    from evalsuite.verification.proofs import ProofError, Statement, check_proof
    from evalsuite.verification.propagation import Propagation
    from evalsuite.verification.specification import specification_of
    from evalsuite.workloads.layers import convolution, mlp
    from evalsuite.workloads.options import Budget
    from evalsuite.workloads.workload import Workload, labelled, packaged_file, partition, sha256, split

_HOME = {
    "evalsuite.activations": (
        "Activation",
        "Found",
        "GATED",
        "GELU",
        "Gated",
        "GatedUnit",
        "Hardenable",
        "LAMBDA_GELU",
        "LambdaGELU",
        "RELU",
        "Swish",
        "census",
        "matched_hidden",
        "replace",
    ),
    "evalsuite.activations.relu6": ("RELU6", "clip"),
    "evalsuite.activations.runs": (
        "Call",
        "Use",
        "census_of_operators",
        "census_of_run",
    ),
    "evalsuite.activations.traits": ("Scalar", "unit_hardness"),
    "evalsuite.certificate": ("SwapBounds", "SwapCertificate", "UnitBounds", "certify_swap", "preactivation_bounds"),
    "evalsuite.contract": (
        "Bench",
        "Data",
        "Direction",
        "FineTune",
        "IGNORED",
        "Metric",
        "Network",
        "Outcome",
        "Property",
        "Split",
        "Stage",
        "Task",
        "Unsupported",
        "Verdict",
    ),
    "evalsuite.deployment": (
        "Latency",
        "compare_latency",
        "export_onnx",
        "run_onnx",
    ),
    "evalsuite.own.saving": ("load_own",),
    "evalsuite.own.calling": ("Assessment", "assess"),
    "evalsuite.own.decorated": ("workload",),
    "evalsuite.references": ("OwnError",),
    "evalsuite.relaxations": (
        "MISH",
        "SIGMOID",
        "SOFTPLUS",
        "TANH",
        "Envelope",
        "Lines",
        "Planes",
        "envelope",
        "gated",
        "interval",
        "product",
        "relax",
    ),
    "evalsuite.reluize.folding": ("fold_hardness",),
    "evalsuite.reluize.functional": ("redirect_calls",),
    "evalsuite.reluize.harden": ("harden",),
    "evalsuite.reluize.hardening": ("Hardening",),
    "evalsuite.reluize.optimizer": ("parameter_groups",),
    "evalsuite.reluize.profile": ("HardnessProfile",),
    "evalsuite.reluize.repair": (
        "distill_loss",
        "recalibrate_batchnorm",
        "refit",
        "refit_bias",
    ),
    "evalsuite.reluize.schedules": (
        "target_for",
        "target_for_certificate",
        "target_for_distance",
    ),
    "evalsuite.reluize.swap": ("check_executes", "check_swapped", "expose", "swap", "swap_to_relu"),
    "evalsuite.resizing": ("load_module", "save_module"),
    "evalsuite.tasks": (
        "Classification",
        "Embedding",
        "LanguageModel",
        "MultiLabel",
        "Regression",
        "Score",
        "TokenClassification",
        "score",
    ),
    "evalsuite.graph.layers": ("in_layers",),
    "evalsuite.onnx_network": (
        "OnnxNetwork",
        "copy_onnx",
        "is_file",
        "open_onnx",
        "output_of",
        "parameters_of",
        "running",
    ),
    "evalsuite.samples": (
        "Inputs",
        "Samples",
        "Several",
        "batch_of",
        "leaves",
        "mapped",
        "pieces",
    ),
    "evalsuite.tasks.score": (
        "changes",
        "mean_loss",
        "scores",
        "worsening",
    ),
    "evalsuite.verification.cascade": ("decide",),
    "evalsuite.verification.falsifier": ("violated",),
    "evalsuite.verification.graph": (
        "Graph",
        "Pointwise",
    ),
    "evalsuite.verification.of_network": ("graph_of_network",),
    "evalsuite.verification.propagation": ("Propagation",),
    "evalsuite.verification.specification": ("specification_of",),
    "evalsuite.variants.swapped": ("Swapped",),
    "evalsuite.variants.trained": ("Trained",),
    "evalsuite.variants.variant": ("Made", "Setup", "Variant", "train"),
    "evalsuite.verification": (
        "Answer",
        "Replay",
        "Verification",
        "falsify",
        "float32_box",
        "margin",
        "read_onnx",
        "read_vnnlib",
        "verify",
    ),
    "evalsuite.verification.proofs": ("ProofError", "Statement", "check_proof"),
    "evalsuite.workloads.layers": ("convolution", "mlp"),
    "evalsuite.workloads.options": ("Budget",),
    "evalsuite.workloads.workload": ("Workload", "labelled", "packaged_file", "partition", "sha256", "split"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "GATED",
    "GELU",
    "IGNORED",
    "LAMBDA_GELU",
    "MISH",
    "RELU",
    "RELU6",
    "SIGMOID",
    "SOFTPLUS",
    "TANH",
    "Activation",
    "Answer",
    "Assessment",
    "Bench",
    "Budget",
    "Call",
    "Classification",
    "Data",
    "Direction",
    "Embedding",
    "Envelope",
    "FineTune",
    "Found",
    "Gated",
    "GatedUnit",
    "Graph",
    "Hardenable",
    "Hardening",
    "HardnessProfile",
    "Inputs",
    "LambdaGELU",
    "LanguageModel",
    "Latency",
    "Lines",
    "Made",
    "Metric",
    "MultiLabel",
    "Network",
    "OnnxNetwork",
    "Outcome",
    "OwnError",
    "Planes",
    "Pointwise",
    "ProofError",
    "Propagation",
    "Property",
    "Regression",
    "Replay",
    "Samples",
    "Scalar",
    "Score",
    "Setup",
    "Several",
    "Split",
    "Stage",
    "Statement",
    "SwapBounds",
    "SwapCertificate",
    "Swapped",
    "Swish",
    "Task",
    "TokenClassification",
    "Trained",
    "UnitBounds",
    "Unsupported",
    "Use",
    "Variant",
    "Verdict",
    "Verification",
    "Workload",
    "assess",
    "batch_of",
    "census",
    "census_of_operators",
    "census_of_run",
    "certify_swap",
    "changes",
    "check_executes",
    "check_proof",
    "check_swapped",
    "clip",
    "compare_latency",
    "convolution",
    "copy_onnx",
    "decide",
    "distill_loss",
    "envelope",
    "export_onnx",
    "expose",
    "falsify",
    "float32_box",
    "fold_hardness",
    "gated",
    "graph_of_network",
    "harden",
    "in_layers",
    "interval",
    "is_file",
    "labelled",
    "leaves",
    "load_module",
    "load_own",
    "mapped",
    "margin",
    "matched_hidden",
    "mean_loss",
    "mlp",
    "open_onnx",
    "output_of",
    "packaged_file",
    "parameter_groups",
    "parameters_of",
    "partition",
    "pieces",
    "preactivation_bounds",
    "product",
    "read_onnx",
    "read_vnnlib",
    "recalibrate_batchnorm",
    "redirect_calls",
    "refit",
    "refit_bias",
    "relax",
    "replace",
    "run_onnx",
    "running",
    "save_module",
    "score",
    "scores",
    "sha256",
    "specification_of",
    "split",
    "swap",
    "swap_to_relu",
    "target_for",
    "target_for_certificate",
    "target_for_distance",
    "train",
    "unit_hardness",
    "verify",
    "violated",
    "workload",
    "worsening",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'evalsuite' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)

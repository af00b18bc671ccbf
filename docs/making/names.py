"""The public names by topic, as docs/reference.md lists them: what each is, and where its example stands.

A docstring ends with `Example: docs/PAGE.md#section`. Nothing is imported for that: the stub says where a name is from.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FIRST = "first"  # the names to learn first, which stand under their own topics too
TOPICS = {
    FIRST: "assess workload run harden swap_to_relu census certify_swap verify check_proof export_onnx Network Bench "
    "Outcome Metric Unsupported",
    "measuring": "assess workload run load_own OwnError data_folder",
    "replacing": "harden Hardening parameter_groups target_for target_for_certificate swap_to_relu swap replace expose "
    "redirect_calls Call census Found census_of_run refit_bias refit recalibrate_batchnorm distill_loss fold_hardness "
    "save_module load_module",
    "activations": "Activation Scalar unit_hardness GELU GELU_TANH SILU RELU RELU6 clip LAMBDA_GELU SIGMOID TANH "
    "SOFTPLUS Hardenable LambdaGELU Swish GatedUnit matched_hidden",
    "stages": "Stage Network Bench Data Split Outcome Metric Direction Verdict Property Unsupported Timed FineTune",
    "tasks": "Inputs Samples Several leaves mapped pieces batch_of Task Classification TokenClassification MultiLabel "
    "Regression LanguageModel Embedding IGNORED score scores Score mean_loss changes worsening",
    "workloads": "Workload Budget split partition labelled packaged_file sha256 mlp convolution",
    "variants": "Variant Setup train Made Trained Swapped",
    "onnx": "export_onnx export_network open_onnx run_onnx feed input_names from_onnx OnnxNetwork copy_onnx running "
    "is_file output_of parameters_of in_layers in_modules",
    "latency": "compare_latency relative_latency no_relative_latency timing_inputs TIMED_BATCHES check_yardstick "
    "with_yardstick yardstick_graph yardstick_reason",
    "relaxations": "interval relax envelope product gated",
    "certificates": "certify_swap SwapCertificate SwapBounds preactivation_bounds UnitBounds",
    "verification": "verify Verification Answer decide read_onnx read_vnnlib Specification specification_of Graph "
    "Pointwise graph_of_network with_difference Propagation falsify float32_box margin violated Replay subjects "
    "Subject write_counterexamples counterexample_pictures",
    "searching": "Branching Dual dual_of_forms Parts Carried",
    "proofs": "check_proof ProofError check_smooth_proof recompute_smooth_proof read_smooth_network SmoothProofError "
    "SmoothBoundError SMOOTH_PROOF check_integer_proof IntegerProofError INTEGER_PROOF",
    "sections": "Section Part Run Measured Record Finding Endpoint Measure Evidence Contrast first_step paired_test "
    "mean_test Headline Picture Screen parse_setting",
    "statistics": "Estimate mean_interval seed_difference mean_by_seed between holm after_holm SIGNIFICANT",
    "numbers": "Scale scale_of p_text percent_text power_text ranges_text listed labels number_of",
    "tables": "Grid GridCell Sheet StepTable Compared Values common_scale compared_cell compared_columns "
    "estimate_columns interval_text ends_text lacking tally resolved_text where_text",
    "figures": "Drawing panels looks Look drawings_by_group mean_marks layer_marks Layers name_layers shifts "
    "log_heights radius_axis radius_text shifted_radius is_geometric INK_COLOUR MUTED_COLOUR",
    "areas": "Area Point measured_area holm_areas area_text area_columns areas_sheet AREA_SCALE",
}
# Said here in other words than in a docstring that begins with less.
SAID = {
    "Answer": "The answer of a verifier in VNN-COMP's words: sat, unsat, unknown or timeout.",
    "Verification": "The answer about one property, with a witness, the reason and the time that it took.",
    "Specification": "A property as it is read from a VNN-LIB file: boxes of inputs, and outputs that must not occur.",
    "Graph": "A network as a list of operations in float64, read from an ONNX file.",
    "Carried": "Lower bounds of the parts of a box, and the linear functions that gave them.",
    "check_smooth_proof": "What a proof about a smooth network proves, if no number in its file was changed.",
    "recompute_smooth_proof": "What a proof about a smooth network proves, whether or not its file says so itself.",
    "read_smooth_network": "The weights and functions of a smooth network, as the checker of its proofs reads them.",
    "SwapCertificate": "How far the swap to ReLU can move the outputs, proven for boxes of inputs.",
    "UnitBounds": "The path of an activation, and the bounds of its inputs.",
}
EXAMPLE = re.compile(r"Example: (docs/[\w/-]+\.md)#([\w-]+)$")


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public() -> dict[str, str]:
    """Each public name, and the module that the stub takes it from."""
    stub = _parsed(ROOT / "evalsuite" / "__init__.pyi")
    places = [each for each in stub.body if isinstance(each, ast.ImportFrom)]
    return {name.name: f"evalsuite.{each.module or name.name}" for each in places for name in each.names}


def docstring(name: str, module: str) -> str:
    """What a module says of a name that it defines, or takes from another one; of a constant, the text beneath it."""
    place = ROOT / module.replace(".", "/")
    body = _parsed(place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).body
    if module == f"evalsuite.{name}":  # a package that is called
        return docstring(name, f"{module}.calling")
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in [each.id for each in targets if isinstance(each, ast.Name)]:
                return ast.get_docstring(ast.Module([after], [])) or ""
        if isinstance(node, ast.ImportFrom) and node.module and name in [each.name for each in node.names]:
            return docstring(name, node.module)
    return ""


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, in one line."""
    return re.split(r"(?<=[.])\s+(?=[A-Z`\"])", " ".join(inspect.cleandoc(text).split("\n\n")[0].split()))[0]


def section(page: str, slug: str) -> tuple[str, str]:
    """The heading that the site gives this address, and the text under it; empty where there is none."""
    text = (ROOT / page).read_text(encoding="utf-8")
    parts = re.split(r"^(#+) (.+)\n", re.sub(r"^```.*?^```$", _hidden, text, flags=re.M | re.S), flags=re.M)[1:]
    titles = [re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in parts[1::3]]
    if slug not in titles:
        return "", ""
    first = 3 * titles.index(slug)
    after = next((at for at in range(first + 3, len(parts), 3) if len(parts[at]) <= len(parts[first])), len(parts))
    return parts[first + 1], "\n".join(parts[first + 2 : after]).replace("\0", "#")


def _hidden(code: re.Match[str]) -> str:
    """A comment at the beginning of a line of code is no heading."""
    return re.sub(r"^#", "\0", code[0], flags=re.M)


def listed(topic: str) -> list[tuple[str, ...]]:
    """A table of the topic's names: what each is, and where its example is."""
    rows: list[tuple[str, ...]] = [("name", "what it is", "example")]
    for name in TOPICS[topic].split():
        text = docstring(name, public()[name])
        page, slug = found.groups() if (found := EXAMPLE.search(text)) else ("", "")
        link = f"{page.removeprefix('docs/').removeprefix('reference.md')}#{slug}"
        title = "above" if link.startswith("#") and topic != FIRST else section(page, slug)[0]
        rows.append((f"`{name}`", SAID.get(name) or first_sentence(text), f"[{title}]({link})"))
    return rows

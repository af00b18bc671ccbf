"""The public names by topic, as docs/reference.md lists them: what each is, and where its example
stands.

Nothing heavy is imported for that: stubs and import statements say where a name is defined.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import evalsuite
from evalsuite.moved import IN_MODULES, NEW_PLACES

ROOT = Path(__file__).parent.parent.parent
FIRST = "first"  # the names that `evalsuite` itself gives, which stand under their topics too
TOPICS = {
    FIRST: (
        "assess relu_ize run workload read_results load_own OwnError harden swap swap_to_relu"
        " census LambdaGELU fold_hardness Activation certify_swap verify Answer check_proof"
        " export_onnx open_onnx from_onnx Network Bench Data Split Outcome Metric Direction Verdict"
        " Property Unsupported score Capabilities Stage Task Workload Variant Section"
    ),
    "measuring": "assess relu_ize ReluIzed workload run read_results load_own OwnError data_folder",
    "replacing": (
        "harden Hardening parameter_groups target_for target_for_certificate swap_to_relu swap"
        " replace expose redirect_calls Call census Found census_of_run refit_bias refit"
        " recalibrate_batchnorm distill_loss fold_hardness save_module load_module"
    ),
    "activations": (
        "Activation Scalar unit_hardness GELU GELU_TANH SILU RELU RELU6 clip LAMBDA_GELU SIGMOID"
        " TANH SOFTPLUS Hardenable LambdaGELU Swish GatedUnit matched_hidden"
    ),
    "stages": (
        "Stage Network Bench Data Split Outcome Metric Direction Verdict Property Unsupported Timed"
        " Capabilities FineTune"
    ),
    "tasks": (
        "Inputs Samples Several leaves mapped pieces batch_of Task Classification"
        " TokenClassification Segmentation MultiLabel Regression LanguageModel Embedding IGNORED"
        " score scores SampleScores Score mean_loss changes worsening"
    ),
    "workloads": "Workload Budget split partition labelled packaged_file sha256 mlp convolution",
    "variants": "Variant Setup train Made Trained Swapped",
    "onnx": (
        "export_onnx export_network open_onnx run_onnx feed input_names from_onnx OnnxNetwork"
        " copy_onnx running is_file output_of parameters_of in_layers in_modules"
    ),
    "latency": (
        "compare_latency steady_latency Latency Reading graph_digest relative_latency"
        " no_relative_latency timing_inputs untimed_batches TIMED_BATCHES check_yardstick"
        " with_yardstick yardstick_graph yardstick_reason"
    ),
    "relaxations": "interval relax envelope product gated",
    "certificates": "certify_swap SwapCertificate SwapBounds preactivation_bounds UnitBounds",
    "verification": (
        "verify Verification Answer Question decide read_onnx read_vnnlib Specification Case Box"
        " specification_of Graph Pointwise graph_of_network with_difference Propagation"
        " zonotopes_of layers_in_file FileLayer falsify float32_box Attack margin violated Replay"
        " Witness Witnesses subjects Subject write_counterexamples counterexample_pictures"
    ),
    "searching": "Branching Dual dual_of_forms Parts Carried",
    "proofs": (
        "check_proof ProofError check_smooth_proof recompute_smooth_proof read_smooth_network"
        " SmoothProofError SmoothBoundError SMOOTH_PROOF check_integer_proof IntegerProofError"
        " INTEGER_PROOF"
    ),
    "sections": (
        "Section Part Listing RunView Run Measured Record Finding Endpoint Measure Evidence"
        " Contrast first_step paired_test mean_test Headline Form Picture Screen notes"
        " parse_setting"
    ),
    "statistics": (
        "Estimate mean_interval seed_difference mean_by_seed between holm after_holm SIGNIFICANT"
    ),
    "numbers": (
        "Scale scale_of p_text percent_text power_text listed labels grouped sentence number_of"
    ),
    "tables": (
        "Grid GridCell Sheet StepTable Compared Values common_scale compared_cell compared_columns "
        "estimate_columns interval_text lacking"
    ),
    "figures": (
        "Drawing panels looks Look drawings_by_group mean_marks layer_marks Layers name_layers"
        " shifts log_heights radius_axis radius_text shifted_radius is_geometric INK_COLOUR"
        " MUTED_COLOUR"
    ),
    "areas": "Area Point measured_area area_columns areas_sheet AREA_SCALE",
}
# Said here in other words than at the beginning of the docstring, which goes into more detail, or
# is short help.
SAID = {
    "FineTune": (
        "The function by which a stage trains a network further, in the same way for every network."
    ),
    "Hardening": (
        "The hook that raises every lambda to its target; call it before each optimizer step."
    ),
    "Trained": "The variant that is trained with one activation from the first step to the last.",
    "Swapped": (
        "The variant that puts another activation into a trained network: no hardening, no repair."
    ),
    "certify_swap": (
        "Proven bounds of what the swap to ReLU can change in the outputs, for boxes of inputs."
    ),
    "SwapCertificate": (
        "What `certify_swap` proves: how far outputs move, and whether the class stays."
    ),
    "SwapBounds": (
        "What `certify_swap` proves, for one network and many boxes: the network is read once."
    ),
    "UnitBounds": "The path of an activation, and the bounds of its inputs.",
    "Answer": (
        "The answer of a verifier: VNN-COMP's words, and three for what holds of one arithmetic"
        " alone."
    ),
    "Verification": (
        "What `verify` returns: the answer, a witness, the reason, and the time that it took."
    ),
    "Question": (
        "What an engine of `evalsuite verify` is asked: the files, the property and the deadline."
    ),
    "Case": (
        "One way to satisfy a property: constraints on the outputs that hold together, in a box."
    ),
    "Box": "Lower and upper ends of all inputs, as exact fractions.",
    "Attack": "Looks for points that satisfy a property, by projected gradient descent.",
    "decide": "What `verify` decides, for a network and a property that are in memory.",
    "Specification": (
        "A property as it is read from a VNN-LIB file: boxes of inputs, and outputs that must not"
        " occur."
    ),
    "specification_of": "The negation of a property: a verifier looks for inputs that satisfy it.",
    "Graph": "A network as a list of operations in float64, read from an ONNX file.",
    "Pointwise": "An operation of such a graph: one activation, applied to each entry of a value.",
    "graph_of_network": (
        "The ONNX model of a stage's network and its graph, compared with ONNX Runtime and the"
        " module."
    ),
    "with_difference": (
        "The graph of two networks on the same inputs, whose first outputs are their difference."
    ),
    "zonotopes_of": (
        "The function that bounds a network with attention over one box; None of any other network."
    ),
    "FileLayer": (
        "A layer of an ONNX file: a module, numbers that are added, or an activation and its"
        " hardness."
    ),
    "Witness": "Inputs that satisfy a property, and the outputs that ONNX Runtime gives for them.",
    "Witnesses": (
        "Replays points in ONNX Runtime, one at a time, and keeps those that satisfy a property."
    ),
    "violated": "Whether outputs violate their properties, one for each sample, (batch,) bool.",
    "subjects": (
        "What a verifier is asked about the first test samples; of tokens, what follows their"
        " embedding."
    ),
    "Subject": "A network of real inputs, and the properties that are asked of it at a radius.",
    "radius_axis": "Draw a tick at each radius, and as many labels as there is room for.",
    "radius_text": (
        'A radius as text: "1/64", "3/64" or "3/255" where it is such a fraction, else a short'
        " decimal."
    ),
    "shifted_radius": (
        "A function that moves radii aside, so that marks at one radius stand side by side."
    ),
    "Branching": (
        "A search in batches: each part of a box is proven, split at a neuron, or settled where all"
        " are held."
    ),
    "Dual": "The dual problem that bounds a ReLU network on parts of one box.",
    "dual_of_forms": (
        "The dual problem of a ReLU network that is given by the matrices of its layers."
    ),
    "Parts": (
        "Parts of a box, each given by neurons held on or off, and the multipliers that bound it."
    ),
    "Carried": "Lower bounds of such parts, and the linear functions that gave them.",
    "check_proof": (
        "What a proof file proves of the ReLU network in an ONNX file, recomputed exactly."
    ),
    "ProofError": "Raised where such a file proves nothing, with the place and the reason.",
    "check_smooth_proof": (
        "What a proof file proves of a smooth network, if no number in the file was changed."
    ),
    "recompute_smooth_proof": "The same, whatever the file says was computed.",
    "read_smooth_network": (
        "The weights and functions of a smooth network, as the checker of its proofs reads them."
    ),
    "SmoothProofError": (
        "Raised where a proof about a smooth network proves nothing, with the place and the reason."
    ),
    "SmoothBoundError": (
        "Raised where a bound of such a proof is not > 0 when it is computed again."
    ),
    "check_integer_proof": (
        "What a proof file proves of the integer network in an ONNX file, recomputed exactly."
    ),
    "IntegerProofError": (
        "Raised where a proof about an integer network proves nothing, with the place and the"
        " reason."
    ),
}
# Pages that are looked through for code that uses a public name, in this order, then all others.
PAGES = ("reference", "plugins", "training-loop", "own-models", "recipes", "verify")
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.M | re.S)
IMPORT = re.compile(
    r"from (?:evalsuite|lambda_gelu|opgraph|netverify|intnet)[\w.]* import (?:\([^)]*\)|.*)"
)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public() -> dict[str, str]:
    """Each public name, and the module or library that it is imported from."""
    later = {name: module for module, names in IN_MODULES.items() for name in names}
    return dict.fromkeys(evalsuite.__all__, "evalsuite") | NEW_PLACES | later


def docstring(name: str, module: str) -> str:
    """Return what a module says of a name that it defines, or takes from another one; of a
    constant, the text beneath it.
    """
    place = _root_of(module) / module.replace(".", "/")
    stub = place / "__init__.pyi"  # where a package loads its names on first use
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    body = _parsed(stub if stub.is_file() else file).body
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in [target.id for target in targets if isinstance(target, ast.Name)]:
                return ast.get_docstring(ast.Module([after], [])) or ""
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            if node.module is None:  # a package that is called
                return docstring(name, f"{module}.{name}.console")
            return docstring(name, f"{module}.{node.module}" if node.level else node.module)
    return ""


def _root_of(module: str) -> Path:
    """The folder that a package of this repository stands in."""
    library = ROOT / "libs" / module.partition(".")[0]
    return library if library.is_dir() else ROOT


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, in one line."""
    return re.split(
        r"(?<=[.])\s+(?=[A-Z`\"])", " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    )[0]


@cache
def sections(page: str) -> list[tuple[str, str, str]]:
    """Each section of a page: the address that the site gives its heading, the heading, and the
    text under it up to the next heading of any level.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    parts = re.split(
        r"^#+ (.+)\n", re.sub(r"^```.*?^```$", _hidden, text, flags=re.M | re.S), flags=re.M
    )[1:]
    return [
        (
            re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()),
            title,
            body.replace("\0", "#"),
        )
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    ]


@cache
def _uses() -> list[tuple[str, str, str, frozenset[str]]]:
    """Each section with code: its page, address and heading, and the words of the code."""
    first = [f"docs/{name}.md" for name in PAGES]
    others = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    uses = []
    for page in dict.fromkeys([*(name for name in first if name in others), *others]):
        for slug, title, body in sections(page):
            code = IMPORT.sub("", "".join(FENCE.findall(body)))
            if code:
                uses.append((page, slug, title, frozenset(re.findall(r"\w+", code))))
    return uses


def example_of(name: str) -> tuple[str, str, str]:
    """The page, the address and the heading of the first section whose code uses a public name.

    Raises:
        LookupError: no document has code that uses it.
    """
    for page, slug, title, words in _uses():
        if name in words:
            return page, slug, title
    raise LookupError(f"{name}: no code in docs/ uses this public name; write an example")


def _hidden(code: re.Match[str]) -> str:
    """A comment at the beginning of a line of code is no heading."""
    return re.sub(r"^#", "\0", code[0], flags=re.M)


def listed(topic: str) -> list[tuple[str, ...]]:
    """A table of the topic's names: where each is imported from, what it is, and where its example
    is.
    """
    head = ("name", "from", "what it is", "example")
    rows: list[tuple[str, ...]] = [head]
    for name in TOPICS[topic].split():
        module = public()[name]
        meaning = SAID.get(name) or first_sentence(docstring(name, module))
        page, slug, title = example_of(name)
        link = f"{page.removeprefix('docs/').removeprefix('reference.md')}#{slug}"
        title = "above" if link.startswith("#") and topic != FIRST else title
        rows.append((f"`{name}`", f"`{module}`", meaning, f"[{title}]({link})"))
    return [(row[0], *row[2:]) for row in rows] if topic == FIRST else rows

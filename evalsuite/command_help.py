"""The help of the command line beside options: headings that commands stand under, and two
examples of each.
"""

from __future__ import annotations

from collections.abc import Iterable

# In the order of the help. A command that no heading has stands under the last.
HEADINGS: dict[str, tuple[str, ...]] = {
    "Your model": ("assess", "check", "relu-ize", "init"),
    "Recipes and runs": ("run", "plan", "tune", "merge", "cache"),
    "Reports": ("report", "compare", "query", "index"),
    "Verification": ("verify", "smt", "check-proof"),
    "Plugins and the installation": ("stages", "workloads", "activations", "variants", "doctor"),
}
OTHERS = "Plugins and the installation"

EXAMPLES: dict[str, tuple[str, str]] = {
    "assess": (
        "evalsuite assess my.py:make_model --data flowers.csv --quick",
        (
            "evalsuite assess my.py:make_model --data flowers.csv --stages accuracy --seeds 2 --out"
            " runs/mine"
        ),
    ),
    "check": (
        "evalsuite check my.py:make_model --data flowers.csv",
        "evalsuite check net.onnx --data flowers.csv",
    ),
    "relu-ize": (
        (
            "evalsuite relu-ize my.py:make_model --data flowers.csv --weights net.safetensors --out"
            " relu"
        ),
        "evalsuite relu-ize my.py:make_model --data flowers.csv --weights net.pt --out relu-pt",
    ),
    "init": (
        "evalsuite init my.py:make_model --data flowers.csv --quick",
        "evalsuite init my.py:make_model --data flowers.csv --seeds 5 > my.yaml",
    ),
    "run": (
        "evalsuite run recipe.yaml",
        "evalsuite run recipe.yaml --out runs/second --seeds 0-2",
    ),
    "plan": (
        "evalsuite plan recipe.yaml",
        "evalsuite plan recipe.yaml --seeds 0-9 --why",
    ),
    "tune": (
        "evalsuite tune recipe.yaml",
        "evalsuite tune recipe.yaml --rates 0.003,0.01 --seeds 100-101 --out runs/rates",
    ),
    "merge": (
        "evalsuite merge runs/both runs/first runs/second",
        "evalsuite merge runs/all runs/both runs/second",
    ),
    "cache": (
        "evalsuite cache ls",
        "evalsuite cache verify",
    ),
    "report": (
        "evalsuite report runs/first",
        "evalsuite report runs/second",
    ),
    "compare": (
        "evalsuite compare runs/first runs/second",
        "evalsuite compare runs/first runs/second --gate gates.yaml --out runs/gated",
    ),
    "query": (
        (
            "evalsuite query \"SELECT variant, avg(value) FROM rows WHERE metric = 'accuracy' GROUP"
            ' BY ALL" runs/first'
        ),
        "evalsuite query 'SELECT count(*) FROM rows' runs/first runs/second --format csv",
    ),
    "index": (
        "evalsuite index runs",
        "evalsuite index .",
    ),
    "verify": (
        "evalsuite verify --onnx net.onnx --vnnlib property.vnnlib",
        "evalsuite verify --instances instances.csv --out verdicts.csv",
    ),
    "smt": (
        "evalsuite smt --onnx net.onnx --vnnlib property.vnnlib",
        "evalsuite smt --onnx net.onnx --vnnlib property.vnnlib --proof proof.json",
    ),
    "check-proof": (
        "evalsuite check-proof proof.json --onnx net.onnx",
        "evalsuite check-proof proof.json --onnx net.onnx --vnnlib property.vnnlib",
    ),
    "stages": ("evalsuite stages", "evalsuite stages quantize"),
    "workloads": ("evalsuite workloads", "evalsuite workloads digits-mlp"),
    "activations": ("evalsuite activations", "evalsuite activations gelu"),
    "variants": ("evalsuite variants", "evalsuite variants annealed"),
    "doctor": ("evalsuite doctor", "evalsuite doctor --all runs/first"),
}


def by_heading(commands: Iterable[str]) -> dict[str, list[str]]:
    """The commands under each heading; those of plugins, which no heading names, stand under the
    last in order.
    """
    present = sorted(commands)
    listed = {
        heading: [name for name in names if name in present] for heading, names in HEADINGS.items()
    }
    placed = {name for names in HEADINGS.values() for name in names}
    listed[OTHERS] += [name for name in present if name not in placed]
    return {heading: names for heading, names in listed.items() if names}


def examples_of(command: str) -> str | None:
    """The text behind a command's options, whose lines are kept as they are, or None where there
    is none.
    """
    if command not in EXAMPLES:
        return None
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in EXAMPLES[command])])

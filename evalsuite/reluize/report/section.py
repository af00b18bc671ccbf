"""The report's sections on ReLU-izing: before and after the swap, and the hardness that was learnt."""

from __future__ import annotations

from evalsuite.reluize.report.before_after import swap_tables
from evalsuite.reluize.report.hardness import layer_orders, relations
from evalsuite.reluize.report.hardness_text import drift_grid, order_grid, relation_grids, relations_told
from evalsuite.reluize.report.pattern import PATTERN_RULE, pattern_finding
from evalsuite.reluize.report.profiles import PROFILE, order_figure, profile_figure
from evalsuite.reluize.report.text import swap_grid
from evalsuite.report.canvas import Drawing
from evalsuite.report.measured import TRAIN
from evalsuite.report.run import Run
from evalsuite.report.section import Finding, Part, Section

# Lines for each layer of each network: shown by layer, and whole in comparison.csv.
_OF_LAYERS = ("hardness", "learnt_hardness", "hardness_drift", "hardness_spread")
# Okabe and Ito's colours and some more; black is the baseline's.
_LOOKS = {
    "gelu": ("#222222", "o"), "gelu-swap": ("#E69F00", "s"), "lambda-gelu": ("#56B4E9", "^"),
    "annealed": ("#009E73", "D"), "relu": ("#CC79A7", "v"), "swap-refit": ("#0072B2", "P"),
    "swap-recalibrated": ("#D55E00", "X"), "swap-finetuned": ("#8C6D1F", "<"), "post-hoc": ("#6A51A3", ">"),
    "hard-switch": ("#7F7F7F", "h"), "lambda-gelu-swap": ("#0B6E99", "d"), "swish-annealed": ("#6B8E23", "p"),
    "prelu": ("#A61E4D", "H"), "prelu-swap": ("#F08C7A", "*"),
}  # fmt: skip


def _swap(run: Run) -> Part:
    """Before and after the swap, for each workload with swapped networks."""
    tables = swap_tables(run.measured, run.baseline)
    findings = [*filter(None, map(pattern_finding, tables))]
    return Part.of(findings, map(swap_grid, tables), rule=PATTERN_RULE if findings else "", tables=tables)


def _hardness(run: Run) -> Part:
    """Layer order, drift, and what the drift goes with; empty where no lambda was learnt."""
    orders = layer_orders(run.measured)
    if not orders:
        return Part()
    found = relations(run.measured, run.glances)
    drawings: list[Drawing] = []
    for workload in run.measured.workloads:
        drawings += [profile_figure(run.measured, workload), order_figure(run.measured, workload, orders)]
    question = "Does the drift of the hardness go with the metrics of the same networks?"
    findings = [Finding(question, relations_told(found), ())] if found else []
    details = [drift_grid(run.measured), *relation_grids(found)]
    return Part.of(findings, [order_grid(orders)], details, drawings, tables=orders)


SWAP = Section(
    title="Before and after the swap",
    question="Does a network keep its quality when its activation is replaced by ReLU?",
    stages=(TRAIN,),
    part=_swap,
    terms={
        "direct swap": "ReLU put in the place of the activation, and nothing else.",
        "annealed": "Trained on while the activation is hardened into ReLU, then swapped.",
        "gap closed": "The share of the direct swap's loss that a network does not have.",
    },
    spelled={"gelu": "GELU", "nll": "NLL", "onnx": "ONNX"},
    baseline="gelu",
    looks=_LOOKS,
    subjects=("annealed", "swap-refit", "gelu-swap", "relu"),
)
HARDNESS = Section(
    title="Learnt hardness",
    question="Do seeds agree on which layers want a hard activation?",
    stages=(),
    part=_hardness,
    terms={"λ": "The hardness of a λ-GELU: 1 is GELU, and the larger it is the closer the activation is to ReLU."},
    unlisted=lambda compared: compared["metric"].isin(_OF_LAYERS),
    drawn=(PROFILE,),
)

"""The report's section on networks in float: whether they are as good as the baseline's."""

from __future__ import annotations

from evalsuite import Direction, Endpoint, Evidence, Headline, Part, Run, Section, first_step, paired_test
from pipelines.accuracy.report.orders import order_grids

STAGE = "accuracy"

_KNOWN = (("F1 score", "f1_micro", "fraction", 0.005), ("explained variance", "r2", "share", 0.01),
          ("cosine to the original", "cosine", "cosine", 0.01))  # fmt: skip


def _own_task(run: Run, workload: str, variant: str) -> Evidence | None:
    """Of a task that no other question knows: its headline, where that is a fraction and better higher."""
    step, rows = run.measured.step(workload, STAGE), run.measured.frame
    own = rows[(rows["workload"] == workload) & (rows["step"] == step) & (rows["metric"] != "")]
    known = {"accuracy", "bits_per_byte", "bits_per_token", *(metric for _, metric, *_ in _KNOWN)}
    if not step or own.empty or known & set(own["metric"]):
        return None
    first = own.iloc[0]
    if (first["unit"], first["direction"]) != ("fraction", Direction.HIGHER.value):
        return None
    label = str(first["metric"]).replace("_", " ")
    return Evidence(paired_test(run, workload, variant, step, (first["metric"],), first["setting"], label))


SECTION = Section(
    title="Quality in float",
    question="Is a network of another activation as good as the baseline's, before any toolchain touches it?",
    stages=(STAGE, "export"),
    part=lambda run: Part(grids=order_grids(run, STAGE)),
    endpoints=(
        Endpoint("accuracy in float", first_step(STAGE, ("accuracy",)), "fraction", Direction.HIGHER, 0.005),
        Endpoint("bits per byte in float", first_step(STAGE, ("bits_per_byte",)), "bits", Direction.LOWER, 0.01),
        *(
            Endpoint(f"{name} in float", first_step(STAGE, (metric,)), unit, Direction.HIGHER, margin, instead=True)
            for name, metric, unit, margin in _KNOWN
        ),
        Endpoint("the task's own share in float", _own_task, "fraction", Direction.HIGHER, 0.005, instead=True),
    ),
    headlines=(
        Headline(STAGE, "bits_per_byte"),
        Headline(STAGE, "bits_per_token"),
        Headline(STAGE, "accuracy"),
    ),
    of_task=(STAGE,),
    terms={"accuracy": "The share of test samples whose class is right."},
)

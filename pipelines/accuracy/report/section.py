"""The report's section on networks in float: whether they are as good as the baseline's."""

from __future__ import annotations

from evalsuite import Direction, Endpoint, Headline, Part, Section, first_step
from pipelines.accuracy.report.orders import order_grids

STAGE = "accuracy"

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
            for name, metric, unit, margin in (
                ("F1 score", "f1_micro", "fraction", 0.005),
                ("explained variance", "r2", "share", 0.01),
                ("cosine to the original", "cosine", "cosine", 0.01),
            )
        ),
    ),
    headlines=(
        Headline(STAGE, "bits_per_byte"),
        Headline(STAGE, "bits_per_token"),
        Headline(STAGE, "accuracy"),
    ),
    of_task=(STAGE,),
    terms={"accuracy": "The share of test samples whose class is right."},
)

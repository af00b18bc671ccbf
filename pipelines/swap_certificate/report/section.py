"""The report's section on the certificate of the swap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalsuite import Headline, Part, Run, Section
from pipelines.swap_certificate.report.disruption import STAGE, SWEEP, disruption_figure

if TYPE_CHECKING:
    import pandas as pd


def _part(run: Run) -> Part:
    """A figure for each workload with the step."""
    measured = [each for each in run.measured.workloads if run.measured.step(each, STAGE)]
    return Part(drawings=[disruption_figure(run.measured, each) for each in measured])


def _swept(compared: pd.DataFrame) -> pd.Series[bool]:
    """The sweep over the hardness, which is drawn."""
    return (compared["stage"] == STAGE) & compared["setting"].str.contains(SWEEP, regex=False)


SECTION = Section(
    title="What the swap can change",
    question="How far can the outputs of a network move when its activations are replaced by ReLU?",
    stages=(STAGE,),
    part=_part,
    headlines=(
        Headline(STAGE, "swap_kept", wanted=("eps", "0.01")),
        Headline(STAGE, "certified_disruption", wanted=("eps", "0.01"), figure=False),
    ),
    terms={"disruption": "The greatest change of any output when ReLU replaces the activations, in a ball of inputs."},
    unlisted=_swept,
)

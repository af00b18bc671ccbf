"""The report's section on quantization, put together for every document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite.report.grids import Grid
from evalsuite.report.measured import Measured
from evalsuite.report.quantization import STAGE, TOLD, QuantizationTable, quantization_tables
from evalsuite.report.quantization_checks import checks_grid, coverage_grid, mixed_grid
from evalsuite.report.quantization_findings import RULE, QuantizationFinding, finding
from evalsuite.report.quantization_text import accuracy_grid
from evalsuite.report.record import Record
from evalsuite.results import parse_setting

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class QuantizationSection:
    """What quantization costs, for each workload with a quantize step.

    `grids` are shown, `details` on demand. `rule` says how placements are read, empty where there are no two.
    """

    tables: list[QuantizationTable]
    findings: list[QuantizationFinding]
    grids: list[Grid]
    details: list[Grid]
    rule: str


def quantization_section(measured: Measured, baseline: str, record: Record) -> QuantizationSection:
    """See `QuantizationSection`; everything in it is empty without a quantize step."""
    tables = quantization_tables(measured, baseline, record.after)
    grids, details = [], []
    for table in tables:
        grids += [accuracy_grid(table), coverage_grid(measured, table)]
        details += [checks_grid(measured, table), mixed_grid(measured, table)]
    placements = {each.placement for table in tables for each in table.treatments}
    return QuantizationSection(
        tables,
        [finding(measured, table) for table in tables],
        [grid for grid in grids if grid is not None],
        [grid for grid in details if grid is not None],
        RULE if len(placements) > 1 else "",
    )


def without_layers(compared: pd.DataFrame) -> pd.DataFrame:
    """A comparison without the lines of single layers of quantized networks, which are drawn, and without text."""
    own = compared["stage"] == STAGE
    layered = own & compared["setting"].map(lambda text: "layer" in parse_setting(text)).astype(bool)
    return compared[~layered & ~(own & (compared["metric"] == TOLD))]

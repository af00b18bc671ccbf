"""Pruned networks that go on to other steps, beside the same steps on unpruned ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evalsuite.report.grids import Grid, GridCell, Sheet, estimate_columns
from evalsuite.report.measured import Measured
from evalsuite.report.paired import Compared, common_scale, interval_text
from evalsuite.report.section import RunView, notes
from pipelines.prune.report.tables import ACCURACY, EXACT, STAGE

_NAMES = {
    "integer_accuracy": "accuracy (integers only)",
    "runtime_accuracy": "accuracy (ONNX Runtime)",
    "model_bytes": "file size",
}
_ACCURACIES = ("integer_accuracy", "runtime_accuracy", ACCURACY)  # The one wanted most first.
_SHOWN = (*_ACCURACIES, "certified_accuracy", "verified_accuracy", "model_bytes")
_LOWER = ("model_bytes",)
_METHODS = ("", "alpha-crown", "smt")  # Of several bounds the tightest is shown.


class Chain:
    """Which step of a workload follows which, and the same steps without those that prune."""

    def __init__(self, run: RunView, workload: str) -> None:
        rows = run.measured.frame[run.measured.frame["workload"] == workload]
        self.stages: dict[str, str] = dict(zip(rows["step"], rows["stage"], strict=True))
        self._after, self._options = run.record.after, run.measured.options

    def links(self, step: str) -> list[str]:
        """The steps from the first to this one."""
        chain = [step]
        while (previous := self._after.get(chain[0], "")) and previous not in chain:
            chain.insert(0, previous)
        return chain

    def pruned(self, step: str) -> bool:
        """Whether this step or one before it removes channels or units."""
        return any(self.stages.get(link) in (STAGE, EXACT) for link in self.links(step))

    def twin(self, step: str) -> str:
        """The one step that does the same on the unpruned network; empty where there is none, or
        more than one.
        """
        does = self._does(step)
        if not does:
            same = [
                step
                for step, stage in self.stages.items()
                if stage == ACCURACY and not self._after.get(step)
            ]
            return same[0] if same else ""
        same = [step for step in self.stages if not self.pruned(step) and self._does(step) == does]
        return same[0] if len(same) == 1 else ""

    def _does(self, step: str) -> list[tuple[Any, ...]]:
        """Return what the links do that do not prune."""
        return [
            (
                self.stages.get(link),
                sorted((name, str(value)) for name, value in self._options.get(link, {}).items()),
            )
            for link in self.links(step)
            if self.stages.get(link) not in (STAGE, EXACT)
        ]


def chain_grid(run: RunView, workload: str) -> Grid | None:
    """A row per metric of each link, from the pruned network on; None where nothing follows a
    step that prunes.
    """
    measured, chain = run.measured, Chain(run, workload)
    ends = [step for step in chain.stages if chain.pruned(step) and len(chain.links(step)) > 1]
    shown = dict.fromkeys(link for step in ends for link in chain.links(step) if chain.pruned(link))
    variants, sheet = run.variants, Sheet()
    for step in shown:
        # A step on pruned networks is compared with the same step on unpruned ones.
        twin = chain.twin(step)
        for metric, setting in _metrics(measured, workload, step):
            cells = []
            for variant in variants:
                values, other = (
                    measured.values(workload, variant, step_of_pair, metric, setting)
                    if step_of_pair
                    else {}
                    for step_of_pair in (step, twin)
                )
                cell = Compared(
                    variant, values, other, reason=measured.reason(workload, variant, step, metric)
                )
                cells.append(_cell(cell, metric))
                sheet.lines.append(
                    {
                        "workload": workload,
                        "step": step,
                        "chain": " → ".join(chain.links(step)),
                        "metric": metric,
                        "setting": setting,
                        "variant": variant,
                        "seeds": len(values),
                        **estimate_columns("value", cell.mean),
                        "unpruned_step": twin,
                        **estimate_columns("difference", cell.difference),
                    }
                )
            what = _NAMES.get(metric, metric.replace("_", " ")) + (
                f", {setting.replace('=', ' ')}" if setting else ""
            )
            target = twin if any(cell.detail for cell in cells) else "–"
            sheet.add(" → ".join(chain.links(step)), what, target, *cells)
    heads = ("chain", "metric", "Δ to", *variants)
    return sheet.grid(
        f"{workload}-pruning-chains",
        f"{workload}, steps that follow pruning",
        heads,
        notes(__name__)["chains"],
    )


def _metrics(measured: Measured, workload: str, step: str) -> Iterator[tuple[str, str]]:
    """The metrics to show of a step, with their settings: one accuracy, what is verified, and
    the size.
    """
    accuracy = False
    for metric in _SHOWN:
        settings = dict.fromkeys(
            (text, keys.get("method", ""))
            for variant in measured.variants
            for text, keys in measured.settings(workload, variant, step, metric).items()
            if "activation" not in keys
        )
        if metric in _ACCURACIES and (accuracy or not settings):
            continue
        accuracy = accuracy or metric in _ACCURACIES
        chosen = [text for text, method in settings if method in _METHODS] or [
            text for text, _ in settings
        ]
        yield from ((metric, text) for text in chosen)


def _cell(cell: Compared, metric: str) -> GridCell:
    mean, change = cell.mean, cell.difference
    if mean is None:
        return GridCell(cell.reason, tone="lack")
    scale = common_scale([cell], "bytes" if metric in _LOWER else "fraction")
    text = scale.number(mean.mean) + (
        f" ± {scale.number(mean.half_width)}" if mean.half_width else ""
    )
    change_text = f"Δ {interval_text(change, scale)}" if change else ""
    tone = ""
    # A size is the same in every seed, and that is no chance; an accuracy that is may be.
    if change is not None and change.resolved and (metric in _LOWER or not change.constant):
        tone = "better" if (change.mean < 0) == (metric in _LOWER) else "worse"
    return GridCell(f"{text} {scale.unit}", change_text, repr(mean.mean), tone, change)

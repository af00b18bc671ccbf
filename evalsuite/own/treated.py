"""A treatment of a network: quality, size and latency before and after, and a recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Direction
from evalsuite.latency import RESOLUTION
from evalsuite.own.outputs import heads_of
from evalsuite.report.cells import MatrixCell, Reading
from evalsuite.report.conclusions import read_rows
from evalsuite.report.matrix import matrix_row, over_samples_of
from evalsuite.report.matrix_row import MatrixRow
from evalsuite.report.numerals import scale_of
from evalsuite.report.section import Endpoint, first_step
from evalsuite.tasks.heads import score_name

if TYPE_CHECKING:
    from evalsuite.contract import Data
    from evalsuite.latency import Latency, Part
    from evalsuite.report.run import Run

QUALITY, FILE = "accuracy", "export"  # the steps that measure the networks, and that write them
RUNTIME = "ONNX Runtime in float32, one thread"
_MARGIN = 0.01  # of a score that has no margin of its own: a hundredth of the baseline's
_FRACTION = 0.005  # that of a fraction of samples
_KIB = 1024.0
# Of several answers the first of these is the one to go by.
_WORST = (
    Reading.DOUBTED,
    Reading.UNMEASURED,
    Reading.COSTS,
    Reading.MIXED,
    Reading.UNRESOLVED,
    Reading.SATURATED,
    Reading.FACT,
    Reading.NO_WORSE,
    Reading.HELPS,
)


@dataclass(frozen=True)
class Timed:
    """One batch size: both networks' files, timed in turn in one process.

    Args:
        batch: samples at a time.
        latency: of the treated network first; None where it could not be taken.
        reason: why not, or what makes the reading noise; "" where it is one.
    """

    batch: int
    latency: Latency | None
    reason: str = ""

    @property
    def faster(self) -> bool:
        """Whether the treated network takes less time by more than equal graphs may differ."""
        if self.latency is None or self.reason:
            return False
        return self.latency.intervals["ratio"][1] < 1 - RESOLUTION

    @property
    def slower(self) -> bool:
        """Whether it takes more time, likewise."""
        if self.latency is None or self.reason:
            return False
        return self.latency.intervals["ratio"][0] > 1 + RESOLUTION

    @property
    def text(self) -> tuple[str, str, str]:
        """The time before, after, and the ratio with its interval."""
        if self.latency is None or self.reason:
            return "", "", f"not measured: {self.reason}"
        before, after = (
            f"{1e3 * seconds:.3g} ms" for seconds in (self.latency.second, self.latency.first)
        )
        low, high = self.latency.intervals["ratio"]
        return before, after, f"x {self.latency.ratio:.2f} [{low:.2f}, {high:.2f}]"


@dataclass(frozen=True)
class Treated:
    """A treated network beside the one that it was made of.

    Args:
        variant: its name.
        row: the question of its quality, with what the test samples say.
        sizes: bytes of both files, before and after; None where one was not written.
        times: by batch size.
        told: what limits the numbers, such as test samples that may have been trained on.
        doubts: why nothing is concluded.
        others: of a network of several outputs the question of the quality of each.
    """

    variant: str
    row: MatrixRow
    sizes: tuple[int, int] | None
    times: Sequence[Timed]
    told: str = ""
    doubts: Sequence[str] = ()
    others: Sequence[MatrixRow] = ()

    @property
    def decisive(self) -> MatrixRow:
        """The question that decides: of several outputs the one with the worst answer."""
        return min((self.row, *self.others), key=lambda row: _WORST.index(_cell(row).reading))

    @property
    def cell(self) -> MatrixCell:
        return _cell(self.decisive)

    def lines(self) -> Iterator[str]:
        """A table of the numbers before and after, and the recommendation."""
        rows = [("", "before", "after", "difference")]
        rows += [*map(self._quality, (self.row, *self.others)), self._size()]
        for timed in self.times:
            samples = f"{timed.batch} sample{'s' * (timed.batch != 1)}"
            rows.append((f"latency of {samples} ({RUNTIME})", *timed.text))
        widths = [max(len(row[place]) for row in rows) for place in range(4)]
        for row in rows:
            cells = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
            yield "  ".join(cells).rstrip()
        yield self.recommendation

    def _quality(self, row: MatrixRow) -> tuple[str, str, str, str]:
        cell = _cell(row)
        name = f"{row.endpoint.words} on the test samples"
        if cell.levels is None or cell.estimate is None:
            return name, "", "", f"not measured: {cell.reason}"
        fine = min(row.endpoint.margin, cell.estimate.half_width or row.endpoint.margin)
        scale = scale_of(row.endpoint.unit, cell.levels, [fine])
        after, before = (f"{scale.number(level)} {scale.unit}".strip() for level in cell.levels)
        over = cell.estimate.samples
        samples = f", over {over.n:,} samples like these" if over is not None else ""
        return name, before, after, cell.difference(row.scale) + samples

    def _size(self) -> tuple[str, str, str, str]:
        name = "size of the ONNX file"
        if self.sizes is None:
            return name, "", "", "not measured: no file was written"
        before, after = self.sizes
        sizes = [f"{size / _KIB:,.1f} KiB" for size in (before, after)]
        return name, sizes[0], sizes[1], f"x {after / before:.2f}"

    @property
    def recommendation(self) -> str:
        """One sentence that recommends the treatment or advises against it."""
        start, reason = self._advice()
        return f"{start}: {reason}{f' ({self.told})' if self.told else ''}."

    def _advice(self) -> tuple[str, str]:
        """The recommendation in a few words, and its reason."""
        row, cell = self.decisive, self.cell
        quality = row.endpoint.words
        # By what is certain of the quality: only where it is known to be no worse does speed
        # count.
        if self.doubts or cell.reading is Reading.DOUBTED:
            return "No recommendation", "the model itself is in doubt, see above"
        if cell.estimate is None:
            return "No recommendation", f"{quality} was not measured: {cell.reason}"
        number = cell.difference(row.scale)
        if cell.reading is Reading.HELPS:
            return self._of_speed(f"{quality} improves, {number}")
        if cell.reading is Reading.NO_WORSE:
            return self._of_speed(f"{quality} loses less than {row.margin}, {number}")
        if cell.reading is Reading.COSTS:
            small = ", by less than the margin" if cell.small else ""
            return "Advised against", f"{self.variant} costs {quality}, {number}{small}"
        samples = f"; about {cell.needed:,} test samples would tell" if cell.needed else ""
        lost = f"a loss of {row.margin} of {quality} is not excluded, {number}"
        return "Not recommended yet", lost + samples

    def _of_speed(self, kept: str) -> tuple[str, str]:
        """The recommendation and its reason for a treatment that keeps the quality, by what it does
        to the latency.
        """
        # Slower at any batch size counts against it, before faster at another counts for it.
        if any(timed.slower for timed in self.times):
            return "Advised against", f"{kept}, but the network is slower in {RUNTIME}"
        if any(timed.faster for timed in self.times):
            return "Recommended", f"{kept}, and the network is faster in {RUNTIME}"
        if self.cell.reading is Reading.HELPS:
            return "Recommended", kept
        unread = not self.times or any(timed.reason for timed in self.times)
        faster = "not shown to be faster" if unread else "no faster"
        return (
            "Recommended only for what ReLU buys elsewhere, as in integers",
            f"{kept}, and the network is {faster} in {RUNTIME}",
        )


def _cell(row: MatrixRow) -> MatrixCell:
    return next(iter(row.cells.values()))


def treated(run: Run, variant: str, data: Data, *, told: str = "") -> Treated:
    """Compare the baseline of a run of one workload with one of its variants."""
    (workload,) = run.measured.workloads
    files = [
        run.folder / "artefacts" / workload / name / "0" / FILE / "model.onnx"
        for name in (run.baseline, variant)
        if run.folder is not None
    ]
    there = [file for file in files if file.is_file()]
    sizes = tuple(_bytes(file) for file in there)
    row = quality_row(run, workload, variant)
    doubts = run.doubts.get(workload, [])
    heads = heads_of(data)
    others = output_rows(run, workload, variant, heads.names) if heads is not None else []
    if len(sizes) < 2:
        return Treated(variant, row, None, (), told, doubts, others)
    times = list(time_files(there[1], there[0], data))
    return Treated(variant, row, (sizes[0], sizes[1]), times, told, doubts, others)


def quality_row(run: Run, workload: str, variant: str) -> MatrixRow:
    """The first question that the run's sections ask of the networks' quality before deployment,
    of this variant alone; of a task that none asks of, its headline with a margin of a hundredth.
    """
    endpoint, section = _endpoint(run, workload, variant)
    return _row(run, workload, variant, endpoint, section)


def output_rows(run: Run, workload: str, variant: str, names: Sequence[str]) -> list[MatrixRow]:
    """The question of the quality of each output of a network of several, of its score or, where it
    has none, of its first metric.
    """
    rows = run.measured.frame
    rows = rows[(rows["workload"] == workload) & (rows["step"] == QUALITY)]
    metrics = list(dict.fromkeys(rows["metric"]))
    found = []
    for name in names:
        metric = score_name(name, metrics) or next(
            metric for metric in metrics if metric.startswith(f"{name}_")
        )
        endpoint = _of_metric(rows[rows["metric"] == metric].iloc[0])
        found.append(_row(run, workload, variant, endpoint, ""))
    return found


def _row(run: Run, workload: str, variant: str, endpoint: Endpoint, section: str) -> MatrixRow:
    evidence = {workload: endpoint.measure(run, workload, variant)}
    samples = over_samples_of(run, variant, evidence)
    row = matrix_row(
        section, endpoint, evidence, {workload: len(run.seeds)}, run.doubts, samples=samples
    )
    return read_rows([row])[0]


def _endpoint(run: Run, workload: str, variant: str) -> tuple[Endpoint, str]:
    rows = run.measured.frame
    # The section's own question of quality; a task without a section is asked by its first
    # metric, with a margin of a share of it.
    rows = rows[(rows["workload"] == workload) & (rows["step"] == QUALITY)]
    for name, section in run.sections.items():
        for endpoint in section.endpoints:
            asks = QUALITY in section.stages and not (
                endpoint.of or endpoint.clock or endpoint.fact
            )
            if asks and endpoint.measure(run, workload, variant) is not None:
                return endpoint, name
    return _of_metric(rows[rows["metric"] != ""].iloc[0]), ""


def _of_metric(row: Any) -> Endpoint:
    """The question of a metric that no section asks of, by its row."""
    metric, value = str(row["metric"]), float(row["value"])
    unit, direction = str(row["unit"]), Direction(row["direction"])
    margin = _FRACTION if unit == "fraction" else _MARGIN * abs(value) or _MARGIN
    measure = first_step(QUALITY, (metric,))
    return Endpoint(metric.replace("_", " "), measure, unit, direction, margin)


def _bytes(file: Path) -> int:
    """The size of an ONNX file in bytes, with the data file that it keeps beside it."""
    beside = file.with_name(f"{file.name}.data")
    return file.stat().st_size + (beside.stat().st_size if beside.is_file() else 0)


def time_files(
    own: Path, other: Path, data: Data, batches: Sequence[int] | None = None
) -> Iterator[Timed]:
    """Both files run the same test samples in turn: a reading for each batch size."""
    from evalsuite.latency import steady_latency
    from evalsuite.yardstick import TIMED_BATCHES, timing_inputs
    from opgraph.onnx_network import OnnxNetwork

    networks = [OnnxNetwork(file) for file in (own, other)]
    # In turn, on one machine: so the ratio is of the files, and not of the hours.
    for batch in TIMED_BATCHES if batches is None else batches:
        inputs = timing_inputs(data.test, batch)
        calls = [partial(network, inputs) for network in networks]
        try:
            latency = steady_latency(calls[0], calls[1], "first", "second", "ratio")
        except MemoryError as error:
            yield Timed(batch, None, str(error))
            continue
        parts: tuple[Part, ...] = ("ratio", "first", "second")
        noise = next((text for part in parts if (text := latency.noise(part))), "")
        yield Timed(batch, latency, f"noisy: {noise}" if noise else "")

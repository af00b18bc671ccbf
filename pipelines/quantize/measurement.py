"""Quantizing one network and measuring the result in Brevitas, in integers and in ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING

import onnx
import torch
from torch import fx, nn

from evalsuite import Bench, Direction, Metric, Network, Outcome, Split, Unsupported
from evalsuite.contract import Timed
from evalsuite.deployed import is_file
from evalsuite.exporting import export_network
from evalsuite.samples import Samples, Several
from evalsuite.tasks import Classification, Segmentation
from evalsuite.tasks.score import scores, worsening
from evalsuite.yardstick import untimed_batches
from intnet.grids import Rounding
from lambda_gelu import fold_hardness
from opgraph.deployment import run_onnx
from opgraph.estimates import Work, allowed, too_slow, work_of, work_of_file
from opgraph.inputs import Inputs, leaves
from opgraph.onnx_network import open_onnx
from pipelines.quantize.agreement import agreement_metrics, compare_layers
from pipelines.quantize.choosing import RANGES, choose
from pipelines.quantize.execution import deployment_metrics, execution_metrics, observe
from pipelines.quantize.integer_measurement import LATENCY_BATCH, IntegerStudy
from pipelines.quantize.mixed_precision import search
from pipelines.quantize.onnx_file import measure_file
from pipelines.quantize.placement import Bits, Scheme
from pipelines.quantize.qcdq import export_qcdq, export_qonnx
from pipelines.quantize.sensitivity import sensitivity
from pipelines.quantize.tracing import at_a_time, trace
from pipelines.quantize.training import least_bits, train, train_scales
from pipelines.quantize.treatment import CANDIDATES, Treated, Treatment, treat, tune
from pipelines.quantize.yardstick import relative_metrics

if TYPE_CHECKING:
    from pipelines.quantize.options import QuantizeOptions

_CHUNK = 1000  # samples at a time, at most
_SESSIONS = 4  # of files that are timed in one process
# Of the job's time, what the definition of the integer-only network may take, which takes a sample
# 400 times as long as a float network does, by the order, and is run three times: to compare
# logits, to observe accumulators, and to compare parts.
_INTEGER_SHARE, _RUNS = 0.5, 3 * 400
# Of the memory that is left, what calibration samples may take; how many times their outputs, in
# float64, and the values of the widest operation, in float32, are held; and the bytes of each.
_MEMORY_SHARE, _HELD_OUTPUTS, _HELD_VALUES, _DOUBLE, _SINGLE = 0.5, 3, 3, 8, 4
# Of the job's time, what choosing a treatment may take; how many passes of the float network that
# is for each calibration sample, as of GPT-2 with 1,024 tokens; what each test sample takes at
# least, in the float network, the fake-quantized one and the file; what is done to single samples,
# as the profile; and seconds for each parameter, which every treatment rounds and every file holds.
_CHOOSING_SHARE, _CHOOSING_PASSES, _SCORING_PASSES, _SINGLE_PASSES = 0.25, 65, 3, 30
_PARAMETER_SECONDS = 3e-6
_FEWEST = 2  # calibration samples: one to fit to, and one to judge by
_WHOLE = "the fake-quantized network with every tensor on a grid"
HIGHER, LOWER, NEUTRAL = Direction.HIGHER, Direction.LOWER, Direction.NEUTRAL


def measure(network: Network, bench: Bench, options: QuantizeOptions) -> Outcome:
    """Quantize `network` and measure what became of it; see `Quantize` for what is raised."""
    if is_file(network):
        return measure_file(network, bench, options)
    # 1. Fold lambda, quantize, and export: the file is what runs in the end.
    _check_asked(network, bench, options)
    room, too_many = _calibrating(network, bench, options.calibration_samples)
    folded, by_position = _prepared(network, bench)
    # Of real numbers random ones would do, and zeros.
    example = network.example(2) if network.several or network.vocabulary is not None else None
    inputs = bench.data.calibration.first(room)
    deployed = quantize(folded, network.input_shape, inputs, bench, options, example)
    quantized, test = deployed.network, bench.data.test
    artefacts = {name: bench.folder / f"{name}.onnx" for name in ("quantized", "integer")}
    float_file, path = _float_file(network), artefacts["quantized"]
    export_qcdq(quantized, network.input_shape, path, example)
    report = bench.folder / "execution.json"

    def executed() -> list[Metric]:
        execution = observe(path, test.first(1), batch=1 if untimed else LATENCY_BATCH)
        report.write_text(json.dumps(asdict(execution), indent=1))
        return execution_metrics(execution)

    # 2. Score the float network, the fake-quantized one and the file.
    measured, classes = (
        _scores(network.module, quantized, path, test),
        isinstance(test.task, Classification),
    )
    float_session = open_onnx(float_file)
    work = work_of_file(onnx.load_from_string(float_file))
    untimed = untimed_batches(work, bench.time_limit, _SESSIONS)
    count, fewer = _affordable(len(test), work, bench.time_limit, options.compared_samples)
    some = _some(test, count or 1)
    # 3. A network of integers needs a grid everywhere. Where quantizers stood by what ONNX Runtime
    # reads, that is another network, made beside this one.
    whole, of_integers = deployed, list[Metric | Timed]()
    if not count:
        row = replace(measured[0], name=f"integer_{measured[0].name}", value=None)
        of_integers.append(replace(row, reason=f"not run: {fewer}"))
    elif options.placement == "auto" and not network.several:  # several have no integer form
        try:
            whole = _with_grids_everywhere(
                deployed, folded, network.input_shape, inputs, bench, options, example
            )
            of_integers += whole.rows
        except Unsupported as error:
            row = replace(measured[0], name=f"integer_{measured[0].name}", value=None)
            of_integers.append(replace(row, reason=f"{_WHOLE}: {error}"))
    # 4. Study the integer network, if there is one.
    if not of_integers or whole is not deployed:
        study = IntegerStudy(
            whole.network,
            network.input_shape,
            test,
            float_session,
            artefacts["integer"],
            measured[0],
            some,
            options.keep_islands,
            None if network.several else network.vocabulary,
            "the fake-quantized network" if whole is deployed else _WHOLE,
            fewer,
            untimed.get(LATENCY_BATCH, ""),
            options.integer_forms,
        )
        of_integers += study.metrics(Rounding(options.rounding))
    metrics = [
        Metric("calibration_samples", len(leaves(inputs)[0]), "count", NEUTRAL, reason=too_many),
        *deployed.rows,
        *measured,
        *agreement_metrics(
            compare_layers(quantized, path, some, by_position=by_position), classes=classes
        ),
        *of_integers,
        executed,
        *deployment_metrics(float_file, path, test, untimed=untimed),
        *relative_metrics(
            folded,
            (float_file, path),
            options.yardstick,
            _scheme(options),
            inputs,
            test,
            example,
            deployed.operators,
            untimed,
        ),
    ]
    if options.qonnx:
        artefacts["qonnx"] = bench.folder / "qonnx.onnx"
        metrics += _in_qonnx(whole.network, network.input_shape, artefacts["qonnx"], example)
    written = {name: file for name, file in artefacts.items() if file.exists()}
    # No torch module computes what the file does; the steps that follow take the file.
    handed_on = replace(network, unswapped=None, deployed=path, integer=written.get("integer"))
    return Outcome(metrics, {**written, "execution": report}, handed_on)


def _calibrating(network: Network, bench: Bench, asked: int) -> tuple[int, str]:
    """How many calibration samples there is room and time for, and why they are fewer than asked
    for, or "": treatments are judged by the outputs of half of them, held all at once.

    Raises:
        Unsupported: by estimate the job has no time for the least of them and all test samples.
    """
    count = min(asked, len(bench.data.calibration))
    work = work_of(network.module, network.example(1))
    # 1. What must be done in any case.
    single, least = work.seconds(1), min(count, _FEWEST)
    tests = len(bench.data.test)
    passes = _CHOOSING_PASSES * least + _SCORING_PASSES * tests + _SINGLE_PASSES
    what = f"quantizing by {least} calibration samples and scoring {tests:,} test samples"
    needed = passes * single + _PARAMETER_SECONDS * work.parameters
    if reason := too_slow(needed, bench.time_limit, what):
        raise Unsupported(f"{reason}: take fewer or smaller samples, or give the stage more time")
    # 2. What fits into the memory.
    size = _HELD_OUTPUTS * _DOUBLE * work.outputs + _HELD_VALUES * _SINGLE * work.widest
    room = max(least, int(_MEMORY_SHARE * allowed() / size))
    # 3. What fits into the time.
    seconds, most = _CHOOSING_PASSES * single, _CHOOSING_SHARE * bench.time_limit
    soon = max(least, int(most / seconds)) if seconds else count
    if count <= min(room, soon):
        return count, ""
    if soon < room:
        what = f"choosing a treatment by {count} samples"
        return soon, f"{soon} of {count}: {too_slow(count * seconds, most, what)}"
    what = f"the outputs of {count} samples, and what they are made of,"
    return room, (
        f"{room} of {count}: {what} would take about {count * size / 2**30:.2g} GiB, by estimate"
    )


def _affordable(samples: int, work: Work, time_limit: float, asked: int) -> tuple[int, str]:
    """On how many test samples networks are compared integer by integer, and why they are fewer
    than all, or than were asked for, or "": by estimate the definition takes too much of the job's
    time. 0 where it takes too much on one of them.
    """
    wanted = min(asked, samples) if asked else samples
    seconds, most = _RUNS * work.seconds(1), _INTEGER_SHARE * time_limit
    count = int(most / seconds) if seconds else wanted
    if count >= wanted:
        return wanted, ""
    what = f"running {wanted} samples by the definition of integers"
    return count, too_slow(wanted * seconds, most, what)


def _check_asked(network: Network, bench: Bench, options: QuantizeOptions) -> None:
    """Raise Unsupported where the network is an ONNX file already, or its task lacks what options
    ask; nothing is run.
    """
    if network.deployed is not None:
        raise Unsupported(
            "takes torch modules; a step before made an ONNX file of the network already"
        )
    asked = {
        "tuned": options.tuned,
        "size_budget": options.size_budget < 1,
        "sensitivity": options.sensitivity,
    }
    task = bench.data.task
    if names := [
        name for name, wanted in asked.items() if wanted and not isinstance(task, Classification)
    ]:
        raise Unsupported(
            f"{' and '.join(names)} compare class probabilities, which a task {type(task).__name__}"
            " does not have: leave them out"
        )


def _prepared(network: Network, bench: Bench) -> tuple[nn.Module, bool]:
    """The module with hardness folded into its layers, and whether it has a row of logits for each
    position.

    Raises:
        Unsupported: its logits are of another shape.
    """
    folded = fold_hardness(network.module, (network.example(2),))
    shape = tuple(folded(network.example(1)).shape)
    of_places = isinstance(bench.data.task, Segmentation)  # classes second, then places
    by_position = len(shape) == 3 and not of_places  # of a text, or of places of a picture
    if shape != (1, network.classes) and not by_position and not of_places:
        raise Unsupported(
            f"logits of shape {shape} are not measured, only (1, {network.classes}), a row per"
            " sample, those with a row for each position of a sample, (1, positions, classes), and"
            " those of a task segmentation, (1, classes, height, width)"
        )
    return folded, by_position


def _float_file(network: Network) -> bytes:
    """The float network as an ONNX file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "float32.onnx"
        export_network(network, path)
        return path.read_bytes()


def _in_qonnx(
    quantized: fx.GraphModule, input_shape: tuple[int, ...], path: Path, example: Inputs | None
) -> list[Metric]:
    """Write the file for FPGA tools. It is an extra: what was measured stands without it, with
    the reason as a row.
    """
    try:
        if example is not None:
            raise Unsupported("QONNX: FPGA tools take one input of real numbers")
        export_qonnx(quantized, input_shape, path)
    except Unsupported as error:
        return [Metric("qonnx", None, "file", NEUTRAL, reason=str(error))]
    return []


def _some(test: Split, count: int) -> torch.Tensor | Samples:
    """The first so many test inputs; all for 0, or where there are no more."""
    if not 0 < count < len(test):
        return test.inputs
    first = test.first(count)
    return first if isinstance(first, torch.Tensor) else Several(first)


@dataclass(frozen=True, slots=True)
class Quantized:
    """A fake-quantized network, how it was treated, and the rows that say so.

    `widths` are those of the layers that have others than the options say.
    """

    network: fx.GraphModule
    treatment: Treatment
    widths: Mapping[str, Bits | None]
    rows: list[Metric]

    @property
    def operators(self) -> Treatment:
        """Return what of the treatment adds operators to the file: migration, and biases of layers
        that had none. The rest changes numbers only.
        """
        treatment = self.treatment
        return Treatment(migration=treatment.migration, bias_correction=treatment.bias_correction)


def _with_grids_everywhere(
    deployed: Quantized,
    module: nn.Module,
    input_shape: tuple[int, ...],
    inputs: Inputs,
    bench: Bench,
    options: QuantizeOptions,
    example: Inputs | None,
) -> Quantized:
    """Quantize the network again with every tensor on a grid, as the integer-only one needs it:
    with quantizers behind activations, 16 bits where norms, softmax and sums of a transformer read,
    and the bit widths that were chosen for the deployed one.
    """
    ranges = "percentile" if options.calibration == "auto" else options.calibration
    everywhere = replace(
        options, placement="post", calibration=ranges, size_budget=1.0, sensitivity=False
    )
    whole = quantize(
        module, input_shape, inputs, bench, everywhere, example, deployed.widths, wide=True
    )
    chosen = [
        replace(row, setting={**row.setting, "network": "integers"})
        for row in whole.rows
        if row.name == "chosen_treatment"
    ]
    return replace(whole, rows=chosen)


def quantize(
    module: nn.Module,
    input_shape: tuple[int, ...],
    inputs: Inputs,
    bench: Bench,
    options: QuantizeOptions,
    example: Inputs | None = None,
    widths: Mapping[str, Bits | None] = MappingProxyType({}),
    *,
    wide: bool = False,
) -> Quantized:
    """Choose treatment and widths on the calibration inputs alone, treat, and train if the options
    say so.

    For `example` see `trace`, for `wide` see `Scheme`; `widths` are given where they were chosen
    before.
    """
    # 1. Trace, and choose how weights and ranges are treated.
    traced = trace(module, input_shape, example)
    scheme = replace(_scheme(options), layers=widths, wide=wide)
    treatment, treated, metrics = _treat(
        traced, scheme, inputs, options, classes=isinstance(bench.data.task, Classification)
    )

    def make(asked: Scheme) -> fx.GraphModule:
        placed = replace(scheme, bits=asked.bits, layers=asked.layers)
        return treat(traced, placed, inputs, treatment).network

    # 2. Within a budget of bytes choose each layer's width, under that treatment.
    if options.size_budget < 1:
        plan = search(make, traced, inputs, options.act_bits, options.size_budget)
        metrics += plan.metrics()
        widths = plan.scheme.layers
        treated = treat(traced, replace(scheme, layers=widths), inputs, treatment)
    # 3. What each layer costs alone, where that is asked for.
    if options.sensitivity:
        metrics += sensitivity(make, traced, inputs, Bits(options.weight_bits, options.act_bits))
    quantized = treated.network
    # 4. Train; where some width is small, the scales are learnt too.
    if options.qat_epochs and least_bits(quantized) <= options.learn_scales_up_to:
        unit = "nats" if isinstance(bench.data.task, Classification) else "loss"
        quantized, rows = train_scales(quantized, bench, options.qat_epochs, unit=unit)
        metrics += rows
    elif options.qat_epochs:
        quantized = train(quantized, bench, options.qat_epochs)
    return Quantized(quantized, treatment, widths, metrics)


def _scheme(options: QuantizeOptions) -> Scheme:
    """As the options say, without the widths that `size_budget` searches."""
    bits = Bits(options.weight_bits, options.act_bits)
    return Scheme(
        bits,
        before_activations=options.placement == "pre+post",
        scales=options.scales,
        by_reader=options.placement == "auto",
    )


def _treat(
    traced: fx.GraphModule,
    scheme: Scheme,
    inputs: Inputs,
    options: QuantizeOptions,
    *,
    classes: bool,
) -> tuple[Treatment, Treated, list[Metric]]:
    options_of = _given(options)
    if scheme.by_reader or options.tuned:
        if scheme.by_reader:
            ranges = RANGES if options.calibration == "auto" and not options.tuned else ()
            candidates = CANDIDATES if options.tuned else [options_of]
            tuned = choose(traced, scheme, inputs, candidates, ranges, classes=classes)
        else:
            tuned = tune(traced, scheme, inputs)
        losses = [trial.loss for trial in tuned.trials if trial.loss is not None]
        skipped = [
            f"; not {trial.treatment}: {trial.reason}"
            for trial in tuned.trials
            if trial.loss is None
        ]
        notes = "; ".join([str(tuned.treatment), *tuned.treated.notes])
        rows = [
            Metric("chosen_treatment", None, "name", NEUTRAL, reason=notes),
            Metric(
                "tuning_loss",
                min(losses),
                "nats" if classes else "share",
                NEUTRAL,
                reason=(
                    f"on half of the calibration data, the best of {len(losses)}"
                    f" treatments{''.join(skipped)}"
                ),
            ),
        ]
        return tuned.treatment, tuned.treated, [*rows, *_told(tuned.treatment, tuned.treated)]
    treated = treat(traced, scheme, inputs, options_of)
    return options_of, treated, _told(options_of, treated)


def _given(options: QuantizeOptions) -> Treatment:
    """The treatment that the options name, where nothing is chosen."""
    return Treatment(
        calibration="percentile" if options.calibration == "auto" else options.calibration,
        weight_scale=options.weight_scale,
        weight_rounding=options.weight_rounding,
        bias_correction=options.bias_correction and options.placement != "auto",
        equalization=options.equalization,
    )


def _told(treatment: Treatment, treated: Treated) -> list[Metric]:
    """Report what rounding and equalization changed."""
    changed = treated.rerounded
    rows = (
        [
            Metric(
                "rerounded_weights",
                sum(changed.values()) / len(changed),
                "share",
                NEUTRAL,
                reason="mean over layers of the integers that are not the nearest",
            ),
        ]
        if changed
        else []
    )
    if treatment.equalization:
        # That there are none is an answer, which the reason explains.
        pairs = (
            [", ".join(f"{first} and {second}" for first, second in treated.equalized)]
            if treated.equalized
            else []
        )
        notes = [note for note in treated.notes if note.startswith("equalization: ")]
        count = len(treated.equalized)
        rows.append(
            Metric("equalized_pairs", count, "count", NEUTRAL, reason="; ".join(pairs + notes))
        )
    return rows


def _scores(
    original: nn.Module, quantized: fx.GraphModule, path: Path, test: Split
) -> list[Metric]:
    """The task's headline in Brevitas and in ONNX Runtime, and what it lost against float."""
    session, differences = open_onnx(path), []

    def seen(outputs: list[torch.Tensor]) -> None:
        differences.append((outputs[1] - outputs[2]).abs().max())

    def in_session(inputs: Inputs) -> torch.Tensor:
        return run_onnx(session, inputs)

    # All three run on the same batches, so that their outputs are compared as they come.
    runs, batch = (original, quantized, in_session), at_a_time(quantized, _CHUNK)
    in_float, in_brevitas, in_runtime = scores(runs, test, batch=batch, seen=seen)
    classes, predictions = (
        isinstance(test.task, Classification),
        f"from this network's own float {in_float.headline.name}",
    )
    difference = torch.stack(differences).max().item()
    return [
        in_brevitas.named("{}", reason="fake-quantized, in Brevitas"),
        worsening(in_float.headline, in_brevitas.headline, reason=predictions),
        in_runtime.named("runtime_{}"),
        Metric(
            "runtime_max_difference",
            difference,
            "logit" if classes else "output",
            LOWER,
            reason="from Brevitas",
        ),
    ]

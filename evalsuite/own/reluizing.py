"""The best ReLU network of a trained model: `relu-ize`, and `evalsuite.relu_ize` in Python."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from evalsuite.own.assessing import (
    asked_of,
    doubted,
    kept_recipe,
    report_of,
    warnings_of,
)
from evalsuite.own.saving import Saved, save_own
from evalsuite.recipe import TRAIN
from evalsuite.results import read_results
from opgraph.errors import OwnError

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from evalsuite.own.own import Own
    from evalsuite.own.recipes import Asked
    from evalsuite.own.treated import Treated
    from evalsuite.recipe import Recipe

_COMPARED = 8  # samples on which what was saved is compared
# Of a Hugging Face folder, what from_pretrained's users need beside the weights.
_BESIDE = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "preprocessor_config.json",
)
RUN = "run"  # the folder of the run, in that of the network


@dataclass(frozen=True, repr=False)
class ReluIzed:
    """Tells what the treatment did to a network: the attribute `relu_ized` of what `relu_ize`
    returns.

    A module that is pickled whole keeps these fields in a plain namespace, so that it is read
    where evalsuite is not installed.

    Args:
        variant: the treatment that was the best on the validation data.
        metric: what was compared on the test data.
        before: its value for the given network; None where it was not measured.
        after: its value for the ReLU network.
        interval: the 95 % interval of `after - before` over test samples; None where there is none.
        samples: how many test samples that is over.
        sizes: bytes of the ONNX files, before and after; None where one was not written.
        speedups: by batch size, how many times as fast the ReLU network is in ONNX Runtime, as
            (estimate, low, high); without readings that other work disturbs.
        recommendation: one sentence that recommends the network or advises against it.
        text: the table of these numbers, and the sentence.
        folder: where the network, its run and the report lie.
    """

    variant: str
    metric: str
    before: float | None
    after: float | None
    interval: tuple[float, float] | None
    samples: int
    sizes: tuple[int, int] | None
    speedups: Mapping[int, tuple[float, float, float]]
    recommendation: str
    text: str
    folder: str

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return SimpleNamespace, (), dict(vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> ReluIzed:
        return self


@dataclass(frozen=True)
class Chosen:
    """A trained model's treatments once they are run, and the best of them, which is saved.

    Args:
        asked: the assessment that tried them.
        out: the folder of the network; its run is in `RUN`.
        best: the treatment that is the best on the validation data.
        saved: how the network was written.
        how: how it is loaded, in words.
        doubts: why nothing is concluded from the given network.
    """

    asked: Asked
    out: Path
    best: _Best
    saved: Saved
    how: str
    doubts: Sequence[str]

    def before_and_after(self) -> Treated:
        """Test quality, size and latency of the best network, and whether it is recommended."""
        from evalsuite.own.baseline import leaks
        from evalsuite.own.treated import treated
        from evalsuite.report.run import Run

        data = self.asked.brought.data()
        caution = "its test samples may be training samples" if leaks(data) else ""
        return treated(Run.of(self.out / RUN), self.best.variant, data, told=caution)

    def lines(self, comparison: Treated) -> Iterator[str]:
        """Tell the doubts first, and the recommendation last."""
        yield from self.doubts
        yield from report_of(self.out / RUN)
        yield from warnings_of(self.asked.examined.lines)
        best = self.best
        sentence = f"{best.metric} {best.value:.4g}, and {best.before:.4g} before"
        yield f"{best.variant} is the best on the validation data: {sentence}."
        yield f"The ReLU network: {self.out}; {self.how}."
        yield from comparison.lines()


@dataclass(frozen=True)
class _Best:
    variant: str
    metric: str
    value: float
    before: float


def choose(
    options: Mapping[str, Any], out: Path, carry_out: Callable[[Recipe, Path], object]
) -> Chosen:
    """Treat the model in every way that its start allows, and keep the best by validation data.

    Writes to `out`: the network in the layout of the user's model, and the run with its report in
    `out/run`.

    Args:
        options: of the workload `own`.
        out: the folder.
        carry_out: runs a recipe in a folder.

    Raises:
        OwnError: something is wrong with the model or the data; or no treatment gave a network.
    """
    # 1. Look at model and data before anything is trained.
    asked = asked_of(options, stages=["accuracy", "export"], seeds=1)
    if not asked.examined.activation:
        cure = (
            "name a function that returns evalsuite.from_onnx(file, example), with the file's"
            " weights"
        )
        raise OwnError(f"the model: an ONNX file has no activations to replace: {cure}")
    # 2. Run every treatment that the start allows.
    run = out / RUN
    recipe = kept_recipe(asked, run)
    carry_out(recipe, run)
    # 3. Keep the best by validation data; test data only tell what it costs.
    best = _best(read_results(run), recipe.baseline)
    doubts = doubted(asked, run)
    network = run / "artefacts" / asked.name / best.variant / "0" / TRAIN / "network"
    saved, how = _save(asked.brought, network, out)
    return Chosen(asked, out, best, saved, how, doubts)


def relu_ized(
    options: Mapping[str, Any],
    out: Path,
    cache: Path | None,
    *,
    jobs: int = 0,
    progress: str = "auto",
) -> Iterator[str]:
    """Choose the best treatment, as the command `relu-ize` does, and say what it costs: see
    `choose`.
    """
    from evalsuite.run.console import cache_in, execute

    def carry_out(recipe: Recipe, folder: Path) -> None:
        command = f"evalsuite relu-ize {options['model']}"
        execute(recipe, folder, cache_in(cache), jobs=jobs, progress=progress, command=command)

    chosen = choose(options, out, carry_out)
    yield from chosen.lines(chosen.before_and_after())


def relu_ize(
    model: str | Callable[..., Any],
    data: Any = "",
    targets: Any = None,
    *,
    train: Any = None,
    validation: Any = None,
    test: Any = None,
    out: Path | str | None = None,
    cache: Path | str | None = None,
    jobs: int = 0,
    progress: str = "none",
    **options: Any,
) -> nn.Module:
    """Put ReLU into a trained model: `evalsuite relu-ize` in Python.

    Re-fit, fine-tuning and hardening are tried; the network that is the best on the validation data
    is returned, in evaluation mode, with what was measured as its attribute `relu_ized` (see
    `ReluIzed`). It is a module of the model's own class, for `torch.save`, `torch.onnx.export` and,
    of Hugging Face's models, `push_to_hub`. The given module is not changed. Where its forward
    calls an activation as a function, a module that is pickled whole needs lambda_gelu to be read.

    Args:
        model: as `assess` takes it, a module that is trained already above all.
        data: likewise, as are `targets`, `train`, `validation` and `test`.
        targets: of the inputs.
        train: the training part, by which a treatment is fitted.
        validation: the part that chooses the treatment; without it a part of the training samples.
        test: the part that the measured quality is of.
        out: the folder of the network and its run; by default runs/NAME-relu.
        cache: the cache's folder.
        jobs: processes at a time; 0: one per core.
        progress: as `evalsuite run --progress`.
        options: of the workload `own`: task, weights, start, epochs, inputs, output, ...

    Raises:
        OwnError: something is wrong with the model, the data or an option; or no treatment gave a
            network.
        DataError, RunError: see `run_recipe`.
    """
    from torch import nn

    from evalsuite.own.calling import run_in_python, sent_options
    from evalsuite.own.memory import name_of
    from evalsuite.own.prepared import converted, other_kinds
    from evalsuite.report import write_report

    parts = {"train": train, "validation": validation, "test": test}
    name = model.rpartition(":")[2] if isinstance(model, str) else name_of(model)
    folder = Path(out) if out is not None else Path("runs") / f"{name}-relu"
    options.setdefault("start", "trained")
    workload_options = sent_options(model, data, targets, parts, folder, options)

    def carry_out(recipe: Recipe, run: Path) -> None:
        run_in_python(recipe, run, cache, jobs, progress)

    # 1. Run the treatments and write their report.
    chosen = choose(workload_options, folder, carry_out)
    write_report(folder / RUN)
    # 2. Read back the one that was saved, with what was measured of it.
    comparison = chosen.before_and_after()
    network = _read_back(chosen)
    warn_of_hub(network, chosen.saved, folder)
    if isinstance(model, nn.Module) and (kinds := other_kinds(model)):
        warnings.warn(
            f"the network that is returned is in float32: {converted(kinds)}; convert it by"
            f" .to(torch.{kinds[0]}), and measure what that costs",
            stacklevel=2,
        )
    vars(network)["relu_ized"] = _record(chosen, comparison)
    return network


def warn_of_hub(network: nn.Module, saved: Saved, folder: Path) -> None:
    """Warn where a network has `push_to_hub`, but its configuration makes the old activation: that
    would be published with the new weights.
    """
    if saved.form == "own" and hasattr(network, "push_to_hub"):
        reason = saved.reason or "its configuration makes the old activation"
        warnings.warn(
            "from_pretrained cannot load what save_pretrained and push_to_hub write of this"
            f" network: {reason}; use torch.save, or evalsuite.load_own(make, '{folder}')",
            stacklevel=3,
        )


def _read_back(chosen: Chosen) -> nn.Module:
    """The network as its user would load it from the folder."""
    from evalsuite.own.saving import load_own

    workload = chosen.asked.brought
    if chosen.saved.form == "own":
        return load_own(workload.unadapted, chosen.out)
    kind: Any = type(workload.unadapted())
    network: nn.Module = kind.from_pretrained(
        chosen.out, local_files_only=True, use_safetensors=True
    )
    return network.eval()


def _record(chosen: Chosen, comparison: Treated) -> ReluIzed:
    """The numbers of a comparison as plain values, which a pickled module can hold."""
    cell = comparison.cell
    after, before = cell.levels or (None, None)
    estimate = cell.estimate
    interval = None
    if estimate is not None and estimate.low is not None and estimate.high is not None:
        interval = (estimate.low, estimate.high)
    speedups = {
        timed.batch: (1 / timed.latency.ratio, 1 / high, 1 / low)
        for timed in comparison.times
        if timed.latency is not None and not timed.reason
        for low, high in (timed.latency.intervals["ratio"],)
    }
    return ReluIzed(
        variant=comparison.variant,
        metric=comparison.row.endpoint.words,
        before=before,
        after=after,
        interval=interval,
        samples=0 if estimate is None else estimate.n,
        sizes=comparison.sizes,
        speedups=speedups,
        recommendation=comparison.recommendation,
        text="\n".join([*chosen.doubts, *comparison.lines()]),
        folder=str(chosen.out),
    )


def _best(frame: pd.DataFrame, baseline: str) -> _Best:
    rows = frame[
        (frame.step == TRAIN) & frame.metric.str.startswith("validation_") & frame.value.notna()
    ]
    if rows.empty:
        raise OwnError(
            "no network was made, so there is nothing to choose from: see the reasons above"
        )
    # Better is greater here; where the headline is a tie, the next metric decides.
    rows = rows.assign(better=rows.value.where(rows.direction != "lower", -rows.value))
    metrics = list(dict.fromkeys(rows.metric))
    table = rows.pivot(index="variant", columns="metric", values="better")[metrics]
    treated = table.drop(index=baseline).dropna().sort_values(metrics, ascending=False)
    if treated.empty:
        raise OwnError("no treatment gave a network: see the reasons in the report")
    values = rows[rows.metric == metrics[0]].set_index("variant").value
    return _Best(
        treated.index[0], metrics[0], float(values[treated.index[0]]), float(values[baseline])
    )


def _save(workload: Own, network: Path, out: Path) -> tuple[Saved, str]:
    """Write the network in the layout of the user's model; how to load it."""
    from evalsuite.networks import load_network

    # 1. The network as its user's own module, with the user's own names.
    data = workload.data()
    module = load_network(network, workload, data).module
    example = data.calibration.first(_COMPARED)
    saved = save_own(
        module,
        out,
        make=workload.unadapted,
        adapt=lambda network_of_user: workload.adapted(network_of_user, example),
        own=workload.places,
        example=example,
    )
    # 2. What from_pretrained's users need beside the weights is copied from the original's
    # folder.
    if saved.form == "pretrained":
        kind, _, place = workload.model_choice.path.partition(":")
        for pattern in _BESIDE if kind == "hf" else ():
            for file in Path(place).expanduser().glob(pattern):
                shutil.copyfile(file, out / file.name)
        return saved, "load it by from_pretrained, as the original"
    lack = f"; no folder for from_pretrained: {saved.reason}" if saved.reason else ""
    return saved, f"load it by evalsuite.load_own{lack}"

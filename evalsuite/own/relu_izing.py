"""A trained model made a ReLU network: several treatments, of which the validation data choose one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.own.assessing import asked_of, kept_recipe, own_of, report_of
from evalsuite.own.own import Own
from evalsuite.own.saving import save_own
from evalsuite.recipe import TRAIN
from evalsuite.references import OwnError
from evalsuite.results import read_results
from evalsuite.run.console import cache_in, execute

if TYPE_CHECKING:
    import pandas as pd


def relu_ized(
    options: Mapping[str, Any], out: Path, cache: Path | None, *, jobs: int = 0, progress: str = "auto"
) -> Iterator[str]:
    """Treat the model in every way that its start allows, keep the best by the validation data, and say what it costs.

    Writes to `out`: the network in the layout of the user's model, and the run with its report in `out/run`.

    Raises:
        OwnError: something is wrong with the model or the data; or no treatment gave a network.
    """
    asked = asked_of(options, stages=["accuracy", "export"], seeds=1)
    if not asked.examined.activation:
        cure = "name a function that returns evalsuite.from_onnx(file, example), with the file's weights"
        raise OwnError(f"the model: an ONNX file has no activations to replace: {cure}")
    run = out / "run"
    recipe = kept_recipe(asked, run)
    execute(
        recipe, run, cache_in(cache), jobs=jobs, progress=progress, command=f"evalsuite relu-ize {options['model']}"
    )
    best = _best(read_results(run), recipe.baseline)
    how = _save(own_of(options), run / "artefacts" / asked.name / best.variant / "0" / TRAIN / "network", out)
    yield from report_of(run)
    told = f"{best.metric} {best.value:.4g}, and {best.before:.4g} before"
    yield f"{best.variant} is the best on the validation data: {told}."
    yield f"The ReLU network: {out}; {how}."


_COMPARED = 8  # samples on which what was saved is compared


def _copy_tokenizer(folder: Path, out: Path) -> None:
    for pattern in ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "preprocessor_config.json"):
        for file in folder.glob(pattern):
            shutil.copyfile(file, out / file.name)


@dataclass(frozen=True)
class _Best:
    variant: str
    metric: str
    value: float
    before: float


def _best(frame: pd.DataFrame, baseline: str) -> _Best:
    """The treated variant with the best headline on the validation data."""
    rows = frame[(frame.step == TRAIN) & frame.metric.str.startswith("validation_") & frame.value.notna()]
    if rows.empty:
        raise OwnError("no network was made, so there is nothing to choose from: see the reasons above")
    # Better is greater here; where the headline is a tie, the next metric decides.
    rows = rows.assign(better=rows.value.where(rows.direction != "lower", -rows.value))
    metrics = list(dict.fromkeys(rows.metric))
    table = rows.pivot(index="variant", columns="metric", values="better")[metrics]
    treated = table.drop(index=baseline).dropna().sort_values(metrics, ascending=False)
    if treated.empty:
        raise OwnError("no treatment gave a network: see the reasons in the report")
    values = rows[rows.metric == metrics[0]].set_index("variant").value
    return _Best(treated.index[0], metrics[0], float(values[treated.index[0]]), float(values[baseline]))


def _save(own: Own, network: Path, out: Path) -> str:
    """Write the network in the layout of the user's model; how to load it."""
    from evalsuite.networks import load_network

    data = own.data()
    module = load_network(network, own, data).module
    example = data.calibration.first(_COMPARED)
    found = save_own(
        module, out, make=own.unadapted, adapt=lambda each: own.adapted(each, example), own=own.places, example=example
    )
    if found.form == "pretrained":
        _copy_tokenizer(Path(own.model_choice.path.partition(":")[2]).expanduser(), out)
        return "load it by from_pretrained, as the original"
    return f"load it by evalsuite.load_own{f'; no folder for from_pretrained: {found.reason}' if found.reason else ''}"

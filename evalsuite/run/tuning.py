"""The choice of a learning rate for each workload and variant, by the loss on validation data: the
same for all arms.

Every variant that trains is trained at each rate, with seeds that no comparison uses; test data are
not touched.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from evalsuite.contract import Direction
from evalsuite.document import plain, read_tree, written
from evalsuite.recipe import NAME_LENGTH, TRAIN, Part, Recipe, option_names, parse_recipe

if TYPE_CHECKING:
    import pandas as pd

_PREFIX = "validation_"


@dataclass(frozen=True)
class Tuned:
    """The validation losses of one arm, rate -> loss by seed, and the rate that they choose.

    It is the one of the least mean loss over seeds, of equal ones the smallest. A rate at which a
    seed has no loss, or one that is not finite, is not chosen; `chosen` is None where no rate is
    left, and where a training `failed`, since its loss is not known.
    """

    workload: str
    variant: str
    metric: str
    losses: dict[float, dict[int, float]]
    seeds: tuple[int, ...]
    failed: str = ""

    @property
    def means(self) -> dict[float, float]:
        """The mean validation loss over seeds of each learning rate that may be chosen."""
        whole = {
            rate: [by.get(seed, math.nan) for seed in self.seeds]
            for rate, by in self.losses.items()
        }
        return {
            rate: fmean(values) for rate, values in whole.items() if all(map(math.isfinite, values))
        }

    @property
    def chosen(self) -> float | None:
        """The rate of the least mean loss, of equal ones the smallest; None where none can be
        chosen.
        """
        means = self.means
        if self.failed or not means:
            return None
        return min(means, key=lambda rate: (means[rate], rate))

    @property
    def line(self) -> str:
        """ "digits-mlp gelu: validation nll 0.21 at 0.001, 0.18 at 0.003; chosen 0.003"."""
        means = self.means
        if self.failed:
            return (
                f"{self.workload} {self.variant}: nothing chosen, since {self.failed}; tune again,"
                " or without that rate"
            )
        rates = ", ".join(
            f"{means[rate]:.4g} at {rate:g}" if rate in means else f"none at {rate:g}"
            for rate in sorted(self.losses)
        )
        chosen, ends = self.chosen, (min(self.losses), max(self.losses))
        if chosen is None:
            return f"{self.workload} {self.variant}: no rate gave every seed a finite loss"
        edge = ", an end of the range" if chosen in ends and ends[0] != ends[1] else ""
        return (
            f"{self.workload} {self.variant}: validation {self.metric} {rates}; chosen"
            f" {chosen:g}{edge}"
        )


def tuning_recipe(
    recipe: Recipe, rates: Sequence[float], seeds: Sequence[int], file: str
) -> Recipe:
    """The recipe whose workloads are the given one's, once at each rate, and whose variants are
    those that train.

    Raises:
        RecipeError: a workload refuses a rate.
        ValueError: a workload has no such option; a seed, or a rate, is given twice; or a seed is
            the recipe's own.
    """
    # 1. There must be a rate to choose, with seeds that no comparison uses: else test data would
    # be met by networks that took part in the choice.
    for part in recipe.workloads:
        if "learning_rate" not in option_names(part.target):
            raise ValueError(
                f"{file}: workload {part.name!r} has no option `learning_rate`, so there is none to"
                " choose"
            )
    for name, values in (("seed", seeds), ("rate", rates)):
        if len(set(values)) < len(values):
            raise ValueError(
                f"a {name} is given twice: {', '.join(f'{value:g}' for value in values)}"
            )
    if shared := sorted(set(seeds) & set(recipe.seeds)):
        raise ValueError(
            f"seed {shared[0]} is one that {file} compares by: choose others with --seeds"
        )
    # 2. Each workload once at each rate, each variant that trains, and no test but one that says
    # how a network does.
    tree = plain(read_tree(recipe.text))
    workloads = [
        {**_entry(entry), "name": _named(recipe, part, rate), "learning_rate": rate}
        for entry, part in zip(tree["workloads"], recipe.workloads, strict=True)
        for rate in rates
    ]
    entries = {
        part.name: entry for part, entry in zip(recipe.variants, tree["variants"], strict=True)
    }
    variants = [entries.get(part.name, part.name) for part in recipe.trained]
    document: dict[str, Any] = {
        "name": f"{recipe.name[:50]}-rates",
        "baseline": recipe.trained[0].name,
        "workloads": workloads,
        "variants": variants,
        "seeds": list(seeds),
        "time_limit": recipe.time_limit,
        "steps": ["accuracy"],
        "memory_limit": recipe.memory_limit,
        "split_by_seed": recipe.split_by_seed,
    }
    return parse_recipe(written(document), file)


def rates_of(text: str) -> list[float]:
    """The rates of `0.001,0.003`.

    Raises:
        ValueError: it is no list of numbers in (0, 1).
    """
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise ValueError(f"--rates takes numbers in (0, 1), as 0.001,0.003,0.01; got {text!r}")
    return rates


def _entry(entry: Any) -> dict[str, Any]:
    return {"use": entry} if isinstance(entry, str) else dict(entry)


def _named(recipe: Recipe, workload: Part, rate: float) -> str:
    """ "digits-mlp-at-0.003"; by its number where the name is too long for more."""
    name = f"{workload.name}-at-{rate!r}"
    return (
        name
        if len(name) <= NAME_LENGTH
        else f"workload-{recipe.workloads.index(workload) + 1}-at-{rate!r}"
    )


def tuned(
    frame: pd.DataFrame, recipe: Recipe, rates: Sequence[float], seeds: Sequence[int]
) -> Iterator[Tuned]:
    """The choice for each workload and variant that trains, from the rows of the run of
    `tuning_recipe`.

    One that trains nothing after all, such as a user's model as it is, is left out.
    """
    rows = frame[frame["step"] == TRAIN]
    for workload in recipe.workloads:
        for variant in recipe.trained:
            # 1. The rows of the workload at each rate.
            rows_by_rate = {
                rate: rows[
                    (rows["workload"] == _named(recipe, workload, rate))
                    & (rows["variant"] == variant.name)
                ]
                for rate in rates
            }
            if all(_untrained(part) for part in rows_by_rate.values()):
                continue
            failed = next((text for part in rows_by_rate.values() if (text := _failure(part))), "")
            # 2. The validation loss, under whichever name the task gives it, by rate and seed.
            rows_by_rate = {
                rate: part[part["metric"].str.startswith(_PREFIX)]
                for rate, part in rows_by_rate.items()
            }
            metric = next((name for part in rows_by_rate.values() if (name := _loss(part))), "")
            losses = {
                rate: {
                    int(row["seed"]): float(row["value"])
                    for _, row in part[part["metric"] == metric].iterrows()
                }
                for rate, part in rows_by_rate.items()
            }
            yield Tuned(
                workload.name,
                variant.name,
                metric.removeprefix(_PREFIX),
                losses,
                tuple(seeds),
                failed,
            )


def _untrained(rows: pd.DataFrame) -> bool:
    losses = rows[rows["metric"] == "train_loss"]
    return len(losses) > 0 and bool(losses["reason"].str.startswith("not trained").all())


def _failure(rows: pd.DataFrame) -> str:
    """Describe the first training that did not end; empty where all have."""
    for _, row in rows[rows["metric"] == ""].iterrows():
        return (
            f"{row['workload']}/{row['variant']}/{row['seed']} is {row['status']}: {row['reason']}"
        )
    return ""


def _loss(rows: pd.DataFrame) -> str:
    """The first metric that is better lower and no share of samples: the loss of every task, or
    a function of it.
    """
    lower = rows[(rows["direction"] == Direction.LOWER.value) & (rows["unit"] != "fraction")]
    return str(lower["metric"].iloc[0]) if len(lower) else ""


def block(tunings: Sequence[Tuned]) -> str:
    """The choices as `learning_rates` of a recipe."""
    rates: dict[str, dict[str, float]] = {}
    for tuning in tunings:
        if tuning.chosen is not None:
            rates.setdefault(tuning.workload, {})[tuning.variant] = float(tuning.chosen)
    return str(written({"learning_rates": rates}))


def write_losses(tunings: Sequence[Tuned], file: Path) -> None:
    """Every loss as a line of a table, so that the choice can be made again from it."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened, lineterminator="\n")
        table.writerow(["workload", "variant", "learning_rate", "seed", "metric", "loss", "chosen"])
        for tuning in tunings:
            for rate, seed in ((rate, seed) for rate in tuning.losses for seed in tuning.seeds):
                loss = tuning.losses[rate].get(seed, "")
                place = [tuning.workload, tuning.variant, f"{rate:g}", seed]
                table.writerow(
                    [*place, tuning.metric, loss, f"{tuning.chosen:g}" if tuning.chosen else ""]
                )

"""The recipe of an assessment: which variants and which steps answer what a user asks of their
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from evalsuite.plugins import did_you_mean
from opgraph.errors import OwnError

if TYPE_CHECKING:
    from evalsuite.own.budget import Found
    from evalsuite.own.examining import Examined
    from evalsuite.own.own import Own

Entry = dict[str, Any]

# Of each stage what an assessment asks: whole, and as a first look (`--quick`). Radii are shares of
# the inputs' range.
_STEPS: dict[str, tuple[list[Entry], list[Entry]]] = {
    "accuracy": ([{}], [{}]),
    "export": ([{}], [{}]),
    "quantize": (
        [{"name": "quantize-w8"}, {"name": "quantize-w4", "weight_bits": 4, "act_bits": 4}],
        # Half of the usual time: of a large network half of a job's time goes to the definition of
        # its integers, by estimate.
        [{"name": "quantize-w8", "time_limit": 1800.0}],
    ),
    "prune": (
        [{"sparsity": 0.5, "fine_tune_epochs": 1}],
        [{"sparsity": 0.5, "fine_tune_epochs": 0}],
    ),
    "bounds": (
        # Without alpha-CROWN: on a convolutional network it takes many times as long.
        [{"eps": [0.0039, 0.0157], "samples": 50, "methods": ["ibp", "crown"]}],
        [{"eps": [0.0039], "samples": 5, "methods": ["ibp", "crown"], "restarts": 1}],
    ),
    "smt": ([{"eps": [0.0039], "samples": 10}], [{"eps": [0.0039], "samples": 2, "proofs": False}]),
    "swap-certificate": (
        [{"eps": [0.0, 0.0039], "samples": 20, "hardness": []}],
        [{"eps": [0.0039], "samples": 2, "hardness": []}],
    ),
    "exact-prune": ([{}], [{"query_time_limit": 0.5}]),
}
STAGES = tuple(_STEPS)
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Asked:
    """An assessment, as it is asked of a user's model.

    Args:
        name: of the recipe.
        own: the options of the workload `own`.
        examined: what a look at model and data has found.
        brought: the workload of these options, resolved once; a searched budget and a miniature
            change `own` alone.
        against: of an ONNX file, the one that it is compared with.
        stages: names of `STAGES`, or ("all",).
        seeds: how many networks of each variant.
        quick: fewer variants, one seed, small options: a first look.
        time_limit: seconds for each job.
        budget: of networks that are trained from scratch, where one was searched or tested.
    """

    name: str
    own: Mapping[str, Any]
    examined: Examined
    brought: Own
    against: str = ""
    stages: Sequence[str] = ("all",)
    seeds: int = 3
    quick: bool = False
    time_limit: float = 3600.0
    budget: Found | None = None

    def __post_init__(self) -> None:
        for stage in self.stages:
            if stage != "all" and stage not in STAGES:
                raise OwnError(
                    f"--stages: there is no {stage!r}{did_you_mean(stage, [*STAGES, 'all'])}"
                )
        if self.against and self.examined.activation:
            raise OwnError("--against compares ONNX files, and this model is none: leave it out")
        if self.against and not Path(self.against).is_file():
            raise OwnError(f"--against: there is no file {self.against}")
        if not 1 <= self.seeds <= MOST_SEEDS:
            said = f"--seeds is a number of networks of each variant, from 1 to {MOST_SEEDS}"
            raise OwnError(f"{said}; got {self.seeds}")

    @property
    def start(self) -> str:
        return str(self.own.get("start", "scratch"))

    def text(self) -> str:
        """The recipe, as YAML with a comment for each variant."""
        # Of a trained model there is one network: more seeds would be no more networks.
        seeds = 1 if self.quick or self.start == "trained" else self.seeds
        document = {
            "name": self.name,
            "baseline": self.examined.activation or "given",
            "workloads": [{"use": "own", "name": self.name, **self.own}],
            "variants": self.variants(),
            "seeds": list(range(seeds)),
            "time_limit": self.time_limit,
            "steps": self.steps(),
        }
        # The header says to readers of the recipe what the start allows, and where the budget is
        # from.
        header = (
            _HEADERS[self.start]
            if self.examined.activation
            else "# ONNX files are measured as they are.\n"
        )
        if self.budget is not None:
            said = (
                f"{self.budget.words}; {self.budget.doubt}"
                if self.budget.doubt
                else self.budget.words
            )
            header += f"# Budget: {said}.\n"
        return header + dumped(document)

    def variants(self) -> list[Entry | str]:
        """The baseline and the ways to a ReLU network that the start allows."""
        base = self.examined.activation
        if not base:
            return [
                "given",
                *(
                    [{"use": "given", "name": "against", "file": self.against}]
                    if self.against
                    else []
                ),
            ]
        # 1. The swap and its repairs, of the trained baseline.
        swap = (
            "gelu-swap"
            if base == "gelu"
            else {"use": "swapped", "name": f"{base}-swap", "base": base}
        )
        repairs = [swap, _treated("swap-refit", base)]
        if self.examined.normalised:
            repairs.append(_treated("swap-recalibrated", base))
        # 2. A model that is trained already is treated, and nothing is trained from the start.
        if self.start == "trained":
            longer = [] if self.quick else [_treated("post-hoc", base)]
            return [base, *repairs, _treated("swap-finetuned", base), *longer]
        # 3. Else also training with ReLU, and hardening during training.
        relu = _trained("relu", self.start)
        if self.quick:
            return [base, *repairs, relu]
        trained = [
            _trained(_treated(use, base, "activation"), self.start)
            for use in ("annealed", "hard-switch")
        ]
        return [base, *repairs, _treated("swap-finetuned", base), *trained, relu]

    def steps(self) -> list[Entry | str]:
        """The recipe's steps: stages with their options, or their names alone; `eps` is scaled
        to the inputs' width.
        """
        wanted = STAGES if "all" in self.stages else self.stages
        steps: list[Entry | str] = []
        for stage in wanted:
            for options in _STEPS[stage][1 if self.quick else 0]:
                entry = {"use": stage, **options}
                if "eps" in entry:
                    entry["eps"] = [
                        float(f"{radius * self.examined.width:.4g}") for radius in options["eps"]
                    ]
                # A step has no more time than any job.
                if entry.get("time_limit", 0.0) >= self.time_limit:
                    del entry["time_limit"]
                steps.append(
                    stage if entry in ({"use": stage}, {"use": stage, "name": stage}) else entry
                )
        return steps

    def miniature(self, samples: int, time_limit: float) -> Asked:
        """A small version of this assessment, to see whether it runs at all: few samples, one
        epoch, so many seconds for each job.
        """
        source = self.own["data"]
        source = {"path": source} if isinstance(source, str) else dict(source)
        small = {**source, "limit": min(samples, int(source.get("limit") or samples))}
        options = {**self.own, "data": small, "epochs": 1}
        return replace(
            self, name=f"{self.name}-check", own=options, quick=True, seeds=1, time_limit=time_limit
        )


def dumped(document: Mapping[str, Any]) -> str:
    """The document as YAML, lists of numbers and texts in one line."""
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(dict(document), stream)
    return stream.getvalue()


def _treated(use: str, base: str, option: str = "base") -> Entry | str:
    """A variant that begins with that activation; its own name says gelu."""
    return use if base == "gelu" else {"use": use, "name": f"{base}-{use}", option: base}


def _trained(entry: Entry | str, start: str) -> Entry | str:
    """A variant that is trained from the first step, under a name that says from where."""
    if start == "scratch":
        return entry
    variant = (
        {"use": "trained", "activation": entry}
        if entry == "relu"
        else {"use": entry}
        if isinstance(entry, str)
        else entry
    )
    return {**variant, "name": f"{variant.get('name', entry)}-from-{start}"}


_HEADERS = {
    "scratch": (
        "# Each variant is trained from the model's initial weights, with equal seeds, data order"
        " and budget.\n"
    ),
    "pretrained": (
        "# Each variant is fine-tuned from the given weights, with equal seeds, data order and"
        " budget.\n"
    ),
    "trained": (
        "# The model is measured as it is; the other variants treat it. Nothing is trained from the"
        " start.\n"
    ),
}

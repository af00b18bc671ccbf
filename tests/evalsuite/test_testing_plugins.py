"""The kit for variants, workloads and rows of traits passes good ones, and tells broken ones
what is wrong.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

from evalsuite import Activation, Data, Split, export_onnx, open_onnx, swap
from evalsuite.plugins import load
from evalsuite.recipe import RecipeError, read_recipe
from evalsuite.testing import (
    activations,
    check_activation,
    check_variant,
    check_workload,
    variants,
    workloads,
)
from evalsuite.variants.swapped import Swapped
from evalsuite.variants.variant import Made, Setup
from evalsuite.workloads.iris import IrisMLP
from evalsuite.workloads.layers import mlp
from evalsuite.workloads.options import Budget
from lambda_gelu import GELU, RELU, unit_hardness
from lambda_gelu.activations.hard_swish import HARD_SWISH
from lambda_gelu.activations.recognition import known
from lambda_gelu.activations.silu import SILU

IRIS = IrisMLP(epochs=2)


RECIPE = """\
name: test
workloads: [breast-cancer-mlp]
variants: [gelu, squareplus]
seeds: [0]
steps: [{use: input-noise, sigma: -1.0}]
"""


@pytest.fixture
def demo(demo_site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The demo plugin's entry points are found, and its activation is known."""
    monkeypatch.syspath_prepend(demo_site)
    known.cache_clear()
    yield
    monkeypatch.undo()
    known.cache_clear()


def test_what_the_demo_plugin_brings_is_found_and_conforms(demo: None, tmp_path: Path) -> None:
    stage = load("stages", "input-noise")
    assert (stage.origin, stage.version) == ("evalsuite-plugin-demo", "0.1.0")
    assert stage.help.startswith("The task's headline metric under Gaussian noise")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(
        RecipeError, match=r"recipe\.yaml:5:9 steps\[0\]: sigma must be >= 0, got -1\.0"
    ):
        read_recipe(tmp_path / "recipe.yaml")
    assert check_activation(load("activations", "squareplus").target)[-1] == "relaxations"
    workload = load("workloads", "breast-cancer-mlp").target(epochs=2)
    assert check_workload(workload) == list(workloads.CHECKS)
    variant = load("variants", "squareplus-swap").target()
    assert check_variant(variant, workload=workload) == list(variants.CHECKS)


@pytest.mark.slow
def test_the_demo_activation_is_exact_and_can_be_exported(demo: None, tmp_path: Path) -> None:
    row = load("activations", "squareplus").target
    z = torch.tensor([-1e30, -1e6, -3.0, 0.0, 2.5, 1e6, 1e30], dtype=torch.float64)
    with mpmath.workdps(200):
        roots = [mpmath.sqrt(mpmath.mpf(each) ** 2 + 4) for each in z.tolist()]
        exact = [float((each + root) / 2) for each, root in zip(z.tolist(), roots, strict=True)]
        slopes = [
            float((each + root) / 2 / root) for each, root in zip(z.tolist(), roots, strict=True)
        ]
    assert row.value(z).tolist() == pytest.approx(exact, rel=1e-15, abs=0)
    assert row.slope(z).tolist() == pytest.approx(slopes, rel=1e-15, abs=0)
    module, inputs = mlp([4, 8, 3], row.make).eval(), torch.randn(5, 4)
    export_onnx(module, (4,), tmp_path / "model.onnx")
    (logits,) = open_onnx(tmp_path / "model.onnx").run(None, {"input": inputs.numpy()})
    assert np.abs(logits - module(inputs).detach().numpy()).max() < 1e-6


@pytest.mark.parametrize("name", ["iris-mlp", "moons-mlp", "digits-cnn"])
def test_workloads_here_conform(name: str) -> None:
    assert check_workload(load("workloads", name).target()) == list(workloads.CHECKS)


@pytest.mark.parametrize("name", ["trained", "annealed", "gelu-swap", "post-hoc", "swap-refit"])
def test_variants_here_conform(name: str) -> None:
    assert check_variant(load("variants", name).target(), workload=IRIS) == list(variants.CHECKS)


@dataclass(frozen=True)
class Broken(Budget):
    """Irises, with a fault."""

    version: ClassVar[str] = "1"
    make: Callable[[Any], nn.Module] = lambda activation: mlp([4, 8, 3], activation)
    change: Callable[[Data], Data] = lambda data: data
    digest: Callable[[], str] = IRIS.fingerprint

    def fingerprint(self) -> str:
        return self.digest()

    def data(self) -> Data:
        return self.change(IRIS.data())

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return self.make(activation)


class Shifted(nn.Sequential):
    """It has learnt, or drawn, a number that is no parameter."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__(layers)
        self.shift = float(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[0](x) + self.shift  # type: ignore[no-any-return]


def draws_for_gelu(activation: Callable[[int], nn.Module]) -> nn.Module:
    if isinstance(activation(8), nn.GELU):
        torch.rand(1)
    return mlp([4, 8, 3], activation)


def seeds(activation: Callable[[int], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return mlp([4, 8, 3], activation)


def built(make: Callable[[Any], nn.Module]) -> dict[str, Any]:
    return {"make": make}


def given(**changes: Callable[[Data], Any]) -> dict[str, Any]:
    """Other data, by functions of those that there are."""
    return {
        "change": lambda data: replace(
            data, **{name: change(data) for name, change in changes.items()}
        )
    }


def shuffled(data: Data) -> Split:
    order = torch.from_numpy(np.random.permutation(len(data.train)))
    return Split(data.train.inputs[order], data.train.targets[order])


ONCE = [nn.Linear(8, 8), nn.Tanh(), nn.GELU(), nn.Linear(8, 3)]
TICKS = itertools.count()
WORKLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "ignores": (
        built(lambda _: mlp([4, 8, 3], lambda _: nn.GELU())),
        r"each of whose activations is.*Broken\.build",
    ),
    "ignores once": (
        built(
            lambda activation: nn.Sequential(nn.Linear(4, 8), activation(8), *copy.deepcopy(ONCE))
        ),
        r"executes the activation that build\(\) is given.*Broken.*'relu'.*GELU at 4",
    ),
    "draws": (
        built(draws_for_gelu),
        r"same for every activation.*Broken\.build draws other numbers",
    ),
    "seeds": (built(seeds), r"initialises freshly.*set no seed"),
    "classes": (
        built(lambda activation: mlp([4, 8, 4], activation)),
        r"logits are.*\(5, 4\).*as wide as",
    ),
    "unsaved": (
        built(lambda activation: Shifted(mlp([4, 8, 3], activation))),
        r"can be saved.*shift is .* and was",
    ),
    "shuffled": (given(train=shuffled), r"same at every call.*part 'train'"),
    "overlap": (given(test=lambda data: data.train), r"disjoint.*train and test share 60"),
    "domain": (given(domain=lambda _: (0.0, 0.5)), r"lie in the domain.*train goes from"),
    "targets": (given(classes=lambda _: 2), r"from 0 to classes - 1.*train has.*0 to 2"),
    "type": (
        given(test=lambda data: Split(data.test.inputs.double(), data.test.targets)),
        r"inputs are float32.*test has torch\.float64",
    ),
    "fingerprint": (
        {"digest": lambda: "another"},
        r"fingerprint that fingerprint\(\) gives.*'another'",
    ),
    "clock": ({"digest": lambda: str(next(TICKS))}, r"same at every call.*gave '0'"),
}


@dataclass(frozen=True)
class Treated:
    """The GELU network, with something done to it."""

    version: ClassVar[str] = "1"
    what: Callable[[Setup, nn.Module], Any] = lambda setup, base: Made(swap(base, RELU))
    base: str = "gelu"
    executes: str = "relu"

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        assert base is not None
        made: Made = self.what(setup, base)
        return made


def scaled(setup: Setup, base: nn.Module) -> Made:
    with torch.no_grad():
        next(base.parameters()).mul_(1.5)
    return Made(swap(base, RELU))


def in_place(setup: Setup, base: nn.Module) -> Made:
    return Made(
        nn.Sequential(
            *(nn.ReLU() if isinstance(each, nn.GELU) else each for each in base.children())
        ).eval()
    )


def noisy(setup: Setup, base: nn.Module) -> Made:
    made = swap(base, RELU)
    with torch.no_grad():
        next(made.parameters()).add_(torch.rand(()))
    return Made(made)


def in_float64(setup: Setup, base: nn.Module) -> Made:
    torch.set_default_dtype(torch.float64)
    return Made(swap(base, RELU))


VARIANTS: dict[str, tuple[Any, str]] = {
    "base": (
        Treated(scaled),
        r"never changes what it was given.*changed weights base\.0\.weight.*deepcopy\(base\)",
    ),
    "in place": (Treated(in_place), r"no module of its base.*Treated: \d modules"),
    "executes": (
        Treated(lambda setup, base: Made(copy.deepcopy(base))),
        r"what `executes` names, 'relu'.*GELU at 1",
    ),
    "training": (
        Treated(lambda setup, base: Made(swap(base, RELU).train())),
        r"in eval mode.*module\.eval\(\)",
    ),
    "draws": (Treated(noisy), r"same seed gives the same network.*differ by up to.*setup\.seed"),
    "dtype": (Treated(in_float64), r"global state.*left default dtype torch\.float64"),
    "no Made": (
        Treated(lambda setup, base: swap(base, RELU)),
        r"make returns Made.*Made\(module\)",
    ),
    "budget": (
        Treated(lambda setup, base: Made(swap(base, RELU), train_loss=float("nan"))),
        r"finite.*train_loss nan",
    ),
    "error": (
        Treated(lambda setup, base: {}["fault"]),
        r"raises nothing else.*Treated raised KeyError: 'fault'",
    ),
    "no such base": (Treated(base="gelo"), r"`base` is the name.*'gelo'.*did you mean 'gelu'"),
    "no such activation": (
        Treated(executes="rely"),
        r"registered activation.*Treated\.executes is 'rely'",
    ),
    "head": (
        Treated(lambda _, base: Made(nn.Sequential(swap(base, RELU), nn.Linear(3, 5)).eval())),
        r"logits.*5\)",
    ),
}


def test_a_good_variant_passes_after_broken_ones() -> None:
    assert check_variant(Treated(), workload=IRIS) == list(variants.CHECKS)
    assert check_variant(Swapped(base="silu", to="gelu"), workload=IRIS) == list(variants.CHECKS)


class Naive(nn.Module):
    """Squareplus as the paper has it, which cancels for negative x, and overflows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + (x * x + 4).sqrt()) / 2


NAIVE = Activation(
    name="naive",
    help="squareplus",
    source="arXiv 2112.11687",
    formula="(x + sqrt(x^2 + 4)) / 2",
    value=Naive(),
    slope=lambda z: (1 + z / (z * z + 4).sqrt()) / 2,
    inflections=(),
    shape="+",
    relu_distance=1.0,
    make=lambda _: Naive(),
    matches=lambda module: isinstance(module, Naive),
    hardness=unit_hardness,
    onnx="",
)


def drawn(_: int) -> nn.Module:
    torch.rand(1)
    return nn.GELU()


ROWS: dict[str, tuple[Activation, str]] = {
    "slope": (
        replace(SILU, slope=torch.sigmoid),
        r"`slope` is the module's.*silu: at z = .* slope is",
    ),
    "value": (
        replace(SILU, value=lambda z: z * torch.sigmoid(1.01 * z)),
        r"`value` is the module's.*silu: at z =",
    ),
    "overflows": (NAIVE, r"infinite only where.*naive: value at -1e\+30, 1e\+30 of torch\.float32"),
    "curve": (
        replace(GELU, shape="+-+"),
        r"on a piece of shape '\+' the slope rises.*gelu: from z =",
    ),
    "signs": (replace(GELU, shape="-+"), r"one sign.*gelu: shape '-\+'"),
    "inflection": (
        replace(SILU, inflections=tuple(1.001 * z for z in SILU.inflections)),
        r"the slope.*silu: from",
    ),
    "order": (replace(GELU, inflections=GELU.inflections[::-1]), r"ascend.*gelu"),
    "no kink": (replace(HARD_SWISH, kinks=()), r"only there.*hard-swish: it jumps at -3 too"),
    "kink": (
        replace(GELU, kinks=(0.5,)),
        r"jumps at the kinks, and only there.*gelu: it does not at 0\.5",
    ),
    "limits": (
        replace(GELU, limits=(0.0, 2.0)),
        r"towards minus and plus infinity.*slope\(1e\+12\) is 1, not 2",
    ),
    "near": (
        replace(GELU, relu_distance=0.16),
        r"greatest distance.*gelu: 0\.16, but at z = .*0\.1699",
    ),
    "far": (replace(GELU, relu_distance=0.2), r"greatest distance.*gelu: 0\.2, but at"),
    "endless": (replace(GELU, relu_distance=float("inf")), r"greatest distance.*gelu: inf"),
    "matches": (
        replace(GELU, matches=lambda module: True),
        r"matched by one row alone.*gelu: its own and.*silu",
    ),
    "taken": (replace(GELU, name="mine"), r"matched by one row alone.*mine: its own and gelu"),
    "mismatch": (
        replace(GELU, make=lambda _: nn.SiLU()),
        r"matches the module that it makes.*gelu: not SiLU",
    ),
    "draws": (replace(GELU, make=drawn), r"make draws no random number.*gelu"),
    "goal": (replace(GELU, hardens_to="rely"), r"names of activations, or empty.*'rely'"),
    "parameters": (replace(GELU, parameters=("s",)), r"what a module learns.*\('s',\), not \(\)"),
    "hardness": (replace(GELU, hardness=lambda _: torch.zeros(())), r"one number > 0.*gelu"),
    "help": (replace(GELU, help=""), r"are texts.*gelu: help is empty"),
}


def bare(*bases: type, **body: object) -> Any:
    return type("Bare", bases, body)


frozen = dataclass(frozen=True)
UNFIT = load("variants", "swap-recalibrated").target()
DECLARED: dict[str, tuple[Callable[[], object], str]] = {
    "no budget": (
        lambda: check_workload(frozen(bare(version="1", __doc__="Help."))()),
        r"has a budget.*Bare has no epochs.*evalsuite\.workloads\.options\.Budget",
    ),
    "no version": (lambda: check_workload(frozen(bare(Budget))()), "workload has a `version`"),
    "a class": (lambda: check_workload(IrisMLP), r"pass MyWorkload\(\), not MyWorkload"),  # type: ignore[arg-type]
    "thawed": (lambda: check_variant(bare()()), "variant is a frozen dataclass"),
    "no row": (lambda: check_activation(nn.GELU()), "a row of traits.*is a GELU"),  # type: ignore[arg-type]
    "unfit": (
        lambda: check_variant(UNFIT, workload=IRIS),
        "applies to.*no BatchNorm.*a fitting workload",
    ),
}
# The check that tells of each fault, and what it says.
BROKEN = DECLARED | {
    f"{kind} {name}": (partial(check, made), text)
    for kind, check, faults in (
        ("workload", lambda changes: check_workload(Broken(epochs=1, **changes)), WORKLOADS),
        ("variant", partial(check_variant, workload=IRIS), VARIANTS),
        ("row", check_activation, ROWS),
    )
    for name, (made, text) in faults.items()
}


def told(text: str, check: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match=f"(?s){text}") as caught:
        check()
    assert "Culprit: " in str(caught.value)
    assert "Cure: " in str(caught.value)


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_told_rule_culprit_and_cure(case: str) -> None:
    check, text = BROKEN[case]
    told(text, check)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("trait", "row", "text"),
    [
        (
            "_exactness",
            NAIVE,
            r"exact in float64.*naive: from z = -.* but the integral of slope is",
        ),
        ("_kinks", replace(HARD_SWISH, kinks=(-3.0,)), r"only there.*hard-swish: it jumps at 3"),
        ("_relaxations", replace(SILU, shape="+", inflections=()), r"contain g.*silu: on \["),
    ],
)
def test_each_trait_is_held_against_the_function_by_itself(
    trait: str, row: Activation, text: str
) -> None:
    check = getattr(activations, trait)
    told(text, lambda: check(row))
    check(SILU)

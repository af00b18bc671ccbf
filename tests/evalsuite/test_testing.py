"""The conformance kit passes good stages, and tells broken ones what is wrong, where, and how to
mend it.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conftest import MakeBench, MakeNetwork

from evalsuite import Bench, Capabilities, Direction, Metric, Network, Outcome, Unsupported, Verdict
from evalsuite.contract import capabilities_of
from evalsuite.plugins import load
from evalsuite.testing import check_stage
from evalsuite.testing.stages import CHECKS

Run = Callable[[Network, Bench], Outcome]


def one(value: Any = 1.0, **changes: Any) -> Metric:
    return Metric(
        **{
            "name": "found",
            "value": value,
            "unit": "count",
            "direction": Direction.NEUTRAL,
            **changes,
        }
    )


@dataclass(frozen=True)
class Made:
    """A stage that does what it was made with."""

    version: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    what: Run = lambda network, bench: Outcome([one()])

    def run(self, network: Network, bench: Bench) -> Outcome:
        return self.what(network, bench)


def gives(*metrics: Any, **more: Any) -> Run:
    return lambda network, bench: Outcome([*metrics], **more)


def after(change: Callable[[Network, Bench], object]) -> Run:
    """A stage's `run` that does something more than to measure."""

    def run(network: Network, bench: Bench) -> Outcome:
        change(network, bench)
        return Outcome([one()])

    return run


def raising(error: Exception, kind: str = "") -> Run:
    """One that cannot measure networks with that in their name."""

    def run(network: Network, bench: Bench) -> Outcome:
        if kind in network.name:
            raise error
        return Outcome([one()])

    return run


@torch.no_grad()
def scale(module: torch.nn.Module | None) -> None:
    if module is not None:
        next(module.parameters()).mul_(1.5)


def handing_on(change: Callable[[torch.nn.Module], torch.nn.Module]) -> Run:
    def run(network: Network, bench: Bench) -> Outcome:
        return Outcome(
            [one()],
            network=dataclasses.replace(network, module=change(copy.deepcopy(network.module))),
        )

    return run


def fresh(outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs)).eval()


GIVEN = "never changes what it was given.*"
TWICE = [one(value, setting={"eps": 0.5}) for value in (1.0, 2.0)]
BROKEN: dict[str, tuple[Run, str]] = {
    "weights": (
        after(lambda n, b: scale(n.module)),
        GIVEN + r"Made changed weights module\.0\.weight.*deepcopy",
    ),
    "unswapped": (after(lambda n, b: scale(n.unswapped)), GIVEN + r"weights unswapped\.0\.weight"),
    "mode": (after(lambda n, b: n.module.train()), GIVEN + r"type, mode or hooks of module"),
    "requires_grad": (
        after(lambda n, b: n.module.requires_grad_(False)),
        GIVEN + r"requires_grad of module\.0",
    ),
    "gradient": (
        after(lambda n, b: n.module(b.data.test.inputs).sum().backward()),
        GIVEN + r"gradient of module\.0",
    ),
    "hook": (
        after(lambda n, b: n.module.register_forward_hook(lambda *_: None)),
        GIVEN + r"hooks of module",
    ),
    "data": (
        after(lambda n, b: b.data.calibration.inputs.add_(0.25)),
        GIVEN + r"data\.calibration\.inputs.*clones of",
    ),
    "dtype": (
        after(lambda *_: torch.set_default_dtype(torch.float64)),
        r"state.*left default dtype torch\.float64",
    ),
    "grad mode": (
        after(lambda *_: torch.set_grad_enabled(False)),
        r"state.*left grad mode False.*torch\.no_grad",
    ),
    "threads": (
        after(lambda *_: torch.set_num_threads(torch.get_num_threads() + 1)),
        r"state.*left thread count",
    ),
    "nan": (gives(one(float("nan"))), r"a value is finite.*metric 'found'.*is nan.*the reason"),
    "percent": (gives(one(97.0, unit="fraction")), r"fraction is in \[0, 1\].*97.*multiply by 100"),
    "direction": (
        lambda n, b: Outcome([one(direction="higher")]),
        r"must be Direction\.HIGHER, LOWER or NEUTRAL",
    ),
    "twice": (gives(*TWICE), r"no two metrics.*returned twice.*found.*eps=0\.5.*by `setting`"),
    "nothing": (gives(), r"measures something.*no metric"),
    "no outcome": (lambda n, b: [one()], r"returns an Outcome"),  # type: ignore[dict-item, return-value]
    "elsewhere": (
        gives(one(), artefacts={"file": Path(__file__)}),
        r"inside bench\.folder.*'file'.*bench\.folder",
    ),
    "missing file": (
        lambda n, b: Outcome([one()], {"model": b.folder / "none"}),
        r"artefacts exist.*'model'",
    ),
    "global generator": (
        lambda n, b: Outcome([one(torch.rand(()).item())]),
        r"same numbers.*found.* then .*\.seed",
    ),
    "numpy's generator": (
        lambda n, b: Outcome([one(np.random.rand())]),
        r"same seed gives the same numbers",
    ),
    "error": (
        raising(RuntimeError("no converter for sort"), "sort"),
        r"nothing else.*RuntimeError: no converter for sort.*torch\.cumprod.*Unsupported",
    ),
    "assertion": (
        raising(AssertionError("not mine"), "sort"),
        r"nothing else.*Error: not mine.*torch\.cumprod",
    ),
    "training mode": (
        handing_on(lambda module: module.train()),
        r"handed on in eval mode.*module\.eval\(\)",
    ),
    "classes": (handing_on(lambda _: fresh(3)), r"finite logits.*shape \(2, 3\).*last layer"),
    "random network": (
        handing_on(lambda _: fresh(10)),
        r"same numbers.*networks handed on with different logits",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_stage_is_told_rule_culprit_and_cure(case: str) -> None:
    run, text = BROKEN[case]
    threads = torch.get_num_threads()
    with pytest.raises(AssertionError, match=f"(?s){text}") as caught:
        check_stage(Made(run))
    assert "Culprit: " in str(caught.value)
    assert "Cure: " in str(caught.value)
    state = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    assert state == (torch.float32, True, threads)


def test_a_good_stage_passes_every_check_also_after_broken_ones() -> None:
    with pytest.raises(AssertionError):
        check_stage(Made(BROKEN["weights"][0]))
    seen: list[float] = []

    def run(network: Network, bench: Bench) -> Outcome:
        with torch.no_grad():
            seen.append(bench.data.test.accuracy(network.module(bench.data.test.inputs).argmax(1)))
        return Outcome([one()])

    assert check_stage(Made(run)) == list(CHECKS)
    # Both default networks are trained, and unharmed by the stage that spoilt its own copies.
    assert len(seen) == 5
    assert min(seen[:4]) > 0.8


@pytest.mark.parametrize(
    "run",
    [
        gives(
            one(None, reason="not swapped"),
            one(None, unit="verdict", name="verdict", sample=3, verdict=Verdict.UNKNOWN),
            one(None, unit="verdict", name="verdict", sample=4, verdict=Verdict.HOLDS),
            one(-0.25, name="drop", unit="fraction"),
            one(7.5, name="speedup", unit="ratio", setting={"batch": 1}),
            one(7.5, name="speedup", unit="ratio", setting={"batch": 64}),
        ),
        lambda n, b: Outcome([one(time.perf_counter(), unit="s", timing=True)]),
        raising(Unsupported("GELU has no exact encoding"), "/gelu/"),
    ],
    ids=["metrics", "a clock", "some networks"],
)
def test_what_is_no_error(run: Run) -> None:
    assert check_stage(Made(run)) == list(CHECKS)


def test_the_folder_is_empty_at_every_run(network: MakeNetwork, bench: MakeBench) -> None:
    def run(network: Network, bench: Bench) -> Outcome:
        assert not list(bench.folder.iterdir())
        (bench.folder / "note.txt").write_text("here")
        return Outcome([one()], {"note": bench.folder / "note.txt"})

    there = bench("digits-mlp")
    check_stage(Made(run), network=network("digits-mlp", "relu"), bench=there)
    assert not list(there.folder.iterdir())
    with pytest.raises(ValueError, match="both network and bench, or neither"):
        check_stage(Made(), bench=there)


def declared(**changes: Any) -> Any:
    """An instance of a fresh stage class with these class attributes; `frozen` and `dataclass`
    are not attributes.
    """
    frozen, wrap = changes.pop("frozen", True), changes.pop("dataclass", True)
    body = {
        "version": "1",
        "libraries": (),
        "__doc__": "Some help.",
        "run": Made.run,
        "what": Made.what,
        **changes,
    }
    kind = type("Declared", (), body)
    return (dataclass(frozen=frozen)(kind) if wrap else kind)()


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (declared(frozen=False), r"frozen dataclass.*Declared.*frozen=True"),
        (declared(dataclass=False), r"frozen dataclass"),
        (declared(version=1), r"`version`.*Declared\.version is 1"),
        (declared(version=""), r"`version`"),
        (declared(libraries=["torch"]), r"`libraries`.*\['torch'\]"),
        (declared(libraries="torch"), r"`libraries`"),
        (
            declared(libraries=("no-such-distribution",)),
            r"installed distribution.*'no-such-distribution'",
        ),
        (declared(__doc__=None), r"one line of help.*no docstring"),
        (Made, r"pass MyStage\(\), not MyStage"),
        # One that measures nothing here has not been checked.
        (
            Made(raising(Unsupported("made for transformers"))),
            r"the stage can measure.*gelu.*made for transformers.*network and bench",
        ),
        (Made(raising(Unsupported(""))), "Unsupported says why"),
    ],
)
def test_what_a_stage_declares(stage: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_stage(stage)


def test_the_demo_plugin_conforms_and_measures_noise(
    demo_site: Path, monkeypatch: pytest.MonkeyPatch, network: MakeNetwork, bench: MakeBench
) -> None:
    monkeypatch.syspath_prepend(demo_site)
    input_noise = load("stages", "input-noise").target
    assert check_stage(input_noise()) == list(CHECKS)
    trained, there = network("digits-mlp", "gelu"), bench("digits-mlp")
    with torch.no_grad():
        clean = there.data.test.accuracy(trained.module(there.data.test.inputs).argmax(1))
    quiet, some, drowned = (
        input_noise(sigma=sigma).run(trained, there).metrics[0].value for sigma in (0.0, 0.2, 100.0)
    )
    assert quiet == clean
    assert clean > some > 0.5 > drowned
    with pytest.raises(ValueError, match="sigma must be >= 0, got -1"):
        input_noise(sigma=-1)


def test_what_a_class_declares_goes_before_what_it_inherits() -> None:
    class Former(Made):
        takes_tokens: ClassVar[bool] = True
        timed: ClassVar[bool] = True

    class Present(Former):
        capabilities: ClassVar[Capabilities] = Capabilities(several=True)

    class Older(Present):
        exclusive: ClassVar[bool] = True
        several = True  # a name that never meant anything

    assert capabilities_of(Made()) == Capabilities()
    assert capabilities_of(Former()) == Capabilities(tokens=True, timed=True)
    assert capabilities_of(Present()) == Capabilities(several=True)
    assert capabilities_of(Older()) == Capabilities(several=True, exclusive=True)


def test_what_is_no_declaration_is_refused() -> None:
    class Text(Made):
        timed = "yes"

    class Listed(Made):
        capabilities = ("tokens",)

    for stage, name in ((Text(), "Text.timed is 'yes'"), (Listed(), "Listed.capabilities is (")):
        with pytest.raises(TypeError, match=re.escape(name)):
            capabilities_of(stage)

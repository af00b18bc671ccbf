"""What the bounds stage reports: every metric on real networks, in both norms, and what it does
when time is short.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from written import affine, bench_of

from evalsuite import Bench, Metric, Network, Property, Split, Unsupported, Verdict
from evalsuite.testing import check_stage
from netverify import falsify
from netverify.attacks import ATTACKS
from pipelines.bounds import Bounds
from pipelines.bounds import certification as certification_module
from pipelines.bounds import limits as limits_module
from pipelines.bounds.certification import Certification
from pipelines.bounds.graph_certification import certify_graph
from pipelines.bounds.limits import Memory, Pace
from pipelines.bounds.margins import Samples
from pipelines.bounds.options import METHODS
from pipelines.bounds.propagation import Propagation
from pipelines.bounds.radius import search

MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]
Reported = tuple[Network, Bench, Bounds, list[Metric]]
EPS = {"linf": (0.015625, 0.0625), "l2": (0.125, 0.5)}
NORMED: dict[str, dict[str, str]] = {"linf": {}, "l2": {"norm": "l2"}}
MIB = 2**20


def given(inputs: torch.Tensor, targets: torch.Tensor, classes: int) -> Bench:
    return bench_of(Split(inputs, targets), classes, Path())


def work_on(
    subject: Network,
    data: Bench,
    options: Bounds,
    *,
    seconds: float = 60.0,
    propagation: Propagation | None = None,
) -> Certification:
    test = data.data.test
    count = options.samples
    samples = Samples(test.inputs[:count], test.targets[:count], data.data.domain, options.norm)
    pace = Pace(time.monotonic() + seconds)
    return Certification(
        subject, samples, options, propagation or Propagation(subject), pace, data.seed
    )


@pytest.fixture(scope="module", params=["linf", "l2"])
def reported(
    request: pytest.FixtureRequest, network: MakeNetwork, tmp_path_factory: pytest.TempPathFactory
) -> Reported:
    from evalsuite.plugins import load
    from evalsuite.run.making import make_bench

    workload = load("workloads", "digits-mlp").target(epochs=10)
    data = make_bench(
        workload, workload.data(), seed=0, folder=tmp_path_factory.mktemp("stage"), time_limit=60.0
    )
    stage = Bounds(
        eps=EPS[request.param],
        samples=15,
        methods=METHODS,
        norm=request.param,
        radius="crown",
        radius_steps=4,
    )
    subject = network("digits-mlp", "gelu")
    return subject, data, stage, stage.run(subject, data).metrics


def by_sample(
    metrics: list[Metric], name: str = "robustness", **setting: str | float
) -> dict[int, Metric]:
    return {
        each.sample: each
        for each in metrics
        if each.sample is not None and each.name == name and each.setting == setting
    }


def verdicts(metrics: list[Metric], **setting: str | float) -> dict[int, Verdict | None]:
    return {sample: each.verdict for sample, each in by_sample(metrics, **setting).items()}


def row(metrics: list[Metric], name: str, **setting: str | float) -> Metric:
    (found,) = [
        each
        for each in metrics
        if each.name == name and each.setting == setting and each.sample is None
    ]
    return found


def value(metrics: list[Metric], name: str, **setting: str | float) -> float:
    found = row(metrics, name, **setting).value
    assert found is not None
    return found


def test_the_second_opinion_is_a_row_of_each_radius(reported: Reported) -> None:
    _, _, stage, metrics = reported
    for eps in stage.eps:
        found = row(metrics, "second_engine_width", eps=eps, method="crown", **NORMED[stage.norm])
        assert found.reason == ""
        # auto_LiRPA bounds the first layer over the box around a Euclidean ball.
        least = 0.98 if stage.norm == "linf" else 0.3
        assert least < (found.value or 0.0) < 1.02


def test_without_auto_lirpa_all_but_its_methods_are_there(
    network: MakeNetwork, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "auto_LiRPA", None)  # as if it were not installed
    stage = Bounds(eps=(0.01,), samples=3, methods=METHODS, attack_steps=1, attack_queries=1)
    metrics = stage.run(network("digits-mlp", "gelu"), bench("digits-mlp")).metrics
    shares = {
        method: row(metrics, "certified_accuracy", eps=0.01, method=method) for method in METHODS
    }
    assert {method for method, each in shares.items() if each.value is None} == {"forward"}
    assert shares["alpha-crown"].value == shares["crown"].value
    for method in ("forward", "alpha-crown"):
        assert "pip install --no-deps auto-LiRPA==0.3" in shares[method].reason
    assert row(metrics, "second_engine_width", eps=0.01, method="crown").value is None


def test_a_sample_without_a_target_is_refused(network: MakeNetwork, bench: MakeBench) -> None:
    there = bench("digits-mlp").data.test
    targets = there.targets.clone()
    targets[2] = -100
    with pytest.raises(Unsupported, match="test sample 2 has no target: it is -100, no class"):
        Bounds(samples=5).run(network("digits-mlp", "gelu"), given(there.inputs, targets, 10))
    Bounds(samples=2, eps=(0.01,)).run(
        network("digits-mlp", "gelu"), given(there.inputs, targets, 10)
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_counterexample_of_each_radius_is_kept_and_replays(
    norm: Literal["linf", "l2"], network: MakeNetwork, bench: MakeBench
) -> None:
    subject, data = network("digits-cnn", "gelu", epochs=2), bench("digits-cnn")
    radii = {"linf": (0.0625, 0.25), "l2": (0.5, 2.0)}[norm]
    outcome = Bounds(eps=(*radii, 0.0), samples=6, methods=("ibp",), norm=norm).run(subject, data)
    found = json.loads(outcome.artefacts["counterexamples"].read_text())
    # In a ball of one point nothing is found that was right.
    assert [each["eps"] for each in found] == list(radii)
    for each in found:
        (*_, asked) = data.properties(each["eps"], each["sample"] + 1, norm=norm)
        point, clean = (
            torch.tensor(each[name], dtype=torch.float32) for name in ("input", "clean")
        )
        assert asked.contains(point)
        assert torch.equal(clean, data.data.test.inputs[each["sample"]])
        predicted = [int(subject.module(one[None]).argmax()) for one in (point, clean)]
        assert predicted == [each["class"], each["clean_class"]]
        assert each["class"] != each["clean_class"] == each["label"] == asked.label
        broken = by_sample(outcome.metrics, eps=each["eps"], method="pgd", **NORMED[norm])[
            each["sample"]
        ]
        assert broken.verdict is Verdict.VIOLATED


def test_of_a_graph_too_and_of_inputs_that_are_no_images_nothing_is_kept(
    network: MakeNetwork, bench: MakeBench
) -> None:
    subject, data = network("digits-cnn", "gelu", epochs=2), bench("digits-cnn")
    options = Bounds(eps=(0.25,), samples=6, methods=("ibp",))
    _, path = certify_graph(subject, data, options)
    assert path is not None
    (found,) = json.loads(path.read_text())
    assert (
        int(subject.module(torch.tensor(found["input"])[None]).argmax())
        == found["class"]
        != found["label"]
    )
    path.unlink()
    table = bench("digits-mlp")
    table = dataclasses.replace(table, data=dataclasses.replace(table.data, picture=None))
    outcome = options.run(network("digits-mlp", "gelu"), table)
    assert value(outcome.metrics, "pgd_accuracy", eps=0.25) < 1
    assert dict(outcome.artefacts) == {}
    assert list(table.folder.iterdir()) == []


def test_the_stage_keeps_the_contract() -> None:
    mode = torch.get_default_dtype()
    assert check_stage(
        Bounds(eps=(0.03125,), samples=3, iterations=2, radius="crown", radius_steps=2)
    )
    # What auto_LiRPA asks torch for is not left in it.
    assert torch.get_default_dtype() == mode
    assert "torch._six" not in sys.modules
    assert not hasattr(torch, "_six")
    assert not hasattr(torch._C.Node, "__getitem__")


def test_accuracies_and_verdicts_agree(reported: Reported) -> None:
    _, _, stage, metrics = reported
    norm = NORMED[stage.norm]
    clean = value(metrics, "clean_accuracy")
    assert clean > 0.8
    for eps in stage.eps:
        attacked = verdicts(metrics, eps=eps, method="pgd", **norm)
        upper = value(metrics, "pgd_accuracy", eps=eps, **norm)
        assert upper == pytest.approx(1 - list(attacked.values()).count(Verdict.VIOLATED) / 15)
        assert upper <= clean
        # By AutoAttack's attacks: a sample stands where all of them fail.
        broken = verdicts(metrics, eps=eps, method="worst-attack", **norm)
        worst = value(metrics, "attacked_accuracy", eps=eps, **norm)
        assert worst == pytest.approx(1 - list(broken.values()).count(Verdict.VIOLATED) / 15)
        for attack in ATTACKS:
            assert worst <= value(metrics, "attacked_accuracy", eps=eps, method=attack, **norm)
            assert value(metrics, "attacked_accuracy", eps=eps, method=attack, **norm) <= clean
        either = [Verdict.VIOLATED in (attacked[i], broken[i]) for i in range(15)]
        certified = {}
        for method in METHODS:
            said = verdicts(metrics, eps=eps, method=method, **norm)
            assert list(said) == list(range(15))
            certified[method] = value(metrics, "certified_accuracy", eps=eps, method=method, **norm)
            assert certified[method] == pytest.approx(list(said.values()).count(Verdict.HOLDS) / 15)
            undecided = row(metrics, "undecided_fraction", eps=eps, method=method, **norm)
            assert undecided.value == pytest.approx(1 - sum(either) / 15 - certified[method])
            assert (undecided.value or 0) >= 0
            assert not any(said[i] is Verdict.HOLDS and either[i] for i in range(15))
        assert certified["ibp"] <= certified["crown"] <= certified["alpha-crown"]
    for name in ("pgd_accuracy", "attacked_accuracy"):
        small, large = (value(metrics, name, eps=eps, **norm) for eps in stage.eps)
        assert large <= small
    assert value(metrics, "certified_accuracy", eps=stage.eps[0], method="crown", **norm) > 0.5


def test_widths_grow_with_the_radius_and_shrink_with_the_method(
    reported: Reported,
) -> None:
    _, _, stage, metrics = reported
    norm = NORMED[stage.norm]
    for method in METHODS[:-1]:
        widths = [
            value(metrics, "bound_width", eps=each, method=method, **norm) for each in stage.eps
        ]
        assert 0 < widths[0] < widths[1]
        unstable = [
            value(metrics, "unstable_neurons", eps=each, method=method, **norm)
            for each in stage.eps
        ]
        assert 0 < unstable[0] <= unstable[1]
    for eps in stage.eps:
        widths = [
            value(metrics, "bound_width", eps=eps, method=each, **norm) for each in ("crown", "ibp")
        ]
        assert widths[0] < widths[1]
    assert not [
        each
        for each in metrics
        if each.name == "bound_width" and each.setting["method"] == "alpha-crown"
    ]


def test_layers_are_those_of_the_bounds(reported: Reported) -> None:
    subject, data, stage, metrics = reported
    propagation, norm = Propagation(subject), NORMED[stage.norm]
    assert len(propagation.layers) == 2
    found = propagation.bounds(data.properties(stage.eps[1], 15, norm=stage.norm), "ibp")
    for name, (low, high) in zip(propagation.layers, found.inputs, strict=True):
        where = {"eps": stage.eps[1], "method": "ibp", "layer": name, **norm}
        assert value(metrics, "layer_width", **where) == pytest.approx(
            (high - low).mean().item(), rel=1e-9
        )
        assert row(metrics, "layer_width", **where).unit == "activation"
        inside = sum(
            int(a < 0 < b)
            for a, b in zip(low.flatten().tolist(), high.flatten().tolist(), strict=True)
        )
        off = sum(int(b <= 0) for b in high.flatten().tolist())
        assert value(metrics, "unstable_share", **where) == pytest.approx(inside / low.numel())
        assert value(metrics, "stable_off_share", **where) == pytest.approx(off / low.numel())
    unstable = sum(
        value(metrics, "unstable_share", eps=stage.eps[1], method="ibp", layer=name, **norm)
        * low[0].numel()
        for name, (low, _) in zip(propagation.layers, found.inputs, strict=True)
    )
    assert unstable == pytest.approx(
        value(metrics, "unstable_neurons", eps=stage.eps[1], method="ibp", **norm)
    )
    layered = {each.setting["method"] for each in metrics if "layer" in each.setting}
    assert layered == {"ibp", "crown"}


def test_radii_are_proven_and_between_the_verdicts(reported: Reported) -> None:
    subject, data, stage, metrics = reported
    norm = NORMED[stage.norm]
    radii = by_sample(metrics, "certified_radius", method="crown", **norm)
    assert list(radii) == list(range(15))
    numbers = sorted(each.value for each in radii.values() if each.value is not None)
    assert value(metrics, "certified_radius", method="crown", **norm) == pytest.approx(
        sum(numbers) / 15
    )
    assert value(metrics, "certified_radius_median", method="crown", **norm) == numbers[7]
    assert {each.unit for each in radii.values()} == {"input"}
    held = {eps: verdicts(metrics, eps=eps, method="crown", **norm) for eps in stage.eps}
    with torch.no_grad():
        right = subject.module(data.data.test.inputs[:15]).argmax(1) == data.data.test.targets[:15]
    propagation = Propagation(subject)
    between = 0
    for sample, each in radii.items():
        assert each.value is not None
        holding = [eps for eps in stage.eps if held[eps][sample] is Verdict.HOLDS]
        assert each.value >= max(holding, default=0.0)
        assert right[sample] or each.value == 0
        if max(holding, default=0.0) < each.value:
            between += 1
            box = Property.robustness(
                data.data.test.inputs[sample],
                sample=sample,
                label=int(data.data.test.targets[sample]),
                eps=each.value,
                domain=data.data.domain,
                norm=stage.norm,
            )
            found = propagation.bounds([box], "crown")
            assert (found.margins > found.allowance).all()
    assert between > 2


def test_time_and_memory_are_told_for_each_method(reported: Reported) -> None:
    _, _, stage, metrics = reported
    norm = NORMED[stage.norm]
    for method in METHODS:
        peak = row(metrics, "peak_memory", method=method, **norm)
        assert peak.timing
        assert peak.unit == "bytes"
        assert (peak.value is not None and peak.value >= 0) or peak.reason
        for eps in stage.eps:
            clock = row(metrics, "seconds", eps=eps, method=method, **norm)
            assert clock.timing
            assert clock.value is not None
            assert clock.value > 0
    assert row(metrics, "radius_seconds", method="crown", **norm).timing


def test_a_counterexample_serves_every_larger_ball(
    network: MakeNetwork, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[float, list[int]] = {}

    def counted(
        module: nn.Module, properties: list[Property], *, seed: int, restarts: int
    ) -> object:
        asked.setdefault(properties[0].eps, []).extend(each.sample for each in properties)
        return falsify(module, properties, seed=seed, restarts=restarts)

    monkeypatch.setattr(certification_module, "falsify", counted)
    stage = Bounds(eps=(0.25, 0.0625, 0.125), samples=12, methods=("crown",))
    metrics = stage.run(network("digits-mlp", "relu"), bench("digits-mlp")).metrics
    broken: set[int] = set()
    for eps in (0.0625, 0.125, 0.25):
        assert asked.get(eps, []) == [i for i in range(12) if i not in broken]
        said = verdicts(metrics, eps=eps, method="pgd")
        assert all(said[sample] is Verdict.VIOLATED for sample in broken)
        broken = {sample for sample, each in said.items() if each is Verdict.VIOLATED}
    assert len(broken) > 6


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_radii_of_a_linear_network_have_a_closed_form(norm: str) -> None:
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0], [-1.0, 0.5, 0.75]])
    module = nn.Sequential(affine(weight.tolist(), [0.3, 0.0, -0.1])).eval()
    inputs = torch.tensor([[0.5, 0.4, 0.5], [0.5, 0.5, 0.45], [0.45, 0.55, 0.6], [0.5, 0.45, 0.55]])
    with torch.no_grad():
        logits = module(inputs).double()
    labels = logits.argmax(1)
    labels[3] = (labels[3] + 1) % 3
    stage = Bounds(
        eps=(0.001, 0.01, 0.4),
        samples=4,
        methods=("crown",),
        norm=norm,
        radius="crown",
        radius_steps=20,
    )  # type: ignore[arg-type]
    metrics = stage.run(Network("linear", module, (3,), 3), given(inputs, labels, 3)).metrics
    found = by_sample(metrics, "certified_radius", method="crown", **NORMED[norm])
    for sample in range(3):
        own, dual = int(labels[sample]), 1 if norm == "linf" else 2
        others = [j for j in range(3) if j != own]
        gaps = [
            float(
                (logits[sample, own] - logits[sample, j]) / (weight[own] - weight[j]).norm(p=dual)
            )
            for j in others
        ]
        exact = min(gaps)
        assert 0.001 < exact < 0.4, "the grid brackets it, and the data range does not cut the ball"
        # Float32's rounding must be left room for, hence below; the last bracket is 0.4 / 2**20.
        assert exact - 2e-5 <= found[sample].value <= exact  # type: ignore[operator]
    assert found[3].value == 0.0


def test_the_pace_is_remembered_from_radius_to_radius(
    network: MakeNetwork, bench: MakeBench
) -> None:
    subject, data = network("digits-mlp", "gelu"), bench("digits-mlp")
    work = work_on(subject, data, Bounds(samples=5, eps=(0.01, 0.02)), seconds=30)
    work.at(0.01)
    work._pace.slowest.update(dict.fromkeys(("pgd", *ATTACKS, *METHODS), 100.0))
    metrics = work.at(0.02)
    for method in ("pgd", "worst-attack", "ibp", "crown", "alpha-crown"):
        said = verdicts(metrics, eps=0.02, method=method)
        assert Verdict.TIMEOUT in said.values()
        assert Verdict.HOLDS not in said.values()
    for name, setting in (
        ("pgd_accuracy", {}),
        ("attacked_accuracy", {}),
        ("undecided_fraction", {"method": "crown"}),
    ):
        assert "in time" in row(metrics, name, eps=0.02, **setting).reason


def test_what_does_not_fit_in_the_time_limit_is_told(
    network: MakeNetwork, bench: MakeBench
) -> None:
    stage = Bounds(eps=(0.0625,), samples=5, radius="crown")
    metrics = stage.run(network("digits-mlp", "gelu"), bench("digits-mlp", time_limit=1e-9)).metrics
    for method in ("ibp", "crown", "alpha-crown"):
        assert set(verdicts(metrics, eps=0.0625, method=method).values()) == {Verdict.TIMEOUT}
    late = [
        each
        for each in metrics
        if each.name in ("certified_accuracy", "undecided_fraction", "bound_width")
    ]
    assert len(late) == 8
    assert all("in time" in each.reason for each in late)
    assert all(each.value is None for each in late if each.name != "certified_accuracy")
    assert row(metrics, "pgd_accuracy", eps=0.0625).value is None
    radius = row(metrics, "certified_radius", method="crown")
    assert radius.value == 0.0
    assert "5 of 5 samples not searched to the end" in radius.reason


@pytest.mark.slow
def test_alpha_crown_starts_nothing_after_its_seconds(
    network: MakeNetwork, bench: MakeBench
) -> None:
    subject, data = network("digits-mlp", "gelu"), bench("digits-mlp")
    options = Bounds(
        eps=(0.0625,), samples=25, methods=("crown", "alpha-crown"), alpha_seconds=1e-6
    )
    propagation = Propagation(subject)
    propagation.batch = 1
    metrics = work_on(subject, data, options, propagation=propagation).metrics()
    attacked, crown, alpha = (
        verdicts(metrics, eps=0.0625, method=each) for each in ("pgd", "crown", "alpha-crown")
    )
    late = [sample for sample, each in alpha.items() if each is Verdict.TIMEOUT]
    assert late
    assert not any(
        crown[sample] is Verdict.HOLDS or attacked[sample] is Verdict.VIOLATED for sample in late
    )
    told = row(metrics, "certified_accuracy", eps=0.0625, method="alpha-crown")
    assert f"{len(late)} of 25" in told.reason
    assert "alpha_seconds = 1e-06" in told.reason
    assert value(metrics, "certified_accuracy", eps=0.0625, method="crown") <= (told.value or 0)


def test_alpha_crown_says_where_the_jobs_time_ended_it(
    network: MakeNetwork, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, data = network("digits-mlp", "gelu"), bench("digits-mlp")
    options = Bounds(eps=(0.0625,), samples=12, methods=("crown", "alpha-crown"), iterations=2)
    told = []
    for share in (certification_module._ROUND, 0.0):
        monkeypatch.setattr(certification_module, "_ROUND", share)
        metrics = work_on(subject, data, options, seconds=6000.0).metrics()
        told.append(row(metrics, "certified_accuracy", eps=0.0625, method="alpha-crown").reason)
        assert row(metrics, "certified_accuracy", eps=0.0625, method="crown").reason == ""
    assert told[0] == ""
    assert "even share of the job's time limit" in told[1]


def test_a_method_that_fails_on_a_network_is_told_and_the_others_run(bench: MakeBench) -> None:
    def pooled(pool: nn.Module, stage: Bounds) -> list[Metric]:
        module = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), pool, nn.Flatten(), nn.Linear(18, 10)
        ).eval()
        return stage.run(Network("pool", module, (1, 8, 8), 10), bench("digits-cnn")).metrics

    metrics = pooled(nn.MaxPool2d(2), Bounds(eps=(0.01,), samples=2))
    told = {
        each.setting["method"]: each.reason for each in metrics if each.name == "certified_accuracy"
    }
    assert (told["crown"], "alpha-CROWN" in told["alpha-crown"]) == ("", True)
    stage = Bounds(eps=(0.01,), samples=4, methods=("forward", "crown"), radius="forward")
    metrics = pooled(nn.AvgPool2d(2), stage)
    assert set(verdicts(metrics, eps=0.01, method="forward").values()) == {Verdict.UNSUPPORTED}
    for name in ("certified_accuracy", "undecided_fraction", "bound_width", "unstable_neurons"):
        assert row(metrics, name, eps=0.01, method="crown").value is not None
    late = [
        row(metrics, name, eps=0.01, method="forward")
        for name in ("certified_accuracy", "undecided_fraction", "bound_width", "unstable_neurons")
    ]
    for each in (*late, row(metrics, "certified_radius", method="forward")):
        assert (each.value, "by forward" in each.reason) == (None, True)
    assert not by_sample(metrics, "certified_radius", method="forward")


def test_memory_is_what_was_taken_in_between() -> None:
    memory = Memory()
    with memory.measured("much"):
        torch.ones(64 * MIB // 4).sum()
    with memory.measured("little"):
        torch.ones(MIB // 4).sum()
    much, reason = memory.peak("much")
    little, _ = memory.peak("little")
    if much is None:
        assert reason
        return
    assert little is not None
    assert 60 * MIB < much < 90 * MIB
    assert little < 20 * MIB


def test_memory_without_a_mark_to_reset_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits_module, "_RESET", tmp_path / "missing" / "clear_refs")
    memory = Memory()
    with memory.measured("ibp"):
        torch.ones(8).sum()
    peak, reason = memory.peak("ibp")
    assert (peak, "no high-water mark" in reason) == (None, True)
    assert memory.peak("crown")[0] is None


def test_a_float32_counterexample_to_a_proof_is_judged_by_float64() -> None:
    module = nn.Sequential(
        affine([[1.0]], [2048.0]), nn.ReLU(), affine([[1.0], [0.0]], [-2048.0, 0.0])
    ).eval()
    subject = Network("n", module, (1,), 2)
    box = Property(0, 0, 0.0, torch.tensor([4e-5]).double(), torch.tensor([4.1e-5]).double())
    point, data = torch.tensor([4.05e-5]), given(torch.tensor([[4e-5]]), torch.tensor([0]), 2)
    propagation = Propagation(subject)
    work = work_on(subject, data, Bounds(samples=1, methods=("crown",)), propagation=propagation)
    bounds = propagation.bounds([box], "crown")
    assert work.rounded([box], torch.tensor([True]), bounds, [point]).tolist() == [True]
    assert work.rounded([box], torch.tensor([True]), bounds, [None]).tolist() == [False]
    wrong = dataclasses.replace(bounds, margins=bounds.margins + 1e-3)
    with pytest.raises(RuntimeError, match="sample 0"):
        work.rounded([box], torch.tensor([True]), wrong, [point])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": ()}, "eps"),
        ({"eps": (-0.1,)}, r"eps .*-0\.1"),
        ({"eps": (math.nan,)}, "eps"),
        ({"eps": (0.1, 0.1)}, "repeat"),
        ({"samples": 0}, "samples must be >= 1, got 0"),
        ({"methods": ("crwn",)}, "crwn"),
        ({"methods": ()}, "methods"),
        ({"methods": ("ibp", "ibp")}, "each once"),
        ({"norm": "l1"}, "norm must be 'linf' or 'l2', got 'l1'"),
        ({"iterations": 0}, "iterations must be >= 1, got 0"),
        ({"alpha_seconds": -1.0}, r"alpha_seconds must be finite and >= 0, got -1\.0"),
        ({"alpha_seconds": math.inf}, "alpha_seconds"),
        ({"restarts": -1}, "restarts must be >= 0, got -1"),
        ({"radius": "forward"}, "radius must be '' or one of methods .*'forward'"),
        ({"radius_steps": 0}, "radius_steps must be >= 1, got 0"),
        ({"memory": 0}, "memory must be >= 1, got 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bounds(**options)  # type: ignore[arg-type]


# The search of certified radii, with answers by hand of which balls are proven.
GRID = (0.125, 0.25, 0.5)
Grid = dict[float, tuple[torch.Tensor, torch.Tensor]]


def in_time(holds: dict[float, torch.Tensor]) -> Grid:
    return {eps: (each, torch.zeros_like(each)) for eps, each in holds.items()}


def of_limits(limits: list[float], grid: tuple[float, ...] = GRID) -> Grid:
    return in_time({eps: torch.tensor([eps <= each for each in limits]) for eps in grid})


def certifying(proves: Callable[[int, float], bool], late: bool = False) -> Callable[..., Any]:
    """Says of each sample and radius whether the ball is proven."""

    def certified(which: list[int], eps: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([*map(proves, which, eps)]), torch.full((len(which),), late)

    return certified


def test_each_sample_has_a_bracket_of_its_own() -> None:
    limits = [0.0, 0.1, 0.13, 0.3, 0.49, 0.5, 0.7]
    asked: list[int] = []

    def proves(which: int, eps: float) -> bool:
        asked.append(which)
        return eps <= limits[which]

    correct = torch.tensor([False, *[True] * 6])
    radii = search(correct, of_limits(limits), 5, certifying(proves))
    brackets = [0.0, 0.125, 0.125, 0.25, 0.25, 0.0, 0.0]
    for found, limit, bracket in zip(radii.proven.tolist(), limits, brackets, strict=True):
        least = limit - bracket / 2**5
        assert least <= found <= limit or (found == 0.5 and limit >= 0.5)
    assert radii.proven[0] == 0
    assert radii.beyond.tolist() == [False] * 5 + [True, True]
    assert not radii.late.any()
    assert sorted(asked) == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5


def test_a_proof_that_is_not_monotone_never_counts_what_was_not_certified() -> None:
    proven = {
        0.125: False,
        0.25: True,
        0.375: False,
        0.3125: True,
        0.34375: False,
        0.328125: True,
        0.5: False,
    }
    grid = in_time({eps: torch.tensor([proven[eps]]) for eps in GRID})
    radii = search(torch.tensor([True]), grid, 4, certifying(lambda _, eps: proven[eps]))
    assert radii.proven.tolist() == [0.328125]


def test_a_search_without_time_keeps_the_grid() -> None:
    late = certifying(lambda *_: False, late=True)
    radii = search(torch.tensor([True, True]), of_limits([0.3, 0.9]), 6, late)
    assert radii.proven.tolist() == [0.25, 0.5]
    assert radii.late.tolist() == [True, False]
    rows: list[Metric] = radii.metrics({"method": "crown"})
    assert [each.value for each in rows] == [0.375, 0.375, 0.25, 0.5]
    assert [each.sample for each in rows] == [None, None, 0, 1]
    assert "1 of 2 samples not searched to the end" in rows[0].reason
    assert "1 of 2 samples hold at the greatest eps" in rows[0].reason


def test_radii_of_zero_and_that_were_not_tried() -> None:
    both = torch.tensor([True, True])
    grid = in_time({0.0: torch.tensor([True, False]), 0.5: torch.tensor([False, False])})
    radii = search(torch.tensor([True, False]), grid, 1, certifying(lambda _, eps: eps <= 0.25))
    assert radii.proven.tolist() == [0.25, 0.0]
    alone = search(
        both, in_time({0.0: torch.tensor([False, True])}), 2, certifying(lambda *_: True)
    )
    assert alone.beyond.tolist() == [False, True]
    grid = of_limits([0.3, 0.3])
    grid[0.5] = (grid[0.5][0], torch.tensor([True, False]))
    assert search(both, grid, 2, certifying(lambda *_: True)).late.tolist() == [True, False]

"""The variants on real data, trained for short: what each one promises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from written import Written

from evalsuite import Data, LambdaGELU, Unsupported, census
from evalsuite.networks import load_network, save_network
from evalsuite.plugins import entries, load
from evalsuite.reluize.profile import HardnessProfile
from evalsuite.run.making import make_network
from evalsuite.variants import Made, Setup, standing
from evalsuite.variants.annealed import Annealed
from evalsuite.variants.finetuned import SwapFinetuned
from evalsuite.variants.hard_switch import HardSwitch
from evalsuite.variants.learnt import Learnt
from evalsuite.variants.post_hoc import PostHoc
from evalsuite.variants.refitted import SwapRefit
from evalsuite.variants.swapped import Swapped
from evalsuite.variants.trained import Trained
from evalsuite.variants.variant import ORDERS, SCHEDULES
from lambda_gelu import schedules
from lambda_gelu.activations.census import built_with
from lambda_gelu.activations.hardenable import Hardenable
from lambda_gelu.swapping import build_executing

VARIANTS = {
    name: standing(name) for name in ("relu", *(entry.name for entry in entries("variants")))
}
SETUP = Setup(None, None, None, 0)  # type: ignore[arg-type]
LEAVE_RELU = {name for name, variant in VARIANTS.items() if variant.executes == "relu"}


@pytest.fixture(scope="module")
def prepared() -> tuple[Setup, Data, dict[str, nn.Module]]:
    """digits-mlp for 4 epochs, and the networks that other variants start from."""
    workload = load("workloads", "digits-mlp").target(epochs=4)
    data = workload.data()
    setup = Setup(workload, data.train, data.calibration, 0)
    return (
        setup,
        data,
        {
            name: standing(name).make(setup, None).module
            for name in ("gelu", "lambda-gelu", "prelu", "relu")
        },
    )


def accuracy(module: nn.Module, data: Data) -> float:
    with torch.no_grad():
        return (
            (module(data.validation.inputs).argmax(1) == data.validation.targets)
            .float()
            .mean()
            .item()
        )


@pytest.mark.parametrize("name", sorted(LEAVE_RELU - {"swap-recalibrated"}))
def test_what_is_swapped_is_a_relu_network_that_works_and_its_base_is_left_alone(
    prepared, name: str
) -> None:
    setup, data, bases = prepared
    variant = standing(name)
    base = bases.get(variant.base)
    before = copy.deepcopy(base)
    made = variant.make(setup, base)
    assert {found.traits.name for found in census(made.module)} == {"relu"}
    assert accuracy(made.module, data) > (0.2 if name == "prelu-swap" else 0.8)
    assert not made.module.training
    if base is not None:
        assert str(base) == str(before)
        assert all(
            torch.equal(value, before.state_dict()[key]) for key, value in base.state_dict().items()
        )


def test_recalibration_needs_batchnorm_and_changes_only_its_statistics(prepared) -> None:
    setup, _, bases = prepared
    with pytest.raises(Unsupported, match="no BatchNorm"):
        standing("swap-recalibrated").make(setup, bases["gelu"])
    workload = load("workloads", "digits-cnn").target(epochs=1)
    data = workload.data()
    convolutional = Setup(workload, data.train, data.calibration, 0)
    base = standing("gelu").make(convolutional, None).module
    swapped = standing("gelu-swap").make(convolutional, base).module.state_dict()
    again = standing("swap-recalibrated").make(convolutional, base).module.state_dict()
    changed = {key for key in swapped if not torch.equal(swapped[key], again[key])}
    assert changed
    assert all("running_" in key or "num_batches" in key for key in changed)


def lambdas(made: Made) -> list[float]:
    return [
        float(each.hardness) for each in made.unswapped.modules() if isinstance(each, Hardenable)
    ]


def test_the_profile_tells_learning_from_hardening(prepared) -> None:
    setup, _, _ = prepared
    long = replace(setup, workload=load("workloads", "digits-mlp").target(epochs=8))
    made = Annealed(start=0.5).make(long, None)
    assert [layer.layer for layer in made.profile] == ["1", "3"]
    for layer in made.profile:
        places = [progress for progress, _ in layer.course]
        assert places == pytest.approx([i / 20 for i in range(21)])
        assert layer.course[0][1] == pytest.approx(1.6931, abs=1e-4)
        assert layer.course[-1][1] == pytest.approx(160, rel=1e-4)
        assert layer.learnt == pytest.approx(dict(layer.course)[0.5], abs=1e-6)
        assert dict(layer.course)[0.75] == pytest.approx((layer.learnt + 160) / 2, rel=0.02)
    found = {
        (metric.name, metric.setting["layer"])
        for layer in made.profile
        for metric in layer.metrics()
    }
    assert len(found) == 8


def test_lambda_per_channel_and_a_fixed_one(prepared) -> None:
    setup, _, _ = prepared
    made = Learnt(per_channel=True).make(setup, None)
    assert [layer.spread is not None and layer.spread > 0 for layer in made.profile] == [True, True]
    fixed = Learnt(initial=2.5, learn=False).make(setup, None)
    assert all(
        value == pytest.approx(2.5, rel=1e-5)
        for layer in fixed.profile
        for _, value in layer.course
    )


@pytest.mark.slow
def test_lambda_per_channel_of_a_transformer_is_per_feature(tmp_path: Path) -> None:
    workload = load("workloads", "digits-vit").target(epochs=1, batch_size=256)
    data = workload.data()
    network, _ = make_network(workload, data, Learnt(per_channel=True), 0, name="x")
    layers = [each for each in network.module.modules() if isinstance(each, Hardenable)]
    assert [(len(each.hardness), each.dimension) for each in layers] == [(96, -1), (96, -1)]
    assert all(each.hardness.std() > 0 for each in layers)
    save_network(network, tmp_path / "n", workload)
    restored = load_network(tmp_path / "n", workload, data)
    assert torch.equal(restored.module(data.test.inputs), network.module(data.test.inputs))


def test_a_profile_of_a_network_without_lambda_is_empty() -> None:
    profile = HardnessProfile(nn.Sequential(nn.Linear(2, 2), nn.GELU()))
    profile(0.5)
    assert profile.finish() == []


def test_a_profile_of_few_steps_notes_each_place_at_its_own_progress() -> None:
    activation = LambdaGELU()
    profile = HardnessProfile(nn.Sequential(activation), points=20)
    for step in range(1, 5):
        activation.set_hardness(10.0 * step)
        profile(step / 4)
    (layer,) = profile.finish()
    course = dict(layer.course)
    assert list(course) == pytest.approx([i / 20 for i in range(21)])
    assert [course[0.25], course[0.5], course[0.75], course[1.0]] == pytest.approx([10, 20, 30, 40])


def test_the_switch_happens_at_its_place(prepared) -> None:
    setup, data, bases = prepared
    late = HardSwitch(start=0.999).make(setup, None)
    assert not torch.equal(late.module(data.test.inputs), bases["relu"](data.test.inputs))


@pytest.mark.parametrize("activation", ["gelu", "tanh", "sigmoid", "hard-sigmoid", "softplus"])
def test_a_network_that_is_switched_at_once_is_the_relu_network(prepared, activation: str) -> None:
    setup, data, bases = prepared
    made = HardSwitch(start=0.0, activation=activation).make(setup, None)
    assert torch.equal(made.module(data.test.inputs), bases["relu"](data.test.inputs))


@pytest.mark.parametrize("to", ["prelu", "lambda-gelu", "xielu"])
def test_a_switch_to_what_would_never_be_learnt_is_refused(
    prepared, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "evalsuite.reluize.training.fit", lambda *_, **__: pytest.fail("it was trained")
    )
    with pytest.raises(
        Unsupported, match=f"to: '{to}' learns .*choose one that learns nothing, such as 'relu'"
    ):
        HardSwitch(to=to).make(prepared[0], None)


def test_budgets_say_what_was_spent(prepared) -> None:
    setup, _, bases = prepared
    assert standing("gelu-swap").make(setup, bases["gelu"]).budget == 1.0
    assert SwapFinetuned(share=0.25).make(setup, bases["gelu"]).budget == 1.25
    assert PostHoc().make(setup, bases["gelu"]).budget == 1.1


def test_distilling_brings_the_swapped_network_nearer_to_its_teacher(prepared) -> None:
    setup, data, bases = prepared
    variants = (standing("gelu-swap"), SwapRefit(), SwapFinetuned(distill=1.0))
    made = [variant.make(setup, bases["gelu"]).module for variant in variants]
    with torch.no_grad():
        wanted = bases["gelu"](data.validation.inputs)
        gaps = [(module(data.validation.inputs) - wanted).abs().mean().item() for module in made]
    assert gaps[1] < gaps[0]
    assert gaps[2] < gaps[0]


def test_fine_tuning_may_start_from_the_refitted_network(prepared) -> None:
    setup, data, bases = prepared
    almost_nothing = (
        SwapFinetuned(refit=True, share=1e-6, rate=1e-6).make(setup, bases["gelu"]).module
    )
    refitted = SwapRefit().make(setup, bases["gelu"]).module
    with torch.no_grad():
        torch.testing.assert_close(
            almost_nothing(data.test.inputs), refitted(data.test.inputs), rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Annealed(start=1.0), r"start must be in \[0, 1\)"),
        (lambda: Annealed(target=0.5), "target must be > 1, got 0.5"),
        (
            lambda: Annealed(schedule="cubic"),
            "schedule must be one of linear, geometric, reciprocal, got 'cubic'",
        ),
        (lambda: Annealed(order="random"), "order must be one of"),
        (lambda: Learnt(temperature=0.0), "temperature must be > 0"),
        (lambda: Learnt(step=-1.0), "step must be > 0"),
        (lambda: Learnt(initial=1.0), "initial must be > 1"),
        (lambda: HardSwitch(start=-0.1), "start must be in"),
        (lambda: SwapFinetuned(share=0.0), r"share must be in \(0, 1\]"),
        (lambda: SwapFinetuned(distill=2.0), r"distill must be in \[0, 1\]"),
        (lambda: PostHoc(target=1.0), "target must be > 1"),
        (
            lambda: HardSwitch()._switch(nn.Linear(2, 2)),
            "no module of Linear computes 'gelu', so there is nothing to",
        ),
        (lambda: standing("gelu-swap").make(SETUP, None), "starts from the network of 'gelu'"),
    ],
)
def test_impossible_options_are_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_variants_know_every_schedule_and_order() -> None:
    # Named twice, since reading a recipe imports no torch.
    assert tuple(schedules.SCHEDULES) == SCHEDULES
    assert schedules.ORDERS == ORDERS


ACTIVATIONS = [entry.name for entry in entries("activations")]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_trains_and_is_the_target_and_the_source_of_a_swap(
    prepared, name: str
) -> None:
    _, data, bases = prepared
    workload = load("workloads", "digits-mlp").target(epochs=1)
    trained = make_network(workload, data, Trained(name), 0, name=name)[0]
    assert {found.traits.name for found in built_with(trained.module)} == {name}
    onto = make_network(workload, data, Swapped(to=name), 0, name="x", base=bases["gelu"])[0]
    assert {found.traits.name for found in built_with(onto.module)} == {name}
    away = make_network(workload, data, Swapped(name), 0, name="x", base=trained.module)[0]
    assert {found.traits.name for found in census(away.module, gates=True)} == {"relu"}


@pytest.mark.parametrize(
    "name", [name for name in ACTIVATIONS if load("activations", name).target.hardened_by]
)
def test_smooth_activations_are_hardened_from_the_start_and_afterwards(prepared, name: str) -> None:
    setup, _, _ = prepared
    short = replace(setup, workload=load("workloads", "digits-mlp").target(epochs=1))
    annealed = Annealed(activation=name, target=20.0, schedule="geometric").make(short, None)
    assert lambdas(annealed) == pytest.approx([20.0, 20.0], rel=1e-4)
    base = Trained(name).make(short, None).module
    post = PostHoc(base=name, target=20.0, schedule="reciprocal").make(short, base)
    assert lambdas(post) == pytest.approx([20.0, 20.0], rel=1e-4)
    assert {found.traits.name for found in census(SwapRefit(name).make(short, base).module)} == {
        "relu"
    }


def test_what_cannot_be_hardened_is_unsupported_and_told_what_can(prepared) -> None:
    setup, _, bases = prepared
    told = "'relu' has no form with a learnable hardness; those with one: elu, gelu"
    for variant in (Annealed(activation="relu"), Learnt(activation="relu")):
        with pytest.raises(Unsupported, match=told):
            variant.make(setup, None)
    with pytest.raises(
        Unsupported,
        match="network of 'relu' cannot be hardened; choose as `base` one with a smooth",
    ):
        PostHoc(base="relu").make(setup, bases["relu"])


class _Deaf(nn.Sequential):
    """A network whose author forgot the activation that it was given."""

    def __init__(self, activation: Callable[[int], nn.Module], *, ignores: bool) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.GELU() if ignores else activation(16),
            nn.Linear(16, 10),
        )
        self.extra = not ignores

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(x)
        return torch.nn.functional.gelu(y) if self.extra else y


@pytest.mark.parametrize("ignores", [True, False], ids=["a module", "a function"])
def test_a_network_that_executes_another_activation_fails_before_it_is_trained(
    prepared, ignores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, data, _ = prepared
    kind = type(setup.workload)
    monkeypatch.setattr(kind, "build", lambda self, activation: _Deaf(activation, ignores=ignores))
    monkeypatch.setattr(
        "evalsuite.reluize.training.fit", lambda *_, **__: pytest.fail("it was trained")
    )
    culprit = "GELU at 2" if ignores else r"gelu at \(the network itself\)"
    with pytest.raises(
        ValueError,
        match=f"to execute 'relu', but a run of it executes {culprit}.*let the workload's",
    ):
        make_network(setup.workload, data, Trained("relu"), 0, name="x")


def _parts(*parts: nn.Module, left_out: tuple[nn.Module, ...] = ()) -> nn.Module:
    """Applies one part after another; one that is left out is a module of it all the same."""
    return Written(
        lambda net, x: net.parts(x), parts=nn.Sequential(*parts), left_out=nn.ModuleList(left_out)
    )


def _gated(width: int, activation: nn.Module) -> nn.Module:
    """Squeeze and excitation: x times a gate, after an activation of its own."""
    gate = nn.Sequential(nn.Linear(width, 4), activation, nn.Linear(4, width), nn.Sigmoid())
    return Written(lambda net, x: x * net.gate(x), gate=gate)


def _hard_coded(_: Callable[[int], nn.Module]) -> nn.Module:
    return _parts(nn.Linear(64, 16), nn.Tanh(), _gated(16, nn.Tanh()), nn.Linear(16, 10))


def _uncalled(activation: Callable[[int], nn.Module]) -> nn.Module:
    parts = nn.Linear(64, 16), activation(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 10)
    return _parts(*parts, left_out=(activation(16),))


def _excited(activation: Callable[[int], nn.Module]) -> nn.Module:
    return _parts(nn.Linear(64, 16), activation(16), _gated(16, nn.ReLU()), nn.Linear(16, 10))


@pytest.mark.parametrize(
    ("build", "name", "said"),
    [
        (
            _hard_coded,
            "sigmoid",
            "the network contains none that this function made: call that function for each",
        ),
        (
            _uncalled,
            "relu",
            r"the network never calls the one at left_out\.0: call that function for each",
        ),
        (
            _excited,
            "gelu",
            r"executes ReLU at parts\.2\.gate\.1 \(module\): .* and write none itself",
        ),
    ],
)
def test_every_activation_that_build_asks_for_is_executed_and_none_is_hard_coded(
    prepared, build: Callable[[Callable[[int], nn.Module]], nn.Module], name: str, said: str
) -> None:
    inputs = prepared[0].train.inputs[:2]
    with pytest.raises(ValueError, match=said):
        build_executing(build, load("activations", name).target.make, name, inputs)


def test_gates_of_the_architecture_and_activations_that_are_thrown_away_do_not_matter(
    prepared,
) -> None:
    def build(activation: Callable[[int], nn.Module]) -> nn.Module:
        activation(3)
        return _parts(
            nn.Linear(64, 16), activation(16), _gated(16, activation(4)), nn.Linear(16, 10)
        )

    for name in ("gelu", "sigmoid", "prelu"):
        built = build_executing(
            build, load("activations", name).target.make, name, prepared[0].train.inputs[:2]
        )
        assert [found.path for found in census(built, gates=True) if found.traits.name == name][
            :1
        ] == ["parts.1"]
        assert not any("_given_to_build" in vars(each) for each in built.modules())


@pytest.mark.parametrize("name", ["gelu", "gelu-tanh", "lambda-gelu"])
def test_the_transformer_of_torch_is_trained_saved_and_swapped(
    prepared, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(_: object, activation: Callable[[int], nn.Module]) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation(16), batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return nn.Sequential(nn.Unflatten(1, (8, 8)), encoder, nn.Flatten(), nn.Linear(64, 10))

    workload, data = load("workloads", "digits-mlp").target(epochs=1), prepared[1]
    monkeypatch.setattr(type(workload), "build", build)
    network, _ = make_network(workload, data, Trained(name), 0, name=name)
    x = data.test.inputs[:8]
    with torch.no_grad():
        fused = network.module(x)
    # with gradients: the activation is called
    torch.testing.assert_close(fused, network.module(x), rtol=0, atol=1e-6)
    save_network(network, tmp_path, workload)
    assert torch.equal(load_network(tmp_path, workload, data).module(x), network.module(x))
    onto = make_network(workload, data, Swapped(name, to="silu"), 0, name="x", base=network.module)[
        0
    ]
    assert {found.traits.name for found in census(onto.module)} == {"silu"}


def _keeping(activation: nn.Module) -> nn.Module:
    """Keeps its weight and its hidden values of each pass, as many do to show them."""

    def call(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.hidden = net.activation(net.first(x))
        return net.last(net.hidden)  # type: ignore[no-any-return]

    first = nn.utils.weight_norm(nn.Linear(64, 16))
    return Written(call, first=first, activation=activation, last=nn.Linear(16, 10))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_a_network_keeps_of_a_pass_is_in_no_ones_way(
    prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch copies no tensor with a history: networks with weight_norm were trained in vain."""
    workload, data = load("workloads", "digits-mlp").target(epochs=1), prepared[1]
    monkeypatch.setattr(type(workload), "build", lambda _, activation: _keeping(activation(16)))
    network, _ = make_network(workload, data, Trained("gelu"), 0, name="kept")
    make_network(workload, data, Annealed(), 0, name="annealed")
    swapped = make_network(workload, data, Swapped(), 0, name="swapped", base=network.module)[0]
    save_network(swapped, tmp_path, workload)
    inputs = data.test.inputs[:8]
    assert torch.equal(
        load_network(tmp_path, workload, data).module(inputs), swapped.module(inputs)
    )
    assert torch.equal(copy.deepcopy(network.module)(inputs), network.module(inputs))

"""Treatments: each against a reference of its own, and what they do to really trained networks."""

from __future__ import annotations

import copy
import math
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from brevitas.graph.gptq import gptq_mode
from scipy.special import softmax
from scipy.stats import entropy
from torch import fx, nn
from written import Written

from evalsuite import Bench, Split, Unsupported, fold_hardness
from pipelines.quantize.calibration import calibrate, quantizer_of
from pipelines.quantize.placement import COMPUTE, Bits, Scales, Scheme, place
from pipelines.quantize.sensitivity import Loss, Reference
from pipelines.quantize.tracing import trace
from pipelines.quantize.training import train
from pipelines.quantize.treatment import CANDIDATES, PLAIN, Treatment, quantize, treat, tune
from pipelines.quantize.weights import Products, equalize, round_weights

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

ALL = Treatment("mse", "mse", "gptq", bias_correction=True, equalization=True)


def layers(quantized: nn.Module) -> dict[str, Any]:
    return {name: each for name, each in quantized.named_modules() if isinstance(each, COMPUTE)}


def integers(quantized: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.quant_weight().int() for name, each in layers(quantized).items()}


def accuracy(module: nn.Module, split: Split) -> float:
    with torch.no_grad():
        return (module(split.inputs).argmax(1) == split.targets).double().mean().item()


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding="same", bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, groups=6, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(6, 8, 2, groups=2, dilation=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 12),
        nn.ReLU(),
        nn.Linear(12, 5),
    ).eval()


IMAGES = torch.rand(48, 1, 12, 12, generator=torch.Generator().manual_seed(7))
STOPS = "scales in front of layer_1 (GELU) do not cancel behind it"


@cache
def traced_convolutions() -> fx.GraphModule:
    return trace(convolutions(), (1, 12, 12))


def test_equalization_by_hand() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    first, second = (module.get_submodule(each) for each in "02")
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[8.0, -2.0], [0.5, 0.25]]))
        first.bias.copy_(torch.tensor([4.0, 1.0]))
        second.weight.copy_(torch.tensor([[2.0, -0.125]]))
    equalized, pairs, _ = equalize(trace(module, (2,)))
    # r1 = 8, 1/2 and r2 = 2, 1/8: s = sqrt(r1 / r2) = 2, 2.
    assert pairs == (("layer_0", "layer_2"),)
    made = dict(equalized.named_parameters())
    assert made["layer_0.weight"].tolist() == [[4.0, -1.0], [0.25, 0.125]]
    assert made["layer_0.bias"].tolist() == [2.0, 0.5]
    assert made["layer_2.weight"].tolist() == [[4.0, -0.25]]
    assert first.weight[0, 0] == 8


def test_equalized_networks_give_the_same_with_like_ranges() -> None:
    module = convolutions()
    with torch.no_grad():
        for each in module.parameters():
            each *= torch.logspace(-1, 1, len(each)).view(-1, *[1] * (each.dim() - 1))
    traced = trace(module, (1, 12, 12))
    equalized, pairs, _ = equalize(traced)
    assert pairs == (
        ("layer_0", "layer_3"),
        ("layer_3", "layer_5"),
        ("layer_5", "layer_9"),
        ("layer_9", "layer_11"),
    )
    with torch.no_grad():
        wanted, got = module(IMAGES), equalized(IMAGES)
        assert (got - wanted).abs().max() < 1e-5 * wanted.abs().max()
        assert torch.equal(traced(IMAGES), wanted)
    made, depthwise = (
        equalized.get_parameter(f"{name}.weight").detach().abs() for name in ("layer_0", "layer_3")
    )
    np.testing.assert_allclose(made.amax((1, 2, 3)), depthwise.amax((1, 2, 3)), rtol=0.01)


def residual() -> nn.Module:
    layers = {name: nn.Linear(8, 8) for name in ("first", "second", "last")}
    added = Written(lambda net, x: net.last(torch.relu(x + net.second(x))), **layers)
    return Written(
        lambda net, x: net.rest(torch.relu(net.first(x))), first=nn.Linear(8, 8), rest=added
    )


@pytest.mark.parametrize(
    ("module", "pairs", "note"),
    [
        (residual(), (), ""),
        # Over the last dimension, which is no channel of the convolution.
        (
            nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 6, 3), nn.ReLU(), nn.Linear(6, 6)),
            (),
            "",
        ),
        # Pools over features mix what the linear layer makes.
        (nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.AvgPool1d(2), nn.Linear(3, 3)), (), ""),
        (nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)), (), f"; {STOPS}"),
        (
            nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)),
            (("layer_2", "layer_4"),),
            STOPS,
        ),
    ],
)
def test_where_equalization_stops(
    module: nn.Module, pairs: tuple[tuple[str, str], ...], note: str
) -> None:
    treated = treat(
        trace(module, (8,)), Scheme(Bits(8, 8)), torch.rand(9, 8), Treatment(equalization=True)
    )
    assert treated.equalized == pairs
    assert treated.notes == (
        f"equalization: {'' if pairs else 'no pair of layers to equalize'}{note}",
    )


@torch.no_grad()
@pytest.mark.parametrize("rounding", ["gptq", "gpfq"])
@pytest.mark.parametrize(
    "options", [{}, {"groups": 4}, {"stride": 2, "padding": 2}, {"padding": "same", "dilation": 2}]
)
def test_rounding_by_outputs_brings_outputs_nearer(rounding: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    # Inputs that go together, as those of real layers do: independent ones leave nothing to make up
    # for.
    inputs = torch.relu(torch.randn(32, 1, 9, 9) + 0.5 * torch.randn(32, 8, 9, 9))
    module = nn.Sequential(nn.Conv2d(8, 12, 3, **options))
    layer = layers(place(trace(module, (8, 9, 9)), Scheme(Bits(3, 8))))["layer_0"]
    before, nearest = layer.weight.clone(), layer.quant_weight()
    share = round_weights(layer, rounding, Products(layer, inputs))
    after = layer.quant_weight()
    assert 0.02 < share == (after.int() != nearest.int()).double().mean()
    assert torch.equal(after.scale, nearest.scale)
    assert int(after.int().abs().max()) <= 3
    assert ((after.value - layer.weight).abs() <= 0.491 * after.scale).all()

    def error(weight: torch.Tensor) -> float:
        off = nn.functional.conv2d(
            inputs, weight - before, None, layer.stride, layer.padding, layer.dilation, layer.groups
        )
        return float(off.square().sum())

    assert error(after.value) < 0.8 * error(nearest.value)


@torch.no_grad()
def test_gptq_gives_the_integers_of_brevitas() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 16))
    inputs = torch.randn(200, 1) + torch.randn(200, 24)
    quantized = place(trace(module, (24,)), Scheme(Bits(4, 8)))
    calibrate(quantized, inputs)
    theirs = copy.deepcopy(quantized)
    with warnings.catch_warnings(), gptq_mode(theirs, num_blocks=1, dtype=torch.float64) as mode:
        warnings.simplefilter("ignore")
        for _ in range(mode.num_layers):
            mode.model(inputs)
            mode.update()
    plain = quantized.get_submodule("layer_0")
    nearest = integers(quantized)["layer_0"]
    given = quantized.get_submodule("quantize_input")(inputs).value
    round_weights(plain, "gptq", Products(plain, given))
    ours, brevitas = integers(quantized)["layer_0"], integers(theirs)["layer_0"]
    assert (ours != nearest).double().mean() > 0.05
    assert (ours != brevitas).double().mean() < 0.01


@torch.no_grad()
def test_gpfq_by_hand() -> None:
    """One sample, one output: q_1 = Q(0.6) = 1, u = -0.4 x 1, q_2 = Q(0.6 - 0.4) = 0; nearest
    gives 1, 1.
    """
    module = nn.Sequential(nn.Linear(3, 1, bias=False))
    module[0].weight.copy_(torch.tensor([[0.6, 0.6, 3.0]]))
    layer = layers(place(trace(module, (3,)), Scheme(Bits(3, 8))))["layer_0"]
    assert layer.quant_weight().int().tolist() == [[1, 1, 3]]
    round_weights(layer, "gpfq", Products(layer, torch.tensor([[1.0, 1.0, 0.0]])))
    # The third input is 0: its weight is rounded to nearest.
    assert layer.quant_weight().int().tolist() == [[1, 0, 3]]


@pytest.mark.parametrize("rounding", ["gptq", "gpfq"])
def test_rounding_that_changes_nothing_says_so(rounding: Any) -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[127.0, 3.0], [-5.0, 127.0]]))
    treated = treat(
        trace(module, (2,)),
        Scheme(Bits(8, 8)),
        torch.eye(2).repeat(4, 1),
        Treatment(weight_rounding=rounding),
    )
    assert treated.rerounded == {"layer_0": 0.0}
    assert treated.notes == (f"{rounding}: no integer came out other than rounded to nearest",)


def mean_errors(
    quantized: fx.GraphModule, traced: fx.GraphModule, inputs: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Of each channel of each layer, its mean output less that of the float network."""
    found: dict[str, torch.Tensor] = {}
    traced = copy.deepcopy(traced)

    def keep(name: str, sign: int) -> Any:
        def hook(_layer: nn.Module, _given: Any, made: torch.Tensor) -> None:
            means = made.flatten(2).mean((0, 2)) if made.dim() > 2 else made.mean(0)
            found[name] = found.get(name, torch.zeros(())) + sign * means

        return hook

    for name in layers(quantized):
        quantized.get_submodule(name).register_forward_hook(keep(name, 1))
        traced.get_submodule(name).register_forward_hook(keep(name, -1))
    with torch.no_grad():
        quantized(inputs), traced(inputs)
    return found


def test_corrected_biases_take_up_the_mean_error() -> None:
    traced = traced_convolutions()
    plain, corrected = (
        treat(traced, Scheme(Bits(3, 4)), IMAGES, Treatment(bias_correction=on)).network
        for on in (False, True)
    )
    before, after = mean_errors(plain, traced, IMAGES), mean_errors(corrected, traced, IMAGES)
    assert len(before) == 5
    for node in corrected.graph.nodes:
        if (name := str(node.target)) in before:
            # The first layer had no biases: it has got some. A bias is a multiple of this step.
            grid = quantizer_of(corrected, node.all_input_nodes[0]).act_quant.scale()
            step = grid * corrected.get_submodule(name).quant_weight().scale.max()
            assert after[name].abs().max() <= 0.501 * step
            assert after[name].abs().sum() < 0.5 * before[name].abs().sum()


@pytest.mark.parametrize(("scales", "variant"), [("float", "relu"), ("power-of-two", "gelu")])
@pytest.mark.slow
def test_treatments_keep_the_grid_through_training(
    network: MakeNetwork, bench: MakeBench, scales: Scales, variant: str
) -> None:
    made, room = network("digits-mlp", variant), bench("digits-mlp")
    scheme = Scheme(Bits(3, 4), scales=scales)
    traced = trace(fold_hardness(made.module), made.input_shape)
    treated = treat(traced, scheme, room.data.calibration.inputs, ALL).network
    trained = train(treated, room, 2)
    assert not any(each.training for each in trained.modules())
    weights = [
        [each.quant_weight() for each in layers(quantized).values()]
        for quantized in (treated, trained)
    ]
    for before, after in zip(*weights, strict=True):
        assert max(each.int().abs().max() for each in (before, after)) <= 3
        assert torch.equal(before.scale, after.scale)
        assert scales == "float" or torch.equal(after.scale.log2(), after.scale.log2().round())
    assert any(
        not torch.equal(before.int(), after.int()) for before, after in zip(*weights, strict=True)
    )


@pytest.mark.slow
def test_low_bits_gain_by_treatment_and_by_training(network: MakeNetwork, bench: MakeBench) -> None:
    made, room = network("digits-mlp", "relu"), bench("digits-mlp")
    traced, inputs = trace(made.module, made.input_shape), room.data.calibration.inputs
    scheme = Scheme(Bits(2, 2))
    plain = treat(traced, scheme, inputs, PLAIN)
    tuned = tune(traced, scheme, inputs)
    test = room.data.test
    assert accuracy(tuned.treated.network, test) > accuracy(plain.network, test) + 0.1
    assert accuracy(train(plain.network, room, 3), test) > accuracy(plain.network, test) + 0.1


def test_weights_rounded_by_outputs_stay_near_their_float_values_for_training() -> None:
    """Left on their integers, they would have to go half a step before anything changes."""
    traced = traced_convolutions()
    treated = treat(traced, Scheme(Bits(3, 8)), IMAGES, Treatment(weight_rounding="gptq"))
    for name, layer in layers(treated.network).items():
        wanted, found = traced.get_submodule(name).weight, layer.quant_weight()
        steps = ((layer.weight - found.value).abs() / found.scale).flatten()
        nearest = ((wanted - found.value).abs() < 0.49 * found.scale).flatten()
        assert torch.allclose(layer.weight.flatten()[nearest], wanted.flatten()[nearest])
        assert steps[~nearest].detach().numpy() == pytest.approx(0.49, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.02])
def test_training_is_reproducible_and_changes_nothing_it_was_given(
    network: MakeNetwork, bench: MakeBench, rate: float
) -> None:
    made, room = network("digits-mlp", "relu"), bench("digits-mlp")
    quantized = quantize(
        made.module, made.input_shape, Scheme(Bits(3, 3)), room.data.calibration.inputs, ALL
    )
    before = {name: each.clone() for name, each in quantized.named_parameters()}
    learnt = [each.requires_grad for each in quantized.parameters()]
    random, threads, found = torch.get_rng_state(), torch.get_num_threads(), []
    try:
        for count, seed in ((1, 0), (2, 0), (1, 1)):
            torch.set_num_threads(count)
            found.append(
                dict(train(quantized, bench("digits-mlp", seed=seed), 1, rate).named_parameters())
            )
    finally:
        torch.set_num_threads(threads)
    first, second, other = found
    assert first.keys() == second.keys() == before.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert any(not torch.equal(first[name], before[name]) for name in first)
    assert all(torch.equal(each, before[name]) for name, each in quantized.named_parameters())
    assert [each.requires_grad for each in quantized.parameters()] == learnt
    assert torch.equal(torch.get_rng_state(), random)


def test_training_that_cannot_be(network: MakeNetwork, bench: MakeBench) -> None:
    made, room = network("digits-mlp", "relu"), bench("digits-mlp")
    quantized = quantize(
        made.module, made.input_shape, Scheme(Bits(4, 4)), room.data.calibration.inputs
    )
    with pytest.raises(ValueError, match="epochs must be at least 0, got -1"):
        train(quantized, room, -1)

    def explode(module: nn.Module, epochs: int, /, **_options: object) -> None:
        next(each for each in module.parameters() if each.requires_grad).data.fill_(math.inf)

    with pytest.raises(Unsupported, match=r"diverged: .*weight is not finite after 3 epochs"):
        train(quantized, Bench(room.data, 0, room.folder, 60, explode), 3)


def test_divergence_against_scipy() -> None:
    first, second = np.random.default_rng(0).normal(size=(2, 6, 4))
    wanted = entropy(softmax(first, axis=1), softmax(second, axis=1), axis=1).mean()
    inputs, moved = torch.from_numpy(first), torch.from_numpy(second - first)
    found = Reference(nn.Identity(), inputs).loss(Written(lambda _, x: x + moved))
    assert found.divergence == pytest.approx(wanted)
    assert found.changed == np.mean(first.argmax(1) != second.argmax(1))
    assert Reference(nn.Identity(), inputs).loss(nn.Identity()) == Loss(0.0, 0.0)


@pytest.mark.slow
def test_tuning_chooses_by_calibration_inputs_alone(network: MakeNetwork, bench: MakeBench) -> None:
    made, room = network("digits-mlp", "gelu"), bench("digits-mlp")
    traced, inputs = (
        trace(fold_hardness(made.module), made.input_shape),
        room.data.calibration.inputs,
    )
    tuned = tune(traced, Scheme(Bits(2, 3)), inputs)
    assert [each.treatment for each in tuned.trials] == list(CANDIDATES)
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    losses = {each.treatment: each.loss for each in tuned.trials if each.loss is not None}
    assert losses[tuned.treatment] == min(losses.values())
    (unequalized,) = (each for each in tuned.trials if each.loss is None)
    assert unequalized.treatment.equalization
    assert unequalized.reason.startswith(
        "equalization: no pair of layers to equalize; scales in front of "
    )
    whole = treat(traced, Scheme(Bits(2, 3)), inputs, tuned.treatment).network
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.parameters(), tuned.treated.network.parameters(), strict=True)
    )
    first = tuned.trials[0]
    halves = treat(traced, Scheme(Bits(2, 3)), inputs[::2], CANDIDATES[0]).network
    with torch.no_grad():
        wanted, found = (each(inputs[1::2]).double().log_softmax(-1) for each in (traced, halves))
    assert first.loss == pytest.approx((wanted.exp() * (wanted - found)).sum(1).mean().item())


def test_tuning_without_a_way() -> None:
    traced = trace(nn.Linear(8, 3), (8,))
    for inputs, candidates, error, text in (
        (torch.rand(4, 8), [], ValueError, "no candidate treatment"),
        (torch.rand(0, 8), CANDIDATES, ValueError, "calibration set is empty"),
        (
            torch.zeros(4, 8),
            CANDIDATES,
            Unsupported,
            r"no treatment can be applied: quantize_input: .* no range",
        ),
    ):
        with pytest.raises(error, match=text):
            tune(traced, Scheme(Bits(8, 8)), inputs, candidates)


@pytest.mark.slow
@pytest.mark.parametrize("treatment", [*CANDIDATES, Treatment("max", "max", "gpfq")], ids=str)
@pytest.mark.parametrize("scales", ["float", "power-of-two"])
def test_one_sample_is_enough(treatment: Treatment, scales: Scales) -> None:
    treated = treat(traced_convolutions(), Scheme(Bits(8, 8), scales=scales), IMAGES[:1], treatment)
    with torch.no_grad():
        off = (treated.network(IMAGES[:1]) - convolutions()(IMAGES[:1])).abs().max()
    assert off < 0.05


def test_treated_networks_are_the_same_for_every_number_of_threads() -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(treat(traced_convolutions(), Scheme(Bits(4, 4)), IMAGES, ALL))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    first, second = found
    assert first.rerounded == second.rerounded
    assert any(first.rerounded.values())
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)

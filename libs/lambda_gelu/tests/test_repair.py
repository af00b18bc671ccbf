from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from networks_by_hand import Written
from scipy.special import log_softmax
from torch import nn
from torch.nn import functional

from lambda_gelu import swap_to_relu
from lambda_gelu.repair import distill_loss, recalibrate_batchnorm, refit, refit_bias


def means(
    module: nn.Module, inputs: torch.Tensor, paths: list[str], axis: int = -1
) -> dict[str, torch.Tensor]:
    """Each layer's mean output per feature, read by hooks of the test's own."""
    found = {}

    def hook(path: str):
        return lambda _, __, output: found.__setitem__(
            path, output.movedim(axis, -1).flatten(0, -2).double().mean(0)
        )

    handles = [module.get_submodule(path).register_forward_hook(hook(path)) for path in paths]
    with torch.no_grad():
        module(inputs)
    for handle in handles:
        handle.remove()
    return found


def mlp(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def test_the_shift_of_one_layer_is_its_weight_times_the_mean_change_of_its_input() -> None:
    module, x = mlp(3, 5, 2), torch.randn(100, 3)
    swapped = swap_to_relu(module)
    repaired = refit_bias(swapped, module, x)
    before = x @ module[0].weight.T + module[0].bias
    change = (functional.gelu(before) - before.relu()).mean(0)
    torch.testing.assert_close(repaired[2].bias, module[2].bias + module[2].weight @ change)
    assert torch.equal(repaired[0].bias, module[0].bias)
    assert torch.equal(repaired[2].weight, module[2].weight)


def test_every_layer_has_the_original_mean_again_and_nothing_given_is_changed() -> None:
    module, x = mlp(6, 16, 16, 16, 4), torch.randn(200, 6)
    swapped = swap_to_relu(module)
    saved = [
        {name: tensor.clone() for name, tensor in each.state_dict().items()}
        for each in (module, swapped)
    ]
    paths = ["2", "4", "6"]
    repaired = refit(swapped, module, x)
    assert repaired.changed == tuple(paths)
    assert not repaired.skipped
    wanted, got, was = (means(each, x, paths) for each in (module, repaired.module, swapped))
    for path in paths:
        torch.testing.assert_close(got[path], wanted[path], rtol=0, atol=1e-6)
        assert (was[path] - wanted[path]).abs().max() > 1e-3
    for each, state in zip((module, swapped), saved, strict=True):
        assert all(torch.equal(tensor, each.state_dict()[name]) for name, tensor in state.items())
        assert not any(layer._forward_hooks for layer in each.modules())
    assert not any(layer._forward_hooks for layer in repaired.module.modules())
    again = refit(swapped, module, x).module.state_dict()
    assert all(
        torch.equal(tensor, again[name]) for name, tensor in repaired.module.state_dict().items()
    )


def test_the_scale_is_the_regression_of_the_original_on_the_swapped_output() -> None:
    module, x = mlp(3, 8, 2).double(), torch.randn(300, 3, dtype=torch.float64)
    swapped = swap_to_relu(module)
    repaired = refit_bias(swapped, module, x, scale=True)
    with torch.no_grad():
        wanted, plain, got = module(x), swapped(x), repaired(x)
    for unit in range(2):
        design = torch.stack([plain[:, unit], torch.ones(300, dtype=torch.float64)], 1)
        expected = design @ torch.linalg.lstsq(design, wanted[:, unit : unit + 1]).solution
        torch.testing.assert_close(got[:, unit], expected[:, 0])
    assert torch.equal(repaired[0].weight, module[0].weight)


class Residual(nn.Module):
    """Tokens in, LayerNorm, residuals, features last, and a head that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(8, 32) for _ in range(2))
        self.act = nn.GELU()
        self.down = nn.ModuleList(nn.Linear(32, 8) for _ in range(2))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + self.attention(x, x, x, need_weights=False)[0]
            x = x + down(self.act(up(norm(x))))
        return self.head(x)


@pytest.mark.parametrize("scale", [False, True])
def test_a_transformer_with_tokens_residuals_and_tied_weights(scale: bool) -> None:
    module = Residual().eval()
    tokens = torch.randint(0, 11, (40, 7), generator=torch.Generator().manual_seed(1))
    swapped = swap_to_relu(module)
    repaired = refit(swapped, module, tokens, scale=scale)
    assert repaired.changed == ("down.0", "up.1", "down.1", "head")
    assert repaired.skipped == {
        "attention.out_proj": "not called as a module of that path in the original"
    }
    assert repaired.module.head.weight is repaired.module.embedding.weight
    assert torch.equal(repaired.module.embedding.weight, module.embedding.weight)
    paths = ["down.0", "up.1", "down.1", "head"]
    wanted, got = means(module, tokens, paths), means(repaired.module, tokens, paths)
    for path in paths:
        torch.testing.assert_close(got[path], wanted[path], rtol=0, atol=2e-6)
    with torch.no_grad():
        logits, plain, fixed = module(tokens), swapped(tokens), repaired.module(tokens)
    assert (fixed - logits).square().mean() < 0.5 * (plain - logits).square().mean()


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GELU(),
        nn.Conv2d(4, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.GELU(),
        nn.ConvTranspose2d(6, 3, 2, bias=False),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(3 * 25, 2),
    )
    module(torch.randn(64, 1, 8, 8))  # statistics other than the initial ones
    return module.eval()


@pytest.mark.parametrize("scale", [False, True])
def test_convolutions_are_repaired_per_channel_and_a_missing_bias_is_left_to_batchnorm(
    scale: bool,
) -> None:
    module, x = convolutional(), torch.randn(50, 1, 8, 8)
    repaired = refit(swap_to_relu(module), module, x, scale=scale)
    assert repaired.changed == ("3", "5", "8")
    assert repaired.skipped == {"2": "no bias: left to the BatchNorm behind"}
    assert repaired.module[2].bias is None
    assert repaired.module[5].bias.shape == (3,)
    wanted, got = (
        means(module, x, ["3", "5"], axis=1),
        means(repaired.module, x, ["3", "5"], axis=1),
    )
    for path in ("3", "5"):
        torch.testing.assert_close(got[path], wanted[path], rtol=0, atol=1e-6)


def test_inputs_by_name_and_by_position() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = mlp(3, 5, 2)

        def forward(self, x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
            return self.layers(x + offset)

    module, x, offset = Two(), torch.randn(30, 3), torch.ones(3)
    swapped = swap_to_relu(module)
    named = refit_bias(swapped, module, {"offset": offset, "x": x})
    placed = refit_bias(swapped, module, (x, offset))
    assert torch.equal(named.layers[2].bias, placed.layers[2].bias)
    assert not torch.equal(named.layers[2].bias, module.layers[2].bias)


def test_layers_called_twice_are_reported() -> None:
    layers = {"layer": nn.Linear(3, 3), "act": nn.GELU(), "last": nn.Linear(3, 3)}
    module = Written(lambda net, x: net.last(net.act(net.layer(net.act(net.layer(x))))), **layers)
    repaired = refit(swap_to_relu(module), module, torch.randn(20, 3))
    assert repaired.changed == ("last",)
    assert repaired.skipped == {"layer": "called 2 times"}


def test_batchnorm_gets_the_statistics_of_the_calibration_inputs_layer_by_layer() -> None:
    module, x = convolutional(), torch.randn(60, 1, 8, 8) * 2 + 1
    swapped = swap_to_relu(module)
    before = {name: tensor.clone() for name, tensor in swapped.state_dict().items()}
    recalibrated = recalibrate_batchnorm(swapped, x)
    with torch.no_grad():
        channels = swapped[2](swapped[1](swapped[0](x))).movedim(1, 0).flatten(1)
    torch.testing.assert_close(recalibrated[3].running_mean, channels.mean(1))
    torch.testing.assert_close(recalibrated[3].running_var, channels.var(1))
    assert recalibrated[3].momentum == swapped[3].momentum == 0.1
    assert not any(layer.training for layer in recalibrated.modules())
    assert all(torch.equal(tensor, swapped.state_dict()[name]) for name, tensor in before.items())


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4)])
def test_the_distillation_loss_is_the_scaled_divergence(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    student, teacher = (
        torch.randn(shape, requires_grad=True),
        torch.randn(shape, requires_grad=True),
    )
    loss = distill_loss(student, teacher, 3.0)
    p, q = (log_softmax(each.detach().double().numpy() / 3, axis=-1) for each in (teacher, student))
    expected = 9 * (math.e**p * (p - q)).sum(-1).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert teacher.grad is None
    softened = (math.e**q - math.e**p) * 3 / math.prod(shape[:-1])
    torch.testing.assert_close(
        student.grad.double(), torch.from_numpy(softened), rtol=1e-4, atol=1e-7
    )
    assert distill_loss(teacher, teacher).item() == pytest.approx(0.0, abs=1e-6)


MLP, LOGITS = mlp(3, 5, 2), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: refit(MLP, MLP, torch.randn(10, 3), scale=True),
            "nothing to re-fit in Sequential: no affine layer",
        ),
        (lambda: refit(swap_to_relu(MLP), MLP[1], torch.randn(10, 3)), "0: not called as a module"),
        (
            lambda: refit(swap_to_relu(MLP), MLP, torch.full((4, 3), math.nan)),
            "0: outputs on .* are not finite",
        ),
        (
            lambda: recalibrate_batchnorm(MLP, LOGITS),
            "no BatchNorm with running statistics in Sequential; use refit_b",
        ),
        (
            lambda: recalibrate_batchnorm(convolutional(), torch.full((4, 1, 8, 8), math.inf)),
            "3: the statistics on the calibration inputs are not finite",
        ),
        (
            lambda: distill_loss(LOGITS, torch.zeros(2, 4)),
            r"shape \(2, 3\), but the teacher's \(2, 4\)",
        ),
        (lambda: distill_loss(LOGITS, LOGITS, 0.0), "temperature must be > 0, got 0"),
        (lambda: distill_loss(LOGITS[:0], LOGITS[:0]), "not empty"),
    ],
)
def test_what_cannot_be_repaired_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()

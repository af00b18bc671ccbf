from __future__ import annotations

from typing import Any

import pytest
import torch
from networks_by_hand import Written
from own_networks import WORDS, hugging
from torch import nn
from torch.nn import functional

from lambda_gelu import LambdaGELU, census, fold_hardness, replace
from lambda_gelu.activations.gated import GATED, GatedUnit
from lambda_gelu.activations.runs import as_call
from lambda_gelu.activations.silu import Swish
from lambda_gelu.swapping import expose

HARDNESS = torch.tensor([1.3, 2.0, 9.0, 60.0, 160.0, 4.0, 1.01, 3.0], dtype=torch.float64)


def channels(kind: type = LambdaGELU, count: int = 8) -> nn.Module:
    made = kind(channels=count).double()
    made.set_hardness(HARDNESS[:count])
    return made


class Block(nn.Module):
    """A feed-forward layer of a transformer, written as a user writes it."""

    def __init__(
        self, activation: nn.Module, *, shared: bool = False, leak: bool = False, wide: bool = False
    ) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(8), nn.Linear(8, 8), activation
        self.drop, self.down, self.side = nn.Dropout(0.1), nn.Linear(8, 8), nn.Linear(8, 8)
        self.shared, self.leak, self.wide = shared, leak, wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.act(self.up(self.norm(x)).contiguous()))
        y = x + self.down(hidden)
        y = y + self.side(hidden) if self.wide else y
        y = self.up(y) if self.shared else y
        return y + hidden if self.leak else y


def check(module: nn.Module, example, expected: list[str]) -> None:
    """Outputs equal to 1e-9 in float64 on the example and on inputs that folding has not seen;
    these rows are left.
    """
    module = module.double().eval()
    folded = fold_hardness(module, example)
    assert [found.traits.name for found in census(folded)] == expected
    args, kwargs = as_call(example)
    for shift in (0.0, 0.7):
        moved = [each + shift if each.is_floating_point() else each for each in args]
        outputs = [made(*moved, **kwargs) for made in (module, folded)]
        first, second = (
            each if isinstance(each, torch.Tensor) else each.logits for each in outputs
        )
        torch.testing.assert_close(second, first, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [LambdaGELU, Swish])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("with_example", [False, True])
def test_an_mlp_and_a_cnn_lose_their_lambdas_and_nothing_else(
    kind, per_channel: bool, with_example: bool
) -> None:
    torch.manual_seed(0)
    row = "gelu" if kind is LambdaGELU else "silu"
    act = channels(kind) if per_channel else kind(hardness=5.0)
    x = torch.randn(6, 5, dtype=torch.float64)
    mlp = nn.Sequential(nn.Linear(5, 8), act, nn.Dropout(0.1), nn.Linear(8, 3))
    image = torch.randn(2, 1, 9, 9, dtype=torch.float64)
    cnn = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), act, nn.MaxPool2d(2), nn.Conv2d(8, 4, 2, bias=False)
    )
    # Behind a linear layer the channels are its outputs only for inputs of two dimensions, which
    # without an example nothing shows.
    kept = [f"lambda-{row}" if kind is LambdaGELU else "swish"]
    of_mlp = kept if per_channel and not with_example else [row]
    for module, example, expected in ((mlp, x, of_mlp), (cnn, image, [row])):
        module.double().eval()
        folded = fold_hardness(module, example if with_example else None)
        assert [found.traits.name for found in census(folded)] == expected
        torch.testing.assert_close(folded(example), module(example), rtol=1e-9, atol=1e-11)
        left = "s" in {name.rpartition(".")[2] for name in folded.state_dict()}
        assert left == (expected == kept)


@pytest.mark.parametrize("with_example", [False, True])
@pytest.mark.parametrize(
    ("before", "dimension", "behind", "shape"),
    [
        (nn.Linear(8, 5), 1, nn.Linear(5, 2), (3, 5, 8)),
        (nn.Conv2d(3, 5, 1), -1, nn.Conv2d(5, 2, 1), (2, 3, 5, 5)),
        (nn.Linear(8, 5), -1, nn.Linear(5, 2), (3, 5, 8)),
        (nn.Linear(8, 5), -1, nn.Linear(5, 2), (3, 8)),
        (nn.Conv1d(3, 5, 1), -1, nn.Conv1d(5, 2, 1), (2, 3, 5)),
    ],
)
def test_channels_of_another_dimension_than_the_layers_outputs_are_not_folded(
    before: nn.Module, dimension: int, behind: nn.Module, shape: tuple[int, ...], with_example: bool
) -> None:
    """Folding without an example took any lambda per channel for one per output."""
    torch.manual_seed(0)
    act = LambdaGELU(5, hardness=3.0, dimension=dimension)
    with torch.no_grad():
        act.s += torch.linspace(0, 2, 5)
    module = nn.Sequential(before, act, behind).double().eval()
    x = torch.randn(shape, dtype=torch.float64)
    folded = fold_hardness(module, x if with_example else None)
    torch.testing.assert_close(folded(x), module(x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [LambdaGELU, Swish])
def test_the_feed_forward_layer_of_a_users_transformer_folds(kind) -> None:
    torch.manual_seed(0)
    row = "gelu" if kind is LambdaGELU else "silu"
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    check(Block(kind(hardness=7.0)), x, [row])
    check(Block(kind(hardness=7.0), wide=True), x, [row])
    check(nn.Sequential(Block(kind(hardness=7.0)), Block(kind(hardness=2.0))), x, [row, row])
    check(Block(channels(kind)), x[:, 0], [row])


def test_where_lambda_has_no_place_to_go_it_stays() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 8, dtype=torch.float64)
    kept = ["lambda-gelu"]
    check(Block(LambdaGELU(hardness=7.0), leak=True), x, kept)  # a residual
    check(Block(LambdaGELU(hardness=7.0), shared=True), x, kept)  # a layer that is called twice
    # channels are dimension 1, which the linear layers do not mix
    check(Block(channels()), x, kept)
    check(nn.Sequential(LambdaGELU(hardness=7.0), nn.Linear(8, 8)), x, kept)
    check(nn.Sequential(nn.Linear(8, 8), LambdaGELU(hardness=7.0)), x, kept)
    check(
        nn.Sequential(nn.Linear(8, 8), LambdaGELU(hardness=7.0), nn.LayerNorm(8), nn.Linear(8, 8)),
        x,
        kept,
    )
    tied = Block(LambdaGELU(hardness=7.0))
    tied.down.weight = tied.up.weight
    check(tied, x, kept)
    grouped = nn.Sequential(nn.Conv1d(8, 8, 1), channels(), nn.Conv1d(8, 8, 1, groups=2))
    check(grouped, x, kept)
    flattened = nn.Sequential(nn.Conv2d(1, 2, 1), channels(count=2), nn.Flatten(), nn.Linear(8, 2))
    check(flattened, torch.randn(3, 1, 2, 2, dtype=torch.float64), kept)
    act = LambdaGELU(hardness=7.0)
    check(nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 8)), x, kept)


def test_shared_layers_stay_also_without_an_example() -> None:
    torch.manual_seed(0)
    x, linear, act = torch.randn(3, 8), nn.Linear(8, 8), LambdaGELU(hardness=7.0)
    for module in (
        nn.Sequential(linear, LambdaGELU(hardness=7.0), linear),
        nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 8)),
    ):
        folded = fold_hardness(module)
        assert {found.traits.name for found in census(folded)} == {"lambda-gelu"}
        assert torch.equal(folded(x), module(x))


@pytest.mark.parametrize("with_example", [False, True])
def test_transformer_layers_of_torch_and_gated_units_fold(with_example: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, activation=LambdaGELU(hardness=6.0), batch_first=True
    )
    stack = nn.Sequential(
        layer, GATED["lambda-geglu"].make(8), GatedUnit(8, 8, Swish(hardness=3.0), bias=False)
    )
    stack.double().eval()
    folded = fold_hardness(stack, x if with_example else None)
    assert [found.traits.name for found in census(folded)] == ["gelu", "gelu", "silu"]
    torch.testing.assert_close(folded(x), stack(x), rtol=1e-9, atol=1e-11)
    with torch.no_grad():  # here the fused layer is taken
        torch.testing.assert_close(folded(x), stack(x), rtol=1e-9, atol=1e-11)


def test_networks_of_hugging_face_fold() -> None:
    torch.manual_seed(0)
    tokens = {"input_ids": torch.randint(0, WORDS, (2, 7))}
    for module, kind, row in (
        (hugging("bert", "BertForSequenceClassification")(), LambdaGELU, "gelu"),
        (hugging("gpt2", "GPT2LMHeadModel")(), LambdaGELU, "gelu"),
        (hugging("llama", "LlamaForCausalLM")(), Swish, "silu"),
    ):
        hard = replace(module, lambda found, kind=kind: kind(hardness=11.0))
        check(hard, tokens, [row, row])


def test_what_the_rewrite_made_folds_too() -> None:
    def call(net: Any, x: torch.Tensor) -> torch.Tensor:
        x = net.last(functional.gelu(net.first(x)))
        return net.last(x) + net.first(x * torch.sigmoid(x))

    torch.manual_seed(0)
    x = torch.randn(3, 8)
    exposed = expose(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), x)
    check(replace(exposed, lambda found: LambdaGELU(hardness=3.0)), x.double(), ["gelu"])
    twice = expose(Written(call, first=nn.Linear(8, 8), last=nn.Linear(8, 8)), x)
    check(replace(twice, lambda found: LambdaGELU(hardness=3.0)), x.double(), ["lambda-gelu"] * 2)


def test_a_custom_function_that_takes_the_tensor_unseen_is_caught_by_the_comparison() -> None:
    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

    def call(net: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = net.act(net.up(x))
        return net.down(hidden) + Hidden.apply(hidden)

    torch.manual_seed(0)
    network = Written(call, up=nn.Linear(8, 8), act=LambdaGELU(hardness=1.1), down=nn.Linear(8, 8))
    check(network, torch.randn(3, 8, dtype=torch.float64), ["lambda-gelu"])


def test_float32_weights_fold_too_though_they_are_rounded() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), LambdaGELU(), nn.Linear(6, 3)).eval()
    x = torch.randn(5, 4)
    folded = fold_hardness(module, x)
    assert [found.traits.name for found in census(folded)] == ["gelu"]
    torch.testing.assert_close(folded(x), module(x))
    assert {each.dtype for each in folded.parameters()} == {torch.float32}

"""Units of transformers that provably do nothing: bounds of what a norm gives, planted units,
and the stage's rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from written import Written, bench_of

from evalsuite import Bench, Metric, Network, Split, Unsupported, Verdict
from evalsuite.tasks import LanguageModel
from evalsuite.workloads.transformer import LanguageModel as GPT
from evalsuite.workloads.transformer import VisionTransformer, feed_forwards
from pipelines.prune.exact import ExactPrune
from pipelines.prune.exact.behind_norms import never_positive, read_behind_norms
from pipelines.prune.exact.removing import remove_all

pytestmark = pytest.mark.usefixtures("by_hand")

VOCABULARY, POSITIONS, WIDTH, HIDDEN = 11, 5, 8, 12
Make = Callable[[], nn.Module]


def gpt(activation: Make = nn.ReLU) -> nn.Module:
    return GPT(
        VOCABULARY, POSITIONS, WIDTH, 2, feed_forwards(2, WIDTH, HIDDEN, lambda _: activation())
    ).eval()


def tokens_of(count: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (count, POSITIONS), generator=torch.Generator().manual_seed(1))


def test_bounds_behind_a_norm_are_met_and_not_passed() -> None:
    module = gpt()
    for each in module.modules():
        if isinstance(each, nn.LayerNorm):
            each.weight.copy_(torch.randn(WIDTH))
            each.bias.copy_(torch.randn(WIDTH))
    layers, bounds = read_behind_norms(module, tokens_of(2))
    assert [each.norm for each in layers.hidden] == [
        f"blocks.{i}.norm_feed_forward" for i in range(2)
    ]
    assert [each.path for each in bounds] == [
        f"blocks.{i}.feed_forward.activation" for i in range(2)
    ]
    assert layers.units == 2 * HIDDEN
    for hidden, found in zip(layers.hidden, bounds, strict=True):
        norm, linear = (
            copy.deepcopy(module.get_submodule(path)).double()
            for path in (hidden.norm, hidden.producer)
        )
        # Of whatever vectors: also those that drive each unit to its ends.
        scaled = linear.weight * norm.weight
        x = torch.cat([torch.randn(20_000, WIDTH).double() * 1e3, scaled * 1e6, -scaled * 1e6])
        seen = linear(norm(x))
        assert bool((seen >= found.lower).all())
        assert bool((seen <= found.upper).all())
        torch.testing.assert_close(seen.amax(0)[None], found.upper, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(seen.amin(0)[None], found.lower, rtol=1e-6, atol=1e-6)


def test_a_unit_is_off_where_no_vector_reaches_it() -> None:
    norm, linear = nn.LayerNorm(2), nn.Linear(2, 1)
    norm.weight.copy_(torch.ones(2))
    # behind the mean (2, -2): at most sqrt(2) sqrt(8) = 4
    linear.weight.copy_(torch.tensor([[3.0, -1.0]]))
    for bias, off in ((-4.0, True), (-3.99, False), (4.0, False), (-5.0, True)):
        linear.bias.fill_(bias)
        assert never_positive(norm, linear, 0) == off


def planted(module: nn.Module) -> nn.Module:
    """In each feed-forward part a constant unit, an unused one, one that is off, and a
    duplicate.
    """
    for block in module.blocks:
        up, down = block.feed_forward.up, block.feed_forward.down
        up.weight[1] = 0.0
        down.weight[:, 2] = 0.0
        up.bias[3] = -50.0
        up.weight[4], up.bias[4] = up.weight[5], up.bias[5]
    return module


@pytest.mark.parametrize(("activation", "gone"), [(nn.ReLU, {1, 2, 3, 5}), (nn.GELU, {1, 2, 5})])
def test_planted_units_go_and_the_function_stays(activation: Make, gone: set[int]) -> None:
    module, tokens = planted(gpt(activation)), tokens_of(40)
    before = copy.deepcopy(module.state_dict())
    removed = remove_all(module, lambda each: read_behind_norms(each, tokens[:2]))
    for index in range(2):
        producer = f"blocks.{index}.feed_forward.up"
        assert set(range(HIDDEN)) - set(removed.kept[producer]) == gone
        assert removed.module.get_submodule(producer).out_features == HIDDEN - len(gone)
    torch.testing.assert_close(removed.module(tokens), module(tokens), rtol=1e-5, atol=1e-6)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


def rows(metrics: list[Metric]) -> dict[str, float | None]:
    return {each.name: each.value for each in metrics if not each.setting}


def of_tokens(module: nn.Module, folder: Path) -> tuple[Network, Bench]:
    tokens = tokens_of(6)
    split = Split(tokens, module(tokens).argmax(-1), LanguageModel())
    network = Network("gpt", module, (POSITIONS,), VOCABULARY, vocabulary=VOCABULARY)
    return network, bench_of(split, VOCABULARY, folder, domain=(0.0, 10.0), vocabulary=VOCABULARY)


def of_pictures(module: nn.Module, folder: Path) -> tuple[Network, Bench]:
    pictures = torch.rand(6, 1, 8, 8)
    split = Split(pictures, module(pictures).argmax(-1))
    return Network("vit", module, (1, 8, 8), 10), bench_of(split, 10, folder)


def vit() -> nn.Module:
    return VisionTransformer(
        8, 4, WIDTH, 2, feed_forwards(2, WIDTH, HIDDEN, lambda _: nn.ReLU()), 10
    ).eval()


@pytest.mark.parametrize(("make", "bench_of"), [(gpt, of_tokens), (vit, of_pictures)])
def test_the_stage_measures_transformers(
    make: Callable[[], nn.Module],
    bench_of: Callable[[nn.Module, Path], tuple[Network, Bench]],
    tmp_path: Path,
) -> None:
    network, bench = bench_of(planted(make()), tmp_path)
    outcome = ExactPrune().run(network, bench)
    found = rows(outcome.metrics)
    assert (found["hidden_units"], found["removed_units"]) == (2 * HIDDEN, 8)
    assert [
        found[f"{kind}_units"] for kind in ("constant", "unused", "off", "duplicate", "merged")
    ] == [2, 2, 2, 2, 0]
    proofs = {
        each.setting["verdict"]: each.value
        for each in outcome.metrics
        if each.name == "unit_proofs"
    }
    assert proofs == {"holds": 8, "violated": 0, "timeout": 0, "unsupported": 0}
    assert found["equality_error"] is not None
    assert found["equality_error"] < 1e-6
    said = {each.setting["method"]: each for each in outcome.metrics if each.name == "equality"}
    assert {each.verdict for each in said.values()} == {Verdict.UNSUPPORTED}
    assert "one by one" in said["bounds"].reason
    handed = outcome.network
    assert handed is not None
    torch.testing.assert_close(
        handed.module(bench.data.test.inputs[torch.arange(6)]),
        network.module(bench.data.test.inputs[torch.arange(6)]),
    )


def added(net: Written, tokens: torch.Tensor) -> torch.Tensor:
    x = net.up(net.table(tokens))
    return net.down(net.activation(x)) + x


def twice(net: Written, tokens: torch.Tensor) -> torch.Tensor:
    x = net.down(net.activation(net.up(net.table(tokens))))
    return net.down(net.activation(net.up(x)))


def test_a_shared_matrix_keeps_its_units() -> None:
    module = gpt()
    first, last = (block.feed_forward for block in module.blocks)
    last.down.weight = first.down.weight
    with pytest.raises(Unsupported, match="no activation stands"):
        read_behind_norms(module, tokens_of(2))
    last.down.weight = nn.Parameter(first.down.weight.clone())
    module.head.weight = module.embedding.weight  # as GPT-2 has it
    layers, _ = read_behind_norms(module, tokens_of(2))
    assert len(layers.hidden) == 2


@pytest.mark.parametrize("call", [added, twice])
def test_what_others_take_stays(call: Callable[[Written, torch.Tensor], torch.Tensor]) -> None:
    """An activation that is no unit's alone: added to its input, or of a layer that is applied
    twice.
    """
    layers = {"table": nn.Embedding(11, 4), "up": nn.Linear(4, 4), "down": nn.Linear(4, 4)}
    with pytest.raises(Unsupported, match="no activation stands between two linear layers alone"):
        read_behind_norms(Written(call, **layers, activation=nn.ReLU()).eval(), tokens_of(2))

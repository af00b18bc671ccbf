"""Whole attention heads: what is found, what goes, and that the rest computes what it did."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from evalsuite import Unsupported, export_onnx, open_onnx
from evalsuite.plugins import load
from evalsuite.workloads.transformer import Attention as SelfAttention
from opgraph import run_onnx
from pipelines.prune.attention import Attention, find_attentions, unknown_attentions
from pipelines.prune.heads import head_scores, prune_heads
from pipelines.prune.selection import Probe, Pruned, Selection

pytestmark = pytest.mark.usefixtures("by_hand")

WIDTH, HEADS = 12, 4
HALF = Selection(0, head_sparsity=0.5)
IMPORTANCES = ("l1", "l2", "group_norm", "taylor", "hessian", "activation")


def built(workload: str) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = load("workloads", workload).target().build(lambda _hidden: nn.GELU())
    # biases too: at their initial 0, a wrongly cut one would not show
    for each in module.parameters():
        each += 0.1 * torch.randn_like(each)
    return module


def inputs_of(workload: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if workload == "text-gpt":
        return torch.randint(0, 256, (2, 9), generator=generator)
    return torch.rand(5, 1, 8, 8, generator=generator)


def probe_of(workload: str) -> Probe:
    inputs = inputs_of(workload)

    def losses(module: nn.Module) -> Iterator[torch.Tensor]:
        for batch in torch.split(inputs, 2):
            yield module(batch).logsumexp(-1).view(len(batch), -1).mean(1)

    return Probe(lambda module: module(inputs), losses)


def zeroed_error(unpruned: nn.Module, pruned: Pruned, inputs: torch.Tensor) -> float:
    """Max |pruned - unpruned with the rows of `removed` set to 0|, in float64: knows nothing of
    heads.
    """
    zeroed = copy.deepcopy(unpruned).double()
    narrow = copy.deepcopy(pruned.module).double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    for path, rows in pruned.removed.items():
        zeroed.get_submodule(path).weight[rows] = 0
        zeroed.get_submodule(path).bias[rows] = 0
    return float((zeroed(inputs) - narrow(inputs)).abs().max())


def tokens(samples: int = 6, positions: int = 5) -> torch.Tensor:
    return torch.randn(samples, positions, WIDTH, generator=torch.Generator().manual_seed(2))


def attention_alone(seed: int = 0) -> SelfAttention:
    torch.manual_seed(seed)
    return SelfAttention(WIDTH, HEADS, causal=False)


def probe_alone() -> Probe:
    inputs = tokens()

    def losses(module: nn.Module) -> Iterator[torch.Tensor]:
        for batch in torch.split(inputs, 4):  # of 4 and of 2 samples
            yield module(batch).sin().sum((1, 2))

    return Probe(lambda module: module(inputs), losses)


class TestFinding:
    def test_the_heads_of_a_workload(self) -> None:
        found = find_attentions(built("digits-vit"))
        assert [each.path for each in found] == ["blocks.0.attention", "blocks.1.attention"]
        assert {(each.heads, each.head_size, each.output) for each in found} == {
            (4, 12, "blocks.0.attention.project_out"),
            (4, 12, "blocks.1.attention.project_out"),
        }
        assert found[0].columns[1] == tuple(range(12, 24))
        rows = found[0].rows["blocks.0.attention.project_in"]
        assert rows[1] == (*range(12, 24), *range(60, 72), *range(108, 120))

    def test_an_unknown_attention_is_named(self) -> None:
        module = nn.ModuleDict({"known": attention_alone(), "other": nn.MultiheadAttention(8, 2)})
        assert [each.path for each in find_attentions(module)] == ["known"]
        assert unknown_attentions(module) == [
            "other: MultiheadAttention is laid out in no known way"
        ]

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            # Fewer keys than queries.
            (
                lambda it: setattr(it, "k_proj", nn.Linear(WIDTH, WIDTH // 2)),
                "k_proj makes 6 channels for the 12",
            ),
            (
                lambda it: setattr(it.k_proj, "weight", it.q_proj.weight),
                "q_proj shares its weights with another layer",
            ),
            (
                lambda it: setattr(it, "heat", nn.Parameter(torch.ones(HEADS))),
                "heat may hold a share for each head",
            ),
            (
                lambda it: setattr(it, "num_attention_heads", 3),
                "num_attention_heads is 3, but the sizes of the layers say 4",
            ),
            (
                lambda it: setattr(it, "head_dim", 5),
                "o_proj reads 12 channels, no multiple of head_dim = 5",
            ),
            # A quantized or parametrized layer.
            (
                lambda it: parametrizations.weight_norm(it.v_proj),
                "v_proj is a ParametrizedLinear, not a Linear",
            ),
        ],
    )
    def test_one_whose_heads_cannot_be_removed_says_why(
        self, change: Callable[[nn.Module], object], told: str
    ) -> None:
        attention = Split()
        change(attention)
        assert find_attentions(attention) == []
        (note,) = unknown_attentions(nn.Sequential(attention))
        assert note.startswith(f"0: {told}")

    def test_a_layer_shared_between_attentions(self) -> None:
        first, second = Split(), Split()
        second.o_proj = first.o_proj
        both = nn.Sequential(first, second)
        assert find_attentions(both) == []
        assert unknown_attentions(both) == [
            f"{index}: shares a layer with another attention" for index in (0, 1)
        ]

    def test_a_description_that_is_none(self) -> None:
        with pytest.raises(ValueError, match="the indices of out must be 2 disjoint heads"):
            Attention("a", 2, 1, {"q": ((0,), (1,))}, "out", ((0,), (0,)))


class Split(nn.Module):
    """Query, key and value of their own, and an attribute for the number of heads, which the
    forward pass reads.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_attention_heads, self.head_dim = HEADS, WIDTH // HEADS
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(WIDTH, WIDTH) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = (query @ key.mT / self.head_dim**0.5).softmax(-1)
        return self.o_proj((weights @ value).transpose(1, 2).flatten(-2))


class TestRemoving:
    @pytest.mark.parametrize("gone", [1, 2, 3])
    @pytest.mark.parametrize("workload", ["digits-vit", "text-gpt"])
    def test_the_rest_computes_what_it_did(self, workload: str, gone: int) -> None:
        module, inputs = built(workload), inputs_of(workload)
        pruned = prune_heads(module, probe_of(workload), Selection(0, head_sparsity=gone / 4))
        assert zeroed_error(module, pruned, inputs) <= 1e-6
        # Zeroing the same rows changes the outputs at all: else equality would mean nothing.
        assert float((module(inputs) - pruned.module(inputs)).abs().max()) > 1e-2
        attentions = find_attentions(module)
        assert [each.heads for each in find_attentions(pruned.module)] == [4 - gone] * len(
            attentions
        )
        size, width = attentions[0].head_size, 4 * attentions[0].head_size
        fewer = sum(map(torch.numel, module.parameters())) - sum(
            map(torch.numel, pruned.module.parameters())
        )
        assert fewer == len(attentions) * gone * size * (4 * width + 3)
        assert {len(rows) for rows in pruned.removed.values()} == {3 * gone * size}
        assert not pruned.module.training

    @pytest.mark.slow
    def test_onnx_runtime_computes_the_same(self, tmp_path: Path) -> None:
        pruned, inputs = (
            prune_heads(built("digits-vit"), probe_of("digits-vit"), HALF).module,
            inputs_of("digits-vit"),
        )
        export_onnx(pruned, (1, 8, 8), tmp_path / "pruned.onnx")
        outputs = torch.as_tensor(run_onnx(open_onnx(tmp_path / "pruned.onnx"), inputs))
        assert torch.allclose(outputs, pruned(inputs), atol=1e-5)

    def test_attributes_follow(self) -> None:
        module = nn.Sequential(Split())
        pruned = prune_heads(module, probe_alone(), HALF)
        assert pruned.module[0].num_attention_heads == 2
        assert pruned.module[0].head_dim == 3
        assert module[0].num_attention_heads == 4
        assert zeroed_error(module, pruned, tokens()) <= 1e-6
        assert sorted(pruned.removed) == ["0.k_proj", "0.q_proj", "0.v_proj"]
        assert len({tuple(rows) for rows in pruned.removed.values()}) == 1

    def test_what_was_given_stays_as_it_was(self) -> None:
        module = built("digits-vit").train()
        module.get_submodule("blocks.0.attention.project_in").weight.requires_grad_(False)
        before = copy.deepcopy(module.state_dict())
        for importance in IMPORTANCES:
            pruned = prune_heads(
                module, probe_of("digits-vit"), Selection(0, importance, head_sparsity=0.5)
            )
        assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())
        assert module.training
        assert all(
            each.grad is None for each in [*module.parameters(), *pruned.module.parameters()]
        )
        assert not any(each._forward_pre_hooks for each in pruned.module.modules())
        frozen = [name for name, each in pruned.module.named_parameters() if not each.requires_grad]
        assert frozen == ["blocks.0.attention.project_in.weight"]

    def test_twice_is_the_same_as_once(self) -> None:
        module = attention_alone()
        once = prune_heads(module, probe_alone(), HALF)
        half = prune_heads(module, probe_alone(), Selection(0, head_sparsity=0.25)).module
        twice = prune_heads(half, probe_alone(), Selection(0, head_sparsity=0.34))
        assert torch.equal(once.module.project_in.weight, twice.module.project_in.weight)


class TestWrongRegrouping:
    def test_heads_interleaved_with_one_another_are_noticed(self) -> None:
        """Rows of the right number in each of query, key and value, but of every head a few."""
        module = attention_alone()
        (found,) = find_attentions(module)
        columns = tuple(tuple(range(head, WIDTH, HEADS)) for head in range(HEADS))
        rows = tuple(
            tuple(start + column for start in (0, 12, 24) for column in head) for head in columns
        )
        wrong = dataclasses.replace(found, rows={"project_in": rows}, columns=columns)
        with pytest.raises(Unsupported, match="heads of the module: removing channels changed"):
            prune_heads(module, probe_alone(), Selection(0, head_sparsity=0.25), [wrong])

    def test_a_scale_that_follows_the_number_of_heads(self) -> None:
        class Rescaled(Split):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.head_dim = WIDTH // self.num_attention_heads
                return super().forward(x)

        with pytest.raises(Unsupported, match="changed what the network computes"):
            prune_heads(Rescaled(), probe_alone(), HALF)


class TestImportance:
    def scores(
        self, module: nn.Module, importance: str, probe: Probe | None = None, seed: int = 0
    ) -> torch.Tensor:
        selection = Selection(0, importance, seed=seed)
        return head_scores(
            module.eval(), find_attentions(module), probe or probe_alone(), selection
        )[0]

    @pytest.mark.parametrize("importance", IMPORTANCES)
    def test_a_faint_head_goes_first(self, importance: str) -> None:
        module = attention_alone()
        for start in (0, 12, 24):
            module.project_in.weight[start + 6 : start + 9] *= 1e-3
            module.project_in.bias[start + 6 : start + 9] *= 1e-3
        module.project_out.weight[:, 6:9] *= 1e-3
        pruned = prune_heads(module, probe_alone(), Selection(0, importance, head_sparsity=0.25))
        assert pruned.removed == {"project_in": [6, 7, 8, 18, 19, 20, 30, 31, 32]}

    def test_norms(self) -> None:
        module = attention_alone()
        weights = [
            torch.cat(
                [
                    module.project_in.weight.view(3, 4, 3, WIDTH)[:, head].flatten(),
                    module.project_out.weight[:, 3 * head : 3 * head + 3].flatten(),
                ]
            )
            for head in range(HEADS)
        ]
        for importance, order in (("l1", 1), ("l2", 2), ("group_norm", 2)):
            expected = torch.stack(
                [torch.linalg.vector_norm(each.double(), order) for each in weights]
            )
            assert torch.allclose(self.scores(module, importance), expected)

    def test_the_gate_s_derivative_of_each_sample(self) -> None:
        module = attention_alone().double()

        def losses(gates: list[float]) -> torch.Tensor:
            gated = copy.deepcopy(module)
            gated.project_out.weight *= torch.tensor(gates, dtype=torch.float64).repeat_interleave(
                3
            )
            return gated(tokens().double()).sin().sum((1, 2))

        step = 1e-5
        slopes = []
        for head in range(HEADS):
            up, down = (
                [1 + sign * step * (each == head) for each in range(HEADS)] for sign in (1, -1)
            )
            slopes.append((losses(up) - losses(down)) / (2 * step))
        derivative = torch.stack(slopes, 1)  # (samples, heads)
        probe = Probe(
            lambda each: each(tokens().double()),
            lambda each: (
                each(batch).sin().sum((1, 2)) for batch in torch.split(tokens().double(), 4)
            ),
        )
        assert torch.allclose(
            self.scores(module, "taylor", probe), derivative.abs().mean(0), atol=1e-7
        )
        assert torch.allclose(
            self.scores(module, "hessian", probe), derivative.square().mean(0), atol=1e-6
        )
        assert (
            derivative.mean(0).abs() < derivative.abs().mean(0) - 1e-3
        ).any()  # the mean first would be another score

    def test_activity(self) -> None:
        module = attention_alone()
        # then the module returns what the heads hand on
        module.project_out.weight.copy_(torch.eye(WIDTH))
        module.project_out.bias.zero_()
        expected = module(tokens()).abs().double().unflatten(-1, (HEADS, 3)).mean((0, 1, 3))
        assert torch.allclose(self.scores(module, "activation"), expected)

    def test_what_is_frozen_counts_and_random_follows_the_seed(self) -> None:
        module = attention_alone()
        free = self.scores(module, "taylor")
        assert torch.equal(self.scores(module.requires_grad_(False), "taylor"), free)
        first, second, other = (self.scores(module, "random", seed=seed) for seed in (3, 3, 4))
        assert torch.equal(first, second)
        assert not torch.equal(first, other)

    @pytest.mark.parametrize(
        ("importance", "losses", "told"),
        [
            ("bn_scale", None, "'bn_scale' does not rank attention heads"),
            *(
                (name, None, "needs calibration data")
                for name in ("taylor", "hessian", "activation")
            ),
            ("taylor", lambda _module: iter(()), "no batch of calibration data"),
            ("activation", lambda _module: iter(()), "never ran"),
        ],
    )
    def test_what_cannot_be_known_is_refused(self, importance: str, losses: Any, told: str) -> None:
        with pytest.raises(Unsupported, match=told):
            self.scores(
                attention_alone(), importance, Probe(lambda module: module(tokens()), losses)
            )

    @pytest.mark.parametrize("importance", ["taylor", "activation"])
    def test_an_attention_that_never_runs(self, importance: str) -> None:
        module = nn.ModuleDict({"used": attention_alone(), "idle": attention_alone()})
        probe = Probe(
            lambda each: each["used"](tokens()),
            lambda each: iter([each["used"](tokens()).sum((1, 2))]),
        )
        with pytest.raises(Unsupported, match=r"idle: its output layer idle.project_out never ran"):
            self.scores(module, importance, probe)

    def test_an_attention_that_the_loss_does_not_see(self) -> None:
        module = nn.ModuleDict({"used": attention_alone(), "idle": attention_alone()})

        def outputs(each: nn.Module) -> torch.Tensor:
            return each["used"](tokens()) + each["idle"](tokens()).detach()

        probe = Probe(outputs, lambda each: iter([outputs(each).sum((1, 2))]))
        scores = head_scores(module, find_attentions(module), probe, Selection(0, "taylor"))
        assert scores[0].min() > 0
        assert scores[1].tolist() == [0.0] * HEADS

    def test_scores_that_cannot_be(self) -> None:
        module = attention_alone()
        with pytest.raises(ValueError, match="no way to rank attention heads by 'lamp'"):
            self.scores(module, "lamp")
        module.project_in.weight[0, 0] = torch.nan
        with pytest.raises(Unsupported, match="the module: the importance of a head is not finite"):
            self.scores(module, "l2")


class TestShares:
    def two(self) -> nn.Module:
        """The second attention has weights 100 times as large: only shares of its own mean
        compare with the first's.
        """
        first, second = attention_alone(0), attention_alone(1)
        scale_heads(first, [1, 2, 3, 4])
        scale_heads(second, [100, 1000, 1100, 1200])
        return nn.Sequential(first, second)

    def left(self, module: nn.Module, **options: object) -> list[int]:
        pruned = prune_heads(module, probe_alone(), Selection(0, "l1", **options))  # type: ignore[arg-type]
        assert zeroed_error(module, pruned, tokens()) <= 1e-6 * 1e6  # outputs are of the order 1e6
        return [each.heads for each in find_attentions(pruned.module)]

    def test_local_and_global(self) -> None:
        assert self.left(self.two(), head_sparsity=0.25) == [3, 3]
        # Relative to their means: 0.4 0.8 1.2 1.6 and 0.12 1.18 1.29 1.41; without the division the
        # first loses three.
        assert self.left(self.two(), head_sparsity=0.375, scope="global") == [2, 3]

    def test_one_head_stays(self) -> None:
        assert self.left(self.two(), head_sparsity=0.99) == [1, 1]
        assert self.left(self.two(), head_sparsity=0.99, scope="global") == [1, 1]
        pruned = prune_heads(
            self.two(), probe_alone(), Selection(0, scope="global", head_sparsity=0.99)
        )
        assert pruned.notes == ["head_sparsity 0.99 removes 6 of 8 heads: each attention keeps one"]

    @pytest.mark.parametrize(
        ("module", "selection", "reason"),
        [
            *(
                (
                    attention_alone(),
                    Selection(0.5, scope=scope, head_sparsity=0.2),
                    r"head_sparsity 0.2 removes no head: attentions have at most 4",
                )
                for scope in ("local", "global")
            ),
            (attention_alone().requires_grad_(False), HALF, "every parameter is frozen"),
            (nn.Linear(WIDTH, 2), HALF, "^no attention whose heads can be removed$"),
            (
                nn.ModuleDict({"inner": nn.MultiheadAttention(8, 2)}),
                HALF,
                "inner: MultiheadAttention is laid out in no known way",
            ),
        ],
    )
    def test_where_no_head_can_go(
        self, module: nn.Module, selection: Selection, reason: str
    ) -> None:
        with pytest.raises(Unsupported, match=reason):
            prune_heads(module, probe_alone(), selection)

    def test_none_goes(self) -> None:
        pruned = prune_heads(attention_alone(), probe_alone(), Selection(0.5, head_sparsity=0.0))
        assert pruned.removed == {}

    def test_an_attention_that_cannot_lose_any_is_noted(self) -> None:
        module = nn.Sequential(attention_alone(), SelfAttention(WIDTH, 1, causal=False))
        pruned = prune_heads(module, probe_alone(), HALF)
        assert pruned.notes == ["1: head_sparsity 0.5 removes none of 1 head"]
        assert [each.heads for each in find_attentions(pruned.module)] == [2, 1]


def scale_heads(module: SelfAttention, factors: list[float]) -> None:
    """Weights of the same size in every head, times the head's factor."""
    by_head = torch.tensor(factors, dtype=torch.float32).repeat_interleave(3)
    for layer, scale in (
        (module.project_in, by_head.repeat(3)[:, None]),
        (module.project_out, by_head),
    ):
        layer.weight.copy_(layer.weight.sign() * scale)

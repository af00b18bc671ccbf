"""Graphs of some positions: the same as the whole network where only these positions change."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import slow
from graph_networks import made
from torch import nn
from written import Written, bench_of

from evalsuite import Network, Split
from evalsuite.samples import Several
from evalsuite.tasks import LanguageModel
from evalsuite.verification.subjects import subjects, zonotopes_of
from evalsuite.workloads.transformer import LanguageModel as GPT
from evalsuite.workloads.transformer import feed_forwards
from opgraph.continued import continued
from opgraph.embedded import Embedded, embedded
from opgraph.graph import Graph
from opgraph.inputs import mapped
from opgraph.operations import Constant, Pointwise
from opgraph.reading import read

VOCABULARY, POSITIONS, WIDTH, HIDDEN = 11, 6, 8, 12


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def gpt(activation: Callable[[], nn.Module] = nn.GELU) -> nn.Module:
    layers = feed_forwards(2, WIDTH, HIDDEN, lambda _: activation())
    return GPT(VOCABULARY, POSITIONS, WIDTH, 2, layers).eval()


def tokens_of(count: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (count, POSITIONS), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def compared(
    whole: Graph, vectors: torch.Tensor, start: int, stop: int, *, close: float = 1e-5
) -> Graph:
    """The graph of the positions, after it was held against the whole one at points far from the
    sample.
    """
    found = continued(whole, vectors, start, stop)
    moved = vectors[:, start:stop] + 3 * torch.randn(5, stop - start, vectors.shape[2])
    full = vectors.repeat(5, 1, 1)
    full[:, start:stop] = moved
    torch.testing.assert_close(found(moved), whole(full), rtol=close, atol=close)
    # It does depend on them, so that the comparison says something.
    assert float((found(moved) - found(vectors[:, start:stop])).abs().max()) > 1e-2
    return found


def sizes(graph: Graph) -> list[int]:
    """Of each activation how many values it takes."""
    return [
        math.prod(each.shape[1:]) for each in graph.nodes if isinstance(each.operation, Pointwise)
    ]


def test_a_causal_network_is_of_its_last_positions_alone() -> None:
    whole = read(gpt(), tokens_of(2))
    for start, stop in ((5, 6), (0, 6), (2, 4)):
        found = compared(*embedded(whole, tokens_of(1), VOCABULARY, stop - 1), start, stop)
        assert sizes(found) == [(stop - start) * HIDDEN] * 2
        # Of the window before, keys and values alone are left, of each block and head.
        kept = [
            each.shape
            for each in found.nodes
            if isinstance(each.operation, Constant) and len(each.shape) == 4
        ]
        assert kept == ([(1, 2, 4, start), (1, 2, start, 4)] * 2 if start else [])


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", slow("distilbert")])
def test_any_network_of_tokens_is_the_same_from_the_embedding_on_and_in_the_positions(
    name: str,
) -> None:
    module, example = made(name)
    if isinstance(example, dict):
        example = {**example, "attention_mask": (torch.arange(7) < torch.tensor([[7], [4]])).long()}
    with torch.no_grad():
        for each in module.parameters():
            # as they are made, attention hardly sees what it attends to
            each.mul_(10.0 if each.ndim > 1 else 1.0)
    whole = read(module, example)
    for place in range(2):
        sample = mapped(example, lambda each, place=place: each[place : place + 1])  # type: ignore[misc]
        with torch.no_grad():
            wanted = module(sample)
            position = 3 if wanted.ndim == 3 else None
            cut, vectors = embedded(whole, sample, 50, position)
            assert cut.inputs == ("embedded",)
            made_of_vectors = Embedded(cut)(vectors.repeat(3, 1, 1))
            wanted = (wanted if position is None else wanted[:, 3]).repeat(3, 1)
            torch.testing.assert_close(made_of_vectors, wanted, rtol=1e-4, atol=1e-4)
        found = compared(cut, vectors, 2, 4)
        causal = name in ("gpt2", "llama")
        assert sizes(found) == [each * 2 // 7 if causal else each for each in sizes(cut)]


def looking(net: Any, tokens: torch.Tensor) -> torch.Tensor:
    """One attention under a mask, and the logits of each position."""
    x = net.table(tokens)
    query, key, value = net.asked(x).chunk(3, -1)
    return net.head(x + (query @ key.transpose(1, 2) + net.mask).softmax(-1) @ value)  # type: ignore[no-any-return]


def test_a_look_ahead_of_one_position_keeps_the_whole_network() -> None:
    causal = torch.full((POSITIONS, POSITIONS), -torch.inf).triu(1)
    ahead = causal.clone()
    ahead[1, 4] = 0.0  # an early position sees a late one
    cuts = []
    for mask in (causal, ahead):
        layers = {"table": nn.Embedding(11, 7), "asked": nn.Linear(7, 21), "head": nn.Linear(7, 3)}
        cut, vectors = embedded(
            read(Written(looking, mask=mask, **layers), tokens_of(2)), tokens_of(1), VOCABULARY, 5
        )
        cuts.append(compared(cut, vectors, 4, 6))
    attending = [
        [each for each in cut.nodes if len(each.shape) == 3 and each.shape[1] == POSITIONS]
        for cut in cuts
    ]
    assert not attending[0]
    assert attending[1]


def named(net: Any, batch: dict[str, Any]) -> torch.Tensor:
    """A GPT without a causal mask, of which paddings are hidden, and the mean of the others
    judged.
    """
    mask = batch["mask"] > 0
    query, key, value = net.asked(net.table(batch["tokens"])).chunk(3, -1)
    x = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None])
    x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return net.last(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("left", [False, True])
def test_paddings_are_not_what_is_perturbed(left: bool, tmp_path: Path) -> None:
    mask = (torch.arange(POSITIONS) < torch.tensor([[3], [5]])).long()
    given = {"tokens": tokens_of(2), "mask": mask.flip(1) if left else mask}
    layers = {"table": nn.Embedding(VOCABULARY, WIDTH), "asked": nn.Linear(WIDTH, 3 * WIDTH)}
    last = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 3))
    network = Network(
        "named",
        Written(named, **layers, last=last).eval(),
        (POSITIONS,),
        3,
        vocabulary=VOCABULARY,
        given=given,
    )
    part = Split(Several(given), torch.zeros(2, dtype=torch.long))
    found = subjects(network, bench_of(part, 3, tmp_path, vocabulary=VOCABULARY), 2, positions=1)
    for each, last in zip(found, (5, 5) if left else (2, 4), strict=True):
        (asked,) = each.properties(0.5)
        assert asked.lower.shape == (1, WIDTH)
        vector = network.module.table(given["tokens"][asked.sample, last]).detach().double()  # type: ignore[operator, union-attr]
        torch.testing.assert_close(asked.lower[0], vector - 0.5)
        moved = each.network.module(asked.upper[None].float())
        assert not torch.allclose(moved, each.network.module(asked.lower[None].float()))


@torch.no_grad()
@pytest.mark.parametrize(("activation", "positions"), [(nn.ReLU, 1), slow(nn.GELU, 2)])
def test_zonotopes_of_positions_hold_where_points_and_descents_lie(
    positions: int, activation: Callable[[], nn.Module], tmp_path: Path
) -> None:
    module = gpt(activation).double().float()
    for each in module.parameters():
        each.mul_(2.0)
    tokens = tokens_of(2)
    network = Network("gpt", module, (POSITIONS,), VOCABULARY, vocabulary=VOCABULARY)
    part = Split(tokens, module(tokens).argmax(-1), LanguageModel())
    bench = bench_of(part, VOCABULARY, tmp_path, vocabulary=VOCABULARY)
    eye = torch.eye(VOCABULARY, dtype=torch.float64)
    eye = torch.cat([eye, -eye])
    for subject in subjects(network, bench, 2, positions=positions):
        bound = zonotopes_of(subject.network)
        assert bound is not None
        for eps in (0.0, 2.0**-6):
            (asked,) = subject.properties(eps)
            assert asked.lower.shape == (positions, WIDTH)
            # And of a box of which some inputs are single numbers.
            upper = torch.where(torch.rand(asked.upper.shape) < 0.3, asked.lower, asked.upper)
            for high in (asked.upper, upper):
                least = bound(asked.lower[None], high[None]).lower_bounds(eye)
                share = torch.rand(500, *asked.lower.shape, dtype=torch.float64)
                share[::2] = share[::2].round()
                points = asked.lower + share * (high - asked.lower)
                for step in range(4):
                    seen, gradient = descended(subject.network.module, points, eye)
                    assert bool((seen >= least).all())
                    points = torch.where(gradient > 0, asked.lower, high) if step < 3 else points
                if eps:
                    assert float(least.max()) > -1e3


def descended(
    module: nn.Module, points: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What rows of the outputs are at points, and the gradient of the one that each point is to
    make least.
    """
    with torch.enable_grad():
        given = points.detach().requires_grad_()
        seen = module(given) @ rows.T
        chosen = seen[torch.arange(len(seen)), torch.arange(len(seen)) % len(rows)]
        (gradient,) = torch.autograd.grad(chosen.sum(), given)
    return seen.detach(), gradient


def test_a_row_that_numbers_mask_as_a_whole_attends_to_all() -> None:
    """In floats its entries then count alike, later positions too: nothing is left out of the
    graph.
    """

    def attending(net: Any, tokens: torch.Tensor) -> torch.Tensor:
        x = net.table(tokens)
        for layer in net.layers:
            query, key, value = layer(x).chunk(3, -1)
            x = x + (query @ key.transpose(1, 2) + net.mask).softmax(-1) @ value
        return net.head(x)  # type: ignore[no-any-return]

    tokens, mask = (
        tokens_of(2),
        torch.full((POSITIONS, POSITIONS), torch.finfo(torch.float32).min).triu(0),
    )
    parts = {"table": nn.Embedding(VOCABULARY, WIDTH), "head": nn.Linear(WIDTH, 3), "mask": mask}
    layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
    whole, vectors = embedded(
        read(Written(attending, **parts, layers=layers).eval(), tokens),
        tokens[:1],
        VOCABULARY,
        POSITIONS - 1,
    )
    compared(whole, vectors, POSITIONS - 1, POSITIONS)

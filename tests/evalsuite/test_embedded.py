"""Networks of tokens as networks of real inputs: what follows their embedding, with the masks of each sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_networks import made
from torch import nn
from written import Written

from evalsuite import Bench, Classification, Data, Network, Propagation, Split, Unsupported, graph_of_network
from evalsuite.graph.embedded import Embedded, embedded
from evalsuite.graph.reading import read
from evalsuite.samples import Inputs, Several, mapped
from evalsuite.verification.onnx_reader import graph_of_typed
from evalsuite.verification.subjects import subjects

VOCABULARY, POSITIONS, WIDTH, CLASSES = 11, 4, 6, 3


class Masked(nn.Module):
    """One head of attention under a mask of paddings, a norm, and logits of the first position or of each."""

    def __init__(
        self, *, added: float = 0.0, causal: bool = False, each: bool = False, token: bool = False, left: bool = False
    ) -> None:
        super().__init__()
        self.left = left
        self.table, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.asked, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.added, self.causal, self.each, self.token = added, causal, each, token

    def forward(self, batch: Any) -> torch.Tensor:
        tokens = batch["tokens"] if isinstance(batch, dict) else batch
        x = self.table(tokens) + self.positions(torch.arange(POSITIONS))
        if self.token:
            # A row of the table that the sample's tokens do not choose, in front of them.
            x = torch.cat([self.positions.weight[:1].expand(len(tokens), 1, WIDTH), x], 1)
        query, key, value = self.asked(x).chunk(3, -1)
        scores = query @ key.transpose(1, 2) / math.sqrt(WIDTH)
        if self.left:
            # Some rows of the padding in front attend to nothing, and nothing attends to them.
            seen = torch.ones(POSITIONS, POSITIONS).tril().bool() & (batch["mask"][:, None] > 0)
            x = x + torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            return self.head(self.norm(x)[:, -1])
        if self.causal:
            scores = scores.masked_fill(torch.ones(POSITIONS, POSITIONS).triu(1).bool(), -torch.inf)
        elif isinstance(batch, dict) and self.added:
            scores = scores + (1.0 - batch["mask"].float())[:, None] * self.added
            # And once more, as where a causal mask is added to that of paddings.
            scores = scores.masked_fill(batch["mask"][:, None] == 0, -torch.inf)
        elif isinstance(batch, dict):
            scores = scores.masked_fill(batch["mask"][:, None] == 0, -torch.inf)
        x = self.norm(x + torch.softmax(scores, -1) @ value)
        return self.head(x if self.each else x[:, 0])


def tokens_of(count: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (count, POSITIONS), generator=torch.Generator().manual_seed(1))


def masked(count: int, *, left: bool = False) -> dict[str, torch.Tensor]:
    lengths = torch.arange(count)[:, None] % POSITIONS + 1
    mask = (torch.arange(POSITIONS) < lengths).long()
    return {"tokens": tokens_of(count), "mask": mask.flip(1) if left else mask}


def pooled() -> nn.Module:
    """torch's attention under a mask of paddings, and the last position that counts, of each sample its own."""

    def call(net: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = net.table(batch["tokens"]) + net.segments(batch["mask"])
        found, _ = net.attention(x, x, x, key_padding_mask=batch["mask"] == 0)
        return net.head((x + found)[torch.arange(len(x)), batch["mask"].sum(1) - 1])  # type: ignore[no-any-return]

    tables = {"table": nn.Embedding(VOCABULARY, WIDTH), "segments": nn.Embedding(2, WIDTH)}
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    return Written(call, **tables, attention=attention, head=nn.Linear(WIDTH, CLASSES), each=False)


def language(module: nn.Module, given: Inputs) -> Network:
    shape = tuple(next(iter(given.values())).shape[1:]) if isinstance(given, dict) else tuple(given.shape[1:])
    named = given if isinstance(given, dict) else None
    return Network("language", module.eval(), shape, CLASSES, vocabulary=VOCABULARY, given=named)


def bench_of(network: Network, given: Inputs) -> Bench:
    """A bench whose targets are what the network says."""
    with torch.no_grad():
        targets = network.module(given).argmax(-1)
    split = Split(Several(given) if isinstance(given, dict) else given, targets, Classification())
    data = Data(split, split, split, split, (0.0, VOCABULARY - 1.0), CLASSES, "n", VOCABULARY)
    return Bench(data, 0, Path(), 60.0, lambda *_, **__: None)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "llama"])
@torch.no_grad()
def test_it_is_the_network_from_the_embedding_on(name: str) -> None:
    module, example = made(name)
    if isinstance(example, dict):
        example = {**example, "attention_mask": (torch.arange(7) < torch.tensor([[7], [4]])).long()}
    whole = read(module, example)
    for place in range(2):
        sample = mapped(example, lambda each, place=place: each[place : place + 1])  # type: ignore[misc]
        expected = module(sample)
        position = 5 if expected.ndim == 3 else None
        cut, vectors = embedded(whole, sample, 50, position)
        found = Embedded(cut)(vectors.repeat(3, 1, 1))
        torch.testing.assert_close(found, (expected if position is None else expected[:, 5]).repeat(3, 1))
        assert cut.inputs == ("embedded",)


@pytest.mark.parametrize(
    ("made_", "given"),
    [
        pytest.param(lambda: Masked(), masked(4), marks=pytest.mark.slow),
        pytest.param(lambda: Masked(added=torch.finfo(torch.float32).min), masked(4), marks=pytest.mark.slow),
        (lambda: Masked(causal=True), tokens_of(2)), (lambda: Masked(causal=True, each=True), tokens_of(2)),
        (lambda: Masked(token=True), tokens_of(2)),
        pytest.param(lambda: Masked(left=True), masked(4, left=True), marks=pytest.mark.slow),
        pytest.param(lambda: pooled(), masked(4), marks=pytest.mark.slow),
    ],
    ids=["mask", "added", "causal", "each", "token", "left", "pooled"],
)  # fmt: skip
@torch.no_grad()
def test_bounds_hold_under_masks(made_: Callable[[], nn.Module], given: Inputs) -> None:
    network = language(made_(), given)
    for subject in subjects(network, bench_of(network, given), 4):
        graph = graph_of_network(subject.network)[1]
        for each in subject.properties(2.0**-4):
            lower, upper = each.lower.flatten()[None], each.upper.flatten()[None]
            bounds = Propagation(graph, lower, upper)
            eye = torch.eye(CLASSES, dtype=torch.float64)
            low, high = bounds.lower_bounds(torch.cat([eye, -eye])).value[0].split(CLASSES)
            corners = torch.where(torch.rand(4000, lower.shape[1]) < 0.5, lower, upper)
            module = subject.network.module.double()
            seen = module(corners.reshape(-1, *each.lower.shape))
            assert bool((seen >= low).all())
            assert bool((seen <= -high).all())
            # They are of use: no wider than some times what corners show.
            assert float((-high - low).max()) < 12 * float((seen.amax(0) - seen.amin(0)).max())


@torch.no_grad()
def test_what_is_masked_changes_nothing() -> None:
    given = masked(4)
    network = language(Masked(), given)
    (short, *_) = subjects(network, bench_of(network, given), 1)
    (asked,) = short.properties(0.5)
    lower, upper = asked.lower.clone(), asked.upper.clone()
    graph = graph_of_network(short.network)[1]
    wide = Propagation(graph, lower.flatten()[None], upper.flatten()[None]).outputs
    # Only the first position is attended to, and the others' balls do not count.
    lower[1:] = upper[1:] = (lower[1:] + upper[1:]) / 2
    narrow = Propagation(graph, lower.flatten()[None], upper.flatten()[None]).outputs
    for one, other in zip(wide, narrow, strict=True):
        torch.testing.assert_close(one, other)


def test_samples_of_one_mask_share_a_subject() -> None:
    given = masked(8)
    network = language(Masked(), given)
    found = subjects(network, bench_of(network, given), 8)
    assert [[each.sample for each in one.properties(0.0)] for one in found] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_boxes_are_around_the_embedding() -> None:
    given = tokens_of(3)
    network = language(Masked(causal=True), given)
    (subject,) = subjects(network, bench_of(network, given), 2)
    vectors = network.module.table(given).double()
    for each, vector in zip(subject.properties(0.25), vectors, strict=False):
        assert torch.equal(each.lower, vector - 0.25)
        assert torch.equal(each.upper, vector + 0.25)


def test_the_last_position_with_a_target_is_asked_for() -> None:
    given = tokens_of(2)
    network = language(Masked(causal=True, each=True), given)
    split = Split(given, torch.tensor([[0, 1, 2, -100], [2, 1, -100, -100]]))
    data = Data(split, split, split, split, (0.0, VOCABULARY - 1.0), CLASSES, "n", VOCABULARY)
    found = subjects(network, Bench(data, 0, Path(), 60.0, lambda *_, **__: None), 2)
    assert [each.label for one in found for each in one.properties(0.0)] == [2, 1]
    with torch.no_grad():
        logits = network.module(given)
        for one, position in zip(found, (2, 1), strict=True):
            (asked,) = one.properties(0.0)
            torch.testing.assert_close(one.network.module(asked.lower[None].float())[0], logits[asked.sample, position])


def tables(count: int) -> nn.Module:
    """The sum of what `count` tables say of the tokens."""

    def call(net: Any, tokens: torch.Tensor) -> torch.Tensor:
        found = [each(tokens).mean(1) for each in net.tables]
        return net.head(torch.stack(found).sum(0) if found else tokens.float())  # type: ignore[no-any-return]

    made = nn.ModuleList(nn.Embedding(VOCABULARY, WIDTH) for _ in range(count))
    return Written(call, tables=made, head=nn.Linear(WIDTH if count else POSITIONS, CLASSES))


class Odd(nn.Module):
    """Tokens on another way: `changed` on their way to the table, or all in a `row`."""

    def __init__(self, *, changed: bool = False) -> None:
        super().__init__()
        self.table, self.segments, self.changed = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(2, WIDTH), changed
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        tokens, mask = batch["tokens"], batch["mask"]
        if self.changed:
            x = self.table(torch.where(tokens < 3, tokens, 0)) + self.segments(mask)
        else:
            x = self.table(tokens.reshape(-1)).reshape(-1, POSITIONS, WIDTH)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (lambda: Odd(changed=True), masked(2), "no table of embeddings is given the tokens as they are"),
        (lambda: Odd(changed=False), masked(2), "a row for each of"),
        (lambda: tables(0), tokens_of(2), "no table of embeddings is given the tokens"),
        (lambda: tables(2), tokens_of(2), "embedded more than once, by 'tables"),
    ],
)
def test_one_table_is_given_the_tokens_and_it_counts(module: Callable[[], nn.Module], given: Inputs, said: str) -> None:
    network = language(module(), given)
    with pytest.raises(Unsupported, match=said):
        subjects(network, bench_of(network, given), 1)


def test_a_swap_whose_training_moved_the_table_has_no_certificate() -> None:
    given = {"tokens": tokens_of(2), "mask": torch.ones(2, POSITIONS, dtype=torch.long)}
    before, after = Masked().eval(), Masked().eval()
    after.load_state_dict(before.state_dict())
    network = replace(language(after, given), unswapped=before)
    (subject,) = subjects(network, bench_of(network, given), 1)
    assert isinstance(subject.network.unswapped, Embedded)
    # A row that the first sample does not choose, but a later one of the same mask does.
    (_, later) = (set(row.tolist()) for row in given["tokens"])
    row = min(later - set(given["tokens"][0].tolist()))
    with torch.no_grad():
        after.table.weight[row] += 0.1
    with pytest.raises(Unsupported, match="the embedding changed after the swap"):
        subjects(network, bench_of(network, given), 2)


def test_classes_of_each_position_of_real_inputs_are_refused() -> None:
    given = torch.rand(2, POSITIONS, 3)
    network = Network("tagger", nn.Linear(3, CLASSES).eval(), (POSITIONS, 3), CLASSES)
    bench = bench_of(network, given)
    with pytest.raises(Unsupported, match="each position has a class of its own"):
        bench.properties(0.1, 1)


def test_several_real_inputs_are_refused_by_name() -> None:
    given = {"left": torch.rand(2, 3), "right": torch.rand(2, 3)}
    network = Network("pair", nn.Identity(), (3,), CLASSES, given=given)
    with pytest.raises(Unsupported, match="one real input, or tokens; pair has several inputs"):
        subjects(network, bench_of(language(tables(1), tokens_of(2)), tokens_of(2)), 1)


def bounded(module: nn.Module, size: int, low: float, high: float) -> torch.Tensor:
    """Bounds on the box of all inputs between the two, the upper ones negated, which hold at points drawn there."""
    graph = graph_of_typed(read(module, torch.rand(2, size)), "input")
    ends = (torch.full((1, size), each, dtype=torch.float64) for each in (low, high))
    eye = torch.eye(size, dtype=torch.float64)
    found: torch.Tensor = Propagation(graph, *ends).lower_bounds(torch.cat([eye, -eye])).value[0]
    seen = module.double()((high - low) * torch.rand(2000, size, dtype=torch.float64) + low)
    assert bool((seen >= found[:size]).all())
    assert bool((seen <= -found[size:]).all())
    return found


@pytest.mark.parametrize("size", [1, 2, 5])
@torch.no_grad()
def test_a_softmax_of_huge_scores_has_bounds(size: int) -> None:
    module = nn.Sequential(nn.Linear(size, size), nn.Softmax(-1)).eval()
    module[0].weight.copy_(torch.eye(size) * 400)
    bounded(module, size, 0.0, 1.0)


@torch.no_grad()
def test_a_norm_is_bounded_on_boxes_of_any_size() -> None:
    module = nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 4), nn.LayerNorm(4)).eval()
    found = bounded(module, 4, -100.0, 100.0)
    assert bool((found >= -2.001).all())  # no entry of a norm of four is beyond the root of four

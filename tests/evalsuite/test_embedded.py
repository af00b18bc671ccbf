"""Networks of tokens as networks of real inputs: what follows their embedding, with the masks of
each sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from written import Written, bench_of

from evalsuite import Network, Split, Unsupported
from evalsuite.samples import Several
from evalsuite.tasks import Classification
from evalsuite.verification.subjects import Subject, graph_of_network, subjects
from netverify.propagation import Propagation
from opgraph import embedded
from opgraph.embedded import Embedded
from opgraph.graph import Graph, Node
from opgraph.inputs import Inputs
from opgraph.operations import Constant, Input, Softmax, Sum

VOCABULARY, POSITIONS, WIDTH, CLASSES = 11, 4, 6, 3


class Masked(nn.Module):
    """One head of attention under a mask of paddings, a norm, and logits of the first position
    or of each.
    """

    def __init__(
        self,
        *,
        added: float = 0.0,
        causal: bool = False,
        each: bool = False,
        token: bool = False,
        left: bool = False,
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
            x = x + torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=seen
            )
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
    """torch's attention under a mask of paddings, and the last position that counts, of each
    sample its own.
    """

    def call(net: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = net.table(batch["tokens"]) + net.segments(batch["mask"])
        found, _ = net.attention(x, x, x, key_padding_mask=batch["mask"] == 0)
        return net.head((x + found)[torch.arange(len(x)), batch["mask"].sum(1) - 1])  # type: ignore[no-any-return]

    tables = {"table": nn.Embedding(VOCABULARY, WIDTH), "segments": nn.Embedding(2, WIDTH)}
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    return Written(call, **tables, attention=attention, head=nn.Linear(WIDTH, CLASSES), each=False)


def language(module: nn.Module, given: Inputs) -> Network:
    shape = (
        tuple(next(iter(given.values())).shape[1:])
        if isinstance(given, dict)
        else tuple(given.shape[1:])
    )
    named = given if isinstance(given, dict) else None
    return Network("language", module.eval(), shape, CLASSES, vocabulary=VOCABULARY, given=named)


def asked_of(
    network: Network, given: Inputs, count: int, targets: torch.Tensor | None = None
) -> list[Subject]:
    """The subjects of a bench whose targets are what the network says, where they are not given."""
    if targets is None:
        with torch.no_grad():
            targets = network.module(given).argmax(-1)
    part = Split(Several(given) if isinstance(given, dict) else given, targets, Classification())
    return subjects(network, bench_of(part, CLASSES, Path(), vocabulary=VOCABULARY), count)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("made_", "given"),
    [
        pytest.param(lambda: Masked(), masked(4), marks=pytest.mark.slow),
        pytest.param(
            lambda: Masked(added=torch.finfo(torch.float32).min), masked(2), marks=pytest.mark.slow
        ),
        (lambda: Masked(causal=True, each=True), tokens_of(2)),
        (lambda: Masked(token=True), tokens_of(1)),
        pytest.param(lambda: Masked(left=True), masked(4, left=True), marks=pytest.mark.slow),
        pytest.param(lambda: pooled(), masked(2), marks=pytest.mark.slow),
    ],
    ids=["mask", "added", "each", "token", "left", "pooled"],
)
@torch.no_grad()
def test_bounds_hold_under_masks(made_: Callable[[], nn.Module], given: Inputs) -> None:
    network = language(made_(), given)
    for subject in asked_of(network, given, 4):
        graph = graph_of_network(subject.network)[1]
        for each in subject.properties(2.0**-4):
            lower, upper = each.lower.flatten()[None], each.upper.flatten()[None]
            bounds = Propagation(graph, lower, upper)
            eye = torch.eye(CLASSES, dtype=torch.float64)
            low, high = bounds.lower_bounds(torch.cat([eye, -eye])).value[0].split(CLASSES)
            corners = torch.where(torch.rand(1000, lower.shape[1]) < 0.5, lower, upper)
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
    (short, *_) = asked_of(network, given, 1)
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
    found = asked_of(network, given, 8)
    assert [[each.sample for each in one.properties(0.0)] for one in found] == [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
    ]


def test_boxes_are_around_the_embedding() -> None:
    given = tokens_of(3)
    network = language(Masked(causal=True), given)
    (subject,) = asked_of(network, given, 2)
    vectors = network.module.table(given).double()
    for each, vector in zip(subject.properties(0.25), vectors, strict=False):
        assert torch.equal(each.lower, vector - 0.25)
        assert torch.equal(each.upper, vector + 0.25)


def test_the_last_position_with_a_target_is_asked_for() -> None:
    given = tokens_of(2)
    network = language(Masked(causal=True, each=True), given)
    found = asked_of(network, given, 2, torch.tensor([[0, 1, 2, -100], [2, 1, -100, -100]]))
    assert [each.label for one in found for each in one.properties(0.0)] == [2, 1]
    with torch.no_grad():
        logits = network.module(given)
        for one, position in zip(found, (2, 1), strict=True):
            (asked,) = one.properties(0.0)
            torch.testing.assert_close(
                one.network.module(asked.lower[None].float())[0], logits[asked.sample, position]
            )


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
        self.table, self.segments, self.changed = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Embedding(2, WIDTH),
            changed,
        )
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
        (
            lambda: Odd(changed=True),
            masked(2),
            "no table of embeddings is given the tokens as they are",
        ),
        (lambda: Odd(changed=False), masked(2), "a row for each of"),
        (lambda: tables(0), tokens_of(2), "no table of embeddings is given the tokens"),
        (lambda: tables(2), tokens_of(2), "embedded more than once, by 'tables"),
    ],
)
def test_one_table_is_given_the_tokens_and_it_counts(
    module: Callable[[], nn.Module], given: Inputs, said: str
) -> None:
    network = language(module(), given)
    with pytest.raises(Unsupported, match=said):
        asked_of(network, given, 1)


def test_a_swap_whose_training_moved_the_table_has_no_certificate() -> None:
    given = {"tokens": tokens_of(2), "mask": torch.ones(2, POSITIONS, dtype=torch.long)}
    before, after = Masked().eval(), Masked().eval()
    after.load_state_dict(before.state_dict())
    network = replace(language(after, given), unswapped=before)
    (subject,) = asked_of(network, given, 1)
    assert isinstance(subject.network.unswapped, Embedded)
    # A row that the first sample does not choose, but a later one of the same mask does.
    (_, later) = (set(row.tolist()) for row in given["tokens"])
    row = min(later - set(given["tokens"][0].tolist()))
    with torch.no_grad():
        after.table.weight[row] += 0.1
    with pytest.raises(Unsupported, match="the embedding changed after the swap"):
        asked_of(network, given, 2)


def test_real_inputs_with_classes_of_each_position_and_several_of_them_are_refused() -> None:
    tagger, rows = nn.Linear(3, CLASSES).eval(), torch.rand(2, POSITIONS, 3)
    part = Split(rows, tagger(rows).argmax(-1), Classification())
    with pytest.raises(Unsupported, match="each position has a class of its own"):
        bench_of(part, CLASSES, Path()).properties(0.1, 1)
    given = {"left": torch.rand(2, 3), "right": torch.rand(2, 3)}
    network = Network("pair", nn.Identity(), (3,), CLASSES, given=given)
    with pytest.raises(Unsupported, match="one real input, or tokens; pair has several inputs"):
        asked_of(network, given, 1, torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(("rows", "stays"), [([[1, 1], [0, 0]], True), ([[0, 1], [0, 0]], False)])
def test_a_softmax_stays_safe_where_an_added_mask_takes_a_whole_row(
    rows: list[list[int]], stays: bool
) -> None:
    """Its row is 0; by the plain softmax it would be no number."""
    mask = torch.zeros(2, 2).masked_fill(torch.tensor(rows).bool(), -torch.inf)
    kinds = (Input(0), Constant(mask), Sum(), Softmax(2, safe=True))
    sources: tuple[tuple[int, ...], ...] = ((), (), (0, 1), (2,))
    nodes = tuple(
        Node("", kind, before, (-1, 2, 2), torch.float32)
        for kind, before in zip(kinds, sources, strict=True)
    )
    read = embedded.rewritten(Graph(nodes, 3, ("x",)), embedded._attending)
    (softmax,) = [node.operation for node in read.nodes if isinstance(node.operation, Softmax)]
    assert softmax.safe == stays
    *_, (_, attended) = read.values(torch.zeros(1, 2, 2))
    assert attended.isfinite().all()

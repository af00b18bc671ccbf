"""Bounds of language models: the embedding is what is perturbed, and the last position what is
judged.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from written import bench_of

from evalsuite import Bench, Data, Network, Split, Unsupported, Verdict
from evalsuite.plugins import load
from evalsuite.samples import Several
from opgraph.inputs import mapped
from pipelines.bounds import Bounds
from pipelines.bounds.embedding import embedded
from pipelines.bounds.propagation import Propagation

VOCABULARY, POSITIONS, WIDTH, CLASSES = 11, 5, 4, 3
MakeNetwork = Callable[..., Network]
MakeBench = Callable[..., Bench]


class Positioned(nn.Module):
    """Tokens and positions are embedded and added; then an MLP of all positions, with logits for
    each or for all.
    """

    def __init__(self, classes: int, *, each: bool) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"embedding": nn.Embedding(VOCABULARY, WIDTH)})
        self.positions = nn.Parameter(torch.randn(POSITIONS, WIDTH))
        self.each, self.classes = each, classes
        self.up, self.activation = nn.Linear(POSITIONS * WIDTH, 8), nn.GELU()
        self.down = nn.Linear(8, classes * (POSITIONS if each else 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.body["embedding"](tokens) + self.positions
        logits = self.down(self.activation(self.up(x.flatten(1))))
        return logits.reshape(-1, POSITIONS, self.classes) if self.each else logits


class Both(nn.Module):
    """Embeddings `names` of the tokens, summed."""

    def __init__(self, *names: str, skip: bool = False) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(VOCABULARY, WIDTH) for name in names})
        self.head, self.skip = nn.Linear(POSITIONS * (WIDTH if names else 1), CLASSES), skip

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = (
            torch.stack([each(tokens) for each in self.tables.values()]).sum(0)
            if len(self.tables)
            else tokens
        )
        logits = self.head(x.flatten(1).float())
        return logits + tokens.float().sum(1, keepdim=True) if self.skip else logits


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        nn.Flatten(),
        nn.Linear(POSITIONS * WIDTH, 8),
        nn.GELU(),
        nn.Linear(8, CLASSES),
    )


def language(module: nn.Module, classes: int = CLASSES) -> Network:
    return Network("language", module.eval(), (POSITIONS,), classes, vocabulary=VOCABULARY)


def spoken(subject: Network, count: int, *, positions: bool = False) -> Bench:
    """A bench of random tokens, whose targets are what the network says."""
    tokens = torch.randint(
        VOCABULARY, (count, POSITIONS), generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        targets = subject.module(tokens).argmax(-1)
    assert (targets.ndim == 2) == positions
    split = Split(tokens, targets)
    return bench_of(
        split, subject.classes, Path(), domain=(0.0, VOCABULARY - 1.0), vocabulary=VOCABULARY
    )


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (plain, "0"),
        (lambda: Positioned(CLASSES, each=False), "body.embedding"),
        (lambda: Positioned(CLASSES, each=True), "body.embedding"),
    ],
)
def test_the_embedded_network_computes_what_the_tokens_give(
    module: Callable[[], nn.Module], table: str
) -> None:
    subject = language(module())
    before = copy.deepcopy(subject.module.state_dict())
    tokens = torch.randint(VOCABULARY, (7, POSITIONS))
    real, vectors = embedded(subject, tokens)
    assert torch.equal(vectors, subject.module.get_submodule(table)(tokens))
    assert real.input_shape == (POSITIONS, WIDTH)
    assert real.vocabulary is None
    logits = subject.module(tokens)
    assert torch.equal(real.module(vectors), logits[:, -1] if logits.ndim == 3 else logits)
    assert all(
        torch.equal(each, before[name]) for name, each in subject.module.state_dict().items()
    )
    assert isinstance(subject.module.get_submodule(table), nn.Embedding)
    assert not any(each._forward_pre_hooks for each in subject.module.modules())


def _of_each_position() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def test_layers_of_each_position_are_bounded_by_the_graph_alone() -> None:
    tokens = torch.randint(VOCABULARY, (2, POSITIONS))
    propagation = Propagation(embedded(language(_of_each_position()), tokens)[0])
    assert "none of the layers that it is given" in propagation.second.refusal


def test_the_last_of_many_tokens_logits_takes_no_matrix() -> None:
    subject, tokens = language(_of_each_position()), torch.randint(VOCABULARY, (2, POSITIONS))
    real, vectors = embedded(subject, tokens)
    sizes = [
        sum(each.numel() for each in module.parameters())
        for module in (real.module, subject.module)
    ]
    assert sizes[0] == sizes[1] - VOCABULARY * WIDTH
    assert torch.equal(real.module(vectors), subject.module(tokens)[:, -1])
    metrics = (
        Bounds(eps=(1e-4,), samples=4, iterations=3)
        .run(subject, spoken(subject, 4, positions=True))
        .metrics
    )
    found = {
        row.setting["method"]: row.value for row in metrics if row.name == "certified_accuracy"
    }
    assert 1.0 in (found["crown"], found.get("graph-crown"))


@pytest.mark.parametrize(
    ("each", "norm", "positions"), [(False, "linf", 1), (False, "l2", 0), (True, "linf", 0)]
)
def test_the_stage_certifies_balls_around_embedded_tokens(
    each: bool, norm: str, positions: int
) -> None:
    subject = language(Positioned(CLASSES, each=each))
    stage = Bounds(
        eps=(1e-4, 10.0),
        samples=4,
        norm=norm,
        radius="crown",
        iterations=3,
        positions=positions,  # type: ignore[arg-type]
    )
    metrics = stage.run(subject, spoken(subject, 4, positions=each)).metrics
    found = {
        (row.name, row.setting.get("eps"), row.setting.get("method")): row.value
        for row in metrics
        if row.sample is None and "layer" not in row.setting
    }
    assert found["clean_accuracy", None, None] == 1.0
    assert found["certified_accuracy", 1e-4, "crown"] == 1.0
    # No token's vector is clipped to the range of the indices: a ball of radius 10 holds all of the
    # others.
    assert found["certified_accuracy", 10.0, "crown"] == 0.0
    radius = found["certified_radius", None, "crown"]
    assert radius is not None
    assert 1e-4 < radius < 10.0
    holding = [
        row for row in metrics if row.verdict is Verdict.HOLDS and row.setting["method"] == "crown"
    ]
    assert [row.sample for row in holding] == list(range(4))
    # Rows say what is moved.
    told = {row.setting.get("positions", 0) for row in metrics if "eps" in row.setting}
    assert told == {positions}


def test_euclidean_balls_are_of_all_positions() -> None:
    subject = language(Positioned(CLASSES, each=True))
    with pytest.raises(Unsupported, match="give positions: 0"):
        Bounds(samples=2, norm="l2").run(subject, spoken(subject, 2, positions=True))
    with pytest.raises(ValueError, match="positions must be >= 0, got -1"):
        Bounds(positions=-1)


@pytest.mark.parametrize("positions", [0, 2])
def test_certified_tokens_hold_in_sampled_points(positions: int) -> None:
    subject = language(Positioned(CLASSES, each=True))
    data = spoken(subject, 5, positions=True)
    stage = Bounds(eps=(0.05,), samples=5, methods=("crown",), radius="crown", positions=positions)
    metrics = stage.run(subject, data).metrics
    real, vectors = embedded(subject, data.data.test.inputs)
    radii = {
        row.sample: row.value
        for row in metrics
        if row.name == "certified_radius" and row.sample is not None
    }
    assert min(value for value in radii.values() if value is not None) > 0
    for sample, radius in radii.items():
        assert sample is not None
        assert radius is not None
        offset = (2 * torch.rand(1000, POSITIONS, WIDTH) - 1) * radius * (1 - 1e-6)
        offset[::2] = offset[::2].sign() * radius * (1 - 1e-6)
        offset[:, : POSITIONS - positions if positions else 0] = 0.0
        with torch.no_grad():
            said = real.module(vectors[sample] + offset).argmax(1)
        assert (said == data.data.test.targets[sample, -1]).all()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: Both(), "no nn.Embedding is given the tokens, .* embeddings here: none"),
        (lambda: Both("one", "other"), "more than once, by tables.one, tables.other"),
    ],
)
def test_what_is_no_single_embedding_is_refused(
    module: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(Unsupported, match=message):
        Bounds(samples=2).run(language(module()), spoken(language(module()), 2))


def test_tokens_that_go_another_way_too_are_bounded_by_the_graph() -> None:
    subject = language(Both("one", skip=True))
    metrics = (
        Bounds(samples=2, eps=(0.001, 1.0), methods=("crown",))
        .run(subject, spoken(subject, 2))
        .metrics
    )
    said = {
        each.setting["method"]: each.verdict
        for each in metrics
        if each.sample is not None and "method" in each.setting and each.setting.get("eps") == 0.001
    }
    assert said["graph-crown"] is Verdict.HOLDS
    refused = " ".join(each.reason for each in metrics if each.setting.get("method") == "crown")
    assert re.search("needs its tokens|something else from the output of 'tables.one'", refused)


def masked(count: int) -> tuple[Network, Bench]:
    """Attention of the tokens that a mask leaves, and a bench of what it says."""
    tokens = torch.randint(
        VOCABULARY, (count, POSITIONS), generator=torch.Generator().manual_seed(1)
    )
    given = {
        "tokens": tokens,
        "mask": (torch.arange(POSITIONS) < torch.tensor([[2], [4]]).repeat(count // 2, 1)),
    }
    subject = replace(language(Attending()), given=given)
    with torch.no_grad():
        split = Split(Several(given), subject.module(given).argmax(-1))
    return subject, bench_of(
        split, CLASSES, Path(), domain=(0.0, VOCABULARY - 1.0), vocabulary=VOCABULARY
    )


class Attending(nn.Module):
    """A mapping of tokens and a mask to logits, by attention and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.asked = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.activation, self.down = nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, CLASSES)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.behind(self.table(batch["tokens"]), batch["mask"])

    def behind(self, vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.asked(vectors).chunk(3, -1)
        found = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None]
        )
        return self.down(self.activation(self.up(found.mean(1))))  # type: ignore[no-any-return]


def test_a_mask_is_each_samples_own() -> None:
    subject, bench = masked(4)
    metrics = (
        Bounds(samples=4, eps=(2.0**-8, 4.0), methods=("crown",), positions=0)
        .run(subject, bench)
        .metrics
    )
    said = {
        (each.sample, each.setting["eps"]): each.verdict
        for each in metrics
        if each.setting.get("method") == "graph-crown" and each.sample is not None
    }
    assert set(said) == {(sample, eps) for sample in range(4) for eps in (2.0**-8, 4.0)}
    for (sample, eps), verdict in said.items():
        given = mapped(
            bench.data.test.inputs[torch.tensor([sample])], lambda each: each.repeat(500, 1)
        )
        with torch.no_grad():
            vectors = subject.module.table(given["tokens"])
            moved = vectors + eps * (2 * torch.rand(vectors.shape) - 1)
            broken = (
                subject.module.behind(moved, given["mask"]).argmax(-1)
                != bench.data.test.targets[sample]
            )
        assert verdict is not Verdict.HOLDS or not bool(broken.any())
    assert Verdict.HOLDS in said.values()


def text_gpt() -> tuple[Network, Data]:
    workload = load("workloads", "text-gpt").target()
    subject = Network(
        "text-gpt", workload.build(lambda _: nn.GELU()).eval(), (64,), 256, vocabulary=256
    )
    tokens = torch.randint(256, (2, 64))
    with torch.no_grad():
        split = Split(tokens, subject.module(tokens).argmax(-1))
    return subject, Data(split, split, split, split, (0.0, 255.0), 256, "n", 256)


@pytest.mark.slow
def test_the_last_position_of_a_gpt_is_bounded() -> None:
    subject, data = text_gpt()
    stage = Bounds(samples=1, eps=(2.0**-13, 0.25), methods=("crown",))
    metrics = stage.run(subject, Bench(data, 0, Path(), 600.0, lambda *_, **__: None)).metrics
    said = {
        (each.sample, each.setting["eps"]): each.verdict
        for each in metrics
        if each.setting.get("method") == "graph-zonotope" and each.sample is not None
    }
    assert said == {(0, 2.0**-13): Verdict.HOLDS, (0, 0.25): Verdict.UNKNOWN}
    (attacked,) = (
        each.value
        for each in metrics
        if each.name == "pgd_accuracy" and each.setting["eps"] == 0.25
    )
    assert attacked == 0.0
    worst = [each for each in metrics if each.name == "attacked_accuracy"]
    assert [each.value for each in worst] == [None, None]
    assert all("vectors of tokens" in each.reason for each in worst)


@pytest.mark.slow
def test_a_gpt_is_bounded_as_long_as_there_is_time() -> None:
    subject, data = text_gpt()
    tokens = data.test.inputs[torch.arange(2)]
    metrics = (
        Bounds(samples=2, positions=0)
        .run(subject, Bench(data, 0, Path(), 1.0, lambda *_, **__: None))
        .metrics
    )
    assert {each.verdict for each in metrics if each.setting.get("method") == "graph-crown"} >= {
        Verdict.TIMEOUT
    }
    assert any(
        "lines are not carried backward through attention" in each.reason
        for each in metrics
        if each.setting.get("method") == "crown"
    )
    real, vectors = embedded(subject, tokens)
    with torch.no_grad():
        assert torch.equal(real.module(vectors), subject.module(tokens)[:, -1])

"""Networks of tokens in the stages that verify: what follows the embedding, around what the tokens are embedded to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import slow
from torch import nn

from evalsuite import Bench, Data, LanguageModel, Metric, Network, Split, Verdict, swap_to_relu
from pipelines.smt import Smt
from pipelines.swap_certificate import Certificate


def value(metrics: list[Metric], name: str, **setting: float) -> float:
    (found,) = [each for each in metrics if each.name == name and dict(each.setting) == setting and each.sample is None]
    assert found.value is not None
    return found.value


class Tagger(nn.Module):
    """Logits of each position of tokens, by causal attention, a norm and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.asked, self.norm = nn.Embedding(9, 6), nn.Linear(6, 18), nn.LayerNorm(6)
        self.up, self.activation, self.down = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        query, key, value = self.asked(x).chunk(3, -1)
        x = self.norm(x + nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


def tagged(folder: Path) -> tuple[Network, Bench]:
    """The network, and a bench of what it says."""
    torch.manual_seed(0)
    tokens, module = torch.randint(9, (6, 4)), Tagger().eval()
    with torch.no_grad():
        split = Split(tokens, module(tokens).argmax(-1), LanguageModel())
    data = Data(split, split, split, split, (0.0, 8.0), 3, "n", 9)
    bench = Bench(data, 0, folder, 60.0, lambda *_, **__: None)
    return Network("tagger", module, (4,), 3, vocabulary=9), bench


@pytest.mark.slow
@pytest.mark.parametrize("positions", [0, 1, 2])
def test_of_tokens_what_follows_their_embedding_is_certified(tmp_path: Path, positions: int) -> None:
    made, given = tagged(tmp_path)
    module, tokens = made.module, given.data.test.inputs
    told = {"positions": positions} if positions else {}
    stage = Certificate(eps=(0.0, 0.01), samples=3, hardness=(), positions=positions)
    metrics = stage.run(made, given).metrics
    assert value(metrics, "certified_to_observed", eps=0.0, **told) == pytest.approx(1, rel=1e-6)
    assert 1 <= value(metrics, "certified_to_observed", eps=0.01, **told) < 2
    swapped = swap_to_relu(module, (tokens,))
    with torch.no_grad():
        seen = (module(tokens[:3])[:, -1] - swapped(tokens[:3])[:, -1]).abs().amax(1).mean()
    assert value(metrics, "certified_disruption", eps=0.0, **told) == pytest.approx(float(seen), rel=1e-4)
    # A network that was swapped before is compared with what it was.
    again = stage.run(replace(made, module=swapped, unswapped=module), given).metrics
    assert value(again, "certified_disruption", eps=0.01, **told) == pytest.approx(
        value(metrics, "certified_disruption", eps=0.01, **told), rel=1e-5
    )


@pytest.mark.parametrize("positions", [0, slow(1)])
def test_exact_verdicts_of_tokens_replay(tmp_path: Path, positions: int) -> None:
    made, given = tagged(tmp_path)
    module, tokens = made.module, given.data.test.inputs
    stage = Smt(eps=(2.0**-8, 4.0), samples=2, query_time_limit=2.0, proofs=False, positions=positions)
    found = stage.run(made, given)
    said = {(each.sample, each.setting["eps"]): each.verdict for each in found.metrics if each.verdict is not None}
    assert {said[sample, 2.0**-8] for sample in range(2)} == {Verdict.HOLDS}
    assert {said[sample, 4.0] for sample in range(2)} == {Verdict.VIOLATED}
    for each in json.loads(found.artefacts["counterexamples"].read_text()):
        clean = module.table(tokens[each["sample"]]).detach()[-positions:]
        assert each["clean"] == clean.tolist()
        assert float((torch.tensor(each["input"]) - clean).abs().max()) <= 4.0
        assert each["class"] != each["label"]

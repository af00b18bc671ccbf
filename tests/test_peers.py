"""`python -m benchmarks.peers` measures every quantizer that is at hand, and says what is not."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks import peers

pytestmark = pytest.mark.filterwarnings("ignore")


def subject(scale: float = 1.0) -> peers.Subject:
    """A small classifier; its quality is how often its class is that of float."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)).eval()
    inputs = torch.rand(96, 1, 8, 8)
    with torch.no_grad():
        module[1].weight.mul_(scale)
        classes = module(inputs[48:]).argmax(-1)

    def same(outputs: torch.Tensor) -> float:
        return float((outputs.argmax(-1) == classes).double().mean())

    return peers.Subject("mlp", module, inputs[:48], inputs[48:], same, "same", True, False)


@pytest.mark.slow
def test_every_tool_has_a_row_with_a_value_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_times", lambda *_: (1.0, 1.0))
    lines = list(peers.rows(subject()))
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    by_tool = {name: cells for name, *cells in table[2:]}
    assert list(by_tool) == ["float32", *peers.TOOLS]
    assert float(by_tool["float32"][0]) == 1
    for tool in (peers.OURS, peers.INTEGERS, "ONNX Runtime, dynamic"):
        assert float(by_tool[tool][0]) >= 0.95
        assert 0 < float(by_tool[tool][1]) <= 0.01
        assert float(by_tool[tool][2]) <= 0.03  # MB, of a tiny network
    for tool, (_, needed) in peers.TOOLS.items():
        missing = [each for each in needed if importlib.util.find_spec(each) is None]
        said = by_tool[tool][0]
        assert said.startswith("not measured: ") == bool(missing)
        assert all(each in said for each in missing)
        assert missing or re.fullmatch(r"[01]\.\d{4}", said), said
    (goal,) = (line for line in lines if line.startswith("- "))
    assert goal.startswith("- goal met: at most 0.2 points below the best peer, or float: ")


@pytest.mark.slow
def test_weights_of_4_bits_have_a_table_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_times", lambda *_: (1.0, 1.0))
    monkeypatch.setattr(peers, "TOOLS", {})
    lines = list(peers.rows(replace(subject(), language=True)))
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    by_tool = {name: values for name, *values in cells[5:]}
    assert list(by_tool) == ["float32", *peers.OF_4_BITS]
    assert float(by_tool[peers.OURS][0]) >= 0.9


def test_goals_are_met_or_not_by_what_was_measured() -> None:
    asked = peers.Goals(0.995, 0.98, 25.0, ("fast",))

    def told(ours: float, ratio: float, integers: float) -> list[str]:
        rows = [
            peers.Row(peers.OURS, ours, 0.0, 20.0, (0.4, 0.4)),
            peers.Row(peers.INTEGERS, integers, 0.0, 40.0, (9.0, 9.0)),
            peers.Row("fast", 0.997, 0.0, 20.0, (0.4, 0.5), (0.8, ratio)),
        ]
        lines = peers.goals(replace(subject(), goals=asked), 1.0, rows)
        return [line.partition(":")[0] for line in lines]

    met, missed = "- goal met", "- goal not met"
    assert told(0.996, 1.0, 0.98) == [met] * 5
    lucky = [peers.Row(peers.OURS, 0.9, 0.0, 1.0, ()), peers.Row("fast", 0.95, 0.0, 1.0, ())]
    (line,) = peers.goals(subject(), 0.901, lucky)
    assert line.startswith(met)
    assert told(0.994, 1.1, 0.97) == [missed, missed, met, missed, missed]
    assert list(peers.goals(subject(), 1.0, [])) == ["- goals: not met, there is no file of ours"]


def test_a_tool_that_fails_has_a_row_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> peers.Made:
        raise RuntimeError("no operator for it")

    monkeypatch.setattr(peers, "TOOLS", {"mine": (fail, ()), "other": (fail, ("no_such_module",))})
    failed, absent = list(peers.rows(subject()))[3:5]
    assert failed == "| mine | failed: RuntimeError: no operator for it | | | | |"
    assert absent == "| other | not measured: no_such_module not installed | | | | |"


def test_a_network_that_is_not_at_hand_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> peers.Subject:
        raise FileNotFoundError("put the text there")

    monkeypatch.setattr(peers, "SUBJECTS", {"far": absent})
    assert list(peers.peers()) == ["far: not measured: put the text there"]

"""`python -m benchmarks.peers` measures every quantizer that is at hand, and says what is not."""

from __future__ import annotations

import importlib.util
import re

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
    monkeypatch.setattr(peers, "_times", lambda *_: "1, 1")
    table = [line.strip("| ").split(" | ") for line in peers.rows(subject())]
    by_tool = {name: cells for name, *cells in table[2:]}
    assert list(by_tool) == ["float32", *peers.TOOLS]
    assert float(by_tool["float32"][0]) == 1
    for tool in ("this project", "ONNX Runtime, dynamic"):
        assert float(by_tool[tool][0]) >= 0.95
        assert 0 < float(by_tool[tool][1]) <= 0.01
        assert float(by_tool[tool][2]) <= float(by_tool["float32"][2])  # in MB, of a tiny network
    for tool, (_, needed) in peers.TOOLS.items():
        missing = [each for each in needed if importlib.util.find_spec(each) is None]
        said = by_tool[tool][0]
        assert said.startswith("not measured: ") == bool(missing)
        assert all(each in said for each in missing)
        assert missing or re.fullmatch(r"[01]\.\d{4}", said), said


def test_a_tool_that_fails_has_a_row_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> peers.Made:
        raise RuntimeError("no operator for it")

    monkeypatch.setattr(peers, "TOOLS", {"mine": (fail, ()), "other": (fail, ("no_such_module",))})
    failed, absent = list(peers.rows(subject()))[-2:]
    assert failed == "| mine | failed: RuntimeError: no operator for it | | | |"
    assert absent == "| other | not measured: no_such_module not installed | | | |"


def test_a_network_that_is_not_at_hand_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> peers.Subject:
        raise FileNotFoundError("put the text there")

    monkeypatch.setattr(peers, "SUBJECTS", {"far": absent})
    assert list(peers.peers()) == ["far: not measured: put the text there"]

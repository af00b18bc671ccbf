"""`evalsuite.relu_ize`: a module in memory comes back with ReLU in place, and what that cost."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn
from workshop import python

import evalsuite
from evalsuite import OwnError
from evalsuite.own.reluizing import ReluIzed, warn_of_hub
from evalsuite.own.saving import Saved


def _record(**changes: object) -> ReluIzed:
    fields = {
        "variant": "swap-refit",
        "metric": "accuracy in float",
        "before": 0.9,
        "after": 0.91,
        "interval": (-0.01, 0.03),
        "samples": 400,
        "sizes": (2048, 1024),
        "speedups": {1: (1.2, 1.1, 1.3)},
        "recommendation": "Recommended: accuracy in float improves.",
        "text": "a table\nRecommended: accuracy in float improves.",
        "folder": "runs/net-relu",
    }
    return ReluIzed(**{**fields, **changes})  # type: ignore[arg-type]


def test_what_was_measured_shows_its_table_and_is_pickled_without_this_package() -> None:
    record = _record()
    assert repr(record) == record.text
    assert copy.deepcopy(record) is record
    pickled = pickle.dumps(record)
    assert b"evalsuite" not in pickled
    read = pickle.loads(pickled)
    assert type(read) is SimpleNamespace
    assert vars(read) == vars(record)


def test_an_onnx_file_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    from test_command_help import write_onnx

    monkeypatch.chdir(tmp_path)
    write_onnx(tmp_path / "net.onnx")
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    with pytest.raises(OwnError, match=r"evalsuite\.from_onnx\(file, example\)"):
        evalsuite.relu_ize("net.onnx", x, x[:, :3].argmax(1), cache="cache")


def _python(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    return python(folder, "script.py").splitlines()


IN_MEMORY = """
import json
import torch
from torch import nn
import evalsuite

torch.manual_seed(0)
x = torch.randn(1000, 6)
y = (x[:, :3] + 0.3 * torch.randn(1000, 3)).argmax(1)
net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
step = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(60):
    loss = nn.functional.cross_entropy(net(x[:500]), y[:500])
    step.zero_grad(); loss.backward(); step.step()

def accuracy(net):
    with torch.no_grad():
        return (net(x[500:]).argmax(1) == y[500:]).double().mean().item()

kept = [each.clone() for each in net.parameters()]
relu = evalsuite.relu_ize(net, train=(x[:500], y[:500]), test=(x[500:], y[500:]), cache="cache")
assert all(torch.equal(a, b) for a, b in zip(kept, net.parameters(), strict=True))
assert type(relu) is nn.Sequential and [type(each) for each in relu][1] is nn.ReLU
found = relu.relu_ized
torch.save(relu, "relu.pt")
torch.save(x[500:], "x.pt")
torch.save(relu(x[500:]).detach(), "wanted.pt")
torch.onnx.export(relu, (x[:2],), "relu.onnx", dynamic_shapes=({0: "batch"},), verbose=False)
print(json.dumps([found.before, found.after, accuracy(net), accuracy(relu), found.samples,
                  found.interval, found.recommendation, repr(found).splitlines()[-1],
                  found.folder]))
"""
READ = """
import sys
import onnxruntime
import torch
relu = torch.load("relu.pt", weights_only=False)
x, wanted = torch.load("x.pt"), torch.load("wanted.pt")
assert torch.equal(relu(x), wanted)
session = onnxruntime.InferenceSession("relu.onnx")
(logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
assert abs(torch.tensor(logits) - wanted).max() < 1e-5
assert not any(name.startswith(("evalsuite", "lambda_gelu")) for name in sys.modules)
print(relu.relu_ized.variant)
"""


@pytest.mark.slow
def test_a_module_in_memory_comes_back_with_relu_and_its_numbers(tmp_path: Path) -> None:
    line = json.loads(_python(tmp_path, IN_MEMORY)[-1])
    before, after, wanted, wanted_after, samples, interval, advice, last, folder = line
    assert (before, after) == pytest.approx((wanted, wanted_after), abs=1e-9)
    assert interval[0] <= after - before <= interval[1]
    assert samples == 500
    assert last == advice
    assert (tmp_path / folder / "run" / "report.md").is_file()
    assert _python(tmp_path, READ)[-1] in ("swap-refit", "swap-finetuned", "post-hoc", "gelu-swap")


HUGGING = """
import torch, transformers
from torch import nn
import evalsuite

torch.manual_seed(0)
ids = torch.randint(1, 50, (400, 6))
y = (ids < 25).sum(1) // 3
ids[:, 0] = 1 + y
config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1,
    num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, num_labels=3)
net = transformers.BertForSequenceClassification(config)
step = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(30):
    loss = nn.functional.cross_entropy(net(input_ids=ids[:300]).logits, y[:300])
    step.zero_grad(); loss.backward(); step.step()
part = lambda rows: {"input_ids": ids[rows], "y": y[rows]}
relu = evalsuite.relu_ize(net.eval(), train=part(slice(300)), test=part(slice(300, None)),
                          out="bert", cache="cache")
assert type(relu) is type(net)
assert (relu.config.hidden_act, net.config.hidden_act) == ("relu", "gelu")
relu.save_pretrained("hub")  # what push_to_hub uploads
again = transformers.BertForSequenceClassification.from_pretrained("hub").eval()
with torch.no_grad():
    assert torch.equal(again(ids[300:]).logits, relu(ids[300:]).logits)
    right = (again(ids[300:]).logits.argmax(1) == y[300:]).double().mean().item()
assert abs(right - relu.relu_ized.after) < 1e-9, (right, relu.relu_ized)
"""


@pytest.mark.slow
def test_a_model_of_the_hub_is_ready_for_it(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    _python(tmp_path, HUGGING)


def test_a_network_whose_configuration_makes_the_old_activation_warns_of_the_hub() -> None:
    hub = pytest.importorskip("huggingface_hub")

    class Mixed(nn.Module, hub.PyTorchModelHubMixin):  # type: ignore[misc, name-defined]
        pass

    said = "push_to_hub write of this network: its configuration makes the old activation"
    with pytest.warns(UserWarning, match=said):
        warn_of_hub(Mixed(), Saved("own"), Path("relu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_hub(Mixed(), Saved("pretrained"), Path("relu"))
        warn_of_hub(nn.Linear(2, 2), Saved("own"), Path("relu"))

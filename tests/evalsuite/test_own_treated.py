"""What `relu-ize` says last: before, after, and one sentence that recommends or advises against."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from report_workshop import job, metric_rows, write_run
from safetensors.torch import save_file
from torch import nn
from workshop import python

from evalsuite.contract import Direction, Metric, SampleScores
from evalsuite.latency import Latency
from evalsuite.own.treated import Timed, Treated, quality_row
from evalsuite.report.run import Run
from evalsuite.results import Row, row_of
from evalsuite.scores_file import write_scores


def _row(folder: Path, variant: str, right: int, wrong: int, *, first_wrong: int = 0) -> Row:
    """The accuracy of a network that has so many test samples right and wrong."""
    values = torch.tensor([0.0] * first_wrong + [1.0] * right + [0.0] * wrong).double()
    scores = SampleScores(lambda: values)
    metric = Metric("accuracy", values.mean().item(), "fraction", Direction.HIGHER, scores=scores)
    write_scores([metric], folder / "artefacts" / "w" / variant / "0" / "accuracy")
    return row_of(metric, job(variant, 0))


def _timed(low: float, high: float, batch: int = 1) -> Timed:
    ratio = (low + high) / 2
    intervals = {"ratio": (low, high), "first": (1e-3, 1e-3), "second": (1e-3, 1e-3)}
    return Timed(batch, Latency(1e-3 * ratio, 1e-3, ratio, intervals, 100, 0.0))  # type: ignore[arg-type]


FASTER, SLOWER, ALIKE = _timed(0.80, 0.82), _timed(1.10, 1.12), _timed(0.98, 0.99)
NOISY = Timed(1, FASTER.latency, "noisy: other work took 1.7 processors beside it")


def _treated(folder: Path, lost: int, *times: Timed, count: int = 5000, told: str = "") -> Treated:
    """Of a network that has `lost` of the test samples wrong which the baseline has right."""
    rows = [
        _row(folder, "gelu", count - 100, 100),
        _row(folder, "relu", count - 100 - lost, 100, first_wrong=lost),
    ]
    run = Run.of(write_run(folder, rows, {"baseline": "gelu"}))
    return Treated("relu", quality_row(run, "w", "relu"), (2048, 1024), times, told)


def test_a_network_that_is_no_worse_and_faster_is_recommended(tmp_path: Path) -> None:
    found = _treated(tmp_path, 3, FASTER)
    assert found.recommendation == (
        "Recommended: accuracy in float loses less than 0.5 pp, −0.06 pp [−0.18, 0.02], and the"
        " network is faster in ONNX Runtime in float32, one thread."
    )
    lines = [re.split(r"  +", line) for line in found.lines()]
    assert lines[1][1:] == [
        "98.00 %",
        "97.94 %",
        "−0.06 pp [−0.18, 0.02], over 5,000 samples like these",
    ]
    assert lines[2][1:] == ["2.0 KiB", "1.0 KiB", "x 0.50"]
    assert lines[3][1:] == ["1 ms", "0.81 ms", "x 0.81 [0.80, 0.82]"]


@pytest.mark.parametrize(
    ("lost", "times", "start"),
    [
        (60, [FASTER], "Advised against: relu costs accuracy in float"),
        (18, [FASTER], "Advised against: relu costs accuracy in float"),
        (-60, [ALIKE], "Recommended: accuracy in float improves"),
        (-60, [SLOWER], "Advised against: accuracy in float improves"),
        (3, [SLOWER, FASTER], "Advised against: accuracy in float loses less than"),
        (3, [ALIKE], "Recommended only for what ReLU buys elsewhere"),
        (3, [NOISY], "Recommended only for what ReLU buys elsewhere"),
    ],
)
def test_each_case_has_its_sentence(
    lost: int, times: list[Timed], start: str, tmp_path: Path
) -> None:
    moved = _treated(tmp_path, lost, *times) if lost >= 0 else _gained(tmp_path, -lost, *times)
    assert moved.recommendation.startswith(start)
    assert list(moved.lines())[-1] == moved.recommendation


def _gained(folder: Path, gained: int, *times: Timed) -> Treated:
    rows = [
        _row(folder, "gelu", 4900 - gained, 100, first_wrong=gained),
        _row(folder, "relu", 4900, 100),
    ]
    run = Run.of(write_run(folder, rows, {"baseline": "gelu"}))
    return Treated("relu", quality_row(run, "w", "relu"), None, times)


def test_a_faster_network_that_costs_less_than_the_margin_says_so(tmp_path: Path) -> None:
    assert _treated(tmp_path, 10, FASTER).recommendation.endswith(", by less than the margin.")


def test_a_noisy_clock_is_no_speed(tmp_path: Path) -> None:
    found = _treated(tmp_path, 3, NOISY)
    assert "not measured: noisy: other work" in [*found.lines()][3]
    assert "not shown to be faster" in found.recommendation


def test_few_samples_recommend_nothing_and_say_how_many_would(tmp_path: Path) -> None:
    found = _treated(
        tmp_path, 0, FASTER, count=300, told="its test samples may be training samples"
    )
    assert found.recommendation.startswith("Not recommended yet: a loss of 0.5 pp")
    assert "about 1,000 test samples would tell" in found.recommendation
    assert found.recommendation.endswith("(its test samples may be training samples).")


def test_a_doubted_model_gets_no_recommendation(tmp_path: Path) -> None:
    found = _treated(tmp_path, 3, FASTER)
    doubted = Treated(found.variant, found.row, found.sizes, found.times, doubts=["untrained"])
    assert doubted.recommendation == "No recommendation: the model itself is in doubt, see above."


def test_a_task_that_no_section_asks_of_has_a_margin_of_a_hundredth(tmp_path: Path) -> None:
    rows = metric_rows("top_5_error", {"gelu": [0.30], "relu": [0.31]})
    lower = [Row(**{**_fields(each), "unit": "value", "direction": "lower"}) for each in rows]
    row = quality_row(Run.of(write_run(tmp_path, lower, {"baseline": "gelu"})), "w", "relu")
    assert row.endpoint.words == "top 5 error"
    assert row.endpoint.margin == pytest.approx(0.003)
    assert row.way == -1


def _fields(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in Row.__dataclass_fields__}


@pytest.mark.slow
def test_relu_ize_ends_with_what_a_few_lines_have_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1600, 6)).astype("float32")
    y = (x[:, :3] + 0.3 * draw.normal(size=(1600, 3))).argmax(1)
    np.savez(
        tmp_path / "data.npz", x_train=x[:600], y_train=y[:600], x_test=x[600:], y_test=y[600:]
    )
    (tmp_path / "my.py").write_text(
        "from torch import nn\n"
        "def net(): return nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 3))\n"
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 3))
    step = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        loss = nn.functional.cross_entropy(net(torch.tensor(x[:600])), torch.tensor(y[:600]))
        step.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        step.step()
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    asked = "relu-ize my.py:net --weights net.safetensors --data data.npz --out relu --cache cache"
    script = (
        "import evalsuite, my, numpy as np, torch\n"
        "held = np.load('data.npz'); made = evalsuite.load_own(my.net, 'relu').eval()\n"
        "assert not any(isinstance(each, torch.nn.GELU) for each in made.modules())\n"
        "right = made(torch.tensor(held['x_test'])).argmax(1).numpy() == held['y_test']\n"
        "print(right.mean())\n"
    )
    said = python(tmp_path, "-m", "evalsuite", *asked.split()).splitlines()
    after = float(python(tmp_path, "-c", script).split()[-1])
    with torch.no_grad():
        before = float((net(torch.tensor(x[600:])).argmax(1).numpy() == y[600:]).mean())
    quality = next(line for line in said if line.startswith("accuracy in float on the test"))
    told = [float(each) / 100 for each in re.findall(r"([\d.]+) %", quality)]
    assert told == pytest.approx([before, after], abs=6e-4)
    assert "over 1,000 samples like these" in quality
    assert any(line.startswith("size of the ONNX file") and "KiB" in line for line in said)
    assert any(line.startswith("latency of 64 samples (ONNX Runtime in float32") for line in said)
    assert re.match(r"(Recommended|Advised against|Not recommended yet)", said[-1])

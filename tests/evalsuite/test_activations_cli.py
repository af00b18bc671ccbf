from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from evalsuite.activations import GATED
from evalsuite.activations.listing import table, write_figure
from evalsuite.cli import app
from evalsuite.plugins import Plugin, load_all


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["activations", *arguments])


def test_the_list_has_every_activation_and_gated_unit_in_aligned_columns() -> None:
    done = command()
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert max(map(len, lines)) <= 120
    names = [line.split()[0] for line in lines[1:] if line]
    assert names == [*(each.name for each in load_all("activations")), "gated", *GATED]
    column = lines[0].index("source")
    assert all(
        line[column - 1] == " " and line[column] != " " for line in lines[1:] if line and "gated unit" not in line
    )
    (gelu,) = [line for line in lines if line.startswith("gelu ")]
    assert gelu.split() == ["gelu", "x", "Phi(x)", "relu", "arXiv", "1606.08415"]


def test_one_activation_is_shown_with_all_its_traits() -> None:
    shown = command("hard-swish").stdout
    for name, text in {
        "sup |f - ReLU|": "0.375 / lambda",
        "inflections": "-3, 3",
        "shape": "linear, convex, linear",
        "kinks": "-3, 3",
        "ONNX": "HardSwish",
        "hardens to": "relu",
        "learns": "nothing",
    }.items():
        assert f"  {name:<14}  {text}\n" in shown
    assert "sup |f - ReLU|  inf\n" in command("prelu").stdout
    assert "default parameters" not in command("gelu").stdout
    assert "default parameters" in command("prelu").stdout
    assert "gate            LambdaGELU" in command("lambda-geglu").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gelo"], "unknown activation 'gelo'; did you mean 'gelu'?"),
        (["swiglo"], "did you mean 'swiglu'?"),
        (["--plot", "figure.jpg"], "cannot draw into figure.jpg: the name must end in .svg or .png"),
        (["silu", "--plot", "missing/figure.svg"], "cannot write missing/figure.svg: No such file or directory"),
        (["geglu", "--plot", "figure.svg"], "geglu is no function of one input; draw its gate's activation, GELU"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], message: str) -> None:
    done = command(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_can_not_be_loaded_is_listed_with_the_reason() -> None:
    broken = Plugin("mish", "someone", "1", None, "broken: ImportError: no module")
    wrong = Plugin("tanh", "someone", "1", torch.tanh)
    lines = table([*load_all("activations"), broken, wrong])
    assert lines[-2:] == ["mish: broken: ImportError: no module", "tanh: broken: no row of traits"]


@pytest.mark.slow
def test_the_figure_has_a_panel_for_each_activation_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, alone, again = (tmp_path / f"{name}.svg" for name in ("all", "alone", "again"))
    done = command("--plot", str(first))
    assert (done.exit_code, done.stdout) == (0, f"{first}\n")
    for path in (alone, again):
        assert command("silu", "--plot", str(path)).exit_code == 0
    assert alone.read_bytes() == again.read_bytes()
    groups = [each.get("id", "") for each in ET.parse(first).iter() if each.tag.endswith("}g")]
    panels = [each for each in groups if each.startswith("axes_")]
    columns = 5
    rows_of_panels = -(-len(load_all("activations")) // columns)
    assert len(panels) == columns * rows_of_panels
    assert not any("NaN" in (each.get("d") or "") for each in ET.parse(first).iter())


def test_one_activation_is_drawn_as_png(tmp_path: Path) -> None:
    path = tmp_path / "gelu.PNG"
    assert command("xielu", "--plot", str(path)).exit_code == 0
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:])
    assert 600 < width < 1200
    assert 400 < height < 1000


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no activation to draw"):
        write_figure([], tmp_path / "figure.svg")

"""Activations: the hardness, gated units, the census, and what the command prints and draws."""

from __future__ import annotations

import math
import struct
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize
from typer.testing import CliRunner

from evalsuite import census, networks
from evalsuite.cli import app
from evalsuite.listing import table, write_figure
from evalsuite.plugins import Plugin, load, load_all
from lambda_gelu import RELU, replace
from lambda_gelu.activations import GATED, GatedUnit, LambdaGELU, matched_hidden
from lambda_gelu.activations.elu import ELU
from lambda_gelu.activations.leaky import PRELU


@pytest.mark.parametrize("hardness", [1.001, 1.7, 20.0, 160.0, 1e6])
def test_hardness_can_be_set_and_read_back(hardness: float) -> None:
    assert LambdaGELU(hardness=hardness).hardness.item() == pytest.approx(hardness, rel=1e-4)


def test_census_names_paths_and_replace_keeps_the_original() -> None:
    module = nn.Sequential(
        nn.Linear(2, 2), nn.GELU(), nn.Sequential(LambdaGELU(), nn.ReLU()), nn.Tanh()
    )
    assert [(found.path, found.traits.name) for found in census(module)] == [
        ("1", "gelu"),
        ("2.0", "lambda-gelu"),
        ("2.1", "relu"),
    ]
    changed = replace(module, lambda found: nn.Identity())
    assert not census(changed)
    assert isinstance(changed[3], nn.Tanh)
    assert len(census(module)) == 3


class _Build:
    """A workload whose architecture has a clip and a gate beside the activation that it is asked
    for.
    """

    def build(self, make: Callable[[int], nn.Module]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(2, 4), make(4), nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 4), nn.Sigmoid()
        )


@pytest.mark.parametrize("name", ["gelu", "mish", "quick-gelu", "relu"])
def test_what_a_saved_network_says_of_its_activations(name: str) -> None:
    module = _Build().build(load("activations", name).target.make)
    assert networks._activation(module) == {"activation": name}
    alone = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    assert networks._activation(alone) == {"activation": "tanh"}
    assert networks._activation(nn.Sequential(nn.ReLU6(), nn.Sigmoid())) == {"activation": "relu6"}


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
        line[column - 1] == " " and line[column] != " "
        for line in lines[1:]
        if line and "gated unit" not in line
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
        (
            ["--plot", "figure.jpg"],
            "cannot draw into figure.jpg: the name must end in .svg or .png",
        ),
        (
            ["silu", "--plot", "missing/figure.svg"],
            "cannot write missing/figure.svg: No such file or directory",
        ),
        (
            ["geglu", "--plot", "figure.svg"],
            "geglu is no function of one input; draw its gate's activation, GELU",
        ),
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
def test_the_figure_has_a_panel_for_each_activation_and_the_same_bytes_each_time(
    tmp_path: Path,
) -> None:
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


GATES: dict[str, Callable[[float], float]] = {
    "glu": lambda x: 1 / (1 + math.exp(-x)),
    "bilinear": lambda x: x,
    "reglu": lambda x: max(x, 0.0),
    "geglu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "swiglu": lambda x: x / (1 + math.exp(-x)),
    "lambda-geglu": lambda x: x * math.erfc(-(1 + math.log(2)) * x / math.sqrt(2)) / 2,
}


def _count(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _by_hand(unit: GatedUnit, x: list[float], gate: Callable[[float], float]) -> list[float]:
    def affine(layer: nn.Linear, inputs: list[float]) -> list[float]:
        bias = layer.bias.tolist() if layer.bias is not None else [0.0] * layer.out_features
        return [
            b + sum(w * i for w, i in zip(row, inputs, strict=True))
            for row, b in zip(layer.weight.tolist(), bias, strict=True)
        ]

    gates, ups = affine(unit.gate_proj, x), affine(unit.up, x)
    return affine(unit.down, [gate(g) * u for g, u in zip(gates, ups, strict=True)])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", GATES)
def test_a_unit_is_down_of_gate_times_up(name: str, bias: bool) -> None:
    torch.manual_seed(0)
    assert set(GATED) == set(GATES)
    assert GATED[name].name == name
    assert GATED[name].formula
    assert GATED[name].source
    unit = GATED[name].make(3, 5, bias=bias, out_width=2).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    found = unit(x)
    assert found.shape == (2, 4, 2)
    for at in ((0, 0), (1, 3)):
        assert found[at].tolist() == pytest.approx(
            _by_hand(unit, x[at].tolist(), GATES[name]), rel=1e-9, abs=1e-12
        )


@given(
    width=st.integers(1, 400),
    hidden=st.integers(75, 2000),
    out=st.integers(1, 400),
    bias=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_parameters_match_the_plain_layer_within_one_percent(
    width: int, hidden: int, out: int, bias: bool
) -> None:
    matched = matched_hidden(width, hidden, bias=bias, out_width=out)
    with torch.device("meta"):
        plain = nn.Sequential(
            nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, out, bias=bias)
        )
        counts = [
            _count(GatedUnit(width, each, nn.ReLU(), bias, out))
            for each in (matched, matched - 1, matched + 1)
        ]
    target = _count(plain)
    assert abs(counts[0] / target - 1) < (0.01 if matched > 50 else 0.5 / (matched - 0.5) + 1e-9)
    assert abs(counts[0] - target) <= min(abs(count - target) for count in counts[1:])


def test_without_biases_the_hidden_width_is_two_thirds() -> None:
    assert matched_hidden(128, 512, bias=False) == 341
    assert matched_hidden(768, 3072, bias=False) == 2048
    assert matched_hidden(128, 512, bias=False, multiple_of=64) == 320
    assert matched_hidden(128, 3, bias=False, multiple_of=64) == 64
    assert GATED["geglu"].make(48, bias=False).up.out_features == 128
    assert not any(
        "bias" in name for name, _ in GATED["geglu"].make(48, bias=False).named_parameters()
    )


def test_the_gate_is_found_by_the_census_and_geglu_swaps_to_reglu() -> None:
    torch.manual_seed(0)
    unit = GATED["geglu"].make(6, 9)
    assert [(found.path, found.traits.name) for found in census(nn.Sequential(unit))] == [
        ("0.gate", "gelu")
    ]
    assert isinstance(GATED["lambda-geglu"].make(6, 9).gate, LambdaGELU)
    swapped = replace(unit, lambda found: RELU.make(9))
    reglu = GATED["reglu"].make(6, 9)
    reglu.load_state_dict(unit.state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(swapped(x), reglu(x))
    assert not torch.allclose(unit(x), reglu(x))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: replace(nn.Linear(1, 1), lambda found: nn.ReLU()), "no known activation"),
        (lambda: write_figure([], Path("/nowhere/figure.svg")), "no activation to draw"),
        (lambda: GatedUnit(0, 4, nn.ReLU(), out_width=4), "width must be >= 1, got 0"),
        (lambda: GatedUnit(4, -1, nn.ReLU(), out_width=4), "hidden must be >= 1, got -1"),
        (lambda: GatedUnit(4, 4, nn.ReLU(), out_width=0), "out_width must be >= 1, got 0"),
        (lambda: matched_hidden(0, 4, out_width=4), "width must be >= 1, got 0"),
        (lambda: matched_hidden(4, -1, out_width=4), "hidden must be >= 1, got -1"),
        (lambda: matched_hidden(4, 4, out_width=0), "out_width must be >= 1, got 0"),
        (lambda: matched_hidden(4, 4, multiple_of=0), "multiple_of must be >= 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_rows_are_of_what_a_module_says_also_of_subclasses_and_parametrized_ones() -> None:
    class Halved(nn.ELU):
        alpha = 0.5

        def __init__(self) -> None:
            nn.Module.__init__(self)

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    slopes = nn.PReLU(init=0.2)
    parametrize.register_parametrization(slopes, "weight", Doubled())
    below = torch.tensor([-1.0], dtype=torch.float64)
    for row, module, value in ((ELU, Halved(), 0.5 * math.expm1(-1)), (PRELU, slopes, -0.4)):
        assert row.of(module).value(below).item() == pytest.approx(value)

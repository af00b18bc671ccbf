"""Networks of which some layers have ReLU: each order against networks that are swapped by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import nn
from torch.nn import functional
from written import Written

from evalsuite import Bench, Data, LambdaGELU, Network, Split, swap_to_relu
from evalsuite.exporting import export_network
from evalsuite.report.run import Run
from evalsuite.tasks import score
from evalsuite.tasks.score import mean_loss
from lambda_gelu.activations.census import let_stay
from pipelines.accuracy import Accuracy
from pipelines.accuracy.measuring import _drawn
from pipelines.accuracy.partial_swaps import ORDERS
from pipelines.accuracy.report.section import order_grids

HARDNESS = (1.2, 4.0, 2.0)
PLACES = ("1", "3", "5")


def network(hardness: tuple[float, ...] = HARDNESS) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for place, value in enumerate(hardness):
        layers += [nn.Linear(6 if place else 4, 6), LambdaGELU(hardness=value)]
    return nn.Sequential(*layers, nn.Linear(6, 3)).eval()


def bench(folder: Path, module: nn.Module) -> Bench:
    """The targets of the test part are what the network says of most samples; those of the
    others are drawn.
    """
    torch.manual_seed(1)
    inputs = 3 * torch.randn(200, 4)
    with torch.no_grad():
        targets = module(inputs).argmax(1)
    targets[::3] = torch.randint(3, (len(targets[::3]),))
    part, other = Split(inputs[:150], targets[:150]), Split(inputs[150:], targets[150:])
    return Bench(
        Data(part, part, other, part, (-9.0, 9.0), 3, "by hand"),
        0,
        folder,
        60.0,
        lambda module, epochs: None,
    )


def measured(module: nn.Module, there: Bench) -> dict[tuple[str, str, int], float | None]:
    """Name, order and number of layers -> value; -1 layers: the mean."""
    outcome = Accuracy(partial_swaps=True).run(Network("hand", module, (4,), 3), there)
    return {
        (each.name, str(each.setting["order"]), int(each.setting.get("layers", -1))): each.value  # type: ignore[call-overload]
        for each in outcome.metrics
        if "partial" in each.name
    }


def test_every_order_is_of_the_networks_that_it_names(tmp_path: Path) -> None:
    module = network()
    there = bench(tmp_path, module)

    def swapped(*places: str) -> nn.Module:
        return (
            swap_to_relu(module, keep=[each for each in PLACES if each not in places])
            if places
            else module
        )

    def accuracy(*places: str) -> float:
        value = score(swapped(*places), there.data.test).headline.value
        assert value is not None
        return value

    found = measured(module, there)
    alone = sorted(PLACES, key=lambda place: mean_loss(swapped(place), there.data.validation))
    for order, places in (("hardness", ["3", "5", "1"]), ("sensitivity", alone)):
        values = [accuracy(*places[:size]) for size in range(4)]
        assert [found["accuracy_of_partial_swap", order, size] for size in range(4)] == values
        assert found["accuracy_over_partial_swaps", order, -1] == pytest.approx(fmean(values[1:3]))
    for size in range(4):
        every = [accuracy(*each) for each in combinations(PLACES, size)]
        assert found["accuracy_of_partial_swap", "random", size] == pytest.approx(fmean(every))
    # Else every order would be as good.
    assert (
        len(
            {
                found["accuracy_of_partial_swap", order, 1]
                for order in ("hardness", "sensitivity", "random")
            }
        )
        > 1
    )
    assert all(isinstance(layer, LambdaGELU) for layer in module[1::2])


@pytest.mark.parametrize(
    ("module", "reasons"),
    [
        (
            network((1.5,)),
            ["an order takes two activations that ReLU can replace, and the network has 1"] * 3,
        ),
        (
            swap_to_relu(network()),
            ["an order takes two activations that ReLU can replace, and the network has 0"] * 3,
        ),
        (
            nn.Sequential(
                nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 3)
            ).eval(),
            ["no layer has a learnt hardness, so there is no order by it"],
        ),
    ],
    ids=["one layer", "swapped already", "GELU"],
)
def test_where_there_is_no_order_the_row_says_why(
    tmp_path: Path, module: nn.Module, reasons: list[str]
) -> None:
    outcome = Accuracy(partial_swaps=True).run(
        Network("hand", module, (4,), 3), bench(tmp_path, module)
    )
    lacking = [each for each in outcome.metrics if "partial" in each.name and each.value is None]
    assert [each.reason for each in lacking] == reasons


def test_sets_of_many_layers_are_drawn_by_the_seed() -> None:
    paths = [str(place) for place in range(7)]
    assert len(_drawn(paths, 1, 0)) == 7
    first, second = (_drawn(paths, 3, seed) for seed in (0, 1))
    assert first != second
    assert first == _drawn(paths, 3, 0)
    assert {(len(first), len(each), len({*each})) for each in first} == {(20, 3, 3)}


def called() -> nn.Module:
    """A layer that is a module, one that is a function, and one that is to stay."""
    torch.manual_seed(0)
    layers = {
        "first": nn.Linear(4, 6),
        "second": nn.Linear(6, 6),
        "third": nn.Linear(6, 3),
        "act": nn.GELU(),
    }
    let_stay(last := nn.GELU())
    return Written(
        lambda net, x: net.third(net.last(net.second(functional.silu(net.first(net.act(x)))))),
        **layers,
        last=last,
    )


def test_what_the_swap_replaces_is_counted_and_nothing_else_is_replaced(tmp_path: Path) -> None:
    module = called().eval()
    there = bench(tmp_path, module)
    found = measured(module, there)
    assert {size for name, order, size in found if order == "random" and size >= 0} == {0, 1, 2}
    whole = score(
        swap_to_relu(module, there.data.calibration.first(2)), there.data.test
    ).headline.value
    assert found["accuracy_of_partial_swap", "random", 2] == whole


def test_a_file_keeps_its_accuracy_and_says_why_it_has_no_order(tmp_path: Path) -> None:
    module = network()
    there = bench(tmp_path, module)
    plain = Network("hand", swap_to_relu(module), (4,), 3)
    export_network(plain, tmp_path / "it.onnx")
    shipped = replace(plain, deployed=tmp_path / "it.onnx")
    found = {each.name: each for each in Accuracy(partial_swaps=True).run(shipped, there).metrics}
    assert found["accuracy"].value == score(plain.module, there.data.test).headline.value
    assert found["accuracy_over_partial_swaps"].reason.endswith("and this network is a file")


def test_it_is_asked_for(tmp_path: Path) -> None:
    module = network()
    outcome = Accuracy().run(Network("hand", module, (4,), 3), bench(tmp_path, module))
    assert not [each.name for each in outcome.metrics if "partial" in each.name]


def test_the_report_tells_every_order_by_the_number_of_layers() -> None:
    folder = Path(__file__).parents[2] / "reports" / "partial"
    run = Run.of(folder)
    frame = run.frame
    grids = {grid.caption.partition(",")[0]: grid for grid in order_grids(run, "accuracy")}
    assert [*grids] == list(frame["workload"].unique())
    assert [bool(grid.note) for grid in grids.values()] == [False] * 5 + [True]
    rows = frame[
        (frame["workload"] == "mnist-cnn") & (frame["metric"] == "accuracy_of_partial_swap")
    ]
    for layers, row in enumerate(grids["mnist-cnn"].rows):
        wanted = [
            rows[rows["setting"] == f"layers={layers}, order={order}"]["value"].mean()
            for order in ORDERS
        ]
        assert row[1].text == str(layers)
        assert [cell.text.partition(" ")[0] for cell in row[2:]] == [
            f"{100 * each:.2f}" for each in wanted
        ]

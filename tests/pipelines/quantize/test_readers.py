"""Placement by what a kernel reads: which tensors, and how the treatment is chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from written import Written

from evalsuite import Unsupported, open_onnx
from opgraph import run_onnx
from pipelines.quantize import Quantize
from pipelines.quantize.agreement import compare_layers, quantizer_of_logits
from pipelines.quantize.choosing import CLEARLY, RANGES, STRENGTHS, choose
from pipelines.quantize.embedding import IntegerRows
from pipelines.quantize.execution import observe
from pipelines.quantize.migration import Scaled, migrate
from pipelines.quantize.placement import Bits, Scheme, place
from pipelines.quantize.qcdq import constant_bytes, export_qcdq
from pipelines.quantize.tracing import trace
from pipelines.quantize.treatment import PLAIN, Treatment, treat

pytestmark = pytest.mark.filterwarnings("ignore:Computing zero point of output accumulator")
BY_READER = Scheme(Bits(8, 8), by_reader=True)
POST = Scheme(Bits(8, 8))
IMAGES = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def quantizers(module: nn.Module, shape: tuple[int, ...], scheme: Scheme = BY_READER) -> list[str]:
    placed = place(trace(module.eval(), shape), scheme)
    return [name.removeprefix("quantize_") for name, _ in placed.named_children()
            if name.startswith("quantize_")]  # fmt: skip


def residual(net: Written, x: torch.Tensor) -> torch.Tensor:
    """Two convolutions with a sum around the second."""
    x = net.act(net.first(x))
    return net.head(net.act2(x + net.second(x)).mean((2, 3)))


def block(net: Written, x: torch.Tensor) -> torch.Tensor:
    """Pre-norm layers of a transformer without attention, on the rows of an image."""
    x = net.embed(x.flatten(1, 2))
    for norm, up, down in zip(net.norms, net.ups, net.downs, strict=True):
        x = x + down(net.act(up(norm(x))))
    return net.head(net.norm(x).mean(1))


def blocks(
    activation: Callable[[], nn.Module], *, outlier: float = 1.0, depth: int = 4
) -> nn.Module:
    """Its stream has one feature that is `outlier` times as great, as those of language models."""
    torch.manual_seed(0)
    module = Written(
        block,
        embed=nn.Linear(8, 32),
        norms=nn.ModuleList(nn.LayerNorm(32) for _ in range(depth)),
        ups=nn.ModuleList(nn.Linear(32, 64) for _ in range(depth)),
        downs=nn.ModuleList(nn.Linear(64, 32) for _ in range(depth)),
        act=activation(),
        norm=nn.LayerNorm(32),
        head=nn.Linear(32, 10),
    )
    with torch.no_grad():
        for down in module.downs:
            down.weight[3] *= outlier
        for norm in module.norms:
            norm.weight[3] *= outlier**0.5
    return module.eval()


CNN = [nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 10)]


@pytest.mark.parametrize(
    ("activation", "between"),
    [(nn.ReLU, ["layer_1"]), (nn.ReLU6, ["layer_1"]), (nn.GELU, ["layer_0", "layer_1"])],
)
def test_a_convolution_needs_a_quantized_output_and_a_linear_layer_does_not(
    activation: Callable[[], nn.Module], between: list[str]
) -> None:
    """ReLU is the clipping of its grid; GELU computes between two grids, or before one only."""
    conv, flatten, linear, last = CNN
    module = nn.Sequential(conv, activation(), flatten, linear, activation(), last)
    assert quantizers(module, (1, 8, 8)) == ["input", *between, "layer_4"]
    assert quantizers(module, (1, 8, 8), POST)[-1] == "layer_5"  # the logits, which nothing reads


def test_a_stream_stays_real_and_a_sum_of_convolutions_does_not() -> None:
    assert quantizers(blocks(nn.GELU, depth=1), (1, 8, 8)) == [
        "reshape", "norms_0", "act", "reduction",
    ]  # fmt: skip
    convolutions = {"first": nn.Conv2d(1, 4, 3), "second": nn.Conv2d(4, 4, 3, padding=1)}
    parts = {**convolutions, "head": nn.Linear(4, 10)}
    relu = Written(residual, **parts, act=nn.ReLU(), act2=nn.ReLU())
    gelu = Written(residual, **parts, act=nn.GELU(), act2=nn.GELU())
    assert quantizers(relu, (1, 8, 8)) == ["input", "act", "second", "act2", "mean"]
    assert quantizers(gelu, (1, 8, 8)) == ["input", "first", "act", "second", "mean"]


def test_a_layer_in_float_asks_for_no_grid() -> None:
    conv, flatten, linear, last = CNN
    module = nn.Sequential(conv, nn.GELU(), flatten, linear, nn.GELU(), last)
    spared = Scheme(Bits(8, 8), layers={"layer_0": None}, by_reader=True)
    assert quantizers(module, (1, 8, 8), spared) == ["layer_1", "layer_4"]
    with pytest.raises(Unsupported, match="no linear or convolutional layer"):
        place(trace(nn.Sequential(nn.Flatten(), nn.ReLU()), (1, 8, 8)), BY_READER)
    with pytest.raises(ValueError, match="by_reader and wide exclude each other"):
        Scheme(Bits(8, 8), before_activations=True, by_reader=True)


def off(module: nn.Module, quantized: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The squared difference of the outputs over their squares."""
    with torch.no_grad():
        whole = module(IMAGES)
        return float((quantized(IMAGES) - whole).square().sum() / whole.square().sum())


@pytest.mark.parametrize("activation", [nn.GELU, nn.ReLU])
def test_the_file_of_a_transformer_stays_near_float(
    tmp_path: Path, activation: Callable[[], nn.Module]
) -> None:
    """Where a grid everywhere loses the stream's small features beside its great one."""
    module = blocks(activation, outlier=10.0)
    traced = trace(module, (1, 8, 8))
    made = choose(traced, BY_READER, IMAGES[:40], [PLAIN], classes=False)
    export_qcdq(made.treated.network, (1, 8, 8), tmp_path / "auto.onnx")
    session = open_onnx(tmp_path / "auto.onnx")
    everywhere = treat(traced, POST, IMAGES[:40], PLAIN).network
    near = off(module, lambda x: run_onnx(session, x))
    assert near < 2e-4
    assert off(module, everywhere) > 8 * near
    execution = observe(tmp_path / "auto.onnx", IMAGES[:1])
    assert execution.integer_mac_fraction == 1
    assert not {"QLinearAdd"} & set(execution.integer_kernels)
    agreement = compare_layers(made.treated.network, tmp_path / "auto.onnx", IMAGES)
    assert quantizer_of_logits(made.treated.network) is None
    assert agreement.equal_classes >= 0.98


@pytest.mark.parametrize("activation", [nn.GELU, nn.ReLU])
@pytest.mark.parametrize("strength", STRENGTHS)
def test_migration_changes_no_output(activation: Callable[[], nn.Module], strength: float) -> None:
    module = blocks(activation, outlier=40.0, depth=2)
    traced = trace(module, (1, 8, 8))
    before = {name: tensor.clone() for name, tensor in traced.state_dict().items()}
    migrated = migrate(traced, BY_READER.readers(traced), IMAGES, strength)
    assert all(torch.equal(tensor, before[name]) for name, tensor in traced.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(migrated(IMAGES), module(IMAGES), rtol=1e-4, atol=1e-4)
    # Norms and linear layers with ReLU take the factors in, GELU, moves and means do not.
    scaled = [name for name, layer in migrated.named_children() if isinstance(layer, Scaled)]
    smooth = ["migrated_act", "migrated_act_1"] if activation is nn.GELU else []
    assert sorted(scaled) == sorted([*smooth, "migrated_reduction", "migrated_reshape"])


def test_the_factors_of_a_migration_by_hand() -> None:
    """s = sqrt(max |x| / max |w|) at strength 1/2, over its geometric mean."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 1, bias=False))
    traced = trace(module, (1, 1, 2))
    with torch.no_grad():
        (first, last) = (traced.get_submodule(name) for name in ("layer_1", "layer_3"))
        first.weight.copy_(torch.tensor([[40.0, 0.0], [0.0, 10.0]]))
        first.bias.zero_()
        last.weight.copy_(torch.tensor([[0.1, 0.4]]))
    migrated = migrate(traced, BY_READER.readers(traced), torch.ones(1, 1, 1, 2), 0.5)
    # GELU(40) = 40 and GELU(10) = 10 to float32: s = (20, 5), and over its geometric mean (2, 1/2).
    np.testing.assert_allclose(migrated.get_submodule("layer_3").weight.detach(), [[0.2, 0.2]])
    np.testing.assert_allclose(migrated.migrated_layer_2.factor, [0.5, 2.0])


def test_what_is_chosen_is_clearly_nearer_than_what_is_simpler() -> None:
    traced = trace(blocks(nn.GELU, outlier=40.0), (1, 8, 8))
    chosen = choose(traced, BY_READER, IMAGES[:40], [PLAIN], classes=False)
    losses = {trial.treatment: trial.loss for trial in chosen.trials}
    migrated = [t for t in losses if t.migration and t.calibration == "percentile"]
    steps = (
        [t for t in migrated if not t.bias_correction],
        [t for t in losses if t.calibration != "percentile" and not t.bias_correction],
        [t for t in losses if t.bias_correction],
    )
    assert [len(step) for step in steps] == [len(STRENGTHS), len(RANGES) - 1, 1]
    best = PLAIN
    for step in steps:  # taken only where it is clearly nearer
        nearest = min(step, key=lambda treatment: losses[treatment])
        best = nearest if losses[nearest] < CLEARLY * losses[best] else best
    assert chosen.treatment == best
    assert chosen.treatment.migration > 0
    assert str(Treatment(migration=0.8)).endswith("nearest + migration 0.8")
    with pytest.raises(ValueError, match=r"migration must be in \[0, 1\), got 1"):
        Treatment(migration=1)


def test_only_what_is_asked_is_tried() -> None:
    traced = trace(nn.Sequential(CNN[0], nn.ReLU(), *CNN[1:3]).eval(), (1, 8, 8))
    chosen = choose(traced, BY_READER, IMAGES, [Treatment("max")], ())
    assert [(t.treatment.calibration, t.treatment.migration) for t in chosen.trials] == [
        ("max", 0.0), ("max", 0.0),
    ]  # fmt: skip
    assert [t.treatment.bias_correction for t in chosen.trials] == [False, True]


def test_a_network_that_is_not_finite_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        module[1].bias[0] = 3e38
        module[1].weight[0] = 3e38
    with pytest.raises(Unsupported, match="NaN or infinite"):
        choose(trace(module, (1, 8, 8)), BY_READER, IMAGES, [PLAIN])


def texts(net: Written, tokens: torch.Tensor) -> torch.Tensor:
    return net.head(net.act(net.table(tokens)).mean(1))


@pytest.mark.parametrize("scales", ["float", "power-of-two"])
def test_tables_of_embeddings_are_integers_in_the_file(tmp_path: Path, scales: str) -> None:
    torch.manual_seed(0)
    module = Written(
        texts, table=nn.Embedding(500, 16), act=nn.GELU(), head=nn.Linear(16, 3)
    ).eval()
    with torch.no_grad():
        module.table.weight[7] *= 100  # every row has a scale of its own
    tokens = torch.arange(500).reshape(50, 10)
    traced = trace(module, (), tokens[:2])
    scheme = Scheme(Bits(8, 8), scales=scales, by_reader=True)
    network = treat(traced, scheme, tokens, PLAIN).network
    (rows,) = (layer for layer in network.modules() if isinstance(layer, IntegerRows))
    error = (rows(tokens) - module.table(tokens)).abs().flatten(0, 1).amax(1)
    assert bool((error <= 0.5001 * rows.scale[tokens.flatten(), 0]).all())
    export_qcdq(network, (), tmp_path / "q.onnx", tokens[:2])
    assert constant_bytes((tmp_path / "q.onnx").read_bytes()) < 500 * (16 + 4) + 500
    stored = onnx.load(str(tmp_path / "q.onnx")).graph.initializer
    assert [500, 16] in [
        list(each.dims) for each in stored if each.data_type == onnx.TensorProto.INT8
    ]
    with torch.no_grad():
        made = run_onnx(open_onnx(tmp_path / "q.onnx"), tokens)
        torch.testing.assert_close(made, network(tokens), atol=0.02, rtol=0.01)
        torch.testing.assert_close(made, module(tokens), atol=0.05, rtol=0.05)


def test_real_logits_are_compared_as_such(tmp_path: Path) -> None:
    module = nn.Sequential(CNN[0], nn.ReLU(), *CNN[1:3]).eval()
    network = treat(trace(module, (1, 8, 8)), BY_READER, IMAGES, PLAIN).network
    export_qcdq(network, (1, 8, 8), tmp_path / "q.onnx")
    agreement = compare_layers(network, tmp_path / "q.onnx", IMAGES)
    assert agreement.equal_logits >= 0.95
    with torch.no_grad():  # another network's logits are not
        next(each for each in network.modules() if isinstance(each, nn.Linear)).bias.add_(1.0)
    assert compare_layers(network, tmp_path / "q.onnx", IMAGES).equal_logits < 0.05


def test_the_default_is_by_reader() -> None:
    assert (Quantize().placement, Quantize().calibration) == ("auto", "auto")

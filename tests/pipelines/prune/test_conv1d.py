"""GPT-2's transposed linear layers become ordinary ones."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from evalsuite import Unsupported
from pipelines.prune.conv1d import conv1d_to_linear

transformers = pytest.importorskip("transformers")
Conv1D = transformers.pytorch_utils.Conv1D


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def conv1d(inputs: int = 3, outputs: int = 5) -> nn.Module:
    layer = Conv1D(outputs, inputs)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


def test_a_language_model_computes_the_same() -> None:
    module = gpt2().double()
    converted = conv1d_to_linear(module)
    tokens = torch.randint(0, 30, (3, 8), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(converted(tokens).logits, module(tokens).logits, rtol=0, atol=1e-12)
    assert sum(isinstance(each, Conv1D) for each in module.modules()) == 8
    assert not any(isinstance(each, Conv1D) for each in converted.modules())
    assert converted.transformer.h[0].mlp.c_fc.weight.shape == (64, 16)
    assert converted.transformer.h[0].mlp.c_fc.out_features == 64


def test_ties_stay() -> None:
    module = gpt2()
    converted = conv1d_to_linear(module)
    assert converted.lm_head.weight is converted.transformer.wte.weight
    assert converted.lm_head.weight is not module.lm_head.weight
    count = sum(each.numel() for each in module.parameters())
    assert sum(each.numel() for each in converted.parameters()) == count
    assert converted.state_dict().keys() == module.state_dict().keys()


def test_a_layer_and_a_weight_used_twice() -> None:
    layer, other = conv1d(), conv1d()
    other.weight = layer.weight
    module = nn.ModuleDict({"a": layer, "again": layer, "b": other})
    converted = conv1d_to_linear(module)
    assert converted["a"] is converted["again"]
    assert converted["b"] is not converted["a"]
    assert converted["b"].weight is converted["a"].weight
    x = torch.randn(2, 3)
    assert torch.allclose(converted["b"](x), other(x), atol=1e-6)


def test_a_weight_that_another_kind_of_layer_shares() -> None:
    module = nn.ModuleDict({"encode": conv1d(4, 4), "decode": nn.Linear(4, 4)})
    module["decode"].weight = module["encode"].weight
    with pytest.raises(Unsupported, match=r"^encode: a Conv1D whose weight is also decode\.weight"):
        conv1d_to_linear(module)


def test_the_module_itself_and_what_is_frozen() -> None:
    layer = conv1d().train()
    layer.weight.requires_grad_(False)
    state = torch.get_rng_state()
    converted = conv1d_to_linear(layer)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(converted) is nn.Linear
    assert converted.training
    assert not converted.weight.requires_grad
    assert converted.bias.requires_grad
    x = torch.randn(2, 4, 3)
    assert torch.allclose(converted(x), layer(x), atol=1e-6)


def test_the_mode_stays() -> None:
    module = nn.Sequential(conv1d(), nn.Dropout()).train()
    module[0].eval()
    converted = conv1d_to_linear(module)
    assert [each.training for each in converted.modules()] == [True, False, True]


def test_a_module_without_any_is_copied() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    converted = conv1d_to_linear(module)
    assert converted is not module
    assert torch.equal(converted[0].weight, module[0].weight)


@pytest.mark.slow
def test_transformers_is_not_imported_for_it() -> None:
    code = (
        "import sys; from torch import nn; from pipelines.prune.conv1d import conv1d_to_linear; "
        "conv1d_to_linear(nn.Linear(2, 2)); assert 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""Weights of Hugging Face's folders as they are stored: nothing is cast, left out or drawn anew
in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from evalsuite.own.asked_model import Model
from evalsuite.own.models import load_model
from evalsuite.tasks import Classification, Embedding, LanguageModel
from opgraph.errors import OwnError

transformers = pytest.importorskip("transformers")

QUERY = "bert.encoder.layer.0.attention.self.query.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        vocab_size=50,
        max_position_embeddings=32,
        num_labels=3,
    )
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained("m")
    return tmp_path


def stored() -> Tensors:
    return load_file("m/model.safetensors")


def loaded(start: str = "trained", task: Any = None, weights: str = "") -> Tensors:
    model = Model("hf:m", weights=weights)
    made = load_model(model, task=task or Classification(), classes=3, start=start)
    return made.state_dict()


def equal(one: Tensors, other: Tensors, apart: float = 0.0) -> bool:
    return all(float((one[name] - other[name].float()).abs().max()) <= apart for name in other)


def cast(dtype: torch.dtype) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, QUERY: (100 * tensors[QUERY]).to(dtype)}


def without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensors[name] for name in tensors if not name.endswith(names)}


def beside(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: torch.ones(2)}


KINDS = [torch.int8, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]
AS_STORED = "is stored as .*, where the network has real numbers; save the weights as floats"
LEFT_OUT = "which a BertForSequenceClassification has not, and would be left out"
REFUSED: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    **{str(dtype).removeprefix("torch."): (cast(dtype), AS_STORED) for dtype in KINDS},
    "an adapter": (beside(QUERY.replace("weight", "lora_A.weight")), LEFT_OUT),
    "a scale": (beside(f"{QUERY}_scale_inv"), LEFT_OUT),
    "a layer more": (beside("bert.encoder.layer.1.output.dense.bias"), LEFT_OUT),
    "another head": (beside("cls.predictions.bias"), LEFT_OUT),
    "something else": (beside("extra.weight"), LEFT_OUT),
    "no pooler": (without("pooler.dense.weight", "pooler.dense.bias"), "has no bert.pooler.dense"),
    "no query": (without("query.weight"), "has no bert.encoder.layer.0.attention.self.query"),
    "no bias of a norm": (without("LayerNorm.bias"), "has no bert"),
    "no head": (without("classifier.weight"), "has no classifier.weight"),
    "another shape": (
        lambda tensors: {**tensors, QUERY: tensors[QUERY][:8].contiguous()},
        f"has no {QUERY} of that shape",
    ),
}


@pytest.mark.parametrize("where", ["folder", "pieces", "weights"])
@pytest.mark.parametrize("form", REFUSED)
def test_a_trained_model_has_all_that_is_stored_as_it_is_stored(form: str, where: str) -> None:
    change, said = REFUSED[form]
    tensors = change(stored())
    if where == "weights":
        torch.save(tensors, "w.pt")
    else:
        Path("m/model.safetensors").unlink()
        pieces(tensors, 2 if where == "pieces" else 1)
    with pytest.raises(OwnError, match=said):
        loaded(weights="w.pt" if where == "weights" else "")


def pieces(tensors: Tensors, count: int) -> None:
    if count == 1:
        save_file(tensors, "m/model.safetensors", metadata={"format": "pt"})
        return
    names, places = sorted(tensors), {}
    for piece in range(count):
        file = f"model-0000{piece + 1}-of-0000{count}.safetensors"
        part = {name: tensors[name] for name in names[piece::count]}
        save_file(part, f"m/{file}", metadata={"format": "pt"})
        places.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": places}
    Path("m/model.safetensors.index.json").write_text(json.dumps(index))


READ: dict[str, tuple[Callable[[Tensors], Tensors], float]] = {
    "as it is": (lambda tensors: tensors, 0.0),
    "float64": (lambda tensors: {**tensors, QUERY: tensors[QUERY].double()}, 0.0),
    "bfloat16": (lambda tensors: {**tensors, QUERY: tensors[QUERY].bfloat16()}, 1e-3),
    "float16": (lambda tensors: {**tensors, QUERY: tensors[QUERY].half()}, 1e-4),
    "without the body's name": (
        lambda tensors: {name.removeprefix("bert."): tensors[name] for name in tensors},
        0.0,
    ),
    "of old norms": (
        lambda tensors: {
            name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
            for name, tensor in tensors.items()
        },
        0.0,
    ),
    "with places of tokens": (
        lambda tensors: {**tensors, "bert.embeddings.position_ids": torch.arange(32)[None]},
        0.0,
    ),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("form", READ)
def test_what_is_stored_in_another_way_but_means_the_same_is_loaded(form: str, count: int) -> None:
    wanted = stored()
    change, apart = READ[form]
    Path("m/model.safetensors").unlink()
    pieces(change(wanted), count)
    assert equal(loaded(), wanted, apart)


def test_a_pretrained_model_may_have_had_another_head() -> None:
    tensors = stored()
    others = beside("cls.predictions.bias")(
        without("classifier.weight", "classifier.bias")(tensors)
    )
    pieces(others, 1)
    found = loaded("pretrained")
    assert torch.equal(found[QUERY], tensors[QUERY])
    pieces(beside(QUERY.replace("weight", "lora_A.weight"))(tensors), 1)
    with pytest.raises(OwnError, match=LEFT_OUT):
        loaded("pretrained")


def test_an_embedding_has_no_pooler_of_random_weights() -> None:
    tensors = stored()
    body = {
        name.removeprefix("bert."): tensors[name] for name in tensors if "classifier" not in name
    }
    pieces(without("pooler.dense.weight", "pooler.dense.bias")(body), 1)
    made = load_model(Model("hf:m"), task=Embedding(), classes=None, start="trained")
    assert not any(name.startswith("pooler") for name in made.state_dict())
    outputs = made(input_ids=torch.arange(4)[None])
    assert outputs.pooler_output is None
    pieces(body, 1)
    made = load_model(Model("hf:m"), task=Embedding(), classes=None, start="trained")
    assert torch.equal(made.state_dict()["pooler.dense.weight"], body["pooler.dense.weight"])


def test_one_of_several_state_dicts_is_chosen_by_its_key_alone() -> None:
    tensors = stored()
    other = {name: tensor + 1 for name, tensor in tensors.items()}
    torch.save({"model": tensors, "model_ema": other}, "w.pt")
    with pytest.raises(OwnError, match=r"w\.pt: model, model_ema fit, and they differ; choose one"):
        loaded(weights="w.pt")
    chosen = Model("hf:m", weights="w.pt", weights_key="model_ema")
    made = load_model(chosen, task=Classification(), classes=3, start="trained")
    assert equal(made.state_dict(), other)
    torch.save({"model": tensors, "copy": dict(tensors)}, "w.pt")
    assert equal(loaded(weights="w.pt"), tensors)


def test_an_index_names_files_of_its_own_folder_alone() -> None:
    tensors = stored()
    Path("m/model.safetensors").rename("other.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "../other.safetensors")}
    Path("m/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(OwnError, match=r"names '\.\./other\.safetensors', outside of its folder"):
        loaded()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_masks_that_older_releases_stored_beside_weights_are_no_weights(dtype: torch.dtype) -> None:
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=300, n_positions=32, bos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained("m")
    tensors = stored()
    masks = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32).tril().to(dtype),
        "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
    }
    pieces({**tensors, **masks}, 1)
    made = load_model(Model("hf:m"), task=LanguageModel(), classes=256, start="trained")
    assert equal(made.state_dict(), tensors)


BERT = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}
BODIES: dict[str, dict[str, int]] = {
    "DistilBert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "vocab_size": 50},
    "Roberta": {**BERT, "hidden_size": 16},
    "DebertaV2": {**BERT, "hidden_size": 16},
    "Albert": {**BERT, "hidden_size": 16, "embedding_size": 8},
}


@pytest.mark.parametrize("name", BODIES)
def test_what_the_library_itself_writes_is_whole(name: str) -> None:
    config = getattr(transformers, f"{name}Config")(num_labels=3, **BODIES[name])
    getattr(transformers, f"{name}ForSequenceClassification")(config).save_pretrained("m")
    assert equal(loaded(), stored())

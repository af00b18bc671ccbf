"""Weights, and models' folders of Hugging Face."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import torch

from hostile_inputs import sound
from hostile_inputs.cases import ODD, PAYLOAD, WEIGHTS, Case, Payload, mutations, writing


def weights() -> Iterator[Case]:
    for seed, (kind, form) in enumerate(
        (("pt", "pt"), ("pth", "old"), ("safetensors", "safetensors"))
    ):
        for number, damaged in enumerate(mutations(sound.state(form), 18, seed)):
            files = {"d__npz": sound.npz(), f"w__{kind}": damaged}
            yield Case(f"weights {form} {number}", (*WEIGHTS, f"w.{kind}"), writing(**files))
    state = sound.network().state_dict()
    odd: list[Any] = [
        *ODD[:8],
        *ODD[11:],
        Payload(),
        {1: torch.zeros(2)},
        {1: state},
        {"state_dict": {1: torch.zeros(2)}},
        {**state, 3: torch.zeros(1)},
        {**state, "0.weight": Payload()},
        {"a": state, "b": {2: state}},
        {name: tensor.half() for name, tensor in state.items()},
        dict.fromkeys(state, 1.0),
        {name: tensor * float("nan") for name, tensor in state.items()},
        {name: tensor.to_sparse() for name, tensor in state.items()},
        {(1, 2): torch.zeros(2)},
        {None: state},
    ]
    for number, value in enumerate(odd):
        stream = io.BytesIO()
        torch.save(value, stream)
        yield Case(
            f"state {number}",
            (*WEIGHTS, "w.pt"),
            writing(d__npz=sound.npz(), w__pt=stream.getvalue()),
        )
    for number, head in enumerate(
        (
            b"{}",
            b"[]",
            b"{",
            b'{"a":1}',
            b'{"0.weight":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}',
            b"[" * 100_000,
        )
    ):
        content = struct.pack("<Q", len(head)) + head + bytes(4)
        yield Case(
            f"head of tensors {number}",
            (*WEIGHTS, "w.safetensors"),
            writing(d__npz=sound.npz(), w__safetensors=content),
        )


CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 50,
    "max_position_embeddings": 16,
    "architectures": ["BertForSequenceClassification"],
    "id2label": {"0": "a", "1": "b", "2": "c"},
}


def hugging(folder: str) -> tuple[str, ...]:
    return (
        "init",
        f"hf:{folder}",
        "--quick",
        "--stages",
        "accuracy",
        "--start",
        "scratch",
        "--data",
        "t.jsonl",
    )


def models() -> Iterator[Case]:
    """Folders of Hugging Face, with other words in their files and with code of their own."""
    texts = "\n".join(
        json.dumps({"text": f"word {place}", "label": "abc"[place % 3]}) for place in range(30)
    )
    code = f"import os\nos.system('touch {PAYLOAD}')\n"

    def case(name: str, config: Any, **files: str) -> Case:
        written = {
            "hf_of_config__json": config if isinstance(config, str) else json.dumps(config),
            **files,
        }
        return Case(name, hugging("hf"), writing(t__jsonl=texts, **written))

    keys = (
        "model_type",
        "hidden_size",
        "num_attention_heads",
        "architectures",
        "id2label",
        "hidden_act",
        "vocab_size",
    )
    small = [value for value in ODD if not (isinstance(value, int) and value > 1000)]
    for key in keys:
        for number, value in enumerate(small):
            yield case(f"config {key} {number}", {**CONFIG, key: value})
    for number, value in enumerate((*small, "not json")):
        yield case(f"config {number}", value)
        yield case(
            f"tokenizer settings {number}", CONFIG, hf_of_tokenizer_config__json=json.dumps(value)
        )
        yield case(f"tokenizer {number}", CONFIG, hf_of_tokenizer__json=json.dumps(value))
    yield case("config deep", "[" * 100_000)
    automatic = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
    yield case(
        "code of a model",
        {**CONFIG, "auto_map": automatic, "model_type": "own"},
        hf_of_own__py=code,
    )
    tokenizer = json.dumps(
        {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    )
    yield case(
        "code of a tokenizer", CONFIG, hf_of_own__py=code, hf_of_tokenizer_config__json=tokenizer
    )

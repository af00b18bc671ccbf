"""A model of one's own, from outside the repository: a few lines or one command end in a report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from own_networks import config, hugging
from safetensors.torch import load_file, save_file
from torch import nn
from workshop import call, python

from evalsuite.results import read_results

WORDS = ["good", "bad", "fine", "poor", "film", "plot", "actor", "the", "a", "was"]


def _in(folder: Path, *words: str) -> str:
    """Return what the command prints in a user's folder; it runs in this process, whose libraries
    are loaded.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = call(*words)
    # Networks that are trained for a few steps on drawn samples may learn nothing: 1 says so,
    # behind a report.
    unlearnt = done.exit_code == 1 and "Report: " in done.stdout and "Traceback" not in done.stderr
    assert done.exit_code == 0 or unlearnt, done.stdout + done.stderr
    return done.stdout


def _vectors(folder: Path, seed: int = 0) -> None:
    draw = np.random.default_rng(seed)
    x = draw.random((240, 8), dtype=np.float32)
    np.savez(folder / "data.npz", x=x, y=(x[:, 0] + x[:, 1] > 1).astype(np.int64))


def functional_gelu(folder: Path) -> list[str]:
    """A module that calls F.gelu in its forward: eight lines."""
    _vectors(folder)
    (folder / "my.py").write_text(
        "import torch\nfrom torch.nn import functional as F\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)\n"
        "    def forward(self, x):\n"
        "        return self.b(F.gelu(self.a(x)))\n"
    )
    return ["my.py:Net", "--data", "data.npz"]


def hugging_face_vit(folder: Path) -> list[str]:
    """A ViT from a local configuration, on a folder of images."""
    config("vit", num_hidden_layers=1, image_size=16, num_labels=2).save_pretrained(folder / "vit")
    _images(folder)
    return ["hf:./vit", "--data", "images", "--set", "data.size=16", "--start", "scratch"]


def _images(folder: Path) -> None:
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(160):
        name = ("dark", "light")[number % 2]
        place = folder / "images" / name
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 128, (20, 20, 3)) + 127 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")


def _reviews(folder: Path) -> None:
    draw = np.random.default_rng(0)
    with (folder / "reviews.jsonl").open("w") as file:
        for number in range(200):
            words = [WORDS[each] for each in draw.integers(4, len(WORDS), 6)] + [WORDS[number % 4]]
            label = ("negative", "positive")[number % 2 == 0]
            file.write(json.dumps({"text": f"{' '.join(words)} {number}", "label": label}) + "\n")


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {
        word: index for index, word in enumerate([*special, *WORDS, *map(str, range(10))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)


def bert_classifier(folder: Path) -> list[str]:
    """A BERT classifier with an attention mask, on reviews as JSON lines."""
    sizes = {"vocab_size": 60, "num_hidden_layers": 1, "max_position_embeddings": 32}
    config("bert", **sizes, num_labels=2).save_pretrained(folder / "my-bert")
    _tokenizer(folder / "my-bert")
    _reviews(folder)
    return [
        "hf:./my-bert",
        "--data",
        "reviews.jsonl",
        "--start",
        "scratch",
        "--set",
        "data.length=16",
    ]


def gpt2_language_model(folder: Path) -> list[str]:
    """GPT-2 from a local configuration, on a text by bytes, whose task is plain from that."""
    config("gpt2", n_layer=1, n_positions=32, vocab_size=256).save_pretrained(folder / "gpt")
    draw = np.random.default_rng(0)
    text = " ".join(
        WORDS[each] + str(number) for number, each in enumerate(draw.integers(0, len(WORDS), 4000))
    )
    (folder / "text.txt").write_text(text)
    return [
        "hf:./gpt",
        "--data",
        "text.txt",
        "--start",
        "scratch",
        "--set",
        "data.length=32",
    ]


def table_regression(folder: Path) -> list[str]:
    """Numbers and a category in a CSV file; a price is predicted."""
    draw = np.random.default_rng(0)
    rows = ["size,rooms,town,price"]
    for _ in range(240):
        size, rooms, town = draw.random(), draw.integers(1, 6), draw.choice(["A", "B"])
        rows.append(f"{size:.4f},{rooms},{town},{3 * size + rooms + (town == 'A'):.4f}")
    (folder / "houses.csv").write_text("\n".join(rows))
    (folder / "my.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Linear(4, 16), nn.GELU(),"
        " nn.Linear(16, 1))\n"
    )
    return [
        "my.py:net",
        "--data",
        "houses.csv",
        "--task",
        "regression",
        "--set",
        "data.target=price",
    ]


def labels_of_texts(folder: Path) -> list[str]:
    """Several labels for each text."""
    config("distilbert", vocab_size=60, n_layers=1, max_position_embeddings=32).save_pretrained(
        folder / "tagger"
    )
    _tokenizer(folder / "tagger")
    draw = np.random.default_rng(0)
    with (folder / "tags.jsonl").open("w") as file:
        for number in range(200):
            present = [word for word in ("good", "bad", "fine") if draw.random() < 0.4]
            file.write(
                json.dumps({"text": " ".join([*present, "film", str(number)]), "labels": present})
                + "\n"
            )
    return [
        "hf:./tagger",
        "--data",
        "tags.jsonl",
        "--task",
        "multi-label",
        "--start",
        "scratch",
        "--set",
        "data.length=16",
    ]


def embedding_of_texts(folder: Path) -> list[str]:
    """A BERT that is trained already, by the cosine to its own embeddings."""
    hugging("bert", "BertModel", vocab_size=60, num_hidden_layers=1)().save_pretrained(
        folder / "embedder"
    )
    _tokenizer(folder / "embedder")
    lines = [f"{WORDS[number % 4]} {WORDS[4 + number % 6]} number {number}" for number in range(60)]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return [
        "hf:./embedder",
        "--data",
        "texts.jsonl",
        "--task",
        "embedding",
        "--set",
        "data.length=16",
        "--set",
        "epochs=1",
    ]


def _onnx(path: Path, middle: str, seed: int) -> None:
    """Two layers with `middle` between them, the second's weight transposed, in a file that
    torch did not write.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(seed)
    sizes = {"a": (16, 8), "b": (16,), "c": (16, 2), "d": (2,)}
    weights = [
        numpy_helper.from_array(draw.normal(0, 0.5, size).astype("f"), name)
        for name, size in sizes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["before"], transB=1),
        helper.make_node(middle, ["before"], ["after"]),
        helper.make_node("Gemm", ["after", "c", "d"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 8), ("y", 2))
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path
    )


def file_of_another_tool(folder: Path) -> list[str]:
    """An ONNX file that is trained and treated as a module."""
    _vectors(folder)
    _onnx(folder / "net.onnx", "Gelu", seed=0)
    (folder / "my.py").write_text(
        "import evalsuite, torch\ndef net(): return evalsuite.from_onnx('net.onnx', torch.zeros(2,"
        " 8))\n"
    )
    return ["my.py:net", "--data", "data.npz", "--start", "trained"]


# A case, its activation, a metric of its task, and the stages that are asked for: all of them where
# none are named.
CASES: list[tuple[Callable[[Path], list[str]], str, str, str]] = [
    (functional_gelu, "gelu", "accuracy", ""),
    (hugging_face_vit, "gelu", "accuracy", "accuracy,export"),
    (bert_classifier, "gelu", "accuracy", "accuracy,export"),
    (gpt2_language_model, "gelu-tanh", "bits_per_byte", "accuracy"),
    (table_regression, "gelu", "rmse", "accuracy,prune"),
    (labels_of_texts, "gelu", "f1_micro", "accuracy"),
    (embedding_of_texts, "gelu", "cosine", "accuracy"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "baseline", "metric", "stages"), CASES, ids=[case.__name__ for case, *_ in CASES]
)
def test_one_command_ends_in_a_report(
    case: Callable[[Path], list[str]], baseline: str, metric: str, stages: str, tmp_path: Path
) -> None:
    chosen = ["--stages", stages] if stages else []
    said = _in(
        tmp_path, "assess", *case(tmp_path), *chosen, "--quick", "--cache", "cache", "--out", "run"
    )
    assert "Report: run/report.html" in said
    rows = read_results(tmp_path / "run")
    assert set(rows.status[rows.step.isin(["train", "accuracy", "export"])]) <= {
        "ok",
        "unavailable",
    }
    assert not {"failed", "crashed", "timeout"} & set(rows.status)
    if not chosen:
        assert set(rows.step) >= {
            "export",
            "quantize-w8",
            "prune",
            "bounds",
            "smt",
            "swap-certificate",
        }
        assert "gelu x 1, which variants replace" in said
    measured = rows[(rows.step == "accuracy") & (rows.metric == metric)].set_index("variant").value
    assert baseline in measured.index
    assert len(measured) >= 3
    assert measured.notna().all()
    nodes = rows[(rows.step == "export") & (rows.metric == "gelu_nodes")].set_index("variant").value
    assert (nodes.drop(baseline, errors="ignore") == 0).all()
    if "export" in stages:
        assert nodes[baseline] > 0


@pytest.mark.slow
def test_two_onnx_files_of_another_tool_are_compared(tmp_path: Path) -> None:
    _vectors(tmp_path)
    _onnx(tmp_path / "gelu.onnx", "Gelu", seed=0)
    _onnx(tmp_path / "relu.onnx", "Relu", seed=0)
    words = [
        "gelu.onnx",
        "--against",
        "relu.onnx",
        "--data",
        "data.npz",
        "--quick",
        "--cache",
        "cache",
        "--out",
        "run",
    ]
    said = _in(tmp_path, "assess", *words)
    assert "Report: run/report.html" in said
    rows = read_results(tmp_path / "run")
    assert set(rows.variant) == {"given", "against"}
    assert not {"failed", "crashed", "timeout"} & set(rows.status)
    measured = rows[(rows.step == "accuracy") & (rows.metric == "accuracy")]
    assert measured.value.between(0, 1).all()
    assert len(measured) == 2
    steps = rows.groupby("step").status.agg(set)
    assert "ok" in steps["export"] | steps["bounds"] | steps["quantize-w8"]
    pruned = rows[rows.step == "prune"]
    assert set(pruned.status) == {"unsupported"}
    assert pruned.reason.str.contains("ONNX file").all()


@pytest.mark.slow
def test_check_says_stage_by_stage_what_will_run(tmp_path: Path) -> None:
    said = _in(tmp_path, "check", *table_regression(tmp_path))
    lines = dict(line.split(None, 1) for line in said.splitlines() if line)
    assert lines["accuracy"] == "will run"
    assert lines["sample"].startswith("3")
    assert " of training: rmse " in lines["first"]
    assert re.match(r"assess takes about \d+ (to \d+ )?min", lines["time"])
    assert lines["smt"].startswith("will not: ")
    assert "gelu-swap" in lines


@pytest.mark.slow
def test_init_prints_a_recipe_that_runs(tmp_path: Path) -> None:
    text = _in(tmp_path, "init", *file_of_another_tool(tmp_path), "--stages", "accuracy", "--quick")
    (tmp_path / "recipe.yaml").write_text(text)
    assert "use: own" in text
    planned = _in(tmp_path, "plan", "recipe.yaml", "--cache", "cache")
    assert "gelu-swap" in planned


@pytest.mark.slow
def test_a_model_that_is_declared_in_python_needs_no_options(tmp_path: Path) -> None:
    functional_gelu(tmp_path)
    (tmp_path / "declared.py").write_text(
        "import evalsuite\nfrom my import Net\n\n\n@evalsuite.workload(data='data.npz',"
        " epochs=1)\ndef net():\n    return Net()\n\n\nif __name__ == '__main__':\n    found ="
        " evalsuite.assess(net, stages=['accuracy'], quick=True, cache='cache', out='run')\n   "
        " print(found.results[found.results.metric == 'accuracy'].variant.nunique(),"
        " found.report)\n"
    )
    assert python(tmp_path, "declared.py").split() == ["4", "run/report.html"]
    (tmp_path / "recipe.yaml").write_text(
        "name: mine\nworkloads: ['declared.py:net']\nvariants: [gelu, gelu-swap]\nseeds:"
        " [0]\nsteps: [accuracy]\n"
    )
    assert "net/gelu/0/train" in _in(tmp_path, "plan", "recipe.yaml", "--cache", "cache")


@pytest.mark.slow
def test_relu_ize_leaves_a_network_in_the_layout_of_the_users_model(tmp_path: Path) -> None:
    _vectors(tmp_path)
    (tmp_path / "my.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Linear(8, 16), nn.GELU(),"
        " nn.Linear(16, 2))\n"
    )
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    save_file(made.state_dict(), tmp_path / "start.safetensors")
    said = _in(
        tmp_path,
        "relu-ize",
        "my.py:net",
        "--weights",
        "start.safetensors",
        "--data",
        "data.npz",
        "--out",
        "relu",
        "--cache",
        "cache",
    )
    assert "is the best on the validation data" in said
    assert set(load_file(tmp_path / "relu" / "model.safetensors")) == set(made.state_dict())

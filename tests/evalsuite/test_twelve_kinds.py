"""Twelve kinds of models as their users bring them, each through `check`, `assess --quick` and
`relu-ize`; a few lines of torch, transformers, scikit-learn or ONNX Runtime confirm the answer.

What confirms it reads the files, builds the network with the other activation and scores it by
itself: of evalsuite it takes the weights that were written, and the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import jaccard_score, r2_score
from test_own_kinds import GRU, HEADS, UNET, pictures, sequences, two_targets
from torch import nn
from typer.testing import CliRunner

from evalsuite.cli import app
from evalsuite.references import resolve
from evalsuite.results import read_results

pytestmark = pytest.mark.slow
Weights = Mapping[str, torch.Tensor]
Scores = Mapping[str, float]  # by their names as metrics of the task
# Plain weights and the name of the activation to the scores on the test samples.
Score = Callable[[Weights, str], Scores]
ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, outside the repository."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass(frozen=True)
class Kind:
    """A model with its data, written to the present folder, and what is right of it.

    Args:
        words: the model and its options, as a user types them.
        weights: those of the trained network.
        samples: in the test part.
        score: computes metrics without evalsuite.
        told: what `check` says, as patterns of its lines.
        gelu: the name of its baseline.
    """

    words: tuple[str, ...]
    weights: Weights
    samples: int
    score: Score
    told: tuple[str, ...] = ()
    gelu: str = "gelu"


def fitted(
    module: nn.Module,
    inputs: torch.Tensor | Mapping[str, torch.Tensor],
    loss: Callable[[Any], torch.Tensor],
    steps: int = 100,
    rate: float = 1e-2,
) -> Weights:
    """The weights after some steps over all samples at once."""
    optimizer = torch.optim.Adam(module.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
        loss(outputs).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    module.eval()
    return {name: each.detach().clone() for name, each in module.state_dict().items()}


def cross_entropy(targets: np.ndarray) -> Callable[[torch.Tensor], torch.Tensor]:
    """The loss of these classes."""
    wanted = torch.as_tensor(targets)
    return lambda logits: nn.functional.cross_entropy(logits, wanted)


def right(logits: torch.Tensor, targets: np.ndarray) -> Scores:
    """The share of samples (and places) whose greatest logit is the label's."""
    return {"accuracy": float((logits.argmax(1).numpy() == targets).mean())}


def _plain(source: str, name: str = "Net") -> Callable[..., nn.Module]:
    """Write the file `my.py` and give its class."""
    Path("my.py").write_text(source)
    make: Callable[..., nn.Module] = resolve(f"my.py:{name}", what="it")
    torch.manual_seed(0)
    return make


def _loaded(make: Callable[..., nn.Module], weights: Weights, activation: str) -> nn.Module:
    """The network with that activation throughout, and these weights."""
    module = make(ACTIVATIONS[activation])
    module.load_state_dict({name: each.float() for name, each in weights.items()})
    return module.eval()


CNN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, act=nn.GELU):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 8, 3, 2, 1)
        self.act, self.head = act(), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.act(self.second(self.act(self.first(x)))).mean((2, 3)))

def make(): return Net()
"""


def cnn_on_pngs() -> Kind:
    """Colour pictures in folders of classes, whose names sort as text otherwise than as numbers."""
    from PIL import Image

    names = ["kind10", "kind2", "kind9"]  # as torchvision's ImageFolder sorts them
    draw = np.random.default_rng(0)
    for part, count in (("train", 60), ("test", 24)):
        for number, name in enumerate(names):
            folder = Path("images", part, name)
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = draw.integers(60, 190, (12, 12, 3))
                pixels[..., number] += draw.integers(0, 66, (12, 12))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")

    def read(part: str) -> tuple[torch.Tensor, np.ndarray]:
        files = [
            (file, number)
            for number, name in enumerate(names)
            for file in Path("images", part, name).glob("*.png")
        ]
        pixels = np.stack([np.asarray(Image.open(file)) for file, _ in files])
        labels = np.array([number for _, number in files])
        return torch.tensor(pixels / 255, dtype=torch.float32).permute(0, 3, 1, 2), labels

    make, (x, y), (x_test, y_test) = _plain(CNN), read("train"), read("test")
    weights = fitted(make(), x, cross_entropy(y))
    save_file(dict(weights), "weights.safetensors")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        return right(_loaded(make, weights, activation)(x_test), y_test)

    words = ("my.py:make", "--data", "images", "--weights", "weights.safetensors")
    told = (r"^classes +in order: 0 = kind10, 1 = kind2, 2 = kind9", r"^pictures +of these")
    return Kind(words, weights, 72, score, told)


TABLE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, act=nn.GELU):
        super().__init__(nn.Linear(6, 16), act(), nn.Linear(16, 2))

def make(): return Net()
"""


def table_with_gaps() -> Kind:
    """Numbers of which some are missing, and a category; scikit-learn encodes them as the
    documents say.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, OneHotEncoder

    draw = np.random.default_rng(0)
    sizes = {"train": 240, "calibration": 60, "validation": 60, "test": 100}
    Path("table").mkdir()
    tables = {}
    for part, count in sizes.items():
        age, pay = draw.integers(18, 80, count).astype(float), draw.normal(3000, 900, count)
        town = draw.choice(["Bern", "Oslo", "Rome"], count)
        buys = (age / 20 + pay / 1000 + 2 * (town == "Oslo") + draw.normal(0, 0.5, count)) > 6.2
        age[draw.random(count) < 0.15] = np.nan
        table = pd.DataFrame({"age": age, "pay": pay.round(2), "town": town})
        table["label"] = np.where(buys, "yes", "no")
        table.to_csv(f"table/{part}.csv", index=False)
        tables[part] = table
    encode = make_column_transformer(
        (make_pipeline(SimpleImputer(add_indicator=True), MinMaxScaler(clip=True)), ["age"]),
        (MinMaxScaler(clip=True), ["pay"]),
        (OneHotEncoder(sparse_output=False), ["town"]),
    ).fit(tables["train"])
    x, x_test = (
        torch.tensor(encode.transform(tables[part]), dtype=torch.float32)
        for part in ("train", "test")
    )
    y, y_test = ((tables[part].label == "yes").to_numpy(np.int64) for part in ("train", "test"))
    make = _plain(TABLE)
    weights = fitted(make(), x, cross_entropy(y), 150)
    save_file(dict(weights), "weights.safetensors")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        return right(_loaded(make, weights, activation)(x_test), y_test)

    words = ("my.py:make", "--data", "table", "--weights", "weights.safetensors")
    told = (
        r"^columns +age \(number, \d+ missing\), pay \(number\), town \(category of 3 values\)",
        r"^classes +in order: 0 = no, 1 = yes",
    )
    return Kind(words, weights, 100, score, told)


def bert_on_json_lines() -> Kind:
    """A BERT whose configuration numbers the classes otherwise than the alphabet does."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    # 1. A tokenizer of whole words, and reviews whose last word decides.
    vocabulary = ["[PAD]", "[UNK]", "the", "film", "plot", "was", "very", "great", "dull", "fine"]
    tokenizer = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(vocabulary)}, "[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained("bert")
    draw, classes = np.random.default_rng(0), ["positive", "negative", "mixed"]
    reviews: dict[str, list[tuple[list[int], int]]] = {}
    Path("reviews").mkdir()
    for part, count in (("train", 200), ("test", 60)):
        reviews[part] = []
        with Path("reviews", f"{part}.jsonl").open("w") as file:
            for index in range(count):
                label = int(draw.integers(3))
                shown = label if draw.random() < 0.9 else int(draw.integers(3))
                ids = [*draw.integers(2, 7, draw.integers(3, 7)).tolist(), 7 + shown]
                # numbers are unknown words, and keep texts apart from one another
                text = " ".join([vocabulary[each] for each in ids] + [f"{part}{index}"])
                file.write(json.dumps({"text": text, "label": classes[label]}) + "\n")
                reviews[part].append(([*ids, 1], label))
    # 2. The model, trained by transformers alone.
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        id2label=dict(enumerate(classes)),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def batch(part: str) -> tuple[dict[str, torch.Tensor], np.ndarray]:
        ids, mask = (torch.zeros(len(reviews[part]), 16, dtype=torch.int64) for _ in range(2))
        for row, (each, _) in enumerate(reviews[part]):
            ids[row, : len(each)], mask[row, : len(each)] = torch.tensor(each), 1
        labels = np.array([label for _, label in reviews[part]])
        return {"input_ids": ids, "attention_mask": mask}, labels

    (x, y), (x_test, y_test) = batch("train"), batch("test")
    module = BertForSequenceClassification(config)
    loss = cross_entropy(y)
    weights = fitted(module, x, lambda outputs: loss(outputs.logits), 60)
    module.save_pretrained("bert")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        config.hidden_act = activation
        module = BertForSequenceClassification(config).eval()  # type: ignore[no-untyped-call]
        module.load_state_dict(dict(weights))
        return right(module(**x_test).logits, y_test)

    told = (r"^classes +in order: 0 = positive, 1 = negative, 2 = mixed",)
    words = ("hf:./bert", "--data", "reviews", "--set", "data.length=16")
    return Kind(words, weights, 60, score, told)


def gpt_on_text() -> Kind:
    """A GPT-2 of bytes with 16 positions, on running text."""
    from transformers import GPT2Config, GPT2LMHeadModel

    draw = np.random.default_rng(0)
    Path("text").mkdir()
    texts: dict[str, str] = {}
    for part, count in (("train", 1500), ("validation", 300), ("test", 300)):
        drawn = draw.choice(["a cat", "the dog", "sat.", "ran on mats.", "slept"], count)
        numbers = draw.integers(0, 100_000, count)  # no window is like another
        texts[part] = " ".join(f"{word} {n}" for word, n in zip(drawn, numbers, strict=True))
        Path("text", f"{part}.txt").write_text(texts[part])
    config = GPT2Config(
        vocab_size=256,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        activation_function="gelu_new",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )

    def windows(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.tensor(list(texts[part].encode()))
        count = (len(tokens) - 1) // 16
        return tokens[: 16 * count].view(-1, 16), tokens[1 : 16 * count + 1].view(-1, 16)

    (x, y), (x_test, y_test) = windows("train"), windows("test")
    torch.manual_seed(0)
    module = GPT2LMHeadModel(config)
    functional = nn.functional
    weights = fitted(
        module,
        {"input_ids": x},
        lambda outputs: functional.cross_entropy(outputs.logits.flatten(0, 1), y.flatten()),
        40,
    )
    module.save_pretrained("gpt")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        config.activation_function = {"gelu": "gelu_new"}.get(activation, activation)
        module = GPT2LMHeadModel(config).eval()  # type: ignore[no-untyped-call]
        # A re-fit gives the head a bias; its weight is the embedding.
        if "lm_head.bias" in weights:
            module.lm_head.bias = nn.Parameter(torch.zeros(256))
        missing, unknown = module.load_state_dict(dict(weights), strict=False)
        assert (set(missing) <= {"lm_head.weight"}, unknown) == (True, [])
        logits = module(x_test).logits.flatten(0, 1).double()
        nats = float(functional.cross_entropy(logits, y_test.flatten()))
        return {"bits_per_byte": nats / np.log(2)}

    words = ("hf:./gpt", "--data", "text", "--task", "language-model")
    told = (r"^inputs +int64 \(16,\)",)
    return Kind(words, weights, len(x_test), score, told, "gelu-tanh")


def u_net() -> Kind:
    """Pictures in a folder, with a mask for each in another."""
    from PIL import Image

    for part, count, seed in (("train", 200, 0), ("test", 60, 1)):
        for number, (picture, mask) in enumerate(zip(*pictures(count, seed), strict=True)):
            for kind, pixels in (("images", picture[0] * 255), ("masks", mask)):
                folder = Path("scenes", part, kind)
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.round().astype(np.uint8)).save(folder / f"{number}.png")

    def read(part: str) -> tuple[torch.Tensor, np.ndarray]:
        files = sorted(Path("scenes", part, "images").iterdir())
        masks = np.stack(
            [np.asarray(Image.open(f"scenes/{part}/masks/{file.name}")) for file in files]
        )
        pixels = np.stack([np.asarray(Image.open(file)) for file in files])
        return torch.tensor(pixels[:, None] / 255, dtype=torch.float32), masks.astype(np.int64)

    (x, y), (x_test, y_test) = read("train"), read("test")
    make = _plain(UNET, "UNet")
    weights = fitted(make(), x, cross_entropy(y), 150)
    save_file(dict(weights), "weights.safetensors")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        logits = _loaded(make, weights, activation)(x_test)
        found = logits.argmax(1).numpy()
        mean = jaccard_score(y_test.ravel(), found.ravel(), average="macro")
        return {"mean_iou": float(mean), **right(logits, y_test)}

    words = ("my.py:make", "--data", "scenes", "--task", "segmentation")
    told = (
        r"^bounds +will not: nothing to certify: a task Segmentation",
        r"^masks +grey 0 is class 0 \(\S+ of places\), grey 1 is class 1",
        r"^pictures +of these",
    )
    return Kind((*words, "--weights", "weights.safetensors"), weights, 60, score, told)


def two_heads() -> Kind:
    """A number and a class of one body."""
    rows, test = two_targets(240, 0), two_targets(80, 1)
    parts = {"train": rows, "test": test}
    np.savez(
        "data.npz",
        **{f"{name}_{part}": each for part, named in parts.items() for name, each in named.items()},
    )
    make = _plain(HEADS)
    wanted, functional = torch.tensor(rows["level"]), nn.functional

    def loss(made: Mapping[str, torch.Tensor]) -> torch.Tensor:
        level = functional.mse_loss(made["level"][:, 0], wanted)
        return level + functional.cross_entropy(made["side"], torch.tensor(rows["side"]))

    weights = fitted(make(), torch.tensor(rows["x"]), loss, 150)
    save_file(dict(weights), "weights.safetensors")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        made = _loaded(make, weights, activation)(torch.tensor(test["x"]))
        accuracy = right(made["side"], test["side"])["accuracy"]
        r2 = float(r2_score(test["level"], made["level"][:, 0]))
        return {"mean_score": (accuracy + r2) / 2, "side_accuracy": accuracy, "level_r2": r2}

    words = ("my.py:make", "--data", "data.npz", "--task", "level=regression,side=classification")
    told = (r"^bounds +will not: nothing to certify",)
    return Kind((*words, "--weights", "weights.safetensors"), weights, 80, score, told)


def _recurrent(name: str, layer: type[nn.Module]) -> Kind:
    (x, y), (x_test, y_test) = sequences(240, 0), sequences(80, 1)
    np.savez("data.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    make = _plain(GRU)
    weights = fitted(make(kind=layer), torch.as_tensor(x), cross_entropy(y), 60)
    save_file(dict(weights), "weights.safetensors")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        module = _loaded(lambda act: make(act, layer), weights, activation)
        return right(module(torch.as_tensor(x_test)), y_test)

    words = (f"my.py:{name}", "--data", "data.npz", "--weights", "weights.safetensors")
    kind = layer.__name__
    # Each stage that cannot read the layer says so in a line of its own, and none fails.
    told = (
        rf"^quantize-w8 +will not: rnn \({kind}\): recurrent layers are",
        rf"^bounds +will not: rnn \({kind}\): recurrent layers are",
    )
    return Kind(words, weights, 80, score, told)


def gru() -> Kind:
    """A GRU before a head with GELU."""
    return _recurrent("make", nn.GRU)


def lstm() -> Kind:
    """An LSTM before a head with GELU."""
    return _recurrent("lstm", nn.LSTM)


OBJECT = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Out:
    logits: torch.Tensor
    hidden: torch.Tensor

class Net(nn.Module):
    def __init__(self, act=nn.GELU):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 12), act())
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        hidden = self.body(x)
        return Out(self.head(hidden), hidden)

def halves(): return Net().bfloat16()
def compiled(): return torch.compile(Net())
"""


def _of_objects(name: str, dtype: torch.dtype, told: str) -> Kind:
    x = np.random.default_rng(0).normal(size=(320, 3)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    np.savez("data.npz", x=x[:240], y=y[:240], x_test=x[240:], y_test=y[240:])
    make, loss = _plain(OBJECT), cross_entropy(y[:240])
    whole = fitted(make(), torch.as_tensor(x[:240]), lambda made: loss(made.logits), 150)
    weights = {name: each.to(dtype) for name, each in whole.items()}
    save_file(weights, "weights.safetensors")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        module = _loaded(make, weights, activation)
        return right(module(torch.as_tensor(x[240:])).logits, y[240:])

    words = (f"my.py:{name}", "--data", "data.npz", "--weights", "weights.safetensors")
    return Kind(words, weights, 80, score, (told,))


def halves() -> Kind:
    """A network of bfloat16, whose forward returns an object."""
    return _of_objects("halves", torch.bfloat16, r"^model .*; weights of bfloat16")


def compiled() -> Kind:
    """A network behind torch.compile."""
    told = r"^model .*; compiled, and measured without torch.compile"
    return _of_objects("compiled", torch.float32, told)


LIGHTNING = """
import lightning
import torch
from torch import nn

class Net(lightning.LightningModule):
    def __init__(self, act=nn.GELU, rate=1e-2):
        super().__init__()
        self.save_hyperparameters("rate")
        self.body = nn.Sequential(nn.Linear(4, 16), act(), nn.Linear(16, 3))

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.rate)
"""


def lightning_checkpoint() -> Kind:
    """A LightningModule with the checkpoint that its trainer wrote."""
    lightning = pytest.importorskip("lightning")
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    y = np.digitize(x[:, 0] * x[:, 1] + x[:, 2], [-0.5, 0.5]).astype(np.int64)
    np.savez("data.npz", x=x[:300], y=y[:300], x_test=x[300:], y_test=y[300:])
    make = _plain(LIGHTNING)
    module = make()
    samples = torch.utils.data.TensorDataset(torch.as_tensor(x[:300]), torch.as_tensor(y[:300]))
    trainer = lightning.Trainer(
        max_epochs=15,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(samples, 50, shuffle=True))
    trainer.save_checkpoint("last.ckpt")
    weights = torch.load("last.ckpt", weights_only=True)["state_dict"]

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        return right(_loaded(make, weights, activation)(torch.as_tensor(x[300:])), y[300:])

    words = ("my.py:Net", "--data", "data.npz", "--weights", "last.ckpt")
    return Kind(words, weights, 100, score)


def timm_model() -> Kind:
    """A small ConvNeXt of timm's; classes are in the natural order, as timm sorts them."""
    if find_spec("timm") is None or find_spec("torchvision") is None:
        pytest.skip("timm or torchvision is not installed")
    from PIL import Image

    from evalsuite.own.timm_models import import_timm

    timm = import_timm("this test")

    draw, names = np.random.default_rng(0), ["kind2", "kind9", "kind10"]
    parts: dict[str, tuple[list[np.ndarray], list[int]]] = {"train": ([], []), "test": ([], [])}
    for part, count in (("train", 40), ("test", 20)):
        for number, name in enumerate(names):
            folder = Path("images", part, name)
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = draw.integers(0, 100, (32, 32, 3))
                pixels[..., number] += draw.integers(0, 150, (32, 32))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
                parts[part][0].append(pixels)
                parts[part][1].append(number)
    (x, y), (x_test, y_test) = (
        (torch.tensor(np.stack(each) / 255, dtype=torch.float32).permute(0, 3, 1, 2), np.array(to))
        for each, to in parts.values()
    )
    sizes = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16), "num_classes": 3}

    def make(act: type[nn.Module] = nn.GELU) -> nn.Module:
        return timm.create_model("convnext_atto", pretrained=False, act_layer=act, **sizes)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    weights = fitted(make(), x, cross_entropy(y), 60, 3e-3)
    save_file(dict(weights), "weights.safetensors")

    @torch.no_grad()
    def score(weights: Weights, activation: str) -> Scores:
        return right(_loaded(make, weights, activation)(x_test), y_test)

    words = ("timm:convnext_atto", "--data", "images", "--weights", "weights.safetensors")
    changed = ("--set", "model.args.depths=[1,1,1,1]", "--set", "model.args.dims=[8,8,16,16]")
    told = (r"^classes +in order: 0 = kind2, 1 = kind9, 2 = kind10",)
    return Kind((*words, *changed), weights, 60, score, told)


KINDS = [
    cnn_on_pngs,
    table_with_gaps,
    bert_on_json_lines,
    timm_model,
    gpt_on_text,
    u_net,
    two_heads,
    gru,
    lstm,
    halves,
    compiled,
    lightning_checkpoint,
]
QUIET = ("--progress", "none", "--cache", "cache")


def ran(*words: str) -> str:
    """What the command prints; 1 says that nothing is concluded."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code in (0, 1), (done.output, done.exc_info)
    assert "Traceback" not in done.output
    return done.stdout


def measured(rows: pd.DataFrame, variant: str, scores: Scores) -> Scores:
    """What the stage `accuracy` has measured of these on the test part."""
    rows = rows[(rows.variant == variant) & (rows.stage == "accuracy") & rows["sample"].isna()]
    found = rows.drop_duplicates("metric").set_index("metric").value
    return {name: float(found[name]) for name in scores}


@pytest.mark.parametrize("make", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_three_commands_give_the_answer_that_a_few_lines_confirm(
    make: Callable[[], Kind],
) -> None:
    kind = make()
    before, swapped = kind.score(kind.weights, "gelu"), kind.score(kind.weights, "relu")
    # 1. `check` shows what a person would verify by eye.
    stages = "accuracy,quantize,bounds" if any("bounds" in each for each in kind.told) else ""
    checked = ran("check", *kind.words, "--stages", stages or "accuracy")
    assert re.search(r"^accuracy +will run$", checked, re.M)
    assert re.search(rf"^data +train .*, test {kind.samples}\b", checked, re.M), checked
    for pattern in kind.told:
        assert re.search(pattern, checked, re.M), checked
    # 2. `assess` measures the network, and the one with ReLU in the place of GELU.
    said = ran("assess", *kind.words, "--quick", "--stages", "accuracy", "--out", "run", *QUIET)
    assert re.search(r"^Should ReLU replace GELU( \(tanh\))?\?", said, re.M), said
    rows = read_results(Path("run"))
    swap = "gelu-swap" if kind.gelu == "gelu" else f"{kind.gelu}-swap"
    assert measured(rows, kind.gelu, before) == pytest.approx(before, abs=1e-5)
    assert measured(rows, swap, swapped) == pytest.approx(swapped, abs=1e-5)
    # 3. `relu-ize` writes weights that give what it says, in a network with ReLU.
    said = ran("relu-ize", *kind.words, "--out", "out", *QUIET)
    best = re.search(r"^(\S+) is the best on the validation data", said, re.M)
    assert best is not None, said
    weights = load_file("out/model.safetensors")
    assert {each.dtype for each in weights.values() if each.is_floating_point()} == {torch.float32}
    after = kind.score(weights, "relu")
    known = read_results(Path("out/run"))
    assert measured(known, best[1], after) == pytest.approx(after, abs=1e-5)
    assert f"over {kind.samples:,} samples like these" in said
    assert re.search(r"^(Recommended|Advised against|Not recommended yet)", said, re.M), said


def test_an_onnx_file_is_measured_and_treated_as_a_module() -> None:
    import onnxruntime

    # 1. A file that torch did not write, of a network that was trained.
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    np.savez("data.npz", x=x[:300], y=y[:300], x_test=x[300:], y_test=y[300:])
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
    weights = {
        name: each.numpy()
        for name, each in fitted(module, torch.as_tensor(x[:300]), cross_entropy(y[:300])).items()
    }
    _write_onnx(weights)
    session = onnxruntime.InferenceSession("net.onnx")
    (logits,) = session.run(None, {"x": x[300:]})
    before = right(torch.as_tensor(logits), y[300:])
    # 2. It is measured as it is, and has no activations to replace.
    checked = ran("check", "net.onnx", "--data", "data.npz", "--stages", "accuracy")
    assert re.search(r"^model +net.onnx: an ONNX file, output 'y'$", checked, re.M)
    words = ("--data", "data.npz", *QUIET)
    ran("assess", "net.onnx", "--quick", "--stages", "accuracy", "--out", "run", *words)
    assert measured(read_results(Path("run")), "given", before) == pytest.approx(before)
    # 3. As a module it is treated; numpy computes what was written.
    Path("my.py").write_text(
        "import evalsuite, torch\n"
        "def net(): return evalsuite.from_onnx('net.onnx', torch.zeros(2, 4))\n"
    )
    ran("check", "my.py:net", "--start", "trained", "--stages", "accuracy", "--data", "data.npz")
    said = ran("relu-ize", "my.py:net", "--out", "out", *words)
    best = re.search(r"^(\S+) is the best on the validation data", said, re.M)
    assert best is not None, said
    found = [each.double().numpy() for each in load_file("out/model.safetensors").values()]
    first, bias = (next(each for each in found if each.shape in shape) for shape in _FIRST)
    last, offset = (next(each for each in found if each.shape in shape) for shape in _LAST)
    hidden = np.maximum(x[300:] @ (first.T if first.shape == (16, 4) else first) + bias, 0)
    logits = hidden @ (last.T if last.shape == (2, 16) else last) + offset
    after = right(torch.as_tensor(logits), y[300:])
    known = read_results(Path("out/run"))
    assert measured(known, "gelu", before) == pytest.approx(before)
    assert measured(known, best[1], after) == pytest.approx(after)


_FIRST = (((16, 4), (4, 16)), ((16,),))
_LAST = (((2, 16), (16, 2)), ((2,),))


def _write_onnx(weights: Mapping[str, np.ndarray]) -> None:
    """Two layers with the operator Gelu between them, as `net.onnx`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "0.weight", "0.bias"], ["before"], transB=1),
            helper.make_node("Gelu", ["before"], ["after"]),
            helper.make_node("Gemm", ["after", "2.weight", "2.bias"], ["y"], transB=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(each, name) for name, each in weights.items()],
    )
    imports = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), "net.onnx")

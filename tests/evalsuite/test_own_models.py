"""Models that users name: functions, classes, Hugging Face folders, weights; and what is wrong
with them, in a line.
"""
# ruff: noqa: E501 (messages read better unbroken)

from __future__ import annotations

import json
import pickle
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import config, text
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save_file, save_model
from torch import nn

from evalsuite.own.asked_model import Model
from evalsuite.own.models import load_model
from evalsuite.tasks import (
    Classification,
    Embedding,
    LanguageModel,
    MultiLabel,
    Regression,
    TokenClassification,
)
from opgraph.errors import OwnError

CODE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width=4, depth=1):
            super().__init__()
            self.first, self.act, self.last = nn.Linear(3, width), nn.GELU(), nn.Linear(width, 2)

        def forward(self, x):
            return self.last(self.act(self.first(x)))

    def make(width=4):
        return Net(width)

    def needs(width):
        return Net(width)

    def tied():
        net = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 3))
        net[2].weight = net[0].weight
        return net

    def broken():
        raise KeyError("no such layer")

    def nothing():
        return None

    def bare():
        return nn.GELU()

    def lazy():
        return nn.LazyLinear(3)

    count = 0

    def forgetful():
        global count
        count += 1
        torch.manual_seed(count)
        return Net()

    model = Net()
    number = 3

    class Other:
        pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(textwrap.dedent(CODE))
    return tmp_path


def made(path: str, **given: Any) -> nn.Module:
    start = given.pop("start", "trained" if given.get("weights") else "scratch")
    task, classes = given.pop("task", None), given.pop("classes", None)
    return load_model(Model(path, **given), task=task, classes=classes, start=start)


def refusal(path: str, **given: Any) -> str:
    with pytest.raises(OwnError) as error:
        made(path, **given)
    assert "\n" not in str(error.value)
    return str(error.value)


@dataclass(frozen=True)
class Holder:
    model: Model


def test_a_recipe_gives_a_text_or_a_mapping() -> None:
    adapter = TypeAdapter(Holder)

    def read(given: Any) -> Model:
        return adapter.validate_json(json.dumps({"model": given}), strict=True).model

    assert read("my.py:make") == Model("my.py:make")
    whole = read(
        {"path": "my.py:make", "args": {"width": 3, "sizes": [1, {"a": None}]}, "weights": "w.pt"}
    )
    assert whole == Model("my.py:make", {"sizes": [1, {"a": None}], "width": 3}, "w.pt")
    assert hash(whole) == hash(Model("my.py:make", {"sizes": [1, {"a": None}], "width": 3}, "w.pt"))
    assert whole != Model("my.py:make", {"sizes": [1, {"a": 0}], "width": 3}, "w.pt")
    assert whole.args["sizes"] == [1, {"a": None}]
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert (
        repr(whole)
        == """Model(path='my.py:make', args={"sizes": [1, {"a": null}], "width": 3}, weights='w.pt')"""
    )
    for given, said in [
        (
            {"path": "my.py:make", "wieghts": "w"},
            "unknown key 'wieghts' of the model; did you mean 'weights'?",
        ),
        (
            {"args": {}},
            "the model has no `path`: write my.py:make, hf:FOLDER, timm:NAME or a file .onnx",
        ),
        ({"path": 3}, "Input should be a valid string"),
        ({"path": "a", "args": [1]}, "Input should be an object"),
        (3, "Input should be an object"),
    ]:
        with pytest.raises(ValidationError) as error:
            read(given)
        assert error.value.errors()[0]["msg"].removeprefix("Value error, ") == said
    with pytest.raises(ValueError, match="args are numbers, texts, lists and mappings"):
        Model("my.py:make", {"act": nn.GELU})


def test_a_function_and_a_class_are_called_with_the_arguments(here: Path) -> None:
    for path in ("my.py:make", "my.py:Net"):
        torch.manual_seed(3)
        module = made(path, args={"width": 7})
        assert module.first.weight.shape == (7, 3)
        torch.manual_seed(3)
        again = made(path, args={"width": 7})
        assert torch.equal(again.first.weight, module.first.weight)
        assert not torch.equal(made(path, args={"width": 7}).first.weight, module.first.weight)
    assert Model("my.py:make", weights="my.py").files == [Path("my.py"), Path("my.py")]
    assert Model("torch.nn:Linear", weights="none.pt").files == []


WRONG = [
    ("mine.py:make", {}, "the model: there is no file mine.py; did you mean 'my.py'?"),
    ("my.py:mak", {}, "the model: my.py has no 'mak'; did you mean 'make'?"),
    (
        "my.py",
        {},
        "the model: 'my.py' names no model; write my.py:make, hf:FOLDER, timm:NAME or a file .onnx",
    ),
    ("my.py:broken", {}, "my.py:25: broken() raises KeyError: 'no such layer'"),
    (
        "my.py:nothing",
        {},
        "the model: my.py:nothing returns a NoneType; it must return an nn.Module",
    ),
    (
        "my.py:bare",
        {},
        "the model: my.py:bare returns a GELU without parameters: nothing can be trained",
    ),
    (
        "my.py:lazy",
        {},
        "the model: my.py:lazy: weight has no shape yet; write its size instead of a lazy layer",
    ),
    (
        "my.py:model",
        {},
        "the model: my.py:model is a module, but every variant and seed needs a fresh one; name a function that makes it, as def make(): return Net(...)",
    ),
    (
        "my.py:number",
        {},
        "the model: my.py:number is a int; name a function that returns an nn.Module, or its class",
    ),
    (
        "my.py:Other",
        {},
        "the model: my.py:Other is a class, but no nn.Module; name a function that returns an nn.Module, or its class",
    ),
    (
        "my.py:make",
        {"args": {"widht": 3}},
        "the model: my.py:make: got an unexpected keyword argument 'widht'; did you mean 'width'?",
    ),
    (
        "my.py:needs",
        {},
        "the model: my.py:needs: missing a required argument: 'width'; give it in `args`",
    ),
    (
        "my.py:forgetful",
        {},
        "the model: my.py:forgetful makes other initial weights at a second call with the same torch.manual_seed; draw them by torch alone, and keep no state between calls",
    ),
    (
        "net.onnx",
        {},
        "the model: net.onnx is an ONNX file, which cannot be trained or changed as it is; give what made it, as my.py:make, or a function that returns evalsuite.from_onnx(file, example)",
    ),
    (
        "my.py:make",
        {"weights": "w.pt", "start": "scratch"},
        "weights: w.pt is given, but `start: scratch` uses none; write `start: trained` or `start: pretrained`, or leave the weights out",
    ),
]


@pytest.mark.parametrize(("path", "given", "said"), WRONG)
def test_what_makes_no_model_is_said_with_the_cure(
    here: Path, path: str, given: dict[str, Any], said: str
) -> None:
    assert refusal(path, **given) == said


def test_a_file_that_python_cannot_read_is_told_with_its_line(here: Path) -> None:
    (here / "syntax.py").write_text("def make(:\n")
    assert refusal("syntax.py:make").startswith("syntax.py:1: ")


@pytest.mark.parametrize(
    "form",
    ["a.safetensors", "a.pt", "wrapped.pth", "parallel.pt", "lightning.pt", "half.safetensors"],
)
def test_weights_are_loaded(here: Path, form: str) -> None:
    wanted = made("my.py:make")
    state = wanted.state_dict()
    saved: dict[str, Any] = {
        "wrapped.pth": {"state_dict": state},
        "parallel.pt": {f"module.{key}": each for key, each in state.items()},
        "lightning.pt": {"state_dict": {f"model.{key}": each for key, each in state.items()}},
        "half.safetensors": {key: each.half() for key, each in state.items()},
    }.get(form, state)
    if form.endswith("safetensors"):
        save_file(saved, form)
    else:
        torch.save(saved, form)
    found = made("my.py:make", weights=form)
    close = 1e-3 if form.startswith("half") else 0
    for key, each in state.items():
        assert found.state_dict()[key].dtype == torch.float32
        assert torch.allclose(found.state_dict()[key], each, rtol=close, atol=close)


def test_tied_weights_are_saved_once(here: Path) -> None:
    wanted = made("my.py:tied")
    save_model(wanted, "tied.safetensors")
    found = made("my.py:tied", weights="tied.safetensors")
    assert torch.equal(found(torch.ones(2, 3)), wanted(torch.ones(2, 3)))
    assert found[0].weight is found[2].weight


def test_weights_that_do_not_fit_are_refused(here: Path) -> None:
    state = made("my.py:make").state_dict()
    cure = "give the weights of this architecture, or the architecture of these weights by `args`"
    tensors = (
        "save tensors alone, by torch.save(model.state_dict(), ...) or safetensors.torch.save_model"
    )
    save_file(
        {key.replace("first.weight", "first.wieght"): each for key, each in state.items()},
        "named.safetensors",
    )
    save_file({f"layer.{index}": torch.ones(1) for index in range(6)}, "other.safetensors")
    save_file({**state, "first.bias": torch.tensor([0.0, float("nan"), 0, 0])}, "nan.safetensors")
    for name, content in (
        ("module.pt", nn.Linear(3, 2)),
        ("more.pt", {"epoch": 3, "first": torch.ones(2)}),
        ("list.pt", [1, 2]),
    ):
        torch.save(content, name)
    Path("text.pt").write_text("no weights")
    Path("cut.safetensors").write_bytes(Path("nan.safetensors").read_bytes()[:50])
    for name, said in [
        (
            "named.safetensors",
            f" does not fit Net: lacks first.weight; has first.wieght too many; did you mean 'first.weight'?; {cure}",
        ),
        (
            "other.safetensors",
            f" does not fit Net: lacks first.weight, first.bias, last.weight and 1 more; has layer.0, layer.1, layer.2 and 3 more too many; known: first.bias, first.weight, last.bias, last.weight; {cure}",
        ),
        (
            "nan.safetensors",
            ": first.bias has a value that is NaN or infinite; take an earlier checkpoint",
        ),
        ("my.py", f" is none of .safetensors, .pt, .pth; {tensors}"),
        (
            "module.pt",
            f" is a pickle that needs torch.nn.modules.linear.Linear, and running code from a file is refused; {tensors}",
        ),
        ("text.pt", f" is a pickle that cannot be read as tensors; {tensors}"),
        ("more.pt", f" holds epoch beside tensors; {tensors}"),
        ("list.pt", f" holds a list, no state dict; {tensors}"),
    ]:
        assert refusal("my.py:make", weights=name) == f"weights: {name}{said}"
    assert refusal("my.py:make", weights="named.safetensors", args={"width": 9}).endswith(
        f"; other shapes: first.bias is [4], not [9], last.weight is [2, 4], not [2, 9]; {cure}"
    )
    missing = refusal("my.py:make", weights="nann.safetensors")
    assert missing == "weights: there is no file nann.safetensors; did you mean 'nan.safetensors'?"
    assert refusal("my.py:make", weights="cut.safetensors").startswith(
        "weights: cut.safetensors is no safetensors file ("
    )


class Harmful:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("harmed"),)


def test_a_pickle_runs_no_code(here: Path) -> None:
    torch.save({"first.weight": Harmful()}, "harmful.pt")
    assert "is a pickle that needs getattr, and running code from a file is refused" in refusal(
        "my.py:make", weights="harmful.pt"
    )
    assert not Path("harmed").exists()


HEADS = [
    ("bert", Classification(), 3, "BertForSequenceClassification"),
    ("bert", MultiLabel(), 3, "BertForSequenceClassification"),
    ("bert", Regression(), 3, "BertForSequenceClassification"),
    ("bert", TokenClassification(), 3, "BertForTokenClassification"),
    ("bert", Embedding(), None, "BertModel"),
    ("gpt2", LanguageModel(), 50, "GPT2LMHeadModel"),
    ("vit", Classification(), 3, "ViTForImageClassification"),
    ("distilbert", Classification(), 3, "DistilBertForSequenceClassification"),
]


@pytest.mark.parametrize(("kind", "task", "classes", "head"), HEADS)
def test_a_hugging_face_folder_has_the_head_of_the_task(
    kind: str, task: Any, classes: int | None, head: str, here: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    wanted = getattr(transformers, head)(config(kind)).eval()
    wanted.save_pretrained("folder")
    found = made("hf:folder", task=task, classes=classes, start="trained")
    assert type(found).__name__ == head
    assert found.training
    inputs = {"pixel_values": torch.rand(2, 3, 8, 8)} if kind == "vit" else text()
    with torch.no_grad():
        assert torch.equal(found.eval()(**inputs)[0], wanted(**inputs)[0])
    torch.manual_seed(0)
    scratch = made("hf:./folder", task=task, classes=classes)
    assert type(scratch).__name__ == head
    assert not torch.equal(next(scratch.parameters()), next(wanted.parameters()))
    (here / "folder" / "model.safetensors").rename("weights.safetensors")
    again = made("hf:folder", task=task, classes=classes, weights="weights.safetensors")
    with torch.no_grad():
        assert torch.equal(again.eval()(**inputs)[0], wanted(**inputs)[0])


def test_a_pretrained_body_gets_a_new_head(here: Path) -> None:
    transformers = pytest.importorskip("transformers")
    body = transformers.BertModel(config("bert"))
    body.save_pretrained("body")
    transformers.BertForSequenceClassification(config("bert")).save_pretrained("three")
    heads = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found = made("hf:body", task=Classification(), classes=5, start="pretrained")
        heads.append(found.classifier.weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert found.classifier.weight.shape[0] == 5
    assert torch.equal(
        found.bert.embeddings.word_embeddings.weight, body.embeddings.word_embeddings.weight
    )
    assert (
        made(
            "hf:three", task=Classification(), classes=5, start="pretrained"
        ).classifier.weight.shape[0]
        == 5
    )
    assert refusal("hf:body", task=Classification(), classes=3, start="trained") == (
        "the model: hf:body has no classifier.bias and 1 more for a BertForSequenceClassification; write `start: pretrained` to train a new head"
    )
    assert refusal("hf:three", task=Classification(), classes=2, start="trained") == (
        "the model: hf:three gives 3 outputs, but the data ask for 2; give data of its classes, or write `start: pretrained`, which gives it a new head"
    )
    changed = refusal(
        "hf:three",
        task=Classification(),
        classes=3,
        start="pretrained",
        args={"intermediate_size": 48},
    )
    assert changed == (
        "the model: hf:three has no bert.encoder.layer.0.intermediate.dense.bias and 5 more of that shape for a BertForSequenceClassification; name the folder of a whole model"
    )


def test_a_folder_that_cannot_be_used_is_said_with_the_cure(here: Path) -> None:
    transformers = pytest.importorskip("transformers")
    (here / "empty").mkdir()
    for kind, name in (
        ("bert", "plain"),
        ("bert", "pickled"),
        ("bert", "cut"),
        ("gpt2", "gpt2"),
        ("vit", "vit"),
    ):
        config(kind).save_pretrained(name)
    torch.save(transformers.BertModel(config("bert")).state_dict(), "pickled/pytorch_model.bin")
    (here / "cut" / "config.json").write_text('{"a')
    nan = transformers.BertModel(config("bert"))
    nan.embeddings.word_embeddings.weight.data[3, 2] = float("inf")
    nan.save_pretrained("nan")
    for path, given, said in [
        ("hf:./plane", {}, "the model: there is no folder ./plane; did you mean 'plain'?"),
        (
            "hf:empty",
            {},
            "the model: empty has no config.json; name a folder that save_pretrained wrote",
        ),
        (
            "hf:plain",
            {"start": "trained"},
            "the model: plain has a config.json, but no model.safetensors, which `start: trained` begins from; add it, give `weights`, or write `start: scratch`",
        ),
        (
            "hf:pickled",
            {"start": "pretrained"},
            "the model: pickled has its weights in pytorch_model.bin, which is refused, as a pickle may run code; convert it where you trust it: AutoModel.from_pretrained(...).save_pretrained(...) writes model.safetensors",
        ),
        (
            "hf:plain",
            {"task": Classification(), "args": {"hidden_sizes": 3}},
            "the model: hf:plain has no 'hidden_sizes' in its configuration; did you mean 'hidden_size'?",
        ),
        (
            "hf:gpt2",
            {"task": LanguageModel(), "classes": 99},
            "the model: hf:gpt2 has a vocabulary of 50 tokens, but the data have 99; give the tokenizer that it was trained with",
        ),
        (
            "hf:vit",
            {"task": LanguageModel()},
            "the model: hf:vit is a 'vit', for which transformers has no AutoModelForCausalLM; choose another task, or bring the model by my.py:make",
        ),
        (
            "hf:nan",
            {"task": Embedding(), "start": "trained"},
            "weights: hf:nan: embeddings.word_embeddings.weight has a value that is NaN or infinite; take an earlier checkpoint",
        ),
    ]:
        assert refusal(path, **given) == said
    damaged = "the model: hf:cut cannot be loaded: OSError: It looks like the config file at 'cut/config.json'"
    assert refusal("hf:cut").startswith(damaged)


def test_a_name_on_the_hub_that_cannot_be_fetched(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = refusal("hf:nobody/no-such-model", task=Embedding())
    assert said.startswith(
        "the model: hf:nobody/no-such-model cannot be loaded: OSError: We couldn't connect"
    )
    assert said.endswith("; nobody/no-such-model is no folder here either")


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_timm_is_said_to_be_missing(here: Path) -> None:
    assert refusal("timm:convnext_atto") == (
        "the model: timm:convnext_atto needs timm, which cannot be imported (No module named 'timm'): pip install timm"
    )


def test_timm_is_made_by_name(here: Path) -> None:
    pytest.importorskip("timm")
    assert made("timm:convnext_atto", classes=7).head.fc.weight.shape[0] == 7
    assert refusal("timm:convnext_atta").startswith(
        "the model: timm has no 'convnext_atta'; did you mean"
    )
    assert refusal("timm:convnext_atto", start="trained") == (
        "the model: timm:convnext_atto is made without weights, but `start: trained`; give `weights`"
    )


def test_a_torchvision_of_another_torch_is_told_with_its_cure(here: Path) -> None:
    # What `import torchvision` does where its compiled operators do not fit this torch.
    Path("seeing.py").write_text(
        "import torch\n"
        "torch.library.register_fake('torchvision::nms')(lambda *_: None)\n"
        "def make(): pass\n"
    )
    said = refusal("seeing.py:make")
    assert said.startswith("seeing.py:2: importing seeing.py raises RuntimeError: operator")
    minor = int(torch.__version__.split(".")[1])
    assert f'pip install "torchvision==0.{minor + 15}.*", from the index that torch is' in said

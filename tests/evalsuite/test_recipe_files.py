"""Paths in a recipe: the file is that of the recipe's folder or of the present one, whichever
there is, never a guess.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evalsuite.cli import app
from evalsuite.own.options import Given
from evalsuite.own.own import Own
from evalsuite.recipe import Recipe, RecipeError, parse_recipe, read_recipe
from opgraph.errors import OwnError

NETWORK = (
    "from torch import nn\n"
    "def make():\n    return nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 2))\n"
    "def loss(outputs, targets):\n    return outputs.square().mean()\n"
)
FILES = {
    "net.py": NETWORK,
    "data.csv": "x,z,label\n" + "\n".join(f"{i % 7},{i / 3},{i % 2}" for i in range(60)),
    "weights.pt": "",
    "tokens.json": "{}",
    "notes/more.txt": "",
    "other.onnx": "",
    "hub/config.json": "{}",
}
# An entry of a recipe, and the paths in it.
NAMED: dict[str, tuple[str, list[str]]] = {
    "data": ("{use: own, name: m, model: net.py:make, data: data.csv}", ["net.py", "data.csv"]),
    "data with options": (
        "{use: own, name: m, model: net.py:make, data: {path: data.csv}}",
        ["net.py", "data.csv"],
    ),
    "weights": (
        "{use: own, name: m, model: {path: net.py:make, weights: weights.pt}, data: data.csv,"
        " start: trained}",
        ["net.py", "weights.pt", "data.csv"],
    ),
    "a tokenizer": (
        "{use: own, name: m, model: net.py:make, data: {path: data.csv, tokenizer: tokens.json}}",
        ["net.py", "data.csv", "tokens.json"],
    ),
    "a loss": (
        "{use: own, name: m, model: net.py:make, data: data.csv, loss: net.py:loss}",
        ["net.py", "data.csv", "net.py"],
    ),
    "what it depends on": (
        "{use: own, name: m, model: net.py:make, data: data.csv, depends: [notes/more.txt]}",
        ["net.py", "data.csv", "notes/more.txt"],
    ),
    "a folder of Hugging Face's": (
        "{use: own, name: m, model: hf:hub, data: data.csv}",
        ["hub", "data.csv"],
    ),
    "a folder below": (
        "{use: own, name: m, model: net.py:make, data: ./data.csv}",
        ["net.py", "data.csv"],
    ),
}


def written(folder: Path, more: str = "") -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + more)


def recipe_of(folder: Path, entry: str) -> Path:
    text = (
        f"# mine\nname: r\nworkloads:\n  - {entry}  # here\nvariants: [gelu]\nseeds:"
        " [0]\nsteps: [accuracy]\n"
    )
    (folder / "r.yaml").write_text(text)
    return folder / "r.yaml"


def named(recipe: Recipe) -> list[Path]:
    own: Own = recipe.workloads[0].target
    model, source = own.model_choice, own.data_choice
    texts = [re.sub(r"^hf:|:make$", "", model.path), model.weights, source.path, source.tokenizer]
    texts += [own.loss.removesuffix(":loss"), *own.depends]
    return [Path(text) for text in texts if text]


@pytest.mark.parametrize("entry", NAMED)
def test_a_path_is_that_of_the_recipes_folder_from_everywhere(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("mine", "empty"):
        (tmp_path / folder).mkdir()
    written(tmp_path / "mine")
    text, paths = NAMED[entry]
    recipe = recipe_of(tmp_path / "mine", text)
    monkeypatch.chdir(tmp_path / "mine")
    here = read_recipe(recipe)
    assert [path.resolve() for path in named(here)] == [tmp_path / "mine" / path for path in paths]
    assert here.text == recipe.read_text()  # nothing of it is rewritten
    for folder in (tmp_path, tmp_path / "empty"):
        monkeypatch.chdir(folder)
        elsewhere = read_recipe(Path("mine/r.yaml") if folder == tmp_path else recipe)
        assert named(elsewhere) == [tmp_path / "mine" / path for path in paths]
        assert "# here" in elsewhere.text
        assert named(parse_recipe(elsewhere.text)) == named(elsewhere)  # as jobs read it


@pytest.mark.parametrize("entry", NAMED)
def test_a_path_that_is_in_both_folders_is_refused(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, paths = NAMED[entry]
    for folder in ("mine", "other"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder)
    recipe = recipe_of(tmp_path / "mine", text)
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(RecipeError) as refused:
        read_recipe(recipe)
    said = str(refused.value)
    assert said.count(
        "is in the recipe's folder and, another one, in the present: call the command in "
    ) == len(paths)
    assert all(Path(path).name in said for path in paths)
    assert f"{recipe}:4:" in said


def test_a_path_of_the_present_folder_alone_is_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("runs", "mine"):
        (tmp_path / folder).mkdir()
    written(tmp_path / "mine")
    recipe = recipe_of(
        tmp_path / "runs", NAMED["data"][0]
    )  # as `assess` leaves one in the run's folder
    monkeypatch.chdir(tmp_path / "mine")
    assert named(read_recipe(recipe)) == [Path("net.py"), Path("data.csv")]


def test_the_same_file_by_a_link_is_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    written(tmp_path / "mine")
    recipe = recipe_of(tmp_path / "mine", NAMED["data"][0])
    (tmp_path / "linked").mkdir()
    for name in FILES:
        (tmp_path / "linked" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "linked" / name).symlink_to(tmp_path / "mine" / name)
    monkeypatch.chdir(tmp_path / "linked")
    assert named(read_recipe(recipe)) == [Path("net.py"), Path("data.csv")]


def test_names_that_are_no_paths_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("gelu", "accuracy", "digits-mlp", "mine-too", "bytes"):
        (tmp_path / "mine" / name).mkdir()
    recipe = recipe_of(tmp_path / "mine", "{use: digits-mlp, name: mine-too}")
    monkeypatch.chdir(tmp_path)
    read = read_recipe(recipe)
    assert (read.text, read.workloads[0].name) == (recipe.read_text(), "mine-too")


def test_run_and_plan_tell_of_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("mine", "other"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder)
    recipe = recipe_of(tmp_path / "mine", NAMED["data"][0])
    monkeypatch.chdir(tmp_path / "other")
    for command in (["run"], ["plan"], ["tune"]):
        found = CliRunner().invoke(app, [*command, str(recipe)])
        assert found.exit_code == 2
        assert (
            "'data.csv' is in the recipe's folder and, another one, in the present" in found.stderr
        )


DECLARING = NETWORK.replace(
    "def make", "import evalsuite\n@evalsuite.workload(data='data.csv')\ndef make"
)


def test_what_a_function_declares_is_beside_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("mine", "other", "empty"):
        (tmp_path / folder).mkdir()
    for folder in ("mine", "other"):
        written(tmp_path / folder)
    (tmp_path / "mine" / "declaring.py").write_text(DECLARING)
    reference = f"{tmp_path}/mine/declaring.py:make"
    for folder, wanted in (("mine", "data.csv"), ("empty", f"{tmp_path}/mine/data.csv")):
        monkeypatch.chdir(tmp_path / folder)
        assert Given(reference).options()["data"] == wanted
        recipe = recipe_of(tmp_path / "mine", reference)
        assert read_recipe(recipe).workloads[0].options["data"] == wanted
    monkeypatch.chdir(tmp_path / "other")
    said = r"'data.csv' is in the folder of declaring\.py and, another one, in the present"
    with pytest.raises(OwnError, match=f"^data: {said}"):
        Given(reference).options()
    with pytest.raises(RecipeError, match=said):
        read_recipe(recipe_of(tmp_path / "mine", reference))


def test_running_text_is_for_a_language_model_unless_another_task_is_named(tmp_path: Path) -> None:
    text, table, mixed = tmp_path / "text.txt", tmp_path / "rows.csv", tmp_path / "mixed"
    text.write_text("once upon a time")
    table.write_text("text,label\nonce,a\n")
    mixed.mkdir()
    for file in (text, table):
        shutil.copy(file, mixed)

    def task_of(data: str | Path | dict[str, str], task: str = "") -> str | None:
        data = data if isinstance(data, dict) else str(data)
        chosen: str | None = Given("hf:gpt", data, task).options().get("task")
        return chosen

    assert task_of(text) == "language-model"
    assert task_of({"path": str(text), "tokenizer": "bytes"}) == "language-model"
    assert task_of(text, "embedding") == "embedding"
    assert task_of(table) is None
    assert task_of(mixed) is None
    # What is missing or refused is told by what reads it.
    assert task_of(tmp_path / "nowhere.txt") is None
    assert task_of("data.py:texts") is None
    assert task_of({"path": str(text), "unknown": "x"}) is None

"""What README and the documents show works as it stands there, and what they say of the code is
so.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import typer
from pyarrow import parquet
from ruamel.yaml import YAML
from typer.testing import CliRunner

import evalsuite
from docs.making.names import FIRST, TOPICS, docstring, example_of, public, sections
from evalsuite import census
from evalsuite.cli import app
from evalsuite.plugins import entries, load
from evalsuite.recipe import parse_recipe
from lambda_gelu import RELU

if TYPE_CHECKING:
    from tests.conftest import MakeBench, MakeNetwork

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    str(path.relative_to(ROOT))
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)
# Their Python runs in the tests below, or is a file of the plugin that tests install; README's is
# an outline.
RUN = {
    "docs/training-loop.md",
    "docs/stages/quantize.md",
    "docs/stages/prune.md",
    "docs/recipes.md",
    "docs/own-models.md",
    "docs/plugins.md",
    "docs/tutorial.md",
    "docs/reference.md",
}
# What shell lines call besides the command line of this project.
OTHERS = {"source", "pip", "pre-commit"}


def fences(document: str, language: str) -> list[tuple[str, str]]:
    """The title, if any, and the text of each fenced part in that language."""
    found = FENCE.findall((ROOT / document).read_text(encoding="utf-8"))
    return [
        (info.partition('title="')[2].rstrip('" '), text)
        for kind, info, text in found
        if kind == language
    ]


def code(document: str) -> list[str]:
    """The Python of a document that is no file."""
    return [text for title, text in fences(document, "python") if not title]


def commands(document: str) -> list[list[str]]:
    """The words of each command of a document's shell parts, without comments and redirections."""
    lines = "\n".join(text for _, text in fences(document, "sh")).replace("&&", "\n").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [each[: each.index(">")] if ">" in each else each for each in words if each]


def every(language: str) -> list[Any]:
    """Of all documents, as cases of a test."""
    return [
        pytest.param(document, text, id=f"{document}-{number}")
        for document in DOCUMENTS
        for number, (_, text) in enumerate(fences(document, language))
    ]


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    """The script that writes what documents say of the code."""
    spec = importlib.util.spec_from_file_location("blocks", ROOT / "docs" / "making" / "blocks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_fenced_part_is_of_a_language_that_is_checked(document: str) -> None:
    whole = (ROOT / document).read_text(encoding="utf-8")
    assert document != "README.md" or len(whole.splitlines()) <= 150  # it is read in a few minutes
    for language, _, text in FENCE.findall(whole):
        assert language in ("python", "sh", "yaml", "toml", "text")
        if language == "python":
            compile(text, document, "exec")
            assert document in RUN | {"README.md"}
        elif language == "toml" and sys.version_info >= (3, 11):
            import tomllib

            assert tomllib.loads(text)


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each != "README.md"])
def test_what_documents_say_of_the_code_is_so(document: str, blocks: ModuleType) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert blocks.filled(text) == text, "run python docs/making/blocks.py"


@pytest.mark.slow
def test_the_answers_in_readme_are_those_of_the_studies(blocks: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    other = text.replace("cifar10-resnet8 −7.83 pp", "cifar10-resnet8 −6.83 pp")
    assert other != text
    assert blocks.filled(other) == text, "run python docs/making/blocks.py"


def test_a_committed_study_holds_its_rows_its_page_and_its_conclusions() -> None:
    """What `evalsuite report` makes anew from the rows is not committed."""
    studies = sorted(path.parent for path in (ROOT / "reports").glob("*/results.parquet"))
    assert len(studies) > 20
    kept = {"results.parquet", "run.json", "report.html", "report.md", "report.png"}
    kept |= {"learning-rates.csv", "baselines.csv"}  # what a protocol says of choices before a run
    for study in studies:
        assert {"results.parquet", "run.json", "report.md"} <= {
            path.name for path in study.iterdir()
        }
        assert {path.name for path in study.iterdir() if path.is_file()} <= kept
        tables = {path.name: path for path in (study / "tables").glob("*")}
        assert tables.keys() <= {"matrix.csv", "comparison.csv", "answer.json"}
        for name, path in tables.items():
            assert path.stat().st_size <= 320_000, path
            if name.endswith(".csv"):
                assert "," in path.read_text(encoding="utf-8").partition("\n")[0], path


def test_each_stage_has_a_page_with_its_options_and_names_metrics_that_it_measures() -> None:
    stages = {
        entry.name for entry in entries("stages") if entry.dist and entry.dist.name == "evalsuite"
    }
    assert {path.stem for path in (ROOT / "docs" / "stages").iterdir()} == stages
    measured: dict[str, set[str]] = {}
    for study in (ROOT / "reports").glob("*/results.parquet"):
        rows = parquet.read_table(study, columns=["stage", "metric"])
        for row in rows.group_by(["stage", "metric"]).aggregate([]).to_pylist():
            measured.setdefault(row["stage"], set()).add(row["metric"])
    for stage in sorted(stages):
        page = (ROOT / "docs" / "stages" / f"{stage}.md").read_text(encoding="utf-8")
        assert f"<!-- options {stage} -->" in page
        table = page.partition("## What it measures")[2].partition("\n## ")[0]
        named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.M))))
        assert named
        assert named <= measured[stage], stage


def test_the_plugin_guide_shows_a_stage_of_a_screen() -> None:
    shown = dict(fences("docs/plugins.md", "python"))
    assert {"stage.py", "report.py", "variant.py"} < shown.keys()
    assert len(shown["stage.py"].splitlines()) < 40


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if commands(each)])
def test_shell_lines_name_commands_options_and_files_that_there_are(document: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for name, *words in commands(document):
        if name == "make":
            assert set(words) <= set(targets)
        elif name == "evalsuite":
            command, *arguments = words
            _command(command).make_context(command, arguments)  # raises where an option is unknown
            assert all(
                (ROOT / each).exists() for each in arguments if each.startswith("pipelines/")
            )
        elif name == "python":
            assert (ROOT / words[0]).is_file() or words[0] in dict(fences(document, "python"))
        else:
            assert name in OTHERS


def _command(name: str) -> Any:
    """A command of the application, or of a plugin, which typer knows only when it is called."""
    if name in {entry.name for entry in entries("commands")}:
        alone = typer.Typer()
        alone.command(name)(load("commands", name).target)
        return typer.main.get_command(alone)
    return typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]


NET = """\
import evalsuite
from torch import nn

@evalsuite.workload(data="data.csv")
def net():
    return nn.Linear(2, 1)

make_model = net
"""


@pytest.mark.parametrize(("document", "text"), every("yaml"))
def test_recipes_are_valid(
    document: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """What a part of a recipe leaves out is filled in."""
    if document == "docs/plugins.md":
        monkeypatch.syspath_prepend(request.getfixturevalue("demo_site"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(NET)
    (tmp_path / "data.csv").write_text(
        "a,b,price\n" + "".join(f"{i},{i % 7},{i % 3}\n" for i in range(60))
    )
    whole = {
        "name": "test",
        "baseline": "gelu",
        "workloads": ["digits-mlp"],
        "variants": ["gelu"],
        "seeds": [0],
        "steps": ["accuracy"],
        **YAML(typ="safe").load(text),
    }
    written = StringIO()
    YAML().dump(whole, written)
    assert parse_recipe(written.getvalue(), document).steps


def test_the_citation_names_this_version_and_hooks_fetch_nothing() -> None:
    cited = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == metadata.version("evalsuite")
    hooks = YAML(typ="safe").load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {each["repo"] for each in hooks["repos"]} == {"local"}


@pytest.fixture
def bert(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The configuration of a small BERT, and the class of models."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="pip install evalsuite[transformers]")
    torch.manual_seed(0)
    return (
        transformers.BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
        ),
        transformers.BertForSequenceClassification,
    )


def test_a_hugging_face_bert_is_hardened_and_swapped_in_at_most_ten_lines(bert: Any) -> None:
    (text,) = code("docs/training-loop.md")
    assert len(text[text.index("model = Bert") :].strip().splitlines()) <= 10
    config, make = bert
    tokens = torch.randint(50, (12, 4, 16))
    batches = [{"input_ids": each, "labels": (each[:, 0] > 24).long()} for each in tokens]
    scope: dict[str, Any] = {"batches": batches, "config": config}
    exec(text, scope)
    model, swapped = scope["model"].eval(), scope["relu_model"]
    assert {found.traits.name for found in census(swapped)} == {RELU.name}
    assert [found.traits.name for found in census(model)] == ["lambda-gelu"] * 2
    with torch.no_grad():
        before, after, fresh = (
            each(input_ids=tokens[0]).logits for each in (model, swapped, make(config).eval())
        )
    assert (before - after).abs().max() < 1e-3
    assert (before - fresh).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:Computing zero point of output accumulator")
def test_a_network_runs_in_integers(
    network: MakeNetwork, bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = code("docs/stages/quantize.md")
    made, data = network("digits-cnn", "relu"), bench("digits-cnn").data
    scope: dict[str, Any] = {
        "network": made.module,
        "calibration": data.calibration.inputs,
        "images": data.test.inputs,
    }
    exec(text, scope)
    assert (scope["logits"] == scope["same_logits"]).all()
    accuracy = (scope["logits"].argmax(1) == data.test.targets.numpy()).mean()
    assert accuracy > 0.9
    assert scope["agreement"].unexplained == 0


def test_a_hugging_face_bert_is_pruned_and_saved(
    bert: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = code("docs/stages/prune.md")
    config, make = bert

    def make_model() -> torch.nn.Module:
        return make(config).eval()  # type: ignore[no-any-return]

    scope: dict[str, Any] = {
        "model": make_model(),
        "make_model": make_model,
        "batch": {"input_ids": torch.randint(50, (4, 16))},
    }
    exec(text, scope)
    assert scope["error"] <= 1e-6
    with torch.no_grad():
        pruned, restored = (
            module(**scope["batch"]).logits
            for module in (scope["pruned"].module, scope["restored"])
        )
    assert torch.equal(pruned, restored)
    layer = scope["restored"].bert.encoder.layer[0]
    assert (layer.attention.self.num_attention_heads, layer.intermediate.dense.out_features) == (
        2,
        32,
    )


def test_rows_are_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    first, second = code("docs/recipes.md")
    scope: dict[str, Any] = {}
    exec(first, scope)
    means = scope["means"].loc[("digits-mlp", "bounds")]
    assert set(means.columns) == {"gelu", "gelu-swap", "lambda-gelu", "annealed", "relu"}
    assert (means.loc["eps=0.015625, method=crown"] > means.loc["eps=0.0625, method=crown"]).all()
    exec(second, scope)
    curves = scope["curves"].loc["mnist-cnn"]
    assert curves.index.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert curves.notna().all(axis=None)
    assert (curves.loc[0.1] > curves.loc[0.9]).all()


def test_each_public_name_says_what_it_is_and_code_of_the_documents_uses_it() -> None:
    homes = public()
    silent = [name for name, home in homes.items() if len(docstring(name, home).split()) <= 2]
    assert silent == []
    for name in homes:
        page, slug, _ = example_of(name)  # raises LookupError where there is none
        (body,) = [body for address, _, body in sections(page) if address == slug][:1]
        assert name in body


def test_the_page_of_public_names_lists_each_once_and_few_to_begin_with() -> None:
    listed = [name for topic, names in TOPICS.items() for name in names.split() if topic != FIRST]
    assert sorted(listed) == sorted(public())
    assert sorted(TOPICS[FIRST].split()) == sorted(evalsuite.__all__)
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert [topic for topic in TOPICS if f"<!-- names {topic} -->" not in page] == []


@pytest.mark.parametrize("text", code("docs/reference.md"), ids=lambda text: str(text.count("\n")))
def test_the_examples_of_public_names_run(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").symlink_to(ROOT / "reports")
    start = subprocess.run

    def here(words: list[str], **options: Any) -> Any:
        """A command of evalsuite in this process, which has the libraries loaded."""
        if words[1:3] != ["-m", "evalsuite"]:
            return start(words, **options)
        done = CliRunner().invoke(app, words[3:])
        assert done.exit_code == 0, done.output
        return done

    monkeypatch.setattr(subprocess, "run", here)
    exec(compile(text, "docs/reference.md", "exec", dont_inherit=True), {"__name__": "__main__"})


def _called(words: list[str], folder: Path) -> str:
    """Return what a command of a document prints in a reader's folder; one of evalsuite runs in
    this process, whose libraries are loaded.
    """
    cache = str(folder / "cache")
    if words[0] == "evalsuite":
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            done = CliRunner().invoke(app, words[1:], env={"EVALSUITE_CACHE": cache})
        code, output, errors = done.exit_code, done.stdout, done.stderr
    else:
        program = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=folder,
            env={**os.environ, "EVALSUITE_CACHE": cache},
            capture_output=True,
            text=True,
            check=False,
        )
        code, output, errors = program.returncode, program.stdout, program.stderr
    # The search for a budget is cut short here: that the network may not be trained to its end is
    # an exit code of 1.
    unlearnt = code == 1 and "Report: " in output and "Traceback" not in errors
    assert code == 0 or unlearnt, output + errors
    return output


@pytest.mark.slow
def test_the_check_in_the_plugin_guide_passes(
    demo_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(demo_site)
    (text,) = code("docs/plugins.md")
    scope: dict[str, Any] = {}
    exec(text, scope)
    scope["test_the_stage_keeps_its_contract"]()


@pytest.mark.slow
def test_a_declared_model_and_one_in_memory_are_assessed_and_relu_ized(tmp_path: Path) -> None:
    text, in_memory, treated = code("docs/own-models.md")
    (tmp_path / "mine.py").write_text(text)
    making = (
        "import numpy as np; x = np.random.default_rng(0).random((240, 8), dtype='f4'); y = (x[:,"
        " 0] > 0.5) * 1"
    )
    _called(["python", "-c", f"{making}; np.savez('data.npz', x=x, y=y)"], tmp_path)
    assert "report.html" in _called(["python", "mine.py"], tmp_path)
    first = f"{making}; x_test, y_test = x[200:], y[200:]; x, y = x[:200], y[:200]"
    quick = in_memory.replace("y_test))", 'y_test), stages=["accuracy"], quick=True)')
    assert quick != in_memory
    tensors = "x, x_test = map(torch.tensor, (x, x_test))"
    script = f"import evalsuite, torch; {first}; {tensors}\n{quick}\nprint(found)\n{treated}"
    (tmp_path / "memory.py").write_text(script)
    printed = _called(["python", "memory.py"], tmp_path)
    assert "The report: " in printed
    assert "size of the ONNX file" in printed
    assert (tmp_path / "relu.pt").is_file()


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_the_tutorial_ends_in_a_report_of_ones_own_network(tmp_path: Path) -> None:
    document = "docs/tutorial.md"
    for title, text in fences(document, "python"):
        (tmp_path / title).write_text(text)
    printed = {}
    for words in commands(document):
        if "--seeds" in words:
            words[words.index("--seeds") + 1] = "2"  # With two there are intervals already.
        if words[0] == "evalsuite" and words[1] != "doctor":
            printed[words[1], words[-1]] = _called(words, tmp_path)
            if words[1] == "init":  # whose line of variants the reader replaces
                (kept,) = (text.replace("gelu-swap, ", "") for _, text in fences(document, "yaml"))
                recipe = re.sub("^variants: .*\n", kept, printed[words[1], words[-1]], flags=re.M)
                (tmp_path / "recipe.yaml").write_text(recipe)
        elif words[0] == "python":
            printed["rows", ""] = _called(words, tmp_path)
    assert "will run" in printed["check", "my.py:make_data"]
    assert "gelu-swap" in printed["rows", ""]
    for run, variants in (
        ("first", {"gelu", "gelu-swap", "swap-refit", "relu"}),
        ("second", {"gelu", "annealed"}),
    ):
        rows = parquet.read_table(
            tmp_path / "runs" / run / "results.parquet", columns=["variant", "status"]
        )
        assert variants <= set(rows["variant"].to_pylist())
        assert "hard-switch" not in rows["variant"].to_pylist()
        assert "not resolved" in (tmp_path / "runs" / run / "report.html").read_text(
            encoding="utf-8"
        )


@pytest.mark.slow
def test_the_site_asks_no_other_host_for_anything(tmp_path: Path) -> None:
    """It is built as `make docs` does, where a link that leads nowhere is an error."""
    pytest.importorskip("mkdocs", reason="pip install evalsuite[docs]")
    built = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(built, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [each for each in (tmp_path / "site").rglob("*.html") if "reports" not in each.parts]
    assert len(pages) >= 20
    for page in pages:
        fetched = re.findall(
            r"<(?:script|img|iframe)[^>]* src=\"?([^\" >]+)", page.read_text(encoding="utf-8")
        )
        fetched += re.findall(
            r"<link(?![^>]*canonical)[^>]* href=\"?([^\" >]+)", page.read_text(encoding="utf-8")
        )
        assert fetched
        assert not [each for each in fetched if "//" in each]

"""Whole runs through the command line, with stages that behave and stages that do not.

The jobs run in processes of their own; the command line does where the test is about its process, as when it is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing import forkserver
from pathlib import Path

import pandas as pd
import psutil
import pytest
from workshop import COMMAND, HEAD, Workshop, git, lines, wait_until

from benchmarks.chaos import told
from evalsuite.plugins import load
from evalsuite.run import record
from evalsuite.run.journal import read_journal
from evalsuite.run.local import Processes
from evalsuite.run.record import changed_since, checkout


@pytest.fixture(autouse=True, scope="module")
def _server() -> None:
    """The process that jobs are forked from serves all runs of this process: it loads at once what they take."""
    stages = [load("stages", name).target for name in ("accuracy", "export", "prune", "quantize")]
    Processes(1, [each.__module__ for each in stages], jobs=20)
    forkserver.ensure_running()


def rewrite_outcomes(cache: Path, change: Callable[[str], str]) -> None:
    """Write other outcomes in the place of those in the cache, which says that they are whole."""
    for manifest in cache.rglob("manifest.json"):
        outcome = manifest.parent / "outcome.json"
        outcome.write_text(change(outcome.read_text()))
        digests = {**json.loads(manifest.read_text()), "outcome.json": hashlib.sha256(outcome.read_bytes()).hexdigest()}
        manifest.write_text(json.dumps(digests))


@pytest.mark.slow
def test_misbehaving_stages_cost_only_their_own_rows(workshop: Workshop) -> None:
    names = ("segfault", "nan", "raises", "exits", "empty", "declines", "rebuilds", "nan-network", "links", "outside")
    steps = "".join(f"  - {name}\n" for name in names)
    steps += "  - {use: slow, name: behind-nan, after: nan-network}\n"
    steps += "  - {use: hang, time_limit: 3}\n  - {use: slow, name: behind, after: rebuilds}\n  - accuracy\n"
    done = workshop.run(workshop.recipe(steps, HEAD.replace(", gelu-swap", "")))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    total, *kinds = map(int, re.findall(r"(\d+) (?:jobs|ok|unsupported|failed|skipped)", done.stdout))
    assert (len(kinds), sum(kinds)) == (4, total), done.stdout
    rows = workshop.rows().set_index("step")
    said = {step: (rows.loc[[step], "status"].iloc[0], rows.loc[[step], "reason"].iloc[0]) for step in rows.index}
    # What is skipped stands behind a step that hands on no network.
    expected = {
        "segfault": ("crashed", "SIGSEGV"),
        "hang": ("timeout", "^killed at its time limit of 3 s$"),
        "raises": ("failed", r"KeyError: 'no such thing' \(trouble_stages\.py:"),
        "exits": (
            "crashed",
            "^its process ended with exit code 7 and without an outcome, as os._exit ends one; "
            "see logs/digits-mlp/gelu/0/exits.log$",
        ),
        "empty": ("failed", ""),
        "declines": ("unsupported", "^not this network$"),
        "rebuilds": ("ok", ""),
        "links": ("failed", r"^ValueError: artefact latest is neither a file nor a folder \(child\.py:\d+\)$"),
        "outside": ("failed", "artefact 'notes' is no file inside bench.folder"),
        "behind-nan": ("skipped", " hands on no network: a metric failed, so its network is not kept"),
        "behind": ("skipped", "cannot be saved"),
    }
    for step, (status, reason) in expected.items():
        assert said[step][0] == status
        assert re.search(reason, said[step][1]), said[step]
    nan = rows.loc["nan"].set_index("metric")
    assert nan.loc["bad", "status"] == "failed"
    assert nan.loc["fine", "value"] == 1.0
    assert rows.loc["accuracy", "value"].notna().any()
    log = workshop.out / "logs/digits-mlp/gelu/0/raises.log"
    assert "Traceback" in log.read_text()

    again = workshop.run(workshop.recipe(steps, HEAD.replace(", gelu-swap", "")))
    ran = [line.split()[1] for line in again.stderr.splitlines() if line.startswith("[")]
    assert sorted(name.rsplit("/", 1)[1] for name in ran) == [
        "behind", "behind-nan", "empty", "exits", "hang", "links", "nan", "nan-network", "outside", "raises",
        "segfault",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_second_run_is_all_from_the_cache_and_says_the_same(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - accuracy\n  - slow\n")
    first = workshop.run(recipe)
    assert first.returncode == 0, first.stderr
    rows = workshop.rows()
    assert "6 jobs: 6 ok, 0 unsupported, 0 failed (0 from the cache)" in first.stdout
    assert "(6 from the cache)" in workshop.run(recipe).stdout
    pd.testing.assert_frame_equal(rows, workshop.rows())
    elsewhere = workshop.call("run", recipe, "--out", workshop.folder / "other", "--progress", "none")
    assert "(6 from the cache)" in elsewhere.stdout
    pd.testing.assert_frame_equal(told(workshop.out), told(workshop.folder / "other"))
    assert (workshop.folder / "other/artefacts/digits-mlp/gelu/0/train/network/module.safetensors").is_file()


@pytest.mark.slow
def test_rows_stand_alone(workshop: Workshop) -> None:
    head = HEAD.replace("[gelu, gelu-swap]", "[gelu, {use: swap-refit, name: refit, scale: true}]")
    recipe = workshop.recipe("  - {use: accuracy, near_zero: 0.5}\n  - declines\n", head)
    assert workshop.run(recipe).returncode == 0
    rows, commit, refit = workshop.rows(), checkout(), {"base": "gelu", "to": "relu", "scale": True}
    for step, options in (("accuracy", {"near_zero": 0.5, "partial_swaps": False}), ("declines", {}), ("train", refit)):
        own = rows[(rows["variant"] == "refit") & (rows["step"] == step)]
        assert own["options"].map(lambda each, told=options: each == told).all()
        assert own["variant_options"].map(lambda each: each == refit).all()
        assert own["workload_options"].str["epochs"].eq(1).all()
        assert own["workload_use"].eq("digits-mlp").all()
        assert own["variant_use"].eq("swap-refit").all()
    assert set(rows["commit"]) == {commit}
    sources = rows.groupby(["variant", "step"])["source"].unique().map(list).to_dict()
    entries = read_journal(workshop.out / "journal.jsonl")
    assert sources == {each: [entries[f"digits-mlp/{each[0]}/0/{each[1]}"].inputs["code"]] for each in sources}
    assert "options" not in (workshop.out / "journal.jsonl").read_text()


@pytest.mark.slow
def test_rows_keep_the_commit_that_measured_them(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - slow\n", HEAD.replace(", gelu-swap", ""))
    workshop.run(recipe)
    # As if an older commit had filled the cache.
    rewrite_outcomes(workshop.cache, lambda text: json.dumps({**json.loads(text), "commit": "older"}))
    shutil.rmtree(workshop.out)
    assert "(2 from the cache)" in workshop.run(recipe).stdout
    assert set(workshop.rows()["commit"]) == {"older"}


def test_the_commit_is_of_the_repository_that_holds_evalsuite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = (tmp_path / "evalsuite" / "run" / name for name in ("record.py", "other.py"))
    file.parent.mkdir(parents=True)
    for each in (file, other):
        each.write_text("")
    monkeypatch.setattr(record, "__file__", str(file))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # As in a hook.
    release = f"release {version('evalsuite')}"
    assert checkout() == release
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "a project with evalsuite in its .venv")
    assert checkout() == release
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "evalsuite itself")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert checkout() == commit
    (tmp_path / "untracked").touch()
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    os.utime(file, (0, 0))  # A file that only looks changed has git write its index anew.
    assert checkout() == commit
    assert index.read_bytes() == before
    file.write_text("changed")
    assert checkout() == f"{commit}-dirty"
    files = [file, other, Path(__file__)]
    assert changed_since(commit, files) == changed_since(f"{commit}-dirty", files) == ["evalsuite/run/record.py"]
    assert changed_since(release, files) == changed_since(commit, [Path(__file__)]) == []


@pytest.mark.slow
def test_artefacts_are_those_of_the_outcome_that_stands(workshop: Workshop) -> None:
    target = workshop.out / "artefacts/digits-mlp/gelu/0/files"
    workshop.run(workshop.recipe("  - files\n"))
    assert [each.name for each in target.iterdir()] == ["a.txt"]
    shutil.rmtree(target)
    assert "(4 from the cache)" in workshop.run(workshop.recipe("  - files\n")).stdout
    assert [each.name for each in target.iterdir()] == ["a.txt"]
    (workshop.out / "run.json").unlink()
    workshop.run(workshop.recipe("  - {use: files, file: b.txt}\n"))
    assert [each.name for each in target.iterdir()] == ["b.txt"]


@pytest.mark.slow
def test_a_cached_outcome_that_cannot_be_read_is_measured_again(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - slow\n")
    workshop.run(recipe)
    rewrite_outcomes(workshop.cache, lambda text: text.replace('"rows"', '"lines"'))
    shutil.rmtree(workshop.out)
    done = workshop.run(recipe)
    assert done.returncode == 0, done.stderr
    assert "(0 from the cache)" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [1, 5])
def test_kill_dash_nine_of_the_whole_tree_and_continue(workshop: Workshop, kill_at: int) -> None:
    recipe = workshop.recipe("  - accuracy\n  - slow\n  - {use: slow, name: slower, seconds: 0.6}\n")
    process = workshop.start("run", recipe, "--out", workshop.out)
    wait_until(lambda: lines(workshop.out / "journal.jsonl") >= kill_at)
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in tree:
        with contextlib.suppress(psutil.NoSuchProcess):  # a child that ended by itself, or with its parent
            each.kill()
    process.communicate()
    psutil.wait_procs(tree, timeout=10)
    finished = lines(workshop.out / "journal.jsonl")
    assert finished < 8
    done = workshop.run(recipe)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("[") for line in done.stderr.splitlines()) <= 8 - kill_at
    fresh = Workshop(workshop.folder / "fresh")
    fresh.folder.mkdir()
    assert fresh.run(recipe).returncode == 0
    pd.testing.assert_frame_equal(told(workshop.out), told(fresh.out))


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - {use: slow, seconds: 1.5}\n")
    process = workshop.start("run", recipe, "--out", workshop.out, "--jobs", 1)
    wait_until(lambda: lines(workshop.out / "journal.jsonl") >= 2)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command continues" in errors
    assert (workshop.rows()["metric"] == "validation_accuracy").any()
    record = json.loads((workshop.out / "run.json").read_text())
    assert record["finished"] == ""
    assert workshop.run(recipe).returncode == 0


@pytest.mark.slow
def test_plan_tells_what_and_why(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - slow\n")
    planned = workshop.call("plan", recipe, "--out", workshop.out)
    assert "run     digits-mlp/gelu/0/train       nothing measured with these inputs" in planned.stdout
    assert "wait    digits-mlp/gelu/0/slow        needs digits-mlp/gelu/0/train" in planned.stdout
    assert not workshop.out.exists()
    workshop.run(recipe)
    assert "4 jobs: 4 cached" in workshop.call("plan", recipe, "--out", workshop.out).stdout
    changed = workshop.recipe("  - {use: slow, seconds: 0.1}\n")
    assert "run     digits-mlp/gelu/0/slow        option seconds 0.3 -> 0.1" in workshop.call(
        "plan", changed, "--out", workshop.out
    ).stdout  # fmt: skip


@pytest.mark.slow
def test_a_hidden_base_is_trained_but_not_shown(workshop: Workshop) -> None:
    head = HEAD.replace("[gelu, gelu-swap]", "[gelu-swap, relu]") + "baseline: relu\n"
    done = workshop.run(workshop.recipe("  - accuracy\n", head))
    assert "5 jobs: 5 ok" in done.stdout
    assert set(workshop.rows()["variant"]) == {"gelu-swap", "relu"}


@pytest.mark.slow
def test_a_changed_network_goes_on_to_the_next_step(workshop: Workshop) -> None:
    steps = "  - {use: prune, fine_tune_epochs: 1}\n  - {use: accuracy, name: pruned, after: prune}\n  - accuracy\n"
    done = workshop.run(workshop.recipe(steps))
    assert done.returncode == 0, done.stderr
    rows = workshop.rows()
    accuracy = rows[(rows["metric"] == "accuracy") & (rows["variant"] == "gelu")].set_index("step")["value"]
    assert accuracy["pruned"] == pytest.approx(accuracy["prune"], abs=1e-9)
    parameters = rows[(rows["metric"] == "parameters") & (rows["variant"] == "gelu")].set_index("step")["value"]
    assert parameters["pruned"] == parameters["prune"] < parameters["accuracy"]


@pytest.mark.slow
def test_a_quantized_file_goes_on_to_the_steps_that_take_one(workshop: Workshop) -> None:
    steps = """
  - {use: prune, fine_tune_epochs: 1}
  - {use: quantize, after: prune}
  - {use: export, after: quantize}
  - {use: accuracy, name: accuracy-quantized, after: quantize}
  - {use: prune, name: prune-quantized, fine_tune_epochs: 1, after: quantize}
"""
    done = workshop.run(workshop.recipe(steps, HEAD.replace("[gelu, gelu-swap]", "[gelu]")))
    assert done.returncode == 0, done.stderr
    rows = workshop.rows()
    refused = rows[rows["step"] == "prune-quantized"]
    assert set(refused["status"]) == {"unsupported"}
    assert set(refused["reason"]) == {"takes torch modules; after 'quantize' the network is an ONNX file"}
    found = rows.set_index(["step", "metric"])["value"]
    assert found["export", "runtime_accuracy"] == found["quantize", "runtime_accuracy"]
    assert found["accuracy-quantized", "accuracy"] == found["quantize", "runtime_accuracy"]
    place = workshop.out / "artefacts" / "digits-mlp" / "gelu" / "0"
    assert (place / "quantize" / "quantized.onnx").read_bytes() == (place / "export" / "model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "missing.yaml"], "missing.yaml:1:1 cannot read the recipe"),
        (["run", "recipe.yaml", "--jobs", "-1"], "--jobs is a number of processes"),
        (["run", "recipe.yaml", "--progress", "loud"], "--progress is one of"),
        (["run", "recipe.yaml", "--endpoint", "float"], "add --until"),
        (["run", "recipe.yaml", "--until", "1%", "--most-seeds", "0"], "--most-seeds is a number of seeds, at least 1"),
        (["run", "recipe.yaml", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
        (["report", "nowhere"], "nowhere/results.parquet: no results here"),
        (["run", "broken.yaml"], "stage 'broken' of trouble 1.0 is broken: AttributeError"),
        (["run", "absent.yaml"], "stage 'absent' of trouble 1.0 is broken: ModuleNotFoundError"),
        (["runn"], "No such command"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(workshop: Workshop, words: list[str], said: str) -> None:
    workshop.recipe("  - slow\n")
    for name in ("broken", "absent"):
        (workshop.folder / f"{name}.yaml").write_text(f"{HEAD}steps: [{name}]\n")
    done = workshop.call(*words)
    assert done.returncode == 2, done
    assert said in done.stderr
    assert "Traceback" not in done.stderr


NO_FILE = "its data cannot be read: /nowhere/digits.csv: No such file or directory; put it there, or name another"


def test_workloads_that_cannot_be_used_are_named_with_the_cure(workshop: Workshop) -> None:
    workloads = "without-version, without-build, thawed, asks"
    done = workshop.run(
        workshop.recipe("  - slow\n  - unversioned\n", HEAD.replace("{use: digits-mlp, epochs: 1}", workloads))
    )
    assert (done.returncode, "Traceback" in done.stderr, workshop.out.exists()) == (2, False, False), done.stderr
    said = [line.partition(": ")[2] for line in done.stderr.splitlines()]
    cure = 'it enters the cache key; its author must write `version: ClassVar[str] = "1"`'
    assert said == [
        f"workload 'without-version' has no `version`: {cure}",
        "workload 'without-build' lacks build; its author must add what evalsuite.Workload names",
        "workload 'thawed' is not frozen; its author must write @dataclass(frozen=True)",
        "workload 'asks' cannot be made: SystemExit: no",
        f"stage 'unversioned' has the `version` 1, which is no text: {cure}",
    ]


@pytest.mark.parametrize("word", ["run", "plan"])
def test_a_missing_data_file_is_said_before_anything_runs(workshop: Workshop, word: str) -> None:
    recipe = workshop.recipe("  - slow\n", HEAD.replace("epochs: 1}", "epochs: 1}, from-file"))
    done = workshop.call(word, recipe, "--out", workshop.out)
    assert (done.returncode, workshop.out.exists()) == (2, False), done
    assert done.stderr == f"evalsuite: workload 'from-file': {NO_FILE} place in the workload's options\n"


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--serial",)])
def test_a_stage_that_calls_sys_exit_costs_only_its_own_row(workshop: Workshop, words: tuple[str, ...]) -> None:
    recipe = workshop.recipe("  - leaves\n  - slow\n", HEAD.replace(", gelu-swap", ""))
    done = workshop.run(recipe, *words)
    assert done.returncode == 1, done.stderr
    rows = workshop.rows().set_index("step")
    assert rows.loc["leaves", "status"] == "failed"
    assert rows.loc["leaves", "reason"].startswith(
        "sys.exit(28) was called; raise an error instead, or Unsupported with the reason (trouble_stages.py:"
    )
    assert set(rows.loc["slow", "status"]) == {"ok"}


@pytest.mark.slow
def test_what_cannot_be_trained_for_good_fails_before_its_training(workshop: Workshop) -> None:
    head = HEAD.replace("{use: digits-mlp, epochs: 1}", "overlapping, unsavable, {use: from-file, when: data}")
    done = workshop.run(workshop.recipe("  - slow\n", head.replace(", gelu-swap", "")))
    assert done.returncode == 1, done.stderr
    rows = workshop.rows()
    rows = rows[rows["step"] == "train"].set_index("workload")
    assert set(rows["status"]) == {"failed"}
    assert "ValueError: the parts train and test share 1047 of 1047 samples: what" in rows.loc["overlapping", "reason"]
    assert rows.loc["unsavable", "reason"].startswith(
        "ValueError: what Unsavable.build makes cannot be saved, so it is not trained: untrained: the saved module "
        "computes something else"
    )
    assert f"DataError: the {NO_FILE[4:]}" in rows.loc["from-file", "reason"]


@pytest.mark.slow
def test_unusable_folders_are_named(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - slow\n")
    (workshop.folder / "file").write_text("")
    for name in ("journal.jsonl", "run.json", "results.parquet"):
        (workshop.folder / name / name).mkdir(parents=True)
        done = workshop.call("run", recipe, "--out", workshop.folder / name, "--progress", "none")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert name in done.stderr
    done = workshop.run(recipe, "--cache", workshop.folder / "file")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "file" in done.stderr
    assert workshop.call("doctor", "--cache", workshop.folder / "file").returncode == 1


@pytest.mark.slow
def test_two_runs_in_one_folder_at_a_time_are_refused(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - {use: slow, seconds: 30}\n")
    process = workshop.start("run", recipe, "--out", workshop.out)
    wait_until(lambda: lines(workshop.out / "journal.jsonl") >= 1)
    done = workshop.run(recipe)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert done.returncode == 2
    assert "another process is running" in done.stderr


@pytest.mark.slow
def test_a_full_disk_is_said_and_the_next_run_continues(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - slow\n  - accuracy\n")
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
        "from evalsuite.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "run", str(recipe), "--out", str(workshop.out)],
        env=workshop.environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2, done
    assert "make room and run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    assert workshop.run(recipe).returncode == 0


def test_an_interrupt_while_the_command_line_is_loaded_says_nothing(tmp_path: Path) -> None:
    # In the place of the first library that it loads.
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", encoding="utf-8")
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from evalsuite.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "stages"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_stages_lists_origins_and_shows_the_broken_one_as_broken(workshop: Workshop) -> None:
    listed = workshop.call("stages")
    assert listed.returncode == 0
    by_name = {line.split()[0]: line for line in listed.stdout.splitlines()}
    assert by_name["accuracy"].split()[1] == "evalsuite"
    assert "trouble 1.0" in by_name["slow"]
    assert "broken: AttributeError" in by_name["broken"]
    assert "broken: ModuleNotFoundError" in by_name["absent"]


@pytest.mark.slow
def test_what_a_third_party_brings_is_installed_and_runs_in_a_recipe(workshop: Workshop, demo_site: Path) -> None:
    workshop.path = demo_site
    head = HEAD.replace("digits-mlp", "breast-cancer-mlp").replace("gelu-swap", "squareplus, squareplus-swap")
    steps = "  - {use: input-noise, sigma: 0.0}\n  - {use: input-noise, name: loud}\n"
    done = workshop.run(workshop.recipe(steps, head), "--serial")
    assert done.returncode == 0, done.stderr
    rows = workshop.rows()
    assert set(rows["workload"]) == {"breast-cancer-mlp"}
    assert rows["status"].eq("ok").mean() > 0.5
    loud = rows[rows["step"] == "loud"]
    assert set(loud["variant"]) == {"gelu", "squareplus", "squareplus-swap"}
    assert loud["setting"].unique().tolist() == ["sigma=0.1"]
    trained = workshop.out / "artefacts" / "breast-cancer-mlp"
    for variant, activation in (("squareplus", "squareplus"), ("squareplus-swap", "relu")):
        network = json.loads((trained / variant / "0" / "train" / "network" / "network.json").read_text())
        assert network["module"]["activation"] == activation


def test_options_are_listed_by_name(workshop: Workshop) -> None:
    assert "  seconds: float = 0.3" in workshop.call("stages", "slow").stdout.splitlines()
    assert "  epochs: int = 40" in workshop.call("workloads", "digits-mlp").stdout.splitlines()
    told = workshop.call("variants", "annealed").stdout.splitlines()
    assert told[told.index("  start: float = 0.25") + 1] == "      the share of training after which hardening begins."
    told = workshop.call("stages", "smt").stdout.splitlines()
    at = next(index for index, line in enumerate(told) if line.startswith("  method: "))
    assert told[at + 1].startswith('      "search", certified branch and bound;')
    assert told[at + 2].startswith("      ")
    assert all(len(line) <= 110 for line in told)
    wrong = workshop.call("variants", "aneald")
    assert (wrong.returncode, "did you mean 'annealed'?" in wrong.stderr) == (2, True)


@pytest.mark.slow
def test_doctor_names_what_is_broken_and_the_cure(workshop: Workshop) -> None:
    examined = workshop.call("doctor")
    assert examined.returncode == 1
    assert "MISSING  stage broken" in examined.stdout
    assert "cure: reinstall or remove trouble" in examined.stdout
    healthy = subprocess.run([*COMMAND, "doctor"], capture_output=True, text=True, check=False)
    assert healthy.returncode == 0, healthy.stdout
    assert "torch " in healthy.stdout


@pytest.mark.slow
def test_progress_as_json_is_one_object_a_job(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - slow\n")
    done = workshop.call("run", recipe, "--out", workshop.out, "--progress", "json")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["done"] for event in events] == [1, 2, 3, 4]
    assert events[-1]["total"] == 4
    assert events[-1]["eta_s"] == 0


@pytest.mark.slow
def test_a_variant_that_does_not_apply_is_unsupported_with_all_its_steps_and_fails_nothing(workshop) -> None:
    head = HEAD.replace("[gelu, gelu-swap]", "[gelu, swap-recalibrated]")
    done = workshop.run(workshop.recipe("  - accuracy\n", head))
    assert done.returncode == 0, done.stderr
    assert "4 jobs: 2 ok, 2 unsupported, 0 failed" in done.stdout
    rows = workshop.rows()
    mine = rows[rows["variant"] == "swap-recalibrated"].set_index("step")
    assert list(mine["status"]) == ["unsupported", "unsupported"]
    assert mine.loc["train", "reason"] == "the network has no BatchNorm to recalibrate"
    assert "no BatchNorm" in mine.loc["accuracy", "reason"]

"""Whole runs through the command line, with stages that behave and stages that do not.

The jobs run in processes of their own; the command line does where the test is about its process,
as when it is killed.
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
from workshop import HEAD, ONE, TROUBLE, Workshop, call, git, lines, wait_until

from benchmarks.chaos import told
from evalsuite.plugins import load
from evalsuite.run import record
from evalsuite.run.journal import read_journal
from evalsuite.run.local import Processes
from evalsuite.run.record import changed_since, checkout


@pytest.fixture(autouse=True, scope="module")
def _server() -> None:
    """The process that jobs are forked from serves all runs of this process: it loads at once
    what they take.
    """
    stages = [load("stages", name).target for name in ("accuracy", "export", "prune", "quantize")]
    Processes(1, [each.__module__ for each in stages], jobs=20)
    forkserver.ensure_running()


def rewrite_outcomes(cache: Path, change: Callable[[str], str]) -> None:
    """Write other outcomes in the place of those in the cache, which says that they are whole."""
    for manifest in cache.rglob("manifest.json"):
        outcome = manifest.parent / "outcome.json"
        outcome.write_text(change(outcome.read_text()))
        digests = {
            **json.loads(manifest.read_text()),
            "outcome.json": hashlib.sha256(outcome.read_bytes()).hexdigest(),
        }
        manifest.write_text(json.dumps(digests))


# The status of each step, and what its reason says. What is skipped stands behind a step that hands
# on no network.
EXPECTED = {
    "segfault": ("crashed", "SIGSEGV"),
    "nan-network": ("failed", ""),
    "raises": ("failed", r"^KeyError: 'no such thing' \(trouble_stages\.py:"),
    "exits": (
        "crashed",
        (
            "^its process ended with exit code 28 and without an outcome, as os._exit ends one; "
            "see logs/digits-mlp/gelu/0/exits.log$"
        ),
    ),
    "leaves": (
        "failed",
        (
            r"^sys.exit\(28\) was called; raise an error instead, or Unsupported with the reason"
            r" \(trouble_stages.py:"
        ),
    ),
    "empty": ("failed", ""),
    "declines": ("unsupported", "^not this network$"),
    "rebuilds": ("ok", ""),
    "links": (
        "failed",
        r"^ValueError: artefact latest is neither a file nor a folder \(child\.py:\d+\)$",
    ),
    "outside": ("failed", "artefact 'notes' is no file inside bench.folder"),
    "full-elsewhere": ("failed", r"^OSError: \[Errno 28\] No space left on device \("),
    "huge-sample": ("failed", rf"sample of metric 'fine' must be in \[0, 2\^63\), got {2**70} \("),
    "half-a-character": ("unavailable", r"^caf\?\.txt$"),
    "paints": ("failed", "gone"),
    "clocks-unsaid": ("failed", r"it must say so, by capabilities = Capabilities\(timed=True\)"),
    "hang": ("timeout", "^killed at its time limit of 3 s$"),
    "behind-nan": ("skipped", " hands on no network: a metric failed, so its network is not kept"),
    "behind": ("skipped", "cannot be saved"),
    "accuracy": ("ok", ""),
}
AFTER = {
    "exits": "{use: exits, code: 28}",  # by which a job says that the disk is full
    "behind-nan": "{use: slow, name: behind-nan, after: nan-network}",
    "hang": "{use: hang, time_limit: 3}",
    "clocks-unsaid": "{use: clocks-unsaid, file: /dev/null}",
    "behind": "{use: slow, name: behind, after: rebuilds}",
}


@pytest.mark.slow
def test_misbehaving_stages_cost_only_their_own_rows(workshop: Workshop) -> None:
    steps = "".join(f"  - {AFTER.get(name, name)}\n" for name in [*EXPECTED, "nan"])
    done = workshop.run(workshop.recipe(steps, ONE))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert ("\\x1b[2Jgone" in done.stderr, "\x1b" in done.stderr) == (True, False)
    total, *kinds = map(
        int, re.findall(r"(\d+) (?:jobs|ok|unsupported|failed|skipped)", done.stdout)
    )
    assert (len(kinds), sum(kinds)) == (4, total), done.stdout
    rows = workshop.rows().set_index("step")
    for step, (status, reason) in EXPECTED.items():
        told = rows.loc[[step], ["status", "reason"]].iloc[0].tolist()
        assert told[0] == status, (step, told)
        assert re.search(reason, told[1]), (step, told)
    nan = rows.loc["nan"].set_index("metric")
    assert (nan.loc["bad", "status"], nan.loc["fine", "value"]) == ("failed", 1.0)
    assert rows.loc["accuracy", "value"].notna().any()
    assert "Traceback" in (workshop.out / "logs/digits-mlp/gelu/0/raises.log").read_text()

    again = workshop.run(workshop.recipe(steps, ONE))
    ran = {
        line.split()[1].rpartition("/")[2]
        for line in again.stderr.splitlines()
        if line.startswith("[")
    }
    assert ran == {
        step for step, (status, _) in EXPECTED.items() if status not in ("ok", "unsupported")
    } - {"half-a-character"} | {"nan"}


@pytest.mark.slow
def test_a_second_run_is_all_from_the_cache_and_says_the_same(workshop: Workshop) -> None:
    recipe, other = workshop.recipe("  - files\n"), workshop.folder / "other"
    words = (recipe, "--out", workshop.out)
    planned = workshop.call("plan", *words).stdout
    assert "run     digits-mlp/gelu/0/train       nothing measured with these inputs" in planned
    assert "wait    digits-mlp/gelu/0/files       needs digits-mlp/gelu/0/train" in planned
    assert not workshop.out.exists()
    first = workshop.call("run", *words, "--progress", "json")
    assert first.returncode == 0, first.stderr
    events = [json.loads(line) for line in first.stderr.splitlines()]
    assert [(event["done"], event["total"]) for event in events] == [
        (done, 4) for done in (1, 2, 3, 4)
    ]
    assert events[-1]["eta_s"] == 0
    rows = workshop.rows()
    assert "4 jobs: 4 ok, 0 unsupported, 0 failed (0 from the cache)" in first.stdout
    assert "4 jobs: 4 cached" in workshop.call("plan", *words).stdout
    target = workshop.out / "artefacts/digits-mlp/gelu/0/files"
    shutil.rmtree(target)
    assert "(4 from the cache)" in workshop.run(recipe).stdout
    assert [each.name for each in target.iterdir()] == ["a.txt"]
    pd.testing.assert_frame_equal(rows, workshop.rows())
    elsewhere = workshop.call("run", recipe, "--out", other, "--progress", "none")
    assert "(4 from the cache)" in elsewhere.stdout
    pd.testing.assert_frame_equal(told(workshop.out), told(other))
    assert (other / "artefacts/digits-mlp/gelu/0/train/network/module.safetensors").is_file()
    changed = workshop.recipe("  - {use: files, file: b.txt}\n")
    planned = workshop.call("plan", changed, "--out", workshop.out).stdout
    assert "run     digits-mlp/gelu/0/files       option file 'a.txt' -> 'b.txt'" in planned
    (workshop.out / "run.json").unlink()
    workshop.run(changed)
    assert [each.name for each in target.iterdir()] == ["b.txt"]


@pytest.mark.slow
def test_rows_stand_alone_also_those_of_a_variant_that_does_not_apply(workshop: Workshop) -> None:
    variants = "[relu, gelu-swap, swap-recalibrated, {use: swap-refit, name: refit, scale: true}]"
    head = HEAD.replace("[gelu, gelu-swap]", variants) + "baseline: relu\n"
    done = workshop.run(
        workshop.recipe("  - {use: accuracy, near_zero: 0.5}\n  - declines\n", head)
    )
    assert done.returncode == 0, done.stderr
    # with the training of gelu, which is not shown
    assert "13 jobs: 7 ok, 6 unsupported, 0 failed" in done.stdout
    rows, commit, refit = workshop.rows(), checkout(), {"base": "gelu", "to": "relu", "scale": True}
    assert set(rows["variant"]) == {"relu", "gelu-swap", "swap-recalibrated", "refit"}
    for step, options in (
        ("accuracy", {"near_zero": 0.5, "partial_swaps": False}),
        ("declines", {}),
        ("train", refit),
    ):
        own = rows[(rows["variant"] == "refit") & (rows["step"] == step)]
        assert own["options"].map(lambda each, told=options: each == told).all()
        assert own["variant_options"].map(lambda each: each == refit).all()
        assert own["workload_options"].str["epochs"].eq(1).all()
        assert own["workload_use"].eq("digits-mlp").all()
        assert own["variant_use"].eq("swap-refit").all()
    ran = rows[rows["variant"] != "swap-recalibrated"]
    assert set(ran["commit"]) == {commit}
    sources = ran.groupby(["variant", "step"])["source"].unique().map(list).to_dict()
    entries = read_journal(workshop.out / "journal.jsonl")
    assert sources == {
        each: [entries[f"digits-mlp/{each[0]}/0/{each[1]}"].inputs["code"]] for each in sources
    }
    assert "options" not in (workshop.out / "journal.jsonl").read_text()
    mine = rows[rows["variant"] == "swap-recalibrated"].set_index("step")
    assert list(mine["status"]) == ["unsupported"] * 3
    assert mine.loc["train", "reason"] == "the network has no BatchNorm to recalibrate"
    assert "no BatchNorm" in mine.loc["accuracy", "reason"]


def test_the_commit_is_of_the_repository_that_holds_evalsuite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (
        changed_since(commit, files)
        == changed_since(f"{commit}-dirty", files)
        == ["evalsuite/run/record.py"]
    )
    assert changed_since(release, files) == changed_since(commit, [Path(__file__)]) == []


def test_a_git_that_is_killed_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a checkout told of a release, since a signal had ended git."""
    commit, git = checkout(), shutil.which("git")
    if commit.startswith("release"):
        pytest.skip("evalsuite is not imported from a checkout")
    killed = tmp_path / "git"
    killed.write_text(
        f'#!/bin/sh\n[ -e {tmp_path}/once ] && exec {git} "$@"\n: > {tmp_path}/once\nkill -9 $$\n'
    )
    killed.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert checkout() == commit
    assert (tmp_path / "once").exists()


@pytest.mark.slow
def test_cached_rows_keep_the_commit_that_measured_them_and_unreadable_ones_are_measured_again(
    workshop: Workshop,
) -> None:
    recipe = workshop.recipe("  - slow\n", ONE)
    workshop.run(recipe)
    # As if an older commit had filled the cache.
    rewrite_outcomes(
        workshop.cache, lambda text: json.dumps({**json.loads(text), "commit": "older"})
    )
    shutil.rmtree(workshop.out)
    assert "(2 from the cache)" in workshop.run(recipe).stdout
    assert set(workshop.rows()["commit"]) == {"older"}
    rewrite_outcomes(workshop.cache, lambda text: text.replace('"rows"', '"lines"'))
    shutil.rmtree(workshop.out)
    done = workshop.run(recipe)
    assert done.returncode == 0, done.stderr
    assert "(0 from the cache)" in done.stdout


@pytest.mark.slow
def test_kill_dash_nine_of_the_whole_tree_and_continue(workshop: Workshop) -> None:
    recipe = workshop.recipe(
        "  - accuracy\n  - slow\n  - {use: slow, name: slower, seconds: 0.6}\n", ONE
    )
    process = workshop.start("run", recipe, "--out", workshop.out)
    wait_until(lambda: lines(workshop.out / "journal.jsonl") >= 1)
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in tree:
        # a child that ended by itself, or with its parent
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.communicate()
    psutil.wait_procs(tree, timeout=10)
    finished = lines(workshop.out / "journal.jsonl")
    assert finished < 4
    done = workshop.run(recipe)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("[") for line in done.stderr.splitlines()) <= 4 - 1
    fresh = Workshop(workshop.folder / "fresh")
    fresh.folder.mkdir()
    assert fresh.run(recipe).returncode == 0
    pd.testing.assert_frame_equal(told(workshop.out), told(fresh.out))


@pytest.mark.slow
def test_a_changed_network_and_a_quantized_file_go_on_to_the_next_steps(workshop: Workshop) -> None:
    steps = """
  - accuracy
  - {use: prune, fine_tune_epochs: 1}
  - {use: accuracy, name: pruned, after: prune}
  - {use: quantize, after: prune}
  - {use: export, after: quantize}
  - {use: accuracy, name: accuracy-quantized, after: quantize}
  - {use: prune, name: prune-quantized, fine_tune_epochs: 1, after: quantize}
"""
    done = workshop.run(workshop.recipe(steps, ONE))
    assert done.returncode == 0, done.stderr
    rows = workshop.rows()
    refused = rows[rows["step"] == "prune-quantized"]
    assert set(refused["status"]) == {"unsupported"}
    assert set(refused["reason"]) == {
        "takes torch modules; after 'quantize' the network is an ONNX file"
    }
    found = rows.set_index(["step", "metric"])["value"]
    assert found["pruned", "accuracy"] == pytest.approx(found["prune", "accuracy"], abs=1e-9)
    assert (
        found["pruned", "parameters"]
        == found["prune", "parameters"]
        < found["accuracy", "parameters"]
    )
    assert found["export", "runtime_accuracy"] == found["quantize", "runtime_accuracy"]
    assert found["accuracy-quantized", "accuracy"] == found["quantize", "runtime_accuracy"]
    place = workshop.out / "artefacts" / "digits-mlp" / "gelu" / "0"
    assert (place / "quantize" / "quantized.onnx").read_bytes() == (
        place / "export" / "model.onnx"
    ).read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "missing.yaml"], "missing.yaml:1:1 cannot read the recipe"),
        (["run", "recipe.yaml", "--jobs", "-1"], "--jobs is a number of processes"),
        (["run", "recipe.yaml", "--progress", "loud"], "--progress is one of"),
        (["run", "recipe.yaml", "--endpoint", "float"], "add --until"),
        (
            ["run", "recipe.yaml", "--until", "1%", "--most-seeds", "0"],
            "--most-seeds is a number of seeds, at least 1",
        ),
        (["run", "recipe.yaml", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
        (["report", "nowhere"], "nowhere/results.parquet: no results here"),
        (["run", "broken.yaml"], "stage 'broken' of trouble 1.0 is broken: AttributeError"),
        (["run", "absent.yaml"], "stage 'absent' of trouble 1.0 is broken: ModuleNotFoundError"),
        (["runn"], "No such command"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(
    workshop: Workshop, words: list[str], said: str
) -> None:
    workshop.recipe("  - slow\n")
    for name in ("broken", "absent"):
        (workshop.folder / f"{name}.yaml").write_text(f"{HEAD}steps: [{name}]\n")
    done = workshop.call(*words)
    assert done.returncode == 2, done
    assert said in done.stderr
    assert "Traceback" not in done.stderr


NO_FILE = (
    "its data cannot be read: /nowhere/digits.csv: No such file or directory; put it there, or name"
    " another"
)


def test_workloads_that_cannot_be_used_are_named_with_the_cure(workshop: Workshop) -> None:
    workloads = "without-version, without-build, thawed, asks"
    done = workshop.run(
        workshop.recipe(
            "  - slow\n  - unversioned\n", HEAD.replace("{use: digits-mlp, epochs: 1}", workloads)
        )
    )
    assert (done.returncode, "Traceback" in done.stderr, workshop.out.exists()) == (
        2,
        False,
        False,
    ), done.stderr
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
    assert (
        done.stderr
        == f"evalsuite: workload 'from-file': {NO_FILE} place in the workload's options\n"
    )


@pytest.mark.slow
def test_a_stage_that_calls_sys_exit_costs_only_its_own_row_in_the_drivers_process_too(
    workshop: Workshop,
) -> None:
    done = workshop.run(workshop.recipe("  - leaves\n  - slow\n", ONE), "--serial")
    assert done.returncode == 1, done.stderr
    rows = workshop.rows().set_index("step")
    assert re.search(EXPECTED["leaves"][1], rows.loc["leaves", "reason"])
    assert set(rows.loc["slow", "status"]) == {"ok"}


@pytest.mark.slow
def test_what_cannot_be_trained_for_good_fails_before_its_training(workshop: Workshop) -> None:
    head = HEAD.replace(
        "{use: digits-mlp, epochs: 1}", "overlapping, unsavable, {use: from-file, when: data}"
    )
    done = workshop.run(workshop.recipe("  - slow\n", head.replace(", gelu-swap", "")))
    assert done.returncode == 1, done.stderr
    rows = workshop.rows()
    rows = rows[rows["step"] == "train"].set_index("workload")
    assert set(rows["status"]) == {"failed"}
    assert (
        "ValueError: the parts train and test share 1047 of 1047 samples: what"
        in rows.loc["overlapping", "reason"]
    )
    assert rows.loc["unsavable", "reason"].startswith(
        "ValueError: what Unsavable.build makes cannot be saved, so it is not trained: untrained:"
        " the saved module computes something else"
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
def test_a_full_disk_is_said_and_the_next_run_continues(workshop: Workshop) -> None:
    recipe = workshop.recipe("  - slow\n  - accuracy\n", ONE)
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
        "from evalsuite.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "run", str(recipe), "--out", str(workshop.out)],
        env=workshop.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 2, done
    assert "make room and run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    assert workshop.run(recipe).returncode == 0


def test_an_interrupt_while_the_command_line_is_loaded_says_nothing(tmp_path: Path) -> None:
    # In the place of the first library that it loads.
    (tmp_path / "typer.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", encoding="utf-8"
    )
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from evalsuite.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "stages"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
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
def test_what_a_third_party_brings_is_installed_and_runs_in_a_recipe(
    workshop: Workshop, demo_site: Path
) -> None:
    workshop.path = demo_site
    head = HEAD.replace("digits-mlp", "breast-cancer-mlp").replace(
        "gelu-swap", "squareplus, squareplus-swap"
    )
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
        network = json.loads(
            (trained / variant / "0" / "train" / "network" / "network.json").read_text()
        )
        assert network["module"]["activation"] == activation


def test_options_are_listed_by_name(workshop: Workshop) -> None:
    assert "  seconds: float = 0.3" in workshop.call("stages", "slow").stdout.splitlines()
    assert "  epochs: int = 40" in workshop.call("workloads", "digits-mlp").stdout.splitlines()
    told = workshop.call("variants", "annealed").stdout.splitlines()
    assert (
        told[told.index("  start: float = 0.25") + 1]
        == "      the share of training after which hardening begins."
    )
    told = workshop.call("stages", "smt").stdout.splitlines()
    at = next(index for index, line in enumerate(told) if line.startswith("  method: "))
    assert told[at + 1].startswith('      "search", certified branch and bound;')
    assert told[at + 2].startswith("      ")
    assert all(len(line) <= 110 for line in told)
    wrong = workshop.call("variants", "aneald")
    assert (wrong.returncode, "did you mean 'annealed'?" in wrong.stderr) == (2, True)


@pytest.mark.slow
def test_doctor_names_what_is_broken_and_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = call("doctor", "--all")
    assert healthy.exit_code == 0, healthy.stdout
    assert "torch " in healthy.stdout
    assert re.search(r"is well \(\d+ checks\)$", healthy.stdout.strip())
    assert "torch " not in call("doctor").stdout
    monkeypatch.syspath_prepend(TROUBLE)
    examined = call("doctor")
    assert examined.exit_code == 1
    assert "MISSING  stage broken" in examined.stdout
    assert "cure: reinstall or remove trouble" in examined.stdout

"""A library that is missing costs its own stage a row, with a cure that works, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from workshop import ONE, Workshop, call

from evalsuite import doctor, plugins
from evalsuite.doctor import Check, examine
from evalsuite.plugins import cure_of, missing
from evalsuite.workloads import pydoc


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a distribution look uninstalled to this process and to the jobs that are forked from
    it.
    """

    def take_away(name: str) -> None:
        def version(library: str) -> str:
            if library.lower() == name.lower():
                raise metadata.PackageNotFoundError(library)
            return metadata.version(library)

        for module in (plugins, doctor):
            monkeypatch.setattr(module, "version", version)

    return take_away


def test_the_cure_is_one_that_pip_can_resolve(without: Callable[[str], None]) -> None:
    assert missing(("torch", "numpy")) == ""
    assert cure_of("auto_LiRPA") == cure_of("auto-LiRPA") == "pip install --no-deps auto-LiRPA==0.3"
    without("auto-LiRPA")
    told = missing(("torch", "auto-LiRPA", "no-such-thing"))
    assert (
        told == "auto-LiRPA is not installed: pip install --no-deps auto-LiRPA==0.3; "
        'no-such-thing is not installed: pip install "no-such-thing"'
    )


def test_a_stage_without_its_library_is_a_row_and_the_others_are_measured(
    workshop: Workshop,
) -> None:
    """The recipe was refused as a whole, with a cure that pip could not resolve."""
    done = workshop.run(
        workshop.recipe("  - accuracy\n  - lacks-library\n", ONE), "--executor", "serial"
    )
    assert done.returncode == 0, done.stderr
    rows = workshop.rows().set_index("step")
    assert rows.loc["accuracy", "status"].isin(["ok", "unavailable"]).all()
    lacking = rows.loc[["lacks-library"]].iloc[0]
    assert lacking["status"] == "unsupported"
    assert (
        lacking["reason"]
        == "stage 'lacks-library' is left out: no-such-library is not installed: pip install"
        ' "no-such-library"'
    )


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_the_doctor_tells_what_is_optional_from_what_is_needed(
    without: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_: int) -> None:
        raise ImportError("No module named 'tokenizers'")  # it ended in a traceback

    monkeypatch.setattr(pydoc, "tokenizer", nothing)
    without("auto-LiRPA")
    done = call("doctor", "--all")
    assert done.exit_code == 0
    assert (
        "absent   auto-LiRPA             not installed (without it alpha-CROWN is left out)"
        in done.stdout
    )
    assert "cure: pip install --no-deps auto-LiRPA==0.3" in done.stdout
    without("numpy")
    done = call("doctor")
    assert done.exit_code == 1
    assert "MISSING  numpy                  not installed" in done.stdout
    assert "all else is well (" in done.stdout


@pytest.mark.parametrize(
    "extra",
    ["duckdb", "transformers", "distributed", "submitit", "numba", "lightning", "openvino"],
)
def test_the_doctor_looks_at_extras(extra: str, without: Callable[[str], None]) -> None:
    without(extra)
    check = by_name(list(doctor._extras()))[extra]
    assert (check.word, check.optional) == ("absent", True)
    assert check.cure.startswith(f'pip install "{extra}')
    assert "extra " in check.finding


def test_every_check_of_this_environment_has_a_word(tmp_path: Path) -> None:
    assert {check.word for check in examine(tmp_path)} <= {"ok", "absent", "MISSING"}

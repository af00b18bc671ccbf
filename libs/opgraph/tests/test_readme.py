"""The code of the README, and the public names."""

from __future__ import annotations

import subprocess
import sys

from library_checks import check_public_names, scope_of_readme

import opgraph


def test_the_readmes_code_reads_a_network_and_runs_its_graph() -> None:
    scope = scope_of_readme(__file__)
    assert scope["kinds"] == ["Input", "Linear", "Pointwise", "Linear"]
    assert scope["output"].shape == (3, 2)


def test_public_names_load_and_are_declared() -> None:
    check_public_names(opgraph)


def test_the_package_and_its_errors_load_without_torch() -> None:
    code = "import sys, opgraph.errors; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"

"""The code of the README, and the public names."""

from __future__ import annotations

import subprocess
import sys

from library_checks import check_public_names, scope_of_readme

import netverify


def test_the_readmes_lines_enclose_the_activation() -> None:
    scope = scope_of_readme(__file__)
    lines, gelu = scope["lines"], scope["GELU"].value
    for end in (scope["lower"].double(), scope["upper"].double()):
        value = gelu(end)
        # The lines are float32 numbers that are sound as they stand: evaluated in float64.
        assert (lines.lower_slope * end + lines.lower_intercept <= value).all()
        assert (value <= lines.upper_slope * end + lines.upper_intercept).all()
        assert (scope["least"] <= value).all()
        assert (value <= scope["most"]).all()


def test_public_names_load_and_are_declared() -> None:
    check_public_names(netverify)


def test_the_package_and_its_properties_load_without_torch() -> None:
    code = "import sys, netverify.properties; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"

"""The code of the README, and the public names."""

from __future__ import annotations

from library_checks import check_public_names, scope_of_readme

import lambda_gelu


def test_the_readmes_code_ends_with_a_network_of_relu() -> None:
    network = scope_of_readme(__file__)["relu_network"]
    assert [use.traits.name for use in lambda_gelu.census(network)] == ["relu"]


def test_public_names_load_and_are_declared() -> None:
    check_public_names(lambda_gelu)

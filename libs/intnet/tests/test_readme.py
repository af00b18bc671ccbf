"""The code of the README, and the public names."""

from __future__ import annotations

from library_checks import check_public_names, scope_of_readme

import intnet


def test_the_readmes_network_computes_what_its_comment_says() -> None:
    assert scope_of_readme(__file__)["logits"].tolist() == [[8]]


def test_public_names_load_and_are_declared() -> None:
    check_public_names(intnet)

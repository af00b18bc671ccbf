"""Variants: how the activation is treated, one file each. Same initial weights, data order and
budget for one seed.

They are found by entry point; besides, the name of any registered activation is the variant trained
with it. Importing this package imports no heavy library.
"""

from __future__ import annotations

from evalsuite.plugins import Plugin, PluginError, did_you_mean, entries, load
from evalsuite.variants.trained import Trained
from evalsuite.variants.variant import Made, Setup, Variant

__all__ = ["Made", "Setup", "Trained", "Variant", "load_variant", "standing", "variant_names"]


def variant_names() -> list[str]:
    """Every name that a recipe may use: the registered variants' first, then the activations'."""
    registered = [entry.name for entry in entries("variants")]
    return registered + [
        entry.name for entry in entries("activations") if entry.name not in registered
    ]


def load_variant(name: str) -> Plugin:
    """The variant that is registered under `name`; for the name of an activation, `Trained`. Raises
    PluginError: there is neither, the plugin is broken, or two distributions claim the name.
    """
    registered, activations = (
        {entry.name for entry in entries(group)} for group in ("variants", "activations")
    )
    if name in registered:
        return load("variants", name)
    if name in activations:
        return load("variants", "trained")
    raise PluginError(f"unknown variant {name!r}{did_you_mean(name, variant_names())}")


def options_for(name: str) -> dict[str, str]:
    """Return what the name itself sets: the activation, where it is the name of one and no
    registered variant's.
    """
    return {} if name in {entry.name for entry in entries("variants")} else {"activation": name}


def standing(name: str) -> Variant:
    """The variant of that name with its options as they come. Raises PluginError: see
    `load_variant`.
    """
    variant: Variant = load_variant(name).target(**options_for(name))
    return variant

"""A network as it was brought: nothing is trained, nothing is treated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Unsupported
from evalsuite.variants.variant import Made, Setup

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Given:
    """The workload's own model as it is, or an ONNX file in its place.

    What it executes is not checked: an ONNX file has no modules.

    Args:
        file: an ONNX file for the same inputs and outputs; "" for the model of the workload `own`.
    """

    version: ClassVar[str] = "1"
    base: ClassVar[str] = ""
    executes: ClassVar[str] = ""
    file: str = ""

    def make(self, setup: Setup, base: nn.Module | None) -> Made:
        """See `Variant`. Raises Unsupported where neither the workload nor `file` brings a
        model.
        """
        if self.file:
            from opgraph.onnx_network import OnnxNetwork

            output = getattr(setup.workload, "output", "")
            return Made(OnnxNetwork(Path(self.file), output or None), budget=0.0)
        make_given = getattr(setup.workload, "given", None)
        if make_given is None:
            raise Unsupported(
                "the workload brings no model of its own; name an ONNX file by `file`"
            )
        return Made(make_given().eval(), budget=0.0)

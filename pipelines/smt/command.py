"""The command `evalsuite smt`: an exact verdict on a VNN-LIB property of a ReLU network, and a proof where it holds."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer


def smt(
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="The network: .onnx, a chain of affine layers and Relu.")],
    vnnlib: Annotated[Path, typer.Option(metavar="FILE", help="The property: .vnnlib or .vnnlib.gz.")],
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds.")] = 60.0,
    proof: Annotated[Path | None, typer.Option(metavar="JSON", help="Where the proof of an unsat goes.")] = None,
) -> None:
    """Decide a VNN-LIB property by exact branch and bound: sat with a witness, unsat with a proof, or unknown."""
    if not 0 < timeout < math.inf:
        _stop(f"--timeout is a number of seconds > 0, got {timeout:g}")
    from evalsuite import Unsupported
    from pipelines.smt.querying import answer

    try:
        found = answer(onnx, vnnlib, timeout)
        written = "" if proof is None else found.write(proof)
    except (Unsupported, ValueError) as error:
        print("error")
        _stop(str(error))
    except OSError as error:
        print("error")
        _stop(f"{error.filename}: {error.strerror}; name files that can be read, and written")
    print(found.lines())
    print(f"{found.reason}; {found.nodes} nodes; {found.seconds:.2f} s", file=sys.stderr)
    if written:
        print(written, file=sys.stderr)


def _stop(message: str) -> NoReturn:
    print(f"evalsuite: {message}", file=sys.stderr)
    raise typer.Exit(2)

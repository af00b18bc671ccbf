"""The command `evalsuite smt`: an exact verdict on a VNN-LIB property of a network, and a proof where it holds."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer


def smt(
    onnx: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The network: .onnx, affine layers and activations, or of integers."),
    ],
    vnnlib: Annotated[Path, typer.Option(metavar="FILE", help="The property: .vnnlib or .vnnlib.gz.")],
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds.")] = 60.0,
    proof: Annotated[Path | None, typer.Option(metavar="JSON", help="Where the proof of an unsat goes.")] = None,
) -> None:
    """Decide a VNN-LIB property by exact branch and bound: sat with a witness, unsat with a proof, or unknown.

    Of chains of affine layers with Relu, GELU, SiLU, sigmoid or tanh between them, and of integer networks as
    `quantize` writes them, in integers: there a property says that one output is greater than every other in a box,
    whose integers are the inputs. evalsuite verify reads more operators, in float64 and without proofs. A conjunction
    is refuted only by one of its constraints alone, so that some stay unknown. The answer goes to standard output, the
    reason to standard error. The exit code is 0 for every answer, unknown and timeout too, and 2 where the files are
    at fault, or where the answer stands but its proof was not written.
    """
    if not 0 < timeout < math.inf:
        _stop(f"--timeout is a number of seconds > 0, got {timeout:g}")
    from evalsuite import Unsupported
    from pipelines.smt.querying import answer

    if proof is not None and (not proof.parent.is_dir() or proof.is_dir()):
        print("error")
        _stop(f"{proof}: {'is a folder' if proof.is_dir() else 'its folder does not exist'}; name a file to write")
    try:
        found = answer(onnx, vnnlib, timeout)
    except (Unsupported, ValueError) as error:
        print("error")
        _stop(str(error))
    except OSError as error:
        print("error")
        _stop(f"cannot read {error.filename}: {error.strerror}")
    print(found.lines())
    nodes = "1 node" if found.nodes == 1 else f"{found.nodes} nodes"
    print(f"{found.reason}; {nodes}; {found.seconds:.2f} s", file=sys.stderr)
    if proof is None:
        return
    sys.stdout.flush()
    try:
        said = found.write(proof)
        check = f": evalsuite check-proof {proof} --onnx {onnx} --vnnlib {vnnlib}" if found.answer == "unsat" else ""
        print(f"{said}{check if said.startswith('the proof') else ''}", file=sys.stderr)
    except (Unsupported, OSError) as error:
        _stop(f"the answer stands, but its proof was not written: {error}")


def _stop(message: str) -> NoReturn:
    print(f"evalsuite: {message}", file=sys.stderr)
    raise typer.Exit(2)

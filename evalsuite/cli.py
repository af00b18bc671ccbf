"""The command line: thin, and imports late, so that --help answers at once."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from evalsuite.commands import DEBUG, Commands, add_commands
from evalsuite.run.cache_commands import app as cache_app
from evalsuite.run.console import CacheFolder, cache_in, execute, refusing, stop
from evalsuite.run.watched import watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from evalsuite.plugins import Plugin
    from evalsuite.recipe import Recipe

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "What does replacing GELU by ReLU buy, and cost, downstream? Always against the GELU"
        " baseline."
    ),
)
RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="The recipe.")]
OutFolder = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The run's folder [runs/NAME].")
]
Seeds = Annotated[str, typer.Option(metavar="0-9", help="Other seeds than the recipe's.")]


def _recipe(path: Path, seeds: str = "") -> Recipe:
    from evalsuite.recipe import RecipeError, read_recipe
    from evalsuite.run.state import seeds_of, with_seeds

    try:
        read = read_recipe(path)
        return with_seeds(read, seeds_of(seeds), str(path)) if seeds else read
    except ValueError as error:
        stop(error)
    except RecipeError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


def _until(
    width: str,
    endpoint: str,
    most: int,
    recipe: Recipe,
    folder: Path,
    done: Callable[[Recipe], bool],
) -> bool:
    """Run the recipe with more and more seeds; whether every job gave what it was to give."""
    from evalsuite.plugins import PluginError
    from evalsuite.run.record import read_record
    from evalsuite.run.state import with_seeds
    from evalsuite.studies.until import Goal, grown, standing

    # 1. A run that was grown before goes on with the seeds that it has, not with the recipe's
    # fewer.
    try:
        goal = Goal.read(width, endpoint)
        known = read_record(folder)
        if known is not None and known.holds(recipe, grown=True):
            recipe = with_seeds(recipe, known.seeds, str(folder))
        # 2. Run, look how wide the intervals are, and add the seeds that the widest still takes;
        # what is done is found and not run again.
        while True:
            complete, found = done(recipe), standing(folder, goal)
            count = min(len(recipe.seeds) + found.more, most)
            print(f"{found.question}, by {len(recipe.seeds)} seeds:", *found.said, sep="\n  ")
            if count <= len(recipe.seeds):
                print(
                    f"Not all narrower than {width}: more than {most} seeds are not taken, see"
                    " --most-seeds."
                    if found.more
                    else f"All narrower than {width}."
                )
                return complete
            recipe = with_seeds(recipe, grown(recipe.seeds, count), str(folder))
    except (ValueError, PluginError) as error:
        stop(error)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"evalsuite {version('evalsuite')}")
        raise typer.Exit


@app.callback()
def whole(  # No text of its own, so that the application's stands in its help; --version ends all.
    version: Annotated[  # noqa: ARG001  # the callback answers
        bool,
        typer.Option(
            "--version", help="Print the version, and stop.", is_eager=True, callback=_version
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of an error, as {DEBUG}=1 does.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


@app.command()
def run(
    recipe: RecipeFile,
    out: OutFolder = None,
    cache: CacheFolder = None,
    jobs: Annotated[int, typer.Option(help="Processes at a time; 0: one per core.")] = 0,
    executor: Annotated[
        str, typer.Option(help="Where jobs run: local, serial, dask or slurm.")
    ] = "local",
    serial: Annotated[
        bool, typer.Option("--serial", help="In this process, for debuggers; no time limits.")
    ] = False,
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Dask's, as tls://host:8786 [processes of this machine]."
        ),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Take a scheduler without TLS: whoever reaches it can run code as you.",
        ),
    ] = False,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="An option of sbatch, as partition=long; repeatable."
        ),
    ] = None,
    seeds: Seeds = "",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Only such jobs, as 'digits-*/gelu/*', and their needs."
        ),
    ] = None,
    retry: Annotated[
        str, typer.Option(help="What runs again of what failed: all, failed, timeout or none.")
    ] = "all",
    until: Annotated[
        str,
        typer.Option(
            metavar="0.5%",
            help="Add seeds until the intervals of a primary endpoint are this narrow.",
        ),
    ] = "",
    endpoint: Annotated[
        str,
        typer.Option(
            metavar="WORDS", help="Which, by words of its question [the first that is measured]."
        ),
    ] = "",
    most_seeds: Annotated[int, typer.Option(help="No more seeds than these with --until.")] = 50,
    progress: Annotated[
        str, typer.Option(help="auto, rich, plain, json or none; on stderr.")
    ] = "auto",
) -> None:
    """Run a recipe; run it again to continue. What is done is not done twice. The exit code is 1
    if a job failed.
    """
    from evalsuite.run.state import RETRIES, Choice

    # 1. Options that contradict each other are told before anything is read.
    if retry not in RETRIES:
        stop(f"--retry is one of {', '.join(RETRIES)}; got {retry!r}")
    if endpoint and not until:
        stop("--endpoint says of which interval --until gives the width: add --until, as 0.5%")
    if most_seeds < 1:
        stop(f"--most-seeds is a number of seeds, at least 1; got {most_seeds}")
    read = _recipe(recipe, seeds)
    folder = out or Path("runs") / read.name
    options = dict(each.partition("=")[::2] for each in slurm or [])
    if "" in options or "" in options.values():
        stop("--slurm takes KEY=VALUE, as partition=long")

    from evalsuite.run.doubts import doubt_lines

    def done(recipe_: Recipe) -> bool:
        return execute(
            recipe_,
            folder,
            cache_in(cache),
            jobs=jobs,
            kind="serial" if serial else executor,
            scheduler=scheduler,
            insecure=insecure,
            options=options,
            choice=Choice(tuple(only or ()), retry),
            progress=progress,
            command=f"evalsuite run {recipe}",
        )

    # 2. Run; the doubts come after the rows, since they are about the networks that were made.
    complete = _until(until, endpoint, most_seeds, read, folder, done) if until else done(read)
    for line in doubt_lines(read, folder):
        print(line)
    print(f"Next: evalsuite report {folder}")
    if not complete:
        raise typer.Exit(1)


@app.command()
def tune(
    recipe: RecipeFile,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where it trains [runs/NAME-rates].")
    ] = None,
    cache: CacheFolder = None,
    jobs: Annotated[int, typer.Option(help="Processes at a time; 0: one per core.")] = 0,
    rates: Annotated[
        str, typer.Option(metavar="RATES", help="To choose from.")
    ] = "0.001,0.003,0.01",
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="Seeds that the recipe does not use.")
    ] = "100-102",
    progress: Annotated[
        str, typer.Option(help="auto, rich, plain, json or none; on stderr.")
    ] = "auto",
) -> None:
    """Choose a learning rate for each workload and variant by its validation loss, and print it
    for the recipe.
    """
    from evalsuite.recipe import RecipeError
    from evalsuite.results import read_results
    from evalsuite.run.state import Choice, seeds_of
    from evalsuite.run.tuning import block, rates_of, tuned, tuning_recipe, write_losses

    read = _recipe(recipe)
    with refusing(ValueError, RecipeError):
        tried, used = rates_of(rates), seeds_of(seeds)
        trained = tuning_recipe(read, tried, used, str(recipe))
    folder = out or Path("runs") / trained.name
    execute(
        trained,
        folder,
        cache_in(cache),
        jobs=jobs,
        choice=Choice(("*/train",)),
        progress=progress,
        command=f"evalsuite tune {recipe}",
    )
    # Of each workload and variant, the rate whose loss on validation data is lowest.
    found = list(tuned(read_results(folder), read, tried, used))
    write_losses(found, folder / "learning-rates.csv")
    print(
        *(each.line for each in found),
        f"The losses: {folder / 'learning-rates.csv'}. For {recipe}:",
        sep="\n",
    )
    print(f"\n{block(found)}", end="")
    if any(each.chosen is None for each in found):
        raise typer.Exit(1)


@app.command()
def plan(
    recipe: RecipeFile,
    out: OutFolder = None,
    cache: CacheFolder = None,
    seeds: Seeds = "",
    why: Annotated[
        bool, typer.Option("--why", help="At length: each input and source file that changed.")
    ] = False,
) -> None:
    """Show what a run would do, what is cached, and why. Nothing is run, and nothing is
    downloaded.
    """
    from collections import Counter

    from evalsuite.run.state import offline, plan_run
    from evalsuite.terminal import printable
    from evalsuite.workloads.workload import DataError

    read = _recipe(recipe, seeds)
    folder = (out or Path("runs") / read.name).absolute()
    with refusing(DataError), offline("plan downloads nothing; `evalsuite run` does"):
        planned = plan_run(read, folder, cache_in(cache))
    width = max(len(each.job.id) for each in planned)
    for each in planned:
        print(printable(f"{each.state:<7} {each.job.id:<{width}}  {each.why}"))
        for reason in each.reasons() if why else ():
            print(printable(f"{'':<7} {reason}"))
    counts = Counter(each.state for each in planned)
    print(
        f"{len(planned)} jobs: "
        + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    )


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write report.html, report.md and the tables (CSV, LaTeX) into a run's folder, also while
    it goes on.
    """
    from evalsuite.plugins import PluginError
    from evalsuite.recipe import RecipeError
    from evalsuite.report import write_report
    from evalsuite.results import DamagedResults
    from evalsuite.run.results import catch_up

    def unwritten(error: OSError) -> str:
        return f"cannot write {error.filename or folder}: {error.strerror}"

    with refusing(DamagedResults, PluginError, RecipeError, ValueError, unreadable=unwritten):
        catch_up(folder)
        written = write_report(folder)
    for path in written:
        if path.suffix in (".html", ".md"):
            print(path)
    print(
        f"{len([path for path in written if path.suffix in ('.csv', '.tex')])} tables in"
        f" {folder / 'tables'}"
    )
    if show:
        import webbrowser

        if not webbrowser.open(written[0].resolve().as_uri()):
            print(f"evalsuite: no browser found; open {written[0]} in one", file=sys.stderr)


PluginName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Show the options of this one.")
]


def _print_options(help_: str, target: object) -> None:
    import textwrap

    from evalsuite.plugins import options_of, texts_of

    print(help_)
    texts = texts_of(target)
    for name, kind, default in options_of(target):
        print(f"  {name}: {kind} = {default}")
        if name in texts:
            print(
                textwrap.fill(texts[name], 110, initial_indent="      ", subsequent_indent="      ")
            )
    for name, within in getattr(target, "inside", {}).items():
        _print_options(f"\n{name} may be a mapping of these.", within)


def _print_plugins(
    group: str, name: str | None = None, find: Callable[[str], Plugin] | None = None
) -> None:
    from evalsuite.plugins import PluginError, load, load_all

    if name is not None:
        with refusing(PluginError):
            plugin = find(name) if find else load(group, name)
        _print_options(plugin.help, plugin.target)
        return
    plugins = load_all(group)
    if not plugins:
        stop(f"no {group} are installed: reinstall evalsuite")
    name_width = max(len(plugin.name) for plugin in plugins)
    origins = [f"{plugin.origin} {plugin.version}" for plugin in plugins]
    origin_width = max(len(origin) for origin in origins)
    for plugin, origin in zip(plugins, origins, strict=True):
        print(f"{plugin.name:<{name_width}}  {origin:<{origin_width}}  {plugin.help}")


@app.command()
def stages(name: PluginName = None) -> None:
    """List the stages: name, origin, version, and one line of help; broken ones with the reason."""
    _print_plugins("stages", name)


@app.command()
def workloads(name: PluginName = None) -> None:
    """List the workloads: name, origin, version, and one line of help; broken ones with the
    reason.
    """
    _print_plugins("workloads", name)


@app.command()
def activations(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show all traits of this one.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw value and gradient: .svg or .png.")
    ] = None,
) -> None:
    """List the activations: name, formula, what they harden to, and source."""
    from evalsuite.listing import Selected, UnknownActivation

    with refusing(UnknownActivation):
        selected = Selected.by_name(name)
    if plot is None:
        print("\n".join(selected.lines()))
        return
    import matplotlib as mpl

    from evalsuite.listing import write_figure
    from evalsuite.report.canvas import FIGURE_STYLE

    with (
        refusing(ValueError, unreadable=lambda error: _unwritten(plot, error)),
        mpl.rc_context(FIGURE_STYLE),
    ):
        write_figure(selected.rows(), plot)
    print(plot)


def _unwritten(file: Path, error: OSError) -> str:
    return (
        f"cannot write {file}: {error.strerror or error}; name a file in a folder that can be"
        " written"
    )


@app.command()
def variants(name: PluginName = None) -> None:
    """List the variants: how the activation is treated."""
    from evalsuite.plugins import entries
    from evalsuite.variants import load_variant, options_for

    if (
        name is not None
        and name in {entry.name for entry in entries("activations")}
        and options_for(name)
    ):
        print(
            f"Trained with {name} from the first step to the last; `use: trained` takes another"
            " activation."
        )
        return
    _print_plugins("variants", name, load_variant)
    if name is None:
        names = ", ".join(entry.name for entry in entries("activations"))
        print(f"The name of an activation is the variant that is trained with it: {names}.")


@app.command()
def verify(
    onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The network: .onnx or .onnx.gz.")
    ] = None,
    vnnlib: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The property: .vnnlib or .vnnlib.gz.")
    ] = None,
    instances: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Many: onnx,vnnlib,timeout in each line.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Where the rows of --instances go [stdout].")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds for each [60, or the file's].")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Another network: does it tell the same class in the box?"
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(metavar="D", help="Of --against: are all outputs within D of it instead?"),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=(
                "What is split: inputs, neurons (of ReLU), or auto for both in turn; or exact, z3"
                " or marabou."
            ),
        ),
    ] = "auto",
    proof: Annotated[
        Path | None,
        typer.Option(
            metavar="JSON", help="Where the proof of an unsat goes; it takes --engine exact."
        ),
    ] = None,
    inputs: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Decimals of the box: exact, or float32, each as the nearest float32.",
        ),
    ] = "exact",
) -> None:
    """Decide a VNN-LIB property of an ONNX network, or many: sat, unsat, unknown, timeout or error.

    Both sat and unsat are said of real arithmetic and of executions in float32. What is known of
    one of them alone has another word: unsat-real holds in real arithmetic and is not shown as
    executed, sat-real has a witness in real arithmetic alone, sat-float32 one in ONNX Runtime
    alone.

    The engines inputs, neurons and auto compute in float64 with the rounding accounted for. The
    engine exact, in exact arithmetic, takes chains of affine layers with Relu, GELU, SiLU, sigmoid
    or tanh between them, and integer networks as `quantize` writes them: there a property says that
    one output is greater than every other in a box, whose integers are the inputs. What only
    several constraints of a conjunction refute has no proof. The engines z3 and marabou take Relu
    alone; what marabou, which must be installed, calls unsat is a verdict of floats with
    tolerances.

    The answer goes to standard output, the reason to standard error. The exit code is 0 for every
    answer, unknown and timeout too, 1 where one of many is error, and 2 where the files are at
    fault, or where the answer stands but its proof was not written.
    """
    single = onnx is not None and vnnlib is not None and instances is None and out is None
    if (against is not None and not single) or (within is not None and against is None):
        stop("--against takes --onnx and --vnnlib beside it, and --within takes --against")
    if proof is not None and (not single or against is not None or engine not in ("auto", "exact")):
        stop(
            "--proof takes --onnx and --vnnlib beside it, of one network, and no --engine but exact"
        )
    if not single and (instances is None or onnx is not None or vnnlib is not None):
        stop("verify takes either --onnx and --vnnlib, or --instances and perhaps --out")
    if inputs not in ("exact", "float32"):
        stop(f"--inputs is exact or float32, got {inputs}")
    if proof is not None and inputs != "exact":
        stop("--proof takes the box as the file's decimals state it: leave --inputs out")
    if timeout is not None and not 0 < timeout < float("inf"):
        stop(f"--timeout is a number of seconds > 0, got {timeout:g}")
    _refuse_to_overwrite(out or proof, onnx, vnnlib, instances)
    if instances is not None:
        _verify_many(instances, out, timeout, engine, inputs)
    elif onnx is not None and vnnlib is not None:
        distance, engine = (
            None if within is None else _distance(within),
            engine if proof is None else "exact",
        )
        options = {"against": against, "within": distance, "engine": engine, "inputs": inputs}
        _verify_one(onnx, vnnlib, 60.0 if timeout is None else timeout, options, proof)


@app.command()
def smt(
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="The network: .onnx.")],
    vnnlib: Annotated[
        Path, typer.Option(metavar="FILE", help="The property: .vnnlib or .vnnlib.gz.")
    ],
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds.")] = 60.0,
    proof: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Where the proof of an unsat goes.")
    ] = None,
) -> None:
    """Decide a VNN-LIB property in exact arithmetic, as verify --engine exact does."""
    verify(onnx, vnnlib, timeout=timeout, engine="exact", proof=proof)


def _refuse_to_overwrite(written: Path | None, *read: Path | None) -> None:
    found = [path for path in read if path is not None and path.exists()]
    if written is not None and written.exists() and any(written.samefile(each) for each in found):
        stop(f"{written} is read, and would be overwritten: name another file to write")


def _distance(text: str) -> Fraction:
    from netverify.decimals import exact_decimal

    try:
        fraction = exact_decimal(text)
    except ValueError as error:
        stop(f"--within: {error}")
    if fraction < 0:
        stop(f"--within is a distance >= 0, got {text}")
    return fraction


def _verify_one(
    onnx: Path, vnnlib: Path, timeout: float, options: dict[str, Any], proof: Path | None
) -> None:
    import torch

    from evalsuite.contract import Unsupported
    from evalsuite.plugins import PluginError
    from netverify.cascade import verify as decide

    torch.set_num_threads(1)
    # 1. Whether the proof could be written is asked first: a search may take hours.
    try:
        if proof is not None and (proof.is_dir() or not proof.parent.is_dir()):
            why = "is a folder" if proof.is_dir() else "its folder does not exist"
            raise ValueError(f"{proof}: {why}; name a file to write")
        found = decide(onnx, vnnlib, timeout=timeout, **options)
    except (Unsupported, ValueError, OSError, PluginError) as error:
        print("error")
        stop(_unreadable(error))
    # 2. The answer goes to stdout and all else to stderr, so that scripts can read it.
    print(found.lines(), flush=True)
    print(
        f"{found.reason}; {found.boxes} parts; {found.prepare_seconds + found.seconds:.2f} s",
        file=sys.stderr,
    )
    if proof is None:
        return
    try:
        # 3. The proof; the answer is not taken back where it cannot be written.
        said = found.write(proof)
    except (Unsupported, OSError) as error:
        stop(f"the answer stands, but its proof was not written: {error}")
    check = (
        f": evalsuite check-proof {proof} --onnx {onnx} --vnnlib {vnnlib}"
        if said.startswith("the proof")
        else ""
    )
    print(f"{said}{check}", file=sys.stderr)


def _unreadable(error: Exception) -> str:
    return (
        f"cannot read {error.filename}: {error.strerror}"
        if isinstance(error, OSError) and error.errno
        else str(error)
    )


def _verify_many(
    path: Path, out: Path | None, timeout: float | None, engine: str, inputs: str
) -> None:
    import csv
    from contextlib import nullcontext

    from evalsuite.verification.instances import COLUMNS, ERROR, read_instances, run_instances

    failed = False
    try:
        instances = read_instances(path, timeout)
        with nullcontext(sys.stdout) if out is None else _opened(out) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            # Each row is written as soon as it is known, so that an interrupted benchmark keeps
            # what it has.
            for number, found in enumerate(run_instances(instances, engine, inputs), start=1):
                writer.writerow(found.row())
                file.flush()
                failed |= found.result == ERROR
                name = f"{Path(found.onnx).name} {Path(found.vnnlib).name}"
                print(
                    f"{number}/{len(instances)} {name}: {found.result} ({found.reason})",
                    file=sys.stderr,
                )
    except (ValueError, OSError) as error:
        stop(_unreadable(error))
    if failed:
        raise typer.Exit(1)


def _opened(out: Path) -> TextIO:
    try:
        return out.open("w", newline="", encoding="utf-8")
    except OSError as error:
        raise ValueError(_unwritten(out, error)) from None


@app.command(name="check-proof")
def check_proof(
    proof: Annotated[Path, typer.Argument(metavar="PROOF.json", help="The proof file.")],
    onnx: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The network that it is of: .onnx, as it was verified."),
    ],
    vnnlib: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A property: does what is proven refute it?")
    ] = None,
    z3: Annotated[
        float | None, typer.Option(metavar="S", help="Ask Z3 too, for so many seconds in each row.")
    ] = None,
) -> None:
    """Check a proof file by recomputing it exactly, and say what it proves; exit code 1 if that is
    nothing.

    With --vnnlib, also whether it refutes that property, as an unsat claims; exit code 1 if it does
    not.
    """
    from contextlib import nullcontext

    from netverify import proof_files, proofs, smooth_proofs
    from netverify.vnnlib import read_vnnlib
    from opgraph.limits import content, reading

    if z3 is not None and not 0 < z3 <= 1e6:
        stop(f"--z3 is a number of seconds > 0 and <= 1e6, got {z3:g}")
    # 1. The proof is of these very bytes of the network, and each of its steps holds, recomputed
    # exactly.
    try:
        with reading(onnx):
            network = content(onnx)
        with reading(proof, seconds=math.inf):
            found = proof_files.read_proof(proof)
            proof_files.check_digest(found, network, proof, onnx)
            statement = proof_files.checked(found, network)
        # 2. The network runs as the proof reads it, and the property is read.
        proof_files.check_runs(onnx)
        with nullcontext() if vnnlib is None else reading(vnnlib):
            specification = None if vnnlib is None else read_vnnlib(vnnlib)
    except proofs.ProofError as error:
        print("not proven")
        print(f"evalsuite: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except (OSError, ValueError) as error:
        stop(_unreadable(error))
    print(proof_files.described(statement))
    # 3. What was proven may be another statement than the property asks for.
    lacking = "" if specification is None else proof_files.missing(statement, specification)
    if specification is not None:
        print(
            f"not proven of {vnnlib}: {lacking}"
            if lacking
            else f"{vnnlib}: unsat, every case is refuted by it"
        )
    contradicted = False
    if z3 is not None:
        if not isinstance(statement, proofs.Statement):
            kind = (
                "a smooth" if isinstance(statement, smooth_proofs.SmoothStatement) else "an integer"
            )
            stop(
                "--z3 asks about proofs of ReLU networks over the reals, and this proof is of"
                f" {kind} network"
            )
        told, contradicted = proof_files.told_by_z3(statement, network, z3)
        print(told)
    if lacking or contradicted:
        raise typer.Exit(1)


@app.command()
def doctor(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Runs, or folders of runs: would today's code?"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print what is well, too.")] = False,
    cache: CacheFolder = None,
) -> None:
    """Print what is wrong or missing, with the cure; exit code 1 if it is something that evalsuite
    needs.

    Of runs, instead, how many of their jobs the source of today measured, as it is, and which of
    their files are not as they were written (SHA256SUMS); exit code 1 unless all are well.
    """
    from evalsuite.doctor import examine
    from evalsuite.terminal import say

    if runs:
        _doctor_of(runs)
        return
    checks = list(examine(cache_in(cache).folder))
    unwell = [check for check in checks if not check.ok]
    for check in checks if every else unwell:
        say(f"{check.word:<7}  {check.name:<22} {check.finding}")
        if not check.ok:
            say(f"         {'':<22} cure: {check.cure}")
    say(f"{'all else' if unwell else 'all'} is well ({len(checks) - len(unwell)} checks)")
    if any(not check.optional for check in unwell):
        raise typer.Exit(1)


def _doctor_of(runs: list[Path]) -> None:
    from evalsuite.run.results import standings
    from evalsuite.sums import changed
    from evalsuite.terminal import say

    found = [each for folder in runs for each in standings(folder)]
    damaged = [line for each in found for line in changed(each.folder)]
    for each in found:
        say(f"{'same   ' if each.reproduced else 'OTHER  '}  {each.folder!s:<30} {each.text}")
    for line in damaged:
        say(f"DAMAGED  {line}")
    say(
        f"{sum(each.reproduced for each in found)} of {len(found)} runs were measured by today's"
        " source as a whole"
    )
    if damaged or not all(each.reproduced for each in found):
        raise typer.Exit(1)


app.add_typer(cache_app, name="cache")
add_commands(app)


def main() -> None:
    """Run the command `evalsuite`, which ends the process; an interrupt (Ctrl-C) ends it with
    status 130.
    """
    try:
        if sys.argv[1:2]:
            watched(app)
        else:
            app()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # What python still does at its end clears folders away: one more Ctrl-C would neither
        # hasten it nor end it without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

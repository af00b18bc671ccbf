"""Commands that distributions add to the command line, by the entry-point group `evalsuite.commands`.

An entry is a function with typer's annotations. Its module is imported only when the command is called, so that
`evalsuite --help` stays fast, and a broken plugin breaks its own command alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

import typer

from evalsuite.plugins import PluginError, entries, load


def add_commands(app: typer.Typer) -> None:
    """Add those of plugins; none replaces one that the application has."""
    own = {each.name or getattr(each.callback, "__name__", "") for each in app.registered_commands}
    own |= {each.name or "" for each in app.registered_groups}
    for name, entry in sorted({each.name: each for each in entries("commands") if each.name not in own}.items()):
        # Help and unknown options are for the plugin, which is not loaded yet.
        settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app.command(name, help=_told(entry), context_settings=settings)(_forward(name))


def _told(entry: EntryPoint) -> str:
    """The first paragraph of the function's docstring, read without importing its module."""
    try:
        spec = find_spec(entry.module)
        tree = ast.parse(Path(str(spec and spec.origin)).read_text(encoding="utf-8"))
        (found,) = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == entry.attr]
        text = ast.get_docstring(found) or ""
    except (Exception, SystemExit):  # A plugin's packages may raise anything.
        text = ""
    origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    return text.split("\n\n")[0].replace("\n", " ") or f"A command of {origin}."


def _forward(name: str) -> Callable[[typer.Context], None]:
    def forward(ctx: typer.Context) -> None:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        try:
            alone.command(name)(load("commands", name).target)
            run = typer.main.get_command(alone)
        except (PluginError, TypeError, RuntimeError, AttributeError) as error:
            print(f"evalsuite: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        run(args=list(ctx.args), prog_name=f"evalsuite {name}")

    return forward

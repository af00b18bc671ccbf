"""Commands: how each ends where nobody foresaw an error; and those of distributions, by the group
`evalsuite.commands`.

An entry is a function with typer's annotations. Its module is imported only when the command is
called, so that `evalsuite --help` stays fast, and a broken plugin breaks its own command alone.
"""

from __future__ import annotations

import ast
import errno
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from evalsuite.command_help import by_heading, examples_of
from evalsuite.plugins import PluginError, entries, load
from evalsuite.sources import OURS
from evalsuite.terminal import say
from opgraph.limits import failed, unforeseen

DEBUG = "EVALSUITE_DEBUG"
_WORDS = "evalsuite.words"  # of the command line, in the context
_SHOWN = 160  # characters of them
# Of the library under typer, which may be its own copy: wrong options, with a text for the user.
_WRONG: type[Exception] = next(
    kind
    for kind in typer.BadParameter.__mro__
    if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)


class Commands(TyperGroup):
    """The command line: an error that no command has told is one message, with exit code 2, and
    no traceback.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click; the words are kept for the message."""
        ctx.meta[_WORDS] = " ".join(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See click; each command stands under its heading, in the order of the headings."""
        listed = {
            name: command
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name))
        }
        width = formatter.width - 6 - max(map(len, listed))
        for heading, names in by_heading(listed).items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name, listed[name].get_short_help_str(width)) for name in names]
                )

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit where it ends otherwise than well."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, _WRONG):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            show_traceback()
            say(f"evalsuite: {_message(error, ctx.meta.get(_WORDS, ''))}", file=sys.stderr)
            raise typer.Exit(2) from None


def show_traceback() -> None:
    """Print the traceback of the error that is being handled, where the user asks for it by
    --debug.
    """
    if os.environ.get(DEBUG, "0") not in ("", "0") and sys.exc_info()[0] is not None:
        traceback.print_exc()


def _message(error: Exception, words: str) -> str:
    """The text of an error of ours, which is for the user; of another where it rose, and by
    what.
    """
    if type(error).__module__.partition(".")[0] in OURS:
        return str(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    words = words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."
    return f"{failed() or f'evalsuite {words}'}: {unforeseen(error)}"


def add_commands(app: typer.Typer) -> None:
    """Add those of plugins; none replaces one that the application has."""
    own = {
        registered_command.name or getattr(registered_command.callback, "__name__", "")
        for registered_command in app.registered_commands
    }
    own |= {registered_group.name or "" for registered_group in app.registered_groups}
    for command in app.registered_commands:
        command.epilog = examples_of(str(command.name or getattr(command.callback, "__name__", "")))
    for group in app.registered_groups:
        group.epilog = examples_of(str(group.name))
    # Each command of a plugin is a stand-in, which loads the plugin when it is called.
    for name, entry in sorted(
        {each.name: each for each in entries("commands") if each.name not in own}.items()
    ):
        # Help and unknown options are for the plugin, which is not loaded yet.
        settings = {
            "allow_extra_args": True,
            "ignore_unknown_options": True,
            "help_option_names": [],
        }
        app.command(name, help=_told(entry), context_settings=settings)(_forward(name))


def _told(entry: EntryPoint) -> str:
    """The first paragraph of the function's docstring, read without importing its module."""
    try:
        spec = find_spec(entry.module)
        tree = ast.parse(Path(str(spec and spec.origin)).read_text(encoding="utf-8"))
        (found,) = [
            each
            for each in tree.body
            if isinstance(each, ast.FunctionDef) and each.name == entry.attr
        ]
        text = ast.get_docstring(found) or ""
    except (Exception, SystemExit):  # A plugin's packages may raise anything.
        text = ""
    origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    return text.split("\n\n")[0].replace("\n", " ") or f"A command of {origin}."


def _forward(name: str) -> Callable[[typer.Context], None]:
    def forward(ctx: typer.Context) -> None:
        alone = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        try:
            alone.command(name, epilog=examples_of(name))(load("commands", name).target)
            run = typer.main.get_command(alone)
        except (PluginError, TypeError, RuntimeError, AttributeError) as error:
            print(f"evalsuite: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        run(args=list(ctx.args), prog_name=f"evalsuite {name}")

    return forward

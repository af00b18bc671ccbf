"""Writes what the documents tell of the code and of the committed studies, between `<!-- NAME -->`
and `<!-- end -->`.

    python docs/making/blocks.py

A test compares every block with what this makes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.contrasts import drift, gates, levels, orders, table, treatments
from docs.making.answers import answers, conclusions, superseded
from docs.making.leaderboard import leaderboard
from docs.making.names import listed
from evalsuite.plugins import load, options_of, texts_of
from evalsuite.report.section import sections

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(<!--"
    r" (options|answers|conclusions|superseded|contrasts|correlations|levels|orders|gates"
    r"|treatments|terms|rooms|names|file|leaderboard)"
    r"(?: ([\w./-]+))? -->\n).*?(<!-- end -->)",
    re.S,
)


def grid(*lines: tuple[str, ...]) -> str:
    """A Markdown table; the first line is its head."""
    head, *rows = (" | ".join(cell.replace("|", r"\|") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in (head, " | ".join("---" for _ in lines[0]), *rows))


def options(stage: str) -> str:
    """The options of a stage with their defaults, as `evalsuite stages NAME` lists them."""
    target = load("stages", stage).target
    texts = texts_of(target)
    rows = [
        (f"`{name}`", f"`{default}`", texts.get(name, ""))
        for name, _, default in options_of(target)
    ]
    return grid(("option", "default", "meaning"), *rows) if rows else "It has no options."


def terms(_: str) -> str:
    """Tabulate the words of every installed section with their meaning."""
    found = {word: text for section in sections().values() for word, text in section.terms.items()}
    return grid(("term", "meaning"), *sorted(found.items(), key=lambda each: each[0].casefold()))


def file(path: str) -> str:
    """A file of the repository, as it is."""
    kind = {".py": "python", ".toml": "toml"}[Path(path).suffix]
    return (
        f"```{kind}"
        f' title="{Path(path).name}"\n{(ROOT / path).read_text(encoding="utf-8").rstrip()}\n```'
    )


def rooms(_: str) -> str:
    """Tabulate each folder and module with its purpose and what it may import, which
    tests/evalsuite/test_house.py declares.
    """
    tree = ast.parse((ROOT / "tests/evalsuite/test_house.py").read_text(encoding="utf-8"))
    (rules,) = [
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and each.targets[0].id == "ALLOWED"
    ]
    allowed: dict[str, set[str]] = ast.literal_eval(rules)
    rows = [
        (f"`{room}`", _purpose(room), ", ".join(f"`{use}`" for use in sorted(uses)) or "nothing")
        for room, uses in allowed.items()
    ]
    return grid(("folder or module", "what it holds", "may import"), *rows)


def _purpose(room: str) -> str:
    """The first sentence of its docstring."""
    place = ROOT / "evalsuite" / room
    place = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    told = ast.get_docstring(ast.parse(place.read_text(encoding="utf-8"))) or ""
    return " ".join(told.split("\n\n")[0].split())


def told(table: Callable[[str], list[tuple[str, ...]]]) -> Callable[[str], str]:
    """Make of a table of `benchmarks.contrasts` the block of a study."""
    return lambda study: grid(*table(study))


MADE: dict[str, Callable[[str], str]] = {
    "options": options,
    "answers": answers,
    "conclusions": conclusions,
    "superseded": superseded,
    "terms": terms,
    "rooms": rooms,
    "file": file,
    "contrasts": told(table),
    "correlations": told(drift),
    "levels": told(levels),
    "orders": told(orders),
    "gates": told(gates),
    "treatments": told(treatments),
    "leaderboard": leaderboard,
    "names": lambda topic: grid(*listed(topic)),
}


def filled(text: str) -> str:
    """The text with every block made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}{MADE[found[2]](found[3] or '')}\n{found[4]}", text)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(encoding="utf-8")), encoding="utf-8")
        print(document.relative_to(ROOT), flush=True)

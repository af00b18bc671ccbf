"""Recipes: the declarative description of a run, read from YAML; every error at once, with its
place.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from evalsuite.contract import Stage
from evalsuite.document import DocumentError, plain, position, read_text, read_tree, written
from evalsuite.plugins import Plugin, PluginError, did_you_mean, load
from evalsuite.recipe_files import declared_options, rooted
from evalsuite.references import is_reference
from evalsuite.terminal import printable
from evalsuite.variants import load_variant, options_for, standing, variant_names
from evalsuite.workloads.options import SplitBudget
from opgraph.errors import OwnError

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
NAME_LENGTH = 64  # names become names of files
TRAIN = "train"  # The name of the making of a network, in rows and in job ids.
LONGEST = 1e7  # seconds
_GENERAL = ("trained", "swapped")  # Variants whose names say nothing of an activation.
_ACTIVATIONS = {"activation", "base", "to"}
# of a recipe; older ones have none of them
_OPTIONAL = ("memory_limit", "learning_rates", "split_by_seed")
_STEP_KEYS = ("use", "name", "after", "time_limit")
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One error of a recipe: 1-based line and column, the path of the culprit, and what to do."""

    line: int
    column: int
    path: str
    text: str


class RecipeError(Exception):
    """Everything that is wrong with a recipe; its text has one line per problem:
    file:line:column path: text.
    """

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda each: (each.line, each.column))
        said = [
            f"{problem.line}:{problem.column} "
            f"{problem.path + ': ' if problem.path else ''}{problem.text}"
            for problem in self.problems
        ]
        super().__init__("\n".join(printable(f"{file}:{each}") for each in said))


@dataclass(frozen=True, slots=True)
class Part:
    """A workload, variant or stage as a recipe uses it: `name` is the recipe's, `use` the
    plugin's.
    """

    name: str
    use: str
    options: dict[str, Any]
    target: Any
    origin: str = "evalsuite"
    plugin_version: str = ""

    def having(self, options: Mapping[str, Any]) -> Part:
        """A copy of this part with other values of some options.

        Raises:
            ValidationError: an option has another type, or the class refuses it.
        """
        made = {**self.options, **options}
        return replace(self, options=made, target=construct(type(self.target), made))

    @property
    def cut(self) -> bool:
        """Whether it is a workload that cuts its data itself, by the number of a shuffle."""
        return isinstance(self.target, SplitBudget)


@dataclass(frozen=True, slots=True)
class Step:
    """A stage at a place in the recipe: after training, or after the step whose changed network
    it takes.
    """

    part: Part
    after: str
    time_limit: float

    @property
    def name(self) -> str:
        """The step's name in rows and tables."""
        return self.part.name

    @property
    def stage(self) -> Stage:
        """The stage as an object that holds the options of this step."""
        return cast(Stage, self.part.target)


@dataclass(frozen=True, slots=True)
class Recipe:
    """workloads x variants x seeds x steps, validated.

    `learning_rates` are peak learning rates by the names of a workload and of a variant that
    trains; where there is none it is the workload's own. With `split_by_seed` each seed has a split
    of its own, of the workloads that cut their data themselves. `memory_limit` is in GiB that a job
    may hold; 0 is what the machine allows.
    """

    name: str
    baseline: str
    workloads: tuple[Part, ...]
    variants: tuple[Part, ...]
    seeds: tuple[int, ...]
    steps: tuple[Step, ...]
    time_limit: float
    text: str = field(repr=False)
    memory_limit: float = 0.0
    learning_rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    split_by_seed: bool = False

    def base_of(self, variant: Part) -> Part | None:
        """Whose network the variant starts from; one that is not among the variants is made, but
        not shown.

        Raises:
            PluginError: it is the name of no variant of the recipe, no registered variant and no
                activation.
        """
        name = variant.target.base
        if not name:
            return None
        named = next((part for part in self.variants if part.name == name), None)
        if named is not None:
            return named
        hidden = _part_of(
            {"name": name, "use": name, "options": {}}, load_variant(name), standing(name)
        )
        return next((part for part in self.variants if part.target == hidden.target), hidden)

    @property
    def hidden(self) -> list[Part]:
        """The networks that variants start from, and bases of these, which are no variants of
        the recipe.
        """
        parts: list[Part] = []
        waiting = list(self.variants)
        while waiting:
            base = self.base_of(waiting.pop())
            if base is not None and base not in (*self.variants, *parts):
                parts.append(base)
                waiting.append(base)
        return parts

    @property
    def trained(self) -> list[Part]:
        """The variants that train a network of their own, those of hidden networks among them."""
        return [part for part in (*self.variants, *self.hidden) if not part.target.base]

    @property
    def digest(self) -> str:
        """Digest all that makes two recipes the same: all but comments and layout."""
        described = {
            "baseline": self.baseline,
            "workloads": [(part.name, part.use, part.options) for part in self.workloads],
            "variants": [(part.name, part.use, part.options) for part in self.variants],
            "seeds": self.seeds,
            "steps": [
                (step.name, step.part.use, step.part.options, step.after, step.time_limit)
                for step in self.steps
            ],
            "time_limit": self.time_limit,
            **{key: value for key in _OPTIONAL if (value := getattr(self, key))},
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


_Entry = str | dict[str, Any]
_Named = TypeVar("_Named", Part, Step)
_Found = TypeVar("_Found")


def _part_of(given: Mapping[str, Any], plugin: Plugin, target: Any) -> Part:
    return Part(
        given["name"], given["use"], given["options"], target, plugin.origin, plugin.version
    )


# pydantic's words for JSON and regular expressions, in a recipe's.
_SAID = {
    "list_type": "must be a list, as in [a, b]",
    "tuple_type": "must be a list, as in [a, b]",
    "too_short": "must not be empty",
    "string_too_long": f"a name has at most {NAME_LENGTH} characters",
    "string_pattern_mismatch": "a name is letters, digits, '.', '_' and '-'",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
}


def in_words(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors, with the value."""
    said = _SAID.get(error["type"], error["msg"].removeprefix("Value error, "))
    shown = "" if error["type"] == "value_error" else f", got {error['input']!r}"
    return f"{said[0].lower()}{said[1:]}{shown}"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=_NAME, max_length=NAME_LENGTH)
    baseline: str = "gelu"
    workloads: list[_Entry] = Field(min_length=1)
    variants: list[_Entry] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    steps: list[_Entry] = Field(min_length=1)
    time_limit: float = Field(default=120.0, gt=0, le=LONGEST)
    memory_limit: float = Field(default=0.0, ge=0, le=1e6)
    learning_rates: dict[str, dict[str, float]] = Field(default_factory=dict)
    split_by_seed: bool = False


def read_recipe(path: Path) -> Recipe:
    """Read and validate a recipe file; its plugins are imported, its data is not touched.

    A relative path in it is one in the recipe's folder, or else in the present one.

    Raises:
        RecipeError: with every problem found, such as a path that is in both folders.
    """
    try:
        text = read_text(path)
    except DocumentError as error:
        raise RecipeError(
            str(path), [Problem(error.line, 1, "", f"cannot read the recipe: {error}")]
        ) from error
    return parse_recipe(text, str(path), path.parent)


def parse_recipe(text: str, file: str = "<recipe>", folder: Path | None = None) -> Recipe:
    """The recipe of a YAML text, checked as `read_recipe` checks a file.

    Args:
        text: the YAML.
        file: named in messages.
        folder: where relative paths may lie beside the present folder.

    Raises:
        RecipeError: the text is no recipe; the error tells every problem with its line.
    """
    try:
        tree = read_tree(text)
    except DocumentError as error:
        raise RecipeError(file, [Problem(error.line, error.column, "", str(error))]) from error
    # A recipe that is no mapping has no place to note problems at.
    if not isinstance(tree, Mapping):
        found = (
            "empty"
            if tree is None
            else "a list"
            if isinstance(tree, list)
            else f"{str(tree)[:40]!r}"
        )
        raise RecipeError(
            file,
            [Problem(1, 1, "", f"a recipe is a mapping with workloads and steps; this is {found}")],
        )
    # Paths relative to the recipe become absolute ones, so that a run does not depend on the
    # present folder.
    changed, both = (False, []) if folder is None else rooted(tree, folder)
    reader = _Reader(tree, written(tree) if changed else text, file)
    for place, said in both:
        reader.note(place, said)
    return reader.recipe()


_NEEDED = {"workload": ("fingerprint", "data", "build"), "variant": ("base", "executes", "make")}


def _lacking(kind: str, target: Any) -> str:
    """Say what its author must add, since without it no key could be made; empty where nothing is
    missing.
    """
    # The version enters the cache key: without one, changed code would find old results.
    version = getattr(target, "version", None)
    if not (isinstance(version, str) and version):
        said = (
            "has no `version`"
            if version is None
            else f"has the `version` {version!r}, which is no text"
        )
        return (
            f'{said}: it enters the cache key; its author must write `version: ClassVar[str] = "1"`'
        )
    if kind == "workload" and type(target).__hash__ is None:
        return "is not frozen; its author must write @dataclass(frozen=True)"
    missing = [
        name for name in _NEEDED.get(kind, ()) if inspect.getattr_static(target, name, None) is None
    ]
    return (
        f"lacks {', '.join(missing)}; its author must add what evalsuite.{kind.title()} names"
        if missing
        else ""
    )


def option_names(cls: Any) -> Mapping[str, str]:
    """The field of each option of a dataclass, or of one's instance, by the option's name:
    mostly the same.
    """
    return _option_names(cls if isinstance(cls, type) else type(cls))


@cache
def _option_names(cls: Any) -> Mapping[str, str]:
    return {each.metadata.get("option", each.name): each.name for each in fields(cls) if each.init}


def construct(cls: Any, options: Mapping[str, Any]) -> Any:
    """The dataclass with these options, which `option_names` knows.

    Raises:
        ValidationError: an option has another type, or the class refuses it.
    """
    names = option_names(cls)
    given = {names[option]: value for option, value in options.items()}
    return TypeAdapter(cls).validate_json(json.dumps(given), strict=True)


def _again(values: Sequence[object]) -> list[int]:
    """Where a value stands that stood before."""
    first: dict[object, int] = {}
    return [index for index, value in enumerate(values) if first.setdefault(value, index) != index]


class _Wrong(Exception):
    """An entry is read no further: what is wrong with it is noted."""


class _Reader:
    """Walks one YAML tree, gathering problems instead of stopping at the first."""

    def __init__(self, tree: Any, text: str, file: str) -> None:
        self._tree, self._text, self._file = tree, text, file
        self._problems: list[Problem] = []

    def recipe(self) -> Recipe:
        # 1. Read all parts, and note what is wrong in each instead of stopping at the first.
        document = self._document()
        workloads = self._read("workloads", document.workloads, partial(self._plugin, "workloads"))
        variants = self._read("variants", document.variants, self._variant)
        steps = self._read("steps", document.steps, partial(self._step, document))
        self._seeds(document.seeds)
        names = [part.name for part in variants if part]
        if document.baseline not in names and None not in variants:
            place: Place = ("baseline",) if "baseline" in self._tree else ("variants",)
            cure = f"; add it, or choose another with `baseline:` ({', '.join(names)})"
            self.note(place, f"the baseline {document.baseline!r} is not among the variants{cure}")
        recipe = Recipe(
            document.name,
            document.baseline,
            tuple(p for p in workloads if p),
            tuple(p for p in variants if p),
            tuple(document.seeds),
            tuple(s for s in steps if s),
            document.time_limit,
            self._text,
            document.memory_limit,
            document.learning_rates,
            document.split_by_seed,
        )
        # 2. Look at what concerns several parts, where there are the parts that it concerns.
        if None not in variants:
            self._bases(recipe)
        if not self._problems:
            self._training(recipe)
        # 3. Every problem at once, with its line.
        if self._problems:
            raise RecipeError(self._file, self._problems)
        return recipe

    def _read(
        self, key: str, entries: list[_Entry], read: Callable[[Place, _Entry], _Named]
    ) -> list[_Named | None]:
        """Read each entry, as None where something is wrong with it; the names are distinct."""
        found: list[_Named | None] = []
        for index, entry in enumerate(entries):
            try:
                found.append(read((key, index), entry))
            except _Wrong:
                found.append(None)
        for index in _again([named.name if named else None for named in found]):
            if each := found[index]:
                self.note(
                    (key, index), f"the name {each.name!r} is taken; give this one its own `name`"
                )
        return found

    def _bases(self, recipe: Recipe) -> None:
        """Every base is known, and no network starts from itself."""
        for index, variant in enumerate(recipe.variants):
            chain: list[str] = []
            part: Part | None = variant
            try:
                while part is not None and part.name not in chain:
                    chain.append(part.name)
                    part = recipe.base_of(part)
            except PluginError as error:
                self.note(("variants", index, "base"), str(error))
                continue
            if part is not None:
                self.note(
                    ("variants", index), f"starts from itself: {' <- '.join([*chain, part.name])}"
                )

    def _training(self, recipe: Recipe) -> None:
        """Rates are of workloads and variants that there are, and that train; some workload has
        a split to choose.
        """
        # 1. Each rate, by trying the workload with it.
        workloads = {part.name: part for part in recipe.workloads}
        trained = {part.name for part in recipe.trained}
        for name, rates in recipe.learning_rates.items():
            place: Place = ("learning_rates", name)
            if name not in workloads:
                self.note(place, f"no workload is called {name!r}{did_you_mean(name, workloads)}")
                continue
            for variant, rate in rates.items():
                with suppress(_Wrong):
                    if variant not in trained:
                        self._refuse((*place, variant), self._untrained(recipe, variant, trained))
                    self._with((*place, variant), workloads[name], "learning_rate", rate)
        # 2. `split_by_seed` needs a workload whose split can be chosen, and is not chosen
        # already.
        if not recipe.split_by_seed:
            return
        if not any(part.cut for part in recipe.workloads):
            text = "no workload here has the option `split`: their data come cut; leave this out"
            self.note(("split_by_seed",), text)
        for index, part in enumerate(recipe.workloads):
            if part.cut and "split" in part.options:
                text = (
                    "by `split_by_seed` each seed has a split of its own; leave one of the two out"
                )
                self.note(("workloads", index, "split"), text)

    def _untrained(self, recipe: Recipe, variant: str, trained: set[str]) -> str:
        part = next((each for each in recipe.variants if each.name == variant), None)
        if part is None:
            return (
                "no variant that trains is called"
                f" {variant!r}{did_you_mean(variant, sorted(trained))}"
            )
        return (
            f"{variant!r} starts from the network of {part.target.base!r}, and takes the rate of"
            " that"
        )

    def _with(self, place: Place, workload: Part, option: str, value: object) -> None:
        if option not in option_names(workload.target):
            self._refuse(place, f"workload {workload.use!r} has no option {option!r}")
        self._build(
            place,
            type(workload.target),
            "workload",
            workload.use,
            {**workload.options, option: value},
        )

    def _document(self) -> _Document:
        given = plain(self._tree)
        for key in set(given) - set(_Document.model_fields):
            self.note((key,), f"unknown key{did_you_mean(key, _Document.model_fields)}")
            del given[key]
        try:
            return _Document.model_validate_json(json.dumps(given))
        except ValidationError as error:
            self._report(error, ())
            raise RecipeError(self._file, self._problems) from error

    def _report(
        self, error: ValidationError, place: Place, called: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        seen: set[Place] = set()
        for each in error.errors():
            inner = tuple(
                called.get(str(part), part)
                for part in each["loc"]
                if part not in ("str", "dict[str,any]")
            )
            if inner in seen:
                continue
            seen.add(inner)
            if each["type"] == "missing":
                self.note(place, f"{inner[-1]!r} is missing")
                continue
            self.note(place + inner, in_words(each))

    def note(self, place: Place, text: str) -> None:
        """Keep what is wrong at a place of the tree, for the error that tells all problems."""
        line, column = position(self._tree, place)
        path = ""
        for part in place:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        self._problems.append(Problem(line, column, path, text))

    def _refuse(self, place: Place, text: str) -> NoReturn:
        """Note a problem with which the entry is read no further."""
        self.note(place, text)
        raise _Wrong

    def _seeds(self, seeds: list[int]) -> None:
        for index, seed in enumerate(seeds):
            if not 0 <= seed < 2**31:
                self.note(("seeds", index), f"a seed is in [0, 2^31), got {seed}")
        for index in _again(seeds):
            self.note(
                ("seeds", index), f"seed {seeds[index]} is given twice: it would count as two"
            )

    def _split(self, place: Place, entry: _Entry, reserved: tuple[str, ...]) -> dict[str, Any]:
        entry = {"use": entry} if isinstance(entry, str) else entry
        if not isinstance(entry.get("use"), str):
            self._refuse(place, "`use` is missing: which plugin?")
        # Names become parts of paths and job ids, so that few characters are allowed in them.
        name = entry.get("name", entry["use"])
        if not (isinstance(name, str) and re.fullmatch(_NAME, name)):
            self._refuse(
                (*place, "name"), f"a name is letters, digits, '.', '_' and '-', got {name!r}"
            )
        if len(name) > NAME_LENGTH:
            text = (
                f"a name has at most {NAME_LENGTH} characters, got {len(name)}; give this one a"
                " shorter `name`"
            )
            self._refuse((*place, "name"), text)
        options = {key: value for key, value in entry.items() if key not in reserved}
        return {"use": entry["use"], "name": name, "options": options}

    def _loaded(self, place: Place, find: Callable[[str], _Found], use: str) -> _Found:
        try:
            return find(use)
        except (PluginError, OwnError) as error:
            self._refuse((*place, "use"), str(error))

    def _plugin(self, group: str, place: Place, entry: _Entry) -> Part:
        known = self._declared(place, entry) if group == "workloads" else entry
        given = self._split(place, known, _STEP_KEYS if group == "stages" else _STEP_KEYS[:2])
        use, kind = given["use"], group.removesuffix("s")
        plugin = self._loaded(place, partial(load, group), use)
        return _part_of(
            given, plugin, self._build(place, plugin.target, kind, use, given["options"])
        )

    def _declared(self, place: Place, entry: _Entry) -> _Entry:
        """`use: my.py:net`, a function declared by @evalsuite.workload, as the workload `own`
        with its options.
        """
        use = entry if isinstance(entry, str) else entry.get("use")
        if not (isinstance(use, str) and is_reference(use)):
            return entry
        options = self._loaded(place, declared_options, use)
        if not options:
            text = f"{use!r} is not declared by @evalsuite.workload; write `use: own, model: {use}`"
            self._refuse((*place, "use"), text)
        given = {} if isinstance(entry, str) else entry
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", use.rpartition(":")[2]).strip("-.")
        return {"name": name, "model": use, **options, **given, "use": "own"}

    def _variant(self, place: Place, entry: _Entry) -> Part:
        given = self._split(place, entry, _STEP_KEYS[:2])
        use, name, options = given["use"], given["name"], given["options"]
        plugin = self._loaded(place, load_variant, use)
        # The name of an activation is a variant, which says by itself which activation is
        # trained.
        implied = options_for(use)
        for option in implied.keys() & options.keys():
            self._refuse(
                (*place, option), f"{use!r} says it already; for another one write `use: trained`"
            )
        target = self._build(place, plugin.target, "variant", use, {**implied, **options})
        if name != use and name in variant_names() and target != standing(name):
            self.note(
                (*place, "name"), f"{name!r} is the name of another variant; choose a new one"
            )
        if name == use and use not in _GENERAL:
            self._misnamed(place, target, use, options)
        return _part_of(given, plugin, target)

    def _misnamed(self, place: Place, target: Any, use: str, options: Mapping[str, Any]) -> None:
        """A variant's own name speaks of the activations that it has by default."""
        for each in fields(target):
            usual = each.default
            if (
                each.name in _ACTIVATIONS & options.keys()
                and isinstance(usual, str)
                and options[each.name] != usual
            ):
                text = (
                    f"{use!r} says {usual!r}, not {options[each.name]!r}: give this variant"
                    " its own `name`"
                )
                self.note((*place, each.name), text)
                return

    def _build(
        self, place: Place, cls: Any, kind: str, use: str, options: Mapping[str, Any]
    ) -> Any:
        """The workload, variant or stage with these options."""
        # 1. Options that the class does not have, or that no column of rows could hold.
        if not (isinstance(cls, type) and is_dataclass(cls)):
            self._refuse(
                (*place, "use"), f"{kind} {use!r} is not a dataclass; its author must make it one"
            )
        known = option_names(cls)
        unknown = [key for key in options if key not in known]
        for key in unknown:
            hint = did_you_mean(key, known) if known else "; it has no options"
            self.note((*place, key), f"unknown option of {kind} {use!r}{hint}")
        large = [
            key for key, value in options.items() if isinstance(value, int) and abs(value) >= 2**63
        ]
        for key in large:
            self.note((*place, key), f"a whole number is in (-2^63, 2^63), got {options[key]}")
        if unknown or large:
            raise _Wrong
        # 2. The class checks the values itself.
        try:
            target = construct(cls, options)
        except ValidationError as error:
            self._report(error, place, {name: option for option, name in known.items()})
            raise _Wrong from error
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            self._refuse(place, f"{kind} {use!r} cannot be made: {type(error).__name__}: {error}")
        # 3. What it lacks to be run and cached.
        if lacking := _lacking(kind, target):
            self._refuse((*place, "use"), f"{kind} {use!r} {lacking}")
        return target

    def _step(self, document: _Document, place: Place, entry: _Entry) -> Step:
        part = self._plugin("stages", place, entry)
        if not isinstance(part.target, Stage):
            self._refuse(
                (*place, "use"),
                f"{part.use!r} is no stage: it lacks `version`, `libraries` or `run`",
            )
        given = {} if isinstance(entry, str) else entry
        after, limit = given.get("after", ""), given.get("time_limit", document.time_limit)
        # A step may follow an earlier one only, so that no circle can be written.
        earlier = [
            step if isinstance(step, str) else str(step.get("name", step.get("use")))
            for step in document.steps
        ]
        earlier = earlier[: int(place[1])]
        if part.name == TRAIN:
            self.note(
                (*place, "name"), f"{TRAIN!r} is the making of the network; choose another name"
            )
        if "after" in given and after not in earlier:
            self.note(
                (*place, "after"),
                f"no earlier step is called {after!r}{did_you_mean(str(after), earlier)}",
            )
        if (
            isinstance(limit, bool)
            or not isinstance(limit, (int, float))
            or not 0 < limit <= LONGEST
        ):
            self._refuse(
                (*place, "time_limit"),
                f"time_limit is a number of seconds in (0, 10^7], got {limit!r}",
            )
        return Step(part, str(after), float(limit))

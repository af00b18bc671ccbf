"""Recipes: what is read, and each error with its place; what is said where the data of a
workload cannot be read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from evalsuite.plan import fingerprint_of, inputs_of, jobs_of
from evalsuite.recipe import Part, RecipeError, parse_recipe, read_recipe
from evalsuite.run.record import RunRecord
from evalsuite.workloads.adult import AdultMLP
from evalsuite.workloads.workload import DataError

GOOD = """\
name: tiny
workloads: [{use: digits-mlp, epochs: 2}]
variants: [gelu, {use: annealed, name: late, start: 0.5}]
seeds: [0, 1]
steps:
  - accuracy
  - use: prune
    sparsity: 0.25
    time_limit: 30
  - {use: export, name: export-pruned, after: prune}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "r.yaml")
    return str(caught.value).splitlines()


def test_a_good_recipe_is_read_into_typed_parts() -> None:
    recipe = parse_recipe(GOOD)
    assert recipe.workloads[0].target.epochs == 2
    assert [part.name for part in recipe.variants] == ["gelu", "late"]
    assert recipe.variants[1].target.start == 0.5
    assert [(step.name, step.after, step.time_limit) for step in recipe.steps] == [
        ("accuracy", "", 120.0),
        ("prune", "", 30.0),
        ("export-pruned", "prune", 120.0),
    ]
    assert recipe.steps[1].stage.sparsity == 0.25


def test_a_variants_own_name_stays_where_it_says_nothing_else_than_what_is_made() -> None:
    for variant in (
        "{use: trained, activation: silu}",
        "{use: swapped, to: mish}",
        "{use: gelu-swap, to: relu}",
    ):
        assert parse_recipe(
            GOOD.replace("{use: annealed, name: late, start: 0.5}", variant)
        ).variants[1]


def test_any_activation_is_a_variant_a_baseline_and_a_base() -> None:
    variants = "[silu, {use: trained, name: soft, activation: elu}, {use: swapped, name: hard, base: mine, to: leaky-relu},"
    variants += " {use: swap-refit, name: mine, base: gelu-tanh}]"
    recipe = parse_recipe(
        GOOD.replace("[gelu, {use: annealed, name: late, start: 0.5}]", variants)
        + "baseline: silu\n"
    )
    assert recipe.baseline == "silu"
    assert [part.target.executes for part in recipe.variants] == [
        "silu",
        "elu",
        "leaky-relu",
        "relu",
    ]
    jobs = {job.id: job for job in jobs_of(recipe) if job.step is None and job.seed == 0}
    needs = {
        name.split("/")[1]: job.needs.split("/")[1] if job.needs else ""
        for name, job in jobs.items()
    }
    assert needs == {"silu": "", "soft": "", "hard": "mine", "mine": "gelu-tanh", "gelu-tanh": ""}
    assert [job.variant.name for job in jobs.values() if not job.shown] == ["gelu-tanh"]


def test_one_network_has_one_key_under_every_name() -> None:
    other = GOOD.replace(
        "gelu, {use: annealed, name: late, start: 0.5}", "{use: trained, name: mine}"
    )
    other = other.replace("seeds", "baseline: mine\nseeds")
    first, second = (jobs_of(parse_recipe(text))[0] for text in (GOOD, other))
    assert (first.variant.name, second.variant.name) == ("gelu", "mine")
    assert inputs_of(first, "") == inputs_of(second, "")


def test_comments_and_layout_do_not_make_another_recipe() -> None:
    assert (
        parse_recipe(GOOD).digest
        == parse_recipe("# said\n" + GOOD.replace("[0, 1]", "\n  - 0\n  - 1")).digest
    )
    assert parse_recipe(GOOD).digest != parse_recipe(GOOD.replace("0.25", "0.3")).digest


def test_rates_and_splits_are_of_the_network_that_is_trained_and_of_all_that_is_made_from_it() -> (
    None
):
    head = "learning_rates: {digits-mlp: {gelu: 0.02, relu: 0.03}}\nsplit_by_seed: true\nname: tiny"
    recipe = parse_recipe(
        GOOD.replace("name: tiny", head)
        .replace("epochs: 2}]", "epochs: 2}, text-gpt]")
        .replace(
            "[gelu, ",
            "[gelu, gelu-swap, {use: post-hoc, name: twice, base: gelu-swap},"
            " {use: swapped, name: hidden, base: relu, to: gelu}, ",
        )
    )
    met = {
        (job.workload.name, job.variant.name, job.seed): job.workload.target
        for job in jobs_of(recipe)
    }
    rates = {
        variant: target.learning_rate
        for (name, variant, seed), target in met.items()
        if name == "digits-mlp"
    }
    assert rates == {
        "gelu": 0.02,
        "gelu-swap": 0.02,
        "twice": 0.02,
        "relu": 0.03,
        "hidden": 0.03,
        "late": 0.003,
    }
    assert {
        (seed, target.split) for (name, _, seed), target in met.items() if name == "digits-mlp"
    } == {(0, 0), (1, 1)}
    assert {target for (name, *_), target in met.items() if name == "text-gpt"} == {
        recipe.workloads[1].target
    }
    assert {target.epochs for (name, *_), target in met.items() if name == "digits-mlp"} == {2}
    plain = {
        job.id: inputs_of(job, "")
        for job in jobs_of(parse_recipe(recipe.text.replace("split_by_seed: true", "")))
    }
    for job in jobs_of(recipe):
        own = inputs_of(job, "")
        changed = {name for name in own if own[name] != plain[job.id][name]}
        # A first seed's split is the default; text comes cut.
        assert changed == (
            {"workload option split"} if job.workload.name == "digits-mlp" and job.seed else set()
        ), job.id
    assert recipe.digest != parse_recipe(recipe.text.replace("0.02", "0.01")).digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "digits-mlp",
            "digits-mpl",
            "r.yaml:2:14 workloads[0].use: unknown workload 'digits-mpl'; did you mean 'digits-mlp'?",
        ),
        (
            "epochs: 2",
            "epoch: 2",
            "r.yaml:2:31 workloads[0].epoch: unknown option of workload 'digits-mlp'; did you mean 'epochs'?",
        ),
        (
            "epochs: 2",
            "epochs: two",
            "r.yaml:2:31 workloads[0].epochs: must be a whole number, got 'two'",
        ),
        ("epochs: 2", "epochs: 0", "r.yaml:2:13 workloads[0]: epochs must be at least 1, got 0"),
        (
            "epochs: 2",
            "threads: 100000",
            "r.yaml:2:13 workloads[0]: threads must be in [1, 1024], at most one per core, got 100000",
        ),
        (
            "epochs: 2",
            f"batch_size: {10**19}",
            "r.yaml:2:31 workloads[0].batch_size: a whole number is in (-2^63, 2^63), got 10000000000000000000",
        ),
        (
            "use: annealed",
            "use: aneald",
            "r.yaml:3:19 variants[1].use: unknown variant 'aneald'; did you mean 'annealed'?",
        ),
        ("start: 0.5", "start: 1.5", "r.yaml:3:18 variants[1]: start must be in [0, 1), got 1.5"),
        (
            "name: late",
            "name: relu",
            "r.yaml:3:34 variants[1].name: 'relu' is the name of another variant; choose a new one",
        ),
        (
            "{use: annealed, name: late, start: 0.5}",
            "gelu",
            "r.yaml:3:18 variants[1]: the name 'gelu' is taken; give this one its own `name`",
        ),
        (
            "gelu, {use: annealed, name: late, start: 0.5}",
            "gelu, {use: silu, activation: relu}",
            "r.yaml:3:30 variants[1].activation: 'silu' says it already; for another one write `use: trained`",
        ),
        (
            "use: annealed, name: late, start: 0.5",
            "use: trained, name: silu, activation: relu",
            "r.yaml:3:33 variants[1].name: 'silu' is the name of another variant; choose a new one",
        ),
        (
            "use: annealed, name: late, start: 0.5",
            "use: trained, activation: silly",
            "r.yaml:3:18 variants[1]: activation must be the name of an activation, got 'silly'; did you mean 'silu'?",
        ),
        (
            "use: annealed, name: late, start: 0.5",
            "use: swapped, base: geul",
            "r.yaml:3:33 variants[1].base: unknown variant 'geul'; did you mean 'gelu'?",
        ),
        (
            "use: annealed, name: late, start: 0.5",
            "use: swapped, name: s, base: s",
            "r.yaml:3:18 variants[1]: starts from itself: s <- s",
        ),
        (
            "name: late",
            "name: a/b",
            "r.yaml:3:34 variants[1].name: a name is letters, digits, '.', '_' and '-', got 'a/b'",
        ),
        (
            "use: annealed, name: late, start: 0.5",
            "use: lambda-gelu, activation: silu",
            "r.yaml:3:37 variants[1].activation: 'lambda-gelu' says 'lambda-gelu', not 'silu': give this variant its own `name`",
        ),
        (
            "use: annealed, name: late, start: 0.5",
            "use: prelu-swap, to: mish",
            "r.yaml:3:36 variants[1].to: 'prelu-swap' says 'relu', not 'mish': give this variant its own `name`",
        ),
        (
            "use: annealed, name: late, start: 0.5",
            "use: gelu-swap, base: silu",
            "r.yaml:3:35 variants[1].base: 'gelu-swap' says 'gelu', not 'silu': give this variant its own `name`",
        ),
        (
            "use: annealed, name: late, start: 0.5",
            "use: swish-annealed, name: swish-annealed, activation: gelu",
            "r.yaml:3:62 variants[1].activation: 'swish-annealed' says 'swish', not 'gelu': give this variant its own `name`",
        ),
        ("[0, 1]", "3", "r.yaml:4:1 seeds: must be a list, as in [a, b], got 3"),
        ("[0, 1]", "[]", "r.yaml:4:1 seeds: must not be empty, got []"),
        ("[0, 1]", "[0, 0]", "r.yaml:4:12 seeds[1]: seed 0 is given twice: it would count as two"),
        pytest.param(
            "[0, 1]",
            f"[{', '.join(map(str, [*range(5_000), 7]))}]",
            "r.yaml:4:28899 seeds[5000]: seed 7 is given twice: it would count as two",
            id="many seeds",
        ),
        ("[0, 1]", "[-1]", "r.yaml:4:9 seeds[0]: a seed is in [0, 2^31), got -1"),
        (
            "name: late",
            f"name: {'a' * 65}",
            "r.yaml:3:34 variants[1].name: a name has at most 64 characters, got 65; give this one a shorter `name`",
        ),
        (
            "name: tiny",
            f"name: {'a' * 65}",
            f"r.yaml:1:1 name: a name has at most 64 characters, got '{'a' * 65}'",
        ),
        (
            "name: tiny",
            'name: tiny\n"\\e[31m": 3',
            "r.yaml:2:1 \\x1b[31m: unknown key; known: baseline, learning_rates, memory_limit, name, seeds, split_by_seed, steps, time_limit, variants, workloads",
        ),
        (
            "name: tiny",
            'name: "\\ud800"',
            "r.yaml:1:1 name: a name is letters, digits, '.', '_' and '-', got '?'",
        ),
        (
            "name: tiny",
            "name: tiny\nmemory_limit: -1",
            "r.yaml:2:1 memory_limit: input should be greater than or equal to 0, got -1",
        ),
        (
            "name: tiny",
            "name: tiny\nlearning_rates: {digits-mpl: {gelu: 0.1}}",
            "r.yaml:2:18 learning_rates.digits-mpl: no workload is called 'digits-mpl'; did you mean 'digits-mlp'?",
        ),
        (
            "name: tiny",
            "name: tiny\nlearning_rates: {digits-mlp: {glu: 0.1}}",
            "r.yaml:2:31 learning_rates.digits-mlp.glu: no variant that trains is called 'glu'; did you mean 'gelu'?",
        ),
        (
            "name: tiny",
            "name: tiny\nlearning_rates: {digits-mlp: {gelu: 2}}",
            "r.yaml:2:31 learning_rates.digits-mlp.gelu: learning_rate must be in (0, 1), got 2.0",
        ),
        (
            "name: tiny",
            "name: tiny\nlearning_rates: {digits-mlp: {gelu: fast}}",
            "r.yaml:2:31 learning_rates.digits-mlp.gelu: must be a number, got 'fast'",
        ),
        (
            "name: late, start: 0.5}]",
            "name: late}, gelu-swap]\nlearning_rates: {digits-mlp: {gelu-swap: 0.1}}",
            "r.yaml:4:31 learning_rates.digits-mlp.gelu-swap: 'gelu-swap' starts from the network of 'gelu', and takes the rate of that",
        ),
        (
            "{use: digits-mlp, epochs: 2}]",
            "text-gpt]\nsplit_by_seed: true",
            "r.yaml:3:1 split_by_seed: no workload here has the option `split`: their data come cut; leave this out",
        ),
        ("epochs: 2", "split: -1", "r.yaml:2:13 workloads[0]: split must be in [0, 2^31), got -1"),
        (
            "epochs: 2}]",
            "split: 3}]\nsplit_by_seed: true",
            "r.yaml:2:31 workloads[0].split: by `split_by_seed` each seed has a split of its own; leave one of the two out",
        ),
        ("[0, 1]", "[true]", "r.yaml:4:9 seeds[0]: must be a whole number, got True"),
        (
            "- accuracy",
            "- acuracy",
            "r.yaml:6:5 steps[0].use: unknown stage 'acuracy'; did you mean 'accuracy'?",
        ),
        (
            "sparsity: 0.25",
            "sparsty: 0.25",
            "r.yaml:8:5 steps[1].sparsty: unknown option of stage 'prune'; did you mean 'sparsity'?",
        ),
        (
            "time_limit: 30",
            "time_limit: -3",
            "r.yaml:9:5 steps[1].time_limit: time_limit is a number of seconds in (0, 10^7], got -3",
        ),
        (
            "time_limit: 30",
            "after: []",
            "r.yaml:9:5 steps[1].after: no earlier step is called []; known: accuracy",
        ),
        (
            "- accuracy",
            "- {use: accuracy, name: train}",
            "r.yaml:6:21 steps[0].name: 'train' is the making of the network; choose another name",
        ),
        (
            "after: prune",
            "after: prunes",
            "r.yaml:10:40 steps[2].after: no earlier step is called 'prunes'; did you mean 'prune'?",
        ),
        (
            "name: tiny",
            "name: tiny\nbaseline: glu",
            "r.yaml:2:1 baseline: the baseline 'glu' is not among the variants; add it, or choose another with `baseline:` (gelu, late)",
        ),
        (
            "name: tiny",
            "name: tiny\nstep: 3",
            "r.yaml:2:1 step: unknown key; did you mean 'steps'?",
        ),
        ("name: tiny\n", "", "r.yaml:1:1 'name' is missing"),
        (
            "  - accuracy",
            "  - accuracy: {}",
            "r.yaml:6:5 steps[0]: `use` is missing: which plugin?",
        ),
    ],
)
def test_each_error_names_place_value_and_cure(old: str, new: str, said: str) -> None:
    assert problems(GOOD.replace(old, new, 1)) == [said]


def test_all_errors_are_reported_at_once_in_order() -> None:
    said = problems(
        GOOD.replace("digits-mlp", "x").replace("gelu,", "glu,").replace("accuracy", "accurcy")
    )
    assert [line.split(" ")[0] for line in said] == ["r.yaml:2:14", "r.yaml:3:12", "r.yaml:6:5"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "r.yaml:1:1 a recipe is a mapping with workloads and steps; this is empty"),
        ("- a", "r.yaml:1:1 a recipe is a mapping with workloads and steps; this is a list"),
        ("a: [1", "r.yaml:1:6 not valid YAML: expected ',' or ']', but got '<stream end>'"),
        (
            "a: 1\na: 2",
            'r.yaml:2:1 not valid YAML: found duplicate key "a" with value "2" (original value: "1")',
        ),
        (
            "a: !!bool x",
            "r.yaml:1:4 a tag (tag:yaml.org,2002:bool): recipes have none; quote it if it is meant as text",
        ),
        (
            "a: !mine x",
            "r.yaml:1:4 a tag (!mine): recipes have none; quote it if it is meant as text",
        ),
        ("a: 0x_", "r.yaml:1:1 not valid YAML: string index out of range"),
        ("%YAML 1.1\n---\non: 3", "r.yaml:3:1 a key is text, and True is none: quote it"),
        ("a: {3: 4}", "r.yaml:1:5 a key is text, and 3 is none: quote it"),
        ("a: &b [*b]", "r.yaml:1:8 *b stands inside what it stands for"),
    ],
)
def test_what_is_no_recipe(text: str, said: str) -> None:
    assert problems(text) == [said]


def test_aliases_that_expand_without_end_are_refused_and_others_read() -> None:
    lines = ["l0: &l0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert problems("\n".join(lines))[0].endswith(
        "aliases that expand to too much: write out what is meant"
    )
    recipe = parse_recipe(
        GOOD.replace("[0, 1]", "&some [0, 1]").replace("late, start: 0.5", "late, start: &s 0.5")
    )
    assert recipe.seeds == (0, 1)


def test_files_that_are_no_recipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "endless").touch()
    os.truncate(tmp_path / "endless", 2**40)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "latin").write_bytes("name: a\nworkloads: [café]\n".encode("latin-1"))
    for name, reason in (
        ("pipe", "1:1 cannot read the recipe: a pipe or a device, not a file"),
        ("device", "1:1 cannot read the recipe: a pipe or a device, not a file"),
        ("endless", "1:1 cannot read the recipe: has more than 16 MiB"),
        ("none.yaml", "1:1 cannot read the recipe: No such file"),
        (".", "1:1 cannot read the recipe: Is a directory"),
        ("binary", "1:1 cannot read the recipe: not UTF-8 text; save it as UTF-8"),
        ("latin", "2:1 cannot read the recipe: not UTF-8"),
    ):
        with pytest.raises(RecipeError, match=f":{reason}"):
            read_recipe(tmp_path / name)


@pytest.mark.slow
def test_absurd_sizes_are_errors_like_others() -> None:
    assert (
        "time_limit is a number of seconds"
        in problems(GOOD.replace("time_limit: 30", f"time_limit: 1{'0' * 400}"))[0]
    )
    assert problems("name: " + "[" * 1200 + "]" * 1200)[0].startswith("r.yaml:1:1 ")


def test_the_record_says_which_options_go_by_variant_and_by_seed() -> None:
    head = "learning_rates: {digits-mlp: {gelu: 0.02}}\nsplit_by_seed: true\nname: tiny"
    recipe = parse_recipe(GOOD.replace("name: tiny", head))
    told = RunRecord.begin(recipe, jobs_of(recipe), 1, "").data["digits-mlp"]["help"]
    assert "learning_rate=by variant" in told
    assert "split=by seed" in told
    plain = parse_recipe(GOOD)
    told = RunRecord.begin(plain, jobs_of(plain), 1, "").data["digits-mlp"]["help"]
    assert "learning_rate=0.003" in told
    assert "split=0" in told


@dataclass(frozen=True)
class Fails:
    error: BaseException

    def fingerprint(self) -> NoReturn:
        raise self.error


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            AdultMLP(file="/nowhere/adult.whl"),
            "/nowhere/adult.whl is missing: `file` names adult.parquet.brotli or",
        ),
        (
            Fails(PermissionError(13, "Permission denied", "/a")),
            "/a: Permission denied; put it there, or name another",
        ),
        (
            Fails(ValueError("x.gz: damaged;\n download it again")),
            "x.gz: damaged; download it again",
        ),
        (
            Fails(ModuleNotFoundError("No module named 'y'")),
            "ModuleNotFoundError: No module named 'y'",
        ),
        (Fails(KeyError("z")), "KeyError: 'z'"),
        (Fails(SystemExit(3)), "SystemExit: 3"),
    ],
)
def test_unreadable_data_are_named_with_what_is_wrong(target: object, said: str) -> None:
    with pytest.raises(DataError) as caught:
        fingerprint_of(Part("mine", "adult-mlp", {}, target))
    assert str(caught.value).startswith(f"workload 'mine': its data cannot be read: {said}")
    assert "\n" not in str(caught.value)

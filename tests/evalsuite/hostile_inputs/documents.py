"""Settings of the command line, recipes and gates."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML

from hostile_inputs import sound
from hostile_inputs.cases import ODD, PAYLOAD, Case, init, paths, replaced, writing


def settings() -> Iterator[Case]:
    names = (
        "model",
        "data",
        "task",
        "inputs",
        "output",
        "activation",
        "loss",
        "metrics",
        "start",
        "epochs",
        "depends",
        "data.target",
        "data.features",
        "data.size",
        "data.labels",
        "data.limit",
        "data.test",
        "data.a.b",
        "nothing",
        "learning_rate",
        "batch_size",
        "data.tokenizer",
        "model.weights",
        "model.args",
    )
    values = (
        "[1,2]",
        "{a: 1}",
        "null",
        "-1",
        "1e999",
        "",
        "!!python/object/apply:os.system ['touch " + PAYLOAD + "']",
        "&a [*a]",
        "'\x1b'",
        "net.py:net",
    )
    for name in names:
        for number, value in enumerate(values):
            yield Case(
                f"--set {name} {number}",
                init("d.npz", "--set", f"{name}={value}"),
                writing(d__npz=sound.npz()),
            )
    for odd in ("", "=", "=1", "data", "data.=1", ".=1", "data..=1"):
        yield Case(f"--set {odd}", init("d.npz", "--set", odd), writing(d__npz=sound.npz()))


def documents() -> Iterator[Case]:
    """Recipes and gates."""
    recipe = {
        "name": "a",
        "workloads": [{"use": "digits-mlp"}],
        "variants": ["gelu"],
        "seeds": [0],
        "steps": ["accuracy"],
    }
    draw, places = random.Random(12), list(paths(recipe))
    for number in range(60):
        text = _yaml(replaced(recipe, draw.choice(places), draw.choice(ODD)))
        yield Case(
            f"recipe {number}", ("plan", "r.yaml", "--cache", "cache"), writing(r__yaml=text)
        )
    odd = (
        "[" * 20_000,
        "a: " * 3000,
        "&a [*a]",
        "!!python/object/apply:os.system ['touch " + PAYLOAD + "']",
        "\x00",
        "",
        "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]\n"
        * 2,
    )
    results, record = sound.run()
    for number, text in enumerate(
        (*odd, *(f"gates: [{{metric: {json.dumps(value)}, margin: 1}}]" for value in ODD))
    ):
        yield Case(
            f"odd recipe {number}", ("plan", "r.yaml", "--cache", "cache"), writing(r__yaml=text)
        )
        files = {
            "g__yaml": text,
            "run_of_results__parquet": results,
            "run_of_run__json": json.dumps(record),
        }
        yield Case(
            f"gates {number}",
            ("compare", "run", "run", "--gate", "g.yaml", "--out", "out"),
            writing(**files),
        )


def _yaml(tree: Any) -> str:
    stream = io.StringIO()
    YAML(typ="safe").dump(tree, stream)
    return stream.getvalue()

"""Mutated proofs: whatever is changed in one, the checker refuses what then says something else."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from test_proofs import Json, Net, examples, sealed, text

from evalsuite.verification.proofs import ProofError, check_proof

Change = Callable[[Json, random.Random], None]


def value_of(number: str) -> Fraction:
    whole, _, exponent = number.partition("p-")
    return Fraction(int(whole), 2 ** int(exponent or 0))


def other_number(number: str, rng: random.Random) -> str:
    """Another number: nearby, of another size, of another sign, or another digit of its text."""
    value = value_of(number)
    unit = Fraction(1, value.denominator)
    digits = list(str(abs(value.numerator)))
    place = rng.randrange(len(digits))
    digits[place] = rng.choice("0123456789".replace(digits[place], ""))
    choices = [
        value + unit,
        value - unit,
        value + unit * rng.choice((-1, 1)) / 2 ** rng.randrange(1, 40),
        -value,
        2 * value,
        value / 2,
        ZERO,
        value + Fraction(rng.randrange(-100, 100), 64),
        Fraction(int("".join(digits)), value.denominator) * (1 if value > 0 else -1),
    ]
    return text(rng.choice([each for each in choices if each != value]))


ZERO = Fraction(0)


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers that are text."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in ("sha256", "format", "digest"):
                yield from places(each, *path, key)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, *path, index)
    elif isinstance(value, str):
        yield path


def change_number(part: str) -> Change:
    def change(proof: Json, rng: random.Random) -> None:
        *path, last = rng.choice(list(places(proof[part])))
        inner = proof[part]
        for key in path:
            inner = inner[key]
        inner[last] = other_number(inner[last], rng)

    return change


def nodes(tree: Json) -> Iterator[Json]:
    yield tree
    if "neuron" in tree:
        yield from nodes(tree["on"])
        yield from nodes(tree["off"])


def any_node(proof: Json, rng: random.Random, split: bool) -> Json | None:
    found = [node for tree in proof["trees"] for node in nodes(tree) if ("neuron" in node) == split]
    return rng.choice(found) if found else None


def any_neuron(proof: Json, rng: random.Random) -> list[int]:
    layer = rng.randrange(len(proof["neurons"]))
    return [layer, rng.randrange(len(proof["neurons"][layer]))]


def become(node: Json, other: Json) -> None:
    replaced = copy.deepcopy(other)
    node.clear()
    node.update(replaced)


def change_split(proof: Json, rng: random.Random) -> None:
    node = any_node(proof, rng, split=True)
    if node is not None:
        node["neuron"] = any_neuron(proof, rng)


def swap_branches(proof: Json, rng: random.Random) -> None:
    node = any_node(proof, rng, split=True)
    if node is not None:
        node["on"], node["off"] = node["off"], node["on"]


def prune_branch(proof: Json, rng: random.Random) -> None:
    node = any_node(proof, rng, split=True)
    if node is not None:
        become(node, node[rng.choice(("on", "off"))])


def graft(proof: Json, rng: random.Random) -> None:
    first, second = any_node(proof, rng, split=False), any_node(proof, rng, split=rng.random() < 0.5)
    if first is not None and second is not None:
        become(first, second)


def grow(proof: Json, rng: random.Random) -> None:
    node = any_node(proof, rng, split=False)
    if node is not None:
        leaf = copy.deepcopy(node)
        become(node, {"neuron": any_neuron(proof, rng), "on": leaf, "off": leaf})


def change_entry(proof: Json, rng: random.Random) -> None:
    """Of a leaf's p: one more, one less, or one of another neuron."""
    node = any_node(proof, rng, split=False)
    assert node is not None
    entries = node["p"]
    kind = rng.randrange(3)
    if kind == 0 or not entries:
        entries.append([*any_neuron(proof, rng), text(Fraction(rng.randrange(-64, 64), 32))])
    elif kind == 1:
        entries.pop(rng.randrange(len(entries)))
    else:
        entries[rng.randrange(len(entries))][:2] = any_neuron(proof, rng)
    entries.sort(key=lambda each: (-each[0], each[1]))


def change_trees(proof: Json, rng: random.Random) -> None:
    kind = rng.randrange(3)
    if kind == 0:
        proof["trees"].reverse()
    elif kind == 1:
        proof["trees"].pop()
    else:
        proof["trees"][0] = copy.deepcopy(proof["trees"][-1])


def change_rows(proof: Json, rng: random.Random) -> None:
    row = rng.choice(proof["property"]["rows"])["coefficients"]
    if rng.random() < 0.5:
        values = list(row.values())[::-1]
        row.update(zip(list(row), values, strict=True))
    else:
        row[str(rng.randrange(proof["network"]["layers"][-1]))] = text(Fraction(rng.randrange(2, 9), 4))


def change_ends(proof: Json, rng: random.Random) -> None:
    ends = proof["box"][rng.choice(("lower", "upper"))]
    i, j = rng.sample(range(len(ends)), 2)
    ends[i], ends[j] = ends[j], ends[i]


def change_network(proof: Json, rng: random.Random) -> None:
    about = proof["network"]
    kind = rng.randrange(4)
    if kind == 0:
        about["inputs"] += rng.choice((-1, 1))
    elif kind == 1:
        about["layers"][rng.randrange(len(about["layers"]))] += rng.choice((-1, 1))
    else:
        place = rng.randrange(64)
        digit = rng.choice("0123456789abcdef".replace(about["sha256"][place], ""))
        about["sha256"] = about["sha256"][:place] + digit + about["sha256"][place + 1 :]


NUMBERS = [change_number(part) for part in ("box", "property", "neurons", "trees")]
# Numbers are most of a file, and half of what is changed here.
CHANGES: list[Change] = [
    *NUMBERS * 3,
    *(change_split, swap_branches, prune_branch, graft, grow, change_entry, change_entry),
    *(change_trees, change_rows, change_ends, change_network),
]


def mutated(proof: Json, rng: random.Random) -> Json:
    """Another proof, with a digest that fits."""
    original = json.dumps(sealed(proof), sort_keys=True)
    while True:
        found = copy.deepcopy(proof)
        rng.choice(CHANGES)(found, rng)
        found = sealed(found)
        if json.dumps(found, sort_keys=True) != original:
            return found


def other_weight(net: Net, rng: random.Random) -> bytes:
    """The network's file with one weight or bias that is the next float32 number, or another."""
    model = onnx.load_model_from_string(net.onnx())
    tensor = rng.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor).copy()
    place = tuple(rng.randrange(size) for size in array.shape)
    old = array[place]
    array[place] = rng.choice((np.nextafter(old, np.float32(9)), np.nextafter(old, np.float32(-9)), -old, old * 2))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    data: bytes = model.SerializeToString()
    return data


def accepted(of: list[tuple[Net, Json]], count: int) -> list[tuple[Json, Json]]:
    """The pairs (proof, mutation) that are accepted, of `count` mutations."""
    rng = random.Random(0)
    found = []
    for number in range(count):
        net, proof = of[number % len(of)]
        data = net.onnx()
        other, data = mutated(proof, rng), net.onnx()
        if number % 20 == 19:
            other, data = proof, other_weight(net, rng)
        try:
            check_proof(other, data)
        except ProofError:
            continue
        found.append((proof, other))
    return found


def differences(first: Any, second: Any, place: str = "") -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        for key in first:
            yield from differences(first[key], second[key], f"{place}.{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, pair in enumerate(zip(first, second, strict=True)):
            yield from differences(*pair, f"{place}[{index}]")
    elif first != second:
        yield f"{place}: {str(first)[:300]} -> {str(second)[:300]}"


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutations_that_change_meaning_are_refused(count: int) -> None:
    of = examples(6 if count < 1000 else 20)
    found = accepted(of, count)
    report = [" ".join(differences(*pair)) for pair in found]
    assert len(found) <= count / 1000, report

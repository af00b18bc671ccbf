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
from cases import slow
from generated_proofs import ZERO, Json, Net, examples, sealed, text
from onnx import numpy_helper

from netverify.proofs import ProofError, check_proof

Spot = tuple[Any, Any]
ODD = [
    None,
    True,
    -1,
    2**40,
    0.5,
    float("nan"),
    "",
    "x",
    "1e9",
    [],
    [[]],
    {},
    {"neuron": [0, 0]},
    "9" * 5000,
]


def spots(value: Any) -> Iterator[Spot]:
    """Each list or object with each of its keys."""
    for key in (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else []
    ):
        yield value, key
        yield from spots(value[key])


def kind(value: Any) -> str:
    """What may stand in the same place."""
    if isinstance(value, dict):
        return "tree" if value.keys() & {"neuron", "bound"} else " ".join(sorted(value))
    return type(value).__name__


def other_number(number: str, rng: random.Random) -> str:
    """Another number: nearby, of another size, of another sign, or another digit of its text."""
    whole, _, exponent = number.partition("p-")
    value = Fraction(int(whole), 2 ** int(exponent or 0))
    unit, digits = Fraction(1, value.denominator), list(str(abs(value.numerator)))
    place = rng.randrange(len(digits))
    digits[place] = rng.choice("0123456789".replace(digits[place], ""))
    near = [
        value + unit,
        value - unit,
        value + unit * rng.choice((-1, 1)) / 2 ** rng.randrange(1, 40),
    ]
    far = [-value, 2 * value, value / 2, ZERO, value + Fraction(rng.randrange(-100, 100), 64)]
    digit = Fraction(int("".join(digits)), value.denominator) * (1 if value > 0 else -1)
    return text(rng.choice([each for each in (*near, *far, digit) if each != value]))


def renumbered(proof: Json, rng: random.Random) -> None:
    """One number, digit of the digest of the network, layer, neuron or size is another."""
    part = rng.choice(["network", "box", "property", "neurons", "trees"])
    found = [
        (inside, key) for inside, key in spots(proof[part]) if isinstance(inside[key], int | str)
    ]
    inside, key = rng.choice(found)
    if isinstance(inside[key], int):
        inside[key] += rng.choice((-1, 1))
    elif key == "sha256":
        place = rng.randrange(64)
        digit = rng.choice("0123456789abcdef".replace(inside[key][place], ""))
        inside[key] = inside[key][:place] + digit + inside[key][place + 1 :]
    else:
        inside[key] = other_number(inside[key], rng)


def moved(proof: Json, rng: random.Random) -> None:
    """Of two parts of one kind, trees for instance, one is put in the place of the other, or
    they are exchanged.
    """
    found = list(spots(proof))
    chosen = rng.choice(sorted({kind(inside[key]) for inside, key in found}))
    (inside, key), (other, place) = rng.choices(
        [each for each in found if kind(each[0][each[1]]) == chosen], k=2
    )
    first, second = copy.deepcopy(inside[key]), copy.deepcopy(other[place])
    inside[key] = second
    if rng.random() < 0.5:
        other[place] = first


def resized(proof: Json, rng: random.Random) -> None:
    """A part is split once more by some neuron, or a list is longer or shorter."""
    inside, key = rng.choice(
        [each for each in spots(proof) if kind(each[0][each[1]]) in ("tree", "list")]
    )
    value = inside[key]
    if isinstance(value, dict):
        layer = rng.randrange(len(proof["neurons"]))
        neuron = [layer, rng.randrange(len(proof["neurons"][layer]))]
        inside[key] = {"neuron": neuron, "on": value, "off": copy.deepcopy(value)}
    elif not value or rng.random() < 0.5:
        value.insert(
            0,
            [0, 0, text(Fraction(rng.randrange(-64, 64), 32))]
            if key == "p"
            else copy.deepcopy(value[:1]),
        )
    else:
        value.pop(rng.randrange(len(value)))


def damaged(proof: Json, rng: random.Random) -> None:
    """Any value at any place, or none: whatever is refused, there is no other exception."""
    inside, key = rng.choice(list(spots(proof)))
    if rng.random() < 0.2:
        del inside[key]
    else:
        inside[key] = copy.deepcopy(rng.choice(ODD))


CHANGES: list[Callable[[Json, random.Random], None]] = [
    renumbered,
    renumbered,
    moved,
    moved,
    resized,
    damaged,
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
    array[place] = rng.choice(
        (np.nextafter(old, np.float32(9)), np.nextafter(old, np.float32(-9)), -old, old * 2)
    )
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize("count", [120, slow(1500)])
def test_mutations_that_change_meaning_are_refused(count: int) -> None:
    rng, of, accepted = random.Random(0), examples(4 if count < 1000 else 10), []
    for number in range(count):
        net, proof = of[number % len(of)]
        other, data = mutated(proof, rng), net.onnx()
        if number % 20 == 19:
            other, data = proof, other_weight(net, rng)
        try:
            check_proof(other, data)
        except ProofError:
            continue
        accepted.append((proof, other))
    assert len(accepted) <= count / 1000, accepted

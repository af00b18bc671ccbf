"""Networks, properties and proofs, as `verify` and `check-proof` read them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hostile_inputs import sound
from hostile_inputs.cases import ODD, Case, mutations, paths, replaced, verify, writing


def networks() -> Iterator[Case]:
    for number, damaged in enumerate(mutations(sound.onnx_file(), 48, 3)):
        yield Case(
            f"network {number}",
            verify("n.onnx"),
            writing(n__onnx=damaged, p__vnnlib=sound.PROPERTY),
        )
    for number, damaged in enumerate(mutations(gzip.compress(sound.onnx_file()), 12, 4)):
        yield Case(
            f"packed network {number}",
            verify("n.onnx.gz"),
            writing(n__onnx__gz=damaged, p__vnnlib=sound.PROPERTY),
        )
    for name, model in _odd_models():
        files = {
            "n__onnx": model.SerializeToString(),
            "p__vnnlib": sound.PROPERTY,
            "d__npz": sound.npz(),
        }
        for engine in ("auto", "exact"):
            yield Case(
                f"{name}, {engine}",
                verify("n.onnx", "p.vnnlib", "--engine", engine),
                writing(**files),
            )
        yield Case(
            f"{name}, init", ("init", "n.onnx", "--quick", "--data", "d.npz"), writing(**files)
        )
    for number, damaged in enumerate(mutations(sound.onnx_file(), 24, 5)):
        words = ("init", "n.onnx", "--quick", "--data", "d.npz")
        yield Case(f"model {number}", words, writing(n__onnx=damaged, d__npz=sound.npz()))


def _odd_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    def held(array: Any, name: str = "c") -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(np.asarray(array), name)

    node, slices = helper.make_node, ["x", "s", "e"]
    yield (
        "cycle",
        sound.onnx_model(
            [
                node("Add", ["x", "b"], ["a"]),
                node("Add", ["a", "x"], ["b"]),
                node("Relu", ["b"], ["y"]),
            ]
        ),
    )
    yield "missing input", sound.onnx_model([node("Relu", ["nothing"], ["y"])])
    yield "output twice", sound.onnx_model([node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["y"])])
    yield "unknown operator", sound.onnx_model([node("Nothing", ["x"], ["y"])])
    yield "foreign operator", sound.onnx_model([node("Run", ["x"], ["y"], domain="own")])
    yield "no inputs of a node", sound.onnx_model([node("Relu", [], ["y"])])
    yield "wrong attribute", sound.onnx_model([node("Relu", ["x"], ["y"], axis="a")])
    yield (
        "negative sizes",
        sound.onnx_model([node("Reshape", ["x", "c"], ["y"])], [held(np.array([-5, -1], "i8"))]),
    )
    yield (
        "zero size",
        sound.onnx_model([node("Reshape", ["x", "c"], ["y"])], [held(np.array([0, 0, 0], "i8"))]),
    )
    yield "no axis", sound.onnx_model([node("Concat", ["x", "x"], ["y"], axis=99)])
    yield (
        "slice",
        sound.onnx_model(
            [node("Slice", slices, ["y"])],
            [held(np.array([2**62]), "s"), held(np.array([-(2**62)]), "e")],
        ),
    )
    yield (
        "not finite",
        sound.onnx_model([node("Mul", ["x", "c"], ["y"])], [held(np.full(4, np.nan, "f4"))]),
    )
    yield (
        "kernel 0",
        sound.onnx_model([node("Conv", ["x", "c"], ["y"])], [held(np.zeros((1, 1, 0, 0), "f4"))]),
    )
    yield "outside", sound.onnx_model([node("Mul", ["x", "c"], ["y"])], [_external("/etc/passwd")])
    yield (
        "outside by dots",
        sound.onnx_model([node("Mul", ["x", "c"], ["y"])], [_external("../../../../etc/passwd")]),
    )
    wrong = held(np.zeros(4, "f4"))
    wrong.dims[0] = 1 << 40
    yield "promised constant", sound.onnx_model([node("Mul", ["x", "c"], ["y"])], [wrong])
    wrong = held(np.zeros(4, "f4"))
    wrong.data_type = 99
    yield "unknown type", sound.onnx_model([node("Mul", ["x", "c"], ["y"])], [wrong])
    inner = helper.make_graph(
        [node("Relu", ["x"], ["z"])], "inner", [], [helper.make_tensor_value_info("z", 1, None)]
    )
    for depth in range(20):
        outer = node(
            "If", ["c"], ["z"], then_branch=inner, else_branch=inner if depth < 3 else None
        )
        inner = helper.make_graph(
            [outer], f"g{depth}", [], [helper.make_tensor_value_info("z", 1, None)]
        )
    yield (
        "deep",
        sound.onnx_model(
            [node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)], [held(np.array(True))]
        ),
    )
    yield (
        "sizes of names",
        sound.onnx_model([node("Relu", ["x"], ["y"])], given=["a", "b"], made=["c", "d"]),
    )
    yield "many sizes", sound.onnx_model([node("Relu", ["x"], ["y"])], given=[1] * 500)
    yield "sizes below 0", sound.onnx_model([node("Relu", ["x"], ["y"])], given=[-1, -4])
    yield "huge input", sound.onnx_model([node("Relu", ["x"], ["y"])], given=[1 << 40, 4])


def _external(place: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(
        name="c", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", place
    return tensor


def properties() -> Iterator[Case]:
    for number, damaged in enumerate(mutations(sound.PROPERTY.encode(), 48, 6)):
        yield Case(
            f"property {number}",
            verify("n.onnx"),
            writing(n__onnx=sound.onnx_file(), p__vnnlib=damaged),
        )
    deep = 20_000
    texts = (
        "(" * deep,
        f"{sound.DECLARED}(assert {'(and ' * deep}{')' * deep})",
        f"{sound.DECLARED}{sound.BOX}(assert (<= Y_0 1e999999999))",
        f"{sound.DECLARED}{sound.BOX}(assert (<= Y_0 {'9' * 100_000}))",
        f"{sound.DECLARED}{sound.BOX}(assert (or {'(and (<= Y_0 Y_1))' * 3000}))",
        f"{sound.DECLARED}{sound.BOX}" + "(assert (or (and (<= Y_0 0)) (and (<= Y_1 0))))" * 60,
        "(declare-const X_99999999999 Real)",
        "(declare-const X_0 Real)" * 3,
        f"{sound.DECLARED}{sound.BOX}(assert (<= (* Y_0 Y_1) 0))",
        f"{sound.DECLARED}(assert (<= X_0 nan))",
        "\x00" * 100,
        f"{sound.DECLARED}{sound.BOX}(assert (<= Y_0 1/0))",
        "(vnnlib-version <2.0>)(declare-network N)",
        "; " + "a" * 10**6,
    )
    for number, text in enumerate(texts):
        for engine in ("auto", "exact"):
            words = verify("n.onnx", "p.vnnlib", "--engine", engine)
            yield Case(
                f"odd property {number}, {engine}",
                words,
                writing(n__onnx=sound.onnx_file(), p__vnnlib=text),
            )
    lines = (
        "",
        "onnx,vnnlib",
        "a,b,c",
        "n.onnx,p.vnnlib,nan",
        "n.onnx,p.vnnlib,1e400",
        "n.onnx",
        '"',
        "\x00,\x00,1",
    )
    for number, line in enumerate(lines):
        files = {"n__onnx": sound.onnx_file(), "p__vnnlib": sound.PROPERTY, "i__csv": line}
        yield Case(f"instances {number}", ("verify", "--instances", "i.csv"), writing(**files))


def proofs() -> Iterator[Case]:
    words, draw = (
        ("check-proof", "q.json", "--onnx", "n.onnx", "--vnnlib", "p.vnnlib"),
        random.Random(8),
    )

    def case(name: str, content: bytes | str) -> Case:
        return Case(
            name,
            words,
            writing(n__onnx=sound.onnx_file(), p__vnnlib=sound.PROPERTY, q__json=content),
        )

    tree = json.loads(sound.proof())
    places = list(paths(tree))
    for number in range(80):
        path, value = draw.choice(places), draw.choice(ODD)
        yield case(f"proof {number} {path}"[:60], json.dumps(replaced(tree, path, value)))
    for number, damaged in enumerate(mutations(sound.proof(), 24, 9)):
        yield case(f"damaged proof {number}", damaged)
    for number, text in enumerate(
        ("", "[", "[" * 100_000, "9" * 100_000, "null", '{"format": "evalsuite-proof/1"}')
    ):
        yield case(f"no proof {number}", text)

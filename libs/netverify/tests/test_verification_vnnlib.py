"""VNN-LIB files, of both versions: what is read, exactly, and what each malformed file is told."""

from __future__ import annotations

import gzip
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from netverify.specification import Box
from netverify.vnnlib import parse_vnnlib, read_vnnlib
from netverify.vnnlib_cases import VnnLibError
from opgraph.errors import OwnError

# three lines
DECLARED = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
BOXED = DECLARED + "(assert (>= X_0 -0.1))\n(assert (<= X_0 0.3))\n"  # five lines


def constraints(formula: str) -> list[list[tuple[dict[int, Fraction], Fraction, bool]]]:
    cases = parse_vnnlib(BOXED + f"(assert {formula})").cases
    return [
        [(dict(each.terms), each.bound, each.strict) for each in case.constraints] for case in cases
    ]


def test_decimals_are_exact_rationals() -> None:
    read = parse_vnnlib(BOXED + "(assert (<= Y_0 1e-30)) ; a comment )\n")
    assert (read.inputs, read.outputs, len(read.cases)) == (1, 2, 1)
    assert read.cases[0].box == Box((Fraction(-1, 10),), (Fraction(3, 10),))
    assert read.cases[0].constraints[0].bound == Fraction(1, 10**30)


@pytest.mark.parametrize(
    ("formula", "found"),
    [
        ("(<= Y_0 Y_1)", [({0: 1, 1: -1}, 0, False)]),
        ("(>= Y_0 2)", [({0: -1}, -2, False)]),
        ("(< 0.5 Y_1)", [({1: -1}, Fraction(-1, 2), True)]),
        ("(<= (+ (* 2 Y_0) (* Y_1 -3) 1) (- 4))", [({0: 2, 1: -3}, -5, False)]),
        ("(>= (- Y_0 Y_1 1) (- (* 2 (+ Y_0 1))))", [({0: -3, 1: 1}, 1, False)]),
        ("(= Y_0 1)", [({0: 1}, 1, False), ({0: -1}, -1, False)]),
    ],
)
def test_linear_constraints(formula: str, found: list[tuple[dict[int, int], int, bool]]) -> None:
    assert constraints(formula) == [found]


def test_disjunctive_normal_form() -> None:
    found = constraints(
        "(and (or (<= Y_0 1) (<= Y_0 2)) (or (<= Y_1 3) (and (<= Y_1 4) (<= Y_0 5))))"
    )
    bounds = [sorted(int(bound) for _, bound, _ in case) for case in found]
    assert bounds == [[1, 3], [1, 4, 5], [2, 3], [2, 4, 5]]


def test_boxes_of_disjuncts_meet_the_box_of_all() -> None:
    text = (
        BOXED
        + "(assert (or (and (<= X_0 0) (<= Y_0 1)) (and (>= X_0 0.25) (<= X_0 9) (<= Y_0 2))))"
    )
    first, second = parse_vnnlib(text).cases
    assert first.box == Box((Fraction(-1, 10),), (Fraction(0),))
    assert second.box == Box((Fraction(1, 4),), (Fraction(3, 10),))


def test_a_disjunct_with_a_reversed_box_is_no_case() -> None:
    found = parse_vnnlib(
        BOXED + "(assert (or (and (>= X_0 1) (<= Y_0 1)) (and (>= X_0 0) (<= Y_0 2))))"
    ).cases
    assert [case.box for case in found] == [Box((Fraction(0),), (Fraction(3, 10),))]
    assert found[0].constraints[0].bound == 2


def test_equal_boxes_and_constraints_are_one_object() -> None:
    halves = " ".join(f"(and (>= X_0 0) (<= Y_0 {i}))" for i in range(3))
    for formula in (f"(assert (or {halves}))", "(assert (or (<= Y_0 1) (<= Y_0 2) (<= Y_0 3)))"):
        cases = parse_vnnlib(BOXED + formula + "(assert (<= Y_1 0))").cases
        assert len(cases) == 3
        assert len({id(case.box) for case in cases}) == 1
        assert len({id(case.constraints[0]) for case in cases}) == 1


def test_the_check_ends_the_reading(tmp_path: Path) -> None:
    def stop() -> None:
        raise TimeoutError

    (tmp_path / "p.vnnlib").write_text(BOXED)
    with pytest.raises(TimeoutError):
        read_vnnlib(tmp_path / "p.vnnlib", stop)


def test_a_coefficient_turns_the_side_of_a_bound() -> None:
    read = parse_vnnlib(DECLARED + "(assert (and (<= (* -2 X_0) 3) (<= X_0 (+ 1 1))))")
    assert read.cases[0].box == Box((Fraction(-3, 2),), (Fraction(2),))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("p.vnnlib", b"\xef\xbb\xbf" + BOXED.encode()),
        ("p.vnnlib.gz", gzip.compress(BOXED.encode())),
    ],
    ids=["mark", "gzip"],
)
def test_a_byte_order_mark_and_gzip_are_read(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert read_vnnlib(tmp_path / name) == parse_vnnlib(BOXED)


PACKED = gzip.compress(BOXED.encode() * 20)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "p.vnnlib.gz",
            PACKED[:20] + b"\x00\xff\x12" * 10 + PACKED[50:],
            r"p\.vnnlib\.gz:1: not a text file",
        ),
        ("q.vnnlib.gz", BOXED.encode(), r"q\.vnnlib\.gz:1: not a text file"),
        (
            "p.vnnlib",
            BOXED.encode() + b"\n; caf\xe9\n",
            r"p\.vnnlib:7: not UTF-8 text; save it as UTF-8$",
        ),
    ],
    ids=["corrupt", "no gzip", "no text"],
)
def test_what_is_no_text_is_named(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(VnnLibError, match=message):
        read_vnnlib(tmp_path / name)


def wide(count: int) -> str:
    return "(assert (or " + " ".join(f"(<= Y_0 {i})" for i in range(count)) + "))\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            DECLARED.replace("\n", "") + f"(assert (<= X_0 {'9' * 5000}))",
            1,
            r"9{40}\.\.\. is beyond 1e\+-100$",
        ),
        (BOXED + "(assert (<= Y_0 nan))", 6, "'nan' is neither"),
        (BOXED + "(assert (<= Y_0 inf))", 6, "'inf' is neither"),
        (BOXED + "(assert (<= Y_0 -Infinity))", 6, "'-Infinity' is neither"),
        (BOXED + "(assert (<= Y_0 1_0))", 6, "'1_0' is neither"),
        (BOXED + "(assert (<= Y_0 \u0661))", 6, "is neither"),
        (BOXED + "(assert (<= Y_0 1e9999999999999999999999))", 6, "beyond"),
        (BOXED + "(assert (or (<= X_0 -1) (<= X_0 -2)))", 6, "reversed: -0.1 <= X_0 <= -1"),
        (BOXED + wide(100) + wide(1000), 7, "100000 cases of 1100 different comparisons"),
        (BOXED + "(assert (<= Y_0 1e999999999))", 6, "beyond"),
        (BOXED + "(assert (<= (* 1e90 1e90 Y_0) 1))", 6, "beyond"),
        (BOXED + "(assert (<= Y_0 one))", 6, "'one' is neither"),
        (BOXED + "(assert (<= Y_2 1))", 6, "Y_2 is not declared"),
        (BOXED + "(assert (<= Y_00 1))", 6, "'Y_00' is neither"),
        (BOXED + "(assert\n (<= (* Y_0 Y_1) 1))", 7, "not linear"),
        (BOXED + "(assert (<= (/ Y_0 2) 1))", 6, "'/' is no arithmetic"),
        (BOXED + "(assert (<= (+) 1))", 6, r"'\+' is no arithmetic"),
        (BOXED + "(assert (not (<= Y_0 1)))", 6, "'not' is not read"),
        (BOXED + "(assert (<= Y_0 1 2))", 6, "compares two"),
        (BOXED + "(assert (<= 1 2))", 6, "without variables"),
        (BOXED + "(assert (or))", 6, "an empty 'or'"),
        (BOXED + "(assert Y_0)", 6, "expected"),
        (BOXED + "(assert (<= Y_0 1) (<= Y_1 1))", 6, "one formula"),
        (BOXED + "(assert (<= X_0 Y_0))", 6, "this one input"),
        (BOXED + "(assert (< X_0 0.2))", 6, "strict"),
        (BOXED + "(assert (<= X_0 -0.2))\n", 6, "reversed: -0.1 <= X_0 <= -0.2"),
        (DECLARED + "(assert (<= X_0 1))", 4, "X_0 has no lower bound"),
        (DECLARED + "(assert (>= X_0 1))", 4, "X_0 has no upper bound"),
        (BOXED + "(assert (<= Y_0 1)", 6, r"without its '\)'"),
        (BOXED + "\n)", 7, r"without its '\('"),
        (BOXED + "hello", 6, "outside of any command"),
        (BOXED + "(check-sat)", 6, "unknown command 'check-sat'"),
        (BOXED + "(declare-const Y_1 Real)", 6, "declared twice"),
        (BOXED + "(declare-const Y_1 Int)", 6, "expected"),
        (BOXED + "(declare-const Z_1 Real)", 6, "expected"),
        (BOXED + "(declare-const X_2 Real)", 6, "X_1 is not declared, but X_2 is"),
        ("(declare-const X_0 Real)", 1, "no Y_i"),
        ("", 1, "no X_i"),
        (BOXED + "(" * 101, 6, "parentheses deep"),
        (BOXED + "(assert (or (<= Y_0 1) (<= Y_0 2)))\n" * 17, 22, "100000 cases"),
    ],
)
def test_an_error_names_file_and_line(text: str, line: int, message: str) -> None:
    with pytest.raises(VnnLibError, match=rf"^p\.vnnlib:{line}: .*{message}"):
        parse_vnnlib(text, "p.vnnlib")


@pytest.mark.parametrize("text", ["0.1", "-0.1", "0.5", "1e-60", "-1e-60", "16777217", "1e60", "0"])
def test_boxes_are_rounded_outward_for_proofs_and_inward_for_witnesses(text: str) -> None:
    exact = Fraction(text)
    box = Box((exact,), (exact,))
    (lower,), (upper,) = box.outer()
    assert Fraction(lower.item()) <= exact <= Fraction(upper.item())
    assert (
        upper.item() <= torch.nextafter(lower, torch.tensor(torch.inf, dtype=torch.float64)).item()
    )
    (first,), (last,) = box.inner()
    is_float32 = Fraction(torch.tensor(float(exact)).clamp(-3e38, 3e38).item()) == exact
    assert (first <= last) == is_float32
    if is_float32:
        assert Fraction(first.item()) == exact == Fraction(last.item())
        assert box.contains([first.item()])


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("0.1", np.float32(0.1)),
        ("16777217", np.float32(16777216)),  # of two the even one
        ("16777219", np.float32(16777220)),
        ("16777217.000000001", np.float32(16777218)),  # float64 has 16777217
        ("16777218.999999999", np.float32(16777218)),
        ("0.50000002980232242", np.nextafter(np.float32(0.5), np.float32(1))),
        ("1e-60", np.float32(0)),
    ],
)
def test_a_decimal_is_received_as_the_nearest_float32(
    text: str, nearest: np.float32, sign: str
) -> None:
    exact = Fraction(sign + text)
    wanted = Fraction(float(nearest)) * (-1 if sign else 1)
    assert Box((exact,), (exact,)).in_float32() == Box((wanted,), (wanted,))


def test_a_decimal_beyond_float32_is_received_as_none() -> None:
    with pytest.raises(OwnError, match="1e\\+60, is beyond the numbers of float32"):
        Box((Fraction(0),), (Fraction(10**60),)).in_float32()


def test_satisfaction_has_no_tolerance() -> None:
    read = parse_vnnlib(BOXED + "(assert (<= Y_0 0.1))\n(assert (< Y_1 1))")
    below, above = 0.09999999999999999, 0.1  # the float64 next to 1/10 from above is written 0.1
    assert read.satisfied([0.0], [below, 0.0])
    assert not read.satisfied([0.0], [above, 0.0])
    assert not read.satisfied([0.0], [0.0, 1.0])
    assert read.satisfied([-0.09999999999999999], [0.0, 0.0])
    assert not read.satisfied([-0.1], [0.0, 0.0])  # -0.1 in float64 lies below -1/10
    for bad in (float("nan"), float("inf"), float("-inf")):
        assert not read.satisfied([0.0], [bad, 0.0])
        assert not read.satisfied([bad], [0.0, 0.0])


VERSION = "(vnnlib-version <2.0>)\n"
ONE = """(declare-network f
  (declare-input X float32 [1, 2])
  (declare-output Y float32 [2]))
"""
TWO = """(declare-network f (declare-input X float32 [2]) (declare-output Y float32 [2]))
(declare-network g (isomorphic-to f) (declare-input A float32 [2]) (declare-output B float32 [1,2]))
"""
EQUAL = "(assert (and (== X[0] A[0]) (== A[1] X[1])))\n"
BOX = "(assert (and (<= X[0] 1.0) (>= A[0] 0.1) (<= X[1] 1.0) (>= X[1] -1.0)))\n"


def test_of_one_network() -> None:
    text = VERSION + ONE + "(assert (and (<= X [0, 0] 0.5) (>= X[0,0] 0.1)))  ; [ no index\n"
    text += "(assert (or (and (>= Y[0] Y[1]) (>= X[0,1] -1.0) (<= X[0, 1] 1.0))))\n"
    found = parse_vnnlib(text)
    assert (found.inputs, found.outputs) == (2, 2)
    (case,) = found.cases
    assert case.box.lower == (Fraction(1, 10), Fraction(-1))
    assert case.box.upper == (Fraction(1, 2), Fraction(1))
    (constraint,) = case.constraints
    assert constraint.terms == ((0, Fraction(-1)), (1, Fraction(1)))


def test_a_tensor_of_no_dimension_has_one_entry() -> None:
    text = "(declare-network f (declare-input X Real []) (declare-output Y Real []))"
    found = parse_vnnlib(VERSION + text + "(assert (and (<= X 0.5) (>= X 0.25) (>= Y 0.75)))")
    assert (found.inputs, found.outputs, found.cases[0].box.upper) == (1, 1, (Fraction(1, 2),))


def test_of_two_networks_the_second_ones_outputs_follow() -> None:
    found = parse_vnnlib(
        VERSION + TWO + EQUAL + BOX + "(assert (or (>= (- Y[0] B[0,1]) 0.1) (<= Y[1] B[0,0])))"
    )
    assert (found.inputs, found.outputs) == (2, 4)
    assert {case.box.lower for case in found.cases} == {(Fraction(1, 10), Fraction(-1))}
    terms = [case.constraints[0].terms for case in found.cases]
    assert terms == [((0, Fraction(-1)), (3, Fraction(1))), ((1, Fraction(1)), (2, Fraction(-1)))]
    assert found.satisfied([0.5, 0.0], [1.0, 1.0, 0.0, 0.0])
    assert not found.satisfied([0.5, 0.0], [0.0, 1.0, 0.0, 0.0])


def test_what_equal_inputs_make_true_is_left_out() -> None:
    found = parse_vnnlib(
        VERSION + TWO + EQUAL + BOX + "(assert (or (<= X[0] A[0]) (<= Y[0] B[0,1])))"
    )
    assert [len(case.constraints) for case in found.cases] == [0, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO + BOX, "not said to be equal"),
        (TWO + "(assert (== X[0] A[0]))" + BOX, "not said to be equal"),
        (TWO + "(assert (and (== X[0] A[0]) (<= X[1] A[1])))" + BOX, "not said to be equal"),
        (TWO + "(assert (and (== X[0] A[1]) (== X[1] A[0])))" + BOX, "not said to be equal"),
        (
            TWO + "(assert (or (== X[0] A[0]) (<= Y[0] Y[1])))(assert (== X[1] A[1]))" + BOX,
            "not said to be equal",
        ),
        (TWO.replace("A float32 [2]", "A float32 [3]") + EQUAL + BOX, "not said to be equal"),
        (
            TWO + EQUAL + BOX + "(assert (<= (- X[0] A[0]) 5.0))",
            "vnnlib:5: a comparison of inputs that are equal",
        ),
        (
            TWO.replace("isomorphic-to", "equal-to"),
            "one declare-input and one declare-output is read",
        ),
        (TWO.replace("network g", "network f"), "network 'f' is declared twice"),
        (TWO + ONE.replace("network f", "network h"), "is the third"),
        (TWO.replace("A float32", "X float32"), "X is declared twice"),
        (TWO.replace("A float32", "A int8"), "expected a name, float32"),
        (TWO.replace("[1,2]", "[0,2]"), "B has no entries"),
        (ONE + "(assert (<= X[0,2] 1.0))", "X[0,2] is no entry of X, whose shape is [1, 2]"),
        (ONE + "(assert (<= X[0] 1.0))", "X[0] is no entry of X"),
        (ONE + "(assert (<= X 1.0))", "X is no entry of X"),
        (ONE + "(assert (<= Z[0] 1.0))", "'Z[0]' is neither"),
        (ONE + "(assert (!= Y[0] 1.0))", "'!=' is not read"),
        (ONE + "(declare-const X_0 Real)", "constants are declared beside networks"),
        (ONE + "(assert (<= X[0,0] 1.0))", "X_0 has no lower bound"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(VnnLibError) as error:
        parse_vnnlib(VERSION.strip() + text)
    assert said in str(error.value)


def test_another_version_is_refused() -> None:
    with pytest.raises(VnnLibError, match=r"version <3\.0> of VNN-LIB"):
        parse_vnnlib(VERSION.replace("2.0", "3.0") + ONE)

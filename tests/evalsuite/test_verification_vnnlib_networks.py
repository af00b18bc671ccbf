"""VNN-LIB 2.0: properties of one network and of two, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from evalsuite.verification.vnnlib import parse_vnnlib
from evalsuite.verification.vnnlib_cases import VnnLibError

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
    found = parse_vnnlib(VERSION + TWO + EQUAL + BOX + "(assert (or (>= (- Y[0] B[0,1]) 0.1) (<= Y[1] B[0,0])))")
    assert (found.inputs, found.outputs) == (2, 4)
    assert {case.box.lower for case in found.cases} == {(Fraction(1, 10), Fraction(-1))}
    terms = [case.constraints[0].terms for case in found.cases]
    assert terms == [((0, Fraction(-1)), (3, Fraction(1))), ((1, Fraction(1)), (2, Fraction(-1)))]
    assert found.satisfied([0.5, 0.0], [1.0, 1.0, 0.0, 0.0])
    assert not found.satisfied([0.5, 0.0], [0.0, 1.0, 0.0, 0.0])


def test_what_equal_inputs_make_true_is_left_out() -> None:
    found = parse_vnnlib(VERSION + TWO + EQUAL + BOX + "(assert (or (<= X[0] A[0]) (<= Y[0] B[0,1])))")
    assert [len(case.constraints) for case in found.cases] == [0, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO + BOX, "not said to be equal"),
        (TWO + "(assert (== X[0] A[0]))" + BOX, "not said to be equal"),
        (TWO + "(assert (and (== X[0] A[0]) (<= X[1] A[1])))" + BOX, "not said to be equal"),
        (TWO + "(assert (and (== X[0] A[1]) (== X[1] A[0])))" + BOX, "not said to be equal"),
        (TWO + "(assert (or (== X[0] A[0]) (<= Y[0] Y[1])))(assert (== X[1] A[1]))" + BOX, "not said to be equal"),
        (TWO.replace("A float32 [2]", "A float32 [3]") + EQUAL + BOX, "not said to be equal"),
        (TWO + EQUAL + BOX + "(assert (<= (- X[0] A[0]) 5.0))", "vnnlib:5: a comparison of inputs that are equal"),
        (TWO.replace("isomorphic-to", "equal-to"), "one declare-input and one declare-output is read"),
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

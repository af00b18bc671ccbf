"""The `verify` command: known answers, exact witnesses, deadlines, and VNN-COMP's instances
where they lie beside.
"""

from __future__ import annotations

import csv
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from files_of_mlps import model_of, property_of
from files_of_mlps import network as network_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from typer.testing import CliRunner

from evalsuite import Answer, Unsupported, verify
from evalsuite.cli import app
from evalsuite.verification.instances import Instance, _kill, _outcome, read_instances
from netverify import Verification, read_vnnlib
from netverify.bisection import _effect

INSTANCES = Path(__file__).parents[3] / "shared" / "vnncomp"
needs_instances = pytest.mark.skipif(
    not (INSTANCES / "instances.csv").exists(),
    reason="VNN-COMP's instances are not beside the checkout",
)
Layer = tuple[list[list[float]], list[float]]


def network(path: Path, *layers: Layer, activation: str = "Relu") -> Path:
    return network_of(path, layers, activation)


HINGE: tuple[Layer, ...] = (([[1.0]], [0.0]), ([[1.0]], [0.0]))  # y = relu(x)


def decide(
    tmp_path: Path,
    layers: tuple[Layer, ...],
    box: list[tuple[str, str]],
    formula: str,
    **options: Any,
) -> Verification:
    timeout, activation = options.pop("timeout", 60.0), options.pop("activation", "Relu")
    file = property_of(tmp_path / "p.vnnlib", box, len(layers[-1][0]), formula)
    model = network(tmp_path / "m.onnx", *layers, activation=activation)
    found = verify(model, file, timeout=timeout)
    if found.answer is Answer.SAT:
        replay(model, file, found)
    else:
        assert found.witness is None
    return found


def replay(model: Path, file: Path, found: Verification) -> None:
    """Judge the text of a witness anew: exact decimals, float32 inputs, ONNX Runtime's own
    outputs.
    """
    assert found.witness is not None
    text = found.witness.text()
    pairs = re.findall(r"\(([XY])_(\d+) ([^)\s]+)\)", text)
    exact = {
        kind: [Fraction(Decimal(value)) for each, _, value in pairs if each == kind]
        for kind in "XY"
    }
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    point = np.array([float(each) for each in exact["X"]], dtype=np.float32)
    assert [Fraction(float(each)) for each in point] == exact["X"]
    shape = [each if isinstance(each, int) else 1 for each in session.get_inputs()[0].shape]
    (outputs,) = session.run(None, {session.get_inputs()[0].name: point.reshape(shape)})
    assert [Fraction(float(each)) for each in outputs.flatten()] == exact["Y"]
    assert read_vnnlib(file).satisfied(point.tolist(), outputs.flatten().tolist())


@pytest.mark.parametrize(
    ("formula", "answer"),
    [
        ("(>= Y_0 0.5)", "sat"),
        ("(>= Y_0 1)", "sat"),  # at the corner alone
        ("(>= Y_0 1.00001)", "unsat"),
        ("(>= Y_0 1.0000001)", "unsat-real"),  # float32 may round so far
        ("(> Y_0 1)", "unknown"),  # the bound touches it, and float64 can't tell
        ("(<= Y_0 0)", "sat"),
        ("(<= Y_0 -0.0000001)", "unsat"),
        ("(and (>= Y_0 0.2) (<= Y_0 0.2000001))", "sat"),
        ("(and (>= Y_0 0.3) (<= Y_0 0.2))", "unsat"),
        ("(or (<= Y_0 -1) (>= Y_0 2))", "unsat"),
        ("(or (<= Y_0 -1) (and (>= X_0 0.75) (<= Y_0 0.75)))", "sat"),
        ("(or (and (<= X_0 0) (>= Y_0 0.1)) (and (>= X_0 0.5) (<= Y_0 0.4)))", "unsat"),
        ("", "sat"),  # nothing is asked of the outputs
    ],
)
def test_answers_by_hand(formula: str, answer: str, tmp_path: Path) -> None:
    assert decide(tmp_path, HINGE, [("-1", "1")], formula).answer.value == answer


def test_a_violation_between_float32_numbers_has_a_rational_witness(tmp_path: Path) -> None:
    # At x = 1/10 alone y >= 1/10 holds, in real arithmetic; no float32 number is 1/10.
    assert decide(tmp_path, HINGE, [("0.05", "0.1")], "(>= Y_0 0.1)").answer is Answer.UNKNOWN
    file = property_of(tmp_path / "q.vnnlib", [("0.1", "0.1")], 1, "(>= Y_0 0)")
    found = verify(network(tmp_path / "m.onnx", *HINGE), file)
    assert found.answer is Answer.SAT
    assert found.lines().startswith("sat\n((X_0 0.1)\n (Y_0 0.100000001")
    assert decide(tmp_path, HINGE, [("0.1", "0.1")], "(>= Y_0 0.11)").answer is Answer.UNSAT
    assert decide(tmp_path, HINGE, [("0.05", "0.1000001")], "(>= Y_0 0.1)").answer is Answer.SAT


def test_what_only_float32_rounding_does_is_told_as_that(tmp_path: Path) -> None:
    # 1 + 2^-25 rounds to 1: in float32 y is 0 on the whole box, in real arithmetic it is x > 0.
    layers: tuple[Layer, ...] = (([[1.0]], [1.0]), ([[1.0]], [-1.0]))
    file = property_of(tmp_path / "q.vnnlib", [("1e-9", "2e-8")], 1, "(<= Y_0 0)")
    found = verify(network(tmp_path / "m.onnx", *layers), file)
    assert found.answer is Answer.UNSAT_REAL
    assert found.witness is not None
    assert found.witness.outputs == (0.0,)
    assert "not as executed in float32" in found.reason


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**31), st.sampled_from([1e-3, 1e-2, 0.5]))
def test_tiny_networks_against_brute_force(tmp_path: Path, seed: int, share: float) -> None:
    # One input and one hidden layer: the exact maximum lies at an end or at a kink.
    random = np.random.default_rng(seed)
    inner, shift, outer = (
        random.standard_normal(6).astype(np.float32).astype(float) for _ in range(3)
    )
    points = np.concatenate([[-1.0, 1.0], np.clip(-shift / inner, -1, 1)])
    values = np.maximum(points[:, None] * inner + shift, 0) @ outer
    highest, spread = values.max(), np.ptp(values) + 1e-3
    layers: tuple[Layer, ...] = (
        (inner[:, None].tolist(), shift.tolist()),
        ([outer.tolist()], [0.0]),
    )
    for threshold, answer in (
        (highest + share * spread, Answer.UNSAT),
        (highest - share * spread, Answer.SAT),
    ):
        assert decide(tmp_path, layers, [("-1", "1")], f"(>= Y_0 {threshold:.9f})").answer is answer


def random_layers(seed: int, *sizes: int) -> tuple[Layer, ...]:
    random = np.random.default_rng(seed)
    return tuple(
        (
            (random.standard_normal((n, m)) * np.sqrt(2 / m)).tolist(),
            random.standard_normal(n).tolist(),
        )
        for m, n in itertools.pairwise(sizes)
    )


def sampled_maximum(layers: tuple[Layer, ...], activation: str) -> float:
    shape = {"Relu": torch.relu, "Gelu": torch.nn.functional.gelu, "Tanh": torch.tanh}[activation]
    x = 2 * torch.rand(20_000, len(layers[0][0][0]), generator=torch.Generator().manual_seed(0)) - 1
    for number, (weight, bias) in enumerate(layers):
        x = (shape(x) if number else x) @ torch.tensor(weight).T + torch.tensor(bias)
    return float(x[:, 0].max())


@pytest.mark.parametrize("activation", ["Gelu", "Tanh"])
def test_answers_of_random_networks_agree_with_sampling(activation: str, tmp_path: Path) -> None:
    layers = random_layers(3, 2, 10, 10, 1)
    highest, box = sampled_maximum(layers, activation), [("-1", "1")] * 2
    below = decide(tmp_path, layers, box, f"(>= Y_0 {highest - 0.01:.6f})", activation=activation)
    assert below.answer is Answer.SAT
    above = decide(tmp_path, layers, box, f"(>= Y_0 {highest + 0.1:.6f})", activation=activation)
    assert (above.answer, above.reason) == (Answer.UNSAT, "bisection")


def test_the_deadline_holds(tmp_path: Path) -> None:
    layers = random_layers(0, 20, 100, 100, 1)
    highest = sampled_maximum(layers, "Relu")
    file = property_of(
        tmp_path / "p.vnnlib", [("-1", "1")] * 20, 1, f"(>= Y_0 {8 * abs(highest):.4f})"
    )
    model = network(tmp_path / "m.onnx", *layers)
    started, cpu = time.perf_counter(), time.process_time()
    timeout = 0.3
    found = verify(model, file, timeout=timeout)
    # Of a machine that does other things too, the processor's time is what we can answer for.
    waited = min(time.perf_counter() - started, time.process_time() - cpu)
    assert found.answer is Answer.TIMEOUT
    assert waited < timeout + 0.5
    assert found.prepare_seconds + found.seconds >= timeout


def scaled(path: Path, factors: list[float]) -> Path:
    """relu(x - 10), times one factor after the other."""
    constants = {f"c{i}": np.array([[each]], np.float32) for i, each in enumerate(factors)}
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["h0"])]
    nodes += [
        helper.make_node("Mul", [f"h{i}", f"c{i}"], [f"h{i + 1}"]) for i in range(len(factors))
    ]
    constants["b"] = np.array([[-10.0]], np.float32)
    onnx.save(model_of(nodes, constants, {"x": [1, 1]}, {f"h{len(factors)}": [1, 1]}), path)
    return path


def test_boxes_whose_coefficients_overflow_are_not_lost(tmp_path: Path) -> None:
    model = scaled(tmp_path / "m.onnx", [1e-38] * 6 + [1e38] * 7)
    # At 10.000001 the output is 1e70 in real arithmetic.
    file = property_of(tmp_path / "p.vnnlib", [("9.0", "10.000001")], 1, "(>= (* 1e60 Y_0) 1e60)")
    assert verify(model, file, timeout=0.5).answer in (Answer.TIMEOUT, Answer.UNKNOWN)


def test_inputs_are_halved_although_their_effects_overflow() -> None:
    width = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    bad = torch.tensor(
        [[torch.inf, torch.inf], [torch.nan, torch.nan], [torch.nan, 1.0]], dtype=torch.float64
    )
    for coefficients, reach in (
        (bad, bad),
        (bad, torch.ones_like(bad)),
        (torch.ones_like(bad), bad),
    ):
        assert bool((_effect(width, coefficients, reach) >= 0).all())
    # Without any other preference the widest.
    assert _effect(width, bad, bad).argmax(1).tolist() == [1, 0, 1]


def test_effects_that_are_nan_do_not_prove_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from netverify import bisection, cascade

    monkeypatch.setattr(cascade, "is_relu_network", lambda _: False)  # whose phases would settle it
    monkeypatch.setattr(bisection, "_effect", lambda width, *_: torch.full_like(width, torch.nan))
    layers: tuple[Layer, ...] = (([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, 1.0]], [0.0]))  # |x|
    found = decide(tmp_path, layers, [("-1", "0.4")], "(and (>= Y_0 0.3) (<= Y_0 0.2))")
    assert found.answer is Answer.UNKNOWN


def test_a_box_that_is_lost_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from netverify import bisection

    monkeypatch.setattr(bisection.Bisection, "_split", lambda *_: 0)
    layers: tuple[Layer, ...] = (([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, 1.0]], [0.0]))
    with pytest.raises(RuntimeError, match="of 1 boxes 0 are done, but 0 halves are left"):
        decide(tmp_path, layers, [("-1", "0.4")], "(and (>= Y_0 0.3) (<= Y_0 0.2))")


def test_the_deadline_holds_while_reading(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx", ([[1.0] * 50] * 2, [0.0, 0.0]))
    file = property_of(tmp_path / "p.vnnlib", [("0", "1")] * 50, 2, "")
    with file.open("a") as out:
        out.writelines(
            f"(assert (or (>= Y_0 {1000 + i}) (>= Y_1 {1000 + i})))\n" for i in range(14)
        )
    cpu = time.process_time()
    assert verify(model, file, timeout=0.05).answer is Answer.TIMEOUT
    assert time.process_time() - cpu < 0.5


def test_the_same_seed_gives_the_same_witness(tmp_path: Path) -> None:
    layers = random_layers(5, 4, 20, 1)
    formula = f"(>= Y_0 {sampled_maximum(layers, 'Relu') - 0.05:.4f})"
    first, second = (decide(tmp_path, layers, [("-1", "1")] * 4, formula).witness for _ in range(2))
    assert first == second is not None


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx", *HINGE)
    file = property_of(tmp_path / "p.vnnlib", [("0", "1")] * 2, 1, "(>= Y_0 0)")
    with pytest.raises(ValueError, match=r"p\.vnnlib: declares 2 X_i, but .*m\.onnx has 1"):
        verify(model, file)
    file = property_of(tmp_path / "p.vnnlib", [("0", "1")], 3, "(>= Y_0 0)")
    with pytest.raises(ValueError, match="declares 3 Y_i"):
        verify(model, file)
    for timeout in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout must be > 0"):
            verify(model, file, timeout=timeout)


def test_an_operator_that_is_not_read_is_named(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx", *HINGE, activation="Asin")
    with pytest.raises(Unsupported, match=r"m\.onnx: node '#1' \(Asin\)"):
        verify(model, property_of(tmp_path / "p.vnnlib", [("0", "1")], 1, "(>= Y_0 0)"))


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_prints_the_answer_and_the_witness(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx", *HINGE)
    file = property_of(tmp_path / "p.vnnlib", [("-1", "0.25")], 1, "(>= Y_0 0.25)")
    code, out, err = run("--onnx", model, "--vnnlib", file)
    assert (code, out) == (0, "sat\n((X_0 0.25)\n (Y_0 0.25))\n")
    assert "falsifier" in err
    property_of(file, [("-1", "0.25")], 1, "(>= Y_0 0.26)")
    assert run("--onnx", model, "--vnnlib", file, "--timeout", 60)[:2] == (0, "unsat\n")


def test_the_command_refuses_bad_input(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx", *HINGE)
    file = tmp_path / "p.vnnlib"
    file.write_text("(declare-const X_0 Real)\n(assert (<= X_0 nan))")
    code, out, err = run("--onnx", model, "--vnnlib", file)
    assert (code, out) == (2, "error\n")
    assert f"{file}:2: 'nan' is neither X_i, Y_i nor a decimal number" in err
    code, out, err = run("--onnx", tmp_path / "none.onnx", "--vnnlib", tmp_path / "none.vnnlib")
    assert (code, out) == (2, "error\n")
    assert "none.vnnlib: No such file" in err
    for arguments in (
        [],
        ["--onnx", model],
        ["--onnx", model, "--instances", file],
        ["--vnnlib", file, "--out", file],
    ):
        assert run(*arguments)[0] == 2
    assert "--timeout" in run("--onnx", model, "--vnnlib", file, "--timeout", 0)[2]


def test_many_instances_are_rows_and_a_bad_one_is_an_error(tmp_path: Path) -> None:
    network(tmp_path / "m.onnx", *HINGE)
    network(tmp_path / "bad.onnx", *HINGE, activation="Asin")
    property_of(tmp_path / "sat.vnnlib", [("-1", "1")], 1, "(>= Y_0 0.5)")
    property_of(tmp_path / "unsat.vnnlib", [("-1", "1")], 1, "(>= Y_0 1.5)")
    lines = [
        "m.onnx,sat.vnnlib,5",
        "bad.onnx,sat.vnnlib,5",
        "m.onnx,missing.vnnlib,5",
        "m.onnx,unsat.vnnlib,5",
    ]
    (tmp_path / "instances.csv").write_text("\n".join(lines))
    code, out, err = run(
        "--instances", tmp_path / "instances.csv", "--out", tmp_path / "results.csv"
    )
    assert (code, out) == (1, ""), err
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["category", "onnx", "vnnlib", "prepare_s", "result", "run_s"]
    assert [row["result"] for row in rows] == ["sat", "error", "error", "unsat"]
    assert {row["category"] for row in rows} == {tmp_path.name}
    assert all(float(row["prepare_s"]) >= 0 and float(row["run_s"]) >= 0 for row in rows)
    assert "node '#1' (Asin)" in err
    assert f"{tmp_path / 'missing.vnnlib'}: No such file or directory" in err
    before = (tmp_path / "instances.csv").read_text()
    code, out, err = run(
        "--instances", tmp_path / "instances.csv", "--out", tmp_path / "instances.csv"
    )
    assert (code, out) == (2, "")
    assert "instances.csv is read, and would be overwritten: name another" in " ".join(err.split())
    assert (tmp_path / "instances.csv").read_text() == before
    code, out, err = run("--instances", tmp_path / "instances.csv", "--out", tmp_path)
    assert (code, out) == (2, "")
    assert f"cannot write {tmp_path}: Is a directory; name a file" in " ".join(err.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no instances"),
        ("onnx,vnnlib,timeout\n", "no instances"),
        ("a.onnx,b.vnnlib", ":1: needs the columns"),
        ("onnx,timeout\na.onnx,3", ":2: needs the columns"),
        ("a.onnx,b.vnnlib,soon", ":1: timeout 'soon' is no number"),
        ("a.onnx,b.vnnlib,-1", ":1: timeout must be > 0"),
        ("onnx,vnnlib,timeout\na.onnx," + "b" * 200_000, ":2: not a CSV file: field larger"),
    ],
)
def test_an_instances_file_that_is_none(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "i.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"i\.csv.*{message}"):
        read_instances(tmp_path / "i.csv")
    assert run("--instances", tmp_path / "i.csv")[0] == 2


def test_an_instances_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "i.csv").write_text(
        "onnx,vnnlib,timeout\na.onnx,b.vnnlib,3\n", encoding="utf-8-sig"
    )
    assert [each.onnx for each in read_instances(tmp_path / "i.csv")] == ["a.onnx"]


def dies(connection: Connection) -> None:
    os._exit(7)


def hangs(connection: Connection) -> None:
    connection.send(("ready", 0.0, 0.0, ""))
    time.sleep(60)


@pytest.mark.timeout(50)  # less than what hangs would take
@pytest.mark.parametrize(
    ("target", "result", "reason"), [(dies, "error", "exit code 7"), (hangs, "timeout", "killed")]
)
def test_a_process_that_dies_or_hangs_is_a_row(target: Any, result: str, reason: str) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    found = _outcome(Instance("c", "a.onnx", "b.vnnlib", 0.2, Path()), process, ours)
    assert (found.result, found.row()[:3]) == (result, ["c", "a.onnx", "b.vnnlib"])
    assert reason in found.reason
    _kill(process)
    assert not process.is_alive()


def known() -> list[dict[str, str]]:
    with (INSTANCES / "instances.csv").open() as file:
        return list(csv.DictReader(file))


@needs_instances
@pytest.mark.parametrize("number", [0, 2, 4, 15, 57, 82])
def test_known_instances(number: int) -> None:
    row = known()[number]
    model, file = INSTANCES / row["onnx"], INSTANCES / row["vnnlib"]
    found = verify(model, file, timeout=60)
    assert found.answer.value == row["ground_truth"].removesuffix("_majority")
    if found.answer is Answer.SAT:
        replay(model, file, found)


@needs_instances
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_third_known_instance() -> None:
    """No wrong answer, each `sat` replayed without tolerance, and at least 60 % decided within
    10 CPU seconds.
    """
    decided = 0
    rows = known()[::3]
    for row in rows:
        model, file = INSTANCES / row["onnx"], INSTANCES / row["vnnlib"]
        started = time.process_time()
        found = verify(model, file, timeout=20)
        if found.answer in (Answer.SAT, Answer.UNSAT):
            assert found.answer.value == row["ground_truth"].removesuffix("_majority"), row
            decided += time.process_time() - started <= 10
        if found.answer is Answer.SAT:
            replay(model, file, found)
    assert decided >= 0.6 * len(rows)


@needs_instances
@pytest.mark.slow
def test_the_console_script_runs_many(tmp_path: Path) -> None:
    rows = known()[:4]
    file, results = tmp_path / "instances.csv", tmp_path / "results.csv"
    file.write_text(
        "".join(f"{INSTANCES / row['onnx']},{INSTANCES / row['vnnlib']},10\n" for row in rows)
    )
    script = Path(sys.executable).parent / "evalsuite"
    command = [str(script), "verify", "--instances", str(file), "--out", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with results.open() as written:
        found = [row["result"] for row in csv.DictReader(written)]
    truths = [row["ground_truth"].removesuffix("_majority") for row in rows]
    assert all(result in (truth, "timeout") for result, truth in zip(found, truths, strict=True))
    assert found.count("timeout") <= 2

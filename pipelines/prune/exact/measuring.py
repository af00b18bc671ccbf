"""The stage's run: training, removal, its proofs, and what it bought."""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from evalsuite import Bench, Direction, Metric, Network, Outcome, Unsupported, Verdict
from evalsuite.contract import FineTune
from evalsuite.samples import Samples, pieces
from evalsuite.tasks.score import scores, worsening
from lambda_gelu import fold_hardness
from netverify.certificate import UnitBounds
from opgraph.estimates import allowed, refuse_beyond, too_slow, work_of
from opgraph.graph import Graph
from opgraph.layers import in_layers, is_layered
from opgraph.reading import captured, compare
from pipelines.prune.exact.behind_norms import read_behind_norms
from pipelines.prune.exact.kinds import Kind
from pipelines.prune.exact.layers import Layers, weighted
from pipelines.prune.exact.proofs import NOTHING_REMOVED, Proof, Prover, difference_bound
from pipelines.prune.exact.removing import Read, Removed, reads_chain, remove_all
from pipelines.prune.size import size_metrics

if TYPE_CHECKING:
    from pipelines.prune.exact.options import ExactPruneOptions

# Relative to max(1, the largest logit).
_TOLERANCE = 1e-6
_RANDOM = 256
_BATCH = 512  # samples at a time: bounds the memory
_TOKENS = 64  # the same of texts, which have outputs for each token
# Two networks are compared, in numbers that are twice as large and take twice as long.
_NETWORKS, _DOUBLE = 2, 2
# Of what memory is left, and of the job's time, what the comparison may take.
_MEMORY_SHARE, _COMPARING_SHARE = 0.25, 0.1
# The part of the job's time after which no question is put to the solver any more.
_SOLVING_SHARE = 0.6
_VERDICTS = (Verdict.HOLDS, Verdict.VIOLATED, Verdict.TIMEOUT, Verdict.UNSUPPORTED)


def measure(options: ExactPruneOptions, network: Network, bench: Bench) -> Outcome:
    """See `ExactPrune.run`. Raises Unsupported where float32 parameters cannot hold what moves
    into the next layer.
    """
    deadline = time.monotonic() + _SOLVING_SHARE * bench.time_limit
    # 1. Read and train the network that the units are removed from.
    module, read = _reader(network, bench)
    given = fold_hardness(module, network.example(2))
    original = _trained(options, given, bench, read)
    # 2. Remove what is proven idle, and compare the logits on data.
    removed = remove_all(original, read)
    compared = _compared(network, bench, removed)
    error, size = _compare(original, removed.module, _inputs(bench, compared))
    tolerance = _TOLERANCE * max(1.0, size)
    if not error <= tolerance:
        raise Unsupported(
            f"removing {len(removed.claims)} units changes logits by {error:.3g}, above"
            f" {tolerance:.3g}: what would move into the next layer is too large, or too small, for"
            " float32 parameters"
        )
    # 3. Prove each claim again, and the equality of both networks, in exact arithmetic.
    prover = Prover(
        bench.data.domain,
        tolerance=tolerance,
        neurons=options.max_neurons,
        seconds=options.query_time_limit,
        deadline=deadline,
    )
    units = [prover.unit(claim) for claim in removed.claims]
    _check(removed, units)
    # 4. Tell what went, what was proven, and what it costs and saves.
    metrics = [
        *_counts(removed),
        Metric("equality_error", error, "logit", Direction.LOWER, reason=compared.reason),
        *_proven(original, removed, bench, tolerance),
        _equality("smt", prover.network(original, removed)),
        *_unit_proofs(units),
        *_scores(given, original, removed.module, bench),
        *size_metrics(original, removed.module, network.example(1)),
        Metric("training_epochs", options.epochs, "count", Direction.NEUTRAL),
    ]
    path = _write(removed, units, bench.folder / "units.json")
    return Outcome(
        metrics,
        {"units": path},
        dataclasses.replace(network, module=removed.module, unswapped=None),
    )


def _reader(network: Network, bench: Bench) -> tuple[nn.Module, Read]:
    """The network as it is read, and what reads it: as a chain of layers, or else what stands
    behind norms.
    """
    refusal, example = "tokens are no inputs of a chain of layers", network.example(2)
    graph: Graph | None = None
    if network.vocabulary is None:
        try:
            if not is_layered(network.module):
                graph = captured(network.module, example)
            chain = in_layers(network.module, network.input_shape, graph)
            if graph is not None:  # what is refused anyway need not be compared
                compare(graph, copy.deepcopy(network.module).eval(), example)
            reads = reads_chain(network.input_shape, bench.data.domain)
            if reads(chain)[0].hidden:
                return chain, reads
            refusal = "no units to remove: no activation stands between two layers"
        except Unsupported as error:
            refusal = str(error)
    try:
        first = read_behind_norms(network.module, example, graph)
    except Unsupported as error:
        raise Unsupported(f"{refusal}; nor is it read behind norms: {error}") from error
    weights = _weights(network.module)

    def read(module: nn.Module) -> tuple[Layers, list[UnitBounds]]:
        # What was read already holds of a network of the same weights: reading takes long.
        same = _weights(module)
        if same.keys() == weights.keys() and all(
            torch.equal(tensor, same[name]) for name, tensor in weights.items()
        ):
            return first
        return read_behind_norms(module, example)

    return network.module, read


def _weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach()
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }


def _trained(options: ExactPruneOptions, given: nn.Module, bench: Bench, read: Read) -> nn.Module:
    """`given` itself, or a copy trained for the budget."""
    if not options.epochs:
        return given
    layers, _ = read(given)  # a network that cannot be bounded is refused before it is trained
    trained = copy.deepcopy(given)
    train(trained, layers, bench.fine_tune, epochs=options.epochs, proximal=options.proximal)
    return trained


def train(
    module: nn.Module, layers: Layers, fine_tune: FineTune, *, epochs: int, proximal: float
) -> None:
    """Train `module` in place; after each step the proximal operator of the L1 norm acts on the
    hidden layers' weights.

    That drives incoming weights to exactly 0 (arXiv 2001.00218 and 2102.07804 train with an L1
    penalty, whose gradient never arrives there): soft-thresholding by rate * strength, Parikh &
    Boyd 2014, section 6.5.2. Biases are left alone: a unit with a bias only is constant.

    Args:
        layers: of `module`.
        proximal: the strength; 0 trains the same way without it.
    """
    weights = [
        weighted(module, path).weight
        for path in dict.fromkeys(each.producer for each in layers.hidden)
    ]

    @torch.no_grad()
    def shrink(rate: float) -> None:
        for weight in weights:
            weight.copy_(weight.sign() * (weight.abs() - rate * proximal).clamp(min=0.0))

    fine_tune(module, epochs, after_step=shrink if proximal else None)


def _check(removed: Removed, proofs: list[Proof]) -> None:
    """Only what a merge rounds can be seen by the solver and not by the bounds."""
    for claim, proof in zip(removed.claims, proofs, strict=True):
        if proof.verdict is Verdict.VIOLATED and claim.removal.kind is not Kind.MERGED:
            where = f"unit {claim.unit} of {claim.hidden.producer}"
            raise RuntimeError(
                f"{where}: {claim.removal.kind.value} by its bounds, but the solver refutes it"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Compared:
    """On how many inputs of each kind two networks are compared, and how many at a time.

    Args:
        test: test inputs.
        points: corners and random points of the domain, or random tokens.
        at_once: of all of them, in one batch.
        reason: why they are fewer than all, or "".
    """

    test: int
    points: int
    at_once: int
    reason: str = ""


def _compared(network: Network, bench: Bench, removed: Removed) -> _Compared:
    """As many inputs as fit, by estimate, into the memory and a share of the time; one, where
    nothing was removed, since the networks are one.
    """
    tokens = network.vocabulary is not None
    test, points = len(bench.data.test), _TOKENS if tokens else 2 * _RANDOM
    work = work_of(network.module, network.example(1))
    # Both networks compute in float64, with values of twice the bytes, half as fast.
    left = _MEMORY_SHARE * allowed() / (_NETWORKS * _DOUBLE)
    refuse_beyond(
        _NETWORKS * _DOUBLE * work.memory(1),
        "comparing the networks on one sample",
        "shorter texts or smaller pictures take less",
    )
    at_once = max(1, min(_TOKENS if tokens else _BATCH, int(left / work.memory(1))))
    if not removed.claims:
        return _Compared(1, 1, 1)
    seconds = _NETWORKS * _DOUBLE * work.seconds(1)
    most = _COMPARING_SHARE * bench.time_limit
    reason = too_slow(
        (test + points) * seconds, most, f"comparing the networks on {test + points} inputs"
    )
    if reason:
        count = max(1, int(most / seconds) // 2)
        test, points = min(test, count), min(points, count)
        reason = f"the greatest on {test} test inputs and {points} random ones: {reason}"
    return _Compared(test, points, at_once, reason)


def _inputs(bench: Bench, compared: _Compared) -> Iterator[torch.Tensor]:
    """Test inputs, then corners and random points of the domain, in batches: float64; or tokens,
    also random ones.
    """
    low, high = bench.data.domain
    shape = bench.data.input_shape
    generator = torch.Generator().manual_seed(bench.seed)
    test = _leading(bench.data.test.inputs, compared.test, compared.at_once)
    if bench.data.vocabulary is not None:
        yield from test
        words = torch.randint(bench.data.vocabulary, (compared.points, *shape), generator=generator)
        yield from pieces(words, compared.at_once)
        return
    # One half are corners, of which the first two are the lowest and the highest of all.
    points = torch.rand(compared.points, *shape, generator=generator, dtype=torch.float64)
    corners = max(1, compared.points // 2)
    points[:corners] = points[:corners].round()
    points[:1], points[1:2] = 0.0, 1.0
    for inputs in test:
        yield inputs.double()
    for some in pieces(points, compared.at_once):
        yield low + (high - low) * some


def _leading(inputs: torch.Tensor | Samples, count: int, at_once: int) -> Iterator[torch.Tensor]:
    """The first of the inputs in batches, of which no more than one is read at a time."""
    left = count
    for batch in pieces(inputs, at_once):
        yield batch[:left]
        left -= len(batch)
        if left <= 0:
            return


@torch.no_grad()
def _compare(
    before: nn.Module, after: nn.Module, inputs: Iterable[torch.Tensor]
) -> tuple[float, float]:
    """The greatest change of a logit, and the greatest logit, both by magnitude."""
    copies = [copy.deepcopy(each).double().eval() for each in (before, after)]
    change = size = torch.zeros((), dtype=torch.float64)
    for each in inputs:
        first, second = (module(each) for module in copies)
        # A NaN stays one, and is no change within any tolerance.
        change, size = (
            torch.maximum(change, (first - second).abs().max()),
            torch.maximum(size, first.abs().max()),
        )
    return float(change), float(size)


def _counts(removed: Removed) -> list[Metric]:
    kinds = Counter(claim.removal.kind for claim in removed.claims)
    total, gone = removed.layers.units, len(removed.claims)
    whole = "; ".join(
        f"all units of {path} stay: {why}" for path, why in removed.layers.kept_whole.items()
    )
    border = (
        f"{removed.unfolded} constant channels stay: a padded convolution reads them"
        if removed.unfolded
        else ""
    )
    relu = any(each.relu for each in removed.layers.hidden)
    reasons = {
        Kind.CONSTANT: border,
        Kind.OFF: "" if relu else "no activation is ReLU: none is ever exactly 0",
        Kind.MERGED: "" if relu else "no activation is ReLU: none is ever linear",
    }
    return [
        *(
            Metric(
                f"{kind.value}_units",
                kinds[kind],
                "count",
                Direction.NEUTRAL,
                reason=reasons.get(kind, ""),
            )
            for kind in Kind
        ),
        Metric("removed_units", gone, "count", Direction.HIGHER),
        Metric("hidden_units", total, "count", Direction.NEUTRAL, reason=whole),
        Metric("removed_share", gone / total, "share", Direction.HIGHER),
    ]


def _equality(method: str, proof: Proof) -> Metric:
    return Metric(
        "equality",
        None,
        "verdict",
        Direction.NEUTRAL,
        {"method": method},
        verdict=proof.verdict,
        reason=proof.reason,
    )


def _proven(original: nn.Module, removed: Removed, bench: Bench, tolerance: float) -> list[Metric]:
    """The proven bound of any logit's change over the domain, and whether it is within the
    tolerance.
    """
    try:
        if removed.claims and not removed.layers.chain:
            raise Unsupported(
                "units are proven one by one; bounds of such a network over all its inputs say"
                " nothing"
            )
        bound = difference_bound(original, removed, bench.data.input_shape, bench.data.domain)
    except Unsupported as reason:
        row = Metric("equality_bound", None, "logit", Direction.LOWER, reason=str(reason))
        return [row, _equality("bounds", Proof(Verdict.UNSUPPORTED, str(reason)))]
    proof = Proof(Verdict.HOLDS, "" if removed.claims else NOTHING_REMOVED)
    if not bound <= tolerance:
        proof = Proof(
            Verdict.UNKNOWN, f"the proven bound {bound:.3g} is above the tolerance {tolerance:.3g}"
        )
    return [Metric("equality_bound", bound, "logit", Direction.LOWER), _equality("bounds", proof)]


def _unit_proofs(proofs: list[Proof]) -> list[Metric]:
    metrics = []
    for verdict in _VERDICTS:
        reasons = Counter(
            proof.reason for proof in proofs if proof.verdict is verdict and proof.reason
        )
        text = "; ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
        count = sum(proof.verdict is verdict for proof in proofs)
        metrics.append(
            Metric(
                "unit_proofs",
                count,
                "count",
                Direction.NEUTRAL,
                {"verdict": verdict.value},
                reason=text,
            )
        )
    return metrics


def _scores(
    given: nn.Module, original: nn.Module, narrowed: nn.Module, bench: Bench
) -> list[Metric]:
    start, before, after = scores([given, original, narrowed], bench.data.test, batch=_BATCH)
    return [
        before.named("{}_before_removal"),
        after.headline,
        worsening(start.headline, after.headline),
    ]


def _write(removed: Removed, proofs: list[Proof], path: Path) -> Path:
    units = [
        {
            "layer": claim.hidden.producer,
            "unit": claim.unit,
            "kind": claim.removal.kind.value,
            "proof": proof.verdict.value,
            "reason": proof.reason,
        }
        for claim, proof in zip(removed.claims, proofs, strict=True)
    ]
    kept_whole = removed.layers.kept_whole
    path.write_text(
        json.dumps({"removed": units, "kept_whole": kept_whole}, indent=1), encoding="utf-8"
    )
    return path

"""Removing whole attention heads, and how much each of them matters.

The linear layers are cut directly, so that no reshape regroups what is left.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from evalsuite import Unsupported
from pipelines.prune.attention import Attention, find_attentions, linear_at, unknown_attentions
from pipelines.prune.equality import equality_error
from pipelines.prune.graph import check_trainable, check_weights
from pipelines.prune.selection import Probe, Pruned, Selection, share_of
from pipelines.prune.size import keep

_Hook = Callable[[nn.Module, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...] | None]


def head_scores(
    module: nn.Module, attentions: Sequence[Attention], probe: Probe, selection: Selection
) -> list[torch.Tensor]:
    """The importance of each head, one float64 tensor (heads,) for each attention; the least
    important go first.

    - "l1", "l2", "group_norm": the norm of all the weights that belong to the head alone: the rows
      of its query, key and value, and the columns that read it. "group_norm" is "l2": a head is one
      group in any case.
    - "taylor": the mean over samples of |d loss / d gate|, where the gate is a factor of 1 on what
      the head hands to the output layer: arXiv 1905.10650, eq. 2. With the weights it is |sum of
      weight * gradient| of one sample, over the columns that read the head.
    - "hessian": the mean of that derivative's square: the diagonal of the empirical Fisher matrix,
      as an estimate of the Hessian, arXiv 1801.05787.
    - "activation": the mean absolute value of what the head hands to the output layer.
    - "random": drawn from `selection.seed`.

    Args:
        module: in eval mode; it is the same afterwards.

    Raises:
        Unsupported: "bn_scale"; data are needed, and there are none; an attention never ran; a
            score is not finite.
        ValueError: an unknown importance.
    """
    match selection.importance:
        case "random":
            generator = torch.Generator().manual_seed(selection.seed)
            scores = [
                torch.rand(each.heads, generator=generator, dtype=torch.float64)
                for each in attentions
            ]
        case "l1" | "l2" | "group_norm" as name:
            scores = [_norms(module, each, 1 if name == "l1" else 2) for each in attentions]
        case "taylor":
            scores = [
                gate_gradient.abs().mean(0)
                for gate_gradient in _gate_gradients(module, attentions, probe)
            ]
        case "hessian":
            scores = [
                gate_gradient.square().mean(0)
                for gate_gradient in _gate_gradients(module, attentions, probe)
            ]
        case "activation":
            scores = _activity(module, attentions, probe)
        case "bn_scale":
            raise Unsupported(
                "importance 'bn_scale' does not rank attention heads: none has a BatchNorm; use"
                " another"
            )
        case other:
            raise ValueError(f"importance: no way to rank attention heads by {other!r}")
    for attention, each in zip(attentions, scores, strict=True):
        if not each.isfinite().all():
            raise Unsupported(
                f"{attention.path or 'the module'}: the importance of a head is not finite:"
                f" {each.tolist()}"
            )
    return scores


@torch.no_grad()
def _norms(module: nn.Module, attention: Attention, order: int) -> torch.Tensor:
    norms = []
    for head in range(attention.heads):
        parts = [
            linear_at(module, path).weight[list(rows[head])]
            for path, rows in attention.rows.items()
        ]
        parts.append(linear_at(module, attention.output).weight[:, list(attention.columns[head])])
        norms.append(torch.cat([part.double().flatten() for part in parts]).norm(order))
    return torch.stack(norms).cpu()


def _gate_gradients(
    module: nn.Module, attentions: Sequence[Attention], probe: Probe
) -> list[torch.Tensor]:
    """d loss / d gate, (samples, heads) for each attention; samples are the first dimension of its
    inputs.

    One gate a sample: samples do not see each other in eval mode, so one backward pass gives each
    sample's own derivative, which squares and absolute values need before the mean.
    """
    if probe.losses is None:
        raise Unsupported(
            "importance 'taylor' or 'hessian' of heads needs calibration data, and there are none"
        )
    gates: dict[str, torch.Tensor] = {}
    collected: list[list[torch.Tensor]] = [[] for _ in attentions]

    def gate(attention: Attention) -> _Hook:
        def hook(_layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            mixed, *others = inputs
            if attention.output not in gates:
                gates[attention.output] = mixed.new_ones(
                    len(mixed), attention.heads
                ).requires_grad_()
            factors = gates[attention.output][:, _head_of_columns(attention).to(mixed.device)]
            return mixed * factors.view(len(mixed), *[1] * (mixed.ndim - 2), -1), *others

        return hook

    # A gate is made anew for each batch, as it has a value for each sample.
    with torch.enable_grad(), _hooked(module, attentions, gate):
        for losses in probe.losses(module):
            _check_ran(attentions, gates)
            # Of the gates alone: the parameters may be frozen, and their .grad is not ours.
            gradients = torch.autograd.grad(
                losses.sum(), [gates[each.output] for each in attentions], materialize_grads=True
            )
            for parts, gradient in zip(collected, gradients, strict=True):
                parts.append(gradient.double().cpu())
            gates.clear()
    if not all(collected):
        raise Unsupported("importance of heads: there is no batch of calibration data")
    return [torch.cat(parts) for parts in collected]


@torch.no_grad()
def _activity(
    module: nn.Module, attentions: Sequence[Attention], probe: Probe
) -> list[torch.Tensor]:
    if probe.losses is None:
        raise Unsupported(
            "importance 'activation' of heads needs calibration data, and there are none"
        )
    sums: dict[str, torch.Tensor] = {}
    tokens: dict[str, int] = {}

    def record(attention: Attention) -> _Hook:
        def hook(_layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            # What the output layer reads, per token and head.
            mixed = inputs[0].detach().double().flatten(0, -2).abs()
            by_head = mixed[:, torch.tensor(attention.columns, device=mixed.device)]
            path = attention.output
            sums[path] = (
                sums.get(path, torch.zeros(attention.heads)) + by_head.mean(-1).sum(0).cpu()
            )
            tokens[path] = tokens.get(path, 0) + len(mixed)

        return hook

    with _hooked(module, attentions, record):
        for _ in probe.losses(module):
            pass
    _check_ran(attentions, sums)
    return [sums[each.output] / tokens[each.output] for each in attentions]


def _head_of_columns(attention: Attention) -> torch.Tensor:
    heads = torch.empty(sum(map(len, attention.columns)), dtype=torch.long)
    for head, columns in enumerate(attention.columns):
        heads[list(columns)] = head
    return heads


@contextmanager
def _hooked(
    module: nn.Module, attentions: Sequence[Attention], make: Callable[[Attention], _Hook]
) -> Iterator[None]:
    handles = [
        module.get_submodule(attention.output).register_forward_pre_hook(make(attention))
        for attention in attentions
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_ran(attentions: Sequence[Attention], seen: dict[str, torch.Tensor]) -> None:
    for attention in attentions:
        if attention.output not in seen:
            raise Unsupported(
                f"{attention.path or 'the module'}: its output layer {attention.output} never ran"
                " on the calibration data, so the importance of its heads is not known"
            )


def prune_heads(
    module: nn.Module,
    probe: Probe,
    selection: Selection,
    attentions: Sequence[Attention] | None = None,
) -> Pruned:
    """A copy of `module` without the least important `head_sparsity` of the heads of each
    attention, in eval mode.

    At least one head of each attention stays. With scope "global" all heads are ranked together,
    after division by the mean score of their attention, and it is `head_sparsity` of all of them
    that go. The outputs of the copy are compared with those of `module` with the removed heads
    zeroed, in float64.

    Args:
        module: is not changed.
        probe: its inputs should have several positions: with one, attention has no choice, and
            queries and keys are not compared.
        selection: `head_sparsity`, `importance` (see `head_scores`), `scope` and `seed` count.
        attentions: those to prune; by default all that `find_attentions` knows.

    Returns:
        `removed` names the rows of the linear layers that made query, key and value of the removed
            heads.

    Raises:
        Unsupported: no attention is known, all parameters are frozen, no head can go, the
            importance has no meaning for heads or needs data, or the copy computes something else
            than the zeroed module.
    """
    check_weights(module)
    notes = unknown_attentions(module)
    if attentions is None:
        attentions = find_attentions(module)
    # 1. Copy, and see what can be pruned at all.
    copied = copy.deepcopy(module).eval()
    if selection.head_sparsity == 0:
        return Pruned(copied, {}, notes, 0.0)
    if not attentions:
        raise Unsupported("; ".join(["no attention whose heads can be removed", *notes]))
    check_trainable(module)
    # How many heads of each went in earlier rounds.
    rows = [next(iter(attention.rows.items())) for attention in attentions]
    gone = [selection.gone.get(path, 0) // len(heads[0]) for path, heads in rows]
    # 2. Rank the heads, with what went in earlier rounds, by the rule that channels have too.
    as_channels = dataclasses.replace(selection, sparsity=selection.head_sparsity, round_to=1)
    doomed = as_channels.chosen(head_scores(copied, attentions, probe, selection), gone)
    if selection.last and not any(doomed) and not any(gone):
        raise Unsupported(
            f"head_sparsity {selection.head_sparsity} removes no head: attentions have at most "
            f"{max(each.heads for each in attentions)}, and each keeps one; raise head_sparsity"
        )
    notes += _shortfalls(attentions, doomed, selection)
    # 3. Remove them, and compare with the module in which they give zeros.
    removed: dict[str, list[int]] = {}
    for attention, heads in zip(attentions, doomed, strict=True):
        if heads:
            removed |= _remove(copied, attention, heads)
    pruned = Pruned(copied, removed, notes)
    try:
        return dataclasses.replace(
            pruned, equality_error=equality_error(module, pruned, probe.outputs)
        )
    except Unsupported as error:
        paths = ", ".join(each.path or "the module" for each in attentions)
        raise Unsupported(f"heads of {paths}: {error}") from error


def _shortfalls(
    attentions: Sequence[Attention], doomed: list[list[int]], selection: Selection
) -> list[str]:
    """Where fewer heads go than were asked for in one round."""
    if selection.gone or not selection.last:
        return []
    if selection.scope == "global":
        total, gone = sum(each.heads for each in attentions), sum(map(len, doomed))
        if gone == share_of(total, selection.head_sparsity):
            return []
        return [
            f"head_sparsity {selection.head_sparsity} removes {gone} of {total} heads: each"
            " attention keeps one"
        ]
    return [
        f"{attention.path or 'the module'}: head_sparsity {selection.head_sparsity} removes none of"
        f" {attention.heads} {'head' if attention.heads == 1 else 'heads'}"
        for attention, heads in zip(attentions, doomed, strict=True)
        if not heads
    ]


def _remove(module: nn.Module, attention: Attention, heads: list[int]) -> dict[str, list[int]]:
    """Cut `heads` out of `module` in place; per path of a linear layer the rows that are gone."""
    removed = {
        path: sorted(row for head in heads for row in rows[head])
        for path, rows in attention.rows.items()
    }
    # The rows that make the heads go, then the columns that read them; what the module says of its
    # sizes follows.
    for path, rows in removed.items():
        keep(linear_at(module, path), outputs=_others(linear_at(module, path).weight[:, 0], rows))
    columns = [column for head in heads for column in attention.columns[head]]
    keep(
        linear_at(module, attention.output),
        inputs=_others(linear_at(module, attention.output).weight[0], columns),
    )
    left = attention.heads - len(heads)
    part = module.get_submodule(attention.path)
    for name in attention.counts:
        setattr(part, name, left)
    for name in attention.widths:
        setattr(part, name, left * attention.head_size)
    return removed


def _others(row: torch.Tensor, gone: list[int]) -> torch.Tensor:
    """The indices of a row but those, on its device."""
    return torch.tensor(sorted(set(range(len(row))) - set(gone)), device=row.device)

"""Removing whole attention heads: the linear layers are cut directly, so that no reshape regroups what is left."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch
from torch import nn

from evalsuite import Unsupported
from pipelines.prune.attention import Attention, find_attentions, linear_at, unknown_attentions
from pipelines.prune.equality import equality_error
from pipelines.prune.head_importance import head_scores
from pipelines.prune.obstacles import check_trainable, check_weights
from pipelines.prune.selection import Probe, Pruned, Selection, counts_of_all, least, share_of
from pipelines.prune.size import keep


def prune_heads(
    module: nn.Module, probe: Probe, selection: Selection, attentions: Sequence[Attention] | None = None
) -> Pruned:
    """A copy of `module` without the least important `head_sparsity` of the heads of each attention, in eval mode.

    At least one head of each attention stays. With scope "global" all heads are ranked together, after division by the
    mean score of their attention, and it is `head_sparsity` of all of them that go. The outputs of the copy are
    compared with those of `module` with the removed heads zeroed, in float64.

    Args:
        module: is not changed.
        probe: its inputs should have several positions: with one, attention has no choice, and queries and keys are not
            compared.
        selection: `head_sparsity`, `importance` (see `head_scores`), `scope` and `seed` count.
        attentions: those to prune; by default all that `find_attentions` knows.

    Returns:
        `removed` names the rows of the linear layers that made query, key and value of the removed heads.

    Raises:
        Unsupported: no attention is known, all parameters are frozen, no head can go, the importance has no meaning
            for heads or needs data, or the copy computes something else than the zeroed module.
    """
    check_weights(module)
    notes = unknown_attentions(module)
    if attentions is None:
        attentions = find_attentions(module)
    copied = copy.deepcopy(module).eval()
    if selection.head_sparsity == 0:
        return Pruned(copied, {}, notes, 0.0)
    if not attentions:
        raise Unsupported("; ".join(["no attention whose heads can be removed", *notes]))
    check_trainable(module)
    gone = [_heads_gone(attention, selection) for attention in attentions]
    doomed = _doomed(head_scores(copied, attentions, probe, selection), gone, selection)
    notes += _shortfalls(attentions, doomed, selection)
    removed: dict[str, list[int]] = {}
    for attention, heads in zip(attentions, doomed, strict=True):
        if heads:
            removed |= _remove(copied, attention, heads)
    pruned = Pruned(copied, removed, notes)
    try:
        return dataclasses.replace(pruned, equality_error=equality_error(module, pruned, probe.outputs))
    except Unsupported as error:
        paths = ", ".join(each.path or "the module" for each in attentions)
        raise Unsupported(f"heads of {paths}: {error}") from error


def _heads_gone(attention: Attention, selection: Selection) -> int:
    """How many heads of the attention went in earlier rounds."""
    path, rows = next(iter(attention.rows.items()))
    return selection.gone.get(path, 0) // len(rows[0])


def _wanted(heads: int, gone: int, selection: Selection) -> int:
    return max(0, share_of(heads + gone, selection.head_sparsity) - gone)


def _doomed(scores: list[torch.Tensor], gone: list[int], selection: Selection) -> list[list[int]]:
    """For each attention the heads that go, ascending, where `gone` went before.

    Raises:
        Unsupported: none would go in the end.
    """
    heads = [len(each) for each in scores]
    if selection.scope == "global":
        counts = counts_of_all(scores, _wanted(sum(heads), sum(gone), selection))
    else:
        wanted = [_wanted(each, before, selection) for each, before in zip(heads, gone, strict=True)]
        counts = [min(count, each - 1) for each, count in zip(heads, wanted, strict=True)]
    doomed = least(scores, counts)
    if selection.last and not any(doomed) and not any(gone):
        raise Unsupported(
            f"head_sparsity {selection.head_sparsity} removes no head: attentions have at most {max(heads)}, "
            "and each keeps one; raise head_sparsity"
        )
    return doomed


def _shortfalls(attentions: Sequence[Attention], doomed: list[list[int]], selection: Selection) -> list[str]:
    """Where fewer heads go than were asked for in one round."""
    if selection.gone or not selection.last:
        return []
    if selection.scope == "global":
        total, gone = sum(each.heads for each in attentions), sum(map(len, doomed))
        if gone == share_of(total, selection.head_sparsity):
            return []
        return [f"head_sparsity {selection.head_sparsity} removes {gone} of {total} heads: each attention keeps one"]
    return [
        f"{attention.path or 'the module'}: head_sparsity {selection.head_sparsity} removes none of "
        f"{attention.heads} {'head' if attention.heads == 1 else 'heads'}"
        for attention, heads in zip(attentions, doomed, strict=True)
        if not heads
    ]


def _remove(module: nn.Module, attention: Attention, heads: list[int]) -> dict[str, list[int]]:
    """Cut `heads` out of `module` in place; per path of a linear layer the rows that are gone."""
    removed = {path: sorted(row for head in heads for row in rows[head]) for path, rows in attention.rows.items()}
    for path, rows in removed.items():
        keep(linear_at(module, path), outputs=_others(linear_at(module, path).weight[:, 0], rows))
    columns = [column for head in heads for column in attention.columns[head]]
    keep(linear_at(module, attention.output), inputs=_others(linear_at(module, attention.output).weight[0], columns))
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

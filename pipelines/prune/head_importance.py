"""How much each attention head matters: norms of its weights, what it hands on, or what the loss loses without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from evalsuite import Unsupported
from pipelines.prune.attention import Attention, linear_at
from pipelines.prune.selection import Probe, Selection

_Hook = Callable[[nn.Module, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...] | None]


def head_scores(
    module: nn.Module, attentions: Sequence[Attention], probe: Probe, selection: Selection
) -> list[torch.Tensor]:
    """The importance of each head, one float64 tensor (heads,) for each attention; the least important go first.

    - "l1", "l2", "group_norm": the norm of all the weights that belong to the head alone: the rows of its query, key
      and value, and the columns that read it. "group_norm" is "l2": a head is one group in any case.
    - "taylor": the mean over samples of |d loss / d gate|, where the gate is a factor of 1 on what the head hands to
      the output layer: arXiv 1905.10650, eq. 2. With the weights it is |sum of weight * gradient| of one sample, over
      the columns that read the head.
    - "hessian": the mean of that derivative's square: the diagonal of the empirical Fisher matrix, as an estimate of
      the Hessian, arXiv 1801.05787.
    - "activation": the mean absolute value of what the head hands to the output layer.
    - "random": drawn from `selection.seed`.

    Args:
        module: in eval mode; it is the same afterwards.

    Raises:
        Unsupported: "bn_scale"; data are needed, and there are none; an attention never ran; a score is not finite.
        ValueError: an unknown importance.
    """
    match selection.importance:
        case "random":
            generator = torch.Generator().manual_seed(selection.seed)
            scores = [torch.rand(each.heads, generator=generator, dtype=torch.float64) for each in attentions]
        case "l1" | "l2" | "group_norm" as name:
            scores = [_norms(module, each, 1 if name == "l1" else 2) for each in attentions]
        case "taylor":
            scores = [each.abs().mean(0) for each in _gate_gradients(module, attentions, probe)]
        case "hessian":
            scores = [each.square().mean(0) for each in _gate_gradients(module, attentions, probe)]
        case "activation":
            scores = _activity(module, attentions, probe)
        case "bn_scale":
            raise Unsupported("importance 'bn_scale' does not rank attention heads: none has a BatchNorm; use another")
        case other:
            raise ValueError(f"importance: no way to rank attention heads by {other!r}")
    for attention, each in zip(attentions, scores, strict=True):
        if not each.isfinite().all():
            raise Unsupported(
                f"{attention.path or 'the module'}: the importance of a head is not finite: {each.tolist()}"
            )
    return scores


@torch.no_grad()
def _norms(module: nn.Module, attention: Attention, order: int) -> torch.Tensor:
    norms = []
    for head in range(attention.heads):
        parts = [linear_at(module, path).weight[list(rows[head])] for path, rows in attention.rows.items()]
        parts.append(linear_at(module, attention.output).weight[:, list(attention.columns[head])])
        norms.append(torch.cat([each.double().flatten() for each in parts]).norm(order))
    return torch.stack(norms).cpu()


def _gate_gradients(module: nn.Module, attentions: Sequence[Attention], probe: Probe) -> list[torch.Tensor]:
    """d loss / d gate, (samples, heads) for each attention; samples are the first dimension of its inputs.

    One gate a sample: samples do not see each other in eval mode, so one backward pass gives each sample's own
    derivative, which squares and absolute values need before the mean.
    """
    if probe.losses is None:
        raise Unsupported("importance 'taylor' or 'hessian' of heads needs calibration data, and there are none")
    gates: dict[str, torch.Tensor] = {}
    collected: list[list[torch.Tensor]] = [[] for _ in attentions]

    def gate(attention: Attention) -> _Hook:
        def hook(_layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            mixed, *others = inputs
            if attention.output not in gates:
                gates[attention.output] = mixed.new_ones(len(mixed), attention.heads).requires_grad_()
            factors = gates[attention.output][:, _head_of_columns(attention).to(mixed.device)]
            return mixed * factors.view(len(mixed), *[1] * (mixed.ndim - 2), -1), *others

        return hook

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
def _activity(module: nn.Module, attentions: Sequence[Attention], probe: Probe) -> list[torch.Tensor]:
    if probe.losses is None:
        raise Unsupported("importance 'activation' of heads needs calibration data, and there are none")
    sums: dict[str, torch.Tensor] = {}
    tokens: dict[str, int] = {}

    def record(attention: Attention) -> _Hook:
        def hook(_layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            mixed = inputs[0].detach().double().flatten(0, -2).abs()
            by_head = mixed[:, torch.tensor(attention.columns, device=mixed.device)]
            path = attention.output
            sums[path] = sums.get(path, torch.zeros(attention.heads)) + by_head.mean(-1).sum(0).cpu()
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
def _hooked(module: nn.Module, attentions: Sequence[Attention], make: Callable[[Attention], _Hook]) -> Iterator[None]:
    handles = [module.get_submodule(each.output).register_forward_pre_hook(make(each)) for each in attentions]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_ran(attentions: Sequence[Attention], seen: dict[str, torch.Tensor]) -> None:
    for attention in attentions:
        if attention.output not in seen:
            raise Unsupported(
                f"{attention.path or 'the module'}: its output layer {attention.output} never ran on the calibration "
                "data, so the importance of its heads is not known"
            )

"""Inputs whose numbers a forward cannot see: what it computes of them is told from what is constant."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

# Of their first argument these take the shape and the type alone.
_SHAPED = {
    torch.ops.aten.full_like, torch.ops.aten.new_full, torch.ops.aten.new_ones, torch.ops.aten.new_zeros,
    torch.ops.aten.ones_like, torch.ops.aten.zeros_like,
}  # fmt: skip

_Versions = list[tuple[torch.Tensor, int]]


class Hidden(torch.Tensor):
    """A tensor that depends on the input. It has no storage, so that nothing reads its numbers past the operators.

    What an operator makes of one is hidden too, also where it has no gradient; other tensors are constant. `read` are
    the constants that operators took beside hidden tensors, and their versions then.

    Raises:
        ValueError: from an operator that would make a Python number or a shape of the numbers, as a branch on values
            does, or that writes them into a constant.
    """

    numbers: torch.Tensor
    read: _Versions

    @staticmethod
    def __new__(cls, inner: torch.Tensor, read: _Versions) -> Hidden:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        assert isinstance(made, Hidden)
        made.numbers, made.read = inner, read
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Hidden{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute on what is hidden, and hide the results."""
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        hidden = [each for each in tensors if isinstance(each, Hidden)]
        read = hidden[0].read
        read += [(each, each._version) for each in tensors if not isinstance(each, Hidden)]
        _refuse_shapes_and_writes(func, args, kwargs)
        inner_args, inner_kwargs = tree_map_only(Hidden, lambda each: each.numbers, (args, kwargs))
        made = func(*inner_args, **inner_kwargs)
        if any(not isinstance(each, torch.Tensor | None) for each in tree_leaves(made)):
            raise ValueError(f"{func} makes a Python value of numbers that depend on the input")
        if func.overloadpacket in _SHAPED:
            return made
        given = {id(each.numbers): each for each in hidden}  # what works in place returns what it is given

        def hidden_as(inner: torch.Tensor) -> Hidden:
            if id(inner) not in given:
                return Hidden(inner, read)
            if given[id(inner)].shape != inner.shape:
                raise ValueError(f"{func} changes the shape in place")
            return given[id(inner)]

        return tree_map_only(torch.Tensor, hidden_as, made)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _refuse_shapes_and_writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ValueError where hidden numbers would decide a shape, or would be written into a constant."""
    deciding = args[1:] if func.overloadpacket is torch.ops.aten.index else args  # of x[i] the indices
    if torch.Tag.dynamic_output_shape in func.tags and any(isinstance(each, Hidden) for each in _tensors(deciding)):
        raise ValueError(f"{func} makes a shape of numbers that depend on the input")
    names = [each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
    given = dict(zip([each.name for each in func._schema.arguments], args, strict=False)) | kwargs
    if any(not isinstance(each, Hidden) for name in names for each in _tensors(given.get(name))):
        raise ValueError(f"{func} writes numbers that depend on the input into a constant")


def hide(inputs: torch.Tensor) -> Hidden:
    """`inputs` for a forward that must not see them; the run must not track gradients."""
    return Hidden(inputs, [])


def changed_since(inputs: Hidden) -> bool:
    """Whether a constant that an operator took beside what depends on `inputs` was overwritten later."""
    return any(each._version != version for each, version in inputs.read)

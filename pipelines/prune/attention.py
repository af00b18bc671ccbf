"""Where the heads of a module's attentions are: which rows and columns of which linear layers
make each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

Heads = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """One multi-head attention.

    Args:
        path: dotted, of the module that splits its inputs into heads.
        heads: their number.
        head_size: channels of one head in each of query, key and value; it stays when heads are
            removed.
        rows: dotted path of a Linear -> for each head the rows of the weight that make its query,
            key or value.
        output: dotted path of the Linear that mixes the heads.
        columns: for each head the columns of that Linear's weight which read it.
        counts: attributes of the module at `path` that hold the number of heads.
        widths: its attributes that hold heads * head_size.
    """

    path: str
    heads: int
    head_size: int
    rows: Mapping[str, Heads]
    output: str
    columns: Heads
    counts: tuple[str, ...] = ()
    widths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for path, heads in [*self.rows.items(), (self.output, self.columns)]:
            indices = [index for head in heads for index in head]
            if len(heads) != self.heads or not indices or len(set(indices)) < len(indices):
                raise ValueError(
                    f"{self.path}: the indices of {path} must be {self.heads} disjoint heads, got"
                    f" {len(heads)}: {heads}"
                )


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a family of attentions names its parts: `inputs` make query, key and value, one after
    another.
    """

    inputs: tuple[str, ...]
    output: str
    size: str
    counts: tuple[str, ...] = ()
    widths: tuple[str, ...] = ()
    beside: bool = False  # whether `output` belongs to the module around the attention

    def output_at(self, path: str) -> str:
        return _joined(path.rpartition(".")[0] if self.beside else path, self.output)

    def size_of(self, part: nn.Module) -> int | None:
        size = getattr(part, self.size, None)
        return size if isinstance(size, int) else None

    def there(self, names: tuple[str, ...], part: nn.Module) -> tuple[str, ...]:
        return tuple(name for name in names if name in vars(part))


_LAYOUTS = (
    # the transformers of evalsuite's workloads
    _Layout(("project_in",), "project_out", "head_size"),
    _Layout(("c_attn",), "c_proj", "head_dim", ("num_heads",), ("split_size",)),  # GPT-2
    _Layout(  # BERT and those built as it is
        ("query", "key", "value"),
        "output.dense",
        "attention_head_size",
        ("num_attention_heads",),
        ("all_head_size",),
        beside=True,
    ),
    # DistilBERT
    _Layout(("q_lin", "k_lin", "v_lin"), "out_lin", "attention_head_size", ("n_heads",), ("dim",)),
    # ViT, DeiT, Llama
    _Layout(("q_proj", "k_proj", "v_proj"), "o_proj", "head_dim", ("num_attention_heads",)),
    _Layout(("q_proj", "k_proj", "v_proj"), "out_proj", "head_dim", ("num_heads",)),  # CLIP
)


def linear_at(module: nn.Module, path: str) -> nn.Linear:
    """The Linear at `path`.

    Raises:
        TypeError: something else is there.
    """
    layer = module.get_submodule(path)
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"{path}: expected a Linear, got {type(layer).__name__}")
    return layer


def find_attentions(module: nn.Module) -> list[Attention]:
    """The attentions of `module` whose heads can be removed, in the order of their paths in the
    module.

    They are recognised by the names and sizes of their parts, whatever their class; `prune_heads`
    compares outputs.
    """
    return [attention for attention in _examined(module) if isinstance(attention, Attention)]


def unknown_attentions(module: nn.Module) -> list[str]:
    """For each other attention of `module`, one sentence with its path and why its heads cannot
    be removed.
    """
    return [path for path in _examined(module) if isinstance(path, str)]


def _examined(module: nn.Module) -> list[Attention | str]:
    owners = Counter(
        id(weight) for part in module.modules() for weight in part.parameters(recurse=False)
    )
    candidates = list(_candidates(module, owners))
    layers = [
        (
            [id(module.get_submodule(layer)) for layer in (*candidate.rows, candidate.output)]
            if isinstance(candidate, Attention)
            else []
        )
        for candidate in candidates
    ]
    # Heads that go take their rows from a layer: one that two attentions use would lose them twice.
    used = Counter(layer for parts in layers for layer in parts)
    return [
        (
            f"{candidate.path or 'the module'}: shares a layer with another attention"
            if isinstance(candidate, Attention) and any(used[layer] > 1 for layer in parts)
            else candidate
        )
        for candidate, parts in zip(candidates, layers, strict=True)
    ]


def _candidates(module: nn.Module, owners: Counter[int]) -> Iterator[Attention | str]:
    for path, part in module.named_modules():
        layout = next(
            (
                layout_known
                for layout_known in _LAYOUTS
                if _matches(module, path, part, layout_known)
            ),
            None,
        )
        if layout is not None:
            reason = next(_objections(module, path, part, layout, owners), None)
            yield (
                _description(module, path, part, layout)
                if reason is None
                else f"{path or 'the module'}: {reason}"
            )
        elif _is_unknown(part):
            yield f"{path or 'the module'}: {type(part).__name__} is laid out in no known way"


def _matches(module: nn.Module, path: str, part: nn.Module, layout: _Layout) -> bool:
    if layout.beside and not path:
        return False
    try:
        module.get_submodule(layout.output_at(path))
    except AttributeError:
        return False
    children = dict(part.named_children())
    return all(name in children for name in layout.inputs) and layout.size_of(part) is not None


def _is_unknown(part: nn.Module) -> bool:
    """Whether it is an attention with weights, and holds no other one: by its name, as there is
    no common class.
    """
    inner = [
        type(module).__name__ for module in part.modules() if any(True for _ in module.parameters())
    ]
    return (
        bool(inner)
        and inner[0].endswith("Attention")
        and not any("Attention" in name for name in inner[1:])
    )


def _objections(
    module: nn.Module, path: str, part: nn.Module, layout: _Layout, owners: Counter[int]
) -> Iterator[str]:
    """Why heads of an attention that looks like `layout` cannot be removed; each asks for those
    before to be none.
    """
    # 1. The layers must be plain Linears of their own.
    layers: dict[str, Any] = {name: part.get_submodule(name) for name in layout.inputs}
    layers[layout.output] = module.get_submodule(layout.output_at(path))
    for name, layer in layers.items():
        if type(layer) is not nn.Linear:  # a subclass may hold more than a weight
            cure = (
                "; convert it with conv1d_to_linear first"
                if type(layer).__name__ == "Conv1D"
                else ""
            )
            yield f"{name} is a {type(layer).__name__}, not a Linear{cure}"
        if any(owners[id(weight)] > 1 for weight in layer.parameters(recurse=False)):
            yield f"{name} shares its weights with another layer"
    # 2. Any other parameter may have an entry for each head, which would have to go with it.
    known = {id(weight) for layer in layers.values() for weight in layer.parameters()}
    for name, weight in part.named_parameters():
        if id(weight) not in known:
            yield f"{name} may hold a share for each head"
    # 3. The sizes must be whole heads, and query, key and value as wide as what is read: else heads
    # share keys and values.
    size, width = layout.size_of(part) or 0, layers[layout.output].in_features
    if size < 1 or width % size:
        yield f"{layout.output} reads {width} channels, no multiple of {layout.size} = {size}"
    for name in layout.inputs:
        channels = layers[name].out_features
        if channels != width * 3 // len(layout.inputs):
            yield (
                f"{name} makes {channels} channels for the {width} of {layout.output}: heads share"
                " keys and values"
            )
    # 4. What the module says of its sizes must agree with its layers, as it is rewritten later.
    for names, expected in ((layout.counts, width // size), (layout.widths, width)):
        for name in layout.there(names, part):
            if getattr(part, name) != expected:
                yield (
                    f"{name} is {getattr(part, name)!r}, but the sizes of the layers say {expected}"
                )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _description(module: nn.Module, path: str, part: nn.Module, layout: _Layout) -> Attention:
    size, output = layout.size_of(part) or 0, layout.output_at(path)
    width = linear_at(module, output).in_features
    columns = tuple(tuple(range(start, start + size)) for start in range(0, width, size))
    # A fused layer makes all queries, then all keys, then all values.
    starts = range(0, 3 * width // len(layout.inputs), width)
    rows = tuple(tuple(start + column for start in starts for column in head) for head in columns)
    inputs = {_joined(path, name): rows for name in layout.inputs}
    counts, widths = layout.there(layout.counts, part), layout.there(layout.widths, part)
    return Attention(path, len(columns), size, inputs, output, columns, counts, widths)

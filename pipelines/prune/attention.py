"""Where the heads of a module's attentions are: which rows and columns of which linear layers make each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

Heads = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """One multi-head attention.

    Args:
        path: dotted, of the module that splits its inputs into heads.
        heads: their number.
        head_size: channels of one head in each of query, key and value; it stays when heads are removed.
        rows: dotted path of a Linear -> for each head the rows of the weight that make its query, key or value.
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
                    f"{self.path}: the indices of {path} must be {self.heads} disjoint heads, got {len(heads)}: {heads}"
                )


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a family of attentions names its parts: `inputs` make query, key and value, one after another."""

    inputs: tuple[str, ...]
    output: str
    size: str
    counts: tuple[str, ...] = ()
    widths: tuple[str, ...] = ()
    beside: bool = False  # whether `output` belongs to the module around the attention


_LAYOUTS = (
    _Layout(("project_in",), "project_out", "head_size"),  # the transformers of evalsuite's workloads
    _Layout(("c_attn",), "c_proj", "head_dim", ("num_heads",), ("split_size",)),  # GPT-2
    _Layout(  # BERT and those built as it is
        ("query", "key", "value"),
        "output.dense",
        "attention_head_size",
        ("num_attention_heads",),
        ("all_head_size",),
        beside=True,
    ),
    _Layout(("q_lin", "k_lin", "v_lin"), "out_lin", "attention_head_size", ("n_heads",), ("dim",)),  # DistilBERT
    _Layout(("q_proj", "k_proj", "v_proj"), "o_proj", "head_dim", ("num_attention_heads",)),  # ViT, DeiT, Llama
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
    """The attentions of `module` whose heads can be removed, in the order of their paths in the module.

    They are recognised by the names and sizes of their parts, whatever their class; `prune_heads` compares outputs.
    """
    return [each for each in _examined(module) if isinstance(each, Attention)]


def unknown_attentions(module: nn.Module) -> list[str]:
    """For each other attention of `module`, one sentence with its path and why its heads cannot be removed."""
    return [each for each in _examined(module) if isinstance(each, str)]


def _examined(module: nn.Module) -> list[Attention | str]:
    owners = Counter(id(weight) for part in module.modules() for weight in part.parameters(recurse=False))
    found = list(_candidates(module, owners))
    used = Counter(
        id(module.get_submodule(layer))
        for each in found
        if isinstance(each, Attention)
        for layer in (*each.rows, each.output)
    )
    return [
        f"{each.path or 'the module'}: shares a layer with another attention"
        if isinstance(each, Attention)
        and any(used[id(module.get_submodule(layer))] > 1 for layer in (*each.rows, each.output))
        else each
        for each in found
    ]


def _candidates(module: nn.Module, owners: Counter[int]) -> Iterator[Attention | str]:
    for path, part in module.named_modules():
        layout = next((each for each in _LAYOUTS if _matches(module, path, part, each)), None)
        if layout is not None:
            reason = _objection(module, path, part, layout, owners)
            yield _description(module, path, part, layout) if reason is None else f"{path or 'the module'}: {reason}"
        elif _is_unknown(part):
            yield f"{path or 'the module'}: {type(part).__name__} is laid out in no known way"


def _matches(module: nn.Module, path: str, part: nn.Module, layout: _Layout) -> bool:
    around = part
    if layout.beside:
        if not path:
            return False
        around = module.get_submodule(path.rpartition(".")[0])
    try:
        around.get_submodule(layout.output)
    except AttributeError:
        return False
    children = dict(part.named_children())
    return all(name in children for name in layout.inputs) and _size(part, layout) is not None


def _is_unknown(part: nn.Module) -> bool:
    """Whether it is an attention with weights, and holds no other one: by its name, as there is no common class."""
    inner = [type(each).__name__ for each in part.modules() if any(True for _ in each.parameters())]
    return bool(inner) and inner[0].endswith("Attention") and not any("Attention" in name for name in inner[1:])


def _objection(module: nn.Module, path: str, part: nn.Module, layout: _Layout, owners: Counter[int]) -> str | None:
    """Why heads of an attention that looks like `layout` cannot be removed, or None."""
    parts = {name: part.get_submodule(name) for name in layout.inputs}
    parts[layout.output] = module.get_submodule(_output_path(path, layout))
    layers: dict[str, nn.Linear] = {}
    for name, layer in parts.items():
        if not isinstance(layer, nn.Linear) or type(layer) is not nn.Linear:  # a subclass may hold more than a weight
            cure = "; convert it with conv1d_to_linear first" if type(layer).__name__ == "Conv1D" else ""
            return f"{name} is a {type(layer).__name__}, not a Linear{cure}"
        if any(owners[id(weight)] > 1 for weight in layer.parameters(recurse=False)):
            return f"{name} shares its weights with another layer"
        layers[name] = layer
    known = {id(weight) for layer in layers.values() for weight in layer.parameters()}
    foreign = [name for name, weight in part.named_parameters() if id(weight) not in known]
    if foreign:
        return f"{foreign[0]} may hold a share for each head"
    return _wrong_size(part, layout, [layers[name].out_features for name in layout.inputs], layers[layout.output])


def _wrong_size(part: nn.Module, layout: _Layout, outputs: list[int], last: nn.Linear) -> str | None:
    size = _size(part, layout) or 0
    width = last.in_features
    if size < 1 or width % size:
        return f"{layout.output} reads {width} channels, no multiple of {layout.size} = {size}"
    for name, channels in zip(layout.inputs, outputs, strict=True):
        if channels != width * 3 // len(layout.inputs):
            return f"{name} makes {channels} channels for the {width} of {layout.output}: heads share keys and values"
    for name, expected in _attributes(part, layout, width // size, width):
        if getattr(part, name) != expected:
            return f"{name} is {getattr(part, name)!r}, but the sizes of the layers say {expected}"
    return None


def _attributes(part: nn.Module, layout: _Layout, heads: int, width: int) -> list[tuple[str, int]]:
    both = [*((name, heads) for name in layout.counts), *((name, width) for name in layout.widths)]
    return [(name, value) for name, value in both if name in vars(part)]


def _size(part: nn.Module, layout: _Layout) -> int | None:
    size = getattr(part, layout.size, None)
    return size if isinstance(size, int) else None


def _output_path(path: str, layout: _Layout) -> str:
    return _joined(path.rpartition(".")[0] if layout.beside else path, layout.output)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _description(module: nn.Module, path: str, part: nn.Module, layout: _Layout) -> Attention:
    size = _size(part, layout) or 0
    output = _output_path(path, layout)
    width = linear_at(module, output).in_features
    columns = tuple(tuple(range(start, start + size)) for start in range(0, width, size))
    # A fused layer makes all queries, then all keys, then all values.
    starts = range(0, 3 * width // len(layout.inputs), width)
    rows = tuple(tuple(start + column for start in starts for column in head) for head in columns)
    return Attention(
        path=path,
        heads=len(columns),
        head_size=size,
        rows={_joined(path, name): rows for name in layout.inputs},
        output=output,
        columns=columns,
        counts=tuple(name for name in layout.counts if name in vars(part)),
        widths=tuple(name for name in layout.widths if name in vars(part)),
    )

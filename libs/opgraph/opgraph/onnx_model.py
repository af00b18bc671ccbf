"""ONNX files as they lie on disk: read whole, with the weights of other files, which are looked
for beside it alone.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper

from opgraph.errors import OwnError
from opgraph.limits import content


def load_model(path: Path) -> onnx.ModelProto:
    """The model in an .onnx or .onnx.gz file, with all its weights in it, whatever the present
    folder is.

    Raises:
        OwnError: it is no ONNX file, or not a whole one; or its weights are not beside it, lie
            outside of its folder, or are fewer bytes than it says.
        OSError: a file can't be read.
    """
    model = parsed(path)
    if not weight_files(model, path):
        return model
    # ONNX's own loader takes locations relative to a folder, and refuses links: they are resolved
    # first.
    folder = path.parent.resolve()
    for tensor in _outside(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                # Where it leads by links inside of the folder: onnx follows none.
                entry.value = str((folder / entry.value).resolve().relative_to(folder))
    try:
        external_data_helper.load_external_data_for_model(model, str(folder))
    except (ValueError, onnx.checker.ValidationError) as error:
        said = " ".join(str(error).split())[:300]
        raise OwnError(
            f"{path}: its weights are not read: {said}; copy the file that holds them, whole"
        ) from error
    return model


def parsed(path: Path) -> onnx.ModelProto:
    """Return what the file itself says, without weights that lie in others. Errors as for
    `load_model`.
    """
    if not path.is_file():
        raise OwnError(f"there is no file {path}; give the path of an ONNX file")
    try:
        model = onnx.load_model_from_string(content(path))
    except PermissionError as error:
        raise OwnError(f"{path}: {error.strerror}; let it be read by this user") from error
    except OwnError:
        raise
    except Exception as error:  # protobuf's DecodeError, by whichever implementation, or gzip's
        raise OwnError(
            f"{path}: is no ONNX file, or not a whole one; write it with torch.onnx.export"
        ) from error
    if not model.graph.output:
        raise OwnError(
            f"{path}: is no ONNX file, or an empty one: it has no output; write it with"
            " torch.onnx.export"
        )
    return model


def weight_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """The files beside `path` that hold weights of the model in it, each once.

    Raises:
        OwnError: one is not there, or lies outside of the file's folder, where another file could
            be taken for it.
    """
    folder, locations = path.parent, sorted({_location(tensor) for tensor in _outside(model)})
    for location in locations:
        if Path(location).is_absolute() or not (folder / location).resolve().is_relative_to(
            folder.resolve()
        ):
            raise OwnError(
                f"{path}: its weights are in {location!r}, outside of its folder, where they are"
                " not read: copy them beside it, and save it anew by onnx.save(model, FILE,"
                " save_as_external_data=True)"
            )
    absent = [location for location in locations if not (folder / location).is_file()]
    if absent:
        names = ", ".join(map(repr, absent))
        raise OwnError(f"{path}: its weights are in {names}, which is not beside it: copy it there")
    return [folder / location for location in locations]


_NAMES = ("id2label", "names", "classes", "class_names", "labels")


def stored_names(path: Path) -> dict[Any, Any] | list[Any]:
    """The names of classes in a file's metadata: JSON, or Python's words for a list or a
    dictionary, under a usual key; empty where there are none. Errors as for `load_model`.
    """
    texts = {
        metadata_prop.key: metadata_prop.value for metadata_prop in parsed(path).metadata_props
    }
    for key in _NAMES:
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                names = read(texts.get(key, ""))
                if isinstance(names, (dict, list)) and names:
                    return names
    return []


def refuse_outside(model: onnx.ModelProto | bytes, what: str) -> None:
    """Raise OwnError where a model, or a file's bytes, has weights in other files: of neither
    the folder is known.
    """
    if isinstance(model, bytes):
        if b"location" not in model:
            return
        try:
            model = onnx.load_model_from_string(model)
        except Exception:  # whoever reads these bytes says what is wrong with them
            return
    for tensor in _outside(model):
        raise OwnError(
            f"{what}: constant {tensor.name!r} lies in another file, {_location(tensor)!r}: write"
            " one file by onnx.save(onnx.load(FILE), ONE_FILE)"
        )


def _location(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _outside(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose numbers lie in other files, in graphs at every depth."""
    functions = (node for function in model.functions for node in function.node)
    for tensor in (*_of_graph(model.graph), *_of_nodes(functions)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _of_graph(graph)

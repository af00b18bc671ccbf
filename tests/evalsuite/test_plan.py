"""What is said where the data of a workload cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import pytest

from evalsuite.plan import fingerprint_of
from evalsuite.recipe import Part
from evalsuite.workloads.adult import AdultMLP
from evalsuite.workloads.workload import DataError


@dataclass(frozen=True)
class Fails:
    error: BaseException

    def fingerprint(self) -> NoReturn:
        raise self.error


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (AdultMLP(file="/nowhere/adult.whl"), "/nowhere/adult.whl is missing: `file` names adult.parquet.brotli or"),
        (Fails(PermissionError(13, "Permission denied", "/a")), "/a: Permission denied; put it there, or name another"),
        (Fails(ValueError("x.gz: damaged;\n download it again")), "x.gz: damaged; download it again"),
        (Fails(ModuleNotFoundError("No module named 'y'")), "ModuleNotFoundError: No module named 'y'"),
        (Fails(KeyError("z")), "KeyError: 'z'"),
        (Fails(SystemExit(3)), "SystemExit: 3"),
    ],
)
def test_unreadable_data_are_named_with_what_is_wrong(target: object, said: str) -> None:
    with pytest.raises(DataError) as caught:
        fingerprint_of(Part("mine", "adult-mlp", {}, target))
    assert str(caught.value).startswith(f"workload 'mine': its data cannot be read: {said}")
    assert "\n" not in str(caught.value)

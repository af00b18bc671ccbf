"""What of this machine decides results: how many threads torch takes, and whether integer kernels are exact."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_DESCRIPTION = Path("/proc/cpuinfo")
_EXACT = {"avx512_vnni", "avx_vnni"}


def saturation(description: str | None = None) -> str:
    """Why sums of 8-bit products may saturate on this processor, and the cure; "" if they do not or it is not known.

    x86 without VNNI adds two u8 x s8 products in 16 bits, where 2 x 255 x 127 does not fit.

    Args:
        description: the text of Linux's /proc/cpuinfo; read if None.
    """
    if description is None:
        known = platform.machine() in ("x86_64", "AMD64") and _DESCRIPTION.exists()
        description = _DESCRIPTION.read_text() if known else ""
    flags = next((line.split(":", 1)[1].split() for line in description.splitlines() if line.startswith("flags")), None)
    if flags is None or _EXACT & set(flags):
        return ""
    return (
        "this processor has no VNNI: sums of two 8-bit products may saturate in 16 bits; weights of 7 bits, or the "
        "session option session.x64quantprecision=1, avoid it"
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch: sums that are split among threads differ in their last bits with the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

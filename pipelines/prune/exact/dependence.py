"""Rows of a matrix that are sums of multiples of others."""

from __future__ import annotations

import torch

# What float32 weights say of a row is relative to it by about 1e-7; a remainder below is none.
_REMAINDER = 1e-7
# Greater multiples would amplify the rounding of what they multiply.
_GREATEST = 100.0


def dependent_rows(rows: torch.Tensor) -> dict[int, dict[int, float]]:
    """Rows that depend on others -> the multiple of each of these; none of these depends itself.

    Gram-Schmidt with the longest remainder first: those that stay are as independent as can be.

    Args:
        rows: (rows, columns) float64.
    """
    basis = _independent(rows)
    dependent = [row for row in range(len(rows)) if row not in set(basis)]
    if not basis or not dependent:
        return {}
    kept = rows[basis]
    shares = torch.linalg.lstsq(kept.T, rows[dependent].T, driver="gelsd").solution.T
    remainders = (rows[dependent] - shares @ kept).norm(dim=1)
    fine = (remainders <= _REMAINDER * rows[dependent].norm(dim=1)) & (shares.abs().amax(1) <= _GREATEST)
    return {
        row: {other: float(share) for other, share in zip(basis, shares[at], strict=True) if share != 0}
        for at, row in enumerate(dependent)
        if bool(fine[at])
    }


def _independent(rows: torch.Tensor) -> list[int]:
    """Rows that span all of them, to float32's precision."""
    left, lengths = rows.clone(), rows.norm(dim=1)
    basis: list[int] = []
    for _ in range(min(rows.shape)):
        remainders = left.norm(dim=1)
        at = int((remainders / lengths.clamp(min=1e-300)).argmax())
        if not float(remainders[at]) > _REMAINDER * float(lengths[at]):
            break
        basis.append(at)
        direction = left[at] / remainders[at]
        for _again in range(2):  # once leaves what rounding lost
            left = left - (left @ direction)[:, None] * direction
        left[at] = 0.0
    return basis

"""The compiled kernel of lambda-GELU for float32 on the CPU: value, or both gradients, in one pass
over the input.

Needs numba (the extra `fast`); importing this module compiles it, or loads what an earlier process
compiled.

With z = lambda x, a = |z| and e = exp(-z^2 / 2), the tail is Phi(-a) = e r(a), where r(a) = exp(a^2
/ 2) erfc(a / sqrt 2) / 2. r is u P(u), u = 1 / (1 + 0.35 a), P a minimax polynomial on a in [0,
14.5] (relative error 3.2e-8); e is 2^-t, t = z^2 log2(e) / 2, by the integer part of t and a
minimax polynomial of the rest (2e-9). The rounding errors of lambda x and z^2 are carried along by
fused multiply-adds: without that, e would lose z^2 / 2 ulps. So all is accurate to 1e-6, relative
to itself also in the left tail, until it underflows.
"""

# numba and llvmlite have no types, and decorators without types would take the annotations away.
# mypy: disable-error-code="misc,no-untyped-call,untyped-decorator,import-not-found,import-untyped"

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
_PIECE = 1 << 17  # Elements per piece: the same for any number of threads, so that sums are too.
_MOST_PIECES = 16  # With one lambda per channel each piece has sums of its own.
_BLOCK = 1024  # Elements whose terms are summed at once; they stay in the first-level cache.

_f = np.float32  # A bare literal would be a float64 in compiled code, and halve the speed.
_ZERO, _HALF, _ONE, _TWO, _LARGEST = _f(0), _f(0.5), _f(1), _f(2), np.finfo(np.float32).max
_FAR = _f(13.2)  # Beyond it exp(-z^2 / 2) < 2^-125: taken as 0.
_DENSITY_AT_0 = _f(0.3989422804014327)
_RATE = 0.7213475204444817  # log2(e) / 2
_RATE_HIGH = _f(_RATE)
_RATE_LOW = _f(_RATE - float(_RATE_HIGH))
_ROUND = _f(1.5 * 2**23)  # Adding and subtracting it rounds to an integer.
_SCALE = _f(0.35)
_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = (
    _f(each)
    for each in (
        0.139621307,
        0.139863515,
        0.119821289,
        0.105552497,
        -0.0232123396,
        0.159319674,
        -0.255838984,
        0.14403091,
        -0.0291578836,
    )
)
_E1, _E2, _E3, _E4, _E5, _E6 = (
    _f(each)
    for each in (
        0.693147206,
        0.240226469,
        0.0555032876,
        0.00961848896,
        0.00133999379,
        0.000153458283,
    )
)


@intrinsic
def _fma(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
    """a b + c, rounded once."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def _power_of_2(_context: Any, _n: Any) -> Any:
    """2^-n for a whole float32 n in [0, 126]: the exponent's bits, written."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        whole = ir.IntType(32)
        n = builder.fptosi(arguments[0], whole)
        return builder.bitcast(builder.shl(builder.sub(whole(127), n), whole(23)), ir.FloatType())

    return types.float32(types.float32), generate


@njit(inline="always")
def _bell(z: Any, rest: Any) -> Any:
    """exp(-(z + rest)^2 / 2) for |z| <= _FAR and a `rest` below an ulp of z."""
    square = z * z
    rest = _fma(z, z, -square) + _TWO * z * rest
    n = (square * _RATE_HIGH + _ROUND) - _ROUND
    r = _fma(_RATE_HIGH, rest, _fma(square, _RATE_LOW, _fma(square, _RATE_HIGH, -n)))
    r = -r
    p = _fma(_fma(_fma(_fma(_E6, r, _E5), r, _E4), r, _E3), r, _E2)
    return _fma(_fma(p, r, _E1), r, _ONE) * _power_of_2(n)


@njit(inline="always")
def _mills(a: Any) -> Any:
    """r(a) = Phi(-a) exp(a^2 / 2), for a >= 0."""
    u = _ONE / _fma(_SCALE, a, _ONE)
    p = _fma(_fma(_fma(_fma(_P8, u, _P7), u, _P6), u, _P5), u, _P4)
    return u * _fma(_fma(_fma(_fma(p, u, _P3), u, _P2), u, _P1), u, _P0)


@njit(inline="always")
def _value_at(x: Any, hardness: Any) -> Any:
    z = x * hardness
    far = abs(z) > _FAR
    near = _ZERO if far else z
    # exp(-z^2 / 2), given the rounding error of z, which the fused multiply-add tells exactly.
    bell = _ZERO if far else _bell(near, _ZERO if far else _fma(x, hardness, -z))
    # Phi(-|z|), which is as accurate as the tail is small; Phi(|z|) is 1 minus that.
    tail = bell * _mills(abs(near))
    x = -_LARGEST if x < -_LARGEST else x  # minus infinity times 0 would be NaN
    return x * (tail if z < _ZERO else _ONE - tail)


@njit(inline="always")
def _slopes_at(x: Any, hardness: Any) -> Any:
    """df/dx = Phi(z) + z phi(z), and df/dlambda = x^2 phi(z)."""
    z = x * hardness
    far = abs(z) > _FAR
    near = _ZERO if far else z
    bell = _ZERO if far else _bell(near, _ZERO if far else _fma(x, hardness, -z))
    # df/dx at -|z|; at |z| it is 1 minus that
    tail = bell * (_mills(abs(near)) - abs(near) * _DENSITY_AT_0)
    x = _ZERO if far else x
    return (tail if z < _ZERO else _ONE - tail), x * (bell * _DENSITY_AT_0) * x


# Without "reassoc", so that the compensation of rounding errors stands.
_MATH = {"contract", "nsz"}


@njit(fastmath=_MATH, error_model="numpy", nogil=True)
def _slopes_block(x: Any, hardness: Any, upstream: Any, out: Any, terms: Any) -> None:
    for i in range(x.size):
        slope, term = _slopes_at(x[i], hardness)
        out[i] = upstream[i] * slope
        terms[i] = upstream[i] * term


@njit(fastmath=_MATH, error_model="numpy", nogil=True)
def _slopes_row(x: Any, hardness: Any, upstream: Any, out: Any, sums: Any) -> None:
    for i in range(x.size):
        slope, term = _slopes_at(x[i], hardness[i])
        out[i] = upstream[i] * slope
        sums[i] += upstream[i] * term


@njit(fastmath={"reassoc", "nsz"}, nogil=True)
def _sum(terms: Any, count: Any) -> Any:
    total = 0.0
    for i in range(count):
        total += terms[i]
    return total


_LINE, _TABLE, _SUMS = types.float32[::1], types.float32[:, ::1], types.float64[::1]


def _compiled(signature: Any) -> Any:
    """Compile at once, and keep the result on disk for later processes where a folder for it can
    be written.
    """

    def compile_now(function: Any) -> Any:
        compiler = partial(njit, [signature], fastmath=_MATH, error_model="numpy", nogil=True)
        try:
            return compiler(cache=True)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return compiler()(function)

    return compile_now


@_compiled(types.void(_LINE, types.float32, _LINE))
def _value_line(x: Any, hardness: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = _value_at(x[i], hardness)


@_compiled(types.void(_TABLE, _LINE, _TABLE))
def _value_table(x: Any, hardness: Any, out: Any) -> None:
    for row in range(x.shape[0]):
        line, to = x[row], out[row]
        for i in range(line.size):
            to[i] = _value_at(line[i], hardness[i])


@_compiled(types.float64(_LINE, types.float32, _LINE, _LINE))
def _slopes_line(x: Any, hardness: Any, upstream: Any, out: Any) -> Any:
    # In blocks, whose terms are summed apart: the sum may be reordered for speed, and the slopes
    # may not, since their compensation of rounding errors would be lost.
    terms = np.empty(_BLOCK, np.float32)
    total = 0.0
    for start in range(0, x.size, _BLOCK):
        end = min(start + _BLOCK, x.size)
        _slopes_block(x[start:end], hardness, upstream[start:end], out[start:end], terms)
        total += _sum(terms, end - start)
    return total


@_compiled(types.void(_TABLE, _LINE, _TABLE, _TABLE, _SUMS))
def _slopes_table(x: Any, hardness: Any, upstream: Any, out: Any, sums: Any) -> None:
    for row in range(x.shape[0]):
        _slopes_row(x[row], hardness, upstream[row], out[row], sums)


@cache
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """One a process: the threads of a parent do not live on in its forked child."""
    return ThreadPoolExecutor(threads, "lambda-gelu")


def _over_pieces(size: int, step: int, work: Callable[[int, slice], None]) -> None:
    """work(index, slice) for each piece of `step` rows, on as many threads as torch uses."""
    pieces = [slice(start, start + step) for start in range(0, size, step)]
    threads = min(torch.get_num_threads(), len(pieces))

    def share(first: int) -> None:
        for index in range(first, len(pieces), threads):
            work(index, pieces[index])

    if threads <= 1:
        share(0)
    else:
        list(_pool(os.getpid(), threads).map(share, range(threads)))


def _rows_of_piece(x: torch.Tensor) -> int:
    rows, columns = x.shape
    return max(-(-_PIECE // columns), -(-rows // _MOST_PIECES))


def value(x: torch.Tensor, hardness: torch.Tensor, out: torch.Tensor) -> None:
    """Write f(x) to `out`: both (n,) with one lambda, or (rows, columns) with lambda (columns,);
    contiguous float32.
    """
    source, target, scale = x.numpy(), out.numpy(), hardness.numpy()
    if x.ndim == 1:
        one = np.float32(scale)
        _over_pieces(
            len(x), _PIECE, lambda _, piece: _value_line(source[piece], one, target[piece])
        )
    else:
        _over_pieces(
            len(x),
            _rows_of_piece(x),
            lambda _, piece: _value_table(source[piece], scale, target[piece]),
        )


def slopes(
    x: torch.Tensor, hardness: torch.Tensor, upstream: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Write the gradient of x to `out`, and return that of lambda in float64. Shapes as for
    `value`.

    `upstream` may be expanded. The sums do not depend on the number of threads.
    """
    source, target, scale, gradient = x.numpy(), out.numpy(), hardness.numpy(), upstream.numpy()
    # One lambda for all: the pieces are stretches of a line, each with its part of the sum.
    if x.ndim == 1:
        one = np.float32(scale)
        totals = np.empty(-(-len(x) // _PIECE))

        def line(index: int, piece: slice) -> None:
            totals[index] = _slopes_line(
                source[piece], one, np.ascontiguousarray(gradient[piece]), target[piece]
            )

        _over_pieces(len(x), _PIECE, line)
        return torch.tensor(totals.sum(), dtype=torch.float64)
    # lambda per column: the pieces are groups of rows, each with its part of every column's sum.
    # The parts are added in their order, not in that in which threads end.
    step = _rows_of_piece(x)
    sums = np.zeros((-(-len(x) // step), x.shape[1]))

    def table(index: int, piece: slice) -> None:
        _slopes_table(
            source[piece], scale, np.ascontiguousarray(gradient[piece]), target[piece], sums[index]
        )

    _over_pieces(len(x), step, table)
    return torch.from_numpy(sums.sum(0))

"""Block formats of GGUF files as ggml's own quantisation without an importance matrix chooses them,
bit for bit.

Everything is float32 and added up one element after the other, as compiled C does it: another
order, or a product and a sum in one rounding, chooses other codes here and there.
`BLOCKS[format](matrix)` is the bytes of all its blocks.
"""

import numpy as np
from torch_random import F32


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)


def bytes_of(*parts: np.ndarray) -> bytes:
    """Blocks of the parts' rows."""
    return np.concatenate(
        [np.ascontiguousarray(part).view(np.uint8) for part in parts], 1
    ).tobytes()


def low_then_high(codes: np.ndarray) -> np.ndarray:
    """Two codes of 4 bits a byte: of the first and of the second half of the last axis."""
    low, high = np.split(codes & 15, 2, -1)
    return low | high << 4


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Over the last axis, in its order."""
    total = np.zeros(a.shape[:-1], F32)
    for i in range(a.shape[-1]):
        total = total + a[..., i] * b[..., i]
    return total


def farthest(values: np.ndarray) -> np.ndarray:
    """The element of the largest magnitude, with its sign."""
    return np.take_along_axis(values, np.abs(values).argmax(-1)[..., None], -1)


def inverse(values: np.ndarray) -> np.ndarray:
    return np.divide(F32(1), values, out=np.zeros_like(values), where=values != 0)


# --------------------------------------------------------------------------------------------------
# One scale for 32 elements


def q8_0(matrix: np.ndarray) -> bytes:
    x = matrix.reshape(-1, 32)
    scale = np.abs(x).max(-1, keepdims=True) / F32(127)
    codes = x * inverse(scale)
    rounded = np.copysign(np.trunc(np.abs(codes) + F32(0.5)), codes)  # halves away from zero
    return bytes_of(half(scale), rounded.astype(np.int8))


def q4_1(matrix: np.ndarray) -> bytes:
    x = matrix.reshape(-1, 32)
    low = x.min(-1, keepdims=True)
    scale = (x.max(-1, keepdims=True) - low) / F32(15)
    codes = np.minimum(15, ((x - low) * inverse(scale) + F32(0.5)).astype(np.uint8))
    return bytes_of(half(scale), half(low), low_then_high(codes))


def symmetric(matrix: np.ndarray, zero: int) -> tuple[np.ndarray, np.ndarray]:
    x = matrix.reshape(-1, 32)
    scale = farthest(x) / F32(-zero)
    return half(scale), np.minimum(
        2 * zero - 1, (x * inverse(scale) + F32(zero + 0.5)).astype(np.uint8)
    )


def q4_0(matrix: np.ndarray) -> bytes:
    scale, codes = symmetric(matrix, 8)
    return bytes_of(scale, low_then_high(codes))


def q5_0(matrix: np.ndarray) -> bytes:
    scale, codes = symmetric(matrix, 16)
    return bytes_of(scale, np.packbits(codes >> 4, axis=1, bitorder="little"), low_then_high(codes))


# --------------------------------------------------------------------------------------------------
# Super-blocks of 256 elements, whose scales are searched for


def best_scale(x: np.ndarray, zero: int) -> np.ndarray:
    """Of each row, codes from -zero on: 19 tries, errors weighted by the square of an element."""
    top, weights = farthest(x), x * x

    def sums(step: int) -> tuple[np.ndarray, np.ndarray]:
        codes = np.clip(np.rint(-(F32(zero) + F32(0.1) * F32(step)) / top * x), -zero, zero - 1)
        return dot(weights * x, codes), dot(weights * codes, codes)

    cross, square = sums(0)
    scale = cross / square
    best = scale * cross
    for step in [*range(-9, 0), *range(1, 10)]:
        cross, square = sums(step)
        better = cross * cross > best * square
        scale = np.where(better, cross / square, scale)
        best = np.where(better, scale * cross, best)
    return scale


def q6_k(matrix: np.ndarray) -> bytes:
    x = matrix.reshape(-1, 16, 16)
    scales = best_scale(x.reshape(-1, 16), 32).reshape(-1, 16)
    steps = F32(-128) / farthest(scales)
    scale, codes_of_scales = (
        half(F32(1) / steps),
        np.minimum(127, np.rint(steps * scales)).astype(np.int8),
    )
    worth = scale.astype(F32) * codes_of_scales.astype(F32)
    codes = (
        (np.clip(np.rint(x / worth[..., None]), -32, 31) + 32)
        .astype(np.uint8)
        .reshape(-1, 2, 4, 32)
    )
    low = (codes[:, :, :2] & 15) | (codes[:, :, 2:] & 15) << 4
    high = sum((codes[:, :, i] >> 4) << 2 * i for i in range(4))
    return bytes_of(low.reshape(-1, 128), high.reshape(-1, 64), codes_of_scales, scale)


def best_scale_and_minimum(
    x: np.ndarray, weights: np.ndarray, top: int, first: float, steps: int
) -> tuple:
    """Of each row, codes from 0 to `top`. The next try begins at the best minimum so far."""

    def codes_for(steps_per_unit: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(steps_per_unit[:, None] * (x - minimum[:, None])), 0, top)

    def error(scale: np.ndarray, minimum: np.ndarray, codes: np.ndarray) -> np.ndarray:
        difference = scale[:, None] * codes + minimum[:, None] - x
        return dot(weights, difference * difference)

    minimum, maximum = np.minimum(x.min(-1), F32(0)), x.max(-1)
    sum_w, sum_x = dot(weights, np.ones_like(x)), dot(weights, x)
    scale = F32(1) / (F32(top) / (maximum - minimum))
    best = error(scale, minimum, codes_for(F32(top) / (maximum - minimum)))
    for step in range(steps + 1):
        codes = codes_for((F32(first) + F32(0.1) * F32(step) + F32(top)) / (maximum - minimum))
        sum_c, sum_cc, sum_cx = (
            dot(weights, codes),
            dot(weights * codes, codes),
            dot(weights * codes, x),
        )
        determinant = sum_w * sum_cc - sum_c * sum_c
        solvable = determinant > 0
        determinant = np.where(solvable, determinant, F32(1))
        new_scale = (sum_w * sum_cx - sum_x * sum_c) / determinant
        new_minimum = (sum_cc * sum_x - sum_c * sum_cx) / determinant
        above = new_minimum > 0
        new_scale = np.where(
            above, np.divide(sum_cx, sum_cc, out=new_scale.copy(), where=above), new_scale
        )
        new_minimum = np.where(above, F32(0), new_minimum)
        new_error = error(new_scale, new_minimum, codes)
        better = solvable & (new_error < best)
        best, scale = np.where(better, new_error, best), np.where(better, new_scale, scale)
        minimum = np.where(better, new_minimum, minimum)
    return scale, -minimum


def six_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A block's scale in float16, and the 6-bit codes of eight values that are positive."""
    top = np.maximum(values.max(-1, keepdims=True), F32(0))
    steps = np.divide(F32(63), top, out=np.zeros_like(top), where=top > 0)
    return half(top / F32(63)), np.minimum(63, np.rint(steps * values)).astype(np.uint8)


def with_minima(matrix: np.ndarray, top: int, first: float, steps: int) -> tuple:
    rows = matrix.reshape(-1, 32)
    weights = np.sqrt(dot(rows, rows) / F32(32))[:, None] + np.abs(rows)
    scales, minima = (
        v.reshape(-1, 8) for v in best_scale_and_minimum(rows, weights, top, first, steps)
    )
    (scale, s), (minimum, m) = six_bits(scales), six_bits(minima)
    x = rows.reshape(-1, 8, 32)
    worth, offset = (a.astype(F32) * b.astype(F32) for a, b in ((scale, s), (minimum, m)))
    codes = (
        np.clip(np.rint((x + offset[..., None]) / worth[..., None]), 0, top)
        .astype(np.uint8)
        .reshape(-1, 4, 2, 32)
    )
    # The upper two bits of the last four are in the upper bits of the first four.
    packed = [
        s[:, :4] | s[:, 4:] >> 4 << 6,
        m[:, :4] | m[:, 4:] >> 4 << 6,
        (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4,
    ]
    low = (codes[:, :, 0] & 15) | (codes[:, :, 1] & 15) << 4
    return [scale, minimum, *packed], codes, low.reshape(-1, 128)


def q4_k(matrix: np.ndarray) -> bytes:
    head, _, low = with_minima(matrix, 15, -1.0, 20)
    return bytes_of(*head, low)


def q5_k(matrix: np.ndarray) -> bytes:
    head, codes, low = with_minima(matrix, 31, -0.5, 15)
    high = sum((codes[:, i, j] >> 4) << 2 * i + j for i in range(4) for j in range(2))
    return bytes_of(*head, high, low)


BLOCKS = {
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q6_K": q6_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
}

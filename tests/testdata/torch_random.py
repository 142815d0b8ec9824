"""The random numbers of torch's CPU generator, bit for bit, without torch.

A seed starts a Mersenne Twister as C++ does (not as numpy's seeding does). A tensor of float32
takes 24 bits a number; 16 of them become 16 normal numbers at a time, by Box and Muller, with the
logarithm, sine and cosine that torch computes eight at a time with AVX2: polynomials of the
Cephes library, whose multiplications and additions are contracted as the compiler contracted
them. They differ from the exact functions in the last bits of a float, so no other will do.
"""

import math

import numpy as np

F32 = np.float32
LOG = [
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
]
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
SINE = [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1]
COSINE = [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2]
QUARTER_PI = [
    0.78515625,
    2.4187564849853515625e-4,
    3.77489497744594108e-8,
]  # in three parts, to subtract it exactly


def fused(a: np.ndarray, b, c) -> np.ndarray:
    """a b + c, rounded once: the product of two float32 is exact in float64."""
    return (a.astype(np.float64) * np.float64(b) + np.float64(c)).astype(F32)


def polynomial(x: np.ndarray, coefficients: list[float]) -> np.ndarray:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = fused(value, x, F32(coefficient))
    return value


def log(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    exponent = ((bits >> 23).astype(np.int32) - 126).astype(F32)
    mantissa = ((bits & 0x007FFFFF) | 0x3F000000).view(F32)  # from 0.5 to 1
    small = mantissa < F32(math.sqrt(0.5))
    x = mantissa - F32(1) + np.where(small, mantissa, F32(0))
    exponent = exponent - small.astype(F32)
    square = x * x
    y = fused(polynomial(x, LOG) * x, square, exponent * F32(LN2_LOW))
    return fused(exponent, F32(LN2_HIGH), x + (y - square * F32(0.5)))


def sine_and_cosine(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of numbers from 0 on."""
    octant = ((x * F32(4 / math.pi)).astype(np.int32) + 1) & ~1
    for part in QUARTER_PI:
        x = fused(octant.astype(F32), F32(-part), x)
    square = x * x
    cosine = fused(polynomial(square, COSINE) * square, square, -(square * F32(0.5))) + F32(1)
    sine = fused(polynomial(square, SINE) * square, x, x)
    swapped = (octant & 2) != 0
    s, c = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    return np.where(octant & 4, -s, s), np.where((octant - 2) & 4, c, -c)


class Generator:
    def __init__(self, seed: int):
        key = [seed & 0xFFFFFFFF]
        for i in range(1, 624):
            key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + i) & 0xFFFFFFFF)
        self._twister = np.random.MT19937()
        self._twister.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": 624},
        }
        self._second = None  # of the last pair of single normal numbers

    def _uniform(self, count: int) -> np.ndarray:
        return (self._twister.random_raw(count) & 0xFFFFFF).astype(F32) * F32(2**-24)

    def rand(self, shape) -> np.ndarray:
        """torch.rand(shape, generator=self), float32."""
        return self._uniform(math.prod(shape)).reshape(shape)

    def randn(self, shape) -> np.ndarray:
        """torch.randn(shape, generator=self), float32."""
        count = math.prod(shape)
        if count < 16:
            return np.array([self._single() for _ in range(count)], F32).reshape(shape)
        values, whole = self._uniform(count), count // 16 * 16
        values[:whole] = self._sixteens(values[:whole])
        if count % 16:
            values[-16:] = self._sixteens(self._uniform(16))
        return values.reshape(shape)

    def _sixteens(self, uniform: np.ndarray) -> np.ndarray:
        pairs = uniform.reshape(-1, 2, 8)
        radius = np.sqrt(F32(-2) * log(F32(1) - pairs[:, 0]))
        sine, cosine = sine_and_cosine(F32(2 * math.pi) * pairs[:, 1])
        return np.stack([radius * cosine, radius * sine], 1).reshape(-1)

    def _single(self) -> float:
        """Of less than 16 elements: in float64; the second of a pair is kept for the next call."""
        if self._second is not None:
            value, self._second = self._second, None
            return value
        first, second = (self._double() for _ in range(2))
        radius, angle = math.sqrt(-2 * math.log1p(-second)), 2 * math.pi * first
        self._second = radius * math.sin(angle)
        return radius * math.cos(angle)

    def _double(self) -> float:
        high, low = (int(word) for word in self._twister.random_raw(2))
        return ((high << 32 | low) & (2**53 - 1)) * 2.0**-53

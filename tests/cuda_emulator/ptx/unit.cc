#include "tests/cuda_emulator/ptx/unit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/dtype.h"
#include "kernels/cuda/thread.cuh"
#include "tests/cuda_emulator/tensor_map.h"

namespace quire::cuda_emulator::ptx {

extern "C" {
using Plain = void(const std::uint32_t* in, std::uint32_t* out);
using Mapped = void(CUtensorMap map, const std::uint32_t* in, std::uint32_t* out);
Plain WhereUnit, ShuffleUnit, AtomicUnit, NamedBarrierUnit, DependencyUnit, LoadUnit;
Plain CpAsync16Unit, CpAsync4Unit, LdMatrixX4Unit, LdMatrixX2Unit, LdMatrixX4TransUnit;
Plain LdMatrixX2TransUnit, MovMatrixUnit, MmaBF16Unit, MmaF16Unit, ArithmeticUnit, ApproxUnit;
Plain FloatPairUnit, HalfPairUnit, E4M3Unit, BitsUnit, BarrierRingUnit, BulkLoadUnit, RegistersUnit;
Plain WgmmaSharedN32Unit, WgmmaSharedN64Unit, WgmmaSharedN128Unit, WgmmaSharedN256Unit;
Plain WgmmaE4M3N64Unit, WgmmaE4M3N128Unit;
Plain WgmmaRegistersN64Unit, WgmmaRegistersN128Unit;
Mapped TmaLoad2DUnit, TmaLoad3DUnit, ClusterUnit;
}

namespace {

using kernels::cuda::kSharedAlignment;

template <std::size_t kN>
Words AnyWords(std::mt19937& random) {
  Words words(kN);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  return words;
}

std::uint32_t NormalFloat(std::mt19937& random) {
  return std::bit_cast<std::uint32_t>(std::normal_distribution<float>()(random));
}
template <typename T>
std::uint32_t NormalPair(std::mt19937& random) {
  std::normal_distribution<float> normal;
  const std::uint32_t low = T::FromFloat(normal(random)).bits;
  return low | static_cast<std::uint32_t>(T::FromFloat(normal(random)).bits) << 16;
}

// Numbers of all magnitudes, subnormals, infinities and both zeros, but no NaN.
template <std::size_t kN>
Words AnyFloats(std::mt19937& random) {
  Words words = AnyWords<kN>(random);
  for (std::size_t i = 0; i < kN; ++i) {
    if (i % 4 == 0) words[i] = NormalFloat(random);
    if ((words[i] & 0x7f800000u) == 0x7f800000u) words[i] &= 0xff800000u;
    if (i % 16 == 3) words[i] &= 0x807fffffu;
    if (i % 16 == 7) words[i] &= 0x80000000u;
  }
  return words;
}
// The same in halves.
template <std::size_t kN>
Words AnyHalves(std::mt19937& random) {
  Words words = AnyWords<kN>(random);
  for (std::size_t i = 0; i < kN; ++i) {
    for (const std::uint32_t shift : {0u, 16u}) {
      if ((words[i] >> shift & 0x7c00u) == 0x7c00u) words[i] &= ~(0x4000u << shift);
      if (i % 8 == 3) words[i] &= ~(0x7c00u << shift);
    }
  }
  return words;
}
// Values whose exponential and reciprocal are finite, and slightly larger ones.
Words Exponents(std::mt19937& random) {
  Words words(64);
  for (std::uint32_t& word : words) {
    word = std::bit_cast<std::uint32_t>(std::uniform_real_distribution<float>(-140, 130)(random));
  }
  words[0] = 0;
  words[1] = 0x80000000u;
  words[2] = 0x7f800000u;
  words[3] = 0xff800000u;
  words[4] = 0x00000001u;
  words[5] = 0x7f7fffffu;
  words[6] = 0x80400000u;  // -2^-127, whose reciprocal would be finite
  return words;
}

template <std::size_t kWords>
Words CopyInput(std::mt19937& random) {
  Words words = AnyWords<32 * 3 * kWords>(random);
  for (std::size_t i = 0; i < words.size(); i += 2 * 3 * kWords) words[i] = 0;
  return words;
}

template <typename T>
Words MmaInput(std::mt19937& random) {
  Words words;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) words.push_back(NormalFloat(random));
    for (int i = 0; i < 6; ++i) words.push_back(NormalPair<T>(random));
  }
  return words;
}

// Values of A and B.
template <std::size_t kN>
inline constexpr std::size_t kTileRows = 64 + std::max<std::size_t>(kN, 128);
template <std::size_t kN>
Words WgmmaInput(std::mt19937& random) {
  Words words;
  for (std::size_t i = 0; i < kTileRows<kN> * 32; ++i) words.push_back(NormalPair<BF16>(random));
  for (int t = 0; t < 128; ++t) {
    for (std::size_t i = 0; i < kN / 2; ++i) words.push_back(NormalFloat(random));
    for (int i = 0; i < 4; ++i) words.push_back(NormalPair<BF16>(random));
  }
  return words;
}

// Four e4m3 values of magnitudes from 2^-3 to 2.
std::uint32_t FourE4M3(std::mt19937& random) {
  return (static_cast<std::uint32_t>(random()) & 0x9f9f9f9fu) + 0x20202020u;
}
template <std::size_t kN>
Words WgmmaE4M3Input(std::mt19937& random) {
  Words words;
  for (std::size_t i = 0; i < kTileRows<kN> * 32; ++i) words.push_back(FourE4M3(random));
  for (int t = 0; t < 128; ++t) {
    for (std::size_t i = 0; i < kN / 2 + 4; ++i) words.push_back(NormalFloat(random));
  }
  return words;
}

Words Coordinates(std::mt19937& random) {
  Words words;
  for (const int extent : {40, 10, 6}) {
    words.push_back(
        static_cast<std::uint32_t>(std::uniform_int_distribution<int>(-2, extent / 2)(random)));
  }
  return words;
}

double ToDouble(std::uint32_t word) {
  return double{std::bit_cast<float>(word)};
}
std::uint32_t FromDouble(double x) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(x));
}
template <typename T>
double Half(std::uint32_t pair, std::size_t i) {
  return double{T{static_cast<std::uint16_t>(pair >> (16 * i))}.ToFloat()};
}

Words Same(const Words& in) {
  return in;
}

Words WhereExpected(const Words&) {
  Words out;
  for (std::uint32_t y = 0; y < 2; ++y) {
    for (std::uint32_t x = 0; x < 3; ++x) {
      for (std::uint32_t t = 0; t < 96; ++t) {
        out.insert(out.end(), {x, y, 3, 2, 96, t, t % 32, t / 32, 0, 0});
      }
    }
  }
  return out;
}

Words ShuffleExpected(const Words& in) {
  Words out;
  std::uint32_t thirds = 0;
  std::uint32_t even = 0;
  bool any = false;
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    thirds |= (in[lane] % 3 == 0 ? 1u : 0u) << lane;
    even |= (in[lane] % 2 == 0 ? 1u : 0u) << lane;
    any = any || (in[lane] & 0x7fffffffu) == 0x7fffffffu;
  }
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t half = lane < 16 ? 0xffffu : 0xffff0000u;
    out.insert(out.end(), {in[lane ^ 5], in[in[64 + lane] % 32], in[lane < 3 ? lane : lane - 3],
                           in[lane < 9 ? lane : lane - 9], in[32 + (lane ^ 17)], in[lane ^ 17],
                           thirds, 1u, any ? 1u : 0u, in[lane ^ 3], even & half});
  }
  return out;
}

Words AtomicExpected(const Words& in) {
  const auto wide = [&](std::size_t i) { return std::uint64_t{in[i]} << 20; };
  std::uint64_t wides[] = {wide(0), wide(0), ~wide(0)};
  Words out(12, 0);
  for (std::uint32_t i = 0; i < 64; ++i) {
    wides[0] += wide(i);
    wides[1] = std::max(wides[1], wide(i));
    wides[2] = std::min(wides[2], wide(i));
    out[6] = std::max(out[6], in[i]);
    out[7] |= in[i] & 0x11111111u << i % 4;
    out[8] += 1;
    out[9] += i;
    out[10] += in[i];
  }
  out[11] = out[6];
  for (std::size_t i = 0; i < 3; ++i) {
    out[2 * i] = static_cast<std::uint32_t>(wides[i]);
    out[2 * i + 1] = static_cast<std::uint32_t>(wides[i] >> 32);
  }
  return out;
}

Words LoadExpected(const Words& in) {
  Words out;
  for (std::size_t t = 0; t < 64; ++t) {
    out.insert(out.end(), in.begin() + static_cast<std::ptrdiff_t>(4 * t),
               in.begin() + static_cast<std::ptrdiff_t>(4 * t + 4));
    out.insert(out.end(), {in[t], in[7 + t]});
  }
  return out;
}

template <std::size_t kWords>
Words CopyExpected(const Words& in) {
  Words out = in;
  for (std::size_t own = 0; own < in.size(); own += 3 * kWords) {
    for (std::size_t i = 0; i < kWords && in[own] != 0; ++i) out[own + kWords + i] = 0;
  }
  return out;
}

// Row r of matrix m is row 8 m + (r ^ 1) of the 32 rows of four words.
template <std::size_t kCount, bool kTransposed>
Words LdMatrixExpected(const Words& in) {
  const auto element = [&](std::size_t m, std::size_t row, std::size_t column) {
    const std::uint32_t pair = in[(8 * m + (row ^ 1)) * 4 + column / 2];
    return pair >> (16 * (column % 2)) & 0xffffu;
  };
  Words out;
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t m = 0; m < kCount; ++m) {
      const std::size_t row = lane / 4;
      const std::size_t column = lane % 4 * 2;
      out.push_back(kTransposed ? element(m, column, row) | element(m, column + 1, row) << 16
                                : element(m, row, column) | element(m, row, column + 1) << 16);
    }
  }
  return out;
}

Words MovMatrixExpected(const Words& in) {
  const auto element = [&](std::size_t row, std::size_t column) {
    return in[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffffu;
  };
  Words out;
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t column = lane % 4 * 2;
    out.push_back(element(column, lane / 4) | element(column + 1, lane / 4) << 16);
  }
  return out;
}

// Row and column of the 16-bit elements of a fragment A (PTX ISA, "Matrix fragments for
// mma.m16n8k16"): a0, a1 | a2, a3 (row + 8) | a4, a5 (column + 8) | a6, a7 (both).
template <typename T>
double ElementA(const std::uint32_t* lanes, std::size_t stride, std::size_t row, std::size_t k) {
  const std::size_t lane = row % 8 * 4 + k % 8 / 2;
  return Half<T>(lanes[lane * stride + row / 8 + 2 * (k / 8)], k % 2);
}

template <typename T>
Words MmaExpected(const Words& in) {
  Words out(128);
  for (std::size_t m = 0; m < 16; ++m) {
    for (std::size_t n = 0; n < 8; ++n) {
      const std::size_t lane = m % 8 * 4 + n / 2;
      const std::size_t i = m / 8 * 2 + n % 2;
      double sum = ToDouble(in[lane * 10 + i]);
      for (std::size_t k = 0; k < 16; ++k) {
        const std::size_t lane_b = n * 4 + k % 8 / 2;
        sum += ElementA<T>(in.data() + 4, 10, m, k) * Half<T>(in[lane_b * 10 + 8 + k / 8], k % 2);
      }
      out[lane * 4 + i] = FromDouble(sum);
    }
  }
  return out;
}

// f64 represents products exactly, and sums and quotients of two f32 precisely enough to round to
// f32 once.
Words ArithmeticExpected(const Words& in) {
  Words out;
  for (std::size_t i = 0; i < in.size(); i += 3) {
    const double a = ToDouble(in[i]);
    const double b = ToDouble(in[i + 1]);
    const auto square = static_cast<float>(a * a);
    out.insert(out.end(),
               {std::bit_cast<std::uint32_t>(std::fma(static_cast<float>(a), static_cast<float>(b),
                                                      std::bit_cast<float>(in[i + 2]))),
                FromDouble(a * b), FromDouble(a + b), FromDouble(a - b), FromDouble(a / b),
                FromDouble(std::sqrt(double{square})), FromDouble(std::fmax(a, b)),
                FromDouble(std::fmin(a, b))});
  }
  return out;
}

Words ApproxExpected(const Words& in) {
  const auto flush = [](double x) { return std::fabs(x) < 0x1p-126 ? std::copysign(0.0, x) : x; };
  Words out;
  for (const std::uint32_t word : in) {
    const double x = flush(ToDouble(word));
    out.insert(out.end(), {FromDouble(flush(std::exp2(x))), FromDouble(flush(1.0 / x))});
  }
  return out;
}

// A float format. The magnitude bits are e m, without a sign: (1 + m 2^-digits) 2^(e - bias), or m
// 2^(1 - bias - digits) for e = 0.
struct Format {
  int exponent_bits;
  int digits;  // number of bits of m
  int bias;
  std::uint32_t largest;  // finite magnitude

  double Decode(std::uint32_t code) const {
    const auto exponent = static_cast<int>(code >> digits);
    const auto mantissa = static_cast<int>(code) & ((1 << digits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - digits);
    return std::ldexp((1 << digits) + mantissa, exponent - bias - digits);
  }
  // Returns the magnitude nearest to |x|, with ties to even. Infinity follows the largest
  // magnitude.
  std::uint32_t Nearest(double x) const {
    std::uint32_t low = 0;
    std::uint32_t high = largest + 1;
    while (low + 1 < high) {
      const std::uint32_t middle = (low + high) / 2;
      (Decode(middle) <= std::fabs(x) ? low : high) = middle;
    }
    const double below = std::fabs(x) - Decode(low);
    const double above = Decode(high) - std::fabs(x);
    if (below == above) return low % 2 == 0 ? low : high;
    return below < above ? low : high;
  }
  std::uint32_t Encode(double x) const {
    return Nearest(x) | (std::signbit(x) ? 1u : 0u) << (exponent_bits + digits);
  }
};
constexpr Format kF16 = {.exponent_bits = 5, .digits = 10, .bias = 15, .largest = 0x7bff};
constexpr Format kBF16 = {.exponent_bits = 8, .digits = 7, .bias = 127, .largest = 0x7f7f};
constexpr Format kE4M3 = {.exponent_bits = 4, .digits = 3, .bias = 7, .largest = 0x7e};

double DecodeSigned(const Format& format, std::uint32_t code) {
  return (code & 0x8000u) != 0 ? -format.Decode(code & 0x7fffu) : format.Decode(code & 0x7fffu);
}
double DecodeF16(std::uint32_t code) {
  return DecodeSigned(kF16, code);
}

Words FloatPairExpected(const Words& in) {
  Words out;
  for (std::size_t i = 0; i < in.size(); i += 2) {
    const double a = ToDouble(in[i]);
    const double b = ToDouble(in[i + 1]);
    const double clamped = std::clamp(a, -448.0, 448.0);
    out.insert(out.end(),
               {kBF16.Encode(a) | kBF16.Encode(b) << 16, kF16.Encode(a) | kF16.Encode(b) << 16,
                kE4M3.Encode(clamped), in[i] << 16, in[i] >> 16 << 16});
  }
  return out;
}

// The inputs are finite, so f64 represents the product of two f16. The sum with a third value is
// rounded to f64 only where that does not change the result.
Words HalfPairExpected(const Words& in) {
  Words out;
  for (std::size_t i = 0; i < in.size(); i += 3) {
    std::uint32_t results[4] = {};
    for (const std::uint32_t shift : {0u, 16u}) {
      const double a = DecodeF16(in[i] >> shift & 0xffffu);
      const double b = DecodeF16(in[i + 1] >> shift & 0xffffu);
      const double c = DecodeF16(in[i + 2] >> shift & 0xffffu);
      results[0] |= kF16.Encode(a * b) << shift;
      results[1] |= kF16.Encode(a - b) << shift;
      results[2] |= kF16.Encode(a * b + c) << shift;
      results[3] |= kBF16.Encode(DecodeSigned(kBF16, in[i] >> shift & 0xffffu) -
                                 DecodeSigned(kBF16, in[i + 1] >> shift & 0xffffu))
                    << shift;
    }
    out.insert(out.end(),
               {FromDouble(DecodeF16(in[i] & 0xffffu)), FromDouble(DecodeF16(in[i] >> 16)),
                results[0], results[1], results[2], results[3], (in[i] & in[i + 1]) | in[i + 2]});
  }
  return out;
}

Words E4M3Expected(const Words&) {
  Words out;
  for (std::uint32_t t = 0; t < 256; ++t) {
    const double x = kE4M3.Decode(t % 0x7f);
    out.push_back(kF16.Encode(x) | kF16.Encode(-x) << 16);
  }
  return out;
}

Words BitsExpected(const Words& in) {
  const auto pick = [](std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
    const std::uint32_t bytes[] = {a & 0xff, a >> 8 & 0xff, a >> 16 & 0xff, a >> 24,
                                   b & 0xff, b >> 8 & 0xff, b >> 16 & 0xff, b >> 24};
    std::uint32_t out = 0;
    for (std::uint32_t i = 0; i < 4; ++i) out |= bytes[selector >> (4 * i) & 7] << (8 * i);
    return out;
  };
  Words out;
  for (std::size_t i = 0; i < in.size(); i += 2) {
    const std::uint32_t a = in[i];
    const std::uint32_t b = in[i + 1];
    out.insert(out.end(), {pick(a, b, 0x6240u), pick(a, b, b & 0xffffu),
                           static_cast<std::uint32_t>(std::popcount(a)),
                           static_cast<std::uint32_t>(std::countl_zero(a >> b % 32)), 32 - b % 2});
  }
  return out;
}

// Element (x, y, z) of the tensor has its own index. Boxes of two dimensions are in plane 0.
template <std::uint32_t kRank>
Words TmaExpected(const Words& in) {
  const std::int64_t box[] = {16, kRank == 2 ? 16 : 8, kRank == 2 ? 1 : 2};
  Words out;
  for (std::int64_t i = 0; i < 256; ++i) {
    const auto at = [&](std::size_t axis) {
      return std::int64_t{static_cast<std::int32_t>(in[axis])};
    };
    const std::int64_t x = at(0) + i % box[0];
    const std::int64_t y = at(1) + i / box[0] % box[1];
    const std::int64_t z = kRank == 2 ? 0 : at(2) + i / box[0] / box[1];
    const bool inside = x >= 0 && x < 40 && y >= 0 && y < 10 && z >= 0 && z < 6;
    out.push_back(inside ? static_cast<std::uint32_t>((z * 10 + y) * 40 + x) : 0);
  }
  return out;
}

Words ClusterExpected(const Words& in) {
  Words box = TmaExpected<2>(in);
  const Words below = TmaExpected<2>({in[0], in[1] + 1, in[2]});
  box.insert(box.end(), below.begin(), below.end());
  Words out = box;
  out.insert(out.end(), box.begin(), box.end());
  return out;
}

// Element k of a row of the tile under the 128-byte swizzle: the 16-byte chunk number is XORed with
// the row number modulo 8.
double TileElement(const Words& in, std::size_t row, std::size_t k) {
  return Half<BF16>(in[row * 32 + ((k / 8) ^ (row % 8)) * 4 + k % 8 / 2], k % 2);
}

template <std::size_t kN, bool kShared>
Words WgmmaExpected(const Words& in) {
  constexpr std::size_t kStride = kN / 2 + 4;
  const std::uint32_t* const threads = in.data() + kTileRows<kN> * 32;
  const auto a = [&](std::size_t m, std::size_t k) {
    if (kShared) return TileElement(in, m, k);
    return ElementA<BF16>(threads + m / 16 * 32 * kStride + kN / 2, kStride, m % 16, k % 16);
  };
  Words out(128 * kN);
  for (std::size_t m = 0; m < 64; ++m) {
    for (std::size_t n = 0; n < kN; ++n) {
      const std::size_t thread = m / 16 * 32 + m % 8 * 4 + n % 8 / 2;
      const std::size_t i = n / 8 * 4 + m % 16 / 8 * 2 + n % 2;
      double sum = ToDouble(threads[thread * kStride + i]);
      double other = 0.0;
      for (std::size_t k = 0; k < 32; ++k) {
        sum += a(m, k) * TileElement(in, 64 + n, k);
        other += a(m, 32 + k) * TileElement(in, 64 + k + n / 64 * 64, n % 64);
      }
      out[thread * kN + i] = FromDouble(sum);
      out[thread * kN + kN / 2 + i] = FromDouble(other);
    }
  }
  return out;
}

template <std::size_t kN>
Words WgmmaE4M3Expected(const Words& in) {
  constexpr std::size_t kStride = kN / 2 + 4;
  const std::uint32_t* const threads = in.data() + kTileRows<kN> * 32;
  // Element k of a row of the tile under the 128-byte swizzle.
  const auto element = [&in](std::size_t row, std::size_t k) {
    const std::uint32_t word = in[row * 32 + ((k / 16) ^ (row % 8)) * 4 + k % 16 / 4];
    return double{F8E4M3{static_cast<std::uint8_t>(word >> (8 * (k % 4)))}.ToFloat()};
  };
  Words out(128 * kN);
  for (std::size_t m = 0; m < 64; ++m) {
    for (std::size_t n = 0; n < kN; ++n) {
      const std::size_t thread = m / 16 * 32 + m % 8 * 4 + n % 8 / 2;
      const std::size_t i = n / 8 * 4 + m % 16 / 8 * 2 + n % 2;
      double sum = ToDouble(threads[thread * kStride + i]);
      double other = 0.0;
      for (std::size_t k = 0; k < 64; ++k) {
        sum += element(m, k) * element(64 + n, k);
        other += element(m, 64 + k) * element(64 + n, 64 + k);
      }
      out[thread * kN + i] = FromDouble(sum);
      out[thread * kN + kN / 2 + i] = FromDouble(other);
    }
  }
  return out;
}

using kernels::cuda::LaunchShape;

Unit Of(const char* name, Plain* emulation, const LaunchShape& shape,
        Words (*make_input)(std::mt19937& random), Words (*expected)(const Words& in)) {
  return {.name = name,
          .shape = shape,
          .make_input = make_input,
          .emulation = emulation,
          .expected = expected};
}
// The sums keep about 14 bits of the largest addend.
template <std::size_t kN>
Unit WgmmaE4M3(const char* name, Plain* emulation) {
  Unit unit =
      Of(name, emulation, {.threads = 128, .shared_bytes = kSharedAlignment + kTileRows<kN> * 128},
         WgmmaE4M3Input<kN>, WgmmaE4M3Expected<kN>);
  unit.is_float = true;
  unit.tolerance = 33 * 0x1p-11f;
  unit.hints = {"fence.proxy.async"};
  return unit;
}
template <std::size_t kN, bool kShared>
Unit Wgmma(const char* name, Plain* emulation) {
  Unit unit =
      Of(name, emulation, {.threads = 128, .shared_bytes = kSharedAlignment + kTileRows<kN> * 128},
         WgmmaInput<kN>, WgmmaExpected<kN, kShared>);
  unit.is_float = true;
  unit.tolerance = 4e-6f;
  unit.hints = {"fence.proxy.async"};
  return unit;
}
template <std::size_t kCount, bool kTransposed>
Unit LdMatrix(const char* name, Plain* emulation) {
  return Of(name, emulation, {.threads = 32, .shared_bytes = 512}, AnyWords<128>,
            LdMatrixExpected<kCount, kTransposed>);
}
template <std::size_t kWords>
Unit Copy(const char* name, Plain* emulation) {
  return Of(name, emulation, {.threads = 32, .shared_bytes = 32 * 3 * 4 * kWords},
            CopyInput<kWords>, CopyExpected<kWords>);
}
template <typename T>
Unit Mma(const char* name, Plain* emulation) {
  Unit unit = Of(name, emulation, {.threads = 32}, MmaInput<T>, MmaExpected<T>);
  unit.is_float = true;
  unit.tolerance = 1e-6f;
  return unit;
}
Unit Approx() {
  Unit unit = Of("ApproxUnit", ApproxUnit, {.threads = 64}, Exponents, ApproxExpected);
  unit.is_float = true;
  unit.tolerance = 1e-6f;
  unit.ulps = 2;
  return unit;
}
template <std::uint32_t kRank>
Unit Tma(const char* name, Mapped* emulation) {
  Unit unit = Of(name, nullptr, {.threads = 64, .shared_bytes = kSharedAlignment + 1024 + 64},
                 Coordinates, TmaExpected<kRank>);
  unit.mapped_emulation = emulation;
  unit.map_rank = kRank;
  return unit;
}
Unit Cluster() {
  Unit unit = Of(
      "ClusterUnit", nullptr,
      {.blocks_x = 2, .cluster_x = 2, .threads = 64, .shared_bytes = kSharedAlignment + 2048 + 64},
      Coordinates, ClusterExpected);
  unit.mapped_emulation = ClusterUnit;
  unit.map_rank = 2;
  return unit;
}
Unit With(std::set<std::string> hints, Unit unit) {
  unit.hints = std::move(hints);
  return unit;
}

std::vector<Unit> PortableUnits() {
  return {
      Of("WhereUnit", WhereUnit,
         {.blocks_x = 3, .blocks_y = 2, .threads = 96, .shared_bytes = kSharedAlignment + 64},
         AnyWords<1>, WhereExpected),
      Of("ShuffleUnit", ShuffleUnit, {.threads = 32}, AnyWords<96>, ShuffleExpected),
      With({"fence.acq_rel.gpu"}, Of("AtomicUnit", AtomicUnit, {.threads = 64, .shared_bytes = 16},
                                     AnyWords<64>, AtomicExpected)),
      Of("NamedBarrierUnit", NamedBarrierUnit, {.threads = 64, .shared_bytes = 128}, AnyWords<128>,
         Same),
      With({"L2 evict_first", "ld.L1::no_allocate", "ld.cg"},
           Of("LoadUnit", LoadUnit, {.threads = 64}, AnyWords<256>, LoadExpected)),
      With({"cp.async.cg"}, Copy<4>("CpAsync16Unit", CpAsync16Unit)),
      With({"cp.async.ca"}, Copy<1>("CpAsync4Unit", CpAsync4Unit)),
      LdMatrix<4, false>("LdMatrixX4Unit", LdMatrixX4Unit),
      LdMatrix<2, false>("LdMatrixX2Unit", LdMatrixX2Unit),
      LdMatrix<4, true>("LdMatrixX4TransUnit", LdMatrixX4TransUnit),
      LdMatrix<2, true>("LdMatrixX2TransUnit", LdMatrixX2TransUnit),
      Of("MovMatrixUnit", MovMatrixUnit, {.threads = 32}, AnyWords<32>, MovMatrixExpected),
      Mma<BF16>("MmaBF16Unit", MmaBF16Unit),
      Mma<F16>("MmaF16Unit", MmaF16Unit),
      Of("ArithmeticUnit", ArithmeticUnit, {.threads = 64}, AnyFloats<192>, ArithmeticExpected),
      Approx(),
      Of("FloatPairUnit", FloatPairUnit, {.threads = 64}, AnyFloats<128>, FloatPairExpected),
      Of("HalfPairUnit", HalfPairUnit, {.threads = 64}, AnyHalves<192>, HalfPairExpected),
      Of("E4M3Unit", E4M3Unit, {.threads = 256}, AnyWords<1>, E4M3Expected),
      Of("BitsUnit", BitsUnit, {.threads = 64}, AnyWords<128>, BitsExpected)};
}

std::vector<Unit> Sm90Units() {
  return {
      With({"launch_dependents"}, Of("DependencyUnit", DependencyUnit,
                                     {.threads = 64, .programmatic = true}, AnyWords<64>, Same)),
      With({"fence.mbarrier_init", "fence.proxy.async"},
           Of("BarrierRingUnit", BarrierRingUnit,
              {.threads = 64, .shared_bytes = kSharedAlignment + 512}, AnyWords<192>, Same)),
      With({"L2 evict_first", "cp.async.ca", "fence.mbarrier_init", "fence.proxy.async"},
           Of("BulkLoadUnit", BulkLoadUnit,
              {.threads = 32, .shared_bytes = kSharedAlignment + 1024}, AnyWords<128>, Same)),
      With({"L2 normal", "fence.mbarrier_init", "fence.proxy.async", "prefetch.tensormap"},
           Tma<2>("TmaLoad2DUnit", TmaLoad2DUnit)),
      With({"L2 evict_last", "fence.mbarrier_init", "fence.proxy.async"},
           Tma<3>("TmaLoad3DUnit", TmaLoad3DUnit)),
      With({"fence.mbarrier_init", "fence.proxy.async"}, Cluster()),
      With({"setmaxnreg.dec", "setmaxnreg.inc"},
           Of("RegistersUnit", RegistersUnit, {.threads = 384}, AnyWords<384>, Same)),
      Wgmma<32, true>("WgmmaSharedN32Unit", WgmmaSharedN32Unit),
      Wgmma<64, true>("WgmmaSharedN64Unit", WgmmaSharedN64Unit),
      Wgmma<128, true>("WgmmaSharedN128Unit", WgmmaSharedN128Unit),
      Wgmma<256, true>("WgmmaSharedN256Unit", WgmmaSharedN256Unit),
      WgmmaE4M3<64>("WgmmaE4M3N64Unit", WgmmaE4M3N64Unit),
      WgmmaE4M3<128>("WgmmaE4M3N128Unit", WgmmaE4M3N128Unit),
      Wgmma<64, false>("WgmmaRegistersN64Unit", WgmmaRegistersN64Unit),
      Wgmma<128, false>("WgmmaRegistersN128Unit", WgmmaRegistersN128Unit)};
}

}  // namespace

const std::vector<Unit>& Units() {
  static const auto& units = *new std::vector<Unit>([] {
    std::vector<Unit> all = PortableUnits();
    const std::vector<Unit> sm90 = Sm90Units();
    all.insert(all.end(), sm90.begin(), sm90.end());
    return all;
  }());
  return units;
}

void EncodeTensor(std::uint32_t* p, std::uint32_t rank, CUtensorMap* map) {
  for (std::size_t i = 0; i < kTensorWords; ++i) p[i] = static_cast<std::uint32_t>(i);
  const cuuint64_t dims[] = {40, 10, 6};
  const cuuint64_t strides[] = {40 * 4, 400 * 4};
  const cuuint32_t box[] = {16, rank == 2 ? 16u : 8u, 2};
  const cuuint32_t steps[] = {1, 1, 1};
  if (EncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, rank, p, dims, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    std::abort();
  }
}

}  // namespace quire::cuda_emulator::ptx

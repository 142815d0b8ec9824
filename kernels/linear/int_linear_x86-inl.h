// Sums of products of bytes with AVX2 and SSE4, for int_linear_tiles-inl.h.
//
// Both multiply unsigned by signed bytes only with saturation. 8-bit weights are therefore split
// into even and odd bytes in 16-bit lanes, and multiplied by activations that are split in the same
// way (pmaddwd, which is exact). This costs 2 multiplications and 2 additions per 4 inputs. All
// rows and panels of a tile share the split operands. Splitting into |w| and a sign, or into two
// nibbles, would cost as many multiplications and more additions.
//
// 4-bit weights are not widened. The sum of two products is at most 2 * 15 * 127 = 3810. For 32
// inputs, each 16-bit lane adds 8 such sums (at most 30480) before one widening multiplication.
//
// A tile of 4 rows x 2 registers of features uses 13 registers: 8 accumulators, 2 weights, 1
// broadcast, 1 product, 1 constant.

#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::kernels::internal {
namespace {

// Sums are over the stored bytes u, not over the integers u - O (int_linear.h).
constexpr bool kCentredBytes = false;
// Number of registers of features in a tile.
constexpr std::size_t kColumns = 2;

// Adds v to sum, in program order. Without the assembly, g++ 12 reorders such sums and keeps all
// products of an unrolled loop on the stack.
QUIRE_OP void Accumulate16(I& sum, I v) {
  sum = Add16(sum, v);
  asm("" : "+x"(sum));
}
QUIRE_OP void Accumulate32(I& sum, I v) {
  sum = Add32(sum, v);
  asm("" : "+x"(sum));
}

// Activations of a chunk in 16 bits. even[j][row] has inputs 4j and 4j + 2. odd[j][row] has inputs
// 4j + 1 and 4j + 3.
template <std::size_t B, std::size_t Q>
struct Inputs {
  alignas(64) std::int32_t even[Q * B];
  alignas(64) std::int32_t odd[Q * B];
};

template <std::size_t B, std::size_t Q>
QUIRE_OP void Prepare(const std::int8_t* q, std::size_t quads, Inputs<B, Q>& out) {
  std::size_t i = 0;
  for (; i + kLanes <= quads * B; i += kLanes) {
    const I bytes = Load(q + i * 4);
    Store(ShiftRightSigned16<8>(ShiftLeft16<8>(bytes)), out.even + i);
    Store(ShiftRightSigned16<8>(bytes), out.odd + i);
  }
  for (; i < quads * B; ++i) {
    const auto pair = [&](std::size_t first) {
      const auto low = static_cast<std::uint16_t>(q[i * 4 + first]);
      const auto high = static_cast<std::uint16_t>(q[i * 4 + first + 2]);
      return static_cast<std::int32_t>(low | std::uint32_t{high} << 16);
    };
    out.even[i] = pair(0);
    out.odd[i] = pair(1);
  }
}

// Adds products to acc for rows [row, row + R) of a block of B rows. The inputs are `quads` quads
// from quad `first` on. Prefetches a line of `next` per quad. `w` points to the tile's features at
// quad `first`.
template <std::size_t R, std::size_t B, std::size_t Q>
QUIRE_OP void Dot8(const std::uint8_t* w, const Inputs<B, Q>& in, std::size_t row,
                   std::size_t first, std::size_t quads, const std::uint8_t* next,
                   I (&acc)[R][kColumns]) {
  const std::int32_t* const even = in.even + first * B + row;
  const std::int32_t* const odd = in.odd + first * B + row;
  const I low_bytes = Set16(0xff);
  for (std::size_t j = 0; j < quads; ++j) {
    Prefetch(next + j * 64);
    I u[kColumns];
    for (std::size_t c = 0; c < kColumns; ++c) {
      u[c] = And(Load(w + j * 64 + c * kLanes * 4), low_bytes);
    }
    for (std::size_t r = 0; r < R; ++r) {
      const I a = Broadcast(even + j * B + r);
      for (std::size_t c = 0; c < kColumns; ++c) {
        Accumulate32(acc[r][c], MultiplyPairs16(u[c], a));
      }
    }
    for (std::size_t c = 0; c < kColumns; ++c) {
      u[c] = ShiftRight16<8>(Load(w + j * 64 + c * kLanes * 4));
    }
    for (std::size_t r = 0; r < R; ++r) {
      const I a = Broadcast(odd + j * B + r);
      for (std::size_t c = 0; c < kColumns; ++c) {
        Accumulate32(acc[r][c], MultiplyPairs16(u[c], a));
      }
    }
  }
}

// Adds the products of 32 inputs of 4-bit weights to acc. `q` points to the tile's first row in
// [8][B][4].
template <std::size_t R, std::size_t B>
QUIRE_OP void Dot4(const std::uint8_t* w, const std::int8_t* q, const std::uint8_t* next,
                   I (&acc)[R][kColumns]) {
  const I low_halves = Set16(0x0f0f);
  I sum[R][kColumns];
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t c = 0; c < kColumns; ++c) sum[r][c] = Zero();
  }
  for (std::size_t j = 0; j < 4; ++j) {
    Prefetch(next + j * 64);
    I u[kColumns];
    for (std::size_t c = 0; c < kColumns; ++c) {
      u[c] = And(Load(w + j * 64 + c * kLanes * 4), low_halves);
    }
    for (std::size_t r = 0; r < R; ++r) {
      const I a = Broadcast(q + (2 * j * B + r) * 4);
      for (std::size_t c = 0; c < kColumns; ++c) {
        Accumulate16(sum[r][c], MultiplyPairs8(u[c], a));
      }
    }
    for (std::size_t c = 0; c < kColumns; ++c) {
      u[c] = And(ShiftRight16<4>(Load(w + j * 64 + c * kLanes * 4)), low_halves);
    }
    for (std::size_t r = 0; r < R; ++r) {
      const I a = Broadcast(q + ((2 * j + 1) * B + r) * 4);
      for (std::size_t c = 0; c < kColumns; ++c) {
        Accumulate16(sum[r][c], MultiplyPairs8(u[c], a));
      }
    }
  }
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t c = 0; c < kColumns; ++c) {
      acc[r][c] = Add32(acc[r][c], MultiplyPairs16(sum[r][c], Set16(1)));
    }
  }
}

}  // namespace
}  // namespace quire::kernels::internal

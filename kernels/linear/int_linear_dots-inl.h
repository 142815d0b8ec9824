// Dot products of bytes for int_linear_tiles-inl.h, on the instruction set levels that have a dot
// product instruction. Before the include, such a level must define kLanes, I, F and their
// operations. It must also define W (a register of weights), LoadBytes for 8-bit weights, LowHalves
// and HighHalves for 4-bit weights, and AddDot.

#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::kernels::internal {
namespace {

// Activations are read in place, without a copy.
template <std::size_t B, std::size_t Q>
struct Inputs {
  const std::int8_t* q;
};
template <std::size_t B, std::size_t Q>
QUIRE_OP void Prepare(const std::int8_t* q, std::size_t /*quads*/, Inputs<B, Q>& out) {
  out.q = q;
}

// Adds the products of 4 inputs of one row to acc. `a` points to the row's quad of inputs.
QUIRE_OP void AddQuad(const W (&u)[kColumns], const std::int8_t* a, I (&acc)[kColumns]) {
  const I inputs = Broadcast(a);
  for (std::size_t c = 0; c < kColumns; ++c) AddDot(acc[c], u[c], inputs);
}

// Adds products to acc for rows [row, row + R) of a block of B rows. The inputs are `quads` quads
// from quad `first` on. Prefetches a line of `next` per quad. `w` points to the weights of
// the tile's features at quad `first`.
template <std::size_t R, std::size_t B, std::size_t Q>
QUIRE_OP void Dot8(const std::uint8_t* w, const Inputs<B, Q>& in, std::size_t row,
                   std::size_t first, std::size_t quads, const std::uint8_t* next,
                   I (&acc)[R][kColumns]) {
  const std::int8_t* const q = in.q + (first * B + row) * 4;
  for (std::size_t j = 0; j < quads; ++j) {
    Prefetch(next + j * 64);
    W u[kColumns];
    for (std::size_t c = 0; c < kColumns; ++c) u[c] = LoadBytes(w + j * 64 + c * kLanes * 4);
    for (std::size_t r = 0; r < R; ++r) AddQuad(u, q + (j * B + r) * 4, acc[r]);
  }
}

// Adds the products of 32 inputs and their 4-bit weights to acc. The inputs have the layout
// [8 quads][B rows][4]. `q` points to the first of the R rows in the first quad.
template <std::size_t R, std::size_t B>
QUIRE_OP void Dot4(const std::uint8_t* w, const std::int8_t* q, const std::uint8_t* next,
                   I (&acc)[R][kColumns]) {
  for (std::size_t j = 0; j < 4; ++j) {
    Prefetch(next + j * 64);
    W low[kColumns];
    W high[kColumns];
    for (std::size_t c = 0; c < kColumns; ++c) {
      const I both = Load(w + j * 64 + c * kLanes * 4);
      low[c] = LowHalves(both);
      high[c] = HighHalves(both);
    }
    for (std::size_t r = 0; r < R; ++r) {
      AddQuad(low, q + (2 * j * B + r) * 4, acc[r]);
      AddQuad(high, q + ((2 * j + 1) * B + r) * 4, acc[r]);
    }
  }
}

}  // namespace
}  // namespace quire::kernels::internal

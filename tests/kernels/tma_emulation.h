#pragma once

// A tensor map copy byte by byte, from the rules of the PTX ISA ("Tensors", "Swizzling modes"). It
// is written independently of the code that plans the copies.

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "cache_manager/views/tma_plan.h"

namespace quire::kernels::cuda::testing {

// Shared memory with address 0 on a 1024-byte boundary, and the number of writes of each byte.
struct SharedTile {
  std::vector<std::byte> bytes;
  std::vector<int> writes;
  explicit SharedTile(std::int64_t size)
      : bytes(static_cast<std::size_t>(size), std::byte{0xee}),
        writes(static_cast<std::size_t>(size), 0) {}
};

// Returns the position of byte b in a swizzled span of 32, 64 or 128 bytes. The 16-byte chunk
// number is XORed with the number of the 128-byte line, modulo the span's chunks.
inline std::int64_t SwizzleByte(std::int64_t address, TmaSwizzle swizzle) {
  const std::int64_t pieces = std::int64_t{1} << static_cast<int>(swizzle);
  const std::int64_t line = address / 128;
  const std::int64_t piece = address / 16;
  const std::int64_t in_span = piece % pieces;
  return (piece - in_span + (in_span ^ (line % pieces))) * 16 + address % 16;
}

// Calls fn(shared byte, global address) for each byte of a copy. The address is 0 outside the
// tensor.
inline void ForEachByte(const TmaPlan& plan, const std::vector<std::int64_t>& at,
                        std::int64_t shared,
                        const std::function<void(std::int64_t, std::uintptr_t)>& fn) {
  const std::int64_t e = DTypeSize(plan.dtype);
  std::int64_t count = 1;
  for (std::uint32_t i = 0; i < plan.rank; ++i) count *= plan.box[i];
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t rest = n;
    bool inside = true;
    auto address = reinterpret_cast<std::uintptr_t>(plan.base);
    for (std::uint32_t i = 0; i < plan.rank; ++i) {
      const std::int64_t c = at[i] + rest % plan.box[i];
      rest /= plan.box[i];
      inside = inside && c >= 0 && c < static_cast<std::int64_t>(plan.extents[i]);
      const std::int64_t stride = i == 0 ? e : static_cast<std::int64_t>(plan.strides[i - 1]);
      address += static_cast<std::uintptr_t>(c * stride);
    }
    for (std::int64_t b = 0; b < e; ++b) {
      fn(SwizzleByte(shared + n * e + b, plan.swizzle),
         inside ? address + static_cast<std::uintptr_t>(b) : 0);
    }
  }
}

// Loads one box to `shared`.
inline void LoadBox(const TmaPlan& plan, const std::vector<std::int64_t>& at, std::int64_t shared,
                    SharedTile* tile) {
  ForEachByte(plan, at, shared, [&](std::int64_t to, std::uintptr_t from) {
    const auto i = static_cast<std::size_t>(to);
    tile->bytes.at(i) = from == 0 ? std::byte{0} : *reinterpret_cast<const std::byte*>(from);
    ++tile->writes.at(i);
  });
}

}  // namespace quire::kernels::cuda::testing

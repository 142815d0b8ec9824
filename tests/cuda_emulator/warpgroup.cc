#include "tests/cuda_emulator/warpgroup.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/matrix.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {
namespace {

constexpr std::uint32_t kGroupThreads = 128;
constexpr std::uint32_t kRows = 64;
constexpr std::uint32_t kDepthBytes = 32;  // bytes of K per instruction
constexpr std::uint32_t kMaxDepth = 32;
constexpr char kWaits[] = "WgmmaWait of the warpgroup of thread";

// The fields of a 64-bit matrix descriptor.
struct Descriptor {
  std::uint32_t start;
  std::uint32_t leading_bytes;
  std::uint32_t stride_bytes;
  std::uint32_t row_bytes;  // of the swizzle pattern: 128, 64 or 32
};

Descriptor Decode(std::uint64_t bits) {
  constexpr std::uint32_t kRowBytes[] = {0, 128, 64, 32};
  const auto field = [&](int at) { return static_cast<std::uint32_t>(bits >> at & 0x3fff) << 4; };
  const Descriptor d{.start = field(0),
                     .leading_bytes = field(16),
                     .stride_bytes = field(32),
                     .row_bytes = kRowBytes[bits >> 62]};
  if (d.row_bytes == 0) Fatal("a wgmma descriptor without swizzle is not emulated");
  // "Base offset" is 0 if the pattern starts at a multiple of its 8 rows. The low bits of the start
  // then contain only an advance inside the first row.
  if ((bits >> 49 & 7) != 0) Fatal("a wgmma descriptor with a base offset is not emulated");
  if (d.start % (8 * d.row_bytes) >= d.row_bytes) {
    Fatal("wgmma operand at shared address " + std::to_string(d.start) +
          " does not start in the first row of a pattern of " + std::to_string(8 * d.row_bytes) +
          " bytes");
  }
  return d;
}

std::uint32_t SizeOf(DType type) {
  return type == DType::kF8E4M3 ? 1 : 2;
}
std::uint32_t DepthOf(DType type) {
  return kDepthBytes / SizeOf(type);
}

// Returns the element at `mn` along M or N and `k`. MN-major exists only for 16-bit elements.
// Canonical layouts in bytes, before the swizzle:
//   K-major    row mn % 8 of a pattern, patterns stride_bytes apart; k along the row
//   MN-major   row k % 8 of a pattern, patterns stride_bytes apart; mn along the row, the next rows
//              leading_bytes further
std::uint32_t ElementAddress(const Descriptor& d, bool mn_major, std::uint32_t size,
                             std::uint32_t mn, std::uint32_t k) {
  std::uint32_t at = d.start;
  if (mn_major) {
    const std::uint32_t per_row = d.row_bytes / 2;
    at += (k % 8) * d.row_bytes + (k / 8) * d.stride_bytes + (mn % per_row) * 2 +
          (mn / per_row) * d.leading_bytes;
  } else {
    at += (mn % 8) * d.row_bytes + (mn / 8) * d.stride_bytes + k * size;
  }
  return at ^ (at >> 7 & (d.row_bytes / 16 - 1)) << 4;
}

struct Operand {
  std::uint64_t descriptor;
  DType type;
  bool mn_major;
  std::uint32_t rows;  // along M or N
};

// Calls `visit(address, mn, k)` for every 16 bytes of the operand. They are consecutive elements
// along K, or along M or N if MN-major, and the first one is at `mn` and `k`.
template <typename Visit>
void ForEachChunk(const Operand& operand, Visit visit) {
  const Descriptor d = Decode(operand.descriptor);
  const std::uint32_t size = SizeOf(operand.type);
  const std::uint32_t mn_step = operand.mn_major ? 16 / size : 1;
  const std::uint32_t k_step = operand.mn_major ? 1 : 16 / size;
  for (std::uint32_t mn = 0; mn < operand.rows; mn += mn_step) {
    for (std::uint32_t k = 0; k < DepthOf(operand.type); k += k_step) {
      visit(ElementAddress(d, operand.mn_major, size, mn, k), mn, k);
    }
  }
}

// Stores the elements of the operand as to[mn * mn_stride + k * k_stride].
template <typename T>
void Gather(const Operand& operand, T* to, std::uint32_t mn_stride, std::uint32_t k_stride) {
  const std::uint32_t step = operand.mn_major ? mn_stride : k_stride;
  ForEachChunk(operand, [&](std::uint32_t address, std::uint32_t mn, std::uint32_t k) {
    T* const out = to + mn * mn_stride + k * k_stride;
    const std::byte* const from = SharedPointer(address, 16, 16, "wgmma");
    if (operand.type == DType::kF8E4M3) {
      for (std::uint32_t i = 0; i < 16; ++i) {
        out[i * step] = F8E4M3{static_cast<std::uint8_t>(from[i])}.ToFloat();
      }
      return;
    }
    std::uint16_t bits[8];
    std::memcpy(bits, from, sizeof(bits));
    for (std::uint32_t i = 0; i < 8; ++i) {
      out[i * step] = Element16(bits[i], operand.type == DType::kBF16);
    }
  });
}

std::uint32_t FirstThread() {
  const std::uint32_t first = current_thread->index / kGroupThreads * kGroupThreads;
  if (first + kGroupThreads > NumThreads()) Fatal("wgmma needs a full warpgroup of 128 threads");
  return first;
}

// Stores A as a[m * depth + k].
void GatherA(const PendingProduct* const* products, float* a) {
  const PendingProduct& first = *products[0];
  const std::uint32_t depth = DepthOf(first.type);
  if (!first.a_in_registers) {
    return Gather({first.a, first.type, /*mn_major=*/false, kRows}, a, depth, 1);
  }
  for (std::uint32_t t = 0; t < kGroupThreads; ++t) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
      const std::uint32_t k = 2 * (t % 4) + i / 4 * 8 + i % 2;
      const auto bits =
          static_cast<std::uint16_t>(products[t]->a_registers[i / 2] >> (16 * (i % 2)));
      a[row * depth + k] = Element16(bits, first.type == DType::kBF16);
    }
  }
}

// Returns the row and the column of register i of thread t.
std::uint32_t RowOf(std::uint32_t t, std::uint32_t i) {
  return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
}
std::uint32_t ColumnOf(std::uint32_t t, std::uint32_t i) {
  return i / 4 * 8 + 2 * (t % 4) + i % 2;
}

void CheckOperand(const Thread& thread, const Operand& operand, const void* code) {
  ForEachChunk(operand, [&](std::uint32_t address, std::uint32_t, std::uint32_t) {
    CheckShared(thread, address, 16, Access::kAsyncRead, code);
  });
}

// Records both operands in shared memory as accesses of one thread per warp, at the issue and at
// the wait, since they are read at some time in between.
void CheckOperands(const Thread& thread, const PendingProduct& product) {
  if (!is_checking || thread.lane != 0) return;
  if (!product.a_in_registers) {
    CheckOperand(thread, {product.a, product.type, /*mn_major=*/false, kRows}, product.code);
  }
  CheckOperand(thread, {product.b, product.type, product.transposed_b, product.columns},
               product.code);
}

void CheckSame(const PendingProduct& a, const PendingProduct& b) {
  if (a.columns == b.columns && a.type == b.type && a.transposed_b == b.transposed_b &&
      a.a_in_registers == b.a_in_registers && a.accumulate == b.accumulate && a.b == b.b &&
      (a.a_in_registers || a.a == b.a)) {
    return;
  }
  Fatal("threads of one warpgroup issued different wgmma products");
}

// Computes the sums of e4m3 products of a row of A with kSums columns of B, whose rows are
// `columns` long. Addends are truncated to multiples of 2^(e - 13), where e is the exponent of the
// largest one. Their sum is truncated in the same way, with its own exponent. If any addend is not
// finite, the sum is NaN.
QUIRE_VECTOR_CLONES void AddE4M3(double* sums, const float* a, const double* b,
                                 std::uint32_t columns) {
  using Bits [[gnu::vector_size(sizeof(Sums))]] = std::int64_t;
  using Counts [[gnu::vector_size(kSums * sizeof(std::int32_t))]] = std::int32_t;
  constexpr std::int64_t kMagnitude = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kExponent = std::int64_t{0x7ff} << 52;
  constexpr std::int64_t kFraction = std::int64_t{13} << 52;
  constexpr std::int64_t kOne = std::int64_t{0x3ff} << 52;  // the exponent of 1
  Sums addends[kMaxDepth + 1];
  std::memcpy(&addends[0], sums, sizeof(Sums));
  for (std::uint32_t k = 0; k < kMaxDepth; ++k) {
    std::memcpy(&addends[k + 1], b + k * columns, sizeof(Sums));
    addends[k + 1] *= double{a[k]};
  }
  // Infinities and NaN have the largest magnitudes.
  Bits largest = {};
  for (const Sums& addend : addends) {
    const Bits magnitude = reinterpret_cast<Bits>(addend) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  const Bits is_finite = largest < kExponent;
  // The unit of zeros is never used, since they are multiples of every unit.
  const Bits unit_bits = ((largest == 0 ? largest + kOne : largest) & kExponent) - kFraction;
  const Sums unit = reinterpret_cast<Sums>(unit_bits);
  Sums total = {};
  for (const Sums& addend : addends) {
    const Counts units = __builtin_convertvector(addend / unit, Counts);  // truncates
    total += __builtin_convertvector(units, Sums) * unit;
  }
  const Bits total_bits = reinterpret_cast<Bits>(total) & kExponent;
  const Bits last_bits = (total_bits == 0 ? total_bits + kOne : total_bits) - kFraction;
  const Sums last = reinterpret_cast<Sums>(last_bits);
  const Counts units = __builtin_convertvector(total / last, Counts);
  total = __builtin_convertvector(units, Sums) * last;
  const Sums nan = Sums{} + std::numeric_limits<double>::quiet_NaN();
  total = is_finite ? total : nan;
  std::memcpy(sums, &total, sizeof(Sums));
}

// products[t] are those of the 128 threads. `sums` [64][columns] contains the accumulators.
void Multiply(const PendingProduct* const* products, double* sums) {
  const PendingProduct& first = *products[0];
  const std::uint32_t n = first.columns;
  const std::uint32_t depth = DepthOf(first.type);
  static float a[kRows * kMaxDepth];
  static double b[kMaxDepth * 256];
  GatherA(products, a);
  Gather({first.b, first.type, first.transposed_b, n}, b, 1, n);
  if (first.type != DType::kF8E4M3) {
    AddProduct(sums, a, b, kRows, n);
    return;
  }
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t c = 0; c < n; c += kSums) AddE4M3(sums + m * n + c, a + m * depth, b + c, n);
  }
}

// Computes product `index` of every thread of the group. The first product on its registers uses
// their saved values. For the others an earlier product has just stored them.
void Compute(Thread* group, std::size_t index) {
  const PendingProduct* products[kGroupThreads];
  for (std::uint32_t t = 0; t < kGroupThreads; ++t) {
    products[t] = &group[t].products[index];
    CheckSame(*products[0], *products[t]);
    CheckOperands(group[t], *products[t]);
  }
  const PendingProduct& first = *products[0];
  static double sums[kRows * 256];
  std::fill_n(sums, kRows * first.columns, 0.0);
  const std::uint32_t registers = first.columns / 2;
  for (std::uint32_t t = 0; first.accumulate && t < kGroupThreads; ++t) {
    const float* const from =
        products[t]->before.empty() ? products[t]->d : products[t]->before.data();
    for (std::uint32_t i = 0; i < registers; ++i) {
      sums[RowOf(t, i) * first.columns + ColumnOf(t, i)] = from[i];
    }
  }
  Multiply(products, sums);
  for (std::uint32_t t = 0; t < kGroupThreads; ++t) {
    for (std::uint32_t i = 0; i < registers; ++i) {
      products[t]->d[i] = static_cast<float>(sums[RowOf(t, i) * first.columns + ColumnOf(t, i)]);
    }
  }
}

void PoisonRegisters(const PendingProduct& product) {
  std::fill_n(product.d, product.columns / 2, std::numeric_limits<float>::quiet_NaN());
}

// Computes the first `count` products. Registers owned by a later product become NaN again, and
// their values are saved in it.
void ComputeFirst(Thread* group, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) Compute(group, i);
  for (std::uint32_t t = 0; t < kGroupThreads; ++t) {
    auto& products = group[t].products;
    products.erase(products.begin(), products.begin() + static_cast<std::ptrdiff_t>(count));
    for (auto next = products.begin(); next != products.end(); ++next) {
      const bool first_on_d = std::none_of(products.begin(), next,
                                           [&](const PendingProduct& p) { return p.d == next->d; });
      if (!first_on_d || !next->before.empty()) continue;
      next->before.assign(next->d, next->d + next->columns / 2);
      PoisonRegisters(*next);
    }
  }
}

std::size_t CountDone(const Thread& thread, std::uint32_t pending) {
  const std::uint32_t last = thread.product_groups > pending ? thread.product_groups - pending : 0;
  return static_cast<std::size_t>(
      std::count_if(thread.products.begin(), thread.products.end(),
                    [&](const PendingProduct& p) { return p.group != 0 && p.group <= last; }));
}

}  // namespace

void IssueProduct(float* d, const ProductShape& shape, std::uint64_t a,
                  const std::uint32_t* a_registers, std::uint64_t b) {
  Thread& self = *current_thread;
  FirstThread();
  const std::uint32_t columns = shape.columns;
  if (shape.type == DType::kF8E4M3 && (shape.transposed_b || a_registers != nullptr)) {
    Fatal("a wgmma product of e4m3 with B transposed or A in registers is not emulated");
  }
  if (!self.product_fence) Fatal("a wgmma product without WgmmaFence after the last WgmmaWait");
  PendingProduct product{.columns = columns,
                         .type = shape.type,
                         .transposed_b = shape.transposed_b,
                         .a_in_registers = a_registers != nullptr,
                         .accumulate = shape.accumulate,
                         .a = a,
                         .b = b,
                         .a_registers = {},
                         .a_from = a_registers,
                         .d = d,
                         .before = {},
                         .group = 0,
                         .code = __builtin_return_address(0)};
  CheckOperands(self, product);
  if (a_registers != nullptr) std::copy_n(a_registers, 4, product.a_registers);
  const bool first_on_d =
      std::none_of(self.products.begin(), self.products.end(), [&](const PendingProduct& p) {
        if (p.d != d && p.d < d + columns / 2 && d < p.d + p.columns / 2) {
          Fatal("two wgmma products under way share some of their accumulators");
        }
        return p.d == d;
      });
  if (first_on_d) product.before.assign(d, d + columns / 2);
  self.products.push_back(std::move(product));
  if (first_on_d) PoisonRegisters(self.products.back());
}

void FenceProducts() {
  current_thread->product_fence = true;
}

void CommitProducts() {
  Thread& self = *current_thread;
  ++self.product_groups;
  for (auto p = self.products.rbegin(); p != self.products.rend() && p->group == 0; ++p) {
    p->group = self.product_groups;
  }
}

void WaitProducts(std::uint32_t pending) {
  Thread& self = *current_thread;
  const std::uint32_t first = FirstThread();
  Thread* const group = &Threads()[first];
  self.product_fence = false;
  self.products_waited = true;
  self.products_done = CountDone(self, pending);
  for (std::uint32_t t = 0; t < kGroupThreads; ++t) {
    if (!group[t].products_waited) {
      Wait(kWaits, first);
      return;
    }
  }
  for (std::uint32_t t = 0; t < kGroupThreads; ++t) {
    if (group[t].products_done != self.products_done ||
        group[t].products.size() != self.products.size()) {
      Fatal("threads of one warpgroup wait for different numbers of wgmma products");
    }
    group[t].products_waited = false;
  }
  ComputeFirst(group, self.products_done);
  for (std::uint32_t t = 0; t < kGroupThreads; ++t) {
    if (&group[t] != &self) Wake(&group[t]);
  }
}

}  // namespace quire::cuda_emulator

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
constexpr std::uint32_t kDepth = 16;
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
  // "Base offset": 0 when the pattern starts at a multiple of its 8 rows; then only an advance
  // inside the first row is left in the low bits of the start.
  if ((bits >> 49 & 7) != 0) Fatal("a wgmma descriptor with a base offset is not emulated");
  if (d.start % (8 * d.row_bytes) >= d.row_bytes) {
    Fatal("wgmma operand at shared address " + std::to_string(d.start) +
          " does not start in the first row of a pattern of " + std::to_string(8 * d.row_bytes) +
          " bytes");
  }
  return d;
}

// The 16-bit element at `mn` along M or N and `k`. Canonical layouts in bytes, before the swizzle:
//   K-major    row mn % 8 of a pattern, patterns stride_bytes apart; k along the row
//   MN-major   row k % 8 of a pattern, patterns stride_bytes apart; mn along the row, the next rows
//              leading_bytes on
std::uint32_t ElementAddress(const Descriptor& d, bool mn_major, std::uint32_t mn,
                             std::uint32_t k) {
  std::uint32_t at = d.start;
  if (mn_major) {
    const std::uint32_t per_row = d.row_bytes / 2;
    at += (k % 8) * d.row_bytes + (k / 8) * d.stride_bytes + (mn % per_row) * 2 +
          (mn / per_row) * d.leading_bytes;
  } else {
    at += (mn % 8) * d.row_bytes + (mn / 8) * d.stride_bytes + k * 2;
  }
  return at ^ (at >> 7 & (d.row_bytes / 16 - 1)) << 4;
}

std::uint16_t Element(const Descriptor& d, bool mn_major, std::uint32_t mn, std::uint32_t k) {
  std::uint16_t bits;
  std::memcpy(&bits, SharedPointer(ElementAddress(d, mn_major, mn, k), 2, 2, "wgmma"),
              sizeof(bits));
  return bits;
}

std::uint32_t FirstThread() {
  const std::uint32_t first = current_thread->index / kGroupThreads * kGroupThreads;
  if (first + kGroupThreads > NumThreads()) Fatal("wgmma needs a full warpgroup of 128 threads");
  return first;
}

void GatherA(const PendingProduct* const* products, float (*a)[kDepth]) {
  const PendingProduct& first = *products[0];
  if (!first.a_in_registers) {
    const Descriptor d = Decode(first.a);
    for (std::uint32_t m = 0; m < kRows; ++m) {
      for (std::uint32_t k = 0; k < kDepth; ++k) {
        a[m][k] = Element16(Element(d, /*mn_major=*/false, m, k), first.is_bf16);
      }
    }
    return;
  }
  for (std::uint32_t t = 0; t < kGroupThreads; ++t) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
      const std::uint32_t k = 2 * (t % 4) + i / 4 * 8 + i % 2;
      const auto bits =
          static_cast<std::uint16_t>(products[t]->a_registers[i / 2] >> (16 * (i % 2)));
      a[row][k] = Element16(bits, first.is_bf16);
    }
  }
}

// The row and the column of register i of thread t.
std::uint32_t RowOf(std::uint32_t t, std::uint32_t i) {
  return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
}
std::uint32_t ColumnOf(std::uint32_t t, std::uint32_t i) {
  return i / 4 * 8 + 2 * (t % 4) + i % 2;
}

// Bytes of 16 that hold 8 elements each of one operand, `rows` along M or N.
void CheckOperand(const Thread& thread, std::uint64_t descriptor, bool mn_major, std::uint32_t rows,
                  const void* code) {
  const Descriptor d = Decode(descriptor);
  const std::uint32_t step = mn_major ? 8 : 1;
  for (std::uint32_t mn = 0; mn < rows; mn += step) {
    for (std::uint32_t k = 0; k < kDepth; k += mn_major ? 1 : 8) {
      CheckShared(thread, ElementAddress(d, mn_major, mn, k), 16, Access::kAsyncRead, code);
    }
  }
}

// Both operands in shared memory, as accesses of one thread a warp: when the product is issued, and
// when it is waited for, since they are read at some time between.
void CheckOperands(const Thread& thread, const PendingProduct& product) {
  if (!is_checking || thread.lane != 0) return;
  if (!product.a_in_registers) {
    CheckOperand(thread, product.a, /*mn_major=*/false, kRows, product.code);
  }
  CheckOperand(thread, product.b, product.transposed_b, product.columns, product.code);
}

void CheckSame(const PendingProduct& a, const PendingProduct& b) {
  if (a.columns == b.columns && a.is_bf16 == b.is_bf16 && a.transposed_b == b.transposed_b &&
      a.a_in_registers == b.a_in_registers && a.accumulate == b.accumulate && a.b == b.b &&
      (a.a_in_registers || a.a == b.a)) {
    return;
  }
  Fatal("threads of one warpgroup issued different wgmma products");
}

// products[t] of the 128 threads; `sums` [64][columns] holds the accumulators.
void Multiply(const PendingProduct* const* products, double* sums) {
  const PendingProduct& first = *products[0];
  const std::uint32_t n = first.columns;
  static float a[kRows][kDepth];
  static double b[kDepth * 256];
  GatherA(products, a);
  const Descriptor d = Decode(first.b);
  for (std::uint32_t k = 0; k < kDepth; ++k) {
    for (std::uint32_t c = 0; c < n; ++c) {
      b[k * n + c] = Element16(Element(d, first.transposed_b, c, k), first.is_bf16);
    }
  }
  AddProduct(sums, a[0], b, kRows, n);
}

// Computes product `index` of every thread of the group. A product that is the first on its
// registers brings their values along; for the others an earlier one has just put them there.
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

// Computes the first `count` products. Registers that a later one still owns become NaN again,
// their values move there.
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

void IssueProduct(float* d, std::uint32_t columns, bool is_bf16, bool transposed_b, std::uint64_t a,
                  const std::uint32_t* a_registers, std::uint64_t b, bool accumulate) {
  Thread& self = *current_thread;
  FirstThread();
  if (!self.product_fence) Fatal("a wgmma product without WgmmaFence after the last WgmmaWait");
  PendingProduct product{.columns = columns,
                         .is_bf16 = is_bf16,
                         .transposed_b = transposed_b,
                         .a_in_registers = a_registers != nullptr,
                         .accumulate = accumulate,
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

// Counts heap allocations of this program. Ops must not allocate once their scratch memory has
// grown.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/linear/bf16_linear.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/ops.h"
#include "tests/kernels/kernel_test_util.h"

namespace {
std::atomic<int> allocations{0};

void* Counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) {
  return Counted(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes) {
  return Counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return Counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace quire::kernels {
namespace {

TEST(AllocationTest, OpsReuseTheirScratchMemory) {
  constexpr std::uint32_t kRows = 20, kHeads = 4, kKvHeads = 2, kHeadSize = 32, kVocab = 5000;
  constexpr std::uint32_t kHidden = kHeads * kHeadSize;
  const TestBackend backend(3);
  TestPool pool({DType::kBF16, 1, kKvHeads, kHeadSize, 16}, {1000, 0}, {kRows - 1, 1}, 1);
  const auto cached = RandomFloats(kKvHeads * kHeadSize, 2);
  for (std::uint32_t t = 0; t < 1000; ++t) pool.Put(0, t, cached.data(), cached.data());
  const AnyKvView keys = pool.keys();
  const AnyKvView values = pool.values();
  const auto x = RandomFloats(kRows * kHidden, 3);
  const auto logits = RandomFloats(kVocab, 4, 3.0f);
  const auto w = RandomFloats(kHidden * kHidden, 5, 0.1f);
  const auto packed = PackLinearWeight(*backend, w.data(), DType::kF32, kHidden, kHidden);
  ASSERT_TRUE(packed.ok());
  std::vector<float> y(kRows * kHidden);
  std::vector<SamplingRow> rows(
      8, {.logits = logits.data(), .top_p = 0.9f, .text_vocab = kVocab, .num_logprobs = 0});
  std::vector<SampledRow> sampled(8);

  const auto step = [&] {
    bool ok = Linear(*backend, {.x = x.data(),
                                .weight = &*packed,
                                .y = y.data(),
                                .x_stride = kHidden,
                                .y_stride = kHidden,
                                .num_rows = kRows})
                  .ok();
    ok &= RmsNorm(*backend, {.x = y.data(),
                             .y = y.data(),
                             .x_stride = kHidden,
                             .y_stride = kHidden,
                             .num_rows = kRows,
                             .hidden = kHidden,
                             .epsilon = 1e-5f})
              .ok();
    ok &= KvStore(*backend,
                  {&keys, &values, x.data(), x.data(), pool.row_offsets(), kHidden, kHidden, 2})
              .ok();
    ok &= PagedAttention(*backend, {.keys = &keys,
                                    .values = &values,
                                    .q = x.data(),
                                    .out = y.data(),
                                    .row_offsets = pool.row_offsets(),
                                    .q_stride = kHidden,
                                    .out_stride = kHidden,
                                    .batch_size = 2,
                                    .num_heads = kHeads,
                                    .scale = 0.1f})
              .ok();
    ok &= GatedProduct(*backend,
                       {y.data(), x.data(), y.data(), kHidden, kHidden, kHidden, kRows, kHidden})
              .ok();
    ok &= Sample(*backend, {rows, sampled, kVocab}).ok();
    return ok;
  };
  ASSERT_TRUE(step());
  const int before = allocations;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(step());
  EXPECT_EQ(allocations, before);
}

TEST(AllocationTest, IntegerLinearStaysWithinItsReservation) {
  constexpr std::uint32_t kRows = 40, kInputs = 512, kFeatures = 96;
  const auto x = RandomFloats(kRows * kInputs, 1);
  std::vector<float> y(kRows * kFeatures);
  for (const std::uint32_t group : {16u, kInputs}) {
    const TestBackend backend(3);
    const auto packed =
        PackQuantizedRows(*backend, {WeightFormat::kInt8, kFeatures, kInputs, group},
                          [](std::uint32_t, const QuantizedRow& out) {
                            std::fill(out.q.begin(), out.q.end(), std::int8_t{1});
                            std::fill(out.scales.begin(), out.scales.end(), 1.0f);
                          });
    ASSERT_TRUE(packed.ok());
    (*backend).op_workspace().Reserve(
        static_cast<std::size_t>(QuantizedLinearScratchBytes(kRows, kInputs)));
    const int before = allocations;
    for (const std::uint32_t rows : {1u, 3u, 8u, 9u, kRows}) {
      ASSERT_TRUE(Linear(*backend, {.x = x.data(),
                                    .weight = &*packed,
                                    .y = y.data(),
                                    .x_stride = kInputs,
                                    .y_stride = kFeatures,
                                    .num_rows = rows})
                      .ok());
    }
    EXPECT_EQ(allocations, before) << group;
  }
}

// Covers both group sizes of bf16 activations, and permuted rows.
TEST(AllocationTest, RoundedLinearStaysWithinItsReservation) {
  constexpr std::uint32_t kRows = 40, kMostInputs = 4160, kFeatures = 96;
  const auto x = RandomFloats(kRows * kMostInputs, 1);
  std::vector<float> y(kRows * kFeatures);
  std::vector<std::uint32_t> order(kMostInputs);
  for (std::uint32_t i = 0; i < kMostInputs; ++i) order[i] = kMostInputs - 1 - i;
  for (const CpuActivations activations : {CpuActivations::kBF16, CpuActivations::kF32}) {
    const TestBackend backend(3, activations);
    const bool is_bf16 = activations == CpuActivations::kBF16;
    (*backend).op_workspace().Reserve(static_cast<std::size_t>(
        is_bf16 ? Bf16LinearScratchBytes(kRows, kMostInputs)
                : QuantizedLinearScratchBytes(kRows, kMostInputs, /*has_act_order=*/true)));
    (*backend).ReserveWorkspaces(static_cast<std::size_t>(
        is_bf16 ? Bf16LinearThreadBytes(kRows, kMostInputs) : DequantizedThreadBytes(kMostInputs)));
    for (const std::uint32_t inputs : {512u, kMostInputs}) {
      QuantizedShape shape{WeightFormat::kInt8, kFeatures, inputs, 32};
      shape.has_act_order = inputs == kMostInputs;
      const auto packed = PackQuantizedRows(
          *backend, shape,
          [](std::uint32_t, const QuantizedRow& out) {
            std::fill(out.q.begin(), out.q.end(), std::int8_t{1});
            std::fill(out.scales.begin(), out.scales.end(), 1.0f);
          },
          shape.has_act_order ? std::span<const std::uint32_t>(order)
                              : std::span<const std::uint32_t>());
      ASSERT_TRUE(packed.ok()) << packed.status();
      const int before = allocations;
      for (const std::uint32_t rows : {1u, 3u, 16u, 17u, kRows}) {
        ASSERT_TRUE(Linear(*backend, {.x = x.data(),
                                      .weight = &*packed,
                                      .y = y.data(),
                                      .x_stride = inputs,
                                      .y_stride = kFeatures,
                                      .num_rows = rows})
                        .ok());
      }
      EXPECT_EQ(allocations, before) << inputs;
    }
  }
}

// Covers few inputs, where rows fill the memory in several passes, and more inputs.
TEST(AllocationTest, Fp8LinearStaysWithinItsReservation) {
  constexpr std::uint32_t kFeatures = 33;
  for (const std::uint32_t most : {512u, 140000u}) {
    for (const std::uint32_t inputs : {512u, 1008u, 140000u}) {
      if (inputs > most) continue;
      const TestBackend backend(3);
      const auto packed =
          PackFp8Rows(*backend, {.n = kFeatures, .k = inputs, .group = inputs},
                      [](std::uint32_t, const Fp8Row& out) {
                        std::fill(out.codes.begin(), out.codes.end(), std::uint8_t{0x38});
                        std::fill(out.scales.begin(), out.scales.end(), 1.0f);
                      });
      ASSERT_TRUE(packed.ok());
      const std::uint32_t rows = inputs < 140000 ? 2100 : 40;
      const auto x = RandomFloats(std::size_t{rows} * inputs, 1);
      std::vector<float> y(std::size_t{rows} * kFeatures);
      (*backend).op_workspace().Reserve(
          static_cast<std::size_t>(Fp8LinearScratchBytes(rows, most)));
      const int before = allocations;
      for (const std::uint32_t m : {1u, 3u, 8u, 9u, 40u, rows}) {
        ASSERT_TRUE(Linear(*backend, {.x = x.data(),
                                      .weight = &*packed,
                                      .y = y.data(),
                                      .x_stride = inputs,
                                      .y_stride = kFeatures,
                                      .num_rows = m})
                        .ok());
      }
      EXPECT_EQ(allocations, before) << inputs << " of " << most;
    }
  }
}

}  // namespace
}  // namespace quire::kernels

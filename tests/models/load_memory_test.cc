// Loading GGML quantization blocks makes no wide copy of a tensor next to the weights.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/dtype.h"
#include "models/weights/weights.h"
#include "tests/models/allocation_counter.h"
#include "tests/models/block_model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kRows = 2048;

TEST(LoadMemoryTest, ConvertsBlocksRowByRow) {
  const TestBackend cpu(2);
  BlockModel model(kRows);
  for (const Quantization quantization : {Quantization::kNone, Quantization::kAuto}) {
    SCOPED_TRACE(QuantizationName(quantization));
    const WeightTarget target{.quantization = quantization};
    const HeapPeak peak;
    const auto weights = Weights::Load(model.slots, cpu.backend, target);
    ASSERT_TRUE(weights.ok()) << weights.status();
    // A copy of the tensor would take 8 MiB in f32 and 4 MiB in f16.
    EXPECT_LT(peak.bytes(), 1 << 20);
    EXPECT_EQ(weights->size_bytes(), WeightBytes(model.slots, target));
    ASSERT_EQ(weights->embedding_dtype(),
              quantization == Quantization::kNone ? DType::kF32 : DType::kF16);
    for (std::int64_t row = 0; row < kRows; row += 13) {
      for (std::int64_t i = 0; i < BlockModel::kInputs; i += 5) {
        const std::int64_t at = row * BlockModel::kInputs + i;
        const float want = BlockModel::ValueAt(row, i);
        const float held = weights->embedding_dtype() == DType::kF32
                               ? static_cast<const float*>(weights->embedding())[at]
                               : static_cast<const F16*>(weights->embedding())[at].ToFloat();
        ASSERT_EQ(held, want) << row << " " << i;
        ASSERT_EQ(weights->head().matrices[0].At(static_cast<std::uint32_t>(row),
                                                 static_cast<std::uint32_t>(i)),
                  want)
            << row << " " << i;
      }
    }
  }
}

// The message names the lowest element, however rows are distributed over threads.
TEST(LoadMemoryTest, RejectsEmbeddingOutsideTheRangeOfF16) {
  const TestBackend cpu(3);
  BlockModel model(kRows);
  for (const std::int64_t row : {std::int64_t{1}, std::int64_t{700}, kRows - 1}) {
    BlockModel::SetScale(model.BlockOf(row, 32), 60000.0f);
  }
  const auto refused = Weights::Load(model.slots, cpu.backend, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("tiny.gguf: tensor token_embd.weight: element 1056 of 2097152 is "));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("which exceeds the range of f16; set model.quantization to \"none\""));
  const auto wide = Weights::Load(model.slots, cpu.backend, {.quantization = Quantization::kNone});
  EXPECT_TRUE(wide.ok()) << wide.status();
}

}  // namespace
}  // namespace quire::models

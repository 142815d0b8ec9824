// Loading blocks holds no wide copy of a tensor beside the weights themselves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "models/weights.h"
#include "tests/models/allocation_counter.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kRows = 2048, kInputs = 1024;
constexpr float kScale = 0x1p-6f;

int ValueAt(std::int64_t row, std::int64_t input) {
  return static_cast<int>((row * 31 + input * 7) % 255) - 127;
}

// A model of an embedding, which is the head too, and a final norm. The embedding is Q8_0: blocks
// of an f16 scale and 32 signed bytes.
struct TinyModel {
  TinyModel() {
    const auto block_bytes = static_cast<std::size_t>(GgmlRowBytes(GgmlType::kQ8_0, 32));
    blocks.resize(static_cast<std::size_t>(kRows * kInputs / 32) * block_bytes);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kInputs; ++i) {
        std::byte* const block = BlockOf(row, i);
        if (i % 32 == 0) SetScale(block, kScale);
        block[2 + i % 32] = static_cast<std::byte>(ValueAt(row, i));
      }
    }
    embedding = {.name = "token_embd.weight",
                 .type = "Q8_0",
                 .blocks = GgmlType::kQ8_0,
                 .shape = {kRows, kInputs},
                 .bytes = blocks,
                 .file = "tiny.gguf"};
    norm = {.name = "output_norm.weight",
            .type = "F32",
            .dtype = DType::kF32,
            .shape = {kInputs},
            .bytes = std::as_bytes(std::span(ones)),
            .file = "tiny.gguf"};
    slots.embedding = &embedding;
    slots.final_norm = &norm;
    slots.head = {.matrices = {{.parts = {&embedding},
                                .n = kRows,
                                .k = kInputs,
                                .form = {.dtype = DType::kF32}}},
                  .biases = {},
                  .n = kRows,
                  .k = kInputs};
  }

  std::byte* BlockOf(std::int64_t row, std::int64_t input) {
    const std::int64_t block = (row * kInputs + input) / 32;
    return blocks.data() + block * GgmlRowBytes(GgmlType::kQ8_0, 32);
  }
  static void SetScale(std::byte* block, float scale) {
    const F16 half = F16::FromFloat(scale);
    std::memcpy(block, &half, sizeof(half));
  }

  std::vector<std::byte> blocks;
  std::vector<float> ones = std::vector<float>(kInputs, 1.0f);
  StoredTensor embedding, norm;
  WeightSlots slots;
};

TEST(LoadMemoryTest, BlocksAreConvertedRowByRow) {
  const TestBackend cpu(2);
  TinyModel model;
  for (const Quantization quantization : {Quantization::kNone, Quantization::kAuto}) {
    SCOPED_TRACE(QuantizationName(quantization));
    const WeightTarget target{.quantization = quantization};
    const HeapPeak peak;
    const auto weights = Weights::Load(model.slots, cpu.backend, target);
    ASSERT_TRUE(weights.ok()) << weights.status();
    // A copy of the tensor in f32 would take 8 MiB, in f16 4.
    EXPECT_LT(peak.bytes(), 1 << 20);
    EXPECT_EQ(weights->size_bytes(), WeightBytes(model.slots, target));
    ASSERT_EQ(weights->embedding_dtype(),
              quantization == Quantization::kNone ? DType::kF32 : DType::kF16);
    for (std::int64_t row = 0; row < kRows; row += 13) {
      for (std::int64_t i = 0; i < kInputs; i += 5) {
        const std::int64_t at = row * kInputs + i;
        const float want = kScale * static_cast<float>(ValueAt(row, i));
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

// The lowest element is named, however rows are shared among threads.
TEST(LoadMemoryTest, EmbeddingBeyondF16IsRefused) {
  const TestBackend cpu(3);
  TinyModel model;
  for (const std::int64_t row : {std::int64_t{1}, std::int64_t{700}, kRows - 1}) {
    TinyModel::SetScale(model.BlockOf(row, 32), 60000.0f);
  }
  const auto refused = Weights::Load(model.slots, cpu.backend, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("tiny.gguf: tensor token_embd.weight: element 1056 of 2097152 is "));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("beyond f16; model.quantization none holds it as f32"));
  const auto wide = Weights::Load(model.slots, cpu.backend, {.quantization = Quantization::kNone});
  EXPECT_TRUE(wide.ok()) << wide.status();
}

}  // namespace
}  // namespace quire::models

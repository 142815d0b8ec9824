#pragma once

// A model without files: an embedding in GGML quantization blocks and a final norm.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "models/weights/weights.h"

namespace quire::models {

// The embedding [rows, kInputs] is also the head. Its type is Q8_0: blocks of an f16 scale and 32
// signed bytes.
struct BlockModel {
  static constexpr std::int64_t kInputs = 1024;
  static constexpr float kScale = 0x1p-6f;

  explicit BlockModel(std::int64_t rows)
      : blocks(static_cast<std::size_t>(rows *
                                        formats::GgmlRowBytes(formats::GgmlType::kQ8_0, kInputs))) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < kInputs; ++i) {
        std::byte* const block = BlockOf(row, i);
        if (i % 32 == 0) SetScale(block, kScale);
        block[2 + i % 32] = static_cast<std::byte>(IntegerAt(row, i));
      }
    }
    embedding = {.name = "token_embd.weight",
                 .type = "Q8_0",
                 .blocks = formats::GgmlType::kQ8_0,
                 .quantized = nullptr,
                 .shape = {rows, kInputs},
                 .bytes = blocks,
                 .file = "tiny.gguf"};
    norm = {.name = "output_norm.weight",
            .type = "F32",
            .dtype = DType::kF32,
            .quantized = nullptr,
            .shape = {kInputs},
            .bytes = std::as_bytes(std::span(ones)),
            .file = "tiny.gguf"};
    const auto n = static_cast<std::uint32_t>(rows);
    slots.embedding = &embedding;
    slots.final_norm.parts = {&norm};
    slots.head = {
        .matrices = {{.parts = {&embedding}, .n = n, .k = kInputs, .form = {.dtype = DType::kF32}}},
        .biases = {},
        .n = n,
        .k = kInputs};
  }
  BlockModel(const BlockModel&) = delete;
  BlockModel& operator=(const BlockModel&) = delete;

  static float ValueAt(std::int64_t row, std::int64_t input) {
    return kScale * static_cast<float>(IntegerAt(row, input));
  }
  std::byte* BlockOf(std::int64_t row, std::int64_t input) {
    const std::int64_t block = (row * kInputs + input) / 32;
    return blocks.data() + block * formats::GgmlRowBytes(formats::GgmlType::kQ8_0, 32);
  }
  static void SetScale(std::byte* block, float scale) {
    const F16 half = F16::FromFloat(scale);
    std::memcpy(block, &half, sizeof(half));
  }

  std::vector<std::byte> blocks;
  std::vector<float> ones = std::vector<float>(kInputs, 1.0f);
  formats::StoredTensor embedding, norm;
  WeightSlots slots;

 private:
  static int IntegerAt(std::int64_t row, std::int64_t input) {
    return static_cast<int>((row * 31 + input * 7) % 255) - 127;
  }
};

}  // namespace quire::models

#pragma once

// Pages and lengths of equal sequences in device memory, for benchmarks that read or write the KV
// cache.
//
// Threads:  one thread.
// Lifetime: the object must outlive all views of `collection`.

#include <cstdint>
#include <optional>

#include "kernels/attention/attention_plan.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "tools/bench/bench_cuda.h"

namespace quire::kernels {

struct SequencesShape {
  std::uint32_t batch;
  std::uint32_t cached;  // tokens per sequence before the step
  std::uint32_t rows;    // tokens per sequence in the step
  std::uint32_t kv_heads;
  std::uint32_t head_size;
  bool is_prompt;
};

class DeviceSequences {
 public:
  static constexpr std::uint32_t kPage = 64;

  // Creates one layer of random K and V. Returns RESOURCE_EXHAUSTED if there is too little memory.
  static absl::StatusOr<DeviceSequences> Create(const Gpu& gpu, DType dtype,
                                                const SequencesShape& shape);

  AttentionPlanParams Lengths(bool is_prompt) const {
    return {.row_offsets = static_cast<const std::uint32_t*>(row_offsets_.data()),
            .cache_lengths = static_cast<const std::uint32_t*>(lengths_.data()),
            .prefill_tokens = static_cast<const std::uint32_t*>(prefill_tokens_.data()),
            .live_sequences = static_cast<const std::uint32_t*>(live_sequences_.data()),
            .batch_size = batch_,
            .has_prompt_rows = is_prompt,
            .has_generated_rows = !is_prompt};
  }

  std::optional<AnyKvCollection> collection;

 private:
  explicit DeviceSequences(std::uint32_t batch) : batch_(batch) {}

  std::uint32_t batch_;
  DeviceBuffer pool_, scales_, table_, lengths_, row_offsets_, prefill_tokens_, live_sequences_;
};

}  // namespace quire::kernels

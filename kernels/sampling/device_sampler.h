#pragma once

// The sampler of a GPU: what Sample and ComputeLogprobs of sampling.h do, enqueued on the backend's
// stream. Sampled tokens, ranks, best ids and log-probabilities are those of the CPU, to the bit
// where the CPU has a fused multiply-add.
//
// Place:      beside the ops; used by a runner whose backend is a GPU.
// Invariants: nothing is allocated after Create. Results of a row depend on that row only.
// Threads:    one at a time.
// Lifetime:   backend and has_text outlive it; what it enqueued has ended when it is destroyed.
//
// A slot is one step's worth of results: while those of one are read, the other may be filled.
//   Reset, Sample and ComputeLogprobs any number of times, wait for the stream, then samples
//   and logprobs.

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/sampling/sampling.h"

namespace quire::kernels {

// What one slot holds between two Resets. Of the four lists it is what the slot holds at a time:
// any single row must fit; a step whose rows do not fit together is sampled in pieces, with a wait
// for the stream between them.
struct DeviceSamplerLimits {
  std::uint32_t max_samples = 0;
  std::uint32_t max_prompt_logprobs = 0;
  std::uint32_t vocab = 0;         // rows of the output matrix
  std::uint32_t max_logprobs = 0;  // best ids of one row, at most 1024
  std::uint32_t max_history = 0;   // TokenCount entries
  std::uint32_t max_bias = 0;      // LogitBias entries
  std::uint32_t max_banned = 0;    // banned ids
  std::uint32_t max_masks = 0;     // rows with `allowed`
};

class DeviceSampler {
 public:
  static constexpr int kSlots = 2;

  ~DeviceSampler();

  // Device memory that Create allocates.
  static std::int64_t BytesFor(const DeviceSamplerLimits& limits);
  // Pinned memory that Create allocates.
  static std::int64_t PinnedBytesFor(const DeviceSamplerLimits& limits);

  // `has_text` [vocab] is host memory; empty: every id below text_vocab has text. Returns
  // INVALID_ARGUMENT for a backend that is no GPU, an empty vocabulary, too many log-probabilities,
  // or a has_text of another size; otherwise what allocation and copy say.
  static absl::StatusOr<std::unique_ptr<DeviceSampler>> Create(
      const Backend& backend, const DeviceSamplerLimits& limits,
      std::span<const std::uint8_t> has_text, std::uint32_t text_vocab);

  // Enqueues samples. `logits` of a row are device memory; history, bias, banned ids and masks are
  // host memory, read before the call returns. tokens [rows.size()] is device memory and receives
  // the ids, -1 where there is none. Returns INVALID_ARGUMENT, with nothing enqueued, as Sample, or
  // when a limit is exceeded or a row's text_vocab or has_text is not that of Create.
  // With `places` the token of row i goes to tokens[places[i]] instead of tokens[i].
  absl::Status Sample(std::span<const SamplingRow> rows, std::int32_t* tokens, int slot,
                      std::span<const std::uint32_t> places = {});
  // The same for tokens that are known; `top` of a token is not looked at.
  absl::Status ComputeLogprobs(std::span<const TokenLogprob> tokens, int slot);

  // Forgets the slot's results. REQUIRES: what was enqueued in the slot has ended.
  void Reset(int slot);
  // Results since the slot's Reset, in order of the calls; `top` points into the sampler. Valid
  // until the slot's Reset. REQUIRES: what was enqueued in the slot has ended.
  std::span<const SampledRow> samples(int slot);
  std::span<const TokenLogprob> logprobs(int slot);

 private:
  struct State;

  explicit DeviceSampler(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace quire::kernels

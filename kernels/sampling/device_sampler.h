#pragma once

// Enqueues Sample and ComputeLogprobs of sampling.h on the stream of a GPU backend. Sampled tokens,
// ranks, best ids and log-probabilities have the same bits as on a CPU with fused multiply-add.
//
// Place:      beside the ops; used by runners with a GPU backend.
// Invariants: nothing is allocated after Create. Results of a row depend only on that row.
// Threads:    one call at a time.
// Lifetime:   backend and has_text outlive the sampler. Enqueued work has completed before the
//             sampler is destroyed.
//
// A slot stores the results of one step, so that the host can read one slot while the device fills
// the other. Call Reset, then Sample and ComputeLogprobs any number of times, then wait for the
// stream, then call samples and logprobs.

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/sampling/sampling.h"

namespace quire::kernels {

// Capacity of a slot between two Resets. The limits of the four lists (history, bias, banned ids,
// masks) apply to calls that the device has not completed. The lists of each single row must fit.
// Rows whose lists do not fit together are sampled in several parts. The sampler waits for the
// stream between parts.
struct DeviceSamplerLimits {
  std::uint32_t max_samples = 0;
  std::uint32_t max_prompt_logprobs = 0;
  std::uint32_t vocab = 0;         // number of token ids
  std::uint32_t max_logprobs = 0;  // number of best ids per row, at most 1024
  std::uint32_t max_history = 0;   // TokenCount entries
  std::uint32_t max_bias = 0;      // LogitBias entries
  std::uint32_t max_banned = 0;    // banned ids
  std::uint32_t max_masks = 0;     // rows with `allowed`
};

class DeviceSampler {
 public:
  static constexpr int kSlots = 2;

  ~DeviceSampler();

  // Returns the bytes of device memory that Create allocates.
  static std::int64_t BytesFor(const DeviceSamplerLimits& limits);
  // Returns the bytes of pinned memory that Create allocates.
  static std::int64_t PinnedBytesFor(const DeviceSamplerLimits& limits);

  // `has_text` [vocab] is host memory. If it is empty, every id below text_vocab has text. Returns
  // INVALID_ARGUMENT if the backend is the CPU, the vocabulary is empty, max_logprobs is too large,
  // or the size of has_text is wrong. Also returns errors of allocation and copy.
  static absl::StatusOr<std::unique_ptr<DeviceSampler>> Create(
      const Backend& backend, const DeviceSamplerLimits& limits,
      std::span<const std::uint8_t> has_text, std::uint32_t text_vocab);

  // Enqueues samples. `logits` of a row is device memory. History, bias, banned ids and masks are
  // host memory and are read before the call returns. `tokens` is device memory and receives the
  // token ids, or -1 for a row without a token. Row i is written to tokens[i], or to
  // tokens[places[i]] if `places` is not empty. Returns INVALID_ARGUMENT and enqueues nothing if
  // kernels::Sample would return it, if a limit is exceeded, or if text_vocab or has_text differ
  // from those of Create.
  absl::Status Sample(std::span<const SamplingRow> rows, std::int32_t* tokens, int slot,
                      std::span<const std::uint32_t> places = {});
  // Enqueues the log-probabilities of tokens that are already known. Memory and errors are as for
  // Sample. `top` of a token is ignored.
  absl::Status ComputeLogprobs(std::span<const TokenLogprob> tokens, int slot);

  // Discards the results of the slot. REQUIRES: work enqueued in the slot has completed.
  void Reset(int slot);
  // samples and logprobs return the results since the slot's Reset, in the order of the calls.
  // Their `top` points into the sampler. Results are valid until the slot's next Reset. REQUIRES:
  // work enqueued in the slot has completed.
  std::span<const SampledRow> samples(int slot);
  std::span<const TokenLogprob> logprobs(int slot);

 private:
  struct State;

  explicit DeviceSampler(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace quire::kernels

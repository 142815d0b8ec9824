#pragma once

// Runs a model fixture through CpuRunner or CudaRunner and compares with its recorded reference.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "formats/model_files.h"
#include "kernels/comm/communicator.h"
#include "models/config/layer_spec.h"
#include "models/weights/quantization.h"

namespace quire::models::parity {

struct ReferencePrompt {
  std::string id;  // "p04"
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> greedy;                 // 64 tokens, 48 of GGUF fixtures
  std::vector<float> greedy_logprobs;               // of each
  std::vector<std::vector<std::int32_t>> top5_ids;  // of the first steps, best first
  std::vector<std::vector<float>> top5_logprobs;
  bool all_positions = false;  // logits of every position, else of the last one
  std::vector<float> logits;   // [positions, vocab]
  std::vector<float> hidden;   // [layers + 2, tokens, hidden], or empty
};

struct Reference {
  std::vector<ReferencePrompt> prompts;
  std::uint32_t vocab_size = 0;
  std::uint32_t num_layers = 0;  // of the hidden states; 0 without them
  double bf16_cache_error = 0;   // relative, of a correct engine with such pages
  double bf16_cache_max_abs = 0;
  double half_error = 0;  // relative, of half precision throughout
  std::int64_t num_parameters = 0;
};

// `folder` is a name under tests/testdata/models.
std::string FixturePath(const std::string& folder);
absl::StatusOr<Reference> ReadReference(const std::string& folder);
// The same under tests/testdata/gguf/models: 48 tokens, logits of last positions, nothing else.
std::string GgufFixturePath(const std::string& folder);
absl::StatusOr<Reference> ReadGgufReference(const std::string& folder);

struct ReplayOptions {
  DType kv_dtype = DType::kF32;
  int threads = 1;
  std::uint32_t chunk = 16;     // most prompt tokens of one row in a step
  bool feed_reference = false;  // after the prompt feed the recorded tokens, else the sampled ones
  std::uint32_t seed = 1;       // of page ids, batch rows and the order of rows
  std::vector<std::size_t> only = {};  // indices of prompts; empty: all in one batch
  // Called once, when every prompt is cached and before anything is generated: one entry of the
  // lookup table is exchanged for a page of another sequence.
  bool swap_one_page = false;
  std::uint32_t generated = 64;  // tokens to sample, at most as many as the reference has
  bool logprobs = true;          // ask for log-probabilities of sampled and recorded tokens
  // When a sequence has sampled this many tokens its pages are forgotten, once, and prompt and
  // sampled tokens are computed again. 0: never.
  std::uint32_t preempt_at = 0;

  // LoadOptions::max_context_tokens; 0: what the longest of the prompts needs.
  std::uint32_t max_context_tokens = 0;
  // Called with the spec of the loaded model, whose weights stay as they are.
  std::function<void(ModelSpec*)> edit_spec = nullptr;

  // On GPU 0, or that of `comm`, through CudaRunner; what `threads` says is the host's part then.
  bool cuda = false;
  // What the device is taken for, at most what it is: 80 chooses the portable kernels on 9.0 too.
  // 0: what it is.
  std::int32_t compute_capability = 0;
  // Replays a rank's part of the model; every rank of the group replays the same on a thread of its
  // own. Null: the whole model.
  kernels::Communicator* comm = nullptr;
  DType activation = DType::kF32;
  Quantization quantization = Quantization::kAuto;
  bool fp8_activations = false;
  bool graphs = true;
  // Launches each step before the one before it is collected; not with feed_reference.
  bool overlap = false;
};

// What a replay did besides; graphs on a GPU.
struct ReplayCounters {
  std::uint64_t steps = 0;
  std::uint64_t released_pages = 0;  // that no window reached any more
  std::uint64_t graph_steps = 0;
  std::uint32_t graphs = 0;
};

struct ReplayedPrompt {
  std::vector<std::int32_t> sampled;  // ReplayOptions::generated tokens
  std::vector<float> logprobs;        // of sampled, or of the fed token; 0 unless asked for
  std::vector<std::vector<std::int32_t>> top_ids;  // 5 of each step
  std::vector<std::vector<float>> top_logprobs;
  std::vector<float> logits;  // as ReferencePrompt::logits
};

// All prompts, prefilled in chunks and continued in one batch over shuffled pages of 16 tokens,
// which go back as soon as no window reaches them and are handed out again. Pages that no sequence
// owns hold NaN.
absl::StatusOr<std::vector<ReplayedPrompt>> Replay(const formats::ModelFiles& files,
                                                   const Reference& reference,
                                                   const ReplayOptions& options,
                                                   ReplayCounters* counters = nullptr);

// Replay on a thread for each rank of a group, and what each of them gives. A rank that fails tells
// the others. The counters are those of rank 0.
using RankReplays = std::vector<absl::StatusOr<std::vector<ReplayedPrompt>>>;
RankReplays ReplayOnRanks(const formats::ModelFiles& files,
                          const std::vector<Reference>& references, const ReplayOptions& options,
                          const std::vector<kernels::Communicator*>& group,
                          ReplayCounters* counters = nullptr);

// Replay for models whose tables depend on the context: prompts that need at most `border` tokens
// and the others each by themselves.
absl::StatusOr<std::vector<ReplayedPrompt>> ReplayByContext(const formats::ModelFiles& files,
                                                            const Reference& reference,
                                                            const ReplayOptions& options,
                                                            std::uint32_t border);

// hidden states of one prompt, as ReferencePrompt::hidden.
absl::StatusOr<std::vector<float>> ReplayHidden(const formats::ModelFiles& files,
                                                const ReferencePrompt& prompt,
                                                const ReplayOptions& options);

// |a - b| / |b| in f64, and the largest difference.
struct Deviation {
  double relative = 0;
  double max_abs = 0;
};
Deviation Compare(const std::vector<float>& got, const std::vector<float>& want);
// The same over the logits of all prompts.
Deviation CompareLogits(const std::vector<ReplayedPrompt>& got, const Reference& want);
// Prompts whose sampled tokens are not all those of the reference.
std::size_t CountTokenMismatches(const std::vector<ReplayedPrompt>& got, const Reference& want);

// What float32 parity asks for.
inline constexpr double kMaxRelative = 2e-5;
inline constexpr double kMaxAbsolute = 2e-3;
bool Passes(const std::vector<ReplayedPrompt>& got, const Reference& want);

}  // namespace quire::models::parity

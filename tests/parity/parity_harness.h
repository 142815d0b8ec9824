#pragma once

// Runs a model fixture through CpuRunner or CudaRunner and compares with its recorded reference.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "formats/model_files.h"
#include "kernels/backend/backend.h"
#include "kernels/comm/communicator.h"
#include "models/blocks/layer_groups.h"
#include "models/config/layer_spec.h"
#include "models/weights/quantization.h"
#include "models/weights/weights.h"

namespace quire::models::parity {

struct ReferencePrompt {
  std::string id;  // "p04"
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> greedy;                 // 64 tokens, or 48 in GGUF fixtures
  std::vector<float> greedy_logprobs;               // one per greedy token
  std::vector<std::vector<std::int32_t>> top5_ids;  // of the first steps, best first
  std::vector<std::vector<float>> top5_logprobs;
  bool all_positions = false;  // logits of every position, otherwise only of the last one
  std::vector<float> logits;   // [positions, vocab]
  std::vector<float> hidden;   // [layers + 2, tokens, hidden], or empty
};

struct Reference {
  std::vector<ReferencePrompt> prompts;
  std::uint32_t vocab_size = 0;
  std::uint32_t num_layers = 0;  // of the hidden states, or 0 without them
  double bf16_cache_error = 0;   // relative error of a correct engine with such pages
  double bf16_cache_max_abs = 0;
  double half_error = 0;  // relative error of half precision throughout
  std::int64_t num_parameters = 0;
};

// `folder` is a name under tests/testdata/models.
std::string FixturePath(const std::string& folder);
absl::StatusOr<Reference> ReadReference(const std::string& folder);
// Reads a reference under tests/testdata/gguf/models: 48 tokens and logits of last positions only.
std::string GgufFixturePath(const std::string& folder);
absl::StatusOr<Reference> ReadGgufReference(const std::string& folder);

struct ReplayOptions {
  DType kv_dtype = DType::kF32;
  int threads = 1;
  std::uint32_t chunk = 16;  // maximum number of prompt tokens of one row in a step
  // After the prompt feeds the recorded tokens, otherwise the sampled ones.
  bool feed_reference = false;
  std::uint32_t seed = 1;              // of page ids, batch rows and the order of rows
  std::vector<std::size_t> only = {};  // indices of prompts; empty means all in one batch
  // Called once, when every prompt is cached and nothing is generated yet. Replaces one entry of
  // the lookup table by a page of another sequence.
  bool swap_one_page = false;
  std::uint32_t generated = 64;  // number of tokens to sample, at most as many as the reference has
  bool logprobs = true;          // request log-probabilities of sampled and recorded tokens
  // When a sequence has sampled this many tokens, its pages are dropped once, and prompt and
  // sampled tokens are recomputed. 0 means never.
  std::uint32_t preempt_at = 0;

  // LoadOptions::max_context_tokens. 0 means the need of the longest prompt.
  std::uint32_t max_context_tokens = 0;
  // Called with the spec of the loaded model. The weights do not change.
  std::function<void(ModelSpec*)> edit_spec = nullptr;
  // Called with the layers of the loaded model.
  std::function<void(std::span<LayerWeights>)> edit_weights = nullptr;

  // Called before each step with the state slot of each row that has cached tokens.
  std::function<void(const ModelSpec&, const LayerGroups&, std::span<float> slot)> edit_state =
      nullptr;

  // Runs on GPU 0, or on that of `comm`, through CudaRunner. `threads` then applies to the host's
  // part.
  bool cuda = false;
  // Compute capability to assume, at most the real one. 80 selects the portable kernels on 9.0 too.
  // 0 means the real one.
  std::int32_t compute_capability = 0;
  // Replays a rank's part of the model. Every rank of the group replays the same on its own thread.
  // Null means the whole model.
  kernels::Communicator* comm = nullptr;
  DType activation = DType::kF32;
  kernels::CpuActivations cpu_activations = kernels::CpuActivations::kInt8;
  Quantization quantization = Quantization::kAuto;
  bool fp8_activations = false;
  bool graphs = true;
  // Launches each step before the previous one is collected. Not supported with feed_reference.
  bool overlap = false;
};

// Other counts of a replay. Graphs exist on GPUs only.
struct ReplayCounters {
  std::uint64_t steps = 0;
  std::uint64_t released_pages = 0;  // that no window reached any more
  std::uint64_t graph_steps = 0;
  std::uint32_t graphs = 0;
};

struct ReplayedPrompt {
  std::vector<std::int32_t> sampled;               // ReplayOptions::generated tokens
  std::vector<float> logprobs;                     // of sampled or fed tokens; 0 unless requested
  std::vector<std::vector<std::int32_t>> top_ids;  // the best 5 of each step
  std::vector<std::vector<float>> top_logprobs;
  std::vector<float> logits;  // as ReferencePrompt::logits
};

// Prefills all prompts in chunks and continues them in one batch over shuffled pages of 16 tokens.
// A page is released as soon as no window reaches it, and reused. Pages that no sequence owns are
// NaN. Every other row writes its recurrent states to another slot than it reads.
absl::StatusOr<std::vector<ReplayedPrompt>> Replay(const formats::ModelFiles& files,
                                                   const Reference& reference,
                                                   const ReplayOptions& options,
                                                   ReplayCounters* counters = nullptr);

// Replays on one thread per rank of a group and returns the result of each. A failing rank notifies
// the others. The counters are those of rank 0.
using RankReplays = std::vector<absl::StatusOr<std::vector<ReplayedPrompt>>>;
RankReplays ReplayOnRanks(const formats::ModelFiles& files,
                          const std::vector<Reference>& references, const ReplayOptions& options,
                          const std::vector<kernels::Communicator*>& group,
                          ReplayCounters* counters = nullptr);

// Replay for models whose tables depend on the context. Prompts of at most `border` tokens and the
// others are replayed separately.
absl::StatusOr<std::vector<ReplayedPrompt>> ReplayByContext(const formats::ModelFiles& files,
                                                            const Reference& reference,
                                                            const ReplayOptions& options,
                                                            std::uint32_t border);

// Returns the hidden states of one prompt, as ReferencePrompt::hidden.
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
// The deviation of the logits, divided by the recorded one of a computation in double that rounds x
// and weights of every matrix product to bf16, and with DType::kBF16 also pages, queries and
// attention weights. For bf16 pages max_abs is not recorded and 0. `name` is a folder under
// tests/testdata, such as "models/qwen2-bf16".
absl::StatusOr<Deviation> Bf16ErrorRatio(const std::vector<ReplayedPrompt>& got,
                                         const Reference& want, const std::string& name,
                                         DType pages = DType::kF32);
// Number of prompts whose sampled tokens differ from the reference.
std::size_t CountTokenMismatches(const std::vector<ReplayedPrompt>& got, const Reference& want);

// Returns whether the result satisfies float32 parity.
inline constexpr double kMaxRelative = 2e-5;
inline constexpr double kMaxAbsolute = 2e-3;
bool Passes(const std::vector<ReplayedPrompt>& got, const Reference& want);

}  // namespace quire::models::parity

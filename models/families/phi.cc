#include "models/families/phi.h"

#include "absl/status/statusor.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"Phi3ForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"phi3"};
constexpr absl::string_view kKeys[] = {"partial_rotary_factor", "sliding_window"};
constexpr TensorNames kNames{.qkv = "self_attn.qkv_proj", .gate_up = "mlp.gate_up_proj"};

constexpr absl::string_view kGgufKeys[] = {"attention.sliding_window", "rope.scaling.attn_factor"};
constexpr TensorNames GgufNames() {
  TensorNames names = kGgufNames;
  names.qkv = "attn_qkv";
  names.gate_up = "ffn_up";
  return names;
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  return PreNormSpec(config, Phi3Family());
}

}  // namespace

std::optional<std::uint32_t> Phi3GgufWindow(std::uint32_t context_length,
                                            std::uint32_t block_count) {
  constexpr std::uint32_t kShortContext = 4096, kLongContext = 131072;
  constexpr std::uint32_t kShortWindow = 2047;
  // Models with long context have windows that are at least as long as the context.
  if (context_length == kLongContext) return 0;
  const bool is_published = block_count == 32 || block_count == 40;
  if (context_length == kShortContext && is_published) return kShortWindow;
  return std::nullopt;
}

const Family& Phi3Family() {
  static const Family kFamily{.name = "phi3",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = {.rms_norm_eps = 1e-5, .max_position_embeddings = 4096},
                              .keys = kKeys,
                              .windows = WindowRule::kAll,
                              .has_old_longrope_names = true,
                              .names = kNames,
                              .gguf_architecture = "phi3",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models

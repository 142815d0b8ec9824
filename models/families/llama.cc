// Llama 2 and 3.x, and models published with the Llama architecture: Yi, SmolLM 1 and 2, Vicuna,
// TinyLlama.
//
// RMS pre-norms, grouped-query attention, optional biases on all four projections (attention_bias)
// and on the MLP (mlp_bias), gated SiLU, half-split rope over the whole head. Source:
// modeling_llama.py of Hugging Face transformers.

#include "absl/status/statusor.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"LlamaForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"llama"};
constexpr absl::string_view kKeys[] = {"attention_bias", "mlp_bias"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  return PreNormSpec(config, LlamaFamily());
}

}  // namespace

const Family& LlamaFamily() {
  static const Family kFamily{.name = "llama",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .keys = kKeys,
                              .gguf_architecture = "llama",
                              .gguf_names = kGgufNames,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models

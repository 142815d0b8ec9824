#include "models/families/llama.h"

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
                              .defaults = {},
                              .keys = kKeys,
                              .names = {},
                              .gguf_architecture = "llama",
                              .gguf_names = kGgufNames,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models

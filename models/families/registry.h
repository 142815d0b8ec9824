#pragma once

// The supported families of models. docs/adding_a_model.md explains how to add one.

#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "models/config/family.h"

namespace quire::models {

// The families, in the order of the documentation. Each is defined in a .cc file of this folder.
// A family with Vision in its name is the text part of models with vision or audio towers. The
// towers are ignored, so image and audio input is not supported.
const Family& LlamaFamily();
const Family& MistralFamily();
const Family& Qwen2Family();
const Family& Qwen3Family();
const Family& SmolLm3Family();
const Family& GraniteFamily();
const Family& Gemma2Family();
const Family& Gemma3Family();
const Family& Gemma3VisionFamily();
const Family& Phi3Family();
const Family& Olmo2Family();
const Family& MixtralFamily();
const Family& Qwen3MoeFamily();
const Family& GptOssFamily();
const Family& DeepseekV2Family();
const Family& DeepseekV3Family();
const Family& Glm4MoeFamily();
const Family& Glm4MoeLiteFamily();
const Family& MiniMaxM2Family();
const Family& Olmo3Family();
const Family& Qwen3NextFamily();
const Family& Qwen35Family();
const Family& Qwen35MoeFamily();
const Family& Qwen35VisionFamily();
const Family& Qwen35MoeVisionFamily();
const Family& Llama4Family();
const Family& Llama4VisionFamily();
const Family& DeepseekV32Family();
const Family& GlmMoeDsaFamily();
const Family& GraniteHybridFamily();
const Family& NemotronHFamily();
const Family& Lfm2Family();
const Family& KimiLinearFamily();
const Family& Gemma4Family();
const Family& Gemma4VisionFamily();

// Returns all families, in the same order.
std::span<const Family* const> AllFamilies();
// Both return null if no family has the name.
const Family* FindFamilyByArchitecture(absl::string_view architecture);
const Family* FindFamilyByModelType(absl::string_view model_type);
// Properties of a GGUF file that tell families with the same architecture apart.
struct GgufTraits {
  bool has_experts = false;
  bool has_windows = false;
  bool has_choice_bias = false;  // the router adds a bias to the scores, only to choose experts
};
// Returns null if no family has the architecture.
const Family* FindFamilyByGgufArchitecture(absl::string_view architecture,
                                           const GgufTraits& traits);
// Returns the family that ModelConfig::family names. REQUIRES: the family exists.
const Family& FamilyNamed(absl::string_view name);
// Returns the tensor names in the model's weight files: those of Hugging Face or of GGUF.
const TensorNames& TensorNamesOf(const ModelConfig& config);
// Lists for messages: "LlamaForCausalLM, ...".
std::string SupportedArchitectures();
std::string SupportedModelTypes();
std::string SupportedGgufArchitectures();

}  // namespace quire::models

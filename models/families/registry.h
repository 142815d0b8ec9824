#pragma once

// The supported families of models. A family is an entry of this registry and a file in this
// folder. docs/adding_a_model.md explains how to add one.

#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "models/config/family.h"

namespace quire::models {

// Returns all families, in the order of the documentation.
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
// Returns the family with this ModelConfig::family. REQUIRES: the family exists.
const Family& FamilyNamed(absl::string_view name);
// Returns the tensor names of the files that the configuration was read from.
const TensorNames& TensorNamesOf(const ModelConfig& config);
// Lists for messages: "LlamaForCausalLM, ...".
std::string SupportedArchitectures();
std::string SupportedModelTypes();
std::string SupportedGgufArchitectures();

}  // namespace quire::models

#pragma once

// Which families of models this version knows: everything that is special to one is an entry here
// and a file beside this one. docs/adding_a_model.md walks through a new entry.

#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "models/config/family.h"

namespace quire::models {

// All families, in the order of the documentation.
std::span<const Family* const> AllFamilies();
// Null when no family has it.
const Family* FindFamilyByArchitecture(absl::string_view architecture);
const Family* FindFamilyByModelType(absl::string_view model_type);
// Of two families with one GGUF architecture the one that has experts, or has none.
const Family* FindFamilyByGgufArchitecture(absl::string_view architecture, bool has_experts);
// By ModelConfig::family. REQUIRES: the family exists.
const Family& FamilyNamed(absl::string_view name);
// Names of the tensors in the files that a configuration comes from.
const TensorNames& TensorNamesOf(const ModelConfig& config);
// "LlamaForCausalLM, ...", for messages.
std::string SupportedArchitectures();
std::string SupportedModelTypes();
std::string SupportedGgufArchitectures();

}  // namespace quire::models

#include "models/families/registry.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/check.h"

namespace quire::models {
namespace {

bool Contains(std::span<const absl::string_view> names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::span<const Family* const> AllFamilies() {
  static const Family* const kFamilies[] = {&LlamaFamily(),           &MistralFamily(),
                                            &Qwen2Family(),           &Qwen3Family(),
                                            &SmolLm3Family(),         &GraniteFamily(),
                                            &Gemma2Family(),          &Gemma3Family(),
                                            &Gemma3VisionFamily(),    &Phi3Family(),
                                            &Olmo2Family(),           &MixtralFamily(),
                                            &Qwen3MoeFamily(),        &GptOssFamily(),
                                            &DeepseekV2Family(),      &DeepseekV3Family(),
                                            &Glm4MoeFamily(),         &Glm4MoeLiteFamily(),
                                            &MiniMaxM2Family(),       &Olmo3Family(),
                                            &Qwen3NextFamily(),       &Qwen35Family(),
                                            &Qwen35MoeFamily(),       &Qwen35VisionFamily(),
                                            &Qwen35MoeVisionFamily(), &Llama4Family(),
                                            &Llama4VisionFamily(),    &DeepseekV32Family(),
                                            &GlmMoeDsaFamily(),       &GraniteHybridFamily(),
                                            &NemotronHFamily(),       &Lfm2Family(),
                                            &KimiLinearFamily(),      &Gemma4Family(),
                                            &Gemma4VisionFamily()};
  return kFamilies;
}

const Family* FindFamilyByArchitecture(absl::string_view architecture) {
  for (const Family* family : AllFamilies()) {
    if (Contains(family->architectures, architecture)) return family;
  }
  return nullptr;
}

const Family* FindFamilyByModelType(absl::string_view model_type) {
  for (const Family* family : AllFamilies()) {
    if (Contains(family->model_types, model_type)) return family;
  }
  return nullptr;
}

const Family* FindFamilyByGgufArchitecture(absl::string_view architecture,
                                           const GgufTraits& traits) {
  std::vector<const Family*> found;
  for (const Family* family : AllFamilies()) {
    const bool is_named =
        family->gguf_architecture == architecture || family->gguf_moe_architecture == architecture;
    if (!architecture.empty() && is_named) found.push_back(family);
  }
  const auto keep = [&](auto&& matches) {
    std::vector<const Family*> matching;
    std::copy_if(found.begin(), found.end(), std::back_inserter(matching), matches);
    if (!matching.empty()) found = std::move(matching);
  };
  keep([&](const Family* family) {
    return (family->defaults.num_experts > 0) == traits.has_experts;
  });
  keep([&](const Family* family) {
    return (family->windows != WindowRule::kNone) == traits.has_windows;
  });
  keep([&](const Family* family) {
    return !family->gguf_names.choice_bias.empty() == traits.has_choice_bias;
  });
  return found.empty() ? nullptr : found.front();
}

const Family& FamilyNamed(absl::string_view name) {
  const Family* found = nullptr;
  for (const Family* family : AllFamilies()) {
    if (family->name == name) found = family;
  }
  QUIRE_CHECK(found != nullptr);
  return *found;
}

const TensorNames& TensorNamesOf(const ModelConfig& config) {
  const Family& family = FamilyNamed(config.family);
  return config.is_gguf ? family.gguf_names : family.names;
}

std::string SupportedArchitectures() {
  std::vector<absl::string_view> names;
  for (const Family* family : AllFamilies()) {
    names.insert(names.end(), family->architectures.begin(), family->architectures.end());
  }
  return absl::StrJoin(names, ", ");
}

std::string SupportedModelTypes() {
  std::vector<absl::string_view> names;
  for (const Family* family : AllFamilies()) {
    names.insert(names.end(), family->model_types.begin(), family->model_types.end());
  }
  return absl::StrJoin(names, ", ");
}

std::string SupportedGgufArchitectures() {
  std::vector<absl::string_view> names;
  for (const Family* family : AllFamilies()) {
    for (const absl::string_view name :
         {family->gguf_architecture, family->gguf_moe_architecture}) {
      if (!name.empty() && !Contains(names, name)) names.push_back(name);
    }
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace quire::models

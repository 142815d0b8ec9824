#include "tests/parity/format_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "formats/tensors/safetensors.h"
#include "tests/testing/paths.h"

namespace quire::models::parity {

using nlohmann::json;

std::string ReadFormatFile(const std::string& name) {
  std::ifstream stream(paths::TestData(absl::StrCat("formats/models/", name)), std::ios::binary);
  EXPECT_TRUE(stream.good()) << name;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

namespace {

std::vector<double> LogProbabilities(const float* logits, std::size_t vocab) {
  double most = logits[0], sum = 0;
  for (std::size_t i = 0; i < vocab; ++i) most = std::max(most, double{logits[i]});
  for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - most);
  std::vector<double> result(vocab);
  for (std::size_t i = 0; i < vocab; ++i) result[i] = logits[i] - most - std::log(sum);
  return result;
}

}  // namespace

FormatModel::FormatModel(const std::string& name, const std::string& more,
                         const std::string& more_tensor) {
  index_ = json::parse(ReadFormatFile("index.json"));
  json config = json::parse(ReadFormatFile("config.json"));
  config["quantization_config"] = index_["formats"][name];
  Add("config.json", config.dump());
  Add("base.safetensors", ReadFormatFile("base.safetensors"));
  Add("matrices.safetensors", ReadFormatFile(name + ".safetensors"));
  json map;
  for (std::size_t i = 1; i <= 2; ++i) {
    const auto tensors = formats::ReadSafetensors(BytesOf(files_[i].second), "");
    EXPECT_TRUE(tensors.ok());
    for (const formats::StoredTensor& tensor : *tensors) map[tensor.name] = files_[i].first;
  }
  if (!more.empty()) {
    map[more_tensor] = "more.safetensors";
    Add("more.safetensors", more);
  }
  Add("model.safetensors.index.json", json{{"weight_map", map}}.dump());
  ReadReference(name);
}

formats::ModelFiles FormatModel::Files() const {
  std::vector<formats::ModelFiles::MemoryFile> files;
  for (const auto& [name, text] : files_) files.push_back({name, BytesOf(text)});
  return formats::ModelFiles::FromMemory("made", std::move(files));
}

void FormatModel::ReadReference(const std::string& name) {
  const std::string file = ReadFormatFile("reference.safetensors");
  const auto tensors = formats::ReadSafetensors(BytesOf(file), "reference");
  ASSERT_TRUE(tensors.ok());
  for (const formats::StoredTensor& tensor : *tensors) {
    Reference* const to = tensor.name == name + ".logits"           ? &reference_
                          : tensor.name == name + ".rounded.logits" ? &rounded_
                          : tensor.name == "original.logits"        ? &original_
                                                                    : nullptr;
    if (to == nullptr) continue;
    to->vocab_size = static_cast<std::uint32_t>(tensor.shape[1]);
    for (std::size_t i = 0; i < index_["prompts"].size(); ++i) {
      ReferencePrompt prompt;
      prompt.id = absl::StrCat("p", i);
      prompt.tokens = index_["prompts"][i].get<std::vector<std::int32_t>>();
      prompt.greedy = {0};
      prompt.logits.resize(to->vocab_size);
      std::memcpy(prompt.logits.data(), tensor.bytes.data() + i * to->vocab_size * sizeof(float),
                  to->vocab_size * sizeof(float));
      to->prompts.push_back(std::move(prompt));
    }
  }
  ASSERT_EQ(reference_.prompts.size(), 8u);
  ASSERT_EQ(original_.prompts.size(), 8u);
}

double Divergence(const std::vector<ReplayedPrompt>& got, const Reference& want) {
  double sum = 0;
  for (std::size_t p = 0; p < got.size(); ++p) {
    const auto exact = LogProbabilities(want.prompts[p].logits.data(), want.vocab_size);
    const auto other = LogProbabilities(got[p].logits.data(), want.vocab_size);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      sum += std::exp(exact[i]) * (exact[i] - other[i]);
    }
  }
  return sum / static_cast<double>(got.size());
}

}  // namespace quire::models::parity

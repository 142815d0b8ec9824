// Fuzzes the sentence-transformers files of a model: modules.json, 1_Pooling/config.json,
// sentence_bert_config.json and config_sentence_transformers.json, separated by NUL.

#include <utility>
#include <vector>

#include "formats/model_files.h"
#include "models/config/pooling_config.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr const char* kNames[] = {"modules.json", "1_Pooling/config.json",
                                    "sentence_bert_config.json",
                                    "config_sentence_transformers.json"};
  constexpr std::uint32_t kHidden = 64;
  constexpr std::uint32_t kVocab = 320;
  absl::string_view rest = quire::fuzz::AsText(data, size);
  std::vector<quire::formats::ModelFiles::MemoryFile> files;
  for (const char* name : kNames) {
    const absl::string_view text = quire::fuzz::TakePart(&rest, '\0');
    if (text.empty()) continue;
    files.push_back({name, {reinterpret_cast<const std::byte*>(text.data()), text.size()}});
  }
  const auto config = quire::models::ReadPoolingConfig(
      quire::formats::ModelFiles::FromMemory("fuzz", std::move(files)), kHidden, kVocab);
  if (!config.ok()) {
    // Every rejection starts with a file's name.
    QUIRE_CHECK(config.status().message().substr(0, 5) == "fuzz/");
    return 0;
  }
  if (config->logit_score) {
    QUIRE_CHECK(config->logit_score->true_token_id >= 0 &&
                config->logit_score->true_token_id < static_cast<std::int32_t>(kVocab));
  }
  return 0;
}

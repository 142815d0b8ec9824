#pragma once

// The post-processor of tokenizer.json: the tokens around a text.
//
// Place:      last stage of encoding, when special tokens are wanted.
// Invariants: ids are in the vocabulary.
// Threads:    immutable.
// Source:     huggingface/tokenizers 0.23, `processors`; only the template for one text is used.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/json_value.h"

namespace quire::text {

class PostProcessor {
 public:
  // One element of the template: the text, or tokens.
  struct Item {
    bool is_text;
    std::vector<std::int32_t> ids;
  };

  // `config` is the value of "post_processor" (null: nothing is added). `is_known` says whether the
  // tokenizer has an id.
  static absl::StatusOr<PostProcessor> FromJson(const formats::JsonValue& config,
                                                const std::function<bool(std::int32_t)>& is_known);

  // The text between tokens.
  static PostProcessor Around(std::vector<std::int32_t> before, std::vector<std::int32_t> after);

  // In order of output; without a template just the text.
  const std::vector<Item>& items() const { return items_; }

 private:
  using SpecialTokens = absl::flat_hash_map<std::string, std::vector<std::int32_t>>;

  absl::Status AddStep(const formats::JsonValue& config,
                       const std::function<bool(std::int32_t)>& is_known);
  absl::Status AddTemplate(const formats::JsonValue& config,
                           const std::function<bool(std::int32_t)>& is_known);
  // Checks `key` (single or pair) and returns its items.
  static absl::StatusOr<std::vector<Item>> ReadTemplate(const formats::JsonValue& config,
                                                        absl::string_view key,
                                                        const SpecialTokens& special);

  std::vector<Item> items_ = {{true, {}}};
  bool has_template_ = false;
};

}  // namespace quire::text

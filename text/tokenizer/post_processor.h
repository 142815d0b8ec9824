#pragma once

// The post-processor of tokenizer.json, which adds tokens around a text.
//
// Place:      last stage of encoding, if special tokens are requested.
// Invariants: all ids are in the vocabulary.
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

  // `config` is the value of "post_processor" (null: adds nothing). `is_known` returns whether the
  // tokenizer has an id.
  static absl::StatusOr<PostProcessor> FromJson(const formats::JsonValue& config,
                                                const std::function<bool(std::int32_t)>& is_known);

  // Adds `before` and `after` around the text.
  static PostProcessor Around(std::vector<std::int32_t> before, std::vector<std::int32_t> after);

  // The template in output order. If nothing is added, the only item is the text.
  const std::vector<Item>& items() const { return items_; }

 private:
  using SpecialTokens = absl::flat_hash_map<std::string, std::vector<std::int32_t>>;

  absl::Status AddStep(const formats::JsonValue& config,
                       const std::function<bool(std::int32_t)>& is_known);
  absl::Status AddTemplate(const formats::JsonValue& config,
                           const std::function<bool(std::int32_t)>& is_known);
  // Validates the template under `key`, "single" or "pair", and returns its items.
  static absl::StatusOr<std::vector<Item>> ReadTemplate(const formats::JsonValue& config,
                                                        absl::string_view key,
                                                        const SpecialTokens& special);

  std::vector<Item> items_ = {{true, {}}};
  bool has_template_ = false;
};

}  // namespace quire::text

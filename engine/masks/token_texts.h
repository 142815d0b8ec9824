#pragma once

// The bytes of every token of a vocabulary, and an index of the tokens by their first byte.
//
// Place:      created for an engine when the first request needs it, and shared by its requests.
// Threads:    immutable: any.
// Lifetime:   shared.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

class TokenTexts {
 public:
  // `texts` is indexed by id; tokens without text have empty strings.
  explicit TokenTexts(const std::vector<std::string>& texts);
  // Contains the texts of the ids below `vocab_size`. Special tokens have no text, because output
  // that omits them joins the text before and after them.
  TokenTexts(const text::Tokenizer& tokenizer, std::int32_t vocab_size);

  absl::string_view TextOf(std::int32_t token) const {
    const auto at = static_cast<std::size_t>(token);
    return absl::string_view(bytes_).substr(begins_[at], begins_[at + 1] - begins_[at]);
  }
  // Returns the tokens whose text begins with `byte`.
  std::span<const std::int32_t> TokensBeginningWith(std::uint8_t byte) const {
    return std::span(by_first_).subspan(first_begins_[byte],
                                        first_begins_[byte + 1u] - first_begins_[byte]);
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(begins_.size() - 1); }

 private:
  void Index();

  std::string bytes_;
  std::vector<std::uint32_t> begins_{0};  // [size + 1]
  std::vector<std::int32_t> by_first_;
  std::vector<std::uint32_t> first_begins_;  // [257]
};

}  // namespace quire::engine

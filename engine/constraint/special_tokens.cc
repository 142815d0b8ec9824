#include "engine/constraint/special_tokens.h"

#include <algorithm>

namespace quire::engine {

SpecialTokens::SpecialTokens(const std::vector<std::pair<std::string, std::int32_t>>& tokens) {
  for (const auto& [text, id] : tokens) {
    ids_.emplace(text, id);
    max_text_bytes_ = std::max(max_text_bytes_, text.size());
  }
}

std::optional<std::pair<std::size_t, std::int32_t>> SpecialTokens::FindAtStart(
    absl::string_view text) const {
  for (std::size_t size = std::min(max_text_bytes_, text.size()); size > 0; --size) {
    const auto found = ids_.find(text.substr(0, size));
    if (found != ids_.end()) return std::pair(size, found->second);
  }
  return std::nullopt;
}

GrammarText::Expression SpecialTokens::Write(absl::string_view text) const {
  std::vector<GrammarText::Expression> parts;
  std::size_t plain = 0;  // bytes at the start of `text` that contain no special token
  while (plain < text.size()) {
    const auto token = FindAtStart(text.substr(plain));
    if (!token) {
      ++plain;
      continue;
    }
    if (plain > 0) parts.push_back(GrammarText::Literal(text.substr(0, plain)));
    parts.push_back(GrammarText::Token(token->second));
    text.remove_prefix(plain + token->first);
    plain = 0;
  }
  if (plain > 0) parts.push_back(GrammarText::Literal(text));
  return GrammarText::Sequence(parts);
}

}  // namespace quire::engine

#include "engine/masks/token_texts.h"

namespace quire::engine {

TokenTexts::TokenTexts(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    bytes_ += text;
    begins_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
  Index();
}

TokenTexts::TokenTexts(const text::Tokenizer& tokenizer, std::int32_t vocab_size) {
  for (std::int32_t id = 0; id < vocab_size; ++id) {
    if (!tokenizer.IsSpecial(id)) bytes_ += tokenizer.TokenBytes(id);
    begins_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
  Index();
}

void TokenTexts::Index() {
  constexpr std::size_t kBytes = 256;
  std::vector<std::vector<std::int32_t>> groups(kBytes);
  for (std::uint32_t id = 0; id < size(); ++id) {
    const auto token = static_cast<std::int32_t>(id);
    const absl::string_view text = TextOf(token);
    if (!text.empty()) groups[static_cast<std::uint8_t>(text[0])].push_back(token);
  }
  for (const std::vector<std::int32_t>& group : groups) {
    first_begins_.push_back(static_cast<std::uint32_t>(by_first_.size()));
    by_first_.insert(by_first_.end(), group.begin(), group.end());
  }
  first_begins_.push_back(static_cast<std::uint32_t>(by_first_.size()));
}

}  // namespace quire::engine

#include "engine/masks/banned_text.h"

#include <utility>

#include "base/check.h"
#include "engine/constraint/constraint.h"

namespace quire::engine {
namespace {

constexpr int kBytes = 256;

std::uint32_t& WordOf(std::span<std::uint32_t> words, std::int32_t token) {
  return words[static_cast<std::size_t>(token) / 32];
}

std::uint32_t BitOf(std::int32_t token) {
  return 1u << (static_cast<std::uint32_t>(token) % 32);
}

}  // namespace

BannedText::BannedText(const std::vector<std::string>& strings,
                       std::shared_ptr<const TokenTexts> tokens)
    : automaton_(strings),
      tokens_(std::move(tokens)),
      excluded_at_start_(MaskWords(tokens_->size())) {
  for (std::uint32_t id = 0; id < tokens_->size(); ++id) {
    const auto token = static_cast<std::int32_t>(id);
    if (Completes(kStart, tokens_->TextOf(token))) {
      WordOf(excluded_at_start_, token) |= BitOf(token);
    }
  }
}

// In a state other than kStart, only finds strings that begin before `text`.
bool BannedText::Completes(std::int32_t state, absl::string_view text) const {
  const bool is_start = state == kStart;
  for (std::size_t i = 0; i < text.size(); ++i) {
    state = automaton_.Next(state, static_cast<std::uint8_t>(text[i]));
    if (automaton_.match(state) >= 0) return true;
    if (!is_start && static_cast<std::size_t>(automaton_.depth(state)) <= i + 1) return false;
  }
  return false;
}

std::int32_t BannedText::Next(std::int32_t state, std::int32_t token) const {
  for (const char c : tokens_->TextOf(token)) {
    state = automaton_.Next(state, static_cast<std::uint8_t>(c));
  }
  return state;
}

// excluded_at_start_ has the tokens that contain a banned string. A string that began in an earlier
// token can only be completed by a token whose first byte continues that string.
void BannedText::Exclude(std::int32_t state, std::span<std::uint32_t> words) const {
  QUIRE_CHECK(words.size() == excluded_at_start_.size());
  for (std::size_t i = 0; i < words.size(); ++i) words[i] &= ~excluded_at_start_[i];
  if (state == kStart) return;
  for (int byte = 0; byte < kBytes; ++byte) {
    const auto first = static_cast<std::uint8_t>(byte);
    const std::int32_t next = automaton_.Next(state, first);
    if (automaton_.depth(next) <= 1) continue;
    for (const std::int32_t token : tokens_->TokensBeginningWith(first)) {
      if (Completes(state, tokens_->TextOf(token))) WordOf(words, token) &= ~BitOf(token);
    }
  }
}

}  // namespace quire::engine

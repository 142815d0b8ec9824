#include "text/detokenizer.h"

#include "absl/strings/match.h"

namespace quire::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::function<bool(absl::string_view)> shows_special)
    : stream_(tokenizer.decoder(), skip_special_tokens, std::move(shows_special)) {}

DetokenizerState Detokenizer::StateAfter(const Tokenizer& tokenizer, bool skip_special_tokens,
                                         std::span<const std::int32_t> prompt) {
  Detokenizer detokenizer(tokenizer, skip_special_tokens);
  for (const std::int32_t id : prompt) detokenizer.Push(id);
  DetokenizerState state{.decoder = detokenizer.stream_.state(), .repairer = detokenizer.repairer_};
  state.emits_replacement = !state.is_cut();
  return state;
}

DetokenizerState Detokenizer::Verbatim() {
  return {.decoder = DecoderState::Verbatim()};
}

void Detokenizer::Begin(DetokenizerState state) {
  stream_.Resume(std::move(state.decoder));
  repairer_ = state.repairer;
  emits_replacement_ = state.emits_replacement;
}

std::string Detokenizer::Push(std::int32_t id) {
  std::string bytes;
  stream_.Push(id, bytes);
  return Repair(bytes, /*is_last=*/false);
}

std::string Detokenizer::Finish() {
  std::string bytes;
  stream_.Finish(bytes);
  return Repair(bytes, /*is_last=*/true);
}

std::string Detokenizer::Repair(absl::string_view bytes, bool is_last) {
  std::string text;
  repairer_.Push(bytes, text);
  if (is_last) repairer_.Finish(text);
  if (emits_replacement_ || text.empty()) return text;
  emits_replacement_ = true;
  if (absl::StartsWith(text, kReplacementCharacter)) text.erase(0, kReplacementCharacter.size());
  return text;
}

}  // namespace quire::text

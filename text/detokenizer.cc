#include "text/detokenizer.h"

#include <utility>

namespace quire::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::function<bool(absl::string_view)> shows_special)
    : stream_(tokenizer.decoder(), skip_special_tokens, std::move(shows_special)) {}

std::string Detokenizer::Push(std::int32_t id) {
  std::string bytes;
  stream_.Push(id, bytes);
  std::string text;
  repairer_.Push(bytes, text);
  return text;
}

std::string Detokenizer::Finish() {
  std::string bytes;
  stream_.Finish(bytes);
  std::string text;
  repairer_.Push(bytes, text);
  repairer_.Finish(text);
  return text;
}

}  // namespace quire::text

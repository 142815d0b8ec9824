#pragma once

// Converts token ids to text, one id at a time. A character is returned as soon as its last byte is
// available.
//
// Place:      output workers, one per choice; before stop-string matching.
// Invariants: all returned text is UTF-8. Bytes that cannot become a character turn into U+FFFD at
//             once, one per maximal invalid part (Unicode 14, table 3-8). At most 3 bytes are
//             buffered. The joined results of Push and Finish equal Tokenizer::Decode of all ids,
//             except for special tokens that `shows_special` selects. After Begin with the state of
//             a prompt (StateAfter), the joined results equal Decode of prompt and ids, without the
//             text of the prompt.
// Threads:    one thread at a time.
// Lifetime:   the tokenizer must outlive it.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/utf8.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::text {

class Detokenizer {
 public:
  // DecoderStream explains the parameters.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
              std::function<bool(absl::string_view)> shows_special = {});

  // Returns the state after the text of `prompt`. If the prompt ends inside a character, the state
  // keeps the bytes of that character. The tokens that complete the character emit all of it. If
  // the next tokens do not complete the character, no U+FFFD is emitted for the character, because
  // this U+FFFD belongs to the prompt's text.
  static DetokenizerState StateAfter(const Tokenizer& tokenizer, bool skip_special_tokens,
                                     std::span<const std::int32_t> prompt);
  // Returns a state in which every token emits Tokenizer::TokenBytes, independent of its position.
  // The token masks of constrained decoding assume this text.
  static DetokenizerState Verbatim();

  // Starts at `state` instead of the start of a text. REQUIRES: nothing was pushed.
  void Begin(DetokenizerState state);

  // Returns the text that `id` completes, which may be empty. Returns an empty text for an id
  // without text (see Tokenizer::HasText).
  std::string Push(std::int32_t id);

  // Returns the remaining text: U+FFFD for an incomplete character, else nothing. Ends the
  // sequence.
  std::string Finish();

  // Returns 1 if the ids so far end inside a character that Push or Finish will emit, else 0.
  std::int64_t open_characters() const {
    return emits_replacement_ && repairer_.has_incomplete() ? 1 : 0;
  }

 private:
  std::string Repair(absl::string_view bytes, bool is_last);

  DecoderStream stream_;
  Utf8Repairer repairer_;
  // If false, a leading U+FFFD belongs to the prompt's text and is not emitted.
  bool emits_replacement_ = true;
};

}  // namespace quire::text

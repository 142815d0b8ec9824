#pragma once

// Token ids to text, one at a time: emits every character as soon as its last byte is there.
//
// Place:      output workers, one per choice; before stop-string matching.
// Invariants: everything returned is UTF-8. Bytes that cannot become a character turn into U+FFFD
//             at once, one per maximal invalid part (Unicode 14, table 3-8); at most 3 bytes wait.
//             Joined output of Push and Finish = Tokenizer::Decode of all ids,
//             but for special tokens that are shown. Behind a prompt it is Decode of the prompt and
//             the ids without Decode of the prompt; see Behind.
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
  // See DecoderStream.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
              std::function<bool(absl::string_view)> shows_special = {});

  // The state behind the text of `prompt`. The bytes of a character that the prompt cuts are kept:
  // tokens that complete it emit the whole character. Tokens that do not complete it emit nothing
  // for it, since its U+FFFD is the end of the prompt's text.
  static DetokenizerState StateAfter(const Tokenizer& tokenizer, bool skip_special_tokens,
                                     std::span<const std::int32_t> prompt);
  // Every token emits Tokenizer::TokenBytes, wherever it stands. This is the text that the masks of
  // a constrained answer are made for.
  static DetokenizerState Verbatim();

  // Begins at `state` instead of the start of a text. REQUIRES: nothing was pushed.
  void Begin(DetokenizerState state);

  // Text that `id` completes, may be empty. An id without text (Tokenizer::HasText) yields nothing.
  std::string Push(std::int32_t id);

  // What still waits: U+FFFD for a cut character, else nothing. Ends the sequence.
  std::string Finish();

  // 1 if the ids so far end inside a character that Push or Finish will emit, else 0.
  std::int64_t open_characters() const { return owns_cut_ && repairer_.is_waiting() ? 1 : 0; }

 private:
  std::string Repaired(absl::string_view bytes, bool is_last);

  DecoderStream stream_;
  Utf8Repairer repairer_;
  bool owns_cut_ = true;  // false: a U+FFFD that is emitted first is not part of the text
};

}  // namespace quire::text

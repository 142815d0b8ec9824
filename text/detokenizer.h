#pragma once

// Token ids to text, one at a time: emits every character as soon as its last byte is there.
//
// Place:      output workers, one per choice; before stop-string matching.
// Invariants: everything returned is UTF-8. Bytes that cannot become a character turn into U+FFFD
//             at once, one per maximal invalid part (Unicode 14, table 3-8); at most 3 bytes wait.
//             Joined output of Push and Finish = Tokenizer::Decode of all ids,
//             but for special tokens that are shown.
// Threads:    one thread at a time.
// Lifetime:   the tokenizer must outlive it.

#include <cstdint>
#include <functional>
#include <string>

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

  // Text that `id` completes, may be empty. An id without text (Tokenizer::HasText) yields nothing.
  std::string Push(std::int32_t id);

  // What still waits: U+FFFD for a cut character, else nothing. Ends the sequence.
  std::string Finish();

 private:
  DecoderStream stream_;
  Utf8Repairer repairer_;
};

}  // namespace quire::text

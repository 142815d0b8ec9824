#pragma once

// The decoding state between two tokens of a text, including the state of UTF-8 repair.
//
// Place:      next to the decoder. Carries the state at the end of a prompt to the detokenizers of
//             its choices.
// Threads:    a value type; one thread at a time per object.

#include <cstdint>
#include <limits>
#include <string>

#include "base/utf8.h"

namespace quire::text {

// The facts about the decoded text that affect the bytes of the next token. By default nothing has
// been decoded.
struct DecoderState {
  // Returns a state without the rules about the start of a text. Every token then produces its
  // Decoder::bytes.
  static DecoderState Verbatim() {
    return {.is_first = false,
            .is_verbatim = true,
            .stripped = std::numeric_limits<std::uint32_t>::max(),
            .strip_prefix = {}};
  }

  bool is_first = true;      // no token has been decoded
  bool is_verbatim = false;  // see Verbatim
  // Number of characters that Strip after Fuse has removed at the start. Stripping ends at the
  // maximum number. The first other character sets this number to the maximum.
  std::uint32_t stripped = 0;
  std::string strip_prefix;  // buffered first bytes of a character that may be stripped
};

// The state at which a Detokenizer begins; by default the start of a text.
struct DetokenizerState {
  // Returns whether the text so far ends inside a character.
  bool is_cut() const { return repairer.has_incomplete() || !decoder.strip_prefix.empty(); }

  DecoderState decoder = {};
  Utf8Repairer repairer = {};
  // Whether the U+FFFD of an incomplete character is emitted after this state. If false, the U+FFFD
  // belongs to the text before this state.
  bool emits_replacement = true;
};

}  // namespace quire::text

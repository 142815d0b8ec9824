#pragma once

// The state of a text between two of its tokens: of the decoder, and of the repair of its UTF-8.
//
// Place:      beside the decoder. Carries the end of a prompt to the detokenizers of its answers.
// Threads:    values.
// Lifetime:   values.

#include <cstdint>
#include <limits>
#include <string>

#include "base/utf8.h"

namespace quire::text {

// The part of a text that has been decoded, as far as the bytes of the next token depend on it. By
// default nothing has been decoded.
struct DecoderState {
  // Every token has Decoder::bytes, wherever it stands: the rules about the start of a text do not
  // apply.
  static DecoderState Verbatim() {
    return {.is_first = false,
            .is_verbatim = true,
            .stripped = std::numeric_limits<std::uint32_t>::max(),
            .strip_prefix = {}};
  }

  bool is_first = true;      // no token has been decoded
  bool is_verbatim = false;  // see Verbatim
  // Characters that Strip behind Fuse took; at least its limit once it is over.
  std::uint32_t stripped = 0;
  std::string strip_prefix;  // beginning of a character that may have to be stripped
};

// The place in a text at which a Detokenizer begins; by default the start of the text.
struct DetokenizerState {
  // The text so far ends inside a character.
  bool is_cut() const { return repairer.is_waiting() || !decoder.strip_prefix.empty(); }

  DecoderState decoder = {};
  Utf8Repairer repairer = {};
  // The U+FFFD of a character that is cut here is emitted behind this state. False: it belongs to
  // the text before.
  bool owns_cut = true;
};

}  // namespace quire::text

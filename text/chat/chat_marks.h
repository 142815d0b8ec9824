#pragma once

// Keeps the text of special tokens inside a conversation from becoming special: a mark on both
// sides of each goes through the template with the text, and says afterwards where it came to lie.
//
//   content "a<|end|>b" -> "aM<|end|>Nb" -> template -> "...aM<|end|>Nb..." -> text and range
//
// Place:      part of chat_template.h.
// Invariants: marks are two of the 32 noncharacters U+FDD0 to U+FDEF that the conversation does not
//             have, neither as they are nor escaped in its JSON. Text without special
//             tokens goes through unchanged. Where a template drops one mark of a pair, as many
//             bytes as the longest special token has stay literal at the other.
// Threads:    immutable.
// Lifetime:   the trie outlives it.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/chat_input.h"
#include "text/tokenizer/added_tokens.h"

namespace quire::text {

struct RenderedChat;  // chat_template.h

class ChatMarks {
 public:
  // `special` null: nothing is marked. INVALID_ARGUMENT when the conversation has all
  // noncharacters.
  static absl::StatusOr<ChatMarks> For(const ChatInput& chat, const StringTrie* special,
                                       std::size_t longest_special);

  std::string Mark(std::string text) const;
  RenderedChat Unmark(absl::string_view text) const;

 private:
  ChatMarks() = default;

  const StringTrie* special_ = nullptr;
  std::size_t longest_special_ = 0;
  std::string begin_, end_;
};

}  // namespace quire::text

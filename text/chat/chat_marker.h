#pragma once

// Prevents special-token text inside a conversation from becoming special tokens. Each occurrence
// is enclosed in two marker characters, which pass through the template and show where the text
// ends up.
//
//   content "a<|end|>b" -> "aM<|end|>Nb" -> template -> "...aM<|end|>Nb..." -> text and range
//
// Place:      part of chat_template.h.
// Invariants: the markers are two of the noncharacters U+FDD0 to U+FDEF that the conversation
//             contains neither directly nor as JSON escapes. Text without special tokens is
//             unchanged. If a template drops one marker of a pair, the text next to the other
//             marker is still tokenized as plain text, up to the length of the longest special
//             token.
// Threads:    immutable.
// Lifetime:   the trie `special` of Create must outlive it.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/chat_input.h"
#include "text/subword/prefix_trie.h"

namespace quire::text {

struct RenderedChat;  // chat_template.h

class ChatMarker {
 public:
  // `special` has the texts of the special tokens, of which the longest has `longest_special`
  // bytes. If `special` is null, no text is enclosed. Returns INVALID_ARGUMENT if the conversation
  // contains so many of the noncharacters that no two are left for the markers.
  static absl::StatusOr<ChatMarker> Create(const ChatInput& chat, const PrefixTrie* special,
                                           std::size_t longest_special);

  std::string Mark(std::string text) const;
  RenderedChat Unmark(absl::string_view text) const;

 private:
  ChatMarker() = default;

  const PrefixTrie* special_ = nullptr;
  std::size_t longest_special_ = 0;
  std::string begin_, end_;
};

}  // namespace quire::text

#pragma once

// Text that is being rewritten. Tracked text also has, for each byte, the range of the input from
// which the byte came.
//
// Place:      the value that normalizer and splitter pass on.
// Invariants: text() never exceeds its limit: an append that would exceed it is dropped, and
//             CheckSize() fails from then on. Code that rewrites a text must call CheckSize()
//             before it uses the result. If the text is tracked, spans().size() == text().size(),
//             and all bytes of a character have the span of the input characters that this
//             character represents.
// Threads:    a value type; one thread at a time per object.
// Source:     NormalizedString of huggingface/tokenizers 0.23.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quire::text {

// Bytes [begin, end) of the input.
struct InputSpan {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

class AlignedText {
 public:
  AlignedText() = default;
  // `text` starts at byte `offset` of the input. Untracked text uses no extra memory.
  AlignedText(absl::string_view text, std::int32_t offset, bool tracked);

  // The maximum size of a text. Later stages use 32-bit offsets.
  static constexpr std::size_t kMaxBytes = std::numeric_limits<std::int32_t>::max();
  void set_limit_bytes(std::size_t limit) { limit_bytes_ = limit; }
  // Returns INVALID_ARGUMENT if the text exceeds its limit, or if an append was dropped.
  absl::Status CheckSize() const;

  const std::string& text() const { return text_; }
  absl::string_view view(std::size_t begin, std::size_t end) const {
    return absl::string_view(text_).substr(begin, end - begin);
  }
  bool tracked() const { return tracked_; }
  // REQUIRES: tracked() and byte < text().size().
  InputSpan span(std::size_t byte) const { return spans_[byte]; }

  // Append bytes with one span, or bytes [begin, end) of `from` with their spans.
  void Append(absl::string_view bytes, InputSpan span);
  void AppendFrom(const AlignedText& from, std::size_t begin, std::size_t end);
  // Appends `bytes` with the span of byte `byte` of `from`.
  void AppendLike(absl::string_view bytes, const AlignedText& from, std::size_t byte);

  // Returns an empty text with the same tracking and limit, and with capacity for a text of this
  // size.
  AlignedText EmptyLike() const;

 private:
  bool HasRoom(std::size_t size_bytes);

  std::string text_;
  std::vector<InputSpan> spans_;
  std::size_t limit_bytes_ = kMaxBytes;
  bool overflowed_ = false;
  bool tracked_ = false;
};

}  // namespace quire::text

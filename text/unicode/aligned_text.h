#pragma once

// Text that is being rewritten, and for each of its bytes the place in the input it came from.
//
// Place:      the value that normalizer and splitter pass on.
// Invariants: text() never grows beyond a limit: what would is left out, and CheckSize() fails from
//             then on. The code that rewrites a text asks it before the result is used.
//             Either untracked (spans empty) or spans().size() == text().size(), and then a
//             character's bytes all carry the span of the input characters that it stands for.
// Threads:    a value.
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
  // `text` as it stands at `offset` of the input. Untracked text costs no memory per byte.
  AlignedText(absl::string_view text, std::int32_t offset, bool tracked);

  // What later stages can count.
  static constexpr std::size_t kMaxBytes = std::numeric_limits<std::int32_t>::max();
  void set_limit_bytes(std::size_t limit) { limit_bytes_ = limit; }
  // Errors: INVALID_ARGUMENT if the text is longer than its limit or would have become so.
  absl::Status CheckSize() const;

  const std::string& text() const { return text_; }
  absl::string_view view(std::size_t begin, std::size_t end) const {
    return absl::string_view(text_).substr(begin, end - begin);
  }
  bool tracked() const { return tracked_; }
  // REQUIRES: tracked() and byte < text().size().
  InputSpan span(std::size_t byte) const { return spans_[byte]; }

  // Building: appends bytes that stand for one span, or bytes [begin, end) of `from` with theirs.
  void Append(absl::string_view bytes, InputSpan span);
  void AppendFrom(const AlignedText& from, std::size_t begin, std::size_t end);
  // Appends `bytes` with the span of byte `byte` of `from`.
  void AppendLike(absl::string_view bytes, const AlignedText& from, std::size_t byte);

  // An empty text with the same tracking and limit, room for as much.
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

#pragma once

// Text that is being rewritten, and for each of its bytes the place in the input it came from.
//
// Place:      the value that normalizer and splitter pass on.
// Invariants: either untracked (spans empty) or spans().size() == text().size(), and then a
//             character's bytes all carry the span of the input characters that it stands for.
// Threads:    a value.
// Source:     NormalizedString of huggingface/tokenizers 0.23.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

  // An empty text with the same tracking, room for as much.
  AlignedText EmptyLike() const;

 private:
  std::string text_;
  std::vector<InputSpan> spans_;
  bool tracked_ = false;
};

}  // namespace quire::text

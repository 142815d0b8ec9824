#include "text/unicode/aligned_text.h"

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace quire::text {

AlignedText::AlignedText(absl::string_view text, std::int32_t offset, bool tracked)
    : text_(text), tracked_(tracked) {
  if (!tracked) return;
  spans_.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = Utf8Length(text[i]);
    const InputSpan span{offset + static_cast<std::int32_t>(i),
                         offset + static_cast<std::int32_t>(i + size)};
    spans_.insert(spans_.end(), size, span);
    i += size;
  }
}

absl::Status AlignedText::CheckSize() const {
  if (!overflowed_ && text_.size() <= limit_bytes_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the tokenizer expands the text to more than ",
                                                 limit_bytes_,
                                                 " bytes, the limit for a text of its size"));
}

bool AlignedText::HasRoom(std::size_t size_bytes) {
  overflowed_ = overflowed_ || text_.size() + size_bytes > limit_bytes_;
  return !overflowed_;
}

void AlignedText::Append(absl::string_view bytes, InputSpan span) {
  if (!HasRoom(bytes.size())) return;
  text_.append(bytes.data(), bytes.size());
  if (tracked_) spans_.insert(spans_.end(), bytes.size(), span);
}

void AlignedText::AppendFrom(const AlignedText& from, std::size_t begin, std::size_t end) {
  if (!HasRoom(end - begin)) return;
  text_.append(from.text_, begin, end - begin);
  if (tracked_) {
    spans_.insert(spans_.end(), from.spans_.begin() + static_cast<std::ptrdiff_t>(begin),
                  from.spans_.begin() + static_cast<std::ptrdiff_t>(end));
  }
}

void AlignedText::AppendLike(absl::string_view bytes, const AlignedText& from, std::size_t byte) {
  if (!HasRoom(bytes.size())) return;
  text_.append(bytes.data(), bytes.size());
  if (tracked_) spans_.insert(spans_.end(), bytes.size(), from.spans_[byte]);
}

AlignedText AlignedText::EmptyLike() const {
  AlignedText empty;
  empty.tracked_ = tracked_;
  empty.limit_bytes_ = limit_bytes_;
  empty.overflowed_ = overflowed_;
  empty.text_.reserve(text_.size());
  if (tracked_) empty.spans_.reserve(text_.size());
  return empty;
}

}  // namespace quire::text

#include "text/unicode/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

using CodePoint = utf8proc_int32_t;

// The longest full decomposition has 18 characters (U+FDFA).
constexpr int kMaxDecomposition = 32;

class Composer {
 public:
  Composer(const AlignedText& text, NormalForm form)
      : text_(text),
        decompose_(static_cast<utf8proc_option_t>(
            UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
            (form == NormalForm::kNfkc || form == NormalForm::kNfkd ? UTF8PROC_COMPAT : 0))),
        composes_(form == NormalForm::kNfc || form == NormalForm::kNfkc),
        result_(text.EmptyLike()) {}

  AlignedText Run() {
    const std::string& text = text_.text();
    std::size_t begin = 0;
    while (begin < text.size()) {
      std::size_t end = begin + Utf8Length(text[begin]);
      while (end < text.size()) {
        const Utf8Char next = DecodeUtf8At(text, end);
        if (BeginsCluster(next.code_point)) break;
        end += next.size_bytes;
      }
      AppendCluster(begin, end);
      begin = end;
    }
    return std::move(result_);
  }

 private:
  int Decompose(char32_t c, CodePoint* out) const {
    int boundary_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<CodePoint>(c), out, kMaxDecomposition, decompose_, &boundary_class);
    QUIRE_CHECK(count >= 1 && count <= kMaxDecomposition);
    return static_cast<int>(count);
  }

  // Returns true if `c` starts a new cluster: no earlier character can combine with `c`, and
  // canonical ordering moves no character past `c`.
  bool BeginsCluster(char32_t c) const {
    constexpr char32_t kFirstMark = 0x300;
    if (c < kFirstMark) return true;
    CodePoint parts[kMaxDecomposition];
    Decompose(c, parts);
    const bool is_hangul_vowel_or_tail = parts[0] >= 0x1161 && parts[0] <= 0x11C2;
    if (is_hangul_vowel_or_tail) return false;
    const utf8proc_property_t* property = utf8proc_get_property(parts[0]);
    constexpr unsigned kNoCombination = 0xFFFF;
    constexpr unsigned kSecondOfPair = 0x8000;
    const bool may_compose =
        property->comb_index != kNoCombination && property->comb_index >= kSecondOfPair;
    return property->combining_class == 0 && !may_compose;
  }

  void AppendCluster(std::size_t begin, std::size_t end) {
    const std::string& text = text_.text();
    cluster_.clear();
    for (std::size_t i = begin; i < end;) {
      const Utf8Char c = DecodeUtf8At(text, i);
      CodePoint parts[kMaxDecomposition];
      const int count = Decompose(c.code_point, parts);
      cluster_.insert(cluster_.end(), parts, parts + count);
      i += c.size_bytes;
    }
    Reorder();
    auto size = static_cast<utf8proc_ssize_t>(cluster_.size());
    if (composes_ && size > 1) {
      size = utf8proc_normalize_utf32(
          cluster_.data(), size,
          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    }
    bytes_.clear();
    for (utf8proc_ssize_t i = 0; i < size; ++i) {
      AppendUtf8(static_cast<char32_t>(cluster_[static_cast<std::size_t>(i)]), bytes_);
    }
    if (text_.view(begin, end) == absl::string_view(bytes_)) {
      result_.AppendFrom(text_, begin, end);
      return;
    }
    InputSpan span;
    if (text_.tracked()) span = {text_.span(begin).begin, text_.span(end - 1).end};
    result_.Append(bytes_, span);
  }

  // Canonical ordering: stably sorts the marks between two starters by combining class.
  void Reorder() {
    const auto combining_class = [](CodePoint c) {
      return utf8proc_get_property(c)->combining_class;
    };
    auto begin = cluster_.begin();
    while (begin != cluster_.end()) {
      if (combining_class(*begin) == 0) {
        ++begin;
        continue;
      }
      const auto end =
          std::find_if(begin, cluster_.end(), [&](CodePoint c) { return combining_class(c) == 0; });
      std::stable_sort(begin, end, [&](CodePoint a, CodePoint b) {
        return combining_class(a) < combining_class(b);
      });
      begin = end;
    }
  }

  const AlignedText& text_;
  utf8proc_option_t decompose_;
  bool composes_;
  AlignedText result_;
  std::vector<CodePoint> cluster_;
  std::string bytes_;
};

}  // namespace

AlignedText ToNormalForm(const AlignedText& text, NormalForm form) {
  const std::string& bytes = text.text();
  const bool is_ascii = std::all_of(bytes.begin(), bytes.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return is_ascii ? text : Composer(text, form).Run();
}

}  // namespace quire::text

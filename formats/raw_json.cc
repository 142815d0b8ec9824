#include "formats/raw_json.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/strip.h"
#include "base/check.h"

namespace quire::formats {
namespace {

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Scans the values of a valid JSON text.
class Scanner {
 public:
  // JsonDocument skips a byte order mark, so the scanner does too.
  explicit Scanner(absl::string_view text) : text_(absl::StripPrefix(text, "\xEF\xBB\xBF")) {}

  // Skips white space and then `c`, if `c` is next.
  bool Take(char c) {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  // Returns the next value and advances past it.
  absl::string_view TakeValue() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
    const std::size_t begin = at_;
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        SkipString();
        if (depth == 0) break;
        continue;
      }
      const bool closes = c == '}' || c == ']';
      if (depth == 0 && (closes || c == ',' || IsSpace(c))) break;  // end of a number or literal
      ++at_;
      if (c == '{' || c == '[') ++depth;
      if (closes && --depth == 0) break;
    }
    return text_.substr(begin, at_ - begin);
  }

 private:
  void SkipString() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }

  const absl::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

absl::string_view RawMember(absl::string_view object, absl::string_view key) {
  Scanner scanner(object);
  QUIRE_CHECK(scanner.Take('{'));
  do {
    const absl::string_view name = scanner.TakeValue();
    QUIRE_CHECK(scanner.Take(':'));
    const absl::string_view value = scanner.TakeValue();
    // Parses the key, because it may contain escapes.
    if (nlohmann::json::parse(name.begin(), name.end()).get_ref<const std::string&>() == key) {
      return value;
    }
  } while (scanner.Take(','));
  QUIRE_CHECK(false);
  return {};
}

std::vector<absl::string_view> RawElements(absl::string_view array) {
  std::vector<absl::string_view> elements;
  Scanner scanner(array);
  QUIRE_CHECK(scanner.Take('['));
  if (scanner.Take(']')) return elements;
  do {
    elements.push_back(scanner.TakeValue());
  } while (scanner.Take(','));
  return elements;
}

}  // namespace quire::formats

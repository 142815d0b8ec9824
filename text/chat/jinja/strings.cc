#include "text/chat/jinja/strings.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/hash_map.h"
#include "base/utf8.h"
#include "text/unicode/unicode.h"

namespace quire::text::jinja {
namespace {

constexpr std::size_t kAll = absl::string_view::npos;
// A part this short is looked for at every place.
constexpr std::size_t kShortPart = 16;

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Python's rule for repr: everything but separators and the category C, with the plain space. The
// noncharacters that mark literal text (chat_template.h) pass too, so that no printing loses them.
bool IsPrintable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  if (c >= 0xFDD0 && c <= 0xFDEF) return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void AppendEscape(char32_t c, std::string& out) {
  const auto code = static_cast<std::uint32_t>(c);
  if (c <= 0xFF) {
    absl::StrAppendFormat(&out, "\\x%02x", code);
  } else if (c <= 0xFFFF) {
    absl::StrAppendFormat(&out, "\\u%04x", code);
  } else {
    absl::StrAppendFormat(&out, "\\U%08x", code);
  }
}

// Boundaries of str.splitlines but "\r\n".
bool EndsLine(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsLower(char32_t c) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
}
bool IsUpper(char32_t c) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}
bool IsTitle(char32_t c) {
  return Category(c) == UTF8PROC_CATEGORY_LT;
}
bool IsCased(char32_t c) {
  return IsLower(c) || IsUpper(c) || IsTitle(c);
}
bool IsLetter(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

struct SpecialUpper {
  char32_t c;
  absl::string_view upper;
  absl::string_view title;
};
// SpecialCasing.txt of Unicode, the Latin part without context.
constexpr SpecialUpper kSpecialUpper[] = {
    {0xDF, "SS", "Ss"},     {0xFB00, "FF", "Ff"},   {0xFB01, "FI", "Fi"}, {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"}, {0xFB04, "FFL", "Ffl"}, {0xFB05, "ST", "St"}, {0xFB06, "ST", "St"},
};

void AppendUpper(char32_t c, std::string& out) {
  for (const SpecialUpper& special : kSpecialUpper) {
    if (special.c == c) {
      out.append(special.upper.data(), special.upper.size());
      return;
    }
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
}

void AppendTitle(char32_t c, std::string& out) {
  for (const SpecialUpper& special : kSpecialUpper) {
    if (special.c == c) {
      out.append(special.title.data(), special.title.size());
      return;
    }
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), out);
}

// Calls `use` with every character.
template <typename Use>
void ForEachChar(absl::string_view text, Use use) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8At(text, i);
    i += c.size_bytes;
    use(c.code_point);
  }
}

std::vector<std::string> SplitSpaces(absl::string_view text, std::int64_t max_splits) {
  std::vector<std::string> parts;
  text = StripChars(text, Side::kLeft, std::nullopt);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<std::int64_t>(parts.size()) == max_splits) {
      parts.emplace_back(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size()) {
      const Utf8Char c = DecodeUtf8At(text, end);
      if (IsPythonSpace(c.code_point)) break;
      end += c.size_bytes;
    }
    parts.emplace_back(text.substr(0, end));
    text = StripChars(text.substr(end), Side::kLeft, std::nullopt);
  }
  return parts;
}

std::vector<std::string> SplitSpacesFromRight(absl::string_view text, std::int64_t max_splits) {
  std::vector<std::string> parts;
  text = StripChars(text, Side::kRight, std::nullopt);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<std::int64_t>(parts.size()) == max_splits) {
      parts.emplace_back(text);
      break;
    }
    std::size_t begin = text.size();
    while (begin > 0) {
      const Utf8Char c = DecodeUtf8Before(text, begin);
      if (IsPythonSpace(c.code_point)) break;
      begin -= c.size_bytes;
    }
    parts.emplace_back(text.substr(begin));
    text = StripChars(text.substr(0, begin), Side::kRight, std::nullopt);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

bool IsPythonSpace(char32_t c) {
  return IsSpace(c) || (c >= 0x1C && c <= 0x1F);
}

void AppendStringRepr(absl::string_view text, std::string& out) {
  const bool has_single = text.find('\'') != kAll;
  const char quote = has_single && text.find('"') == kAll ? '"' : '\'';
  out += quote;
  ForEachChar(text, [&](char32_t c) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, out);
    } else {
      AppendEscape(c, out);
    }
  });
  out += quote;
}

absl::string_view StripChars(absl::string_view text, Side side,
                             std::optional<absl::string_view> chars) {
  HashSet<char32_t> set;
  if (chars) ForEachChar(*chars, [&set](char32_t c) { set.insert(c); });
  const auto goes = [&](char32_t c) { return chars ? set.contains(c) : IsPythonSpace(c); };
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (side != Side::kRight && begin < end) {
    const Utf8Char c = DecodeUtf8At(text, begin);
    if (!goes(c.code_point)) break;
    begin += c.size_bytes;
  }
  while (side != Side::kLeft && end > begin) {
    const Utf8Char c = DecodeUtf8Before(text, end);
    if (!goes(c.code_point)) break;
    end -= c.size_bytes;
  }
  return text.substr(begin, end - begin);
}

std::size_t FindFirst(absl::string_view text, absl::string_view part, std::size_t from) {
  if (from > text.size()) return kAll;
  if (part.empty()) return from;
  const void* const found =
      memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return kAll;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t FindLast(absl::string_view text, absl::string_view part) {
  const std::size_t size = part.size();
  if (size > text.size()) return kAll;
  if (size <= kShortPart) return text.rfind(part);
  // Both are read backwards; borders[i] is the longest proper border of the last i + 1 bytes.
  const auto back = [&part, size](std::size_t i) { return part[size - 1 - i]; };
  std::vector<std::size_t> borders(size, 0);
  for (std::size_t i = 1, length = 0; i < size; ++i) {
    while (length > 0 && back(i) != back(length)) length = borders[length - 1];
    if (back(i) == back(length)) ++length;
    borders[i] = length;
  }
  std::size_t matched = 0;
  for (std::size_t at = text.size(); at-- > 0;) {
    while (matched > 0 && text[at] != back(matched)) matched = borders[matched - 1];
    if (text[at] == back(matched)) ++matched;
    if (matched == size) return at;
  }
  return kAll;
}

std::vector<std::string> SplitText(absl::string_view text,
                                   std::optional<absl::string_view> separator,
                                   std::int64_t max_splits, bool from_right) {
  if (!separator) {
    return from_right && max_splits >= 0 ? SplitSpacesFromRight(text, max_splits)
                                         : SplitSpaces(text, max_splits);
  }
  std::vector<std::string> parts;
  const auto may_go_on = [&] {
    return max_splits < 0 || static_cast<std::int64_t>(parts.size()) < max_splits;
  };
  if (from_right) {
    while (may_go_on()) {
      const std::size_t at = FindLast(text, *separator);
      if (at == kAll) break;
      parts.emplace_back(text.substr(at + separator->size()));
      text = text.substr(0, at);
    }
    parts.emplace_back(text);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  while (may_go_on()) {
    const std::size_t at = FindFirst(text, *separator);
    if (at == kAll) break;
    parts.emplace_back(text.substr(0, at));
    text = text.substr(at + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::int64_t CountParts(absl::string_view text, std::optional<absl::string_view> separator) {
  std::int64_t count = 1;
  if (separator) {
    for (std::size_t at = FindFirst(text, *separator); at != kAll;
         at = FindFirst(text, *separator, at + separator->size())) {
      ++count;
    }
    return count;
  }
  bool in_space = false;
  ForEachChar(text, [&](char32_t c) {
    const bool is_space = IsPythonSpace(c);
    if (is_space && !in_space) ++count;
    in_space = is_space;
  });
  return count;
}

std::int64_t CountLines(absl::string_view text) {
  std::int64_t count = 1;
  ForEachChar(text, [&](char32_t c) { count += EndsLine(c) ? 1 : 0; });
  return count;
}

std::vector<std::string> SplitTextLines(absl::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8At(text, i);
    const std::size_t end = i;
    i += c.size_bytes;
    if (!EndsLine(c.code_point)) continue;
    if (c.code_point == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string ReplaceText(absl::string_view text, absl::string_view from, absl::string_view to,
                        std::int64_t count) {
  std::string out;
  if (from.empty()) {
    // In front of every character, and at the end.
    for (const absl::string_view character : Characters(text)) {
      if (count != 0) out.append(to.data(), to.size());
      if (count > 0) --count;
      out.append(character.data(), character.size());
    }
    if (count != 0) out.append(to.data(), to.size());
    return out;
  }
  while (count != 0) {
    const std::size_t at = FindFirst(text, from);
    if (at == kAll) break;
    out.append(text.data(), at);
    out.append(to.data(), to.size());
    text = text.substr(at + from.size());
    if (count > 0) --count;
  }
  out.append(text.data(), text.size());
  return out;
}

std::string ToLower(absl::string_view text) {
  std::string out;
  ForEachChar(text, [&](char32_t c) { AppendLowercase(c, out); });
  return out;
}

std::string ToUpper(absl::string_view text) {
  std::string out;
  ForEachChar(text, [&](char32_t c) { AppendUpper(c, out); });
  return out;
}

std::string Capitalize(absl::string_view text) {
  std::string out;
  bool first = true;
  ForEachChar(text, [&](char32_t c) {
    if (first) {
      AppendTitle(c, out);
    } else {
      AppendLowercase(c, out);
    }
    first = false;
  });
  return out;
}

std::string TitleCase(absl::string_view text) {
  std::string out;
  bool follows_cased = false;
  ForEachChar(text, [&](char32_t c) {
    if (follows_cased) {
      AppendLowercase(c, out);
    } else {
      AppendTitle(c, out);
    }
    follows_cased = IsCased(c);
  });
  return out;
}

bool AllOfClass(absl::string_view text, CharClass wanted) {
  if (text.empty()) return false;
  bool all = true;
  bool any_cased = false;
  ForEachChar(text, [&](char32_t c) {
    const utf8proc_category_t category = Category(c);
    any_cased = any_cased || IsCased(c);
    switch (wanted) {
      case CharClass::kSpace:
        all = all && IsPythonSpace(c);
        break;
      case CharClass::kAlpha:
        all = all && IsLetter(c);
        break;
      case CharClass::kDigit:
        all = all && category == UTF8PROC_CATEGORY_ND;
        break;
      case CharClass::kAlnum:
        all = all && (IsLetter(c) || IsNumeric(c));
        break;
      case CharClass::kLower:
        all = all && !IsUpper(c) && !IsTitle(c);
        break;
      case CharClass::kUpper:
        all = all && !IsLower(c) && !IsTitle(c);
        break;
    }
  });
  const bool needs_cased = wanted == CharClass::kLower || wanted == CharClass::kUpper;
  return all && (any_cased || !needs_cased);
}

absl::string_view CharAt(absl::string_view text, std::int64_t index) {
  return CharRange(text, index, index + 1);
}

absl::string_view CharRange(absl::string_view text, std::int64_t begin, std::int64_t end) {
  std::size_t at = 0;
  for (std::int64_t i = 0; i < begin; ++i) at += Utf8Length(text[at]);
  std::size_t until = at;
  for (std::int64_t i = begin; i < end; ++i) until += Utf8Length(text[until]);
  return text.substr(at, until - at);
}

std::vector<absl::string_view> Characters(absl::string_view text) {
  std::vector<absl::string_view> characters;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = Utf8Length(text[i]);
    characters.push_back(text.substr(i, size));
    i += size;
  }
  return characters;
}

}  // namespace quire::text::jinja

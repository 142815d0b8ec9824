#include "text/chat/jinja/strings.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "text/chat/jinja/characters.h"
#include "text/unicode/unicode.h"

namespace quire::text::jinja {
namespace {

constexpr std::size_t kNotFound = absl::string_view::npos;
// Maximum size of `part` for which FindLast uses a quadratic search.
constexpr std::size_t kShortPart = 16;

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

// Returns whether str.splitlines ends a line at `c`. The method also treats "\r\n" as one line end.
bool EndsLine(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// Calls `use` for every character.
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
  const bool has_single = text.find('\'') != kNotFound;
  const char quote = has_single && text.find('"') == kNotFound ? '"' : '\'';
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

std::string EscapeNonAscii(absl::string_view repr) {
  std::string escaped;
  ForEachChar(repr, [&](char32_t c) {
    if (c < 0x80) {
      escaped += static_cast<char>(c);
    } else {
      AppendEscape(c, escaped);
    }
  });
  return escaped;
}

absl::string_view StripChars(absl::string_view text, Side side,
                             std::optional<absl::string_view> chars) {
  absl::flat_hash_set<char32_t> set;
  if (chars) ForEachChar(*chars, [&set](char32_t c) { set.insert(c); });
  const auto is_stripped = [&](char32_t c) { return chars ? set.contains(c) : IsPythonSpace(c); };
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (side != Side::kRight && begin < end) {
    const Utf8Char c = DecodeUtf8At(text, begin);
    if (!is_stripped(c.code_point)) break;
    begin += c.size_bytes;
  }
  while (side != Side::kLeft && end > begin) {
    const Utf8Char c = DecodeUtf8Before(text, end);
    if (!is_stripped(c.code_point)) break;
    end -= c.size_bytes;
  }
  return text.substr(begin, end - begin);
}

std::size_t FindFirst(absl::string_view text, absl::string_view part, std::size_t from) {
  if (from > text.size()) return kNotFound;
  if (part.empty()) return from;
  const void* const found =
      memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return kNotFound;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t FindLast(absl::string_view text, absl::string_view part) {
  const std::size_t size = part.size();
  if (size > text.size()) return kNotFound;
  if (size <= kShortPart) return text.rfind(part);
  // Searches backwards. borders[i] is the length of the longest proper border of the last i + 1
  // bytes of `part`.
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
  return kNotFound;
}

std::vector<std::string> SplitText(absl::string_view text,
                                   std::optional<absl::string_view> separator,
                                   std::int64_t max_splits, bool from_right) {
  if (!separator) {
    return from_right && max_splits >= 0 ? SplitSpacesFromRight(text, max_splits)
                                         : SplitSpaces(text, max_splits);
  }
  std::vector<std::string> parts;
  const auto may_split = [&] {
    return max_splits < 0 || static_cast<std::int64_t>(parts.size()) < max_splits;
  };
  if (from_right) {
    while (may_split()) {
      const std::size_t at = FindLast(text, *separator);
      if (at == kNotFound) break;
      parts.emplace_back(text.substr(at + separator->size()));
      text = text.substr(0, at);
    }
    parts.emplace_back(text);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  while (may_split()) {
    const std::size_t at = FindFirst(text, *separator);
    if (at == kNotFound) break;
    parts.emplace_back(text.substr(0, at));
    text = text.substr(at + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::int64_t CountParts(absl::string_view text, std::optional<absl::string_view> separator) {
  std::int64_t count = 1;
  if (separator) {
    for (std::size_t at = FindFirst(text, *separator); at != kNotFound;
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
    // Inserts `to` before every character and at the end.
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
    if (at == kNotFound) break;
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
  for (std::size_t i = 0; i < text.size(); i += Utf8Length(text[i])) AppendLower(text, i, out);
  return out;
}

std::string ToUpper(absl::string_view text) {
  std::string out;
  ForEachChar(text, [&](char32_t c) { AppendUpper(c, out); });
  return out;
}

std::string Capitalize(absl::string_view text) {
  std::string out;
  if (!text.empty()) AppendTitle(DecodeUtf8At(text, 0).code_point, out);
  for (std::size_t i = 0; i < text.size(); i += Utf8Length(text[i])) {
    if (i > 0) AppendLower(text, i, out);
  }
  return out;
}

std::string TitleCase(absl::string_view text) {
  std::string out;
  bool follows_cased = false;
  for (std::size_t i = 0; i < text.size(); i += Utf8Length(text[i])) {
    const char32_t c = DecodeUtf8At(text, i).code_point;
    if (follows_cased) {
      AppendLower(text, i, out);
    } else {
      AppendTitle(c, out);
    }
    follows_cased = IsCased(c);
  }
  return out;
}

std::string SwapCase(absl::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += Utf8Length(text[i])) {
    const char32_t c = DecodeUtf8At(text, i).code_point;
    if (IsUpper(c)) {
      AppendLower(text, i, out);
    } else if (IsLower(c)) {
      AppendUpper(c, out);
    } else {
      AppendUtf8(c, out);
    }
  }
  return out;
}

std::string CaseFold(absl::string_view text) {
  std::string out;
  ForEachChar(text, [&](char32_t c) { AppendFolded(c, out); });
  return out;
}

bool AllCharacters(absl::string_view text, bool (*is)(char32_t)) {
  bool all = true;
  ForEachChar(text, [&](char32_t c) { all = all && is(c); });
  return all;
}

bool IsLowerCase(absl::string_view text) {
  return AllCharacters(text, [](char32_t c) { return !IsUpper(c) && !IsTitle(c); }) &&
         !AllCharacters(text, [](char32_t c) { return !IsLower(c); });
}

bool IsUpperCase(absl::string_view text) {
  return AllCharacters(text, [](char32_t c) { return !IsLower(c) && !IsTitle(c); }) &&
         !AllCharacters(text, [](char32_t c) { return !IsUpper(c); });
}

bool IsTitleCase(absl::string_view text) {
  bool all = true;
  bool any_cased = false;
  bool follows_cased = false;
  ForEachChar(text, [&](char32_t c) {
    const bool is_lower = IsLower(c);
    const bool is_cased = IsCased(c);
    if (is_cased && is_lower != follows_cased) all = false;
    any_cased = any_cased || is_cased;
    follows_cased = is_cased;
  });
  return all && any_cased;
}

bool IsIdentifier(absl::string_view text) {
  bool is_first = true;
  bool all = true;
  ForEachChar(text, [&](char32_t c) {
    all = all && (is_first ? IsIdentifierStart(c) : IsIdentifierPart(c));
    is_first = false;
  });
  return all && !is_first;
}

std::string ExpandTabs(absl::string_view text, std::int64_t tab_size) {
  std::string out;
  std::int64_t column = 0;
  ForEachChar(text, [&](char32_t c) {
    if (c == '\t') {
      const std::int64_t spaces = tab_size > 0 ? tab_size - column % tab_size : 0;
      out.append(static_cast<std::size_t>(spaces), ' ');
      column += spaces;
      return;
    }
    AppendUtf8(c, out);
    column = c == '\n' || c == '\r' ? 0 : column + 1;
  });
  return out;
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

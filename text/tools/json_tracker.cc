#include "text/tools/json_tracker.h"

#include "absl/strings/ascii.h"

namespace quire::text {
namespace {

// Returns the offset after the closing quote of the string that opens at `begin`.
std::size_t EndOfString(absl::string_view text, std::size_t begin) {
  std::size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return i + 1;
}

}  // namespace

std::vector<std::pair<absl::string_view, absl::string_view>> JsonMembers(absl::string_view object) {
  std::vector<std::pair<absl::string_view, absl::string_view>> members;
  std::size_t i = 1;
  while (true) {
    i = object.find('"', i);
    if (i == absl::string_view::npos) return members;
    const std::size_t end_of_key = EndOfString(object, i);
    const absl::string_view key = object.substr(i + 1, end_of_key - i - 2);
    const std::size_t begin = object.find(':', end_of_key) + 1;
    int depth = 0;
    for (i = begin; i < object.size(); ++i) {
      const char byte = object[i];
      if (byte == '"') {
        i = EndOfString(object, i) - 1;
      } else if (byte == '{' || byte == '[') {
        ++depth;
      } else if (depth == 0 && (byte == ',' || byte == '}')) {
        break;
      } else if (byte == '}' || byte == ']') {
        --depth;
      }
    }
    members.emplace_back(key, absl::StripAsciiWhitespace(object.substr(begin, i - begin)));
  }
}

}  // namespace quire::text

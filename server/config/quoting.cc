#include "server/config/quoting.h"

#include <arpa/inet.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"

namespace quire::server {
namespace {

std::string QuoteForShell(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string StripQuotes(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  while (absl::ConsumePrefix(&text, "\"") || absl::ConsumePrefix(&text, "'")) continue;
  while (absl::ConsumeSuffix(&text, "\"") || absl::ConsumeSuffix(&text, "'")) continue;
  return std::string(text);
}

bool IsIpv6(const std::string& text) {
  in6_addr address = {};
  return inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

}  // namespace

std::string WriteTexts(absl::string_view layer, absl::string_view path,
                       const std::vector<std::string>& texts, bool is_list) {
  // Every JSON string is a YAML string.
  std::string yaml = absl::StrJoin(texts, ", ", [](std::string* out, const std::string& text) {
    out->append(JsonQuoted(text));
  });
  if (is_list) yaml = absl::StrCat("[", yaml, "]");
  if (absl::StartsWith(layer, "--set")) {
    return absl::StrCat("--set ", QuoteForShell(absl::StrCat(path, "=", yaml)));
  }
  if (layer == "MODEL") return QuoteForShell(yaml);
  if (absl::ConsumePrefix(&layer, "env ")) return absl::StrCat(layer, "=", QuoteForShell(yaml));
  return absl::StrCat(path.substr(path.rfind('.') + 1), ": ", yaml);
}

std::vector<std::string> GuessTexts(absl::string_view value, bool is_list) {
  value = absl::StripAsciiWhitespace(value);
  const bool has_brackets = absl::StartsWith(value, "[") && absl::EndsWith(value, "]");
  // A single text may have brackets itself, such as [::1].
  const bool is_list_of_one =
      has_brackets && value.size() > 2 && absl::StrContains("\"'[", value.substr(1, 1));
  if (is_list ? has_brackets : is_list_of_one) value = value.substr(1, value.size() - 2);
  if (!is_list) return {StripQuotes(value)};
  std::vector<std::string> texts;
  for (const absl::string_view part : absl::StrSplit(value, ',')) {
    texts.push_back(StripQuotes(part));
  }
  return texts;
}

std::string GuessIpv6Address(absl::string_view text) {
  const std::string plain = absl::StrReplaceAll(text, {{"[", ""}, {"]", ""}});
  const std::size_t colon = plain.rfind(':');
  if (colon == plain.npos) return "";
  const std::string host = plain.substr(0, colon), port = plain.substr(colon + 1);
  const bool has_port =
      !port.empty() && port.find_first_not_of("0123456789") == port.npos && IsIpv6(host);
  if (has_port) return absl::StrCat("[", host, "]:", port);
  return IsIpv6(plain) ? absl::StrCat("[", plain, "]:PORT") : "";
}

}  // namespace quire::server

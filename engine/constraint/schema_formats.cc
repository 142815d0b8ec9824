// The values of `format`, as expressions. Each stands for texts that its specification allows; for
// URIs and addresses of mail not for all of them (docs/structured_output.md).

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/constraint/schema_nodes.h"

namespace quire::engine {

namespace {

// RFC 3339, with the days that each month has. Year 0 is none.
std::string Date() {
  constexpr char kYear[] = "(?:[1-9]\\d{3}|0[1-9]\\d{2}|00[1-9]\\d|000[1-9])";
  constexpr char kLeapYear[] =
      "(?:\\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
  return absl::StrCat("(?:", kYear,
                      "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"
                      "|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
                      "|02-(?:0[1-9]|1\\d|2[0-8]))|",
                      kLeapYear, "-02-29)");
}

constexpr char kTime[] =
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
constexpr char kLabel[] = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
// Without the limit of 63, which costs a second to compile.
constexpr char kAnyLabel[] = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
constexpr char kByte[] = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";

std::string Ipv4() {
  return absl::StrCat(kByte, "\\.", kByte, "\\.", kByte, "\\.", kByte);
}

std::string Ipv6() {
  constexpr char kGroup[] = "[0-9A-Fa-f]{1,4}";
  std::string out = absl::StrCat("(?:", kGroup, ":){7}", kGroup);
  // Groups before "::", then those behind it: at most 7 together.
  for (int before = 0; before <= 7; ++before) {
    const std::string left =
        before == 0 ? "" : absl::StrCat(kGroup, "(?::", kGroup, "){", before - 1, "}");
    const int most = 7 - before;
    const std::string right =
        most == 0 ? "" : absl::StrCat("(?:", kGroup, "(?::", kGroup, "){0,", most - 1, "})?");
    absl::StrAppend(&out, "|", left, "::", right);
  }
  return out;
}

// RFC 3986, with registered names as hosts.
constexpr char kChar[] = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

std::string Authority() {
  return absl::StrCat("(?:[A-Za-z0-9._~!$&'()*+,;=:-]*@)?(?:", kAnyLabel, "(?:\\.", kAnyLabel,
                      ")*)?(?::\\d{1,5})?");
}

std::string Tail() {
  return absl::StrCat("(?:\\?(?:", kChar, "|[/?])*)?(?:#(?:", kChar, "|[/?])*)?");
}

std::string Uri() {
  return absl::StrCat("[A-Za-z][A-Za-z0-9+.-]*:(?://", Authority(), "(?:/", kChar, "*)*|/?", kChar,
                      "+(?:/", kChar, "*)*)", Tail());
}

std::string UriReference() {
  return absl::StrCat(Uri(), "|(?:/?(?:[A-Za-z0-9._~-]+(?:/[A-Za-z0-9._~-]*)*)?)", Tail());
}

std::map<std::string, std::string, std::less<>> MakeFormats() {
  return {
      {"date", Date()},
      {"time", kTime},
      {"date-time", absl::StrCat(Date(), "T", kTime)},
      // RFC 3339, appendix A: every unit in its order, none without a number.
      {"duration",
       "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)"
       "(?:T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))?"
       "|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))"},
      {"email",
       absl::StrCat("[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@",
                    kAnyLabel, "(?:\\.", kAnyLabel, ")*")},
      {"hostname", absl::StrCat(kLabel, "(?:\\.", kLabel, "){0,3}")},
      {"ipv4", Ipv4()},
      {"ipv6", Ipv6()},
      {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
      {"uri", Uri()},
      {"uri-reference", UriReference()},
      {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"},
  };
}

const std::map<std::string, std::string, std::less<>>& Formats() {
  static const auto* formats = new std::map<std::string, std::string, std::less<>>(MakeFormats());
  return *formats;
}

}  // namespace

absl::string_view FormatPattern(absl::string_view format) {
  const auto found = Formats().find(std::string(format));
  return found == Formats().end() ? "" : absl::string_view(found->second);
}

absl::string_view KnownFormats() {
  static const auto* names = [] {
    auto* out = new std::string();
    for (const auto& [name, pattern] : Formats()) {
      absl::StrAppend(out, out->empty() ? "" : ", ", name);
    }
    return out;
  }();
  return *names;
}

}  // namespace quire::engine

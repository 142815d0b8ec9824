// Regular expressions and integer ranges for the values of the keyword `format`. The expressions
// match only strings that the specification of the format allows. For URIs and email addresses they
// match only some of these strings (docs/structured_output.md).

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/constraint/schema_nodes.h"

namespace quire::engine {

namespace {

// RFC 3339, with the number of days of each month. Year 0 is excluded.
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
// Excludes two consecutive hyphens, which mark the ASCII form of non-ASCII labels.
constexpr char kIdnLabel[] = "[a-z0-9](?:-?[a-z0-9]){0,31}";
constexpr char kByte[] = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";

std::string Ipv4() {
  return absl::StrCat(kByte, "\\.", kByte, "\\.", kByte, "\\.", kByte);
}

std::string Ipv6() {
  constexpr char kGroup[] = "[0-9A-Fa-f]{1,4}";
  std::string out = absl::StrCat("(?:", kGroup, ":){7}", kGroup);
  // At most 7 groups surround the "::".
  for (int before = 0; before <= 7; ++before) {
    const std::string left =
        before == 0 ? "" : absl::StrCat(kGroup, "(?::", kGroup, "){", before - 1, "}");
    const int max_after = 7 - before;
    const std::string right =
        max_after == 0 ? ""
                       : absl::StrCat("(?:", kGroup, "(?::", kGroup, "){0,", max_after - 1, "})?");
    absl::StrAppend(&out, "|", left, "::", right);
  }
  return out;
}

// Labels joined by dots, without three consecutive hyphens. Labels may exceed 63 characters,
// because a pattern with a limit takes about 1 s to compile. Repetitions are not nested, so that
// ClampLength can apply a maxLength.
constexpr char kHost[] = "[A-Za-z0-9](?:(?:\\.|--?)?[A-Za-z0-9])*";

// RFC 3986, with registered names as hosts. A path and its query are one repetition.
constexpr char kPathChar[] = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
constexpr char kPathAndQuery[] = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*";

std::string Authority() {
  return absl::StrCat("(?:[A-Za-z0-9._~!$&'()*+,;=:-]{0,64}@)?(?:", kHost, ")?(?::\\d{1,5})?");
}

std::string Uri() {
  return absl::StrCat("[A-Za-z][A-Za-z0-9+.-]{0,30}:(?://", Authority(), "(?:[/?]", kPathAndQuery,
                      ")?|/?", kPathChar, kPathAndQuery, ")(?:#", kPathAndQuery, ")?");
}

std::string UriReference() {
  return absl::StrCat(Uri(), "|(?:/?(?:[A-Za-z0-9._~-]+(?:/[A-Za-z0-9._~-]*)*)?)(?:\\?",
                      kPathAndQuery, ")?(?:#", kPathAndQuery, ")?");
}

std::string Email() {
  constexpr char kAtom[] = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]";
  return absl::StrCat(kAtom, "(?:\\.?", kAtom, ")*@", kHost);
}

// RFC 6570, without the reserved operators.
std::string UriTemplate() {
  constexpr char kLiteral[] =
      "[!#$&(-;=?-\\[\\]_a-z~\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF]";
  constexpr char kVariable[] =
      "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*"
      "(?::[1-9]\\d{0,3}|\\*)?";
  return absl::StrCat("(?:", kLiteral, "|%[0-9A-Fa-f]{2}|\\{[+#./;?&]?", kVariable, "(?:,",
                      kVariable, ")*\\})*");
}

std::string Uuid(absl::string_view version, absl::string_view variant) {
  constexpr char kHex[] = "[0-9a-fA-F]";
  return absl::StrCat(kHex, "{8}-", kHex, "{4}-", version, kHex, "{3}-", variant, kHex, "{3}-",
                      kHex, "{12}");
}

// RFC 4648, section 4. The unused bits of the last group are zero.
std::string Base64() {
  constexpr char kDigit[] = "[A-Za-z0-9+/]";
  return absl::StrCat("(?:", kDigit, "{4})*(?:", kDigit, "[AQgw]==|", kDigit,
                      "{2}[AEIMQUYcgkosw048]=)?");
}

std::map<std::string, std::string, std::less<>> MakeFormats() {
  std::map<std::string, std::string, std::less<>> formats = {
      {"date", Date()},
      {"time", kTime},
      {"date-time", absl::StrCat(Date(), "T", kTime)},
      // RFC 3339, appendix A: units in order, each with a number.
      {"duration",
       "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)"
       "(?:T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))?"
       "|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))"},
      {"email", Email()},
      {"idn-email", Email()},
      {"hostname", absl::StrCat(kLabel, "(?:\\.", kLabel, "){0,3}")},
      {"idn-hostname", absl::StrCat(kIdnLabel, "(?:\\.", kIdnLabel, "){0,3}")},
      {"ipv4", Ipv4()},
      {"ipv6", Ipv6()},
      {"uuid", Uuid("[0-9a-fA-F]", "[0-9a-fA-F]")},
      {"uri", Uri()},
      {"uri-reference", UriReference()},
      {"iri", Uri()},
      {"iri-reference", UriReference()},
      {"uri-template", UriTemplate()},
      {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"},
      {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|(?:/(?:[^/~]|~[01])*)*)"},
      {"byte", Base64()},
      {"base64", Base64()},
  };
  // The versions of RFC 9562, with Pydantic's names.
  for (const char* version : {"1", "3", "4", "5", "6", "7", "8"}) {
    formats.emplace(absl::StrCat("uuid", version), Uuid(version, "[89abAB]"));
  }
  return formats;
}

NumberRange Between(absl::string_view low, absl::string_view high) {
  return {.low = Bound{.value = *Decimal::Parse(low)},
          .high = Bound{.value = *Decimal::Parse(high)}};
}

// Formats that describe the use or the storage of a value and do not restrict it.
constexpr absl::string_view kFreeFormats[] = {"binary", "double", "float", "password", "path"};

const std::map<std::string, std::string, std::less<>>& Formats() {
  static const auto* formats = new std::map<std::string, std::string, std::less<>>(MakeFormats());
  return *formats;
}

}  // namespace

absl::string_view FormatPattern(absl::string_view format) {
  const auto found = Formats().find(std::string(format));
  return found == Formats().end() ? "" : absl::string_view(found->second);
}

// The names are those of OpenAPI's format registry.
std::optional<NumberRange> FormatRange(absl::string_view format) {
  static const auto* ranges = new std::map<absl::string_view, NumberRange>{
      {"int8", Between("-128", "127")},
      {"int16", Between("-32768", "32767")},
      {"int32", Between("-2147483648", "2147483647")},
      {"int64", Between("-9223372036854775808", "9223372036854775807")},
      {"uint8", Between("0", "255")},
      {"uint16", Between("0", "65535")},
      {"uint32", Between("0", "4294967295")},
      {"uint64", Between("0", "18446744073709551615")}};
  const auto found = ranges->find(format);
  return found == ranges->end() ? std::nullopt : std::optional(found->second);
}

bool IsFreeFormat(absl::string_view format) {
  return std::ranges::find(kFreeFormats, format) != std::end(kFreeFormats);
}

}  // namespace quire::engine

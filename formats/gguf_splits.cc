#include "formats/gguf_splits.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"

namespace quire::formats {
namespace {

using nlohmann::json;

// Pattern fragments that several patterns share.
constexpr absl::string_view kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
constexpr absl::string_view kOptionalSymbol = R"([^\r\n\p{L}\p{N}]?)";
constexpr absl::string_view kUpper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
constexpr absl::string_view kLower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
constexpr absl::string_view kSpaces = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kOneDigit[] = R"(\p{N})";
constexpr char kThreeDigits[] = R"(\p{N}{1,3})";
constexpr absl::string_view kPunctuation = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)";
constexpr absl::string_view kPunctuationOrSlash = R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)";

std::string Llama3Pattern(absl::string_view digits) {
  return absl::StrCat(kContractions, "|", kOptionalSymbol, R"(\p{L}+|)", digits, kPunctuation,
                      kSpaces);
}

std::string Qwen35Pattern() {
  return absl::StrCat(kContractions, "|", kOptionalSymbol, R"([\p{L}\p{M}]+|\p{N})",
                      R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)", kSpaces);
}

// Splits words at changes of case. `ending` matches optional contractions after a word. It is empty
// for Tekken.
std::string CasedWords(absl::string_view upper, absl::string_view lower, absl::string_view ending) {
  return absl::StrCat(kOptionalSymbol, upper, "*", lower, "+", ending, "|", kOptionalSymbol, upper,
                      "+", lower, "*", ending, "|");
}

std::string CasedPattern(absl::string_view ending, absl::string_view digits) {
  return absl::StrCat(CasedWords(kUpper, kLower, ending), digits, kPunctuationOrSlash, kSpaces);
}

// The published pattern has set intersections, [...&&[^\p{Han}]]. A lookahead before each character
// is equivalent.
std::string KimiPattern() {
  const auto without_han = [](absl::string_view set) {
    return absl::StrCat(R"((?:(?!\p{Han}))", set, ")");
  };
  return absl::StrCat(
      R"(\p{Han}+|)",
      CasedWords(without_han(kUpper), without_han(kLower), absl::StrCat(kContractions, "?")),
      kThreeDigits, kPunctuation, kSpaces);
}

std::string DeepSeekWords() {
  return absl::StrCat(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)",
                      R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)", kSpaces);
}

// CJK Unified Ideographs (without the extensions after U+9FA5), Hiragana and Katakana.
constexpr char kChineseAndKana[] = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";

// The letters with case of Unicode 11: Latin, Greek, Cyrillic and others.
constexpr char kCasedLetters[] =
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943";
// The range from : to ~ includes letters, as in the published pattern.
constexpr char kDeepSeekPunctuation[] =
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";
constexpr char kDeepSeekScripts[] = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";

json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json Sequence(std::vector<json> parts) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
}

json Digits() {
  return {{"type", "Digits"}, {"individual_digits", true}};
}

// Returns one Isolated Split per pattern, followed by `extra_steps` and ByteLevel.
json Splits(const std::vector<std::string>& patterns, const std::vector<json>& extra_steps = {}) {
  std::vector<json> parts;
  parts.reserve(patterns.size() + extra_steps.size() + 1);
  for (const std::string& pattern : patterns) {
    parts.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  parts.insert(parts.end(), extra_steps.begin(), extra_steps.end());
  parts.push_back(ByteLevel(false));
  return Sequence(std::move(parts));
}

enum class Family {
  kGpt2,
  kDigits,
  kLlama3,
  kQwen2,
  kQwen35,
  kDeepSeek,
  kDeepSeek3,
  kTekken,
  kO200k,
  kKimi
};

json PreTokenizer(Family family) {
  switch (family) {
    case Family::kGpt2:
      return ByteLevel(true);
    case Family::kDigits:
      return Sequence({Digits(), ByteLevel(true)});
    case Family::kLlama3:
      return Splits({Llama3Pattern(kThreeDigits)});
    case Family::kQwen2:
      return Splits({Llama3Pattern(kOneDigit)});
    case Family::kQwen35:
      return Splits({Qwen35Pattern()});
    case Family::kDeepSeek:
      return Splits({"[\r\n]", absl::StrCat("\\s?[", kCasedLetters, "]+"), kDeepSeekPunctuation,
                     "\\s+$", kDeepSeekScripts},
                    {Digits()});
    case Family::kDeepSeek3:
      return Splits({kThreeDigits, kChineseAndKana, DeepSeekWords()});
    case Family::kTekken:
      return Splits({CasedPattern("", kOneDigit)});
    case Family::kO200k:
      return Splits({CasedPattern(absl::StrCat(kContractions, "?"), kThreeDigits)});
    case Family::kKimi:
      return Splits({KimiPattern()});
  }
  return nullptr;
}

struct NamedSplit {
  absl::string_view name;
  Family family;
  bool ignore_merges = false;
  bool adds_bos = false;
};
constexpr NamedSplit kNames[] = {
    {"gpt-2", Family::kGpt2},
    {"phi-2", Family::kGpt2},
    {"mpt", Family::kGpt2},
    {"olmo", Family::kGpt2},
    {"smollm", Family::kDigits},
    {"starcoder", Family::kDigits},
    {"refact", Family::kDigits},
    {"command-r", Family::kDigits},
    {"codeshell", Family::kDigits},
    {.name = "llama3", .family = Family::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-v3", .family = Family::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-bpe", .family = Family::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "falcon3", .family = Family::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "lfm2", .family = Family::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "glm4", .family = Family::kLlama3, .ignore_merges = true},
    {.name = "glm5", .family = Family::kLlama3, .ignore_merges = true},
    {"dbrx", Family::kLlama3},
    {"smaug-bpe", Family::kLlama3},
    {"qwen2", Family::kQwen2},
    {"deepseek-r1-qwen", Family::kQwen2},
    {"megrez", Family::kQwen2},
    {"stablelm2", Family::kQwen2},
    {"qwen35", Family::kQwen35},
    {"deepseek-llm", Family::kDeepSeek},
    {"deepseek-v3", Family::kDeepSeek3},
    {.name = "tekken", .family = Family::kTekken, .ignore_merges = true, .adds_bos = true},
    {.name = "pixtral", .family = Family::kTekken, .ignore_merges = true, .adds_bos = true},
    {"gpt-4o", Family::kO200k},
    {"llama4", Family::kO200k},
    {"minimax-m2", Family::kO200k},
    {"kimi-k2", Family::kKimi},
};

}  // namespace

std::optional<GgufSplit> FindGgufSplit(absl::string_view pre) {
  for (const NamedSplit& name : kNames) {
    if (name.name != pre) continue;
    return GgufSplit{.pre_tokenizer_json = JsonText(PreTokenizer(name.family)),
                     .ignore_merges = name.ignore_merges,
                     .adds_bos = name.adds_bos};
  }
  return std::nullopt;
}

std::string GgufSplitNames() {
  return absl::StrJoin(kNames, ", ", [](std::string* out, const NamedSplit& name) {
    absl::StrAppend(out, name.name);
  });
}

}  // namespace quire::formats

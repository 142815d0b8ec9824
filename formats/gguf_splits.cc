#include "formats/gguf_splits.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"

namespace quire::formats {
namespace {

using nlohmann::json;

// Parts that several patterns share.
constexpr absl::string_view kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
constexpr absl::string_view kOptionalSymbol = R"([^\r\n\p{L}\p{N}]?)";
constexpr absl::string_view kUpper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
constexpr absl::string_view kLower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
constexpr absl::string_view kSpaces = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
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

// Splits words at changes of case. `ending` matches optional contractions after a word; it is empty
// for Tekken.
std::string CasedPattern(absl::string_view ending, absl::string_view digits) {
  return absl::StrCat(kOptionalSymbol, kUpper, "*", kLower, "+", ending, "|", kOptionalSymbol,
                      kUpper, "+", kLower, "*", ending, "|", digits, kPunctuationOrSlash, kSpaces);
}

std::string DeepSeekWords() {
  return absl::StrCat(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)",
                      R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)", kSpaces);
}

constexpr char kOneDigit[] = R"(\p{N})";
constexpr char kThreeDigits[] = R"(\p{N}{1,3})";
// CJK Unified Ideographs (without the extensions after U+9FA5), Hiragana and Katakana.
constexpr char kChineseAndKana[] = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";

json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json Sequence(std::vector<json> parts) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
}

// Returns one Isolated Split per pattern, followed by ByteLevel.
json Splits(const std::vector<std::string>& patterns) {
  std::vector<json> parts;
  parts.reserve(patterns.size() + 1);
  for (const std::string& pattern : patterns) {
    parts.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  parts.push_back(ByteLevel(false));
  return Sequence(std::move(parts));
}

enum class Family { kGpt2, kDigits, kLlama3, kQwen2, kQwen35, kDeepSeek3, kTekken, kO200k };

json PreTokenizer(Family family) {
  switch (family) {
    case Family::kGpt2:
      return ByteLevel(true);
    case Family::kDigits:
      return Sequence({{{"type", "Digits"}, {"individual_digits", true}}, ByteLevel(true)});
    case Family::kLlama3:
      return Splits({Llama3Pattern(kThreeDigits)});
    case Family::kQwen2:
      return Splits({Llama3Pattern(kOneDigit)});
    case Family::kQwen35:
      return Splits({Qwen35Pattern()});
    case Family::kDeepSeek3:
      return Splits({kThreeDigits, kChineseAndKana, DeepSeekWords()});
    case Family::kTekken:
      return Splits({CasedPattern("", kOneDigit)});
    case Family::kO200k:
      return Splits({CasedPattern(absl::StrCat(kContractions, "?"), kThreeDigits)});
  }
  return nullptr;
}

struct Name {
  absl::string_view name;
  Family family;
  bool ignore_merges = false;
  bool adds_bos = false;
};
constexpr Name kNames[] = {
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
    {"deepseek-v3", Family::kDeepSeek3},
    {.name = "tekken", .family = Family::kTekken, .ignore_merges = true, .adds_bos = true},
    {.name = "pixtral", .family = Family::kTekken, .ignore_merges = true, .adds_bos = true},
    {"gpt-4o", Family::kO200k},
    {"llama4", Family::kO200k},
    {"minimax-m2", Family::kO200k},
};

}  // namespace

std::optional<GgufSplit> FindGgufSplit(absl::string_view pre) {
  for (const Name& name : kNames) {
    if (name.name != pre) continue;
    return GgufSplit{.pre_tokenizer_json = JsonText(PreTokenizer(name.family)),
                     .ignore_merges = name.ignore_merges,
                     .adds_bos = name.adds_bos};
  }
  return std::nullopt;
}

std::string GgufSplitNames() {
  std::string names;
  for (const Name& name : kNames) absl::StrAppend(&names, names.empty() ? "" : ", ", name.name);
  return names;
}

}  // namespace quire::formats

// Generates forced tool calls. Reads one question per line from standard input and writes one
// answer per line.
//
//   {"format": NAME, "tools": [{"name": NAME, "schema": TEXT}, ...], "one": BOOL, "opens": BOOL,
//    "optional": BOOL: whether calls are embedded in free text,
//    "special": [markers that are special tokens], "plain": [markers that are other tokens],
//    "walks": COUNT, "seed": NUMBER}
//   {"refused": MESSAGE}, or
//   {"answers": [{"text": TEXT, "whole": PARTS, "bytes": PARTS}, ...], "unfinished": COUNT}
//
// A walk takes random tokens that the masks allow, until the text ends. PARTS are the answer
// parser's output for the text, at once and byte by byte. The tests are in tests/e2e.

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/constraint/constraint_build.h"
#include "tests/engine/constraint/random_walk.h"
#include "tests/engine/constraint/small_vocabulary.h"
#include "text/tools/format_text.h"
#include "text/tools/output_parser.h"

namespace quire::engine {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kVocabulary = 900;
constexpr std::int32_t kEnd = static_cast<std::int32_t>(kVocabulary) - 1;
constexpr int kMaxSteps = 600;  // per walk

struct Tokens {
  ConstraintVocabulary vocabulary;
  WalkTokens walk;  // includes special tokens
};

Tokens MakeTokens(const Json& question, const text::ToolFormat& format) {
  Tokens made;
  made.walk.end = kEnd;
  made.walk.texts = made.vocabulary.tokens = SmallVocabulary(kVocabulary, 5);
  for (const std::string marker : question.at("plain")) {
    made.walk.texts.push_back(marker);
    made.vocabulary.tokens.push_back(marker);
  }
  for (const std::string marker : question.at("special")) {
    QUIRE_CHECK(text::IsMarker(format, marker, /*has_tools=*/true));
    made.vocabulary.special.emplace_back(marker, static_cast<std::int32_t>(made.walk.texts.size()));
    made.walk.texts.push_back(marker);
    made.vocabulary.tokens.emplace_back();
  }
  for (std::size_t token = 0; token < made.walk.texts.size(); ++token) {
    const std::string& written = made.walk.texts[token];
    const bool closes_python =
        format.shape == text::CallShape::kPythonAtStart && (written == "'" || written == ")");
    made.walk.closes.push_back(token >= kVocabulary || ClosesJson(written) || closes_python);
  }
  return made;
}

Json PartsOf(text::OutputParser parser, absl::string_view text, std::size_t step) {
  constexpr const char* kKinds[] = {"content", "reasoning", "markup", "call", "failed"};
  std::vector<text::OutputPart> parts;
  for (std::size_t at = 0; at < text.size(); at += step) parser.Push(text.substr(at, step), &parts);
  parser.Finish(&parts);
  QUIRE_CHECK(parser.CheckIntegrity().ok());
  Json written = Json::array();
  for (const text::OutputPart& part : parts) {
    Json one = {{"kind", kKinds[static_cast<int>(part.kind)]}};
    // The source of these parts may be cut inside a character.
    if (part.kind == text::OutputPart::Kind::kCall) {
      one.update({{"name", part.call.name}, {"arguments", part.call.arguments_json}});
    } else if (part.kind == text::OutputPart::Kind::kFailed) {
      one.update({{"error", part.call.error}});
    } else if (!written.empty() && written.back()["kind"] == one["kind"]) {
      continue;
    }
    written.push_back(std::move(one));
  }
  return written;
}

Json Answer(const Json& question) {
  const text::ToolFormat* const format =
      text::FindToolFormat(question.at("format").get<std::string>());
  QUIRE_CHECK(format != nullptr);
  if (!format->can_be_forced()) return {{"refused", "the format cannot be forced"}};
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kToolCalls;
  spec.tool_format = format;
  spec.starts_after_reasoning = true;
  spec.opens_reasoning = question.at("opens").get<bool>();
  spec.stop_after_first_tag = question.at("one").get<bool>();
  spec.calls_are_optional = question.at("optional").get<bool>();
  std::vector<text::ChatTool> declared;
  for (const Json& tool : question.at("tools")) {
    spec.tags.push_back({.begin = tool.at("name").get<std::string>(),
                         .text = tool.at("schema").get<std::string>(),
                         .field = "the schema"});
    declared.push_back({.name = spec.tags.back().begin, .parameters_json = spec.tags.back().text});
  }
  const auto tools =
      std::make_shared<const text::DeclaredTools>(*text::DeclaredTools::Create(declared));
  const Tokens tokens = MakeTokens(question, *format);
  const auto build = MakeConstraintBuildFunction(tokens.vocabulary);
  QUIRE_CHECK(build.ok());
  const auto constraint = (*build)(spec, {});
  if (!constraint.ok()) return {{"refused", std::string(constraint.status().message())}};
  std::mt19937 random(question.at("seed").get<std::uint32_t>());
  Json answers = Json::array();
  const unsigned ends_in = spec.calls_are_optional ? 16 : 2;  // makes free text contain calls
  int unfinished = 0;
  for (int walk = question.at("walks").get<int>(); walk > 0; --walk) {
    const auto text = RandomWalk(**constraint, tokens.walk, kMaxSteps, ends_in, &random);
    if (!text) {
      ++unfinished;
      continue;
    }
    const text::OutputParser parser(*format, tools, spec.opens_reasoning);
    answers.push_back({{"text", *text},
                       {"whole", PartsOf(parser, *text, text->size())},
                       {"bytes", PartsOf(parser, *text, 1)}});
  }
  return {{"answers", answers}, {"unfinished", unfinished}};
}

}  // namespace
}  // namespace quire::engine

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << quire::engine::Answer(nlohmann::json::parse(line)).dump() << std::endl;
  }
  return 0;
}

// Evaluates schemas. Reads one question per line from standard input and writes one answer per
// line.
//
//   {"schema": TEXT, "texts": [TEXT, ...], "walks": COUNT, "seed": NUMBER,
//    "annotate": whether unenforced keywords are listed (they are rejected if absent)}
//   {"refused": MESSAGE}, or
//   {"accepted": [whether each text is in the language], "documents": [texts of the walks],
//    "unfinished": number of walks that did not end, "unenforced": [keywords]}
//
// A build without structured output exits at once with 77.
//
// A walk takes random tokens that the masks allow, until the text ends. The tests are in tests/e2e.

#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/constraint/constraint_build.h"
#include "engine/constraint/grammar_library.h"
#include "tests/engine/constraint/random_walk.h"
#include "tests/engine/constraint/small_vocabulary.h"

namespace quire::engine {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kVocabulary = 900;
constexpr std::int32_t kEnd = static_cast<std::int32_t>(kVocabulary) - 1;
constexpr int kMaxSteps = 400;  // per walk

bool Accepts(const CompiledConstraint& constraint, const std::string& text) {
  const auto matcher = constraint.NewMatcher({&kEnd, 1});
  for (const char byte : text) {
    if (!matcher->Accept(static_cast<unsigned char>(byte)).ok()) return false;
  }
  return matcher->Accept(kEnd).ok();
}

Json Answer(const Json& question, const ConstraintCompiler::BuildFunction& build,
            const WalkTokens& tokens) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonSchema;
  spec.text = question.at("schema").get<std::string>();
  if (question.value("annotate", false)) spec.unenforced = UnenforcedPolicy::kAnnotate;
  const auto constraint = build(spec, {});
  if (!constraint.ok()) return {{"refused", std::string(constraint.status().message())}};
  Json accepted = Json::array(), documents = Json::array();
  for (const Json& text : question.at("texts")) {
    accepted.push_back(Accepts(**constraint, text.get<std::string>()));
  }
  std::mt19937 random(question.at("seed").get<std::uint32_t>());
  int unfinished = 0;
  for (int walk = question.at("walks").get<int>(); walk > 0; --walk) {
    if (auto text = RandomWalk(**constraint, tokens, kMaxSteps, /*ends_in=*/2, &random)) {
      documents.push_back(*std::move(text));
    } else {
      ++unfinished;
    }
  }
  return {{"accepted", accepted},
          {"documents", documents},
          {"unfinished", unfinished},
          {"unenforced", (*constraint)->unenforced()}};
}

void AnswerAll() {
  WalkTokens tokens{.texts = SmallVocabulary(kVocabulary, 5), .closes = {}, .end = kEnd};
  for (const std::string& text : tokens.texts) tokens.closes.push_back(ClosesJson(text));
  const auto build = MakeConstraintBuildFunction({.tokens = tokens.texts});
  QUIRE_CHECK(build.ok());
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(Json::parse(line), *build, tokens).dump() << std::endl;
  }
}

}  // namespace
}  // namespace quire::engine

int main() {
  if (quire::engine::GrammarLibrary::Version().empty()) return 77;
  quire::engine::AnswerAll();
  return 0;
}

// Tests of constraints with the grammar library: the texts that a constraint allows, and masks,
// which allow a token exactly if it is accepted.

#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "engine/constraint/constraint_build.h"
#include "engine/constraint/constraint_grammar.h"
#include "engine/constraint/grammar_library.h"
#include "gtest/gtest.h"
#include "tests/engine/constraint/small_vocabulary.h"
#include "tests/testing/reason_of.h"
#include "tests/testing/waiting.h"

namespace quire::engine {
namespace {

ConstraintSpec Spec(ConstraintKind kind, std::string text) {
  ConstraintSpec spec;
  spec.kind = kind;
  spec.text = std::move(text);
  return spec;
}

class GrammarTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kVocabulary = 900;

  static void SetUpTestSuite() {
    if (GrammarLibrary::Version().empty()) return;
    tokens_ = new std::vector<std::string>(SmallVocabulary(kVocabulary, 5));
    auto build = MakeConstraintBuildFunction({.tokens = *tokens_});
    ASSERT_TRUE(build.ok()) << build.status();
    build_ = new ConstraintCompiler::BuildFunction(*std::move(build));
  }
  void SetUp() override {
    if (GrammarLibrary::Version().empty()) GTEST_SKIP() << "a build without structured output";
  }

  static std::int32_t End() { return static_cast<std::int32_t>(kVocabulary) - 1; }

  static std::unique_ptr<ConstraintMatcher> Matcher(const ConstraintSpec& spec) {
    auto constraint = (*build_)(spec, {});
    EXPECT_TRUE(constraint.ok()) << constraint.status();
    if (!constraint.ok()) return nullptr;
    const std::int32_t end[] = {End()};
    return (*constraint)->NewMatcher(end);
  }

  // True if the language contains the text. Accepts it byte by byte.
  static bool Allows(const ConstraintSpec& spec, absl::string_view text) {
    const auto matcher = Matcher(spec);
    if (matcher == nullptr) return false;
    for (const char byte : text) {
      if (!matcher->Accept(static_cast<unsigned char>(byte)).ok()) return false;
    }
    return matcher->Accept(End()).ok();
  }
  static bool RegexAllows(const char* regex, absl::string_view text) {
    return Allows(Spec(ConstraintKind::kRegex, regex), text);
  }
  static bool SchemaAllows(const char* schema, absl::string_view text) {
    return Allows(Spec(ConstraintKind::kJsonSchema, schema), text);
  }

  static const std::vector<std::string>* tokens_;
  static ConstraintCompiler::BuildFunction* build_;
};
const std::vector<std::string>* GrammarTest::tokens_ = nullptr;
ConstraintCompiler::BuildFunction* GrammarTest::build_ = nullptr;

bool Bit(const std::vector<std::uint32_t>& words, std::size_t token) {
  return (words[token / 32] >> (token % 32) & 1) != 0;
}

TEST_F(GrammarTest, MasksAllowExactlyTheTokensThatAreAccepted) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::vector<ConstraintSpec> specs = {
      Spec(ConstraintKind::kJsonObject, ""),
      Spec(ConstraintKind::kJsonSchema, R"({"type": "string", "minLength": 2, "maxLength": 5})"),
      Spec(ConstraintKind::kJsonSchema, R"({"type": "string", "maxLength": 20})"),
      Spec(ConstraintKind::kJsonSchema, R"({"properties": {"a": {"type": "number", "minimum": -1.5,
          "maximum": 55.05}, "é": {"type": "array", "items": {"type": "string"}, "minItems": 1,
          "maxItems": 3}}, "required": ["é"]})"),
      Spec(ConstraintKind::kRegex, "(?:[ab]{2,30}|\\u{1F600}*)é[^,]{0,9}"),
      Spec(ConstraintKind::kGrammar,
           "root ::= item+\nitem ::= \"a\" [^\"]{0,20} | \"[\" item \"]\""),
  };
  std::vector<std::uint32_t> words(MaskWords(kVocabulary));
  for (const ConstraintSpec& spec : specs) {
    for (int walk = 0; walk < 3; ++walk) {
      const auto matcher = Matcher(spec);
      ASSERT_NE(matcher, nullptr);
      std::string text;
      for (int step = 0; step < 12; ++step) {
        const auto summary = matcher->FillMask(words);
        ASSERT_TRUE(summary.ok()) << summary.status();
        ASSERT_TRUE(summary->may_end || summary->may_continue) << text;
        std::vector<std::int32_t> allowed;
        for (std::size_t token = 0; token < kVocabulary; ++token) {
          const auto fork = matcher->Fork();
          const bool accepted = fork->Accept(static_cast<std::int32_t>(token)).ok();
          ASSERT_EQ(accepted, Bit(words, token))
              << "token " << token << " \"" << absl::CHexEscape((*tokens_)[token]) << "\" after \""
              << absl::CHexEscape(text) << "\" of " << spec.text;
          if (accepted && token + 1 < kVocabulary) {
            allowed.push_back(static_cast<std::int32_t>(token));
          }
        }
        ASSERT_EQ(summary->may_continue, !allowed.empty());
        if (allowed.empty()) break;
        const std::int32_t next = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher->Accept(next).ok());
        text += (*tokens_)[static_cast<std::size_t>(next)];
        ASSERT_TRUE(matcher->CheckIntegrity().ok());
      }
    }
  }
}

// The vocabulary has runs of spaces and words with a leading space, like large vocabularies. Masks
// take no more steps here than elsewhere in the document.
TEST_F(GrammarTest, MasksOfIndentedDocumentsAreExactAndTakeFewSteps) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (std::size_t spaces = 2; spaces <= 128; ++spaces) tokens.emplace_back(spaces, ' ');
  for (char first = 'a'; first <= 'z'; ++first) {
    for (const char* rest : {"", "e", "he", "rue", "ull", "\":", "\",", "\"}"}) {
      tokens.push_back(absl::StrCat(" ", std::string(1, first), rest));
    }
  }
  tokens.insert(tokens.end(), {"{\n", "\n    ", " \"", "\":", "\",\n", ",\n\t", "}\n"});
  const std::size_t num_checked = tokens.size();
  for (int word = 0; word < 26 * 26 * 4; ++word) {
    std::string text = " ";
    for (int rest = word, i = 0; i < 3; ++i, rest /= 26) text += static_cast<char>('a' + rest % 26);
    tokens.push_back(std::move(text));
  }
  tokens.emplace_back();
  const auto library = GrammarLibrary::Create(tokens, {.token_steps = 2000});
  ASSERT_TRUE(library.ok()) << library.status();
  const auto grammar = WriteConstraint(
      Spec(ConstraintKind::kJsonSchema,
           R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value":
          {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
          "required": ["value", "next"], "additionalProperties": false}}})"));
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto constraint = (*library)->Compile(grammar->text);
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  const std::int32_t end[] = {static_cast<std::int32_t>(tokens.size()) - 1};
  for (const std::string& indent : {std::string(4, ' '), std::string(1, '\t')}) {
    const std::string document = absl::StrReplaceAll(
        "{\n>\"value\": \"on e\",\n>\"next\": {\n"
        ">>\"value\": \"\",\n>>\"next\":  null\n>}\r\n}",
        {{">", indent}, {":  ", ":\n" + std::string(40, ' ')}});
    const auto matcher = (*constraint)->NewMatcher(end);
    std::vector<std::uint32_t> words((*constraint)->mask_words());
    for (std::size_t at = 0; at < document.size(); ++at) {
      SCOPED_TRACE(absl::CHexEscape(document.substr(0, at)));
      ASSERT_TRUE(matcher->FillMask(words).ok());
      for (std::size_t token = 0; token < num_checked; ++token) {
        const bool accepted = matcher->Fork()->Accept(static_cast<std::int32_t>(token)).ok();
        ASSERT_EQ(accepted, Bit(words, token)) << absl::CHexEscape(tokens[token]);
      }
      ASSERT_TRUE(matcher->Accept(static_cast<unsigned char>(document[at])).ok());
    }
    EXPECT_TRUE(matcher->Accept(end[0]).ok());
  }
}

// "bba" follows "ba" in the order of tokens and contains it, but does not begin with it. So the
// rejection of "ba" does not imply that of "bba".
TEST_F(GrammarTest, RejectedTokenRejectsOnlyTokensThatBeginWithIt) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), {"ba", "bba", ""});
  const auto library = GrammarLibrary::Create(tokens);
  ASSERT_TRUE(library.ok()) << library.status();
  const auto constraint = (*library)->Compile("root ::= \"bba\" | \"bbc\"\n");
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  const std::vector<std::int32_t> end_tokens = {static_cast<std::int32_t>(tokens.size()) - 1};
  std::vector<std::uint32_t> words((*constraint)->mask_words());
  ASSERT_TRUE((*constraint)->NewMatcher(end_tokens)->FillMask(words).ok());
  EXPECT_TRUE(Bit(words, 'b'));
  EXPECT_FALSE(Bit(words, 256));  // "ba"
  EXPECT_TRUE(Bit(words, 257));   // "bba"
}

// The library can reuse the masks of a rule for other grammars. Some of these belong to a different
// rule.
TEST_F(GrammarTest, MasksDoNotDependOnEarlierCompilations) {
  const ConstraintSpec spec = Spec(ConstraintKind::kRegex, "([a-z]{2,5}|z+)[0-9]*9?");
  const auto masks = [&](const ConstraintCompiler::BuildFunction& build) {
    std::vector<std::vector<std::uint32_t>> masks;
    const auto matcher = build(spec, {}).value()->NewMatcher({});
    for (const char byte : std::string("abc09")) {
      masks.emplace_back((kVocabulary + 31) / 32);
      EXPECT_TRUE(matcher->FillMask(masks.back()).ok());
      EXPECT_TRUE(matcher->Accept(static_cast<unsigned char>(byte)).ok());
    }
    return masks;
  };
  const auto build = MakeConstraintBuildFunction({.tokens = *tokens_});
  ASSERT_TRUE(build.ok()) << build.status();
  for (const char* before : {"([:-z]{2,5}|z+)[0-9]*(x|y)?", "([:-z]{2,5}|z+)[0-9]*9?"}) {
    EXPECT_TRUE((*build)(Spec(ConstraintKind::kRegex, before), {}).ok());
  }
  const auto fresh = MakeConstraintBuildFunction({.tokens = *tokens_});
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ(masks(*build), masks(*fresh));
}

TEST_F(GrammarTest, ForkGivesTheMasksOfTheSameTokens) {
  std::mt19937 random(7);
  const ConstraintSpec spec = Spec(ConstraintKind::kJsonObject, "");
  auto matcher = Matcher(spec);
  std::vector<std::uint32_t> words(MaskWords(kVocabulary)), fork_words = words;
  for (int step = 0; step < 300; ++step) {
    ASSERT_TRUE(matcher->FillMask(words).ok());
    std::vector<std::int32_t> allowed;
    for (std::size_t token = 0; token < kVocabulary; ++token) {
      if (Bit(words, token)) allowed.push_back(static_cast<std::int32_t>(token));
    }
    if (allowed.empty()) {  // an end token was accepted
      matcher = Matcher(spec);
      continue;
    }
    const auto fork = matcher->Fork();
    const std::int32_t next = allowed[random() % allowed.size()];
    ASSERT_TRUE(fork->Accept(next).ok());
    ASSERT_EQ(fork->num_accepted(), matcher->num_accepted() + 1);
    ASSERT_TRUE(matcher->Accept(next).ok());
    ASSERT_TRUE(matcher->CheckIntegrity().ok());
    ASSERT_TRUE(fork->FillMask(fork_words).ok());
    ASSERT_TRUE(matcher->FillMask(words).ok());
    ASSERT_EQ(fork_words, words);
  }
}

TEST_F(GrammarTest, EndTokensAreAllowedWhereTheTextMayEnd) {
  const auto matcher = Matcher(Spec(ConstraintKind::kRegex, "ab?"));
  std::vector<std::uint32_t> words(MaskWords(kVocabulary));
  EXPECT_FALSE(matcher->Accept(End()).ok());
  ASSERT_TRUE(matcher->Accept('a').ok());
  auto summary = matcher->FillMask(words);
  EXPECT_TRUE(summary->may_end && summary->may_continue);
  EXPECT_TRUE(Bit(words, static_cast<std::size_t>(End())));
  ASSERT_TRUE(matcher->Accept('b').ok());
  summary = matcher->FillMask(words);
  EXPECT_TRUE(summary->may_end);
  EXPECT_FALSE(summary->may_continue);  // finished
  ASSERT_TRUE(matcher->Accept(End()).ok());
  EXPECT_FALSE(matcher->Accept(End()).ok());
}

std::string StageOf(const absl::Status& status) {
  const auto reason = GetErrorReason(status);
  if (!reason) return "";
  for (const auto& [key, value] : reason->metadata) {
    if (key == "stage") return value;
  }
  return "";
}

std::string GrammarOf(ConstraintKind kind, const std::string& text) {
  const auto grammar = WriteConstraint(Spec(kind, text));
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() ? grammar->text : "";
}

// Returns a grammar that takes long to compile.
std::string SlowGrammar(int size) {
  std::string optional;
  for (int i = 0; i < size; ++i) optional += "(a|b)?";
  return GrammarOf(ConstraintKind::kRegex, optional);
}

TEST_F(GrammarTest, CompilingEndsAtItsLimit) {
  const std::string object = GrammarOf(ConstraintKind::kJsonObject, "");
  const std::string slow = SlowGrammar(300);
  const auto compile = [](const GrammarLimits& limits, const std::string& grammar) {
    const auto library = GrammarLibrary::Create(*tokens_, limits);
    EXPECT_TRUE(library.ok()) << library.status();
    return (*library)->Compile(grammar).status();
  };
  EXPECT_TRUE(compile({}, object).ok());
  for (const absl::Status& status :
       {compile({.compile_steps = 1 << 20}, slow), compile({.compile_bytes = 1 << 10}, object)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(ReasonOf(status), "BAD_CONSTRAINT") << status;
    EXPECT_EQ(StageOf(status), "compile") << status;
    EXPECT_NE(std::string(status.message()).find("exceeds the limit of"), std::string::npos)
        << status;
  }
  EXPECT_TRUE(compile({.compile_steps = 1 << 20}, object).ok());  // on the same thread
}

TEST_F(GrammarTest, CompilingEndsWhenStopIsRequested) {
  const std::string object = GrammarOf(ConstraintKind::kJsonObject, "");
  const auto library = GrammarLibrary::Create(*tokens_);
  ASSERT_TRUE(library.ok()) << library.status();
  std::stop_source stop;
  EXPECT_TRUE((*library)->Compile(object, stop.get_token()).ok());
  stop.request_stop();
  EXPECT_TRUE(absl::IsCancelled((*library)->Compile(object, stop.get_token()).status()));
  EXPECT_TRUE((*library)->Compile(object).ok());  // on the same thread
}

absl::Duration ProcessorTimeOf(std::thread& thread) {
  clockid_t clock = {};
  timespec time = {};
  EXPECT_EQ(pthread_getcpuclockid(thread.native_handle(), &clock), 0);
  EXPECT_EQ(clock_gettime(clock, &time), 0);
  return absl::DurationFromTimespec(time);
}

TEST_F(GrammarTest, CompilingEndsInTheMiddleWhenStopIsRequested) {
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
  const std::string slow = SlowGrammar(900);
  const auto library =
      GrammarLibrary::Create(*tokens_, {.compile_steps = kNoLimit, .compile_bytes = kNoLimit});
  ASSERT_TRUE(library.ok()) << library.status();
  std::stop_source stop;
  absl::Status status;
  std::thread compiles([&] { status = (*library)->Compile(slow, stop.get_token()).status(); });
  // Compile checks the token before its first step. After 100 ms it is in the middle of the steps,
  // since all of them take a hundred times as long.
  EXPECT_TRUE(
      testing::WaitUntil([&] { return ProcessorTimeOf(compiles) > absl::Milliseconds(100); }));
  stop.request_stop();
  compiles.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

// Such rules only repeat each other. The library would expand them without end.
TEST_F(GrammarTest, RejectsRulesThatRepeatEachOther) {
  for (const char* text : {"root ::= a\na ::= a{0,3}", "root ::= a{0,3}\na ::= b{0,3}\nb ::= a{2}?",
                           "root ::= root{0,5}", "root ::= (a)*\na ::= (b){0,3}\nb ::= (a){0,2}"}) {
    const auto grammar = WriteConstraint(Spec(ConstraintKind::kGrammar, text));
    if (!grammar.ok()) continue;
    const auto constraint = (*build_)(Spec(ConstraintKind::kGrammar, text), {});
    if (!constraint.ok()) {
      EXPECT_EQ(ReasonOf(constraint.status()), "BAD_CONSTRAINT") << constraint.status();
    }
  }
  const auto itself = (*build_)(Spec(ConstraintKind::kGrammar, "root ::= a\na ::= a{0,3}"), {});
  EXPECT_EQ(StageOf(itself.status()), "compile") << itself.status();
}

// A matcher that exceeds its limit returns an error from then on, at the same token each time, and
// does not affect other matchers on its thread.
TEST_F(GrammarTest, MatchersFailAtTheirLimit) {
  const struct {
    const char* unit;
    ConstraintKind kind;
    const char* text;
    GrammarLimits limits;
  } cases[] = {
      {"steps",
       ConstraintKind::kGrammar,
       "root ::= root root | \"a\" | \"\"",
       {.token_steps = 1 << 14}},
      {"steps", ConstraintKind::kRegex, "((a{0,100}){0,100}){0,100}", {.token_steps = 1 << 14}},
      {"states", ConstraintKind::kRegex, "(a|b*)*", {.states = 1 << 10}},
  };
  const std::int32_t end[] = {End()};
  std::vector<std::uint32_t> words(MaskWords(kVocabulary));
  for (const auto& [unit, kind, text, limits] : cases) {
    const auto library = GrammarLibrary::Create(*tokens_, limits);
    ASSERT_TRUE(library.ok()) << library.status();
    const auto plain = (*library)->Compile(GrammarOf(ConstraintKind::kRegex, "a*"));
    ASSERT_TRUE(plain.ok()) << plain.status();
    const auto constraint = (*library)->Compile(GrammarOf(kind, text));
    ASSERT_TRUE(constraint.ok()) << constraint.status();
    std::vector<std::uint32_t> accepted;
    for (int run = 0; run < 2; ++run) {
      const auto matcher = (*constraint)->NewMatcher(end);
      const auto neighbour = (*plain)->NewMatcher(end);
      absl::Status status;
      while (status.ok()) {
        ASSERT_LT(matcher->num_accepted(), 5000u) << unit;
        status = matcher->FillMask(words).status();
        if (status.ok()) status = matcher->Accept('a');
        ASSERT_TRUE(matcher->CheckIntegrity().ok());
        ASSERT_TRUE(neighbour->FillMask(words).ok());
        if (matcher->num_accepted() < 100) {
          ASSERT_TRUE(neighbour->Accept('a').ok());
        }
      }
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_EQ(ReasonOf(status), "BAD_CONSTRAINT");
      EXPECT_EQ(StageOf(status), "limit");
      EXPECT_NE(std::string(status.message()).find(unit), std::string::npos) << status;
      EXPECT_EQ(matcher->Accept('a'), status);
      EXPECT_EQ(matcher->FillMask(words).status(), status);
      EXPECT_EQ(matcher->Fork()->Accept('a'), status);
      accepted.push_back(matcher->num_accepted());
      EXPECT_TRUE(matcher->CheckIntegrity().ok());
    }
    EXPECT_EQ(accepted[0], accepted[1]);
  }
}

TEST_F(GrammarTest, EnforcesRegularExpressions) {
  EXPECT_TRUE(RegexAllows("a{2,3}", "aa"));
  EXPECT_FALSE(RegexAllows("a{2,3}", "aaaa"));
  EXPECT_TRUE(RegexAllows("^(?:x|yz)+$", "xyzx"));
  EXPECT_TRUE(RegexAllows("[^a-c]\\d\\w\\s", "é5_ "));
  EXPECT_FALSE(RegexAllows(".", "\n"));
  EXPECT_TRUE(RegexAllows("\\u{1f600}\\x41\\cJ", "😀A\n"));
  EXPECT_TRUE(RegexAllows("\\ud83d\\ude00", "😀"));
  EXPECT_TRUE(RegexAllows("(?<name>a+?)[\\-\\]]", "aa]"));
}

TEST_F(GrammarTest, EnforcesChoicesAndGrammars) {
  ConstraintSpec choice;
  choice.kind = ConstraintKind::kChoice;
  choice.choices = {"yes", "yes, but", "no \"never\"\n"};
  EXPECT_TRUE(Allows(choice, "yes"));
  EXPECT_TRUE(Allows(choice, "yes, but"));
  EXPECT_TRUE(Allows(choice, "no \"never\"\n"));
  EXPECT_FALSE(Allows(choice, "yes, "));
  const ConstraintSpec list = Spec(ConstraintKind::kGrammar,
                                   "# a list\nroot ::= \"[\" (item (\",\" item)*)? \"]\"\n"
                                   "item ::= [0-9a-f]{1,3} | root  # nested\n");
  EXPECT_TRUE(Allows(list, "[]"));
  EXPECT_TRUE(Allows(list, "[1,[f0f],2]"));
  EXPECT_FALSE(Allows(list, "[1,]"));
}

TEST_F(GrammarTest, EnforcesCanonicalJson) {
  constexpr char kSchema[] = R"({"type": "object", "properties": {"b": {"type": "integer"},
      "a": {"type": ["string", "null"]}}, "required": ["b"], "additionalProperties": false})";
  EXPECT_TRUE(SchemaAllows(kSchema, R"({"b":1})"));
  EXPECT_TRUE(SchemaAllows(kSchema, R"({"b": 1, "a": "x\n\u00e9"})"));
  EXPECT_TRUE(SchemaAllows(kSchema, "{\n    \"b\": 1,\n    \"a\": null\n}"));
  EXPECT_FALSE(SchemaAllows(kSchema, R"({"a":null,"b":1})"));  // keys must have the schema's order
  EXPECT_FALSE(SchemaAllows(kSchema, R"({"b":1.0})"));
  EXPECT_FALSE(SchemaAllows(kSchema, R"({"b":01})"));
  EXPECT_FALSE(SchemaAllows(kSchema, R"({"b":1,"c":2})"));
  EXPECT_FALSE(SchemaAllows(kSchema, R"({"b":  1})"));  // whitespace is bounded
  EXPECT_FALSE(SchemaAllows(kSchema, "{\"b\":\n\n1}"));
  EXPECT_FALSE(SchemaAllows(kSchema, "\n{\"b\":1}"));
  EXPECT_FALSE(SchemaAllows(kSchema, "{\"b\":1, \"a\":\"\\ud800\"}"));  // half of a surrogate pair
  EXPECT_FALSE(SchemaAllows(kSchema, "{\"b\":1, \"a\":\"\xED\xA0\x80\"}"));
  EXPECT_TRUE(SchemaAllows(kSchema, "{\"b\":1, \"a\":\"\\ud83d\\ude00\"}"));
  ConstraintSpec compact = Spec(ConstraintKind::kJsonSchema, kSchema);
  compact.whitespace = JsonWhitespace::kCompact;
  EXPECT_TRUE(Allows(compact, R"({"b": 1, "a": "x"})"));
  EXPECT_FALSE(Allows(compact, R"({"b":1,"a":"x"})"));
  // A declared name may not be spelled with escapes.
  EXPECT_FALSE(SchemaAllows(R"({"properties": {"a": {"type": "null"}}})", R"({"\u0061":1})"));
  EXPECT_TRUE(SchemaAllows(R"({"properties": {"a": {"type": "null"}}})", R"({"a":null,"b":1})"));
}

// A node that is reached while its oneOf is compared is enforced completely at every position.
TEST_F(GrammarTest, RecursionThroughOneOfIsEnforced) {
  constexpr char kSchema[] = R"({"properties": {"e": {"$ref": "#/$defs/e"}},
      "required": ["e"], "additionalProperties": false, "$defs": {"e": {"oneOf": [
        {"type": "object", "properties": {"left": {"$ref": "#/$defs/e"}, "op": {"const": "+"}},
         "required": ["left", "op"], "additionalProperties": false},
        {"type": "object", "properties": {"left": {"type": "null"}, "op": {"const": "0"}},
         "required": ["left", "op"], "additionalProperties": false}]}}})";
  EXPECT_TRUE(SchemaAllows(kSchema, R"({"e":{"left":null,"op":"0"}})"));
  EXPECT_TRUE(SchemaAllows(kSchema, R"({"e":{"left":{"left":null,"op":"0"},"op":"+"}})"));
  EXPECT_FALSE(SchemaAllows(kSchema, R"({"e":{"left":null,"op":"+"}})"));
  EXPECT_FALSE(SchemaAllows(kSchema, R"({"e":{"left":{"left":7,"op":"0"},"op":"+"}})"));
  EXPECT_FALSE(SchemaAllows(kSchema, R"({"e":{"left":[],"op":"+"}})"));
}

TEST_F(GrammarTest, RangesAgreeWithArithmetic) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto decimal = [&] {
    const int places = static_cast<int>(random() % 3);
    const std::int64_t digits = static_cast<std::int64_t>(random() % 400) - 200;
    return std::pair(digits, places);
  };
  const auto value = [](std::pair<std::int64_t, int> d) {  // in hundredths
    return d.first * (d.second == 0 ? 100 : d.second == 1 ? 10 : 1);
  };
  const auto text = [](std::int64_t hundredths) {
    const std::int64_t magnitude = std::abs(hundredths);
    std::string out = absl::StrCat(hundredths < 0 ? "-" : "", magnitude / 100);
    if (magnitude % 100 != 0) {
      absl::StrAppend(&out, ".", magnitude / 10 % 10);
      if (magnitude % 10 != 0) absl::StrAppend(&out, magnitude % 10);
    }
    return out;
  };
  for (int i = 0; i < 60; ++i) {
    const std::int64_t low = value(decimal()),
                       high = low + static_cast<std::int64_t>(random() % 900);
    const bool integers = random() % 2 == 0, above = random() % 2 == 0, below = random() % 2 == 0;
    const std::string schema =
        absl::StrCat(R"({"type": ")", integers ? "integer" : "number", R"(", ")",
                     above ? "exclusiveMinimum" : "minimum", R"(": )", text(low), R"(, ")",
                     below ? "exclusiveMaximum" : "maximum", R"(": )", text(high), "}");
    const auto constraint = (*build_)(Spec(ConstraintKind::kJsonSchema, schema), {});
    bool any = false;
    for (std::int64_t x = low - 120; x <= high + 120; ++x) {
      const bool inside = (above ? x > low : x >= low) && (below ? x < high : x <= high) &&
                          (!integers || x % 100 == 0);
      any |= inside;
      if (!constraint.ok()) continue;
      const std::int32_t end[] = {End()};
      const auto matcher = (*constraint)->NewMatcher(end);
      bool accepted = true;
      for (const char byte : text(x)) {
        accepted = accepted && matcher->Accept(static_cast<unsigned char>(byte)).ok();
      }
      accepted = accepted && matcher->Accept(End()).ok();
      ASSERT_EQ(accepted, inside) << text(x) << " and " << schema;
    }
    if (!integers && low == high && (above || below)) any = false;
    if (integers) {
      ASSERT_EQ(constraint.ok(), any) << schema << constraint.status();
    }
  }
}

TEST_F(GrammarTest, MultiplesAgreeWithArithmetic) {
  for (const int divisor : {2, 7, 10, 25, 97}) {
    const auto constraint =
        (*build_)(Spec(ConstraintKind::kJsonSchema,
                       absl::StrCat(R"({"type": "integer", "multipleOf": )", divisor, "}")),
                  {});
    ASSERT_TRUE(constraint.ok()) << constraint.status();
    for (int x = -210; x <= 210; ++x) {
      const std::int32_t end[] = {End()};
      const auto matcher = (*constraint)->NewMatcher(end);
      bool accepted = true;
      for (const char byte : absl::StrCat(x)) {
        accepted = accepted && matcher->Accept(static_cast<unsigned char>(byte)).ok();
      }
      ASSERT_EQ(accepted && matcher->Accept(End()).ok(), x % divisor == 0) << x << " " << divisor;
    }
  }
}

std::string PointerOf(const absl::Status& status) {
  const auto reason = GetErrorReason(status);
  if (!reason) return "";
  for (const auto& [key, value] : reason->metadata) {
    if (key == "pointer") return value;
  }
  return "";
}

// Errors of schemas contain the JSON pointer.
TEST(ConstraintGrammarTest, ErrorsOfSchemasNameThePointer) {
  const struct {
    const char* schema;
    const char* pointer;
    const char* says;
  } cases[] = {
      {R"({"maxlength": 3})", "/maxlength", "did you mean maxLength"},
      {R"({"properties": {"a/b": {"contains": {}}}})", "/properties/a~1b/contains",
       "not supported"},
      {R"({"$ref": "http://x/y"})", "/$ref", "other documents are not fetched"},
      {R"({"$ref": "#"})", "/$ref", "refers to itself"},
      {R"({"format": 3})", "/format", "name of a format"},
      {R"({"type": "strin"})", "/type", "no type"},
      {R"j({"pattern": "(?=a)"})j", "/pattern", "look-around"},
      {R"({"pattern": "a\\b"})", "/pattern", "\\b is not supported"},
      {R"({"multipleOf": 0.123456})", "/multipleOf", "is 0.123456; the supported numbers"},
      {R"({"uniqueItems": true})", "/uniqueItems", "maxItems"},
      {R"({"oneOf": [{"type": "string"}, {"maxLength": 3}]})", "/oneOf",
       "both branch 0 and branch 1"},
      {R"({"not": {"required": ["a"]}})", "/not", "only with a type"},
      {R"({"if": {}, "then": {}})", "/if", "anyOf"},
      {R"({"if": {"prefixItems": [{}]}, "unevaluatedItems": false})", "/if", "anyOf"},
      {R"({"$schema": "http://json-schema.org/draft-03/schema#"})", "/$schema", "2020-12"},
      {R"({"$schema": "http://x/no-validation.json", "minimum": 3})", "/$schema", "2020-12"},
      {R"({"$ref": "#a", "$defs": {"b": {"const": {"$anchor": "a"}}, "c": {"$anchor": "a"}}})",
       "/$ref", "twice"},
      {R"({"minProperties": 2})", "/minProperties", "repeated"},
      {R"({"properties": {"x": {"$dynamicRef": "#a"}}})", "/properties/x/$dynamicRef", "supported"},
      {R"({"type": "string", "pattern": "^a*b*$", "maxLength": 3})", "/maxLength", "any number"},
      {R"({"enum": []})", "", "no value"},
      {R"({"required": ["a"], "properties": {"a": false}, "type": "object"})", "", "no value"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "",
       "no value"},
  };
  for (const auto& c : cases) {
    const auto grammar = WriteConstraint(Spec(ConstraintKind::kJsonSchema, c.schema));
    ASSERT_FALSE(grammar.ok()) << c.schema;
    EXPECT_EQ(ReasonOf(grammar.status()), "BAD_CONSTRAINT") << c.schema;
    EXPECT_EQ(PointerOf(grammar.status()), c.pointer) << c.schema << grammar.status();
    EXPECT_NE(std::string(grammar.status().message()).find(c.says), std::string::npos)
        << grammar.status();
  }
}

TEST(ConstraintGrammarTest, ReportsAllReasons) {
  const auto grammar = WriteConstraint(
      Spec(ConstraintKind::kJsonSchema,
           R"({"properties": {"a": {"contains": 1}, "b": {"foo": 1}}, "if": true, "then": true})"));
  const std::string message(grammar.status().message());
  for (const char* pointer : {"/properties/a/contains", "/properties/b/foo", "/if"}) {
    EXPECT_NE(message.find(pointer), std::string::npos) << message;
  }
}

TEST(ConstraintGrammarTest, ErrorsOfExpressionsAndGrammarsNameThePosition) {
  const auto refused = [](ConstraintKind kind, const char* text, const char* says) {
    const auto grammar = WriteConstraint(Spec(kind, text));
    ASSERT_FALSE(grammar.ok()) << text;
    EXPECT_EQ(ReasonOf(grammar.status()), "BAD_CONSTRAINT");
    EXPECT_NE(std::string(grammar.status().message()).find(says), std::string::npos)
        << grammar.status();
  };
  refused(ConstraintKind::kRegex, "ab(c", "at character 2");
  refused(ConstraintKind::kRegex, "a**", "at character 2");
  refused(ConstraintKind::kRegex, "\\1", "at character 0");
  refused(ConstraintKind::kRegex, "a{1,99999}", "counts must be at most");
  refused(ConstraintKind::kRegex, "x\xFF", "UTF-8");
  refused(ConstraintKind::kGrammar, "root ::= a", "line 1, column 10: there is no rule \"a\"");
  refused(ConstraintKind::kGrammar, "a ::= \"b\"", "there is no rule \"root\"");
  refused(ConstraintKind::kGrammar, "root ::= \"a\n\"", "the literal or class is not closed");
  refused(ConstraintKind::kGrammar, "root ::= \"a\" root", "no text matches");
  refused(ConstraintKind::kGrammar, "root ::= TagDispatch((\"a\", root))", "line 1");
  refused(ConstraintKind::kChoice, "", "0 values");
}

std::string Repeated(absl::string_view part, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) absl::StrAppend(&out, part);
  return out;
}

// Returns part(0) to part(count - 1) and `last`, separated by commas.
template <typename Part>
std::string Listed(int count, const Part& part, absl::string_view last = "") {
  std::string out;
  for (int i = 0; i < count; ++i) absl::StrAppend(&out, i > 0 ? "," : "", part(i));
  return last.empty() ? out : absl::StrCat(out, ",", last);
}

std::string Definitions(int count, const std::function<std::string(int)>& schema,
                        absl::string_view last) {
  const auto named = [&](int i) { return absl::StrCat("\"d", i, "\":", schema(i)); };
  return absl::StrCat(R"({"$ref":"#/$defs/d0","$defs":{)",
                      Listed(count, named, absl::StrCat("\"d", count, "\":", last)), "}}");
}

std::string ChainOfRules(int count) {
  std::string out = "root ::= a0\n";
  for (int i = 0; i < count; ++i) absl::StrAppend(&out, "a", i, " ::= a", i + 1, " | \"b\"\n");
  return absl::StrCat(out, "a", count, " ::= \"a\"\n");
}

// Returns a member of an object.
std::string Member(absl::string_view name, absl::string_view value) {
  return absl::StrCat("\"", name, "\":", value);
}

// The input is designed to take much time or memory. A limit must reject it soon. Recursion over it
// would overflow the stack, in sanitizer builds first.
void ExpectRefused(ConstraintKind kind, const std::string& text, const std::string& says) {
  const absl::Time start = MonotonicNow();
  const auto grammar = WriteConstraint(Spec(kind, text));
  EXPECT_LT(MonotonicNow() - start, absl::Seconds(20)) << text.substr(0, 80);
  ASSERT_FALSE(grammar.ok()) << text.substr(0, 80);
  EXPECT_EQ(ReasonOf(grammar.status()), "BAD_CONSTRAINT") << grammar.status();
  const std::string message(grammar.status().message());
  EXPECT_NE(message.find(says), std::string::npos) << message << "\nwithout: " << says;
  EXPECT_LT(message.size(), 2000u);
}
void ExpectSchemaRefused(const std::string& text, const std::string& says) {
  ExpectRefused(ConstraintKind::kJsonSchema, text, says);
}

// Returns 1024 alternatives.
std::string Ways() {
  const auto titled = [](int i) { return absl::StrCat("{\"title\":\"", i, "\"}"); };
  return absl::StrCat("\"anyOf\":[", Listed(1024, titled), "]");
}

TEST(ConstraintGrammarTest, RejectsHostileSchemasByTheirSize) {
  const auto empty = [](int i) { return Member(absl::StrCat("k", i), "{}"); };
  const auto anchor = [](int i) {
    return Member(absl::StrCat(i), absl::StrCat(R"({"$anchor":"a)", i, "\"}"));
  };
  ExpectSchemaRefused(Repeated("[", 1 << 20), "deeper than 128");
  ExpectSchemaRefused(Repeated(R"({"not":)", 100'000), "deeper than 128");
  ExpectSchemaRefused(absl::StrCat(R"({"properties":{)", Listed(21'000, empty), "}}"),
                      "more than 4096 members");
  ExpectSchemaRefused(absl::StrCat(R"({"properties":{)", Listed(600, empty), "}}"),
                      "declares 600 names, the limit is 512");
  ExpectSchemaRefused(absl::StrCat(R"({"$defs":{)", Listed(300, anchor), "}}"),
                      "more than 256 anchors");
}

TEST(ConstraintGrammarTest, ChainsOfReferencesAreBounded) {
  const auto next = [](int i) { return absl::StrCat(R"({"$ref":"#/$defs/d)", i + 1, "\"}"); };
  const auto with = [&](absl::string_view before, absl::string_view behind) {
    return [=](int i) { return absl::StrCat(before, next(i), behind); };
  };
  // The chains include references that are read within one another and references that are not.
  ExpectSchemaRefused(Definitions(3000, with(R"({"oneOf":[)", R"(,{"type":"null"}]})"), "{}"),
                      "nested more than 256 deep");
  ExpectSchemaRefused(Definitions(3000, with(R"({"enum":[[[]],[]],"items":)", "}"), "{}"),
                      "nested more than 256 deep");
  ExpectSchemaRefused(Definitions(3000, with(R"({"properties":{"a":)", "}}"), "{}"),
                      "exceeds 524288 bytes");
}

// Each of many alternatives would compare or copy these values, expressions and names.
TEST(ConstraintGrammarTest, RejectsHostileSchemasByTheirSteps) {
  const auto number = [](int i) { return absl::StrCat(i); };
  const auto named = [](int i) { return Member(absl::StrCat(Repeated("n", 100), i), "{}"); };
  const std::string says = "reading the schema exceeds";
  // allOf and anyOf combine in 2^40 ways.
  ExpectSchemaRefused(
      R"({"allOf":[)" + Repeated(R"({"anyOf":[{"minLength":1},{"maxLength":9}]},)", 40) + "{}]}",
      "more than 1024 combinations");
  ExpectSchemaRefused(absl::StrCat(R"({"enum":[)", Listed(4096, number), "],", Ways(), "}"), says);
  ExpectSchemaRefused(absl::StrCat(R"({"maxLength":8010,"pattern":"^)", Repeated("ab", 4000),
                                   "c*$\",", Ways(), "}"),
                      says);
  ExpectSchemaRefused(absl::StrCat(R"({"properties":{)", Listed(500, named), "},", Ways(), "}"),
                      says);
  // The expression is compared with a text.
  ExpectSchemaRefused(
      absl::StrCat(R"({"additionalProperties":false,"properties":{)",
                   Member(Repeated("n", 100'000), "{}"), R"(},"patternProperties":{"^)",
                   Repeated("n*", 1000), "$\":{}}}"),
      says);
}

TEST(ConstraintGrammarTest, LongNamesAreTruncatedInMessages) {
  const std::string name = Repeated("n", 100'000);
  const auto wrong = [](int i) { return Member(absl::StrCat(i), R"({"foo":1})"); };
  ExpectSchemaRefused(absl::StrCat(R"({"properties":{)", Member(name, R"({"properties":{)"),
                                   Listed(512, wrong), "}}}}"),
                      "is not a known keyword");
  ExpectSchemaRefused(absl::StrCat("{", Member(name, "1"), "}"), "is not a known keyword");
  ExpectSchemaRefused(absl::StrCat(R"({"type":")", Repeated("é", 100'000), "\"}"), "no type");
  ExpectRefused(ConstraintKind::kGrammar, "root ::= " + name, "no rule");
}

TEST(ConstraintGrammarTest, RejectsHostileExpressionsAndGrammars) {
  ExpectRefused(ConstraintKind::kRegex, Repeated("(", 1 << 20), "deeper than 100");
  ExpectRefused(ConstraintKind::kRegex, Repeated("a", 20'000), "more than 8192 characters");
  ExpectRefused(ConstraintKind::kRegex, Repeated("(a|b)?", 20'000), "more than 1024 repetitions");
  ExpectRefused(ConstraintKind::kRegex, Repeated("\\S", 8000), "exceeds 524288 bytes");
  ExpectRefused(ConstraintKind::kGrammar, "root ::= " + Repeated("[ab]", 10'000),
                "more than 4096 elements");
  ExpectRefused(ConstraintKind::kGrammar, "root ::= " + Repeated("[ab]?", 2000),
                "more than 1024 repetitions");
  ExpectRefused(ConstraintKind::kGrammar, "root ::= " + Repeated("(", 1 << 20), "deeper than 100");
  ExpectRefused(ConstraintKind::kGrammar, ChainOfRules(12'000), "more than 1024 rules");
  ExpectRefused(ConstraintKind::kGrammar, "root ::= (root | \"a\" root)",
                "column 10: no text matches the group");
}

// Schemas near the limits, which are larger than real schemas, are compiled.
TEST(ConstraintGrammarTest, CompilesLargeInput) {
  const auto written = [](ConstraintKind kind, const std::string& text) {
    const auto grammar = WriteConstraint(Spec(kind, text));
    EXPECT_TRUE(grammar.ok()) << grammar.status();
  };
  const auto text = [](int i) { return absl::StrCat("\"value", i, "\""); };
  written(ConstraintKind::kJsonSchema,
          absl::StrCat(R"({"properties":{)",
                       Listed(512, [](int i) { return absl::StrCat("\"key", i, "\":{}"); }), "}}"));
  written(ConstraintKind::kJsonSchema, absl::StrCat(R"({"enum":[)", Listed(4096, text), "]}"));
  written(ConstraintKind::kJsonSchema,
          absl::StrCat(R"({"oneOf":[)",
                       Listed(500,
                              [](int i) {
                                return absl::StrCat(R"({"type":"object","required":["kind"],)",
                                                    R"("properties":{"kind":{"const":"k)", i,
                                                    "\"}}}");
                              }),
                       "]}"));
  written(ConstraintKind::kRegex, Repeated("[^a-c]", 8000));
  written(ConstraintKind::kGrammar, ChainOfRules(1000));
}

// The text is free up to a marker of sixteen letters. The states of the marker differ in two first
// letters, and the vocabulary is scanned once for all of them.
TEST(FreeTextTest, MasksOfEqualStatesAreComputedOnce) {
  if (GrammarLibrary::Version().empty()) GTEST_SKIP() << "a build without structured output";
  std::vector<std::string> tokens;
  const std::string letters = "abcdefghijklmnopqrstuvwxyz";
  for (const char a : letters) {
    tokens.emplace_back(1, a);
    for (const char b : letters) {
      tokens.push_back({a, b});
      for (const char c : letters) tokens.push_back({a, b, c});
    }
  }
  const std::string marker = letters.substr(0, 16);
  std::string grammar = "root ::= q0 \"!\"\nq0 ::= [^a] q0 | \"a\" q1\n";
  for (std::size_t i = 1; i < marker.size(); ++i) {
    const bool is_last = i + 1 == marker.size();
    absl::StrAppend(&grammar, "q", i, " ::= [^a", marker.substr(i, 1), "] q0 | \"a\" q1 | \"",
                    marker.substr(i, 1), "\"", is_last ? "" : absl::StrCat(" q", i + 1), "\n");
  }
  tokens.push_back("!");
  const auto library = GrammarLibrary::Create(tokens, {.compile_steps = 1 << 19});
  ASSERT_TRUE(library.ok()) << library.status();
  const auto constraint = (*library)->Compile(grammar);
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  std::vector<std::uint32_t> words((*constraint)->mask_words());
  for (const std::size_t length : {0, 1, 2, 9, 15, 16}) {
    const auto matcher = (*constraint)->NewMatcher({});
    for (const char c : marker.substr(0, length)) {
      const auto token = std::ranges::find(tokens, std::string(1, c)) - tokens.begin();
      ASSERT_TRUE(matcher->Accept(static_cast<std::int32_t>(token)).ok());
    }
    ASSERT_TRUE(matcher->FillMask(words).ok());
    for (std::size_t token = 0; token < tokens.size(); ++token) {
      const bool is_allowed = (words[token / 32] >> (token % 32) & 1) != 0;
      // The marker ends the free text, and only "!" may follow it.
      const std::string text = marker.substr(0, length) + tokens[token];
      const std::size_t end = text.find(marker);
      const std::string rest = end == std::string::npos ? "" : text.substr(end + marker.size());
      const bool fits = rest.empty() || rest == "!";
      ASSERT_EQ(is_allowed, fits) << text;
    }
  }
}

}  // namespace
}  // namespace quire::engine

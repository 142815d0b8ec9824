// Free text with constrained sections, compared with an exhaustive reader of such texts. Special
// tokens are allowed as markers and nowhere else.

#include "engine/constraint/tag_grammar.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/constraint/constraint_build.h"
#include "engine/constraint/grammar_library.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reason_of.h"
#include "text/tools/tool_format.h"

namespace quire::engine {
namespace {

// The vocabulary has all bytes, then an end token, then these special tokens.
constexpr std::int32_t kEnd = 256;
const std::vector<std::string> kSpecial = {"<s>", "<s>a", "</s>", "<other>"};
const std::vector<std::string> kPlain = {"ab", "ba", "aab", "abb", "bab", "xa", "b<", "[ab", "]a"};

class TagGrammarTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (GrammarLibrary::Version().empty()) return;
    ConstraintVocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte) {
      vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    }
    vocabulary.tokens.emplace_back();
    for (const std::string& text : kSpecial) {
      vocabulary.special.emplace_back(text, static_cast<std::int32_t>(vocabulary.tokens.size()));
      vocabulary.tokens.emplace_back();
    }
    for (const std::string& text : kPlain) vocabulary.tokens.push_back(text);
    size_ = vocabulary.tokens.size();
    auto build = MakeConstraintBuildFunction(vocabulary);
    ASSERT_TRUE(build.ok()) << build.status();
    build_ = new ConstraintCompiler::BuildFunction(*std::move(build));
  }
  void SetUp() override {
    if (GrammarLibrary::Version().empty()) GTEST_SKIP() << "the build has no structured output";
  }

  static std::unique_ptr<ConstraintMatcher> Matcher(const ConstraintSpec& spec) {
    auto constraint = (*build_)(spec, {});
    EXPECT_TRUE(constraint.ok()) << constraint.status();
    return constraint.ok() ? (*constraint)->NewMatcher({&kEnd, 1}) : nullptr;
  }
  static std::int32_t Special(const std::string& text) {
    const auto at = std::ranges::find(kSpecial, text) - kSpecial.begin();
    return kEnd + 1 + static_cast<std::int32_t>(at);
  }
  static bool Accept(ConstraintMatcher& matcher, absl::string_view bytes) {
    return std::ranges::all_of(
        bytes, [&](char byte) { return matcher.Accept(static_cast<unsigned char>(byte)).ok(); });
  }

  static std::size_t size_;
  static ConstraintCompiler::BuildFunction* build_;
};
std::size_t TagGrammarTest::size_ = 0;
ConstraintCompiler::BuildFunction* TagGrammarTest::build_ = nullptr;

ConstraintSpec TagSpec(const std::vector<std::string>& triggers,
                       const std::vector<ConstraintTag>& tags) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kStructuralTags;
  spec.triggers = triggers;
  spec.tags = tags;
  return spec;
}

ConstraintTag Tag(std::string begin, std::string regex, std::string end) {
  return {.begin = std::move(begin),
          .kind = ConstraintKind::kRegex,
          .text = std::move(regex),
          .end = std::move(end)};
}

// Returns where the first trigger in `text` ends, or npos if there is none.
std::size_t EndOfFreeText(absl::string_view text, const std::vector<std::string>& triggers) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    for (const std::string& trigger : triggers) {
      if (absl::EndsWith(text.substr(0, end), trigger)) return end;
    }
  }
  return absl::string_view::npos;
}

// Returns whether `text` consists of free text and of tags whose contents are [x] and any number of
// x.
bool IsTagged(absl::string_view text, const ConstraintSpec& spec, bool needs_tag) {
  const std::size_t end = EndOfFreeText(text, spec.triggers);
  if (end == absl::string_view::npos) return !needs_tag;
  for (const std::string& trigger : spec.triggers) {
    if (!absl::EndsWith(text.substr(0, end), trigger)) continue;
    for (const ConstraintTag& tag : spec.tags) {
      if (!absl::StartsWith(tag.begin, trigger)) continue;
      absl::string_view rest = text.substr(end - trigger.size());
      if (!absl::ConsumePrefix(&rest, tag.begin)) continue;
      for (std::size_t xs = 0;; ++xs) {
        absl::string_view behind = rest.substr(xs);
        if (absl::ConsumePrefix(&behind, tag.end) &&
            (spec.stop_after_first_tag ? behind.empty() : IsTagged(behind, spec, false))) {
          return true;
        }
        if (xs == rest.size() || rest[xs] != 'x') break;
      }
    }
  }
  return false;
}

TEST_F(TagGrammarTest, TextsAgreeWithAnExhaustiveReader) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto text_of = [&](std::size_t max, absl::string_view letters) {
    std::string text;
    for (auto size = 1 + random() % max; size > 0; --size) {
      text += letters[random() % letters.size()];
    }
    return text;
  };
  int accepted = 0, refused = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> triggers;
    std::vector<ConstraintTag> tags;
    for (auto count = 1 + random() % 3; count > 0; --count) {
      const std::string trigger = text_of(4, "ab");
      if (std::ranges::count(triggers, trigger) > 0) continue;
      triggers.push_back(trigger);
      for (auto more = 1 + random() % 2; more > 0; --more) {
        tags.push_back(
            Tag(trigger + (random() % 2 == 0 ? "" : text_of(2, "abx")), "x*", text_of(2, "abc")));
      }
    }
    ConstraintSpec spec = TagSpec(triggers, tags);
    spec.at_least_one_tag = random() % 2 == 0;
    spec.stop_after_first_tag = random() % 2 == 0;
    const auto empty = Matcher(spec);
    ASSERT_NE(empty, nullptr);
    for (int i = 0; i < 300; ++i) {
      const std::string text = random() % 8 == 0 ? "" : text_of(14, i % 2 == 0 ? "abx" : "aabbxc");
      const auto matcher = empty->Fork();
      const bool is_allowed = Accept(*matcher, text) && matcher->Accept(kEnd).ok();
      ASSERT_EQ(is_allowed, IsTagged(text, spec, spec.at_least_one_tag))
          << text << " with " << absl::StrJoin(triggers, " ") << ", at least one "
          << spec.at_least_one_tag << ", stops " << spec.stop_after_first_tag << "; tags "
          << absl::StrJoin(tags, " ", [](std::string* out, const ConstraintTag& tag) {
               absl::StrAppend(out, tag.begin, "..", tag.end);
             });
      (is_allowed ? accepted : refused) += 1;
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 500);
}

TEST_F(TagGrammarTest, MasksAllowExactlyTheTokensThatAreAccepted) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::vector<ConstraintSpec> specs = {
      TagSpec({"ab"}, {Tag("ab[", "[ab]{1,3}", "]"), Tag("ab", "b*", "")}),
      TagSpec({"<s>", "b<"},
              {Tag("<s>", "a*", "</s>"), Tag("<s>a", "x", "</s>"), Tag("b<", "a", "<other>")}),
  };
  std::vector<std::uint32_t> words(MaskWords(static_cast<std::uint32_t>(size_)));
  for (ConstraintSpec spec : specs) {
    for (int walk = 0; walk < 4; ++walk) {
      spec.at_least_one_tag = walk % 2 == 0;
      const auto matcher = Matcher(spec);
      ASSERT_NE(matcher, nullptr);
      for (int step = 0; step < 25; ++step) {
        const auto summary = matcher->FillMask(words);
        ASSERT_TRUE(summary.ok()) << summary.status();
        ASSERT_TRUE(summary->may_end || summary->may_continue);
        std::vector<std::int32_t> allowed, telling;
        for (std::size_t token = 0; token < size_; ++token) {
          const auto id = static_cast<std::int32_t>(token);
          const bool is_accepted = matcher->Fork()->Accept(id).ok();
          ASSERT_EQ(is_accepted, (words[token / 32] >> (token % 32) & 1) != 0) << token;
          if (!is_accepted || id == kEnd) continue;
          allowed.push_back(id);
          if (id > kEnd || absl::StrContains("ab<[]x", static_cast<char>(id)))
            telling.push_back(id);
        }
        if (allowed.empty()) break;
        const auto& from = telling.empty() || random() % 4 == 0 ? allowed : telling;
        ASSERT_TRUE(matcher->Accept(from[random() % from.size()]).ok());
        ASSERT_TRUE(matcher->CheckIntegrity().ok());
      }
    }
  }
}

TEST_F(TagGrammarTest, SpecialTokensAreAllowedAsMarkersOnly) {
  const ConstraintSpec spec = TagSpec({"<s>"}, {Tag("<s>", "[^z]*", "</s>")});
  const auto matcher = Matcher(spec);
  ASSERT_NE(matcher, nullptr);
  ASSERT_TRUE(Accept(*matcher, "free </s> <"));
  EXPECT_FALSE(matcher->Fork()->Accept(Special("<other>")).ok());
  EXPECT_FALSE(matcher->Fork()->Accept(Special("</s>")).ok());
  // The marker spelled in letters also starts a tag. Its end is the token.
  for (const bool is_token : {false, true}) {
    const auto tag = matcher->Fork();
    ASSERT_TRUE(is_token ? tag->Accept(Special("<s>")).ok() : Accept(*tag, "s>"));
    EXPECT_FALSE(tag->Fork()->Accept(Special("<s>")).ok());
    EXPECT_FALSE(tag->Fork()->Accept(kEnd).ok());
    ASSERT_TRUE(Accept(*tag, "text </s>"));
    EXPECT_FALSE(tag->Fork()->Accept(kEnd).ok());
    ASSERT_TRUE(tag->Accept(Special("</s>")).ok());
    EXPECT_TRUE(Accept(*tag, " free again"));
    EXPECT_TRUE(tag->Accept(kEnd).ok());
  }
}

TEST_F(TagGrammarTest, RejectsBadTagsByField) {
  const std::string long_text(kMaxMarkerBytes + 1, 'a');
  struct Bad {
    ConstraintSpec spec;
    const char* words;
  };
  for (const Bad& bad : {
           Bad{TagSpec({}, {Tag("a", "x", "")}), "triggers has 0 texts"},
           Bad{TagSpec({""}, {Tag("a", "x", "")}), "triggers[0] has 0 bytes"},
           Bad{TagSpec({"a", "a"}, {Tag("a", "x", "")}),
               "triggers[1] is \"a\", which is already used by an earlier trigger"},
           Bad{TagSpec({"a", "b"}, {Tag("a", "x", "")}),
               "triggers[1] is \"b\", but no tag begins with it"},
           Bad{TagSpec({"a<s>"}, {Tag("a<s>", "x", "")}), "triggers[0] contains the special token"},
           Bad{TagSpec({"a"}, {}), "tags has 0 tags"},
           Bad{TagSpec({"a"}, {Tag("a", "x", ""), Tag("ba", "x", "")}), "tags[1].begin is \"ba\""},
           Bad{TagSpec({"a"}, {Tag("a", "x", "\xFF")}), "tags[0].end is not UTF-8"},
           Bad{TagSpec({"a"}, {Tag(long_text, "x", "")}), "tags[0].begin has 1025 bytes"},
           Bad{TagSpec({"a"}, {Tag("a", "(", "")}), "the place: "},
       }) {
    ConstraintSpec spec = bad.spec;
    for (ConstraintTag& tag : spec.tags) tag.field = "the place";
    const absl::Status refused = (*build_)(spec, {}).status();
    EXPECT_EQ(ReasonOf(refused), "BAD_CONSTRAINT") << bad.words;
    EXPECT_TRUE(absl::StrContains(refused.message(), bad.words)) << refused;
  }
}

TEST_F(TagGrammarTest, RejectsTagArgumentsThatCannotBeReadBack) {
  struct Bad {
    const char *schema, *words;
  };
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kToolCalls;
  spec.tool_format = text::FindToolFormat("qwen3-coder");
  spec.tags = {{.begin = "f", .field = "the place"}};
  for (const Bad& bad : {
           Bad{R"({"properties": {"a": {"type": "string", "maxLength": 3}}})",
               "/properties/a/maxLength"},
           Bad{R"({"properties": {"a": {"type": ["string", "null"]}}})", "/properties/a/type"},
           Bad{R"({"properties": {"a": {"type": "string", "enum": ["x<"]}}})", "\"x<\""},
           Bad{R"({"properties": {"a": {"enum": [["x<"]]}}})", "/properties/a: "},
           Bad{R"({"properties": {"a": {"items": {"pattern": "x"}}}})", "/properties/a: "},
           Bad{R"({"properties": {"a>": {}}})", "a name must consist of"},
           Bad{R"({"properties": {"a": {"$ref": "#/$defs/d"}}, "$defs": {"d": {"enum": [["<"]]}}})",
               "/$defs: "},
           Bad{R"({"required": ["b"]})", "/required: \"b\""},
           Bad{R"({"minProperties": 1})", "/minProperties"},
           Bad{R"({"properties": {"a": {"minimun": 1}}})", "/properties/a/minimun"},
           Bad{R"({"properties": 1})", "/properties"},
       }) {
    spec.tags[0].text = bad.schema;
    const absl::Status refused = (*build_)(spec, {}).status();
    EXPECT_EQ(ReasonOf(refused), "BAD_CONSTRAINT") << bad.schema;
    EXPECT_TRUE(absl::StrContains(refused.message(), "the place: ")) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), bad.words)) << refused;
  }
}

// Arguments are strings, perhaps with null, in every form a schema can express that.
TEST_F(TagGrammarTest, WritesStringsInTagsWithoutQuotes) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kToolCalls;
  spec.tool_format = text::FindToolFormat("qwen3-coder");
  spec.tags = {{.begin = "f"}};
  const auto set_schema = [&](absl::string_view schema) {
    spec.tags[0].text =
        absl::StrCat(R"({"properties": {"a": )", schema,
                     R"(}, "required": ["a"], "$defs": {"name": {"type": "string"}}})");
  };
  const auto allows = [&](absl::string_view schema, absl::string_view value) {
    set_schema(schema);
    const auto matcher = Matcher(spec);
    return matcher != nullptr &&
           Accept(*matcher, absl::StrCat("<tool_call>\n<function=f>\n<parameter=a>\n", value,
                                         "\n</parameter>\n</function>\n</tool_call>")) &&
           matcher->Accept(kEnd).ok();
  };
  for (const char* free : {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})",
                           R"({"$ref": "#/$defs/name"})", R"({"allOf": [{"type": "string"}]})"}) {
    for (const char* value : {"a < b", "null", "5", "", "two\nlines"}) {
      EXPECT_TRUE(allows(free, value)) << free << value;
    }
  }
  constexpr char kListed[] = R"({"enum": ["red", "a\nb", "", null]})";
  for (const char* value : {"red", "a\nb", "", "null"})
    EXPECT_TRUE(allows(kListed, value)) << value;
  for (const char* value : {"\"red\"", "blue", "5"}) EXPECT_FALSE(allows(kListed, value)) << value;
  // These values would not read back unchanged.
  for (const char* lost : {R"({"enum": ["a\n", null]})", R"({"enum": ["\na", null]})",
                           R"({"enum": ["null", "b", null]})"}) {
    set_schema(lost);
    const absl::Status refused = (*build_)(spec, {}).status();
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("cannot be written")) << lost;
  }
  constexpr char kShort[] = R"({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]})";
  for (const char* value : {"", "ab", "\"a", "null"}) EXPECT_TRUE(allows(kShort, value)) << value;
  for (const char* value : {"abc", "<"}) EXPECT_FALSE(allows(kShort, value)) << value;
  constexpr char kDate[] = R"({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]})";
  for (const char* value : {"2026-11-28", "null"}) EXPECT_TRUE(allows(kDate, value)) << value;
  for (const char* value : {"\"2026-11-28\"", "today"}) EXPECT_FALSE(allows(kDate, value)) << value;
  // If other types are also allowed, a string is written as JSON.
  constexpr char kMixed[] = R"({"anyOf": [{"type": "string"}, {"type": "integer"}]})";
  for (const char* value : {"\"a\"", "5", "\"5\""}) EXPECT_TRUE(allows(kMixed, value)) << value;
  EXPECT_FALSE(allows(kMixed, "a"));
}

TEST_F(TagGrammarTest, ReferencesInTagArgumentsResolveInTheWholeSchema) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kToolCalls;
  spec.tool_format = text::FindToolFormat("qwen3-coder");
  spec.tags = {
      {.begin = "f", .text = R"({"type": "object", "additionalProperties": false, "properties": {
                    "n": {"type": "integer"},
                    "a": {"type": "object", "additionalProperties": false, "properties": {
                        "whole": {"$ref": "#"}, "n": {"$ref": "#/properties/n"}}}}})"}};
  const auto allows = [&](absl::string_view value) {
    const auto matcher = Matcher(spec);
    return Accept(*matcher, absl::StrCat("<tool_call>\n<function=f>\n<parameter=a>\n", value,
                                         "\n</parameter>\n</function>\n</tool_call>")) &&
           matcher->Accept(kEnd).ok();
  };
  EXPECT_TRUE(allows(R"({"n": 1})"));
  EXPECT_TRUE(allows(R"({"whole": {"a": {"n": 2}}})"));
  EXPECT_FALSE(allows(R"({"n": true})"));
  EXPECT_FALSE(allows(R"({"whole": {"whole": {}}})"))
      << "the reference points into a, not to the whole schema";
}

ConstraintSpec PythonicCalls(std::string schema) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kToolCalls;
  spec.tool_format = text::FindToolFormat("pythonic");
  spec.tags = {{.begin = "f", .text = std::move(schema), .field = "the place"}};
  return spec;
}

// Arguments for the next test.
constexpr const char* kWritten[] = {R"(s="")",
                                    R"(s='')",
                                    R"(s="it's")",
                                    R"(s='it\'s')",
                                    R"(s='say "x"')",
                                    R"(s="say \"x\"")",
                                    R"(s="\n\\\u00e9\ud7ff")",
                                    "s='\xc3\xa9'",
                                    R"(s="", word="it's")",
                                    R"(s="", word='it\'s')",
                                    R"(s="", word="say \"x\"")",
                                    R"(s="", word='say "x"')",
                                    R"(s="", word=None)",
                                    R"(s="", word=[True])",
                                    R"(s="", short='\'"')",
                                    R"(s="", short="\"'")",
                                    R"(s="", a-b.c=True)",
                                    R"(s="", a-b.c=False)",
                                    R"(s="", a-b.c=None)",
                                    R"(s="", o={})",
                                    R"(s="", o={"k'": 1, 'x': True})",
                                    R"(s="", o={'k\'': 1})",
                                    R"(s="", o={'y': False})",
                                    "s='',\n  n=-1.5e3\n"};
constexpr const char* kNotWritten[] = {"",
                                       "s",
                                       "s=",
                                       "s=it",
                                       R"(s="a'))",
                                       R"(s='it's')",
                                       R"(s="\/")",
                                       R"(s="\ud83d\ude00")",
                                       R"(s="\'")",
                                       R"(s='\"')",
                                       "s='\n'",
                                       R"(s="a" "b")",
                                       R"(s=r"a")",
                                       R"(s="""a""")",
                                       R"(s="", word=null)",
                                       R"(s="", word=[true])",
                                       R"(s="", a-b.c=true)",
                                       R"(s="", short='abc')",
                                       R"(s="", o={"k'": True})",
                                       R"(s="", o={'k\'': True})",
                                       R"(s="", o={k: 1})",
                                       R"(s="", n=.5)",
                                       R"(s="", n=1_0)",
                                       R"(s="", z=1)",
                                       R"(short='', s="")",
                                       R"(s="", s="")",
                                       R"("a")"};

TEST_F(TagGrammarTest, PythonicArgumentsAreLiteralsOfPython) {
  const ConstraintSpec spec = PythonicCalls(R"({
      "type": "object", "required": ["s"], "properties": {
        "s": {"type": "string"}, "word": {"enum": ["it's", "say \"x\"", null, [true]]},
        "short": {"type": "string", "maxLength": 2}, "a-b.c": {"type": ["boolean", "null"]},
        "o": {"type": "object", "properties": {"k'": {"type": "integer"}},
              "additionalProperties": {"type": "boolean"}},
        "n": {"type": "number"}}})");
  const auto empty = Matcher(spec);
  ASSERT_NE(empty, nullptr);
  const auto allows = [&](absl::string_view arguments) {
    const auto matcher = empty->Fork();
    return Accept(*matcher, absl::StrCat("[f(", arguments, ")]")) && matcher->Accept(kEnd).ok();
  };
  for (const char* written : kWritten) {
    EXPECT_TRUE(allows(written)) << written;
  }
  for (const char* other : kNotWritten) {
    EXPECT_FALSE(allows(other)) << other;
  }
}

TEST_F(TagGrammarTest, PythonicArgumentsOfSeveralShapesAndOfListedObjects) {
  const auto allows = [&](const std::string& schema, absl::string_view arguments) {
    const auto matcher = Matcher(PythonicCalls(schema));
    return Accept(*matcher, absl::StrCat("[f(", arguments, "), f(", arguments, ")]")) &&
           matcher->Accept(kEnd).ok();
  };
  const std::string listed = R"({"enum": [{"a": 1, "b": {"c": null}}, {}, 3]})";
  EXPECT_TRUE(allows(listed, "a=1, b={'c': None}"));
  EXPECT_TRUE(allows(listed, ""));
  EXPECT_FALSE(allows(listed, "a=1"));
  const std::string two = R"({"type": "object", "anyOf": [
      {"properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false},
      {"properties": {"b": {"const": 2}, "c": {"const": 3}}, "minProperties": 1,
       "additionalProperties": false}]})";
  for (const char* written : {"a=1", "b=2", "b=2, c=3", "c=3"}) EXPECT_TRUE(allows(two, written));
  for (const char* other : {"", "a=1, b=2", "c=3, b=2"}) EXPECT_FALSE(allows(two, other)) << other;
  EXPECT_TRUE(allows(R"({"type": "object", "required": ["x"]})", "x=[None]"));
  EXPECT_FALSE(allows(R"({"type": "object"})", "x=1")) << "a free name could be repeated";
}

TEST_F(TagGrammarTest, RejectsUnwritablePythonicArguments) {
  for (const auto& [schema, words] :
       {std::pair(R"({"properties": {"a b": {}}})", "/properties/a b: a name must consist of"),
        std::pair(R"({"properties": {"": {}}})", "/properties/: a name must consist of"),
        std::pair(R"({"properties": {"a/b": {}}})", "/properties/a~1b: a name must consist of"),
        std::pair(R"({"enum": [{"(": 1}]})", "/properties/(: a name must consist of"),
        std::pair(R"({"minProperties": 1})", "/minProperties"),
        std::pair(R"({"properties": {"a": {"contains": {}}}})", "/properties/a/contains"),
        std::pair(R"({"type": "array"})",
                  "every allowed object has a name that the schema does not declare")}) {
    const absl::Status refused = (*build_)(PythonicCalls(schema), {}).status();
    EXPECT_EQ(ReasonOf(refused), "BAD_CONSTRAINT") << schema;
    EXPECT_TRUE(absl::StrContains(refused.message(), "the place: ")) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), words)) << refused;
  }
}

TEST_F(TagGrammarTest, ConstraintMayStartAfterReasoning) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kRegex;
  spec.text = "ab?";
  spec.tool_format = text::FindToolFormat("hermes");
  spec.starts_after_reasoning = true;
  const auto allows = [&](absl::string_view answer) {
    const auto matcher = Matcher(spec);
    return Accept(*matcher, answer) && matcher->Accept(kEnd).ok();
  };
  for (const char* answer : {"a", "ab", "<think>a</think>ab", "<think></think>\n\na"}) {
    EXPECT_TRUE(allows(answer)) << answer;
  }
  for (const char* answer : {"", "x", "<think>", "<think>a", "x</think>a", "<think>x</think>",
                             "<think>x</think>\n\n\na", "<think>x</think> a", "\na"}) {
    EXPECT_FALSE(allows(answer)) << answer;
  }
  spec.opens_reasoning = true;
  for (const char* answer : {"a</think>a", "</think>ab", "<think>x</think>\na"}) {
    EXPECT_TRUE(allows(answer)) << answer;
  }
  for (const char* answer : {"a", "", "x</think>", "x</think>x"}) EXPECT_FALSE(allows(answer));
}

TEST_F(TagGrammarTest, CallsMayStartAfterReasoning) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kToolCalls;
  spec.tool_format = text::FindToolFormat("hermes");
  spec.tags = {{.begin = "f", .text = R"({"type": "object", "additionalProperties": false})"}};
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  for (const bool is_optional : {false, true}) {
    spec.calls_are_optional = is_optional;
    for (const bool is_behind : {false, true}) {
      spec.starts_after_reasoning = is_behind;
      const auto allows = [&](const std::string& answer) {
        const auto matcher = Matcher(spec);
        return Accept(*matcher, answer) && matcher->Accept(kEnd).ok();
      };
      EXPECT_TRUE(allows(call));
      EXPECT_EQ(allows("<think>x</think>\n\n" + call), is_behind);
      EXPECT_FALSE(allows("<think>x</think><think>x</think>" + call));
    }
  }
}

}  // namespace
}  // namespace quire::engine

// Schemas as common generators write them: which keywords are enforced, and how unenforced ones are
// reported. jsonschema 4.26.0 determined the valid texts, with formats checked by the named
// specification. Schemas named after Pydantic are those of Pydantic 2.14.

#include "engine/constraint/schema_check.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "engine/constraint/constraint_build.h"
#include "engine/constraint/constraint_grammar.h"
#include "engine/constraint/grammar_library.h"
#include "gtest/gtest.h"
#include "tests/testing/reason_of.h"
#include "text/tools/tool_format.h"

namespace quire::engine {
namespace {

ConstraintSpec SchemaSpec(std::string schema, UnenforcedPolicy policy = UnenforcedPolicy::kRefuse) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonSchema;
  spec.text = std::move(schema);
  spec.unenforced = policy;
  return spec;
}

class SchemaCheckTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kEnd = 256;

  static void SetUpTestSuite() {
    if (GrammarLibrary::Version().empty()) return;
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    tokens.emplace_back();
    auto build = MakeConstraintBuildFunction({.tokens = std::move(tokens)});
    ASSERT_TRUE(build.ok()) << build.status();
    build_ = new ConstraintCompiler::BuildFunction(*std::move(build));
  }
  void SetUp() override {
    if (GrammarLibrary::Version().empty()) GTEST_SKIP() << "the build has no structured output";
  }

  static ConstraintCompiler::Result Compiled(const ConstraintSpec& spec) {
    return (*build_)(spec, {});
  }

  static bool Accepts(const CompiledConstraint& constraint, absl::string_view text) {
    const auto matcher = constraint.NewMatcher({&kEnd, 1});
    for (const char byte : text) {
      if (!matcher->Accept(static_cast<unsigned char>(byte)).ok()) return false;
    }
    return matcher->Accept(kEnd).ok();
  }

  struct Case {
    const char* schema;
    std::vector<const char*> valid, invalid;
  };
  static void ExpectEnforced(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      const auto constraint = Compiled(SchemaSpec(c.schema));
      ASSERT_TRUE(constraint.ok()) << c.schema << constraint.status();
      EXPECT_TRUE((*constraint)->unenforced().empty()) << c.schema;
      for (const char* text : c.valid) {
        EXPECT_TRUE(Accepts(**constraint, text)) << text << " of " << c.schema;
      }
      for (const char* text : c.invalid) {
        EXPECT_FALSE(Accepts(**constraint, text)) << text << " of " << c.schema;
      }
    }
  }

  static ConstraintCompiler::BuildFunction* build_;
};
ConstraintCompiler::BuildFunction* SchemaCheckTest::build_ = nullptr;

TEST_F(SchemaCheckTest, IntegerFormatsAreRanges) {
  ExpectEnforced({
      {R"({"type":"integer","format":"int8"})", {"-128", "0", "127"}, {"-129", "128", "1.5"}},
      {R"({"type":"integer","format":"int32"})",
       {"-2147483648", "2147483647", "-1"},
       {"-2147483649", "2147483648"}},
      {R"({"format":"int64","type":"integer"})",
       {"-9223372036854775808", "9223372036854775807"},
       {"-9223372036854775809", "9223372036854775808"}},
      {R"({"type":"number","format":"uint16"})", {"0", "65535"}, {"-1", "65536", "0.5"}},
      {R"({"type":"integer","format":"uint64","minimum":5})",
       {"5", "18446744073709551615"},
       {"4", "18446744073709551616"}},
      // The bounds are the limits of 64-bit integers.
      {R"({"type":"integer","minimum":-9223372036854775808,
           "exclusiveMaximum":18446744073709551615})",
       {"18446744073709551614", "-9223372036854775808"},
       {"18446744073709551615", "-9223372036854775809"}},
  });
}

// RFC 4648 defines byte and base64, RFC 9562 the versions of UUIDs.
TEST_F(SchemaCheckTest, FormatsOfStrings) {
  ExpectEnforced({
      {R"({"type":"string","format":"byte"})",
       {R"("")", R"("YQ==")", R"("YWI=")", R"("YWJj+/8=")"},
       {R"("YQ")", R"("YR==")", R"("YQ=")", R"("Y*==")"}},
      {R"({"type":"string","format":"base64"})", {R"("YWJj")"}, {R"("YWJ")"}},
      {R"({"type":"string","format":"uuid4"})",
       {R"("16fd2706-8baf-433b-82eb-8c7fada847da")", R"("16FD2706-8BAF-433B-A2EB-8C7FADA847DA")"},
       {R"("16fd2706-8baf-133b-82eb-8c7fada847da")", R"("16fd2706-8baf-433b-c2eb-8c7fada847da")",
        R"("16fd27068baf433b82eb8c7fada847da")"}},
      {R"({"type":"string","format":"uuid1"})",
       {R"("a8098c1a-f86e-11da-bd1a-00112444be1e")"},
       {R"("16fd2706-8baf-433b-82eb-8c7fada847da")"}},
  });
}

// Unknown formats are annotations (JSON Schema 2020-12, validation, section 7.2.3).
TEST_F(SchemaCheckTest, OtherFormatsAreAnnotations) {
  ExpectEnforced({
      {R"({"type":"string","format":"password","minLength":2,"maxLength":3})",
       {R"("ab")"},
       {R"("a")", R"("abcd")"}},
      {R"({"type":"string","format":"binary"})", {R"("")", R"("x")"}, {"1"}},
      {R"({"type":"string","format":"file-path"})", {R"("/a b")"}, {"1"}},
      {R"({"type":"string","format":"int64"})", {R"("7")"}, {"7"}},
      {R"({"type":"number","format":"double"})", {"1.5e3"}, {R"("1")"}},
      {R"({"type":"string","format":"regex","pattern":"^a+$"})", {R"("aa")"}, {R"("b")"}},
  });
}

TEST_F(SchemaCheckTest, PydanticUrlsHaveALengthLimit) {
  const std::string url = "\"https://example.com/";
  const auto constraint =
      Compiled(SchemaSpec(R"({"format":"uri","maxLength":2083,"minLength":1,"type":"string"})"));
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  EXPECT_TRUE(Accepts(**constraint, url + "\""));
  EXPECT_TRUE(Accepts(**constraint, url + "a/b%20c?q=1&r=%C3%A9/?#part\""));
  EXPECT_TRUE(Accepts(**constraint, url + std::string(300, 'p') + "?" + std::string(100, 'q') +
                                        "#" + std::string(300, 'f') + "\""));
  EXPECT_FALSE(Accepts(**constraint, "\"\""));
  EXPECT_FALSE(Accepts(**constraint, "\"example\""));
  for (const std::string& more :
       {std::string(2083 - url.size() + 2, 'p'), "?" + std::string(2063, 'q'),
        "#" + std::string(2063, 'f'), std::string(1000, 'p') + "#" + std::string(1064, 'f')}) {
    EXPECT_FALSE(Accepts(**constraint, absl::StrCat(url, more, "\""))) << more.size();
  }
  ExpectEnforced({
      {R"({"format":"email","maxLength":254,"type":"string"})",
       {R"("a.b@example.com")"},
       {R"("a@")"}},
      {R"({"format":"uri","maxLength":500,"type":"string"})", {R"("https://a.b/c?d#e")"}, {}},
      {R"({"format":"date-time","maxLength":26,"type":"string"})",
       {R"("2024-02-29T12:00:00Z")", R"("2024-02-29T12:00:00.12Z")"},
       {R"("2024-02-29T12:00:00.123456Z")", R"("2024-02-29T12:00:00")"}},
  });
}

TEST_F(SchemaCheckTest, UniqueItemsOfFiniteSets) {
  ExpectEnforced({
      {R"({"type":"array","items":{"enum":["a","b",3]},"uniqueItems":true})",
       {"[]", R"(["b"])", R"(["b","a",3])", R"([3, "a"])"},
       {R"(["a","a"])", R"(["a","b","a"])", R"(["a","b",3,"a"])", R"(["c"])"}},
      {R"({"items":{"type":["boolean","null"]},"uniqueItems":true,"minItems":2,"type":"array"})",
       {"[true,null]", "[false,true,null]"},
       {"[true]", "[true,true]", "[]", "[null,true,false,null]"}},
      {R"({"items":{"type":"integer","minimum":-2,"exclusiveMaximum":3,"multipleOf":2},
           "uniqueItems":true,"type":"array","minItems":1,"maxItems":2})",
       {"[-2,2]", "[0]"},
       {"[0,0]", "[]", "[-2,0,2]", "[1]"}},
      // Each position has its own set, and the third position cannot be satisfied.
      {R"({"prefixItems":[{"const":1},{"enum":[1,2]},{"enum":[1,2]}],"items":{"enum":[5]},
           "uniqueItems":true,"type":"array"})",
       {"[1,2]", "[1]", "[]"},
       {"[1,1]", "[1,2,1]", "[1,2,5]", "[2]"}},
      {R"({"items":{"$ref":"#/$defs/E"},"uniqueItems":true,"type":"array","maxItems":2,
           "$defs":{"E":{"enum":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","p"]}}})",
       {R"(["p","a"])"},
       {R"(["p","p"])", R"(["a","b","c"])"}},
  });
}

TEST_F(SchemaCheckTest, NamesOfProperties) {
  ExpectEnforced({
      {R"({"type":"object","propertyNames":{"enum":["x","y"]},
           "additionalProperties":{"type":"integer"}})",
       {"{}", R"({"y":1})", R"({"x":1,"y":2})"},
       {R"({"z":1})", R"({"x":"1"})", R"({"x":1,"x":2})"}},
      // A zod record whose keys are an enum, all of them required.
      {R"({"type":"object","propertyNames":{"type":"string","enum":["b","a"]},
           "additionalProperties":{"type":"boolean"},"required":["a","b"]})",
       {R"({"a":true,"b":false})"},
       {R"({"a":true})", R"({"a":true,"b":1})", R"({"a":true,"b":true,"c":true})"}},
      {R"({"type":"object","propertyNames":{"minLength":2,"maxLength":3},
           "additionalProperties":{}})",
       {R"({"ab":1,"abc":2})", "{}"},
       {R"({"a":1})", R"({"abcd":1})"}},
      // The pattern also matches the declared name, which must not be repeated.
      {R"({"type":"object","properties":{"kind":{"const":"k"}},"required":["kind"],
           "propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":{"type":"integer"}})",
       {R"({"kind":"k"})", R"({"kind":"k","size":1})"},
       {R"({"kind":"k","kind":1})", R"({"kind":"k","Size":1})", R"({"kind":"k","size":"1"})"}},
      {R"({"type":"object","properties":{"x1":{"type":"null"}},"additionalProperties":false,
           "patternProperties":{"^[xy][0-9]$":{"type":["integer","null"]}}})",
       {R"({"x1":null,"y2":3})", R"({"y2":3})"},
       {R"({"x1":3})", R"({"z1":3})", R"({"x1":null,"x1":3})"}},
  });
}

TEST_F(SchemaCheckTest, MultiplesWithBounds) {
  ExpectEnforced({
      {R"({"type":"integer","minimum":0,"multipleOf":5})",
       {"0", "5", "1000000000000000000005"},
       {"-5", "3", "5.0e1"}},
      {R"({"type":"number","minimum":0,"multipleOf":0.01})",
       {"0", "0.01", "19.99", "19.90", "1234567.5"},
       {"-0.01", "0.001", "19.999"}},
      {R"({"type":"number","multipleOf":0.25,"exclusiveMinimum":-1,"maximum":1.5})",
       {"-0.75", "0", "1.5", "1.25", "0.5"},
       {"-1", "1.75", "0.3", "1.51", "-0"}},
      {R"({"type":"integer","multipleOf":1.5,"maximum":9})", {"9", "-3", "6"}, {"12", "1", "1.5"}},
      {R"({"type":"integer","minimum":1024,"maximum":1048576,"multipleOf":256})",
       {"1024", "1280", "1048576"},
       {"768", "1025", "1048832"}},
      {R"({"allOf":[{"type":"integer","multipleOf":4},{"multipleOf":6}],"minimum":-24})",
       {"-24", "12", "0"},
       {"-36", "6", "4"}},
  });
}

TEST_F(SchemaCheckTest, MultiplesAgreeWithArithmetic) {
  const struct {
    const char* divisor;
    std::int64_t hundredths;
  } divisors[] = {{"3", 300}, {"0.5", 50}, {"0.07", 7}, {"1.2", 120}};
  const auto text = [](std::int64_t hundredths) {
    const std::int64_t magnitude = std::abs(hundredths);
    return absl::StrCat(hundredths < 0 ? "-" : "", magnitude / 100, ".", magnitude / 10 % 10,
                        magnitude % 10);
  };
  for (const auto& [divisor, unit] : divisors) {
    for (const auto& [low, high] : {std::pair(-345, 1021), {0, 99}, {-120, -7}, {250, 250}}) {
      const auto constraint = Compiled(
          SchemaSpec(absl::StrCat(R"({"type":"number","multipleOf":)", divisor, R"(,"minimum":)",
                                  text(low), R"(,"exclusiveMaximum":)", text(high), "}")));
      bool any = false;
      for (std::int64_t x = low - 150; x <= high + 150; ++x) {
        const bool inside = x >= low && x < high && x % unit == 0;
        any |= inside;
        if (!constraint.ok()) continue;
        // Multiples of whole numbers are written without a fraction.
        const std::string written =
            unit % 100 == 0 && x % 100 == 0 ? absl::StrCat(x / 100) : text(x);
        ASSERT_EQ(Accepts(**constraint, written), inside) << written << " of " << divisor;
      }
      ASSERT_EQ(constraint.ok(), any) << divisor << " " << low << " " << constraint.status();
    }
  }
}

struct Unenforced {
  const char* schema;
  std::vector<std::string> keywords;
  std::vector<const char*> valid, invalid;
};

TEST_F(SchemaCheckTest, ListsUnenforcedKeywords) {
  const std::vector<Unenforced> cases = {
      {R"({"type":"object","properties":{"a":{"type":"integer","not":{"const":3}}},
           "required":["a"],"additionalProperties":false})",
       {"#/properties/a/not"},
       {R"({"a":3})"},
       {R"({"a":"3"})", "{}"}},
      {R"({"type":"array","items":{"type":"string"},"uniqueItems":true,"minItems":1})",
       {"#/uniqueItems"},
       {R"(["a","a"])"},
       {"[]", "[1]"}},
      {R"j({"type":"string","pattern":"^(?!a)b$","maxLength":3})j",
       {"#/pattern"},
       {R"("xyz")"},
       {R"("wxyz")"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"number","maximum":5}]})",
       {"#/oneOf"},
       {"7", "4.5", "3"},
       {"7.5"}},
      {R"({"if":{"required":["a"]},"then":{"required":["b"]},"type":"object",
           "properties":{"a":{"type":"null"}},"unevaluatedProperties":false})",
       {"#/if", "#/unevaluatedProperties"},
       {R"({"a":null,"c":1})"},
       {R"({"a":1})"}},
      {R"({"type":"string","format":"regex"})", {"#/format"}, {R"("x")"}, {"1"}},
      {R"({"type":"object","additionalProperties":false,
           "patternProperties":{"^a":{"type":"integer"},"^b":{"type":"string"}}})",
       {"#/patternProperties", "#/additionalProperties"},
       {R"({"c":1})", "{}"},
       {"[]"}},
      {R"({"properties":{"é/~":{"contains":{},"type":"array"}},"maxlength":3,"type":"object"})",
       {"#/maxlength", "#/properties/%C3%A9~1~0/contains"},
       {R"({"é/~":[]})"},
       {R"({"é/~":1})"}},
      {R"({"allOf":[{"type":"string","format":"email"},{"pattern":"^a"}]})",
       {"#/allOf/1/pattern"},
       {R"("b@c.d")"},
       {R"("a")"}},
      {R"({"type":"object","minProperties":3,"properties":{"a":{"type":"null"}}})",
       {"#/minProperties"},
       {"{}"},
       {R"({"a":1})"}},
      {R"({"$ref":"https://example.com/other.json","type":"integer"})", {"#/$ref"}, {"1"}, {"1.5"}},
  };
  for (const Unenforced& c : cases) {
    const auto constraint = Compiled(SchemaSpec(c.schema, UnenforcedPolicy::kAnnotate));
    ASSERT_TRUE(constraint.ok()) << c.schema << constraint.status();
    EXPECT_EQ((*constraint)->unenforced(), c.keywords) << c.schema;
    for (const char* text : c.valid) EXPECT_TRUE(Accepts(**constraint, text)) << text << c.schema;
    for (const char* text : c.invalid) {
      EXPECT_FALSE(Accepts(**constraint, text)) << text << c.schema;
    }
    // Formats are annotations by default.
    const bool is_refused = c.keywords != std::vector<std::string>{"#/format"};
    EXPECT_EQ(ReasonOf(Compiled(SchemaSpec(c.schema)).status()), is_refused ? "BAD_CONSTRAINT" : "")
        << c.schema;
  }
}

TEST_F(SchemaCheckTest, MalformedSchemasAreRejectedUnderEitherPolicy) {
  for (const char* schema :
       {R"({"type":"strin"})", R"({"minLength":-1})", R"({"multipleOf":0})", R"({"$ref":"#"})",
        R"({"enum":3})", R"({"format":["uri"]})", R"({"uniqueItems":1})",
        R"({"$schema":"https://example.com/dialect"})", R"({"properties":{"a":{"$id":"x"}}})",
        R"({"type":"integer","minimum":3,"maximum":2,"not":{"const":1}})"}) {
    const auto grammar = WriteConstraint(SchemaSpec(schema, UnenforcedPolicy::kAnnotate));
    EXPECT_EQ(ReasonOf(grammar.status()), "BAD_CONSTRAINT") << schema;
  }
}

// Errors in a tag's schema name the tag's field.
TEST_F(SchemaCheckTest, ListsUnenforcedKeywordsOfTagsByField) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kStructuralTags;
  spec.unenforced = UnenforcedPolicy::kAnnotate;
  spec.triggers = {"<"};
  spec.tags = {{.begin = "<a>", .text = R"({"not":{"const":1}})", .end = "</a>", .field = "f[0]"},
               {.begin = "<b>", .text = R"({"contains":{}})", .end = "</b>", .field = "f[1]"}};
  const auto grammar = WriteConstraint(spec);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_EQ(grammar->unenforced, (std::vector<std::string>{"f[0]#/not", "f[1]#/contains"}));
}

// These are parameters of a tool in a format that writes strings unquoted.
TEST_F(SchemaCheckTest, ListsUnenforcedKeywordsOfParametersByTool) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kToolCalls;
  spec.unenforced = UnenforcedPolicy::kAnnotate;
  spec.tool_format = text::FindToolFormat("qwen3-coder");
  spec.tags = {{.begin = "f",
                .text = R"({"type":"object","additionalProperties":false,"properties":{
                    "a":{"type":"string","maxLength":3,"not":{"const":"b"}},
                    "n":{"type":"integer","not":{"const":1}}}})",
                .field = "tools[0]"}};
  const auto marked = WriteConstraint(spec);
  ASSERT_TRUE(marked.ok()) << marked.status();
  EXPECT_EQ(marked->unenforced,
            (std::vector<std::string>{"tools[0]#/properties/a/not", "tools[0]#/properties/n/not",
                                      "tools[0]#/properties/a/maxLength"}));
  spec.tool_format = text::FindToolFormat("hermes");
  const auto json = WriteConstraint(spec);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->unenforced,
            (std::vector<std::string>{"tools[0]#/properties/a/not", "tools[0]#/properties/n/not"}));
  spec.unenforced = UnenforcedPolicy::kRefuse;
  EXPECT_EQ(ReasonOf(WriteConstraint(spec).status()), "BAD_CONSTRAINT");
}

std::string Numbers(int count) {
  std::string out = "[0";
  for (int i = 1; i < count; ++i) absl::StrAppend(&out, ",", i);
  return out + "]";
}

std::string ManyNames(int count) {
  std::string out = R"(["n0")";
  for (int i = 1; i < count; ++i) absl::StrAppend(&out, R"(,"n)", i, "\"");
  return out + "]";
}

// Rejections name the keyword and are fast for any numbers.
TEST_F(SchemaCheckTest, RejectsHostileKeywordsBySize) {
  const auto unique = [](int count, const char* more) {
    return absl::StrCat(R"({"type":"array","uniqueItems":true,"items":{"enum":)", Numbers(count),
                        "}", more, "}");
  };
  std::string pattern = "^";
  for (int i = 0; i < 1000; ++i) pattern += "a?";
  std::string bad;
  for (int i = 0; i < 300; ++i) absl::StrAppend(&bad, i > 0 ? "," : "", R"({"contains":)", i, "}");
  const std::pair<std::string, std::string> cases[] = {
      {unique(20, ""), "/uniqueItems: needs more than 16384 transitions for 20 different items"},
      {unique(4000, ""), "/uniqueItems: needs more than 16384 transitions for 4000 different"},
      {unique(200, R"(,"maxItems":3)"),
       "/uniqueItems: needs more than 16384 transitions for 200 different items"},
      {R"({"type":"array","uniqueItems":true,
           "items":{"type":"integer","minimum":0,"maximum":99999999}})",
       "/uniqueItems: is supported only with maxItems of at most 1"},
      {R"({"type":"integer","multipleOf":99991})", "/multipleOf: is 99991; the supported numbers"},
      {R"({"type":"integer","multipleOf":9973})", "/multipleOf: needs an automaton of more than"},
      {R"({"type":"integer","multipleOf":997,"minimum":-9223372036854775807,
           "maximum":9223372036854775806})",
       "/multipleOf: needs an automaton of more than"},
      {R"({"multipleOf":1e300})", "/multipleOf"},
      {R"({"multipleOf":-2})", "/multipleOf: is -2, it must be above 0"},
      {absl::StrCat(R"({"type":"object","propertyNames":{"enum":)", ManyNames(600), "}}"),
       "declares 600 names, the limit is 512"},
      {absl::StrCat(R"({"propertyNames":{"pattern":")", pattern, pattern.substr(1), "\"}}"),
       "/propertyNames/pattern: at character 2050: there are more than 1024 repetitions"},
  };
  for (const auto& [schema, says] : cases) {
    const absl::Time start = MonotonicNow();
    const auto grammar = WriteConstraint(SchemaSpec(schema));
    EXPECT_LT(MonotonicNow() - start, absl::Seconds(20)) << schema.substr(0, 100);
    ASSERT_FALSE(grammar.ok()) << schema.substr(0, 100);
    EXPECT_NE(std::string(grammar.status().message()).find(says), std::string::npos)
        << grammar.status();
  }
  const auto many = WriteConstraint(
      SchemaSpec(absl::StrCat(R"({"allOf":[)", bad, "]}"), UnenforcedPolicy::kAnnotate));
  EXPECT_NE(std::string(many.status().message()).find("exceeds 256 entries"), std::string::npos)
      << many.status();
}

TEST_F(SchemaCheckTest, RegexFlagsAndNamedGroups) {
  const auto regex = [](const char* pattern) {
    ConstraintSpec spec;
    spec.kind = ConstraintKind::kRegex;
    spec.text = pattern;
    return spec;
  };
  const struct {
    const char* pattern;
    std::vector<const char*> matches, others;
  } cases[] = {
      // Expected values come from Python's re.fullmatch.
      {"(?i)yes|No!", {"yes", "YES", "yEs", "no!", "NO!"}, {"ye", "no"}},
      {"(?i)[a-c][^x-z0]\\d", {"Ab1", "cQ9"}, {"dA1", "aX1", "az1", "a01"}},
      {"a(?i:b|c)d", {"aBd", "aCd", "abd"}, {"ABd", "abD"}},
      {"(?i)a(?-i:b)c", {"Abc", "abC"}, {"aBc"}},
      {"(?P<year>\\d{4})-(?P<month>\\d\\d)", {"2024-05"}, {"2024-5"}},
      {"(?<a>x)(?<b_2>y)+", {"xyy"}, {"x"}},
      {"^(?i:(?P<w>ab)+)$", {"aBAb"}, {"aba"}},
      // U+017F and U+212A match s and k if case is ignored, so [^sk] does not match them.
      {"(?i)[^sk]", {"a", "é"}, {"S", "k", "\u017f", "\u212a"}},
  };
  for (const auto& [pattern, matches, others] : cases) {
    const auto constraint = Compiled(regex(pattern));
    ASSERT_TRUE(constraint.ok()) << pattern << constraint.status();
    for (const char* text : matches) EXPECT_TRUE(Accepts(**constraint, text)) << pattern << text;
    for (const char* text : others) EXPECT_FALSE(Accepts(**constraint, text)) << pattern << text;
  }
  const std::pair<const char*, const char*> refused[] = {
      {"(?=a)", "at character 0: look-around"},
      {"a(?<!b)", "at character 1: look-around"},
      {"(?s).", "at character 0: the flag s is not supported; the only supported flag is i"},
      {"(?im)a", "at character 0: the flag m"},
      {"a(?i)b", "at character 1: flags without a group are supported only at the beginning"},
      {"(?>a)", "at character 0: an atomic group"},
      {"(?P<x>a)(?P=x)", "at character 8: a back-reference"},
      {"(a)\\1", "at character 3: a back-reference"},
      {"(?<x>a)\\k<x>", "at character 7: a back-reference"},
      {"(?#note)a", "at character 0: a comment"},
      {"(?P<x", "at character 0: the group name is not closed"},
      {"(?i)é", "at character 4: non-ASCII letters"},
  };
  for (const auto& [pattern, says] : refused) {
    const auto grammar = WriteConstraint(regex(pattern));
    ASSERT_FALSE(grammar.ok()) << pattern;
    EXPECT_NE(std::string(grammar.status().message()).find(says), std::string::npos)
        << pattern << grammar.status();
  }
}

}  // namespace
}  // namespace quire::engine

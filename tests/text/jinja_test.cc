// Compares the template engine with the recorded output of jinja2 (tests/testdata/templates), and
// tests its limits and broken templates.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/utf8.h"
#include "tests/testing/paths.h"
#include "tests/text/testdata.h"
#include "text/chat/jinja/interpreter.h"
#include "text/chat/jinja/json.h"
#include "text/chat/jinja/parser.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);

std::filesystem::path TemplateData() {
  return paths::TestData("templates");
}

Variables ReadVariables(const std::string& json) {
  const absl::StatusOr<Value> value = FromJson(json);
  EXPECT_TRUE(value.ok()) << value.status();
  Variables variables;
  for (const auto& [key, entry] : value->as_map()->entries) {
    variables.emplace_back(key.as_string(), entry);
  }
  return variables;
}

// Returns the output, or the error with its position.
absl::StatusOr<std::string> RunTemplate(absl::string_view source, const Variables& variables = {},
                                        const RenderLimits& limits = {}) {
  const absl::StatusOr<ParsedTemplate> parsed = Parse(source);
  if (!parsed.ok()) return parsed.status();
  RenderResult result = Render(parsed->body, variables, limits, kNow);
  if (result.text.ok()) return std::move(result.text);
  EXPECT_GT(result.error_position.line, 0) << source;
  return absl::Status(result.text.status().code(),
                      absl::StrCat(result.error_position.line, ":", result.error_position.column,
                                   ": ", result.text.status().message()));
}

std::string Message(const absl::StatusOr<std::string>& result) {
  return result.ok() ? absl::StrCat("printed: ", *result) : std::string(result.status().message());
}

class JinjaTest : public ::testing::Test {
 protected:
  // strftime_now prints local time.
  static void SetUpTestSuite() { setenv("TZ", "UTC", 1); }
};

TEST_F(JinjaTest, PrintsTheSameAsJinja2) {
  const Variables variables = ReadVariables(ReadTestFile(TemplateData() / "variables.json"));
  int errors = 0;
  int outputs = 0;
  for (const nlohmann::json& test : ReadJsonLines(TemplateData() / "expressions.jsonl")) {
    const std::string source = test.at("template");
    SCOPED_TRACE(Escaped(source));
    const absl::StatusOr<std::string> got = RunTemplate(source, variables);
    if (test.contains("output")) {
      EXPECT_TRUE(got.ok()) << got.status();
      if (got.ok()) {
        EXPECT_EQ(*got, test.at("output").get<std::string>());
      }
      ++outputs;
      continue;
    }
    EXPECT_FALSE(got.ok()) << "printed " << Message(got) << ", jinja2 failed with "
                           << test.at("error");
    // quire's other messages report the same error in different words.
    const std::string message = test.value("message", "");
    if (absl::StartsWith(message, "stop:")) {
      EXPECT_THAT(Message(got), HasSubstr(message));
    }
    ++errors;
  }
  EXPECT_GT(outputs, 900);
  EXPECT_GT(errors, 100);
}

TEST_F(JinjaTest, MessagesNameLineAndColumn) {
  struct Case {
    const char* source;
    const char* message;
  };
  for (const auto& [source, message] : {
           Case{"a\n {{ 1 + }}", "line 2, column 9: unexpected '}}', expected an expression"},
           Case{"{% if x %}\n",
                "line 1, column 11: unexpected the end of the template, expected 'endif'"},
           Case{"{{ x|nosuch }}", "line 1, column 6: the filter 'nosuch' is not supported"},
           Case{"{{ x is nosuch }}", "line 1, column 9: the test 'nosuch' is not supported"},
           Case{"{% include 'x' %}", "line 1, column 4: the statement 'include' is not supported"},
           Case{"{% for x in y %}{% endif %}{% endfor %}",
                "line 1, column 20: unexpected 'endif', expected 'endfor'"},
           Case{"{% endif %}", "line 1, column 4: unexpected 'endif', no block is open"},
           Case{"{% for x in y recursive %}{% endfor %}", "recursive loops are not supported"},
           Case{"ü{# x", "line 1, column 2: the comment is not closed"},
           Case{"{{ f(*x) }}", "expected an argument without stars"},
           Case{"{{ 99999999999999999999 }}", "line 1, column 4: the number does not fit 64 bits"},
           Case{"x\n{{ messages.a.b }}", "2:12: 'messages' is undefined"},
           Case{"{% macro m() %}\n\n{{ raise_exception('no') }}{% endmacro %}{{ m() }}", "3:4: no"},
           Case{"{{ 9223372036854775807 + 1 }}", "1:4: the result does not fit 64 bits"},
           Case{"{{ (-9223372036854775807 - 1)|abs }}",
                "abs() of -9223372036854775808: the result does not fit 64 bits"},
           Case{"{{ 2 ** 64 }}", "does not fit 64 bits"},
           Case{"{{ {}.a.b }}", "'dict object' has no attribute 'a'"},
       }) {
    EXPECT_THAT(Message(RunTemplate(source)), HasSubstr(message)) << source;
  }
}

TEST_F(JinjaTest, LimitsEndRenderings) {
  const RenderLimits small{.max_bytes = 10000, .max_steps = 20000};
  struct Case {
    const char* source;
    const char* message;
  };
  for (const auto& [source, message] : {
           Case{"{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
                "exceeds 20000 steps"},
           Case{"{% for a in range(90000) %}x{% endfor %}", "20000 steps"},
           Case{"{{ 'x' * 10001 }}", "more than 10000 bytes"},
           Case{"{{ 'x' * 9223372036854775807 }}", "more than 10000 bytes"},
           Case{"{{ [1] * 9223372036854775807 }}", "steps"},
           Case{"{% for a in range(200) %}{{ 'x' * 100 }}{% endfor %}", "more than 10000 bytes"},
           Case{"{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s "
                "%}{% endfor %}",
                "more than 10000 bytes"},
           Case{"{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = ns.l + ns.l "
                "%}{% endfor %}",
                "steps"},
           Case{"{% set ns = namespace(l=[1]) %}{% for a in range(40) %}{% set ns.l = [ns.l, ns.l] "
                "%}{% endfor %}{{ ns.l }}",
                "steps"},
           Case{"{% set ns = namespace(l=[1]) %}{% for a in range(40) %}{% set ns.l = [ns.l, ns.l] "
                "%}{% endfor %}{{ ns.l|tojson }}",
                "steps"},
           Case{"{% set ns = namespace(l=[1]) %}{% for a in range(40) %}{% set ns.l = [ns.l, ns.l] "
                "%}{% endfor %}{{ ns.l == [ns.l[0], ns.l[1]] }}",
                "steps"},
           Case{"{% set ns = namespace(l=[]) %}{% for a in range(200) %}{% set ns.l = [ns.l] %}"
                "{% endfor %}",
                "nested more than 100 deep"},
           Case{"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "more than 64 deep"},
           Case{"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "contains itself"},
           Case{"{{ range(100001) }}", "100000 elements"},
           Case{"{% set ns = namespace(t=1) %}{% for a in range(60) %}{% set ns.t = (ns.t, ns.t) %}"
                "{% endfor %}{{ {ns.t: 1} }}",
                "steps"},
           Case{"{% set ns = namespace(t=1) %}{% for a in range(60) %}{% set ns.t = (ns.t, ns.t) %}"
                "{% endfor %}{{ ns.t|tojson(indent=1000) }}",
                "steps"},
           Case{"{{ [1]|tojson(indent='x' * 1001) }}", "more than 1000 bytes"},
           Case{"{% for a in range(30) %}{{ (',' * 9000).split(',')|length }}{% endfor %}",
                "steps"},
           Case{"{% for a in range(30) %}{{ ('a ' * 4000).split()|length }}{% endfor %}", "steps"},
           Case{"{% for a in range(30) %}{{ ('a\\n' * 4000).splitlines()|length }}{% endfor %}",
                "steps"},
           Case{"{{ range(0, 9223372036854775807, 3) }}", "100000 elements"},
           Case{"{{ ('a\\n' * 100)|indent(1000) }}", "more than 10000 bytes"},
           Case{"{{ ('a' * 9000).replace('a', 'b' * 9000) }}", "steps"},
           Case{"{{ ('a' * 5000)|list|join('b' * 5000) }}", "steps"},
       }) {
    EXPECT_THAT(Message(RunTemplate(source, {}, small)), HasSubstr(message)) << source;
  }
  EXPECT_THAT(Message(RunTemplate("{% set ns = namespace(t=1) %}{% for a in range(14) %}"
                                  "{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: 1} }}")),
              HasSubstr("too large to be a key"));
}

// Work counts as steps even without a statement, call or filter.
TEST_F(JinjaTest, ExpressionsKeysAndNamesCountAsSteps) {
  const RenderLimits small{.max_bytes = 1 << 20, .max_steps = 10000};
  const auto repeat = [](absl::string_view piece, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) absl::StrAppend(&text, piece);
    return text;
  };
  const std::string loop = "{% for i in range(300) %}";
  const std::string long_key = "{% set k = 'x' * 100000 %}{% set d = {k: 1} %}";
  for (const std::string& source : {
           absl::StrCat(loop, "{{ 1", repeat(" and 1", 90), repeat(" ~ 1", 200), " }}{% endfor %}"),
           absl::StrCat(loop, "{{ 1", repeat(" == 1", 400), " }}{% endfor %}"),
           absl::StrCat(loop, "{% set l = [", repeat("1,", 100), "] %}{% endfor %}"),
           absl::StrCat(loop, "{% set l = {", repeat("1:1,", 100), "} %}{% endfor %}"),
           absl::StrCat(long_key, loop, "{% set a = d[k] %}{% endfor %}"),
           absl::StrCat(long_key, loop, "{% set a = d.get(k) %}{% endfor %}"),
           absl::StrCat(long_key, loop, "{% set a = {k: 1} %}{% endfor %}"),
           absl::StrCat(long_key, loop, "{% set a = k in d %}{% endfor %}"),
           absl::StrCat(long_key, loop, "{% set a = 'x'.find(k) %}{% endfor %}"),
       }) {
    EXPECT_THAT(Message(RunTemplate(source, {}, small)), HasSubstr("steps"))
        << source.substr(0, 200);
  }
  // 400 names are compared in each of 600 loop iterations.
  std::string names;
  for (int i = 0; i < 400; ++i) absl::StrAppend(&names, "{% set n", i, " = 1 %}");
  const std::string rounds = "{% for i in range(600) %}{% set a = n399 %}{% endfor %}";
  EXPECT_THAT(Message(RunTemplate(names + rounds, {}, small)), HasSubstr("steps"));
  EXPECT_TRUE(RunTemplate("{% set n399 = 1 %}" + rounds, {}, small).ok());
}

TEST_F(JinjaTest, NestedNamespacesPrintWithinTheLimits) {
  std::string source = "{% set n0 = namespace(a=1) %}";
  for (int i = 1; i < 60; ++i) {
    absl::StrAppend(&source, "{% set n", i, " = namespace(a=n", i - 1, ", b=n", i - 1, ") %}");
  }
  EXPECT_EQ(*RunTemplate(source + "{{ n1 }}"),
            "<Namespace {'a': <Namespace {'a': 1}>, 'b': <Namespace {'a': 1}>}>");
  for (const char* use : {"{{ n59 }}", "{{ n59 ~ '' }}", "{{ n59|string }}", "{{ [n59]|join }}",
                          "{{ n59 is lower }}", "{{ raise_exception(n59) }}", "{{ 1[n59] }}"}) {
    EXPECT_THAT(Message(RunTemplate(source + use)), HasSubstr("chat.max_render_bytes")) << use;
  }
  // Output within the byte limit is charged each time.
  EXPECT_THAT(Message(RunTemplate(source + "{% for i in range(1000) %}"
                                           "{% set a = n15|string %}{% endfor %}")),
              HasSubstr("steps"));
}

// Each case takes hours if a search or a character set costs the product of the lengths.
TEST_F(JinjaTest, SearchesTakeLinearTime) {
  const std::string part = absl::StrCat(std::string(300000, 'a'), "b", std::string(300000, 'a'));
  std::string strip;
  for (char32_t c = 0x4E00; c < 0x9000; ++c) AppendUtf8(c, strip);
  std::string far;
  for (int i = 0; i < 200000; ++i) AppendUtf8(0x8FFF, far);
  const Variables variables = {{"text", Value::String(std::string(4 << 20, 'a'))},
                               {"part", Value::String(part)},
                               {"chars", Value::String(strip)},
                               {"far", Value::String(far)}};
  const absl::Time start = absl::Now();
  const struct {
    const char* source;
    const char* output;
  } cases[] = {
      {"{{ text.find(part) }} {{ text.rfind(part) }} {{ text.count(part) }}", "-1 -1 0"},
      {"{{ text.split(part)|length }} {{ text.rsplit(part, 1)|length }}", "1 1"},
      {"{{ text.partition(part)[1] }}{{ text.rpartition(part)[1] }}{{ part in text }}", "False"},
      {"{{ text.replace(part, '') == text }}", "True"},
      {"{{ (text ~ part ~ text).rfind(part) }} {{ (text ~ part).find(part) }}", "4194304 4194304"},
      {"{{ far.strip(chars)|length }}{{ (far ~ 'x')|trim(chars) }}", "0x"},
  };
  for (const auto& [source, output] : cases) {
    EXPECT_EQ(*RunTemplate(source, variables), output) << source;
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

// The last position is compared with that of the standard library.
TEST_F(JinjaTest, FindsLastPositions) {
  std::mt19937 random(20261122);
  const auto any = [&random](std::size_t size) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i) text += random() % 8 == 0 ? 'b' : 'a';
    return text;
  };
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::string text = any(random() % 400);
    const std::string part = random() % 2 == 0 || text.empty()
                                 ? any(random() % 40)
                                 : text.substr(random() % text.size(), random() % 40);
    EXPECT_EQ(FindLast(text, part), text.rfind(part)) << text << " " << part;
    EXPECT_EQ(FindFirst(text, part), text.find(part)) << text << " " << part;
    found += part.size() > 16 && text.find(part) != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(found, 500);
}

TEST_F(JinjaTest, WidthsAndPrecisionsAreBounded) {
  const RenderLimits small{.max_bytes = 10000, .max_steps = 20000};
  for (const char* source :
       {"{{ '{:10001}'.format(1) }}", "{{ '{:.10001f}'.format(1) }}", "{{ '%10001d' % 1 }}",
        "{{ '%.*f' % (10001, 1) }}", "{{ 'a'.ljust(9223372036854775807) }}",
        "{{ 'a'.zfill(10001) }}", "{{ 'a'.center(4000, '🎉') }}",
        "{{ ('\t' * 200).expandtabs(100) }}", "{{ '\t'.expandtabs(9223372036854775807) }}"}) {
    EXPECT_EQ(RunTemplate(source, {}, small).status().code(), absl::StatusCode::kResourceExhausted)
        << source;
  }
  EXPECT_THAT(std::string(RunTemplate(absl::StrCat("{% for i in range(300) %}{{ '", "{0}{0}{0}",
                                                   "'.format('x' * 3000) }}{% endfor %}"),
                                      {}, small)
                              .status()
                              .message()),
              HasSubstr("more than 10000 bytes"));
}

// If jinja2 resolves the name at compile time, the template is rejected with the position.
TEST_F(JinjaTest, UnsupportedPartsOutsideBranchesRejectTheTemplate) {
  for (const auto& [source, message] :
       {std::pair("\n{{ x|nosuch }}", "line 2, column 6: the filter 'nosuch' is not supported"),
        std::pair("{{ x is nosuch }}", "line 1, column 9: the test 'nosuch' is not supported"),
        std::pair("{{ x.encode('utf-8') }}", "line 1, column 5: the method 'encode'"),
        std::pair("{% for a in x|nosuch %}{% endfor %}", "the filter 'nosuch'"),
        std::pair("{% if a %}{% endif %}{{ b|later }}", "the filter 'later'"),
        std::pair("{% macro m() %}{{ b|inside }}{% endmacro %}", "the filter 'inside'")}) {
    EXPECT_THAT(std::string(Parse(source).status().message()), HasSubstr(message)) << source;
  }
}

TEST_F(JinjaTest, UnsupportedPartsInsideBranchesFailWhenExecuted) {
  const struct {
    const char* source;
    const char* when_taken;
  } cases[] = {
      {"{% if x %}{{ 'a'|nosuch }}{% else %}ok{% endif %}", "the filter 'nosuch'"},
      {"{% if not x %}ok{% elif 'a' is nosuch %}{% endif %}", "the test 'nosuch'"},
      {"{{ ('a'|nosuch) if x else 'ok' }}", "the filter 'nosuch'"},
      {"{{ 'a'|nosuch(1) if x else 'ok' }}", "the filter 'nosuch'"},
      {"{% if x %}{{ 'a'.encode() }}{% endif %}ok", "the method 'encode'"},
      {"{% if x %}{% for i in [1] %}{% set y = i|nosuch %}{% endfor %}{% endif %}ok",
       "the filter 'nosuch'"},
  };
  for (const auto& [source, when_taken] : cases) {
    const absl::StatusOr<ParsedTemplate> parsed = Parse(source);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_THAT(parsed->warnings, ElementsAre(HasSubstr(when_taken))) << source;
    EXPECT_EQ(*RunTemplate(source, {{"x", Value::Bool(false)}}), "ok") << source;
    const absl::Status taken = RunTemplate(source, {{"x", Value::Bool(true)}}).status();
    EXPECT_EQ(taken.code(), absl::StatusCode::kUnimplemented) << source;
    EXPECT_THAT(std::string(taken.message()), HasSubstr(when_taken));
  }
  EXPECT_THAT(Parse("{% if x %}{{ x|upper }}{% endif %}")->warnings, ElementsAre());
}

// Names that are values are resolved for each element.
TEST_F(JinjaTest, UnknownNamesInMapAndSelectFailForTheFirstElement) {
  for (const char* filter : {"map('nosuch')", "select('nosuch')", "rejectattr('a', 'nosuch')"}) {
    EXPECT_EQ(*RunTemplate(absl::StrCat("{{ []|", filter, "|list }}")), "[]");
    EXPECT_EQ(*RunTemplate(absl::StrCat("{{ [1]|reject|", filter, "|list }}")), "[]");
    EXPECT_EQ(RunTemplate(absl::StrCat("{{ [1]|", filter, "|list }}")).status().code(),
              absl::StatusCode::kUnimplemented);
  }
}

// A mapping may have a member of that name.
TEST_F(JinjaTest, ReadsAMemberNamedLikeAMethod) {
  EXPECT_EQ(*RunTemplate("{{ {'encode': 'mine'}.encode }}"), "mine");
}

TEST_F(JinjaTest, RejectsDeepTemplates) {
  std::string loops, ends, ifs, ends_if;
  for (int i = 0; i < 17; ++i) {
    loops += "{% for a in b %}";
    ends += "{% endfor %}";
  }
  EXPECT_THAT(Message(RunTemplate(loops + ends)), HasSubstr("loops are nested more than 16 deep"));
  for (int i = 0; i < 70; ++i) {
    ifs += "{% if a %}";
    ends_if += "{% endif %}";
  }
  EXPECT_THAT(Message(RunTemplate(ifs + ends_if)),
              HasSubstr("blocks are nested more than 64 deep"));
  for (const char* open : {"(", "[", "{1:", "-", "a[", "f(", "not ", "a if "}) {
    std::string source = "{{ ";
    for (int i = 0; i < 100000; ++i) source += open;
    EXPECT_FALSE(RunTemplate(source + " }}").ok()) << open;
  }
  for (const char* link : {".a", "[0]", "|list", "()", " + 1", " and 1", " ~ 1"}) {
    std::string source = "{{ a";
    for (int i = 0; i < 100000; ++i) source += link;
    // Any number of joined texts is one level.
    const bool may_run = absl::string_view(link) == " ~ 1";
    EXPECT_TRUE(may_run || !RunTemplate(source + " }}").ok()) << link;
  }
  EXPECT_THAT(Message(RunTemplate(std::string(kMaxTemplateBytes + 1, 'x'))),
              HasSubstr("the limit is"));
}

TEST_F(JinjaTest, RangesEndAtTheEdgeOfIntegers) {
  const Variables variables = {{"most", Value::Int(std::numeric_limits<std::int64_t>::max())}};
  const auto print = [&variables](absl::string_view range) {
    return *RunTemplate(absl::StrCat("{{ range(", range, ")|list }}"), variables);
  };
  EXPECT_EQ(print("most - 1, most, 5"), "[9223372036854775806]");
  EXPECT_EQ(print("-most - 1, most, most"), "[-9223372036854775808, -1, 9223372036854775806]");
  EXPECT_EQ(print("most, -most, -most - 1"), "[9223372036854775807, -1]");
  EXPECT_EQ(absl::StrCat(print("5, 5"), print("5, 1"), print("1, 5, -1")), "[][][]");
}

// A program with the maximum number of levels runs on a thread's default stack.
TEST_F(JinjaTest, RunsTheDeepestProgram) {
  std::string sum = "1";
  for (int i = 0; i < 190; ++i) sum += " + 1";
  const std::string source = absl::StrCat("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{{ ",
                                          sum, " }} {% endmacro %}{{ m(60) }}");
  absl::StatusOr<std::string> got;
  std::thread([&] { got = RunTemplate(source); }).join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(absl::StartsWith(*got, "191 191 "));
}

// Mutates every template of the recorded cases at random positions. Each run ends within the
// limits, and its output is UTF-8.
TEST_F(JinjaTest, BrokenTemplatesStayWithinTheLimits) {
  const Variables variables = ReadVariables(ReadTestFile(TemplateData() / "variables.json"));
  std::vector<std::string> sources;
  for (const nlohmann::json& test : ReadJsonLines(TemplateData() / "expressions.jsonl")) {
    sources.push_back(test.at("template"));
  }
  for (const auto& file : std::filesystem::directory_iterator(TemplateData() / "families")) {
    sources.push_back(ReadTestFile(file.path()));
  }
  std::sort(sources.begin(), sources.end());
  const std::uint32_t seed = 20261122;
  std::mt19937 random(seed);
  const auto below = [&random](std::size_t limit) {
    return static_cast<std::size_t>(random()) % limit;
  };
  constexpr absl::string_view kPieces[] = {
      "{{",    "}}",   "{%",    "%}",     "{#",   "#}",        "-",  "+",  "|",
      "(",     ")",    "[",     "]",      "'",    "\"",        "\\", "\n", " if ",
      " for ", " in ", "endif", "endfor", "set ", "macro ",    "9",  ".",  "~",
      "*",     "=",    ",",     ":",      "ü",    "range(99)", "s",  "m"};
  const RenderLimits limits{.max_bytes = 20000, .max_steps = 20000};
  int printed = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string source = sources[below(sources.size())];
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(source.size() + 1);
      const absl::string_view piece = kPieces[below(std::size(kPieces))];
      switch (below(4)) {
        case 0:
          source.insert(at, piece.data(), piece.size());
          break;
        case 1:
          source.erase(at, 1 + below(6));
          break;
        case 2:
          source.resize(at);
          break;
        default:
          source += sources[below(sources.size())].substr(0, 200);
      }
    }
    if (FirstInvalidUtf8(source)) continue;  // such templates are rejected before parsing
    const absl::StatusOr<ParsedTemplate> parsed = Parse(source);
    if (!parsed.ok()) continue;
    const RenderResult result = Render(parsed->body, variables, limits, kNow);
    if (!result.text.ok()) continue;
    ++printed;
    EXPECT_LE(result.text->size(), 20000u);
    EXPECT_FALSE(FirstInvalidUtf8(*result.text)) << "seed " << seed << ": " << Escaped(source);
  }
  EXPECT_GT(printed, 500);
}

TEST_F(JinjaTest, LongConversationsFitTheDefaultLimits) {
  std::string messages;
  for (int i = 0; i < 4096; ++i) {
    absl::StrAppend(&messages, i > 0 ? "," : "", R"({"role": ")", i % 2 == 0 ? "user" : "assistant",
                    R"(", "content": ")", std::string(1000, 'x'), "\"}");
  }
  const Variables variables =
      ReadVariables(absl::StrCat(R"({"tools": null, "add_generation_prompt": true,
                                     "bos_token": "<s>", "eos_token": "</s>", "messages": [)",
                                 messages, "]}"));
  int families = 0;
  for (const auto& file : std::filesystem::directory_iterator(TemplateData() / "families")) {
    const absl::StatusOr<std::string> got = RunTemplate(ReadTestFile(file.path()), variables);
    ASSERT_TRUE(got.ok()) << file.path() << ": " << got.status();
    EXPECT_GT(got->size(), 4096u * 1000u);
    ++families;
  }
  EXPECT_EQ(families, 7);
}

TEST_F(JinjaTest, ConcurrentRenderingsAreIndependent) {
  const absl::StatusOr<ParsedTemplate> parsed = Parse(
      "{% set ns = namespace(n=0) %}{% for i in range(200) %}{% set ns.n = ns.n + x %}"
      "{% endfor %}{{ ns.n }}{{ d|tojson }}");
  ASSERT_TRUE(parsed.ok());
  const Variables shared = ReadVariables(R"({"d": {"a": [1, "b"]}})");
  std::vector<std::thread> threads;
  std::vector<std::string> texts(8);
  for (std::size_t t = 0; t < texts.size(); ++t) {
    threads.emplace_back([&, t] {
      Variables variables = shared;
      variables.emplace_back("x", Value::Int(static_cast<std::int64_t>(t)));
      for (int i = 0; i < 20; ++i) texts[t] = *Render(parsed->body, variables, {}, kNow).text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < texts.size(); ++t) {
    EXPECT_EQ(texts[t], absl::StrCat(200 * t, R"({"a": [1, "b"]})"));
  }
}

TEST_F(JinjaTest, ReadsJsonStrictly) {
  for (const char* json : {"", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "'a'", "[1e999]",
                           "99999999999999999999", "18446744073709551615", "\"\xff\""}) {
    EXPECT_FALSE(FromJson(json).ok()) << json;
  }
  EXPECT_FALSE(FromJson(std::string(65, '[') + std::string(65, ']')).ok());
  EXPECT_TRUE(FromJson(std::string(64, '[') + std::string(64, ']')).ok());
}

}  // namespace
}  // namespace quire::text::jinja

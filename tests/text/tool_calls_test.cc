// Compares every recorded output of tests/testdata/tool_calls as its README defines: whole, byte by
// byte and at random cuts. Also parses random text of markers, of which nothing may be lost.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/paths.h"
#include "tests/text/testdata.h"
#include "text/tools/format_text.h"
#include "text/tools/output_parser.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Kind = OutputPart::Kind;

constexpr absl::string_view kFormatFiles[] = {
    "deepseek-v3",       "deepseek-v31", "glm-4.5",  "granite-list", "granite4",
    "harmony",           "hermes",       "kimi-k2",  "llama3-json",  "mistral-list",
    "mistral-name-args", "phi4-mini",    "pythonic", "qwen3-coder"};

// Returns the number of random cuts per case, by default 10^5 over all 368 cases.
int NumCuts() {
  const char* wanted = std::getenv("QUIRE_TOOL_CALL_CUTS");
  int count = 272;
  if (wanted != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(wanted, &count));
  }
  return count;
}

json ReadFormatFile(absl::string_view name) {
  return json::parse(ReadTestFile(paths::TestData(absl::StrCat("tool_calls/", name, ".json"))));
}

const ToolFormat& FormatOf(const std::string& file) {
  const ToolFormat* format = FindToolFormat(file == "granite4" ? "hermes" : file);
  EXPECT_NE(format, nullptr) << file;
  return *format;
}

std::shared_ptr<const DeclaredTools> ToolsOf(const json& tools) {
  std::vector<ChatTool> declared;
  for (const json& tool : tools) {
    const json& function = tool["function"];
    declared.push_back({.name = function["name"],
                        .description = function["description"],
                        .parameters_json = function["parameters"].dump()});
  }
  return std::make_shared<const DeclaredTools>(*DeclaredTools::Create(declared));
}

// Merges adjacent parts of one kind, which cuts separate.
std::vector<OutputPart> Joined(std::vector<OutputPart> parts) {
  std::vector<OutputPart> joined;
  for (OutputPart& part : parts) {
    const bool joins = !joined.empty() && joined.back().kind == part.kind &&
                       part.kind != Kind::kCall && part.kind != Kind::kFailed;
    if (joins) {
      joined.back().source += part.source;
    } else {
      joined.push_back(std::move(part));
    }
  }
  return joined;
}

// Parses pieces of the lengths in `cuts`, then the rest as one piece.
std::vector<OutputPart> Parse(OutputParser parser, absl::string_view text,
                              const std::vector<std::size_t>& cuts) {
  std::vector<OutputPart> parts;
  std::size_t begin = 0;
  for (const std::size_t length : cuts) {
    parser.Push(text.substr(begin, length), &parts);
    EXPECT_EQ(parser.CheckIntegrity(), absl::OkStatus());
    begin = std::min(begin + length, text.size());
  }
  parser.Push(text.substr(begin), &parts);
  parser.Finish(&parts);
  EXPECT_EQ(parser.CheckIntegrity(), absl::OkStatus());
  std::string sources;
  for (const OutputPart& part : parts) sources += part.source;
  EXPECT_EQ(sources, text);
  return Joined(std::move(parts));
}

std::vector<std::size_t> RandomCuts(std::size_t length, std::mt19937_64& random) {
  std::vector<std::size_t> cuts;
  for (std::size_t sum = 0; sum < length; sum += cuts.back()) cuts.push_back(1 + random() % 9);
  return cuts;
}

std::string Describe(const std::vector<OutputPart>& parts) {
  constexpr absl::string_view kNames[] = {"content", "reasoning", "markup", "call", "failed"};
  std::string text;
  for (const OutputPart& part : parts) {
    absl::StrAppend(&text, "\n  ", kNames[static_cast<int>(part.kind)], " ", Escaped(part.source),
                    " ", part.call.name, part.call.arguments_json, " ", part.call.error);
  }
  return text;
}

std::string Squeezed(absl::string_view text) {
  std::string squeezed;
  for (const char byte : text) {
    if (!std::isspace(static_cast<unsigned char>(byte))) squeezed += byte;
  }
  return squeezed;
}

// The output that a client receives.
struct Result {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
  int num_failed = 0;
};

Result ResultOf(const std::vector<OutputPart>& parts) {
  Result result;
  for (const OutputPart& part : parts) {
    if (part.kind == Kind::kContent || part.kind == Kind::kFailed) result.content += part.source;
    if (part.kind == Kind::kReasoning) result.reasoning += part.source;
    if (part.kind == Kind::kCall) result.calls.push_back(part.call);
    result.num_failed += part.kind == Kind::kFailed ? 1 : 0;
  }
  return result;
}

bool IsFailure(const json& event) {
  return event["type"] == "failed" || event["type"] == "unfinished";
}

// Returns the texts of one kind that must follow each other. Markup next to a failed part may be
// emitted with it.
std::vector<std::pair<std::string, bool>> Segments(const json& events, const std::string& kind) {
  std::vector<std::pair<std::string, bool>> segments;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const std::string source = Squeezed(events[i]["source"].get<std::string>());
    const bool counts = events[i]["type"] == kind || (kind == "content" && IsFailure(events[i]));
    const bool is_beside =
        (i > 0 && IsFailure(events[i - 1])) || (i + 1 < events.size() && IsFailure(events[i + 1]));
    if (counts) {
      segments.emplace_back(source, false);
    } else if (kind == "content" && events[i]["type"] == "markup" && is_beside) {
      segments.emplace_back(source, true);
    }
  }
  return segments;
}

bool Fits(absl::string_view text, const std::vector<std::pair<std::string, bool>>& segments,
          std::size_t first = 0) {
  if (first == segments.size()) return text.empty();
  const auto& [segment, is_optional] = segments[first];
  if (is_optional && Fits(text, segments, first + 1)) return true;
  return text.substr(0, segment.size()) == segment &&
         Fits(text.substr(segment.size()), segments, first + 1);
}

// Returns "" if the result equals the events.
std::string DifferenceFrom(const json& events, const Result& result) {
  std::vector<json> calls;
  int num_failed = 0;
  for (const json& event : events) {
    if (event["type"] == "call") calls.push_back(event);
    num_failed += IsFailure(event) ? 1 : 0;
  }
  if (calls.size() != result.calls.size()) return absl::StrCat(result.calls.size(), " calls");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const ToolCall& call = result.calls[i];
    if (call.name != calls[i]["name"]) return "call of " + call.name;
    const json arguments = json::parse(call.arguments_json, nullptr, /*allow_exceptions=*/false);
    if (arguments != calls[i]["arguments"]) return "arguments " + call.arguments_json;
    if (calls[i].contains("arguments_text") && call.arguments_json != calls[i]["arguments_text"]) {
      return "rewritten arguments " + call.arguments_json;
    }
  }
  if (!Fits(Squeezed(result.content), Segments(events, "content"))) {
    return "content " + Escaped(result.content);
  }
  if (!Fits(Squeezed(result.reasoning), Segments(events, "reasoning"))) {
    return "reasoning " + Escaped(result.reasoning);
  }
  if ((num_failed > 0) != (result.num_failed > 0)) {
    return absl::StrCat(result.num_failed, " failed parts");
  }
  return "";
}

std::string Difference(const json& test, const Result& result) {
  const std::string difference = DifferenceFrom(test["events"], result);
  if (difference.empty() || !test.contains("alternatives")) return difference;
  for (const json& alternative : test["alternatives"]) {
    if (DifferenceFrom(alternative, result).empty()) return "";
  }
  return difference;
}

class ToolFormatFileTest : public ::testing::TestWithParam<absl::string_view> {};

TEST_P(ToolFormatFileTest, ParsesEveryCaseWholeAndCut) {
  const json file = ReadFormatFile(GetParam());
  const ToolFormat& format = FormatOf(file["format"]);
  const std::shared_ptr<const DeclaredTools> tools = ToolsOf(file["tools"]);
  std::mt19937_64 random(1);
  const int num_cuts = NumCuts();
  ASSERT_GE(file["cases"].size(), 23u);
  for (const json& test : file["cases"]) {
    SCOPED_TRACE(test["id"].get<std::string>());
    const std::string raw = test["raw"];
    const OutputParser parser(format, tools, test["prompt_opens_reasoning"]);
    const std::vector<OutputPart> whole = Parse(parser, raw, {});
    EXPECT_EQ(Difference(test, ResultOf(whole)), "") << Describe(whole);
    const std::vector<std::size_t> bytes(raw.size(), 1);
    EXPECT_TRUE(Parse(parser, raw, bytes) == whole) << Describe(Parse(parser, raw, bytes));
    for (int i = 0; i < num_cuts; ++i) {
      const std::vector<std::size_t> cuts = RandomCuts(raw.size(), random);
      ASSERT_TRUE(Parse(parser, raw, cuts) == whole) << Describe(Parse(parser, raw, cuts));
    }
  }
}

// A comparison that accepts any result would prove nothing.
TEST(ToolCallComparisonTest, DetectsRemovedParts) {
  const json file = ReadFormatFile("hermes");
  int num_changed = 0;
  for (const json& test : file["cases"]) {
    Result result = ResultOf(Parse(
        OutputParser(FormatOf("hermes"), ToolsOf(file["tools"]), test["prompt_opens_reasoning"]),
        test["raw"].get<std::string>(), {}));
    const Result whole = result;
    for (int change = 0; change < 3; ++change) {
      result = whole;
      if (change == 0 && !result.calls.empty()) result.calls.pop_back();
      if (change == 1) result.content += "x";
      if (change == 2 && !Squeezed(result.reasoning).empty()) result.reasoning.clear();
      if (change != 1 && result.calls.size() == whole.calls.size() &&
          result.reasoning == whole.reasoning) {
        continue;
      }
      ++num_changed;
      EXPECT_NE(Difference(test, result), "") << test["id"] << " change " << change;
    }
  }
  EXPECT_GT(num_changed, 60);
}

// The text consists of markers, brackets, quotes and words in an order that no model would
// generate.
TEST_P(ToolFormatFileTest, RandomTextIsCompleteForAnyCuts) {
  const json file = ReadFormatFile(GetParam());
  const ToolFormat& format = FormatOf(file["format"]);
  const std::shared_ptr<const DeclaredTools> tools = ToolsOf(file["tools"]);
  std::vector<std::string> pieces = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     "(",
                                     ")",
                                     "\"",
                                     "'",
                                     "\\",
                                     ",",
                                     ":",
                                     ";",
                                     " ",
                                     "\n",
                                     "=",
                                     "now",
                                     "get_weather",
                                     "name",
                                     "arguments",
                                     "ü",
                                     "<",
                                     "|",
                                     "{\"name\": \"now\", \"arguments\": {}}",
                                     "<function=",
                                     "</function>",
                                     "<parameter=city>",
                                     "</parameter>",
                                     "<arg_value>",
                                     "</arg_value>",
                                     "to=functions.now"};
  for (const json& token : file["special_tokens"]) {
    for (int i = 0; i < 4; ++i) pieces.push_back(token);
  }
  std::mt19937_64 random(2);
  for (int round = 0; round < 2 * NumCuts(); ++round) {
    std::string text;
    const int length = static_cast<int>(random() % 40);
    for (int i = 0; i < length; ++i) text += pieces[random() % pieces.size()];
    const OutputParser parser(format, tools, random() % 2 == 0);
    const std::vector<OutputPart> whole = Parse(parser, text, {});
    for (const OutputPart& part : whole) {
      if (part.kind != Kind::kCall) continue;
      EXPECT_TRUE(tools->Has(part.call.name));
      EXPECT_TRUE(json::parse(part.call.arguments_json).is_object());
    }
    ASSERT_TRUE(Parse(parser, text, RandomCuts(text.size(), random)) == whole)
        << Escaped(text) << Describe(whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ToolFormatFileTest, ::testing::ValuesIn(kFormatFiles),
                         [](const auto& info) {
                           std::string name(info.param);
                           for (char& byte : name) {
                             if (!std::isalnum(static_cast<unsigned char>(byte))) byte = '_';
                           }
                           return name;
                         });

TEST(OutputParserTest, WithoutToolsOnlyReasoningIsSeparated) {
  const std::string text = "<think>a</think><tool_call>{\"name\": \"now\"}</tool_call>";
  const auto parts = Parse(OutputParser(*FindToolFormat("hermes"), nullptr, false), text, {});
  const Result result = ResultOf(parts);
  EXPECT_EQ(result.reasoning, "a");
  EXPECT_EQ(result.content, "<tool_call>{\"name\": \"now\"}</tool_call>");
  EXPECT_TRUE(result.calls.empty());
  EXPECT_EQ(result.num_failed, 0);
}

TEST(OutputParserTest, BuffersAtMostTheStartOfAMarker) {
  OutputParser parser(*FindToolFormat("hermes"), ToolsOf(ReadFormatFile("hermes")["tools"]), false);
  std::vector<OutputPart> parts;
  const std::string text = "a < b <tool_ <tool_cal";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    parser.Push(text.substr(i, 1), &parts);
    out = ResultOf(parts).content;
    const std::string held = text.substr(0, i + 1).substr(out.size());
    EXPECT_TRUE(absl::StartsWith("<tool_call>", held)) << held;
  }
  EXPECT_EQ(out, "a < b <tool_ ");
}

// A repeated argument has its last value, unless the format forbids repetition.
TEST(OutputParserTest, RepeatedArgumentHasItsLastValueOrIsRejected) {
  const auto only = [](absl::string_view format, const std::string& text) {
    const auto parts = Parse(
        OutputParser(*FindToolFormat(format), ToolsOf(ReadFormatFile("hermes")["tools"]), false),
        text, {});
    EXPECT_EQ(parts.size(), 1u) << Describe(parts);
    return parts[0].call.error.empty() ? parts[0].call.arguments_json : parts[0].call.error;
  };
  const std::string last = R"({"a": "2", "b": "3"})";
  EXPECT_EQ(only("qwen3-coder",
                 "<tool_call><function=now><parameter=a>1</parameter><parameter=b>3\n<parameter=a>"
                 "2</parameter></function></tool_call>"),
            last);
  EXPECT_EQ(
      only("glm-4.5",
           "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key>"
           "<arg_value>3</arg_value><arg_key>a</arg_key><arg_value>2</arg_value></tool_call>"),
      last);
  const auto pythonic = [](const std::string& call) {
    const ToolCall read = ReadPythonToolCall(call, *ToolsOf(ReadFormatFile("hermes")["tools"]));
    return read.error.empty() ? read.arguments_json : read.error;
  };
  EXPECT_EQ(pythonic("now(a='1', b=3, a='2')"), "bad_arguments");
  EXPECT_EQ(pythonic("now(x={'a': '1', 'b': '3', 'a': '2'})"), absl::StrCat("{\"x\": ", last, "}"));
  EXPECT_EQ(only("hermes", R"(<tool_call>{"name": "now", "\u0061rguments": {"a": 1}}</tool_call>)"),
            "bad_arguments");
}

// The output has a mebibyte of parameters. Parsing it for seconds would delay other requests.
TEST(OutputParserTest, ManyParametersAreReadInOnePass) {
  const auto tools = ToolsOf(ReadFormatFile("qwen3-coder")["tools"]);
  for (const absl::string_view end : {"\n", "</parameter>"}) {
    std::string text = "<tool_call><function=now>";
    int count = 0;
    while (text.size() < 1 << 20) absl::StrAppend(&text, "<parameter=", count++, ">", end);
    text += "</function></tool_call>";
    std::vector<OutputPart> parts;
    OutputParser parser(*FindToolFormat("qwen3-coder"), tools, false);
    const std::clock_t begin = std::clock();
    parser.Push(text, &parts);
    parser.Finish(&parts);
    // Parsing takes 0.1 s, or 2 s with sanitizers. Scanning the rest or all names for each
    // parameter would take 14 s.
    EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(json::parse(parts[0].call.arguments_json).size(), static_cast<std::size_t>(count));
  }
}

TEST(OutputParserTest, BufferedCallIsNotScannedAgainAtEachTag) {
  const auto repeated = [](absl::string_view piece) {
    std::string text;
    while (text.size() < 1 << 19) absl::StrAppend(&text, piece);
    return text;
  };
  const auto tools = ToolsOf(ReadFormatFile("qwen3-coder")["tools"]);
  for (const std::string& text :
       {"<function=now>" + repeated("<") + "<parameter=a>" + repeated("</function>"),
        "<tool_call>" + repeated("<") + "<function=now>" + repeated("</tool_call>")}) {
    const std::clock_t begin = std::clock();
    std::vector<OutputPart> parts;
    OutputParser parser(*FindToolFormat("qwen3-coder"), tools, false);
    parser.Push(text, &parts);
    parser.Finish(&parts);
    EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].source.size(), text.size());
    EXPECT_EQ(parts[0].call.error, "unfinished");
  }
}

// A name without an end is text as soon as it is too long. It is not buffered until the end.
TEST(OutputParserTest, NameWithoutEndIsText) {
  const ToolFormat& format = *FindToolFormat("pythonic");
  const auto tools = ToolsOf(ReadFormatFile("pythonic")["tools"]);
  for (const std::string& name : {std::string(1000, 'a'), "a" + std::string(1000, ' ')}) {
    OutputParser parser(format, tools, false);
    std::vector<OutputPart> parts;
    std::string out;
    const std::string text = "[" + name;
    for (const char& byte : text) {
      parser.Push({&byte, 1}, &parts);
      out = ResultOf(parts).content;
      const auto pushed = static_cast<std::size_t>(&byte - text.data()) + 1;
      ASSERT_LE(pushed - out.size(), 258u);
    }
    parser.Finish(&parts);
    EXPECT_EQ(ResultOf(parts).content, text);
  }
}

TEST(OpensReasoningTest, ConsidersOnlyTheContinuedMessage) {
  const ToolFormat& format = *FindToolFormat("hermes");
  const auto opens = [&](absl::string_view prompt, std::optional<absl::string_view> continued) {
    return OpensReasoning(format, prompt, continued);
  };
  EXPECT_TRUE(opens("user: hi\nmodel: <think>\n", std::nullopt));
  EXPECT_FALSE(opens("user: <think> hi\nmodel: ", std::nullopt));
  EXPECT_TRUE(opens("user: hi\nmodel: <think>I mu", "<think>I mu"));
  EXPECT_TRUE(opens("user: hi\nmodel: <think>I mu ", " <think>I mu "));
  EXPECT_TRUE(opens("user: hi\nmodel: <think>I mu", "<think>I mu \n"));
  EXPECT_FALSE(opens("user: hi\nmodel: <think>a</think>b", "<think>a</think>b"));
  EXPECT_TRUE(opens("user: hi\nmodel: <think>a</think><think>b", "<think>a</think><think>b"));
  // The marker comes from the template.
  EXPECT_TRUE(opens("user: hi\nmodel: <think>\nI mu", "I mu"));
  EXPECT_FALSE(opens("user: hi\nmodel: <think>\na</think>b", "a</think>b"));
  // The marker is in another message.
  EXPECT_FALSE(opens("user: what is <think>?\nmodel: It i", "It i"));
  EXPECT_FALSE(opens("user: <think>\nmodel: It i", "It i"));
}

TEST(IsAfterReasoningTest, DependsOnTheEndOfThePromptOrTheContinuedMessage) {
  const auto is_behind = [](absl::string_view prompt, std::optional<absl::string_view> continued,
                            absl::string_view format = "hermes") {
    return IsAfterReasoning(*FindToolFormat(format), prompt, continued);
  };
  EXPECT_TRUE(is_behind("model: <think>\n\n</think>\n\n", std::nullopt));
  EXPECT_TRUE(is_behind("model: </think>", std::nullopt));
  EXPECT_TRUE(is_behind("model: </think>", " "));
  EXPECT_FALSE(is_behind("model: ", std::nullopt));
  EXPECT_FALSE(is_behind("model: <think>\n", std::nullopt));
  EXPECT_FALSE(is_behind("user: </think>\nmodel: ", std::nullopt));
  EXPECT_TRUE(is_behind("model: <think>a</think>b", "<think>a</think>b"));
  EXPECT_TRUE(is_behind("model: It i", "It i"));
  EXPECT_FALSE(is_behind("model: <think>I mu", "<think>I mu"));
  EXPECT_FALSE(is_behind("model: <think>\nI mu", "I mu"));
  EXPECT_FALSE(is_behind("model: <think></think>", std::nullopt, "pythonic"));
}

TEST(HasReasoningTest, DependsOnTheMarkersOfTheTemplate) {
  const auto has = [](absl::string_view format, absl::string_view chat_template) {
    return HasReasoning(*FindToolFormat(format), chat_template);
  };
  EXPECT_TRUE(has("hermes", "{{ '<tool_call>' }}<think>"));
  EXPECT_TRUE(has("hermes", "{{ content.split('</think>')[-1] }}"));
  EXPECT_FALSE(has("hermes", "{{ '<tool_call>' }}"));
  EXPECT_TRUE(has("think", "{{ messages }}"));
  EXPECT_TRUE(has("mistral-name-args", "[THINK]"));
  EXPECT_FALSE(has("mistral-name-args", "<think>"));
  EXPECT_FALSE(has("pythonic", "<think>"));
}

TEST(DeclaredToolsTest, RejectsInvalidTools) {
  const auto message = [](std::vector<ChatTool> tools) {
    return std::string(DeclaredTools::Create(tools).status().message());
  };
  EXPECT_EQ(message({{.name = "a"}, {.name = ""}}), "tools[1] has no name");
  EXPECT_EQ(message({{.name = "a"}, {.name = "b"}, {.name = "a"}}),
            "tools[2] has the name \"a\", which is already used by an earlier tool; names must be "
            "unique");
  EXPECT_EQ(message({{.name = "a", .parameters_json = "[]"}}),
            "tools[0].parameters must be an object");
  EXPECT_NE(message({{.name = "a", .parameters_json = "{"}}), "");
  EXPECT_EQ(message({{.name = "a", .parameters_json = "{}"}}), "");
}

TEST(ToolFormatTest, IsDetectedByTheMarkersOfTheTemplate) {
  const auto name = [](absl::string_view chat_template) {
    const ToolFormat* format = DetectToolFormat(chat_template);
    return format == nullptr ? std::string() : std::string(format->name);
  };
  EXPECT_EQ(name("{{ messages }}"), "");
  EXPECT_EQ(name("<tool_call>\\n{\"name\": <n>}\\n</tool_call>"), "hermes");
  EXPECT_EQ(name("<tool_call>\\n<function=f>\\n</function></tool_call>"), "qwen3-coder");
  EXPECT_EQ(name("<tool_call>f<arg_key>k</arg_key></tool_call>"), "glm-4.5");
  EXPECT_EQ(name("[AVAILABLE_TOOLS] [TOOL_CALLS] ["), "mistral-list");
  EXPECT_EQ(name("[TOOL_CALLS]f[ARGS]{}"), "mistral-name-args");
  EXPECT_EQ(name("<|tool_call|>[]"), "granite-list");
  EXPECT_EQ(name("<|tool_call|>[]<|/tool_call|>"), "phi4-mini");
  EXPECT_EQ(name("<｜tool▁calls▁begin｜>f<｜tool▁sep｜>"), "deepseek-v31");
  EXPECT_EQ(name("<｜tool▁calls▁begin｜>f<｜tool▁sep｜>\n```json"), "deepseek-v3");
  EXPECT_EQ(name("<|start|>assistant<|channel|>final<|message|>"), "harmony");
  EXPECT_EQ(name("{% if '</think>' in content %}<think>"), "think");
  EXPECT_EQ(FindToolFormat("xml"), nullptr);
}

}  // namespace
}  // namespace quire::text

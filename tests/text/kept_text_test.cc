// Text of an answer that is not a call reaches the client unchanged, whole and streamed, in every
// format. Markup is dropped only next to parsed calls.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "text/tools/output_parser.h"

namespace quire::text {
namespace {

using Kind = OutputPart::Kind;

std::shared_ptr<const DeclaredTools> Tools() {
  static const std::vector<ChatTool> tools = {
      {.name = "now"},
      {.name = "find",
       .parameters_json =
           R"({"properties": {"q": {"type": "string"}, "n": {"type": "integer"}}})"}};
  static const auto declared = std::make_shared<const DeclaredTools>(*DeclaredTools::Create(tools));
  return declared;
}

struct Answer {
  std::string content;
  std::string reasoning;
  std::vector<std::string> calls;   // "name arguments"
  std::vector<std::string> markup;  // markup that no client receives
  friend bool operator==(const Answer&, const Answer&) = default;
};

// `next_size` returns the length of the next piece.
template <typename NextSize>
Answer Read(const ToolFormat& format, const std::string& text, bool opens, NextSize next_size) {
  OutputParser parser(format, Tools(), opens);
  std::vector<OutputPart> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = next_size();
    parser.Push(absl::string_view(text).substr(at, size), &parts);
    EXPECT_EQ(parser.CheckIntegrity(), absl::OkStatus());
    at += size;
  }
  parser.Finish(&parts);
  Answer answer;
  std::string sources, markup;
  for (const OutputPart& part : parts) {
    sources += part.source;
    if (part.kind != Kind::kMarkup && !markup.empty()) {
      answer.markup.push_back(std::exchange(markup, {}));
    }
    if (part.kind == Kind::kMarkup) markup += part.source;
    if (part.kind == Kind::kContent || part.kind == Kind::kFailed) answer.content += part.source;
    if (part.kind == Kind::kReasoning) answer.reasoning += part.source;
    if (part.kind == Kind::kCall) {
      answer.calls.push_back(part.call.name + " " + part.call.arguments_json);
    }
  }
  if (!markup.empty()) answer.markup.push_back(markup);
  EXPECT_EQ(sources, text);
  return answer;
}

Answer Whole(absl::string_view format, const std::string& text) {
  const Answer whole = Read(*FindToolFormat(format), text, false, [&] { return text.size(); });
  EXPECT_TRUE(whole == Read(*FindToolFormat(format), text, false, [] { return 1; })) << text;
  return whole;
}

struct TextCase {
  absl::string_view format;
  const char* text;
};

// None of these texts is a call of a declared tool.
constexpr TextCase kTexts[] = {
    // Python lists that are not calls, or calls of something else.
    {"pythonic", "[1, 2, 3] are the first three."},
    {"pythonic", "[link](https://example.org) has it."},
    {"pythonic", " \n[see figure(2), or page 3]"},
    {"pythonic", "[print('hi')]\n"},
    {"pythonic", "[f(x) for x in range(3)]"},
    {"pythonic", "[now(1)]"},
    {"pythonic", "[now(a="},
    {"pythonic", "["},
    {"pythonic", "[]"},
    {"pythonic", "  "},
    {"pythonic", "<|python_start|>print(1)<|python_end|>"},
    {"pythonic", "<|python_start|>[nope()]<|python_end|> \n"},
    {"pythonic", "<|python_start|>"},
    // Lists after a marker.
    {"mistral-list", "[TOOL_CALLS] [1, 2]"},
    {"mistral-list", "[TOOL_CALLS] []"},
    {"mistral-list", "[TOOL_CALLS] [ "},
    {"mistral-list", "[TOOL_CALLS]"},
    {"mistral-list", "[TOOL_CALLS] is the marker.\n"},
    {"mistral-list", "\n\n[TOOL_CALLS] [{\"name\": \"nope\", \"arguments\": {}}]\n"},
    {"mistral-list", "See [TOOL_CALLS][{\"a\": 1}, {\"b\": 2}] there"},
    {"mistral-list", "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {"},
    {"granite-list", "<|tool_call|>[\"text\"]"},
    {"granite-list", "<tool_call>{\"name\": \"now\", \"arguments\": []}"},
    {"granite-list", "<|tool_call|> [ {\"answer\": 42} ] \n"},
    {"phi4-mini", "<|tool_call|>[{\"name\": \"nope\", \"arguments\": {}}]<|/tool_call|>"},
    {"phi4-mini", "<|tool_call|>[ ]<|/tool_call|> \n"},
    {"phi4-mini", "<|tool_call|>none<|/tool_call|>"},
    // Reasoning and call sections.
    {"deepseek-v3", "<｜tool▁calls▁begin｜>none<｜tool▁calls▁end｜>"},
    {"deepseek-v3", "<｜tool▁calls▁begin｜> \n<｜tool▁calls▁end｜>"},
    {"deepseek-v3",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>nope\n```json\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseek-v31", "So: <｜tool▁calls▁begin｜>\n\n"},
    {"deepseek-v31",
     "<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>now<｜tool▁sep｜>[]<｜tool▁call▁end｜>\n"
     "<｜tool▁calls▁end｜>\n"},
    {"deepseek-v31", "<｜tool▁calls▁begin｜><｜tool▁calls▁begin｜>"},
    {"kimi-k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>"},
    {"kimi-k2", "\n<|tool_calls_section_begin|> text <|tool_calls_section_end|>\n"},
    {"kimi-k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.nope:0<|tool_call_argument_begin|>"
     "{}<|tool_call_end|> <|tool_calls_section_end|> "},
    // Objects at the start of the answer.
    {"llama3-json", "{\"answer\": 42}\n"},
    {"llama3-json", "{\"name\": \"nope\", \"parameters\": {}}; "},
    {"llama3-json", " {\"name\": \"now\", \"parameters\": 1} \n"},
    {"llama3-json", "{a: 1}{\"name\": \"now\"}"},
    {"llama3-json", "<|python_tag|>print(1)"},
    {"llama3-json", "<|python_tag|> \n"},
    {"llama3-json", "<|python_tag|>{\"answer\": 42};"},
    {"llama3-json", "{\"name\": \"now\", \"parameters\": {\"}\": "},
    // Whitespace only.
    {"hermes", "\n \n"},
    {"hermes", "\n<tool_call>no</tool_call>\n"},
    {"generic", " <tool_call>{\"name\": \"nope\", \"arguments\": {}}</tool_call> "},
    {"glm-4.5", "\n<tool_call>nope</tool_call>\n"},
    {"qwen3-coder", " <tool_call>\n</tool_call> "},
    {"mistral-name-args", "\n[TOOL_CALLS]nope[ARGS]{}\n"},
};

TEST(KeptTextTest, AnswerWithoutCallsIsContent) {
  for (const auto& [format, text] : kTexts) {
    const Answer answer = Whole(format, text);
    EXPECT_EQ(answer.content, text) << format;
    EXPECT_TRUE(answer.calls.empty()) << format << text;
  }
}

// A reasoning section does not change the text after it.
TEST(KeptTextTest, KeepsTextAfterReasoning) {
  for (const auto& [format, text] : std::vector<TextCase>{
           {"hermes", "\n\n"},
           {"deepseek-v3", "\n<｜tool▁calls▁begin｜>\n"},
           {"kimi-k2", " <|tool_calls_section_begin|>x<|tool_calls_section_end|>"}}) {
    const Answer answer = Whole(format, absl::StrCat("<think>Hm.</think>", text));
    EXPECT_EQ(answer.reasoning, "Hm.");
    EXPECT_EQ(answer.content, text);
  }
}

TEST(KeptTextTest, KeepsTextNextToCalls) {
  const auto expect = [](absl::string_view format, const std::string& text,
                         const std::string& content, std::vector<std::string> calls) {
    const Answer answer = Whole(format, text);
    EXPECT_EQ(answer.content, content) << format << text;
    EXPECT_EQ(answer.calls, calls) << format << text;
  };
  expect("pythonic", "[now(), now()", "", {"now {}", "now {}"});
  expect("pythonic", " [now()] and more.\n", " and more.\n", {"now {}"});
  expect("pythonic", "[nope(), now()]\n", "[nope()", {"now {}"});
  expect("pythonic", "[now(), nope()] ", ", nope()", {"now {}"});
  expect("pythonic", "[now(), 1]", ", 1]", {"now {}"});
  const std::string now = "{\"name\": \"now\", \"arguments\": {}}";
  expect("mistral-list", "A [TOOL_CALLS] [" + now + "] b", "A  b", {"now {}"});
  expect("mistral-list", "[TOOL_CALLS][" + now + ", 5, 6]", ", 5, 6]", {"now {}"});
  expect("mistral-list", "[TOOL_CALLS][" + now + "]\n[TOOL_CALLS] [7]", "\n[TOOL_CALLS] [7]",
         {"now {}"});
  expect("phi4-mini", "<|tool_call|>[" + now + "]<|/tool_call|>\n", "", {"now {}"});
  expect("llama3-json", now + "; {\"answer\": 42}", "; {\"answer\": 42}", {"now {}"});
  expect("llama3-json", "<|python_tag|>{\"a\": 1}; " + now, "<|python_tag|>{\"a\": 1}", {"now {}"});
  const std::string kimi_call =
      "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
  expect("kimi-k2",
         "<|tool_calls_section_begin|>" + kimi_call +
             "<|tool_calls_section_end|>\nSo."
             "<|tool_calls_section_begin|><|tool_calls_section_end|>",
         "\nSo.<|tool_calls_section_begin|><|tool_calls_section_end|>", {"now {}"});
}

// A call of `now` with its markers.
std::string WholeCall(const ToolFormat& format) {
  const CallWriting& writing = format.writing;
  if (!format.can_be_forced()) return "";
  const bool is_json = writing.key_begin.empty() && format.shape != CallShape::kPythonAtStart;
  return absl::StrCat(writing.begin, writing.call_begin, "now", writing.index_begin,
                      writing.index_begin.empty() ? "" : "0", writing.arguments_begin,
                      is_json ? "{}" : "", writing.call_end, writing.end);
}

// The markers of a format and pieces of calls.
std::vector<std::string> PiecesOf(const ToolFormat& format) {
  std::vector<std::string> pieces = {" ",
                                     "\n",
                                     " \n",
                                     "a",
                                     "ü",
                                     ",",
                                     ", ",
                                     ";",
                                     "; ",
                                     "[",
                                     "]",
                                     "{",
                                     "}",
                                     "(",
                                     ")",
                                     "\"",
                                     "'",
                                     "\\",
                                     ":",
                                     "<",
                                     "|",
                                     "=",
                                     "1",
                                     "now",
                                     "nope",
                                     "now()",
                                     "find(q='x', n=2)",
                                     "nope()",
                                     "now(1)",
                                     "[now()]",
                                     "{}",
                                     "{\"answer\": 42}",
                                     "function",
                                     "{\"name\": \"now\", \"arguments\": {}}",
                                     "{\"name\": \"find\", \"parameters\": {\"n\": 1}}",
                                     "{\"name\": \"nope\", \"arguments\": {}}",
                                     "{\"name\": \"now\", \"arguments\": 1}",
                                     "functions.now:0",
                                     "\n```json\n{}\n```",
                                     "<function=now>",
                                     "</function>",
                                     "<parameter=q>x",
                                     "</parameter>",
                                     "<arg_key>q</arg_key>",
                                     "<arg_value>x</arg_value>"};
  pieces.push_back(WholeCall(format));
  pieces.push_back(WholeCall(format));
  for (const absl::string_view marker :
       {format.section_begin, format.section_end, format.call_begin[0], format.call_begin[1],
        format.call_end, format.separator, format.name_prefix, format.reasoning_begin,
        format.reasoning_end}) {
    if (marker.empty()) continue;
    for (int i = 0; i < 5; ++i) pieces.emplace_back(marker);
    pieces.emplace_back(marker.substr(0, marker.size() / 2));
  }
  return pieces;
}

// Removes what may stay with the format: its own markers, brackets, separators and whitespace.
std::string WithoutMarkers(const ToolFormat& format, std::string markup) {
  for (const absl::string_view marker :
       {format.section_begin, format.section_end, format.call_begin[0], format.call_begin[1],
        format.call_end, format.reasoning_begin, format.reasoning_end}) {
    if (!marker.empty()) markup = absl::StrReplaceAll(markup, {{marker, ""}});
  }
  return absl::StrReplaceAll(markup,
                             {{"[", ""}, {"]", ""}, {",", ""}, {";", ""}, {" ", ""}, {"\n", ""}});
}

// Harmony headers are always markup, whatever follows them.
TEST(KeptTextTest, KeepsRandomTextAtAnySplit) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  int num_without = 0, num_with = 0;
  for (const ToolFormat& format : ToolFormats()) {
    if (format.shape == CallShape::kHarmony) continue;
    const std::vector<std::string> pieces = PiecesOf(format);
    for (int round = 0; round < 4000; ++round) {
      std::string text;
      for (std::size_t length = random() % 16; length > 0; --length) {
        text += pieces[random() % pieces.size()];
      }
      const bool opens = random() % 4 == 0;
      const Answer whole = Read(format, text, opens, [&] { return text.size(); });
      for (int cut = 0; cut < 3; ++cut) {
        const std::size_t longest = 1 + random() % 12;
        const Answer cut_answer = Read(format, text, opens, [&] { return 1 + random() % longest; });
        ASSERT_TRUE(whole == cut_answer) << format.name << ": " << text;
      }
      for (const std::string& markup : whole.markup) {
        ASSERT_EQ(WithoutMarkers(format, markup), "") << format.name << ": " << text;
      }
      (whole.calls.empty() ? num_without : num_with)++;
      if (!whole.calls.empty()) continue;
      // Without calls, only the reasoning markers and whitespace before the first one are missing.
      std::string expected = text;
      if (whole.content != expected && !format.reasoning_begin.empty()) {
        if (!opens) {
          absl::string_view rest = absl::StripLeadingAsciiWhitespace(text);
          ASSERT_TRUE(absl::ConsumePrefix(&rest, format.reasoning_begin)) << text;
          expected = std::string(rest);
        }
        const std::size_t end = absl::string_view(expected).find(format.reasoning_end);
        const std::string reasoning = expected.substr(0, end);
        ASSERT_EQ(whole.reasoning, reasoning) << format.name << ": " << text;
        expected.erase(0, end == std::string::npos ? end : end + format.reasoning_end.size());
      }
      ASSERT_EQ(whole.content, expected) << format.name << ": " << text;
    }
  }
  EXPECT_GT(num_without, 1000);
  EXPECT_GT(num_with, 1000);
}

}  // namespace
}  // namespace quire::text

#include "server/openai/openai_answer.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/text_format.h"

namespace quire::server {
namespace {

using nlohmann::json;

v1::GenerateResponse Message(const std::string& text) {
  v1::GenerateResponse message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

OpenAiRequest Parse(const std::string& body) {
  auto parsed =
      absl::StrContains(body, "messages") ? ParseChatRequest(body) : ParseCompletionRequest(body);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

// Ids 0 to 6: a, C3, A9, b, FF, a space, the special token <s>. The decoder strips a space at the
// start of the text.
const text::Tokenizer& TestTokenizer() {
  static const auto tokenizer = text::Tokenizer::FromJson(
      R"({"model": {"type": "BPE", "merges": [],
                    "vocab": {"a": 0, "<0xC3>": 1, "<0xA9>": 2, "b": 3, "<0xFF>": 4, " ": 5}},
          "added_tokens": [{"id": 6, "content": "<s>", "special": true, "normalized": false,
                            "single_word": false, "lstrip": false, "rstrip": false}],
          "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}})",
      "");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return **tokenizer;
}

std::unique_ptr<AnswerWriter> Answer(const OpenAiRequest& request) {
  return MakeOpenAiAnswer(
      request, {.id = "id-1", .model = "m", .created = 5, .system_fingerprint = "fp_1"},
      {.bytes = [](std::int32_t id) { return TestTokenizer().TokenBytes(id); },
       .is_special = [](std::int32_t id) { return TestTokenizer().IsSpecial(id); },
       .detokenizer = [](bool skips) { return text::Detokenizer(TestTokenizer(), skips); }});
}

// Returns the offsets of an echo of these prompt tokens.
json EchoOffsets(const std::string& prompt_json, const std::string& echoed,
                 const std::vector<std::int32_t>& ids, const std::string& completed) {
  const auto answer =
      Answer(Parse(R"({"echo": true, "logprobs": 0, "prompt": )" + prompt_json + "}"));
  v1::GenerateResponse started, logprobs;
  started.mutable_started()->set_prompt_text(echoed);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    started.mutable_started()->add_prompt_token_ids(ids[i]);
    if (i == 0) continue;
    v1::TokenLogprob* const token = logprobs.mutable_prompt_logprobs()->add_tokens();
    token->set_token_id(ids[i]);
    token->set_token_bytes(TestTokenizer().TokenBytes(ids[i]));
  }
  answer->Take(0, started, nullptr);
  answer->Take(0, logprobs, nullptr);
  answer->Take(0, Message(completed), nullptr);
  return json::parse(answer->TakeBody())["choices"][0]["logprobs"]["text_offset"];
}

// Returns the data of all events. Each event is one line of data and an empty line.
std::vector<std::string> Events(const std::string& bytes) {
  std::vector<std::string> data;
  EXPECT_TRUE(absl::EndsWith(bytes, "\n\n"));
  for (absl::string_view event : absl::StrSplit(absl::StripSuffix(bytes, "\n\n"), "\n\n")) {
    EXPECT_TRUE(absl::ConsumePrefix(&event, "data: ")) << event;
    EXPECT_FALSE(absl::StrContains(event, '\n'));
    data.emplace_back(event);
  }
  return data;
}

TEST(OpenAiAnswerTest, CompletionsOfSeveralPromptsAndChoices) {
  const auto answer = Answer(Parse(R"({"prompt": ["x", "y"], "n": 2})"));
  for (std::size_t prompt : {1u, 0u}) {
    answer->Take(prompt, Message("started { prompt_tokens: 3 cached_tokens: 2 }"), nullptr);
    for (int index : {1, 0}) {
      auto message =
          Message("completed { finish_reason: FINISH_REASON_EOS usage { completion_tokens: 4 } }");
      message.mutable_completed()->set_index(index);
      message.mutable_completed()->set_text(
          "text " + std::to_string(prompt * 2 + static_cast<std::size_t>(index)));
      answer->Take(prompt, message, nullptr);
    }
  }
  const json body = json::parse(answer->TakeBody());
  EXPECT_EQ(body["id"], "id-1");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["created"], 5);
  EXPECT_EQ(body["system_fingerprint"], "fp_1");
  EXPECT_EQ(body["model"], "m");
  ASSERT_EQ(body["choices"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i],
              json::parse(R"({"index": )" + std::to_string(i) + R"(, "text": "text )" +
                          std::to_string(i) + R"(", "logprobs": null, "finish_reason": "stop"})"));
  }
  EXPECT_EQ(body["usage"],
            json::parse(R"({"prompt_tokens": 6, "completion_tokens": 16, "total_tokens": 22,
                                           "prompt_tokens_details": {"cached_tokens": 4}})"));
}

// Decodes a, then "é" in two tokens. Each half alone has no text, and both together are one
// character.
constexpr const char* kEchoed[] = {
    R"(started { prompt_tokens: 3 prompt_text: "a\303\251" prompt_token_ids: [0, 1, 2] })",
    R"(prompt_logprobs { start_position: 1
         tokens { token_id: 1 logprob: -0.5 token_bytes: "\303"
                  top { token_id: 9 logprob: -0.25 token_bytes: "z" } }
         tokens { token_id: 2 logprob: -2 token_bytes: "\251"
                  top { token_id: 2 logprob: -2 token_bytes: "\251" } } })",
    R"(completed { text: "b" finish_reason: FINISH_REASON_LENGTH usage { completion_tokens: 1 }
         logprobs { token_id: 1 logprob: -1 token_bytes: "b"
                    top { token_id: 1 logprob: -1 token_bytes: "b" } } })"};

TEST(OpenAiAnswerTest, EchoWithLogprobsPutsThePromptFirst) {
  const auto answer = Answer(Parse(R"({"prompt": "x", "echo": true, "logprobs": 1})"));
  for (const char* const message : kEchoed) answer->Take(0, Message(message), nullptr);
  const json choice = json::parse(answer->TakeBody())["choices"][0];
  EXPECT_EQ(choice["text"],
            "a\xc3\xa9"
            "b");
  EXPECT_EQ(choice["finish_reason"], "length");
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json::parse(R"(["a", "bytes:\\xc3", "bytes:\\xa9", "b"])"));
  EXPECT_EQ(logprobs["token_logprobs"], json::parse("[null, -0.5, -2.0, -1.0]"));
  EXPECT_EQ(logprobs["text_offset"], json::parse("[0, 1, 2, 2]"));
  EXPECT_EQ(
      logprobs["top_logprobs"],
      json::parse(
          R"([null, {"z": -0.25, "bytes:\\xc3": -0.5}, {"bytes:\\xa9": -2.0}, {"b": -1.0}])"));
}

// Every offset is the number of decoded characters before the token, U+FFFD included.
TEST(OpenAiAnswerTest, OffsetsCountReplacementCharacters) {
  constexpr const char* kEnd =
      R"(completed { text: "b" logprobs { token_id: 3 token_bytes: "b" } })";
  constexpr const char* kBroken = "\xEF\xBF\xBD";
  const std::string x = kBroken;
  // The bytes are a lone continuation byte, a byte that occurs in no character, and a lead byte
  // without its continuation.
  EXPECT_EQ(EchoOffsets("[0, 2, 3]", "a" + x + "b", {0, 2, 3}, kEnd), json({0, 1, 2, 3}));
  EXPECT_EQ(EchoOffsets("[4, 4, 2, 0]", x + x + x + "a", {4, 4, 2, 0}, kEnd),
            json({0, 1, 2, 3, 4}));
  EXPECT_EQ(EchoOffsets("[1, 3, 1, 1, 2]", x + "b" + x + "\xC3\xA9", {1, 3, 1, 1, 2}, kEnd),
            json({0, 1, 2, 3, 4, 4}));
  // The prompt ends inside a character that the answer completes.
  EXPECT_EQ(EchoOffsets("[0, 1]", "a", {0, 1}, R"(completed { text: "\303\251b"
              logprobs { token_id: 2 token_bytes: "\251" text_offset: 1 }
              logprobs { token_id: 3 token_bytes: "b" text_offset: 1 } })"),
            json({0, 1, 2, 2}));
}

// The decoder strips the first space. The client's text may have more or fewer spaces.
TEST(OpenAiAnswerTest, PromptOffsetsMatchItsText) {
  constexpr const char* kEnd =
      R"(completed { text: " b" logprobs { token_id: 5 token_bytes: " " }
                     logprobs { token_id: 3 token_bytes: "b" text_offset: 1 } })";
  EXPECT_EQ(EchoOffsets("[5, 0, 5, 3]", "a b", {5, 0, 5, 3}, kEnd), json({0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(EchoOffsets(R"("a b")", "a b", {6, 5, 0, 5, 3}, kEnd), json({0, 0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(EchoOffsets(R"(" a")", " a", {6, 5, 5, 0}, kEnd), json({0, 0, 0, 1, 2, 3}));
  // The text does not contain the space after a special token.
  EXPECT_EQ(EchoOffsets(R"("a<s>b")", "a<s>b", {6, 5, 0, 6, 5, 3}, kEnd),
            json({0, 0, 0, 1, 4, 4, 5, 6}));
  // The normalizer dropped spaces or changed the text.
  EXPECT_EQ(EchoOffsets(R"("a   b")", "a   b", {0, 5, 3}, kEnd), json({0, 1, 2, 5, 6}));
  EXPECT_EQ(EchoOffsets(R"("AB")", "AB", {0, 3}, kEnd), json({0, 1, 2, 3}));
}

// The text excludes a special token that the template put before the prompt and includes one that
// the caller wrote.
TEST(OpenAiAnswerTest, OffsetsCountOnlyVisibleText) {
  for (const bool is_written : {false, true}) {
    const auto answer = Answer(Parse(R"({"prompt": "x", "echo": true, "logprobs": 1})"));
    auto started = Message("started { prompt_tokens: 3 prompt_token_ids: [6, 0, 3] }");
    started.mutable_started()->set_prompt_text(is_written ? "<s>ab" : "ab");
    answer->Take(0, started, nullptr);
    answer->Take(0, Message(R"(prompt_logprobs { tokens { token_id: 0 token_bytes: "a" }
                                                tokens { token_id: 3 token_bytes: "b" } })"),
                 nullptr);
    answer->Take(0, Message(R"(completed { text: "cd" finish_reason: FINISH_REASON_LENGTH
                                logprobs { token_id: 2 token_bytes: "c" }
                                logprobs { token_id: 6 token_bytes: "<s>" text_offset: 1 }
                                logprobs { token_id: 3 token_bytes: "d" text_offset: 1 } })"),
                 nullptr);
    const json choice = json::parse(answer->TakeBody())["choices"][0];
    EXPECT_EQ(choice["logprobs"]["text_offset"],
              json::parse(is_written ? "[0, 3, 4, 5, 6, 6]" : "[0, 0, 1, 2, 3, 3]"));
  }
}

TEST(OpenAiAnswerTest, CallsAndReasoningOfAWholeAnswer) {
  const auto answer = Answer(*ParseChatRequest(R"({"messages": []})"));
  answer->Take(0, Message("started { prompt_tokens: 1 }"), nullptr);
  answer->Take(0, Message(R"(completed {
      finish_reason: FINISH_REASON_EOS reasoning_text: "hm"
      usage { completion_tokens: 5 reasoning_tokens: 2 }
      tool_calls { id: "call_1" name: "f" arguments_json: "{\"a\": 1}" } })"),
               nullptr);
  const json body = json::parse(answer->TakeBody());
  EXPECT_EQ(body["choices"][0]["message"], json::parse(R"({
      "role": "assistant", "content": null, "refusal": null, "reasoning_content": "hm",
      "tool_calls": [{"id": "call_1", "type": "function",
                      "function": {"name": "f", "arguments": "{\"a\": 1}"}}]})"));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
}

TEST(OpenAiAnswerTest, CallsAndReasoningOfAStream) {
  const auto answer = Answer(*ParseChatRequest(R"({"messages": [], "stream": true})"));
  std::string bytes;
  answer->Take(0, Message(R"(delta { reasoning_text: "hm" })"), &bytes);
  answer->Take(0, Message(R"(delta { text: "x" tool_calls { call_index: 0 id: "c" name: "f"
                                                           arguments_json: "{}" } })"),
               &bytes);
  answer->Take(0, Message("completed { finish_reason: FINISH_REASON_TOOL_CALL }"), &bytes);
  const std::vector<std::string> events = Events(bytes);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"],
            json::parse(R"({"reasoning_content": "hm"})"));
  EXPECT_EQ(json::parse(events[1])["choices"][0]["delta"], json::parse(R"({"content": "x",
      "tool_calls": [{"index": 0, "id": "c", "type": "function",
                      "function": {"name": "f", "arguments": "{}"}}]})"));
  EXPECT_EQ(json::parse(events[2])["choices"][0]["finish_reason"], "tool_calls");
}

TEST(OpenAiAnswerTest, HiddenOutputDoesNotChangeThePrompt) {
  const auto answer =
      Answer(Parse(R"({"prompt": "x", "echo": true, "logprobs": 1, "max_tokens": 0})"));
  for (const char* const message : kEchoed) answer->Take(0, Message(message), nullptr);
  const json body = json::parse(answer->TakeBody());
  EXPECT_EQ(body["choices"][0]["text"], "a\xc3\xa9");
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
}

// The character split by the prompt's end would be part of the output.
TEST(OpenAiAnswerTest, HiddenOutputKeepsTheReplacementCharacterOfASplitPrompt) {
  const auto answer = Answer(Parse(R"({"prompt": [0, 1], "echo": true, "max_tokens": 0})"));
  answer->Take(0, Message(R"(started { prompt_text: "a" prompt_token_ids: [0, 1] })"), nullptr);
  answer->Take(0, Message(R"(completed { text: "\303\251" })"), nullptr);
  EXPECT_EQ(json::parse(answer->TakeBody())["choices"][0]["text"], "a\xEF\xBF\xBD");
}

TEST(OpenAiAnswerTest, StreamedEchoIsSentOnceAndOffsetsContinue) {
  const auto answer =
      Answer(Parse(R"({"prompt": "x", "echo": true, "logprobs": 1, "stream": true})"));
  std::string bytes;
  answer->Take(0, Message(kEchoed[0]), &bytes);
  answer->Take(0, Message(kEchoed[1]), &bytes);
  EXPECT_EQ(bytes, "");
  for (const char* const text : {"b", "c"}) {
    auto delta = Message(R"(delta { text: "b" logprobs { logprob: -1 token_bytes: "b" } })");
    delta.mutable_delta()->set_text(text);
    delta.mutable_delta()->mutable_logprobs(0)->set_text_offset(*text - 'b');
    answer->Take(0, delta, &bytes);
  }
  answer->Take(0, Message("completed { finish_reason: FINISH_REASON_CONTEXT_FULL }"), &bytes);
  answer->AppendEnd(&bytes);
  const std::vector<std::string> events = Events(bytes);
  ASSERT_EQ(events.size(), 4u);
  const json first = json::parse(events[0])["choices"][0];
  EXPECT_EQ(first["text"],
            "a\xc3\xa9"
            "b");
  EXPECT_EQ(first["logprobs"]["tokens"].size(), 4u);
  EXPECT_TRUE(first["finish_reason"].is_null());
  const json second = json::parse(events[1])["choices"][0];
  EXPECT_EQ(second["text"], "c");
  EXPECT_EQ(second["logprobs"]["text_offset"], json::parse("[3]"));
  EXPECT_EQ(
      json::parse(events[2])["choices"][0],
      json::parse(R"({"index": 0, "text": "", "logprobs": null, "finish_reason": "length"})"));
  EXPECT_EQ(events[3], "[DONE]");
}

TEST(OpenAiAnswerTest, ChatBodyWithLogprobs) {
  const auto answer = Answer(Parse(R"({"messages": [], "logprobs": true, "top_logprobs": 1})"));
  answer->Take(0, Message("started { prompt_tokens: 3 }"), nullptr);
  auto done = Message(R"(completed { text: "b" finish_reason: FINISH_REASON_STOP_TEXT
       usage { completion_tokens: 1 }
       logprobs { token_bytes: "\303" top { logprob: -1 token_bytes: "b" } } })");
  done.mutable_completed()->mutable_logprobs(0)->set_logprob(
      -std::numeric_limits<float>::infinity());
  answer->Take(0, done, nullptr);
  const json body = json::parse(answer->TakeBody());
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"],
            json::parse(R"({"role": "assistant", "content": "b", "refusal": null})"));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"],
            json::parse(R"([{"token": "\ufffd", "logprob": -9999.0, "bytes": [195],
                             "top_logprobs": [{"token": "b", "logprob": -1.0, "bytes": [98]}]}])"));
}

TEST(OpenAiAnswerTest, ChatStreamStartsWithTheRoleAndEndsWithTheUsage) {
  const auto answer = Answer(Parse(
      R"({"messages": [], "n": 2, "stream": true, "stream_options": {"include_usage": true}})"));
  std::string bytes;
  answer->Take(0, Message("started { prompt_tokens: 3 cached_tokens: 1 }"), &bytes);
  answer->Take(0, Message(R"(delta { index: 1 text: "x" })"), &bytes);
  answer->Take(0, Message(R"(delta { index: 0 text: "" })"), &bytes);  // half a character so far
  for (const char* const index : {"0", "1"}) {
    answer->Take(0,
                 Message(std::string("completed { finish_reason: FINISH_REASON_EOS usage { "
                                     "completion_tokens: 2 } index: ") +
                         index + " }"),
                 &bytes);
  }
  answer->AppendEnd(&bytes);
  const std::vector<std::string> events = Events(bytes);
  ASSERT_EQ(events.size(), 7u);
  const auto delta = [&](std::size_t i) {
    const json event = json::parse(events[i]);
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_TRUE(event["usage"].is_null());
    EXPECT_EQ(event["choices"][0]["index"], i % 2 == 0 ? 0 : 1);
    return event["choices"][0]["delta"];
  };
  EXPECT_EQ(delta(0), json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(delta(1), delta(0));
  EXPECT_EQ(json::parse(events[2])["choices"][0]["delta"], json::parse(R"({"content": "x"})"));
  EXPECT_EQ(json::parse(events[2])["choices"][0]["index"], 1);
  EXPECT_EQ(json::parse(events[3])["choices"][0],
            json::parse(R"({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"})"));
  const json usage = json::parse(events[5]);
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"],
            json::parse(R"({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
                            "prompt_tokens_details": {"cached_tokens": 1},
                            "completion_tokens_details": {"reasoning_tokens": 0}})"));
  EXPECT_EQ(events[6], "[DONE]");
}

// As in vLLM, each chunk has the usage of its own choice so far, and the last one the total.
TEST(OpenAiAnswerTest, EveryChunkHasTheUsageIfRequested) {
  const auto answer = Answer(Parse(R"({"messages": [], "n": 2, "stream": true,
      "stream_options": {"include_usage": true, "continuous_usage_stats": true}})"));
  std::string bytes;
  answer->Take(0, Message("started { prompt_tokens: 3 cached_tokens: 1 }"), &bytes);
  answer->Take(0, Message(R"(delta { index: 1 text: "x" usage { completion_tokens: 5
                                    reasoning_tokens: 2 } })"),
               &bytes);
  answer->Take(0, Message(R"(delta { index: 0 usage { completion_tokens: 1 } })"), &bytes);
  answer->Take(0, Message(R"(delta { index: 0 text: "y" usage { completion_tokens: 2 } })"),
               &bytes);
  answer->Take(0, Message(R"(completed { finish_reason: FINISH_REASON_EOS index: 1
                                        usage { completion_tokens: 6 reasoning_tokens: 2 } })"),
               &bytes);
  answer->Take(0, Message(R"(completed { finish_reason: FINISH_REASON_EOS index: 0
                                        usage { completion_tokens: 2 } })"),
               &bytes);
  answer->AppendEnd(&bytes);
  std::vector<std::pair<int, int>> counts;
  for (const std::string& event : Events(bytes)) {
    if (event == "[DONE]") continue;
    const json usage = json::parse(event)["usage"];
    EXPECT_EQ(usage["prompt_tokens"], 3) << event;
    EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 1) << event;
    EXPECT_EQ(usage["total_tokens"].get<int>(), 3 + usage["completion_tokens"].get<int>());
    counts.emplace_back(usage["completion_tokens"],
                        usage["completion_tokens_details"]["reasoning_tokens"]);
  }
  EXPECT_EQ(counts, (std::vector<std::pair<int, int>>{
                        {0, 0}, {0, 0}, {5, 2}, {2, 0}, {6, 2}, {2, 0}, {8, 2}}));
}

TEST(OpenAiAnswerTest, CountsBufferedBytes) {
  const auto whole = Answer(Parse(R"({"prompt": "x", "n": 2})"));
  auto message = Message("completed { finish_reason: FINISH_REASON_EOS }");
  message.mutable_completed()->set_text(std::string(1000, 't'));
  EXPECT_EQ(whole->buffered_bytes(), 0u);
  whole->Take(0, message, nullptr);
  EXPECT_GE(whole->buffered_bytes(), 1000u);
  EXPECT_LE(whole->buffered_bytes(), 1200u);
  message.mutable_completed()->set_index(1);
  whole->Take(0, message, nullptr);
  EXPECT_GE(whole->buffered_bytes(), 2000u);
  EXPECT_GT(whole->TakeBody().size(), 2000u);
  const auto stream = Answer(Parse(R"({"prompt": "x", "stream": true})"));
  std::string events;
  message.mutable_completed()->set_index(0);
  stream->Take(0, message, &events);
  EXPECT_EQ(stream->buffered_bytes(), 0u);
}

TEST(OpenAiAnswerTest, PromptLogprobsHaveTheFormOfVllm) {
  const json wanted = json::parse(R"([null,
      {"3": {"logprob": -2.5, "rank": 7, "decoded_token": "b"},
       "0": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}},
      {"0": {"logprob": -9999.0, "rank": 1, "decoded_token": "a"}}])");
  const auto body = [&wanted](const std::string& request) {
    const auto answer = Answer(Parse(request));
    answer->Take(0, Message("started { prompt_tokens: 3 }"), nullptr);
    answer->Take(0, Message(R"(prompt_logprobs { start_position: 1
        tokens { token_id: 3 logprob: -2.5 token_bytes: "b" rank: 7
                 top { token_id: 0 logprob: -0.5 token_bytes: "a" } }
        tokens { token_id: 0 logprob: -inf token_bytes: "a" rank: 1
                 top { token_id: 0 logprob: -inf token_bytes: "a" } } })"),
                 nullptr);
    answer->Take(0, Message("completed { text: 'x' }"), nullptr);
    EXPECT_GT(answer->buffered_bytes(), wanted.dump().size());  // they count for the limit
    return json::parse(answer->TakeBody());
  };
  const json completion = body(R"({"prompt": "x", "prompt_logprobs": 1})");
  EXPECT_EQ(completion["choices"][0]["prompt_logprobs"], wanted);
  EXPECT_EQ(completion["choices"][0]["logprobs"], nullptr);
  const json chat = body(R"({"messages": [], "prompt_logprobs": 1})");
  EXPECT_EQ(chat["prompt_logprobs"], wanted);
  EXPECT_FALSE(chat["choices"][0].contains("prompt_logprobs"));
}

TEST(OpenAiAnswerTest, PromptLogprobsCountWhenTheyArrive) {
  const auto logprobs = Message(R"(prompt_logprobs { start_position: 1
      tokens { token_id: 3 logprob: -2.5 token_bytes: "b" rank: 7 } })");
  const std::size_t size = absl::string_view(R"(,{"3":{"logprob":-2.5,"rank":7,)"
                                             R"("decoded_token":"b"}})")
                               .size();
  struct Case {
    const char* request;
    std::size_t copies;
  };
  for (const Case& one : {Case{R"({"prompt": "x", "prompt_logprobs": 0})", 1},
                          Case{R"({"prompt": "x", "n": 2, "prompt_logprobs": 0})", 2},
                          Case{R"({"messages": [], "n": 2, "prompt_logprobs": 0})", 1}}) {
    const auto answer = Answer(Parse(one.request));
    answer->Take(0, Message("started { prompt_tokens: 3 }"), nullptr);
    for (std::size_t i = 1; i <= 2; ++i) {
      answer->Take(0, logprobs, nullptr);
      EXPECT_EQ(answer->buffered_bytes(), i * one.copies * size) << one.request;
    }
  }
}

TEST(OpenAiAnswerTest, TokenIdsAreReturned) {
  const std::string started = "started { prompt_token_ids: [6, 0] prompt_text: 'a' }";
  const auto completion = Answer(Parse(R"({"prompt": "a", "return_token_ids": true})"));
  completion->Take(0, Message(started), nullptr);
  completion->Take(0, Message("completed { text: 'b' token_ids: [3, 5] }"), nullptr);
  json choice = json::parse(completion->TakeBody())["choices"][0];
  EXPECT_EQ(choice["text"], "b");
  EXPECT_EQ(choice["prompt_token_ids"], json::parse("[6, 0]"));
  EXPECT_EQ(choice["token_ids"], json::parse("[3, 5]"));

  const auto chat = Answer(Parse(R"({"messages": [], "return_token_ids": true})"));
  chat->Take(0, Message(started), nullptr);
  chat->Take(0, Message("completed { text: 'b' token_ids: [3, 5] }"), nullptr);
  const json body = json::parse(chat->TakeBody());
  EXPECT_EQ(body["prompt_token_ids"], json::parse("[6, 0]"));
  EXPECT_EQ(body["choices"][0]["token_ids"], json::parse("[3, 5]"));
  EXPECT_FALSE(body["choices"][0].contains("prompt_token_ids"));
}

// The ids of a token whose text is still held back are sent at once.
TEST(OpenAiAnswerTest, StreamsTokenIds) {
  for (const bool is_chat : {false, true}) {
    const auto answer =
        Answer(Parse(absl::StrCat("{\"stream\": true, \"return_token_ids\": true, ",
                                  is_chat ? "\"messages\": []}" : "\"prompt\": \"a\"}")));
    std::string events;
    answer->Take(0, Message("started { prompt_token_ids: [6, 0] prompt_text: 'a' }"), &events);
    answer->Take(0, Message("delta { token_ids: [1] }"), &events);
    answer->Take(0, Message("delta { text: 'b' token_ids: [2, 3] }"), &events);
    answer->Take(0, Message("completed {}"), &events);
    std::vector<json> ids, prompts;
    for (const std::string& event : Events(events)) {
      const json chunk = json::parse(event);
      const json& choice = chunk["choices"][0];
      if (choice.contains("token_ids")) ids.push_back(choice["token_ids"]);
      const json& holder = is_chat ? chunk : choice;
      if (holder.contains("prompt_token_ids")) prompts.push_back(holder["prompt_token_ids"]);
    }
    EXPECT_EQ(json(ids), json::parse("[[1], [2, 3]]"));
    EXPECT_EQ(json(prompts), json::parse("[[6, 0]]"));
  }
}

TEST(OpenAiAnswerTest, BestOfReturnsTheHighestMeanLogprob) {
  const auto answer = Answer(Parse(R"({"prompt": ["x", "y"], "n": 2, "best_of": 4})"));
  // The third choice has the highest mean, though not the highest sum. The last one has no tokens.
  const char* const logprobs[] = {"logprobs { logprob: -3 }", "logprobs { logprob: -1 }",
                                  "logprobs { logprob: -0.75 } logprobs { logprob: -0.75 }", ""};
  for (const std::size_t prompt : {0u, 1u}) {
    answer->Take(prompt, Message("started { prompt_tokens: 1 }"), nullptr);
    for (int i = 3; i >= 0; --i) {
      answer->Take(prompt,
                   Message(absl::StrCat("completed { index: ", i, " text: '", prompt, i,
                                        "' usage { completion_tokens: 1 } ", logprobs[i], "}")),
                   nullptr);
    }
  }
  const json body = json::parse(answer->TakeBody());
  std::vector<std::string> texts;
  for (const json& choice : body["choices"]) {
    EXPECT_EQ(choice["index"], texts.size());
    EXPECT_EQ(choice["logprobs"], nullptr);
    texts.push_back(choice["text"]);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"02", "01", "12", "11"}));
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);
}

TEST(OpenAiAnswerTest, CallsOfFunctionsHaveTheOlderSpelling) {
  const std::string request = R"({"messages": [], "functions": [{"name": "f"}], "stream": )";
  const json function = json::parse(R"({"name": "f", "arguments": "{}"})");
  const auto whole = Answer(Parse(request + "false}"));
  whole->Take(0, Message("started {}"), nullptr);
  whole->Take(0, Message("completed { tool_calls { id: 'c' name: 'f' arguments_json: '{}' } }"),
              nullptr);
  const json choice = json::parse(whole->TakeBody())["choices"][0];
  EXPECT_EQ(choice["message"]["function_call"], function);
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "function_call");

  const auto streamed = Answer(Parse(request + "true}"));
  std::string events;
  streamed->Take(0, Message("started {}"), &events);
  streamed->Take(0, Message("delta { tool_calls { id: 'c' name: 'f' arguments_json: '{}' } }"),
                 &events);
  streamed->Take(0, Message("completed {}"), &events);
  const std::vector<std::string> chunks = Events(events);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(json::parse(chunks[1])["choices"][0]["delta"],
            json::parse(R"({"function_call": {"name": "f", "arguments": "{}"}})"));
  EXPECT_EQ(json::parse(chunks[2])["choices"][0]["finish_reason"], "function_call");
}

}  // namespace
}  // namespace quire::server

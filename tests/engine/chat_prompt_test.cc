// Conversations as prompts: how Accept estimates their tokens and admits them.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/reason_of.h"
#include "text/chat/chat_template.h"

namespace quire::engine {
namespace {

class ChatPromptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const PoolOptions pool{
        .usable_pages = 200, .page_size = 16, .max_rows = 16, .max_context_tokens = 1024};
    HarnessOptions options = MakeHarnessOptions(pool, 1);
    options.engine.max_input_bytes = 1000;
    tokenizer_ = MakeByteTokenizer();
    runner_ = std::make_unique<FakeRunner>(options.runner);
    auto engine = Engine::Create(options.engine, MakeCache(pool), runner_.get(), tokenizer_.get(),
                                 &clock_, &registry_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  ChatPrompt MakeChat(text::ChatInput chat, const std::string& source,
                      const text::jinja::RenderLimits& limits = {}) const {
    auto templates = text::ChatTemplates::Create(text::FindTemplates({.template_file = source}),
                                                 *tokenizer_, {.limits = limits});
    EXPECT_TRUE(templates.ok()) << templates.status();
    return {.chat = std::move(chat), .templates = *std::move(templates)};
  }

  Reading Read(Request request) {
    Reading reading;
    auto stream = engine_->Accept(std::move(request));
    if (stream.ok()) return ReadAll(**stream);
    reading.status = stream.status();
    return reading;
  }

  // Finish of a request for two tokens, and the number of its prompt tokens.
  std::pair<absl::Status, std::int32_t> Run(text::ChatInput chat, const std::string& source,
                                            const text::jinja::RenderLimits& limits = {}) {
    Request request = MakeRequest("a", {}, 2);
    request.prompt = MakeChat(std::move(chat), source, limits);
    const Reading reading = Read(std::move(request));
    return {reading.status, reading.usage.prompt_tokens};
  }

  // Returns the score of the continuation "y".
  Reading Score(ScorePrompt prompt) {
    Request request = MakeRequest("s", {}, 0);
    request.task = Task::kScore;
    request.output.prompt_logprobs = 0;
    prompt.continuation_ids = {'y'};
    request.prompt = std::move(prompt);
    return Read(std::move(request));
  }

  MachineClock clock_;
  probe::Registry registry_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(ChatPromptTest, MessagesWithoutTextMayRenderToTokens) {
  text::ChatInput empty;
  empty.messages.emplace_back();
  const auto [status, tokens] = Run(empty, "{{ messages|length }} turn");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(tokens, 6);
  EXPECT_EQ(ReasonOf(Run(empty, "{{ messages[0].content }}").first), "PROMPT_MISSING");
}

TEST_F(ChatPromptTest, AcceptCountsToolsAndCalls) {
  const std::string json = absl::StrCat("[\"", std::string(1000, 'x'), "\"]");
  text::ChatInput chat;
  chat.messages.push_back({.role = "user", .content = "x"});
  EXPECT_TRUE(Run(chat, "fixed").first.ok());
  text::ChatInput calls = chat;
  calls.messages[0].tool_calls.push_back({.id = "1", .name = "f", .arguments_json = json});
  EXPECT_EQ(ReasonOf(Run(calls, "fixed").first), "INPUT_TOO_LARGE");
  text::ChatInput tools = chat;
  tools.tools.push_back({.name = "f", .description = "", .parameters_json = json});
  EXPECT_EQ(ReasonOf(Run(tools, "fixed").first), "INPUT_TOO_LARGE");
}

TEST_F(ChatPromptTest, ConversationCanBeTheContextOfAScore) {
  text::ChatInput chat;
  chat.messages.push_back({.role = "query", .content = "x"});
  ScorePrompt ids, conversation;
  ids.context_ids = {'Q', ':', 'x'};
  conversation.context_chat = MakeChat(chat, "Q:{{ messages[0].content }}");
  const Reading expected = Score(ids), score = Score(conversation);
  ASSERT_TRUE(expected.status.ok() && score.status.ok()) << score.status;
  EXPECT_EQ(score.usage.prompt_tokens, 4);
  EXPECT_THAT(score.prompt_logprobs, ::testing::SizeIs(1));
  EXPECT_EQ(score.prompt_logprobs, expected.prompt_logprobs);

  chat.messages[0].role = "user";
  conversation.context_chat = MakeChat(chat, "{{ 'x' * 2000 }}");
  EXPECT_EQ(ReasonOf(Score(conversation).status), "PROMPT_TOO_LONG");
  conversation.context_chat->chat.messages[0].content.assign(1001, 'x');
  EXPECT_EQ(ReasonOf(Score(conversation).status), "INPUT_TOO_LARGE");
}

}  // namespace
}  // namespace quire::engine

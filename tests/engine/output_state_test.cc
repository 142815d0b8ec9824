// Offsets of an answer's tokens in its text.

#include "engine/output/output_state.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/output/token_stream.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"
#include "text/detokenizer.h"

namespace quire::engine {
namespace {

// The text of an answer and the offset of each of its tokens. The tokens are bytes.
struct Offsets {
  std::string text;
  std::vector<std::int32_t> offsets;
};

Offsets OffsetsOf(const std::string& answer, text::DetokenizerState start) {
  const std::unique_ptr<text::Tokenizer> tokenizer = MakeByteTokenizer();
  Request request = MakeRequest("a", {1}, 100);
  request.output.logprobs = 0;
  request.output.stream = false;
  request.output.text = true;
  const auto accepted = std::make_shared<AcceptedRequest>(std::move(request), 0, /*worker=*/0,
                                                          std::make_shared<TokenStream>());
  const HashKey key = {};
  OutputState state(accepted, *tokenizer, key);
  OutputItem started;
  started.start = std::make_unique<OutputItem::Start>();
  started.start->text_start = std::move(start);
  state.Start(started);
  probe::Registry registry;
  EngineProbe probe(&registry, {.model_name = "m", .kv_dtype = "f32"});
  OutputItem token;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    token.token.token = static_cast<std::uint8_t>(answer[i]);
    if (i + 1 == answer.size()) token.finish = FinishReason::kLength;
    EXPECT_FALSE(state.AddToken(token, MachineClock(), probe));
  }
  state.EndChoice(token);
  Offsets result;
  while (std::optional<OutputEvent> event = accepted->stream->Take()) {
    const auto* const completed = std::get_if<CompletedEvent>(&*event);
    if (completed == nullptr) continue;
    result.text = completed->text;
    for (const TokenLogprob& logprob : completed->logprobs) {
      result.offsets.push_back(logprob.text_offset);
    }
  }
  return result;
}

// Every offset is the number of characters of Decode(previous tokens), U+FFFD included.
TEST(OutputStateTest, OffsetsCountCharactersStartedBeforeTheToken) {
  using Expected = std::vector<std::int32_t>;
  Offsets got = OffsetsOf(
      "a\xC3\xA9"
      "b",
      {});
  EXPECT_EQ(got.text,
            "a\xC3\xA9"
            "b");
  EXPECT_EQ(got.offsets, (Expected{0, 1, 2, 2}));
  got = OffsetsOf("\xF0\x9F\x98\x80!", {});
  EXPECT_EQ(got.offsets, (Expected{0, 1, 1, 1, 1}));
  // Covers lone continuation bytes, a surrogate (three parts) and a truncated character.
  got = OffsetsOf("\xA9\x80x", {});
  EXPECT_EQ(got.text, "\xEF\xBF\xBD\xEF\xBF\xBDx");
  EXPECT_EQ(got.offsets, (Expected{0, 1, 2}));
  EXPECT_EQ(OffsetsOf("\xED\xA0\x80x", {}).offsets, (Expected{0, 1, 2, 3}));
  EXPECT_EQ(OffsetsOf("\xE2\x82xy", {}).offsets, (Expected{0, 1, 1, 2}));
}

TEST(OutputStateTest, TextStartsAtTheEndOfThePrompt) {
  using Expected = std::vector<std::int32_t>;
  const std::unique_ptr<text::Tokenizer> tokenizer = MakeByteTokenizer();
  const std::vector<std::int32_t> prompt = {'a', 0xE2, 0x82};
  text::DetokenizerState cut = text::Detokenizer::StateAfter(*tokenizer, true, prompt);
  EXPECT_EQ(OffsetsOf("\xAC"
                      "b",
                      cut)
                .text,
            "\xE2\x82\xAC"
            "b");
  EXPECT_EQ(OffsetsOf("\xAC"
                      "b",
                      cut)
                .offsets,
            (Expected{0, 1}));
  EXPECT_EQ(OffsetsOf("bc", cut).text, "bc");
  cut.emits_replacement = true;  // after an echo
  EXPECT_EQ(OffsetsOf("bc", cut).text,
            "\xEF\xBF\xBD"
            "bc");
  EXPECT_EQ(OffsetsOf("bc", cut).offsets, (Expected{1, 2}));
}

}  // namespace
}  // namespace quire::engine

// Output workers: where memory ends, and where tokens begin in the text.

#include "engine/output/output_stage.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/output/output_state.h"
#include "gtest/gtest.h"
#include "tests/engine/failing_allocation.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/reason_of.h"

namespace quire::engine {
namespace {

using Kind = OutputItem::Kind;

// One worker, whose memory can end; the test is the engine thread.
class OutputStageMemoryTest : public ::testing::Test {
 protected:
  OutputStageMemoryTest() {
    const std::shared_ptr<AcceptedRequest> first = Accept(MakeRequest("first", {1}, 1));
    first->stream->SetReadyCallback([] { FailingAllocation::MarkThisThread(); });
    Add(Kind::kRequestEnd, first).status = absl::CancelledError("it only marks the worker");
    Deliver();
    first->stream->SetReadyCallback(nullptr);
  }
  ~OutputStageMemoryTest() override { stage_.Stop(); }

  std::shared_ptr<AcceptedRequest> Accept(Request request) {
    auto accepted = std::make_shared<AcceptedRequest>(std::move(request), ++arrivals_, /*worker=*/0,
                                                      std::make_shared<TokenStream>());
    accepted->progress.prompt_tokens.store(3);
    EXPECT_TRUE(
        table_.Insert(accepted, absl::ZeroDuration(), [] { return absl::OkStatus(); }).ok());
    return accepted;
  }

  OutputItem& Add(Kind kind, const std::shared_ptr<AcceptedRequest>& request) {
    OutputItem& item = items_.emplace_back();
    item.kind = kind;
    item.request = request;
    if (kind == Kind::kStarted) item.start = std::make_unique<OutputItem::Start>();
    return item;
  }

  OutputItem& AddToken(const std::shared_ptr<AcceptedRequest>& request, std::int32_t choice,
                       char token) {
    OutputItem& item = Add(Kind::kToken, request);
    request->in_ring_tokens.fetch_add(1);
    item.choice = choice;
    item.token.token = token;
    item.token.top = {{.token = token, .logprob = -1}};
    return item;
  }

  // Two choices: the first one ends by itself, the second one at its stop string.
  void AddAnswer(const std::shared_ptr<AcceptedRequest>& request) {
    Add(Kind::kStarted, request);
    for (const char token : {'a', 'b'}) {
      for (const std::int32_t choice : {0, 1}) AddToken(request, choice, token);
    }
    AddToken(request, 0, 'c').finish = FinishReason::kLength;
    AddToken(request, 1, 'z');
  }

  void Deliver() {
    stage_.Push(&items_);
    EXPECT_TRUE(stage_.WaitDone(absl::InfiniteDuration()));
  }

  // Delivers the answer and what the engine makes of the signals. Whether one was kNoMemory.
  bool DeliverAnswer(const std::shared_ptr<AcceptedRequest>& request) {
    AddAnswer(request);
    Deliver();
    Signals signals;
    EXPECT_TRUE(inbox_->Drain(&signals));
    absl::Status status;
    for (Signal& signal : signals) {
      EXPECT_EQ(signal.request, request);
      if (signal.kind == Signal::Kind::kNoMemory) status = std::move(signal.status);
      if (signal.kind == Signal::Kind::kStopMatched) Add(Kind::kChoiceEnd, request).choice = 1;
    }
    Add(Kind::kRequestEnd, request).status = status;
    Deliver();
    const bool was_cut = !status.ok();
    EXPECT_TRUE(inbox_->Drain(&signals));
    return was_cut || !signals.empty();
  }

  static Request TwoChoices(std::string id, bool stream) {
    Request request = MakeRequest(std::move(id), {1, 2, 3}, 100);
    request.sampling.choice_count = 2;
    request.stopping.stop = {"bz"};
    request.output.logprobs = 1;
    request.output.stream = stream;
    return request;
  }

  const std::unique_ptr<text::Tokenizer> tokenizer_ = MakeByteTokenizer();
  MachineClock clock_;
  probe::Registry registry_;
  EngineProbe probe_{&registry_, {.model_name = "m", .kv_dtype = "f32"}};
  RequestTable table_{4};
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  OutputStage stage_{{.num_workers = 1, .ring_items = 64, .stream_queue_tokens = 100, .id_key = {}},
                     tokenizer_.get(),
                     &clock_,
                     &table_,
                     &probe_,
                     inbox_};
  std::uint64_t arrivals_ = 0;
  std::vector<OutputItem> items_;
};

TEST_F(OutputStageMemoryTest, WhereverMemoryEndsTheRequestEndsAlone) {
  for (const bool stream : {true, false}) {
    int cut = 0;
    for (int after = 0;; ++after) {
      SCOPED_TRACE(after);
      const std::shared_ptr<AcceptedRequest> request = Accept(TwoChoices("a", stream));
      bool was_cut = false;
      {
        const FailingAllocation none(1, after, FailingAllocation::In::kMarkedThreads);
        was_cut = DeliverAnswer(request);
      }
      EXPECT_EQ(request->in_ring_tokens.load(), 0);
      EXPECT_TRUE(table_.All().empty());
      const Reading reading = ReadAll(*request->stream);
      EXPECT_EQ(reading.usage.prompt_tokens, 3);
      if (!was_cut) {
        ASSERT_TRUE(reading.status.ok()) << reading.status;
        EXPECT_EQ(reading.choices.at(0).text, "abc");
        EXPECT_EQ(reading.choices.at(1).text, "a");
        break;
      }
      EXPECT_EQ(ReasonOf(reading.status), "NO_MEMORY");
      ++cut;
      // The worker goes on.
      const std::shared_ptr<AcceptedRequest> next = Accept(TwoChoices("next", stream));
      EXPECT_FALSE(DeliverAnswer(next));
      EXPECT_TRUE(ReadAll(*next->stream).status.ok());
    }
    EXPECT_GE(cut, 10);
  }
}

// What the worker knows of counts, and what comes behind is counted as always.
TEST_F(OutputStageMemoryTest, TokensOfARequestWithoutMemoryAreCounted) {
  const std::shared_ptr<AcceptedRequest> request = Accept(TwoChoices("a", /*stream=*/true));
  Add(Kind::kStarted, request);
  AddToken(request, 0, 'a');
  Deliver();
  {
    const FailingAllocation none(1, /*after=*/0, FailingAllocation::In::kMarkedThreads);
    AddToken(request, 0, 'b');
    AddToken(request, 0, 'c');
    Deliver();
  }
  AddToken(request, 0, 'd');
  Add(Kind::kRequestEnd, request).status = absl::CancelledError("its own end");
  Deliver();
  const Reading reading = ReadAll(*request->stream);
  EXPECT_EQ(reading.choices.at(0).text, "a");
  EXPECT_TRUE(absl::IsCancelled(reading.status)) << reading.status;
  EXPECT_EQ(reading.usage.completion_tokens, 4);
  EXPECT_EQ(MetricSum(registry_, "quire_generation_tokens_total"), 4);
}

// Readers are called by the worker, and what they do may need memory.
TEST_F(OutputStageMemoryTest, AReaderThatFindsNoMemoryEndsItsRequestAlone) {
  constexpr std::size_t kBytes = 1 << 20;
  for (int after = 0; after < 2; ++after) {
    const std::shared_ptr<AcceptedRequest> request = Accept(TwoChoices("a", /*stream=*/true));
    int calls = 0;
    bool knows_end = false;
    request->stream->SetReadyCallback([&] {
      ++calls;
      knows_end |= request->stream->is_complete();
      const std::string news(kBytes, 'x');
      while (request->stream->Take().has_value()) continue;
    });
    {
      const FailingAllocation none(kBytes, after, FailingAllocation::In::kMarkedThreads);
      EXPECT_TRUE(DeliverAnswer(request));
    }
    EXPECT_GE(calls, after + 2);
    EXPECT_TRUE(knows_end);
    EXPECT_EQ(ReasonOf(request->stream->status()), "NO_MEMORY");
    EXPECT_TRUE(request->stream->is_complete());
    request->stream->SetReadyCallback(nullptr);
  }
  const std::shared_ptr<AcceptedRequest> request = Accept(TwoChoices("b", /*stream=*/true));
  request->stream->SetReadyCallback([&] { const std::string news(kBytes, 'x'); });
  {
    const FailingAllocation none(kBytes, /*after=*/0, FailingAllocation::In::kMarkedThreads);
    Add(Kind::kRequestEnd, request).status = absl::CancelledError("its own end");
    Deliver();
  }
  EXPECT_TRUE(absl::IsCancelled(request->stream->status()));
  EXPECT_TRUE(table_.All().empty());
  request->stream->SetReadyCallback(nullptr);
}

// The text of an answer, and where each of its tokens begins in it. The tokens are bytes.
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

// Every offset is the number of characters of Decode(tokens before it), U+FFFD included.
TEST(OutputStateTest, OffsetsCountTheCharactersThatBeginBeforeAToken) {
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
  // Lone continuation bytes, a surrogate (three parts), a character that is broken off.
  got = OffsetsOf("\xA9\x80x", {});
  EXPECT_EQ(got.text, "\xEF\xBF\xBD\xEF\xBF\xBDx");
  EXPECT_EQ(got.offsets, (Expected{0, 1, 2}));
  EXPECT_EQ(OffsetsOf("\xED\xA0\x80x", {}).offsets, (Expected{0, 1, 2, 3}));
  EXPECT_EQ(OffsetsOf("\xE2\x82xy", {}).offsets, (Expected{0, 1, 1, 2}));
}

TEST(OutputStateTest, TheStartOfTheTextIsThePromptsEnd) {
  using Expected = std::vector<std::int32_t>;
  const std::unique_ptr<text::Tokenizer> tokenizer = MakeByteTokenizer();
  const std::vector<std::int32_t> prompt = {'a', 0xE2, 0x82};
  text::DetokenizerState cut = text::Detokenizer::Behind(*tokenizer, true, prompt);
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
  cut.owns_cut = true;  // behind an echo
  EXPECT_EQ(OffsetsOf("bc", cut).text,
            "\xEF\xBF\xBD"
            "bc");
  EXPECT_EQ(OffsetsOf("bc", cut).offsets, (Expected{1, 2}));
}

}  // namespace
}  // namespace quire::engine

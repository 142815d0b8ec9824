// A generation without a transport. The tests show how its reader can affect other requests.

#include "server/api/generation.h"

#include <memory>
#include <string>

#include "base/clock.h"
#include "tests/server/service_fixture.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

class GenerationTest : public ServiceTest {
 protected:
  // Starts a streamed request with the id "same".
  std::unique_ptr<Generation> Start(int max_tokens) {
    const HandlerContext context{.state = state_.get(),
                                 .probe = probe_.get(),
                                 .clock = &clock_,
                                 .authenticator = authenticator_.get(),
                                 .config = config_.get()};
    v1::GenerateRequest request = Request("Once upon a time", max_tokens);
    request.set_request_id("same");
    request.mutable_output()->set_stream(true);
    CallInfo call;
    call.accept_time = clock_.Now();
    auto generation = Generation::Start(context, "Generate", "", request, call);
    EXPECT_TRUE(generation.ok()) << generation.status();
    return generation.ok() ? *std::move(generation) : nullptr;
  }

  bool IsIdle() const { return served().engine->WaitIdle(MonotonicNow() + absl::Seconds(20)); }

  // An idle engine may still be delivering the end of a request that never reached a step.
  static bool ReadToTheEnd(Generation* generation) {
    return testing::WaitUntil([generation] {
      v1::GenerateResponse message;
      while (generation->TakeResponse(&message)) continue;
      return generation->finished();
    });
  }
};

// A slow client reads the last messages of a request that the engine has finished. Its id is then
// free, and without authentication any caller may reuse it.
TEST_F(GenerationTest, LateDisconnectCancelsNoOtherRequest) {
  const std::unique_ptr<Generation> over = Start(2);
  ASSERT_TRUE(over != nullptr && IsIdle());
  const std::unique_ptr<Generation> next = Start(400);
  ASSERT_NE(next, nullptr);
  over->Cancel();
  over->Revoke();
  ASSERT_TRUE(IsIdle());
  ASSERT_TRUE(ReadToTheEnd(next.get()));
  EXPECT_TRUE(next->Close().ok());
}

TEST_F(GenerationTest, DroppedGenerationCancelsItsRequest) {
  ASSERT_NE(Start(480), nullptr);
  ASSERT_TRUE(IsIdle());
  const engine::EndCounts ends = served().engine->GetStats().early_ends;
  std::int64_t cancelled = 0;
  for (const auto& of_state : ends) {
    cancelled += of_state[static_cast<std::size_t>(engine::CancelSource::kClient)];
  }
  EXPECT_EQ(cancelled, 1);
}

TEST_F(GenerationTest, DisconnectCancelsItsRequest) {
  const std::unique_ptr<Generation> live = Start(480);
  ASSERT_NE(live, nullptr);
  live->Cancel();
  ASSERT_TRUE(IsIdle());
  ASSERT_TRUE(ReadToTheEnd(live.get()));
  EXPECT_EQ(live->Close().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace quire::server

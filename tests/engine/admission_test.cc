// Admission, aborts, and behaviour while the workers after the engine are slow.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"
#include "engine/output/output_stage.h"
#include "engine/request/inbox.h"
#include "engine/request/request_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/gate.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/reason_of.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// An engine on the fake runner. Each step passes the gate `steps_`.
class AdmissionTest : public ::testing::Test {
 protected:
  void Start(const std::function<void(EngineOptions&)>& change) {
    const PoolOptions pool{
        .usable_pages = 200, .page_size = 16, .max_rows = 16, .max_context_tokens = 1024};
    HarnessOptions options = MakeHarnessOptions(pool);
    change(options.engine);
    tokenizer_ = MakeByteTokenizer();
    runner_ = std::make_unique<FakeRunner>(options.runner);
    runner_->SetHook([this](const runtime::StepBatch&) {
      steps_.Pass();
      return absl::OkStatus();
    });
    auto engine = Engine::Create(options.engine, MakeCache(pool), runner_.get(), tokenizer_.get(),
                                 &clock_, &registry_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  void TearDown() override { steps_.Set(/*closed=*/false); }

  std::shared_ptr<TokenStream> Accept(Request request) {
    auto stream = engine_->Accept(std::move(request));
    EXPECT_TRUE(stream.ok()) << stream.status();
    return stream.ok() ? *std::move(stream) : nullptr;
  }

  testing::FakeClock clock_;
  probe::Registry registry_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<FakeRunner> runner_;
  Gate steps_;
  std::unique_ptr<Engine> engine_;
};

// A request that runs until it is cancelled.
Request Endless(std::string id, std::string tenant) {
  Request request = MakeRequest(std::move(id), {1, 2, 3}, 500);
  request.tenant = std::move(tenant);
  request.stopping.ignore_eos = true;
  return request;
}

class AbortTest : public AdmissionTest {
 protected:
  // Creates an old and a young request for each of two tenants. None has taken a step.
  void SetUp() override {
    Start([](EngineOptions&) {});
    steps_.Set(/*closed=*/true);
    for (const char* age : {"old", "young"}) {
      for (const char* tenant : {"x", "y"}) {
        const std::string id = absl::StrCat(age, " ", tenant);
        streams_[id] = Accept(Endless(id, tenant));
      }
      clock_.Advance(absl::Seconds(10));
    }
  }

  // Returns the ids of the requests that the abort ended.
  std::vector<std::string> Abort(const AbortSelection& selection) {
    const absl::StatusOr<AbortResult> result = engine_->Abort(selection);
    EXPECT_TRUE(result.ok()) << result.status();
    steps_.Set(/*closed=*/false);
    std::vector<std::string> ended;
    for (const auto& [id, stream] : streams_) {
      const absl::Status status = ReadAll(*stream).status;
      if (ReasonOf(status) == "ABORTED_BY_ADMIN") {
        ended.push_back(id);
      } else {
        EXPECT_TRUE(status.ok()) << status;
      }
    }
    if (result.ok()) {
      EXPECT_EQ(result->aborted, static_cast<std::int32_t>(ended.size()));
      unknown_ids_ = result->unknown_ids;
    }
    return ended;
  }

  std::map<std::string, std::shared_ptr<TokenStream>> streams_;
  std::vector<std::string> unknown_ids_;
};

TEST_F(AbortTest, AllWithATenantAbortsOnlyThatTenant) {
  EXPECT_THAT(Abort({.all = true, .tenant = "x"}), ElementsAre("old x", "young x"));
}

TEST_F(AbortTest, AllWithAnAgeAbortsOnlyOlderRequests) {
  EXPECT_THAT(Abort({.all = true, .older_than = absl::Seconds(15)}), ElementsAre("old x", "old y"));
}

TEST_F(AbortTest, AllConditionsMustMatch) {
  EXPECT_THAT(Abort({.all = true, .older_than = absl::Seconds(15), .tenant = "y"}),
              ElementsAre("old y"));
}

TEST_F(AbortTest, ConditionsAlsoRestrictIds) {
  EXPECT_THAT(Abort({.ids = {"old x", "old y", "none"}, .tenant = "y"}), ElementsAre("old y"));
  EXPECT_THAT(unknown_ids_, ElementsAre("none")) << "an id of another tenant is not unknown";
}

TEST_F(AbortTest, AllDoesNotExtendTheListedIds) {
  EXPECT_THAT(Abort({.ids = {"young y"}, .all = true}), ElementsAre("young y"));
}

TEST_F(AbortTest, AllAloneAbortsEveryRequest) {
  EXPECT_THAT(Abort({.all = true}), ElementsAre("old x", "old y", "young x", "young y"));
}

TEST_F(AbortTest, TenantOrAgeAloneSelectsNothing) {
  const absl::Status by_tenant = engine_->Abort({.tenant = "x"}).status();
  EXPECT_EQ(ReasonOf(by_tenant), "SELECTION_EMPTY");
  EXPECT_EQ(ReasonOf(engine_->Abort({.older_than = absl::Seconds(1)}).status()), "SELECTION_EMPTY");
  EXPECT_THAT(Abort({.ids = {"none"}}), IsEmpty());
}

// A client loops Generate and Cancel on a full queue. A rejected request never became visible to
// Cancel, and no queue slot is released that no request occupied.
TEST_F(AdmissionTest, RejectedRequestIsNeverVisible) {
  Start([](EngineOptions& options) {
    options.max_queued_requests = 1;
    options.max_running_sequences = 1;
  });
  steps_.Set(/*closed=*/true);
  const auto running = Accept(MakeRequest("running", {1, 2, 3}, 4));
  steps_.AwaitArrival();
  const auto waiting = Accept(MakeRequest("waiting", {1, 2, 3}, 4));
  std::atomic<bool> done{false};
  std::atomic<int> looks{0};
  int seen = 0;
  std::thread canceller([&] {
    while (!done.load()) {
      if (engine_->Cancel({"default", "p"}, "refused", CancelSource::kApi)) ++seen;
      ++looks;
    }
  });
  for (int refused = 0; refused < 20000 || looks.load() < 20000; ++refused) {
    ASSERT_EQ(ReasonOf(engine_->Accept(MakeRequest("refused", {1}, 4)).status()), "QUEUE_FULL");
  }
  done.store(true);
  canceller.join();
  EXPECT_EQ(seen, 0);
  steps_.Set(/*closed=*/false);
  EXPECT_TRUE(ReadAll(*running).status.ok());
  EXPECT_TRUE(ReadAll(*waiting).status.ok());
  EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
  EXPECT_TRUE(engine_->CheckIntegrity().ok());
}

// Each request puts 18 items into the ring of the only worker, which is stopped. Admission has to
// stop before the ring is full. No request is rejected, although finished and unread answers occupy
// slots of the queue.
TEST_F(AdmissionTest, FullRingStallsAdmission) {
  Start([](EngineOptions& options) {
    options.text_threads = 1;
    options.max_queued_requests = 1000;
  });
  Gate worker;
  worker.Set(/*closed=*/true);
  std::vector<std::shared_ptr<TokenStream>> streams;
  // The ready callback may run here at once and then does not occupy a worker. In that case the
  // callback of another request does.
  const std::thread::id here = std::this_thread::get_id();
  bool ran_here = true;
  while (ran_here) {
    ran_here = false;
    streams.push_back(Accept(MakeRequest(absl::StrCat("first", streams.size()), {1, 2, 3}, 1)));
    streams.back()->SetReadyCallback([&] {
      if (std::this_thread::get_id() == here) {
        ran_here = true;
      } else {
        worker.Pass();
      }
    });
  }
  worker.AwaitArrival();
  for (int i = 0; i < 600; ++i) {
    Request request = MakeRequest(absl::StrCat("r", i), {1, 2, 3}, 1);
    request.sampling.choice_count = 16;
    streams.push_back(Accept(std::move(request)));
    // Each call makes the engine plan a step.
    ASSERT_TRUE(engine_->CheckIntegrity().ok());
  }
  for (int passes = 0; passes < 200; ++passes) ASSERT_TRUE(engine_->CheckIntegrity().ok());
  EXPECT_GT(engine_->GetStats().waiting, 0) << "the ring was never full";
  worker.Set(/*closed=*/false);
  for (const auto& stream : streams) {
    const Reading reading = ReadAll(*stream);
    EXPECT_TRUE(reading.status.ok()) << reading.status;
    EXPECT_EQ(reading.order_errors, "");
  }
  EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
  EXPECT_TRUE(engine_->CheckIntegrity().ok());
}

// The worker is stopped, and more items arrive than its ring has room for. None is lost, their
// order is kept, and no further item may be created until they are delivered.
TEST(OutputStageTest, ItemsForAFullRingWaitInOrder) {
  const std::unique_ptr<text::Tokenizer> tokenizer = MakeByteTokenizer();
  const testing::FakeClock clock;
  RequestTable table(100);
  probe::Registry registry;
  EngineProbe probe(&registry, {.model_name = "m",
                                .max_context_tokens = 100,
                                .page_size = 16,
                                .num_pages = 10,
                                .kv_dtype = "f32"});
  const auto inbox = std::make_shared<Inbox>();
  OutputStage stage({.num_workers = 1, .ring_items = 4, .stream_queue_tokens = 8, .id_key = {}},
                    tokenizer.get(), &clock, &table, &probe, inbox);
  Gate worker;
  worker.Set(/*closed=*/true);
  std::vector<std::shared_ptr<AcceptedRequest>> requests;
  std::vector<std::string> ended;  // in the worker's order
  std::vector<OutputItem> items;
  for (int i = 0; i < 40; ++i) {
    const auto live = std::make_shared<AcceptedRequest>(MakeRequest(absl::StrCat(i), {1}, 4),
                                                        static_cast<std::uint64_t>(i), 0,
                                                        std::make_shared<TokenStream>());
    live->stream->SetReadyCallback([&worker, &ended, id = live->request.id] {
      worker.Pass();
      ended.push_back(id);
    });
    ASSERT_TRUE(table.Insert(live, absl::ZeroDuration(), [] { return absl::OkStatus(); }).ok());
    requests.push_back(live);
    OutputItem& item = items.emplace_back();
    item.kind = OutputItem::Kind::kRequestEnd;
    item.request = live;
    item.status = absl::CancelledError("over");
    if (i > 0) continue;
    stage.Push(&items);  // pushed alone, so that the worker takes only this item
    worker.AwaitArrival();
  }
  stage.Push(&items);
  EXPECT_THAT(items, IsEmpty());
  EXPECT_FALSE(stage.HasRoom(/*worker=*/0));
  EXPECT_EQ(table.All().size(), 39);
  worker.Set(/*closed=*/false);
  while (!stage.HasRoom(/*worker=*/0)) {
    inbox->Wait(absl::InfiniteDuration());
    std::vector<Signal> signals;
    ASSERT_TRUE(inbox->Drain(&signals));
    stage.Push(&items);
    stage.WakeWhenRoom(/*worker=*/0);
  }
  ASSERT_TRUE(stage.WaitDone(absl::InfiniteDuration()));
  ASSERT_EQ(ended.size(), requests.size());
  for (std::size_t i = 0; i < ended.size(); ++i) EXPECT_EQ(ended[i], absl::StrCat(i));
  EXPECT_THAT(table.All(), IsEmpty());
  EXPECT_TRUE(stage.HasRoom(/*worker=*/0));
}

}  // namespace
}  // namespace quire::engine

// Fixtures of models with recurrent layers, on the CPU and on an emulated GPU. Tokens and
// log-probabilities of requests that hit, fork, continue or are preempted equal, bit by bit, those
// of the same requests that run alone and compute everything.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend/backend.h"
#include "tests/engine/stream_reader.h"
#include "tests/stress/real_model.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

class Server {
 public:
  Server(StressModel& model, const StressPool& pool, AdmissionMode mode = AdmissionMode::kSafe)
      : model_(model), runner_(model.MakeRunner(pool)) {
    EngineOptions options = model.Options(pool);
    options.admission = mode;
    auto engine = Engine::Create(options, model.MakeCacheManager(pool), runner_.get(),
                                 &model.tokenizer(), &clock_, nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  ~Server() { EXPECT_EQ(engine_->CheckIntegrity(), absl::OkStatus()); }

  std::shared_ptr<TokenStream> Start(const Request& request) {
    auto stream = engine_->Accept(request);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *stream;
  }
  Reading Run(const Request& request) {
    Reading reading = ReadAll(*Start(request));
    EXPECT_TRUE(reading.status.ok()) << reading.status;
    return reading;
  }
  EngineStats Stats() { return engine_->GetStats(); }

 private:
  StressModel& model_;
  MachineClock clock_;
  std::unique_ptr<runtime::StepRunner> runner_;
  std::unique_ptr<Engine> engine_;
};

Request MakeRequest(const std::string& id, Tokens prompt, std::int32_t max_tokens = 24) {
  Request request;
  request.id = id;
  request.principal = std::string("p");
  request.model = std::string("m");
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.stopping.max_tokens = max_tokens;
  request.stopping.ignore_eos = true;
  request.output.stream = true;
  request.output.token_ids = true;
  request.output.logprobs = 1;
  return request;
}

// A fixture on a device.
struct Place {
  const char* folder;
  DeviceKind device = DeviceKind::kCpu;
  DType kv_dtype = DType::kF32;
};

class RecurrentTest : public testing::TestWithParam<Place> {
 protected:
  RecurrentTest() : model_(MakeModel()), cold_model_(MakeModel()) {}

  static std::unique_ptr<StressModel> MakeModel() {
    return MakeFixtureModel(GetParam().folder, 2, GetParam().device, GetParam().kv_dtype);
  }

  static StressPool Pool(std::uint32_t usable_pages = 200, std::uint32_t snapshots = 4) {
    return {.usable_pages = usable_pages,
            .max_rows = 8,
            .max_context_tokens = 512,
            .snapshots = snapshots};
  }
  Tokens Prompt(std::uint64_t seed, std::size_t size) const {
    std::mt19937_64 random(seed);
    Tokens tokens(size);
    for (std::int32_t& id : tokens) {
      id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model_->prompt_vocab()));
    }
    return tokens;
  }
  // Returns the result of the request alone, without the cache.
  Reading Cold(Request request) {
    StressPool pool = Pool(400);
    pool.prefix_caching = false;
    request.id = "cold";
    return Server(*cold_model_, pool).Run(request);
  }
  void ExpectCold(const Request& request, const Reading& reading) {
    ExpectSame(request.id, reading, Cold(request));
  }
  static void ExpectSame(const std::string& id, const Reading& reading, const Reading& cold) {
    ASSERT_TRUE(reading.status.ok()) << reading.status;
    ASSERT_EQ(reading.choices.size(), cold.choices.size());
    for (const auto& [index, choice] : cold.choices) {
      EXPECT_EQ(reading.choices.at(index).token_ids, choice.token_ids) << id;
      EXPECT_EQ(reading.choices.at(index).logprobs, choice.logprobs) << id;
    }
  }

  const std::unique_ptr<StressModel> model_;
  const std::unique_ptr<StressModel> cold_model_;  // a model has one engine at a time
};

class RecurrentModelTest : public RecurrentTest {};

TEST_P(RecurrentModelTest, HitsComputeAtMostAPageAndTheSlack) {
  Server server(*model_, Pool());
  for (const std::size_t size : {std::size_t{63}, std::size_t{64}, std::size_t{65}}) {
    const Tokens prompt = Prompt(size, size);
    const auto cold = MakeRequest(absl::StrCat("cold", size), prompt);
    ExpectCold(cold, server.Run(cold));
    const auto again = MakeRequest(absl::StrCat("again", size), prompt);
    const Reading reading = server.Run(again);
    ExpectCold(again, reading);
    EXPECT_EQ(reading.usage.cached_tokens, (size - 17) / kStressPageSize * kStressPageSize);
  }
}

TEST_P(RecurrentModelTest, ConversationsContinueAtTheEndOfTheTurnBefore) {
  Server server(*model_, Pool());
  Tokens prompt = Prompt(1, 50);
  for (std::uint64_t turn = 0; turn < 4; ++turn) {
    const auto request = MakeRequest(absl::StrCat("turn", turn), prompt);
    const Reading reading = server.Run(request);
    ExpectCold(request, reading);
    if (turn > 0) {
      EXPECT_EQ(reading.usage.cached_tokens, static_cast<std::int32_t>(prompt.size()) - 6);
    }
    const Tokens& answer = reading.choices.at(0).token_ids;
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    for (const std::int32_t id : Prompt(100 + turn, 5)) prompt.push_back(id);
  }
}

TEST_P(RecurrentModelTest, TheThirdPromptWithASharedHeadStartsBehindIt) {
  Server server(*model_, Pool());
  const Tokens head = Prompt(2, 4 * kStressPageSize);
  for (std::uint64_t i = 0; i < 3; ++i) {
    Tokens prompt = head;
    for (const std::int32_t id : Prompt(10 + i, 40)) prompt.push_back(id);
    const auto request = MakeRequest(absl::StrCat("r", i), prompt);
    const Reading reading = server.Run(request);
    ExpectCold(request, reading);
    EXPECT_EQ(reading.usage.cached_tokens, i == 2 ? 4 * kStressPageSize : 0);
  }
}

TEST_P(RecurrentModelTest, ChoicesContinueTheStateOfTheirPrompt) {
  Server server(*model_, Pool(200, 2));
  for (const std::int32_t choices : {2, 3, 8}) {
    Request request = MakeRequest(absl::StrCat("n", choices), Prompt(3, 70));
    request.sampling.choice_count = choices;
    request.sampling.temperature = 1;
    request.sampling.seed = 11;
    ExpectCold(request, server.Run(request));
  }
}

// The pool is too small for the eight requests at a time.
TEST_P(RecurrentModelTest, CrowdedRequestsEqualLoneOnes) {
  Server server(*model_, Pool(24, 3), AdmissionMode::kOvercommit);
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 16; ++i) {
    Tokens prompt = Prompt(20 + i % 3, 20 + 5 * (i % 5));
    for (const std::int32_t id : Prompt(40 + i, 1 + i % 7)) prompt.push_back(id);
    requests.push_back(MakeRequest(absl::StrCat("r", i), prompt, 60));
    if (i % 2 == 1) requests.back().sampling.temperature = 1;
    requests.back().sampling.seed = i;
  }
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const Request& request : requests) streams.push_back(server.Start(request));
  for (std::size_t i = 0; i < requests.size(); ++i) ExpectCold(requests[i], ReadAll(*streams[i]));
  EXPECT_GT(server.Stats().preemptions, 0);
}

std::string NameOf(const testing::TestParamInfo<Place>& info) {
  std::string name = info.param.folder;
  std::replace(name.begin(), name.end(), '-', '_');
  return absl::StrCat(name, info.param.kv_dtype == DType::kF32 ? "" : "_pages_of_bf16");
}

INSTANTIATE_TEST_SUITE_P(All, RecurrentModelTest,
                         testing::Values(Place{"qwen35-bf16"}, Place{"qwen35-moe-bf16"},
                                         Place{"qwen3-next-bf16"}, Place{"granite-hybrid-bf16"},
                                         Place{"nemotron-h-bf16"}, Place{"lfm2-bf16"},
                                         Place{"kimi-linear-bf16"}),
                         NameOf);

// The use of slots does not depend on the model, so a GPU, which is emulated slowly, computes only
// few requests.
class RecurrentGpuTest : public RecurrentTest {};

TEST_P(RecurrentGpuTest, HitsForksAndPreemptionsEqualLoneRequests) {
  std::vector<Request> requests;
  std::vector<Reading> readings;
  {
    Server server(*model_, Pool(8, 3), AdmissionMode::kOvercommit);
    const auto run = [&](const Request& request) {
      requests.push_back(request);
      readings.push_back(server.Run(request));
    };
    run(MakeRequest("first", Prompt(1, 35), 4));
    run(MakeRequest("again", Prompt(1, 35), 4));
    Request forked = MakeRequest("forked", Prompt(2, 20), 4);
    forked.sampling.choice_count = 3;
    forked.sampling.temperature = 1;
    forked.sampling.seed = 11;
    run(forked);
    // A client that does not read its answer is cancelled, so the answers are compared later.
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (std::uint64_t i = 0; i < 3; ++i) {
      requests.push_back(MakeRequest(absl::StrCat("crowd", i), Prompt(3 + i, 24 + i), 24));
      streams.push_back(server.Start(requests.back()));
    }
    for (const auto& stream : streams) readings.push_back(ReadAll(*stream));
    EXPECT_GT(server.Stats().preemptions, 0);
  }
  EXPECT_EQ(readings[0].usage.cached_tokens, 0);
  EXPECT_EQ(readings[1].usage.cached_tokens, kStressPageSize);
  Reading cold;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].id != "again") cold = Cold(requests[i]);
    ExpectSame(requests[i].id, readings[i], cold);
  }
}

std::vector<Place> OnGpu() {
  if (!kernels::kHasCuda) return {};
  return {{"qwen35-bf16", DeviceKind::kCuda, DType::kBF16},
          {"lfm2-bf16", DeviceKind::kCuda, DType::kF32}};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RecurrentGpuTest);
INSTANTIATE_TEST_SUITE_P(All, RecurrentGpuTest, testing::ValuesIn(OnGpu()), NameOf);

}  // namespace
}  // namespace quire::engine

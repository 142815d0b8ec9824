// Fixtures of windowed models in pools that fit their windows but not their context, on the CPU and
// overlapped on an emulated GPU. Unreferenced pages are NaN (MakeFixtureModel).

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend/backend.h"
#include "tests/engine/stream_reader.h"
#include "tests/stress/real_model.h"

namespace quire::engine {
namespace {

constexpr std::uint32_t kPromptTokens = 320;

// A step takes milliseconds on an emulated GPU. The length lets windows leave three pages.
std::uint32_t OutputTokens(DeviceKind device) {
  return device == DeviceKind::kCpu ? 100 : 50;
}

Request MakeLongRequest(std::int32_t vocab, std::uint32_t output_tokens) {
  std::mt19937_64 random(8);
  std::vector<std::int32_t> prompt(kPromptTokens);
  for (std::int32_t& id : prompt) {
    id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab));
  }
  Request request;
  request.id = std::string("long");
  request.principal = std::string("p");
  request.model = std::string("m");
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.stopping.max_tokens = static_cast<std::int32_t>(output_tokens);
  request.stopping.ignore_eos = true;
  request.output.stream = true;
  request.output.token_ids = true;
  request.output.logprobs = 1;
  return request;
}

Reading Answer(StressModel& model, std::uint32_t output_tokens, std::uint32_t usable_pages,
               bool prefix_caching = true) {
  const StressPool pool{.usable_pages = usable_pages,
                        .max_rows = 4,
                        .max_context_tokens = 512,
                        .prefix_caching = prefix_caching};
  MachineClock clock;
  const std::unique_ptr<runtime::StepRunner> runner = model.MakeRunner(pool);
  auto engine = Engine::Create(model.Options(pool), model.MakeCacheManager(pool), runner.get(),
                               &model.tokenizer(), &clock, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  auto stream = (*engine)->Accept(MakeLongRequest(model.prompt_vocab(), output_tokens));
  EXPECT_TRUE(stream.ok()) << stream.status();
  Reading reading = ReadAll(**stream);
  const absl::Status integrity = (*engine)->CheckIntegrity();
  EXPECT_TRUE(integrity.ok()) << integrity;
  return reading;
}

struct Place {
  DeviceKind device;
  DType kv_dtype;
};

class WindowModelTest : public testing::TestWithParam<std::tuple<const char*, Place>> {};

TEST_P(WindowModelTest, LongContextFitsThePagesOfItsWindows) {
  const auto& [folder, place] = GetParam();
  const auto model = MakeFixtureModel(folder, 2, place.device, place.kv_dtype);
  const auto cache = model->MakeCacheManager({.usable_pages = 1000});
  const std::uint32_t output_tokens = OutputTokens(place.device);
  const std::uint32_t cached_tokens = kPromptTokens + output_tokens - 1;
  const std::uint32_t pages = cache->demand().PagesFor(cached_tokens);
  const std::uint32_t columns = (cached_tokens + kStressPageSize - 1) / kStressPageSize;
  const std::uint32_t all = cache->num_groups() * columns;
  std::printf("%u pages, %u without windows\n", pages, all);
  if (cache->demand().SharedPagesFor(kStressPageSize) == 0) {
    EXPECT_LE(4 * pages, all) << "every layer has a window";
  } else {
    EXPECT_LE(3 * pages, 2 * all);
  }
  const Reading expected = Answer(*model, output_tokens, all);
  const Reading got = Answer(*model, output_tokens, pages);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  ASSERT_TRUE(got.status.ok()) << got.status;
  ASSERT_EQ(expected.choices.at(0).token_ids.size(), output_tokens);
  EXPECT_EQ(got.choices.at(0).token_ids, expected.choices.at(0).token_ids);
  EXPECT_EQ(got.choices.at(0).logprobs, expected.choices.at(0).logprobs);
  // Without prefix caching, pages are free and thus NaN as soon as no window reaches them.
  const Reading poisoned = Answer(*model, output_tokens, pages, /*prefix_caching=*/false);
  ASSERT_TRUE(poisoned.status.ok()) << poisoned.status;
  EXPECT_EQ(poisoned.choices.at(0).token_ids, expected.choices.at(0).token_ids);
  EXPECT_EQ(poisoned.choices.at(0).logprobs, expected.choices.at(0).logprobs);
  // With one page less, the request is rejected.
  const Reading refused = Answer(*model, output_tokens, pages - 1);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument) << refused.status;
}

std::vector<Place> Places() {
  std::vector<Place> places = {{DeviceKind::kCpu, DType::kF32}};
  if (kernels::kHasCuda) {
    places.push_back({DeviceKind::kCuda, DType::kF32});
    places.push_back({DeviceKind::kCuda, DType::kBF16});
  }
  return places;
}

std::string NameOf(const testing::TestParamInfo<WindowModelTest::ParamType>& info) {
  const auto& [folder, place] = info.param;
  std::string name = absl::StrCat(folder, place.device == DeviceKind::kCpu ? "_cpu_" : "_gpu_",
                                  DTypeName(place.kv_dtype));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, WindowModelTest,
                         testing::Combine(testing::Values("mistral-window-bf16", "phi3-bf16",
                                                          "gemma2-bf16", "gemma3-text-bf16",
                                                          "gpt-oss-bf16"),
                                          testing::ValuesIn(Places())),
                         NameOf);

}  // namespace
}  // namespace quire::engine

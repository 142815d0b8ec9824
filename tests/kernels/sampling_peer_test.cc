// Compares the tokens that top-n-sigma and XTC keep with those that llama.cpp keeps for the same
// rows (tests/testdata/sampling).

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/sampling/sampling.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/sampling_reference.h"
#include "tests/testing/paths.h"

namespace quire::kernels {
namespace {

using Json = nlohmann::json;

Json Cases(const char* kind) {
  std::ifstream file(paths::TestData("sampling/llama_cpp.json"));
  EXPECT_TRUE(file.good());
  return Json::parse(file).at(kind);
}

// `set` writes the parameters of a case to a row.
template <typename Set>
void ExpectThatTheSameAreLeft(const char* kind, Set set) {
  const TestBackend backend(1);
  int cut = 0;
  for (const Json& of : Cases(kind)) {
    const auto logits = of.at("logits").get<std::vector<float>>();
    const auto left = of.at("left").get<std::vector<std::int32_t>>();
    const auto vocab = static_cast<std::uint32_t>(logits.size());
    SamplingRow row{.logits = logits.data(), .text_vocab = vocab, .wants_processed_logprob = true};
    set(of, row);
    EXPECT_THAT(internal::SampleCpu(row, vocab).survivors,
                testing::UnorderedElementsAreArray(left));
    cut += left.size() < logits.size();
    double mass = 0;
    for (const std::int32_t id : left)
      mass += std::exp(double{logits[static_cast<std::size_t>(id)]});
    for (row.seed = 0; row.seed < 20; ++row.seed) {
      SampledRow sampled{};
      ASSERT_TRUE(Sample(*backend, {{&row, 1}, {&sampled, 1}, vocab}).ok());
      ASSERT_THAT(left, testing::Contains(sampled.token));
      const double logit = logits[static_cast<std::size_t>(sampled.token)];
      EXPECT_NEAR(sampled.processed_logprob, logit - std::log(mass), 1e-5);
    }
  }
  EXPECT_GT(cut, 60);
}

TEST(SamplingPeerTest, TopNSigmaKeepsTheTokensOfLlamaCpp) {
  ExpectThatTheSameAreLeft("top_n_sigma", [](const Json& of, SamplingRow& row) {
    row.top_n_sigma = of.at("n").get<float>();
  });
}

TEST(SamplingPeerTest, XtcKeepsTheTokensOfLlamaCpp) {
  ExpectThatTheSameAreLeft("xtc", [](const Json& of, SamplingRow& row) {
    row.xtc_probability = 1;
    row.xtc_threshold = of.at("threshold").get<float>();
  });
}

}  // namespace
}  // namespace quire::kernels

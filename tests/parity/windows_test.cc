// Models with windows or chunks keep only the pages that these reach and compute the same. The
// harness releases every other page, fills it with NaN and reuses it.

#include <gtest/gtest.h>

#include <string>

#include "formats/model_files.h"
#include "models/blocks/layer_groups.h"
#include "runtime/model.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

struct Windowed {
  const char* folder;
  std::size_t groups;
  std::uint32_t slots;
};

void PrintTo(const Windowed& model, std::ostream* out) {
  *out << model.folder;
}

class WindowsTest : public testing::TestWithParam<Windowed> {
 protected:
  void SetUp() override {
    auto files = formats::ModelFiles::FromDirectory(FixturePath(GetParam().folder));
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
    auto reference = ReadReference(GetParam().folder);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
  }

  formats::ModelFiles files_;
  Reference reference_;
};

TEST_P(WindowsTest, LayersOfOneWindowShareGroups) {
  const auto checked = runtime::ReadModelSpec(files_, DeviceKind::kCpu);
  ASSERT_TRUE(checked.ok()) << checked.status();
  const LayerGroups layers = PlanLayerGroups(checked->spec);
  EXPECT_EQ(layers.groups.size(), GetParam().groups);
  EXPECT_EQ(layers.slots, GetParam().slots);
}

TEST_P(WindowsTest, NeverReadsReleasedPages) {
  ReplayCounters counters;
  const auto got = Replay(files_, reference_, {.logprobs = false}, &counters);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(Passes(*got, reference_));
  EXPECT_GT(counters.released_pages, 0u);
  // Results are bitwise equal for all chunks, pages and recomputations.
  const auto other = Replay(
      files_, reference_,
      {.threads = 2, .chunk = 40, .seed = 5, .logprobs = false, .preempt_at = 30}, &counters);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_GT(counters.released_pages, 0u);
  ASSERT_EQ(got->size(), other->size());
  for (std::size_t i = 0; i < got->size(); ++i) {
    EXPECT_EQ((*got)[i].sampled, (*other)[i].sampled) << i;
    EXPECT_EQ((*got)[i].logits, (*other)[i].logits) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, WindowsTest,
    testing::Values(Windowed{"mistral-window-bf16", 1, 2}, Windowed{"gemma2-bf16", 2, 2},
                    Windowed{"gemma3-text-bf16", 7, 1}, Windowed{"gpt-oss-bf16", 3, 1},
                    Windowed{"phi3-bf16", 1, 3}, Windowed{"ministral-bf16", 5, 1},
                    Windowed{"olmo3-bf16", 4, 1}, Windowed{"llama4-bf16", 2, 2}));

}  // namespace
}  // namespace quire::models::parity

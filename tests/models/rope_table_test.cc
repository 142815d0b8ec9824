#include "models/config/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "models/weights/checkpoint.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

RopeTable MustBuild(const RopeConfig& config, std::uint32_t rotary_size) {
  auto table = BuildRopeTable(config, rotary_size);
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

// Relative distance in units of float rounding.
double Ulps(float got, double want) {
  return std::abs(static_cast<double>(got) - want) / (std::abs(want) * 0x1p-23);
}

// The fixture contains the tables computed by transformers.
TEST(RopeTableTest, EqualsTheTableStoredByUpstream) {
  const auto files =
      formats::ModelFiles::FromDirectory(TestDataPath("models/llama-extra-buffers-bf16"));
  const auto checkpoint = Checkpoint::Open(*files);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const formats::StoredTensor* stored =
      checkpoint->Find("model.layers.0.self_attn.rotary_emb.inv_freq");
  ASSERT_NE(stored, nullptr);
  ASSERT_EQ(stored->dtype, DType::kF32);
  std::vector<float> want(static_cast<std::size_t>(stored->num_elements()));
  std::memcpy(want.data(), stored->bytes.data(), stored->bytes.size());
  const RopeTable table = MustBuild({}, static_cast<std::uint32_t>(2 * want.size()));
  EXPECT_EQ(table.attention_factor, 1.0f);
  ASSERT_EQ(table.inv_freq.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(Ulps(table.inv_freq[i], want[i]), 1.0) << i;
}

TEST(RopeTableTest, DefaultAndLinearFollowTheFormula) {
  for (const double factor : {1.0, 2.5}) {
    RopeConfig config;
    config.kind = factor == 1 ? RopeKind::kDefault : RopeKind::kLinear;
    config.theta = 500000;
    config.factor = factor;
    const RopeTable table = MustBuild(config, 128);
    for (int i = 0; i < 64; ++i) {
      EXPECT_LE(Ulps(table.inv_freq[static_cast<std::size_t>(i)],
                     std::pow(500000.0, -2.0 * i / 128) / factor),
                16.0)
          << i;
    }
  }
}

TEST(RopeTableTest, LongropeFollowsTheFormulaOfTheChosenList) {
  RopeConfig config;
  config.kind = RopeKind::kLongrope;
  config.theta = 10000;
  config.factor = 32;
  config.original_max_position = 4096;
  for (int i = 0; i < 48; ++i) {
    config.short_factors.push_back(1 + 0.01 * i);
    config.long_factors.push_back(1 + 1.25 * i);
  }
  for (const bool is_long : {false, true}) {
    config.uses_long_factors = is_long;
    const RopeTable table = MustBuild(config, 96);
    ASSERT_EQ(table.inv_freq.size(), 48u);
    for (int i = 0; i < 48; ++i) {
      const double factor = is_long ? 1 + 1.25 * i : 1 + 0.01 * i;
      EXPECT_LE(Ulps(table.inv_freq[static_cast<std::size_t>(i)],
                     std::pow(10000.0, -2.0 * i / 96) / factor),
                16.0)
          << i;
    }
    EXPECT_FLOAT_EQ(table.attention_factor, 1.1902381f);  // sqrt(1 + ln 32 / ln 4096)
  }
  EXPECT_FALSE(BuildRopeTable(config, 128).ok()) << "48 factors for 64 pairs";
  config.attention_factor = 1.25;
  EXPECT_EQ(MustBuild(config, 96).attention_factor, 1.25f);
  config.attention_factor.reset();
  config.factor = 1;
  EXPECT_EQ(MustBuild(config, 96).attention_factor, 1.0f);
}

// A base that changed with the length would invalidate cached keys. Up to the trained length,
// dynamic equals default.
TEST(RopeTableTest, DynamicEqualsDefault) {
  RopeConfig config;
  config.kind = RopeKind::kDynamic;
  config.factor = 4;
  EXPECT_EQ(MustBuild(config, 64), MustBuild({}, 64));
}

TEST(RopeTableTest, Llama3StretchesLongWavelengthsOnly) {
  RopeConfig config;
  config.kind = RopeKind::kLlama3;
  config.theta = 500000;
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_position = 8192;
  const RopeTable table = MustBuild(config, 128);
  int kept = 0, blended = 0, stretched = 0;
  for (int i = 0; i < 64; ++i) {
    const double f = std::pow(500000.0, -2.0 * i / 128);
    const double wavelength = 2 * M_PI / f;
    double want = f;
    if (wavelength > 8192) {
      want = f / 8;
      ++stretched;
    } else if (wavelength >= 2048) {
      const double t = (8192 / wavelength - 1) / 3;
      want = (1 - t) * f / 8 + t * f;
      ++blended;
    } else {
      ++kept;
    }
    EXPECT_LE(Ulps(table.inv_freq[static_cast<std::size_t>(i)], want), 64.0) << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(blended, 0);
  EXPECT_GT(stretched, 0);
}

// Uses the published values for Qwen long context: factor 4 over 32768, head size 128, theta 1e6.
TEST(RopeTableTest, YarnRampsBetweenKeptAndStretched) {
  RopeConfig config;
  config.kind = RopeKind::kYarn;
  config.theta = 1e6;
  config.factor = 4;
  config.original_max_position = 32768;
  const RopeTable table = MustBuild(config, 128);
  const auto dimension = [](double rotations) {
    return 128 * std::log(32768 / (rotations * 2 * M_PI)) / (2 * std::log(1e6));
  };
  const double low = std::floor(dimension(32));
  const double high = std::ceil(dimension(1));
  for (int i = 0; i < 64; ++i) {
    const double f = std::pow(1e6, -2.0 * i / 128);
    const double g = std::min(1.0, std::max(0.0, (i - low) / (high - low)));
    EXPECT_LE(Ulps(table.inv_freq[static_cast<std::size_t>(i)], f * (1 - g) + f / 4 * g), 64.0)
        << i;
  }
  EXPECT_FLOAT_EQ(table.attention_factor, static_cast<float>(0.1 * std::log(4.0) + 1));
}

TEST(RopeTableTest, YarnAttentionFactorHasThreeSources) {
  RopeConfig config;
  config.kind = RopeKind::kYarn;
  config.factor = 40;
  config.original_max_position = 4096;
  config.mscale = 1.0;
  config.mscale_all_dim = 1.0;
  EXPECT_FLOAT_EQ(MustBuild(config, 64).attention_factor, 1.0f);
  config.mscale = 0.707;
  EXPECT_FLOAT_EQ(MustBuild(config, 64).attention_factor,
                  static_cast<float>((0.0707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1)));
  config.mscale_all_dim = 0.0;
  EXPECT_FLOAT_EQ(MustBuild(config, 64).attention_factor,
                  static_cast<float>(0.1 * std::log(40.0) + 1));
  config.attention_factor = 0.85;
  EXPECT_FLOAT_EQ(MustBuild(config, 64).attention_factor, 0.85f);
}

// truncate false moves the ends of the ramp. Factor 32 then gives 1.3466 and other frequencies.
TEST(RopeTableTest, YarnTruncationMovesTheRamp) {
  RopeConfig config;
  config.kind = RopeKind::kYarn;
  config.theta = 150000;
  config.factor = 32;
  config.original_max_position = 4096;
  const RopeTable whole = MustBuild(config, 64);
  config.truncate = false;
  const RopeTable exact = MustBuild(config, 64);
  EXPECT_NE(whole.inv_freq, exact.inv_freq);
  EXPECT_NEAR(exact.attention_factor, 1.3466, 5e-5);
}

TEST(RopeTableTest, RejectsOddSizes) {
  EXPECT_FALSE(BuildRopeTable({}, 0).ok());
  EXPECT_FALSE(BuildRopeTable({}, 3).ok());
}

}  // namespace
}  // namespace quire::models

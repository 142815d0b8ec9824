// Compares the GPU sampler with the CPU sampler, row by row and bitwise.

#include "kernels/sampling/device_sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/backend/exact_math.h"
#include "kernels/sampling/sampling_passes.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int32_t kMaxLogprobs = 24;

// Bits are equal if the CPU's exp uses fused multiply-adds.
bool CpuHasFma() {
  const TestBackend cpu(1);
  const absl::string_view isa = (*cpu).isa();
  return isa != "sse4" && isa != "scalar";
}

// A random row with all data that it points to. Logits are in host memory.
struct HostRow {
  HostRow(std::uint32_t seed, std::uint32_t vocab) {
    std::mt19937 rng(seed);
    const auto one_in = [&](int sides) {
      return std::uniform_int_distribution<int>(0, sides - 1)(rng) == 0;
    };
    const auto uniform = [&](float low, float high) {
      return std::uniform_real_distribution<float>(low, high)(rng);
    };
    const auto token = [&] { return static_cast<std::int32_t>(rng() % vocab); };
    logits = RandomFloats(vocab, seed + 1, uniform(0.3f, 7.0f));
    if (one_in(3)) {
      for (float& z : logits) z = std::round(z);  // gives many ties, including 0 and -0
    }
    if (one_in(4)) {
      const bool most = one_in(2);
      for (float& z : logits) z = one_in(3) != most ? -kInfinity : z;
    }
    if (one_in(8)) {
      for (float& z : logits) z *= 4e37f;  // the temperature makes them overflow
    }
    if (one_in(10)) std::fill(logits.begin(), logits.end(), 1.25f);
    if (one_in(12)) logits[rng() % vocab] = std::numeric_limits<float>::quiet_NaN();
    if (one_in(12)) logits[rng() % vocab] = kInfinity;
    if (one_in(16)) std::fill(logits.begin(), logits.end(), -kInfinity);
    row.temperature = one_in(5) ? 0.0f : uniform(0.05f, 2.5f);
    if (one_in(2)) {
      row.top_k = static_cast<std::int32_t>(one_in(3) ? 1 + rng() % (vocab + 5) : 1 + rng() % 60);
    }
    if (one_in(2)) row.top_p = uniform(0.01f, 1.0f);
    if (one_in(3)) row.min_p = uniform(0.0f, 0.5f);
    if (one_in(3)) row.top_n_sigma = uniform(0.01f, 4.0f);
    if (one_in(3)) row.xtc_probability = uniform(0.3f, 1.0f);
    row.xtc_threshold = one_in(6) ? 0.0f : std::pow(10.0f, uniform(-4.0f, -0.2f));
    if (one_in(3)) row.repetition_penalty = uniform(0.5f, 2.0f);
    if (one_in(3)) row.presence_penalty = uniform(-2.0f, 2.0f);
    if (one_in(3)) row.frequency_penalty = uniform(-2.0f, 2.0f);
    std::map<std::int32_t, std::int32_t> seen;
    for (int i = 0; i < 30; ++i) seen[token()] = static_cast<std::int32_t>(rng() % 6);
    for (const auto& [id, count] : seen) history.push_back({id, count});
    std::shuffle(history.begin(), history.end(), rng);
    for (int i = 0; i < 8; ++i) bias.push_back({token(), uniform(-10.0f, 10.0f)});
    bias.push_back({bias[0].token, 0.1f});  // the same token twice, not adjacent
    for (int i = 0; i < 4; ++i) banned.push_back(token());
    row.history = history.data();
    row.history_size = static_cast<std::uint32_t>(history.size());
    row.bias = bias.data();
    row.bias_size = one_in(2) ? static_cast<std::uint32_t>(bias.size()) : 0;
    row.banned = banned.data();
    row.banned_size = one_in(2) ? static_cast<std::uint32_t>(banned.size()) : 0;
    row.seed = std::uint64_t{rng()} << 32 | rng();
    row.position = static_cast<std::uint32_t>(rng());
    row.choice = rng() % 4;
    row.num_logprobs = static_cast<std::int32_t>(rng() % (kMaxLogprobs + 2)) - 1;
    if (one_in(4)) row.num_logprobs = kMaxLogprobs;
    row.text_vocab = vocab;
    MakeMask(seed + 2, vocab);
    row.wants_processed_logprob = seed % 2 == 0;
  }

  // Allows half, few or most of the tokens, or has no mask.
  void MakeMask(std::uint32_t seed, std::uint32_t vocab) {
    std::mt19937 rng(seed);
    allowed.resize(MaskWords(vocab));
    const auto kind = rng() % 6;
    for (std::uint32_t& word : allowed) {
      word = static_cast<std::uint32_t>(rng());
      if (kind == 1 && rng() % 8 != 0) word = 0;
      if (kind == 2 && rng() % 8 != 0) word = ~0u;
    }
    if (kind < 3) row.allowed = allowed.data();
  }

  std::vector<float> logits;
  std::vector<TokenCount> history;
  std::vector<LogitBias> bias;
  std::vector<std::int32_t> banned;
  std::vector<std::uint32_t> allowed;
  SamplingRow row;
};

// A vocabulary and its sampler.
class SamplerSetup {
 public:
  SamplerSetup(std::uint64_t emulator_seed, std::uint32_t vocab, std::uint32_t text_vocab,
               bool with_table)
      : cuda_(emulator_seed), vocab_(vocab), text_vocab_(text_vocab) {
    if (with_table) {
      std::mt19937 rng(vocab);
      has_text_.resize(vocab);
      for (std::uint8_t& text : has_text_) text = rng() % 9 != 0;
    }
    limits_ = {.max_samples = 64,
               .max_prompt_logprobs = 40,
               .vocab = vocab,
               .max_logprobs = kMaxLogprobs,
               .max_history = 64 * 30,
               .max_bias = 64 * 9,
               .max_banned = 64 * 4,
               .max_masks = 9};
    auto made = DeviceSampler::Create(*cuda_, limits_, has_text_, text_vocab);
    EXPECT_TRUE(made.ok()) << made.status();
    sampler_ = *std::move(made);
  }

  const EmulatedBackend& cuda() const { return cuda_; }
  DeviceSampler& sampler() const { return *sampler_; }
  std::uint32_t vocab() const { return vocab_; }
  const DeviceSamplerLimits& limits() const { return limits_; }
  SamplingRow Adapt(SamplingRow row) const {
    row.text_vocab = text_vocab_;
    row.has_text = has_text_.empty() ? nullptr : has_text_.data();
    return row;
  }

  // Returns rows with consecutive logits in device memory.
  std::vector<SamplingRow> OnDevice(const std::vector<HostRow>& rows,
                                    DeviceArray<float>& logits) const {
    std::vector<float> all;
    std::vector<SamplingRow> moved;
    for (const HostRow& row : rows) {
      moved.push_back(Adapt(row.row));
      moved.back().logits = logits.data() + all.size();
      all.insert(all.end(), row.logits.begin(), row.logits.end());
    }
    logits.Put(all);
    return moved;
  }

 private:
  EmulatedBackend cuda_;
  std::uint32_t vocab_;
  std::uint32_t text_vocab_;
  std::vector<std::uint8_t> has_text_;
  DeviceSamplerLimits limits_;
  std::unique_ptr<DeviceSampler> sampler_;
};

// The CPU's samples of rows whose logits are in host memory.
struct Expected {
  Expected(const SamplerSetup& setup, const std::vector<HostRow>& hosts)
      : tops(hosts.size() * kMaxLogprobs) {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      rows.push_back(setup.Adapt(hosts[i].row));
      rows.back().logits = hosts[i].logits.data();
      sampled.emplace_back();
      sampled.back().top = tops.data() + i * kMaxLogprobs;
    }
    const TestBackend cpu(1);
    EXPECT_TRUE(Sample(*cpu, {rows, sampled, setup.vocab()}).ok());
  }
  std::vector<TopLogprob> tops;
  std::vector<SamplingRow> rows;
  std::vector<SampledRow> sampled;
};

template <typename Result>
void ExpectSameLogprobs(const Result& got, const Result& want) {
  EXPECT_EQ(got.non_finite, want.non_finite);
  EXPECT_EQ(got.logprob, want.logprob);
  EXPECT_EQ(got.rank, want.rank);
  ASSERT_EQ(got.num_top, want.num_top);
  for (std::uint32_t i = 0; i < got.num_top; ++i) {
    EXPECT_EQ(got.top[i].token, want.top[i].token) << i;
    EXPECT_EQ(got.top[i].logprob, want.top[i].logprob) << i;
  }
}

void ExpectSameSample(const SampledRow& got, const SampledRow& want) {
  EXPECT_EQ(got.token, want.token);
  EXPECT_EQ(got.no_survivor, want.no_survivor);
  EXPECT_EQ(got.processed_logprob, want.processed_logprob);
  ExpectSameLogprobs(got, want);
}

struct Case {
  std::uint64_t emulator_seed;
  std::uint32_t vocab;
  std::uint32_t text_vocab;
  bool with_table;
  int num_rows;
};

class DeviceSamplerTest : public testing::TestWithParam<Case> {
  void SetUp() override {
    if (!CpuHasFma()) GTEST_SKIP() << "the CPU's exp has no fused multiply-add";
  }
};

INSTANTIATE_TEST_SUITE_P(Vocabularies, DeviceSamplerTest,
                         testing::Values(Case{1, 1, 1, false, 8}, Case{3, 3, 3, false, 8},
                                         Case{1, 37, 37, true, 64}, Case{2, 1023, 1023, true, 16},
                                         Case{1, 1000, 1000, false, 64},
                                         Case{2, 1000, 1000, false, 64},
                                         Case{2, 1003, 900, true, 64}, Case{3, 1003, 900, true, 64},
                                         Case{1, 5000, 5000, true, 64},
                                         Case{2, 9001, 9001, false, 40}));

TEST_P(DeviceSamplerTest, SamplesLikeTheCpu) {
  const Case& of = GetParam();
  const SamplerSetup setup(of.emulator_seed, of.vocab, of.text_vocab, of.with_table);
  std::vector<HostRow> hosts;
  for (int i = 0; i < of.num_rows; ++i) {
    hosts.emplace_back(static_cast<std::uint32_t>(1000 * of.vocab + 7 * i + of.emulator_seed),
                       of.vocab);
  }
  const Expected expected(setup, hosts);
  DeviceArray<float> logits(setup.cuda(), hosts.size() * of.vocab);
  const std::vector<SamplingRow> rows = setup.OnDevice(hosts, logits);
  DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
  // Runs two calls on one slot.
  const std::size_t first = rows.size() / 8;
  const std::span<const SamplingRow> all(rows);
  ASSERT_TRUE(setup.sampler().Sample(all.first(first), tokens.data(), 1).ok());
  ASSERT_TRUE(setup.sampler().Sample(all.subspan(first), tokens.data() + first, 1).ok());
  const std::vector<std::int32_t> ids = tokens.Get();
  const std::span<const SampledRow> sampled = setup.sampler().samples(1);
  ASSERT_EQ(sampled.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("row ", i));
    EXPECT_EQ(ids[i], expected.sampled[i].token);
    ExpectSameSample(sampled[i], expected.sampled[i]);
  }
  EXPECT_EQ(setup.sampler().samples(0).size(), 0u);
}

TEST_P(DeviceSamplerTest, ComputesLogprobsLikeTheCpu) {
  const Case& of = GetParam();
  const SamplerSetup setup(of.emulator_seed, of.vocab, of.text_vocab, of.with_table);
  std::vector<HostRow> hosts;
  for (std::uint32_t i = 0; i < 12; ++i) hosts.emplace_back(500 + i, of.vocab);
  DeviceArray<float> logits(setup.cuda(), hosts.size() * of.vocab);
  const std::vector<SamplingRow> rows = setup.OnDevice(hosts, logits);
  std::vector<TokenLogprob> logprob_tokens;
  std::vector<TokenLogprob> expected;
  std::vector<TopLogprob> tops(hosts.size() * kMaxLogprobs);
  for (std::uint32_t i = 0; i < hosts.size(); ++i) {
    const auto token = static_cast<std::int32_t>(i * 97 % of.vocab);
    logprob_tokens.push_back({token, static_cast<std::int32_t>(i * 2), rows[i].logits, nullptr});
    expected.push_back({token, static_cast<std::int32_t>(i * 2), hosts[i].logits.data(),
                        tops.data() + i * kMaxLogprobs});
  }
  const TestBackend cpu(1);
  ASSERT_TRUE(
      ComputeLogprobs(*cpu, {expected, of.vocab, rows[0].text_vocab, rows[0].has_text}).ok());
  ASSERT_TRUE(setup.sampler().ComputeLogprobs(logprob_tokens, 0).ok());
  setup.cuda().Wait();
  const std::span<const TokenLogprob> got = setup.sampler().logprobs(0);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("token ", i));
    EXPECT_EQ(got[i].token, expected[i].token);
    ExpectSameLogprobs(got[i], expected[i]);
  }
}

// The previous step left these tokens in device memory, among them -1.
TEST(DeviceSamplerUseTest, CountsTheSampleInFlight) {
  constexpr std::uint32_t kVocab = 90;
  const SamplerSetup setup(2, kVocab, kVocab, true);
  std::vector<HostRow> hosts;
  std::vector<std::int32_t> in_flight;
  for (std::uint32_t i = 0; i < 64; ++i) {
    HostRow& host = hosts.emplace_back(3 * i, kVocab);
    host.row.temperature = 0;
    host.row.repetition_penalty = 3.0f;
    host.row.presence_penalty = 2.0f;
    host.row.num_logprobs = -1;
    // The penalty changes which token is best.
    const auto best = std::max_element(host.logits.begin(), host.logits.end());
    std::int32_t token = static_cast<std::int32_t>(best - host.logits.begin());
    if (i % 3 == 1) token = host.history[i % host.history.size()].token;
    in_flight.push_back(i % 8 == 7 ? -1 : token);
  }
  std::vector<SampledRow> without;
  for (const SampledRow& row : Expected(setup, hosts).sampled) without.push_back(row);
  for (std::size_t i = 0; i < hosts.size(); ++i) hosts[i].row.sample_in_flight = &in_flight[i];
  const Expected expected(setup, hosts);
  DeviceArray<std::int32_t> before(setup.cuda(), in_flight.size());
  before.Put(in_flight);
  DeviceArray<float> logits(setup.cuda(), hosts.size() * kVocab);
  std::vector<SamplingRow> rows = setup.OnDevice(hosts, logits);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].sample_in_flight = before.data() + i;
  DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
  ASSERT_TRUE(setup.sampler().Sample(rows, tokens.data(), 0).ok());
  const std::vector<std::int32_t> got = tokens.Get();
  int changed = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(got[i], expected.sampled[i].token) << i;
    changed += got[i] != without[i].token;
  }
  EXPECT_GT(changed, 5) << "the sample in flight changes nothing";
}

TEST(DeviceSamplerUseTest, SlotsAreIndependentAndReusable) {
  const SamplerSetup setup(3, 200, 200, false);
  std::vector<HostRow> hosts;
  for (std::uint32_t i = 0; i < 9; ++i) hosts.emplace_back(90 + i, 200);
  const Expected expected(setup, hosts);
  DeviceArray<float> logits(setup.cuda(), hosts.size() * 200);
  const std::vector<SamplingRow> rows = setup.OnDevice(hosts, logits);
  DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    const int slot = step % 2;
    setup.sampler().Reset(slot);
    // The next step is enqueued before this one's results are read.
    ASSERT_TRUE(setup.sampler().Sample(rows, tokens.data(), slot).ok());
    setup.cuda().Wait();
    setup.sampler().Reset(1 - slot);
    ASSERT_TRUE(setup.sampler().Sample(std::span(rows).first(2), tokens.data(), 1 - slot).ok());
    const std::span<const SampledRow> sampled = setup.sampler().samples(slot);
    ASSERT_EQ(sampled.size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) ExpectSameSample(sampled[i], expected.sampled[i]);
    setup.cuda().Wait();
  }
}

TEST(DeviceSamplerUseTest, HandlesLogitsAtTheEndsOfTheRange) {
  constexpr std::uint32_t kVocab = 70;
  const SamplerSetup setup(1, kVocab, kVocab, false);
  std::vector<HostRow> hosts;
  for (const float sign : {-1.0f, 1.0f}) {
    for (const std::int32_t top_k : {0, 3}) {
      hosts.emplace_back(77u, kVocab);
      HostRow& host = hosts.back();
      host.row = {};
      host.row.temperature = 0.05f;
      host.row.top_k = top_k;
      host.row.seed = 5;
      host.row.num_logprobs = 2;
      for (std::uint32_t i = 0; i < kVocab; ++i) {
        host.logits[i] = sign * (3e38f + 1e35f * static_cast<float>(i));
      }
    }
  }
  const Expected expected(setup, hosts);
  DeviceArray<float> logits(setup.cuda(), hosts.size() * kVocab);
  const std::vector<SamplingRow> rows = setup.OnDevice(hosts, logits);
  DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
  ASSERT_TRUE(setup.sampler().Sample(rows, tokens.data(), 0).ok());
  setup.cuda().Wait();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_GE(expected.sampled[i].token, 0);
    ExpectSameSample(setup.sampler().samples(0)[i], expected.sampled[i]);
  }
}

// A single row is read by 40 blocks and one of 16 rows by 8, and each equals the CPU's. The
// vocabulary is no multiple of 16 bytes, of the blocks or of a thread's reads, so most rows are
// unaligned.
TEST(DeviceSamplerUseTest, BitsDoNotDependOnTheBlocksOfARow) {
  if (!CpuHasFma()) GTEST_SKIP() << "the CPU's exp has no fused multiply-add";
  constexpr std::uint32_t kVocab = 40003;
  const SamplerSetup setup(2, kVocab, kVocab, true);
  std::vector<HostRow> hosts;
  for (std::uint32_t i = 0; i < 16; ++i) hosts.emplace_back(700 + i, kVocab);
  hosts[1].row.temperature = 0;
  hosts[2].row.temperature = 0.7f;
  hosts[2].row.top_k = 0;
  hosts[2].row.top_p = 0.99f;
  // The moments of a part differ from those of the row.
  hosts[3].logits = RandomFloats(kVocab, 5, 2.0f);
  std::fill(hosts[3].logits.begin() + kVocab / 3, hosts[3].logits.end(), 0.0f);
  hosts[3].row = {.top_n_sigma = 2.5f, .wants_processed_logprob = true};
  const Expected expected(setup, hosts);
  DeviceArray<float> logits(setup.cuda(), hosts.size() * kVocab);
  const std::vector<SamplingRow> rows = setup.OnDevice(hosts, logits);
  DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
  ASSERT_TRUE(setup.sampler().Sample(rows, tokens.data(), 0).ok());
  for (std::size_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(setup.sampler().Sample({&rows[i], 1}, tokens.data(), 1).ok());
  }
  setup.cuda().Wait();
  int sampled = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("row ", i));
    sampled += expected.sampled[i].token >= 0;
    ExpectSameSample(setup.sampler().samples(0)[i], expected.sampled[i]);
    if (i < 5) ExpectSameSample(setup.sampler().samples(1)[i], expected.sampled[i]);
  }
  EXPECT_GT(sampled, 8);
}

// Equal logits are adjacent within one thread's reads, and in other threads and blocks.
TEST(DeviceSamplerUseTest, FirstOfEqualLogitsWins) {
  constexpr std::uint32_t kVocab = 30000;
  const SamplerSetup setup(1, kVocab, kVocab, false);
  std::vector<HostRow> hosts;
  const std::vector<std::int32_t> firsts = {0, 4001, 4002, 4003, 9000, 29999};
  for (const std::int32_t first : firsts) {
    HostRow& host = hosts.emplace_back(1u, kVocab);
    host.logits.assign(kVocab, -1.0f);
    host.row = {.temperature = 0};
    for (const std::int32_t beyond : {0, 1, 2, 5, 1024, 1025, 4096, 12000}) {
      const auto id = static_cast<std::uint32_t>(first + beyond);
      if (id < kVocab) host.logits[id] = beyond % 2 == 0 ? 0.0f : -0.0f;
    }
  }
  DeviceArray<float> logits(setup.cuda(), hosts.size() * kVocab);
  const std::vector<SamplingRow> rows = setup.OnDevice(hosts, logits);
  DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
  ASSERT_TRUE(setup.sampler().Sample(rows, tokens.data(), 0).ok());
  EXPECT_EQ(tokens.Get(), firsts);
}

// A single row needs no extra launch: the kernel that finds its token writes it.
TEST(DeviceSamplerUseTest, LaunchCountsOfARowAreFixed) {
  constexpr std::uint32_t kVocab = 3000;
  const SamplerSetup setup(1, kVocab, kVocab, false);
  HostRow host(5, kVocab);
  host.logits = RandomFloats(kVocab, 5);
  host.row = {.temperature = 0};
  DeviceArray<float> logits(setup.cuda(), kVocab);
  const SamplingRow greedy = setup.OnDevice({host}, logits)[0];
  DeviceArray<std::int32_t> token(setup.cuda(), 1);
  const auto launches = [&](auto change) {
    SamplingRow row = greedy;
    change(row);
    const std::uint64_t before = cuda_emulator::LaunchCount();
    EXPECT_TRUE(setup.sampler().Sample({&row, 1}, token.data(), 0).ok());
    setup.cuda().Wait();
    return cuda_emulator::LaunchCount() - before;
  };
  const TokenCount seen{1, 1};
  const std::uint64_t counts[] = {launches([](SamplingRow&) {}),
                                  launches([&](SamplingRow& row) {
                                    row.presence_penalty = 1.0f;
                                    row.history = &seen;
                                    row.history_size = 1;
                                  }),
                                  launches([](SamplingRow& row) { row.temperature = 1.0f; }),
                                  launches([](SamplingRow& row) {
                                    row.temperature = 1.0f;
                                    row.top_k = 5;
                                    row.top_p = 0.9f;
                                  }),
                                  launches([](SamplingRow& row) { row.num_logprobs = 0; }),
                                  launches([](SamplingRow& row) { row.num_logprobs = 2; })};
  if (cuda_emulator::IsEmulated()) {
    EXPECT_THAT(counts, testing::ElementsAre(1, 2, 2, 3, 3, 4));
  }
  const auto best = std::max_element(host.logits.begin(), host.logits.end());
  EXPECT_EQ(setup.sampler().samples(0)[0].token, best - host.logits.begin());
  EXPECT_EQ(setup.sampler().samples(0)[0].rank, 0);
  EXPECT_EQ(setup.sampler().samples(0)[5].rank, 1);
}

// Only rows that need scratch memory limit a group: 64 greedy rows are one group, 40 sampled rows
// between them are two. The samples equal those of the CPU.
TEST(DeviceSamplerUseTest, GreedyRowsTakeOneLaunch) {
  constexpr std::uint32_t kVocab = 1500;
  const SamplerSetup setup(1, kVocab, kVocab, false);
  const auto scans = [&](std::uint32_t sampled) {
    std::vector<HostRow> hosts;
    for (std::uint32_t i = 0; i < setup.limits().max_samples; ++i) {
      HostRow& host = hosts.emplace_back(i, kVocab);
      host.logits = RandomFloats(kVocab, i, 2.0f);
      host.row = {.temperature = i % 8 < sampled ? 1.0f : 0.0f, .top_k = 9, .seed = i};
    }
    const Expected expected(setup, hosts);
    DeviceArray<float> logits(setup.cuda(), hosts.size() * kVocab);
    const std::vector<SamplingRow> rows = setup.OnDevice(hosts, logits);
    DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
    setup.sampler().Reset(0);
    const std::uint64_t before = cuda_emulator::LaunchCount("sampler_scan");
    EXPECT_TRUE(setup.sampler().Sample(rows, tokens.data(), 0).ok());
    setup.cuda().Wait();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ExpectSameSample(setup.sampler().samples(0)[i], expected.sampled[i]);
    }
    return cuda_emulator::LaunchCount("sampler_scan") - before;
  };
  const std::uint64_t counts[] = {scans(0), scans(4), scans(5)};
  if (cuda_emulator::IsEmulated()) {
    EXPECT_THAT(counts, testing::ElementsAre(1, 1, 2));
  }
}

// The lists do not fit at once. The samples still equal the CPU's, and results of earlier calls are
// kept.
TEST(DeviceSamplerUseTest, SamplesOversizedListsInPieces) {
  constexpr std::uint32_t kVocab = 300;
  const SamplerSetup setup(1, kVocab, kVocab, false);
  std::vector<TokenCount> history;
  std::vector<LogitBias> bias;
  for (std::int32_t i = 0; i < 250; ++i) history.push_back({i, i % 3});
  for (std::int32_t i = 0; i < 100; ++i) bias.push_back({i * 2, 0.25f * static_cast<float>(i % 7)});
  const std::vector<std::int32_t> banned(100, 17);
  std::vector<HostRow> hosts;
  for (std::uint32_t i = 0; i < 40; ++i) {
    HostRow& host = hosts.emplace_back(i, kVocab);
    host.logits = RandomFloats(kVocab, i, 2.0f);
    host.row = {.seed = i, .num_logprobs = 2};
    host.row.presence_penalty = 0.5f;
    host.row.frequency_penalty = 0.25f;
    host.row.history = history.data();
    host.row.history_size = static_cast<std::uint32_t>(history.size());
    host.row.bias = bias.data();
    host.row.bias_size = static_cast<std::uint32_t>(bias.size());
    host.row.banned = banned.data();
    host.row.banned_size = static_cast<std::uint32_t>(banned.size());
  }
  ASSERT_GT(hosts.size() * history.size(), 4 * setup.limits().max_history);
  DeviceArray<float> logits(setup.cuda(), hosts.size() * kVocab);
  const auto rows = setup.OnDevice(hosts, logits);
  DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
  const std::span<const SamplingRow> all(rows);
  ASSERT_TRUE(setup.sampler().Sample(all.first(3), tokens.data(), 0).ok());
  ASSERT_TRUE(setup.sampler().Sample(all.subspan(3), tokens.data() + 3, 0).ok());
  const TestBackend cpu(1);
  std::vector<SamplingRow> expected_rows;
  std::vector<TopLogprob> tops(2 * hosts.size());
  std::vector<SampledRow> expected(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    expected_rows.push_back(setup.Adapt(hosts[i].row));
    expected_rows.back().logits = hosts[i].logits.data();
    expected[i].top = &tops[2 * i];
  }
  ASSERT_TRUE(Sample(*cpu, {expected_rows, expected, kVocab}).ok());
  const std::vector<std::int32_t> got = tokens.Get();
  const std::span<const SampledRow> samples = setup.sampler().samples(0);
  ASSERT_EQ(samples.size(), hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    EXPECT_EQ(got[i], expected[i].token) << i;
    EXPECT_EQ(samples[i].token, expected[i].token) << i;
    EXPECT_FLOAT_EQ(samples[i].logprob, expected[i].logprob) << i;
    EXPECT_EQ(samples[i].top[1].token, expected[i].top[1].token) << i;
  }
}

// The mask is read together with the logits, so a greedy row with one still takes one kernel. A row
// without a mask needs no mask memory.
TEST(DeviceSamplerUseTest, AppliesMasksWithoutExtraLaunches) {
  constexpr std::uint32_t kVocab = 70;
  const SamplerSetup setup(1, kVocab, kVocab, false);
  HostRow host(3, kVocab);
  host.logits = RandomFloats(kVocab, 3, 2.0f);
  host.logits[60] = 50.0f;
  host.row = {.temperature = 0};
  DeviceArray<float> logits(setup.cuda(), kVocab);
  std::vector<SamplingRow> rows = setup.OnDevice({host}, logits);
  rows.resize(5, rows[0]);
  const std::vector<std::uint32_t> only = {0, 1u << 9, 0}, none(3, 0),
                                   all_but = {~0u, ~(1u << 28), ~0u};
  rows[1].allowed = only.data();
  rows[2].allowed = none.data();
  rows[3].allowed = all_but.data();
  DeviceArray<std::int32_t> tokens(setup.cuda(), rows.size());
  ASSERT_TRUE(setup.sampler().Sample(rows, tokens.data(), 0).ok());
  const std::vector<std::int32_t> got = tokens.Get();
  const auto second = [&] {
    std::vector<float> left = host.logits;
    left[60] = -kInfinity;
    return static_cast<std::int32_t>(std::max_element(left.begin(), left.end()) - left.begin());
  }();
  EXPECT_EQ(got, (std::vector<std::int32_t>{60, 41, -1, second, 60}));
  EXPECT_TRUE(setup.sampler().samples(0)[2].no_survivor);
}

TEST(DeviceSamplerUseTest, RejectsRowsBeyondItsLimits) {
  const SamplerSetup setup(1, 50, 50, false);
  HostRow host(5, 50);
  host.logits.assign(50, 1.0f);
  host.row = {};
  DeviceArray<float> logits(setup.cuda(), 50);
  const auto rows = setup.OnDevice({host}, logits);
  DeviceArray<std::int32_t> tokens(setup.cuda(), 65);
  const auto refused = [&](auto change) {
    SamplingRow row = rows[0];
    change(row);
    return absl::IsInvalidArgument(setup.sampler().Sample({&row, 1}, tokens.data(), 0));
  };
  const std::vector<TokenCount> history(64 * 30 + 1, {1, 1});
  const std::vector<LogitBias> bias(64 * 9 + 1, {1, 1.0f});
  const std::vector<std::int32_t> banned(64 * 4 + 1, 1);
  const std::vector<std::uint8_t> other_table(50, 1);
  EXPECT_TRUE(refused([&](SamplingRow& row) {
    row.history = history.data();
    row.history_size = static_cast<std::uint32_t>(history.size());
    row.presence_penalty = 1;
  }));
  EXPECT_TRUE(refused([&](SamplingRow& row) {
    row.bias = bias.data();
    row.bias_size = static_cast<std::uint32_t>(bias.size());
  }));
  EXPECT_TRUE(refused([&](SamplingRow& row) {
    row.banned = banned.data();
    row.banned_size = static_cast<std::uint32_t>(banned.size());
  }));
  EXPECT_TRUE(refused([&](SamplingRow& row) { row.num_logprobs = kMaxLogprobs + 1; }));
  EXPECT_TRUE(refused([&](SamplingRow& row) { row.text_vocab = 49; }));
  EXPECT_TRUE(refused([&](SamplingRow& row) { row.has_text = other_table.data(); }));
  EXPECT_TRUE(refused([&](SamplingRow& row) { row.top_p = 0; }));
  const std::vector<SamplingRow> many(65, rows[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(setup.sampler().Sample(many, tokens.data(), 0)));
  const std::vector<TokenLogprob> logprobs(41, {.token = 1, .logits = logits.data()});
  EXPECT_TRUE(absl::IsInvalidArgument(setup.sampler().ComputeLogprobs(logprobs, 0)));
  const TokenLogprob outside{.token = 50, .logits = logits.data()};
  EXPECT_TRUE(absl::IsInvalidArgument(setup.sampler().ComputeLogprobs({&outside, 1}, 0)));
  // No state of the rejected calls was kept.
  EXPECT_TRUE(setup.sampler().samples(0).empty());
  const TestBackend cpu(1);
  EXPECT_TRUE(
      absl::IsInvalidArgument(DeviceSampler::Create(*cpu, setup.limits(), {}, 50).status()));
  EXPECT_GT(DeviceSampler::BytesFor(setup.limits()), 32 * 50 * 12);
}

// Compares exact_math.h with f64 and with the CPU's exp.
TEST(ExactMathTest, ExpEqualsTheCpuBitwise) {
  std::vector<float> x = RandomFloats(20000, 1, 30.0f);
  for (const float special : {0.0f, -0.0f, -86.0f, -86.00001f, -200.0f, -kInfinity, 80.0f, 89.0f}) {
    x.push_back(special);
  }
  std::vector<float> w(x.size());
  const bool has_fma = CpuHasFma();
  internal::ExpMinus(x.data(), x.size(), 0.0f, w.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (has_fma) {
      ASSERT_EQ(ExactExp(x[i]), w[i]) << x[i];
    }
    if (x[i] < -86.0f || x[i] > 88.0f) continue;
    const double exact = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(ExactExp(x[i]), exact, 2.4e-7 * exact) << x[i];
  }
  EXPECT_TRUE(std::isnan(ExactExp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(ExactMathTest, VariateIsNegativeLogOfTheWord) {
  std::mt19937 rng(3);
  std::vector<std::uint32_t> words = {0, 1, 2, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  for (int i = 0; i < 100000; ++i) words.push_back(static_cast<std::uint32_t>(rng()));
  for (const std::uint32_t r : words) {
    const long double rest = (4294967295.5L - r) * 0x1p-32L;
    const auto exact = static_cast<double>(-std::log1p(-rest));
    EXPECT_NEAR(ExponentialVariate(r), exact, 6.0e-8 * exact) << r;
  }
}

}  // namespace
}  // namespace quire::kernels

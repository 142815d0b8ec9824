// Compares attention with bf16 activations bitwise with its reference, on every instruction set of
// this machine and in AMX tiles. If the CPU or the operating system rejects tile instructions, the
// same machine code runs on the tiles of software_tiles.h.

#include "kernels/attention/bf16_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/kernels/attention_sequences.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/software_tiles.h"

namespace quire::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Instruction sets whose vectors have a fused multiply-add. The others run the reference.
std::vector<std::string> VectorIsas() {
  std::vector<std::string> isas = AvailableIsas();
  std::erase_if(isas, [](const std::string& isa) { return isa != "avx512" && isa != "avx2"; });
  return isas;
}

// Returns the first output row that differs, or -1. NaNs are equal.
int FirstDifference(std::span<const float> a, std::span<const float> b, std::uint32_t columns) {
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool is_same =
        std::isnan(a[i]) ? std::isnan(b[i])
                         : std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i]);
    if (!is_same) return static_cast<int>(i / columns);
  }
  return -1;
}

// How a step is computed.
enum class Form { kReference, kVectors, kTiles };

// Runs a step over K and V, or with `is_latent` over K as both, as MLA does.
std::vector<float> Attend(const Backend& backend, TestPool& pool, const Sequences& s,
                          const std::vector<std::uint32_t>& cached,
                          const std::vector<std::uint32_t>& fresh, Form form,
                          bool is_latent = false) {
  return RunStepWith(backend, pool, s, cached, fresh, [&](AttentionParams params) {
    if (is_latent) params.values = params.keys;
    if (form == Form::kReference) {
      return internal::AttentionBf16Cpu(params, 0, params.row_offsets[params.batch_size]);
    }
    if (form == Form::kTiles) {
      return internal::PagedAttentionBf16(backend, params, internal::kBf16MultiplyAmx);
    }
    EXPECT_TRUE(PagedAttention(backend, params).ok());
  });
}

struct Case {
  AttentionCase shape;
  std::vector<std::uint32_t> lengths;
  std::uint32_t window = 0;
  float softcap = 0;
  bool has_sinks = false;
  bool is_latent = false;
  std::uint32_t chunk = 0;
};

Sequences SequencesOf(const Case& c, std::uint32_t seed) {
  Sequences s(c.shape, c.lengths, seed);
  s.mask = {c.window, c.softcap, {}, c.chunk};
  if (c.has_sinks) {
    s.mask.sinks = RandomFloats(c.shape.heads, 99, 2.0f);
    s.mask.sinks[0] = 40.0f;  // above all scores
    s.mask.sinks[c.shape.heads / 2] = -60.0f;
  }
  return s;
}

constexpr DType kPages = DType::kBF16;
// Lengths around the borders of strips, blocks of tokens and pages.
const std::vector<std::uint32_t>& Borders() {
  static const auto& lengths =
      *new std::vector<std::uint32_t>{1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 130};
  return lengths;
}

// heads, KV heads, head size, page size, threads
const Case kCases[] = {
    {{kPages, 1, 1, 16, 16, 1}, Borders()},
    {{kPages, 4, 2, 64, 16, 2}, Borders()},
    {{kPages, 6, 2, 20, 32, 1}, Borders()},
    {{kPages, 3, 3, 48, 64, 3}, Borders()},
    {{kPages, 5, 1, 80, 16, 1}, Borders()},
    {{kPages, 16, 1, 32, 128, 1}, Borders()},
    {{kPages, 15, 1, 36, 16, 2}, {33, 70}},
    {{kPages, 8, 2, 128, 32, 1}, {1, 31, 66}},
    {{kPages, 7, 1, 33, 16, 1}, {1, 17, 66}},
    {{kPages, 2, 2, 256, 16, 2}, {17, 66}},
    {{kPages, 2, 1, 1, 16, 1}, {40}},
    {{kPages, 16, 1, 40, 16, 1}, {1, 40}, 0, 0, false, true},
    {{kPages, 17, 1, 576, 32, 2}, {5, 36}, 0, 0, false, true},
    {{kPages, 4, 2, 32, 16, 2}, Borders(), 1},
    {{kPages, 4, 2, 64, 16, 1}, Borders(), 7},
    {{kPages, 6, 2, 20, 64, 1}, Borders(), 40},
    {{kPages, 4, 1, 64, 16, 2}, Borders(), 0, 1.5f},
    {{kPages, 4, 2, 64, 32, 1}, Borders(), 0, 0, true},
    {{kPages, 4, 2, 48, 16, 1}, Borders(), 33, 30.0f, true},
    {{kPages, 4, 2, 32, 16, 2}, Borders(), 0, 0, false, false, 1},
    {{kPages, 4, 2, 64, 16, 1}, Borders(), 0, 0, false, false, 7},
    {{kPages, 6, 2, 20, 64, 1}, Borders(), 0, 3.0f, true, false, 32},
    // More than one span.
    {{kPages, 4, 2, 32, 16, 3}, {515, 1030}},
    {{kPages, 2, 2, 16, 64, 7}, {1100}, 530, 0, true},
    {{kPages, 3, 1, 16, 16, 1}, {1100}, 20, 2.0f, false},
    {{kPages, 2, 2, 16, 64, 7}, {1100}, 0, 0, true, false, 530},
    {{kPages, 3, 1, 16, 16, 1}, {1100}, 0, 0, false, false, 512},
};

class Bf16AttentionTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Bf16AttentionTest, testing::ValuesIn(kCases),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return absl::StrCat(
                               c.is_latent ? "latent_" : "", "h", c.shape.heads, "_kv",
                               c.shape.kv_heads, "_d", c.shape.head_size, "_p", c.shape.page_size,
                               "_n", c.lengths.back(), "_w", c.window, "_cap",
                               static_cast<int>(10 * c.softcap), c.has_sinks ? "_sinks" : "",
                               c.chunk == 0 ? "" : absl::StrCat("_c", c.chunk));
                         });

TEST_P(Bf16AttentionTest, EqualsTheReferenceBitwise) {
  const Case& c = GetParam();
  const TestBackend backend(c.shape.threads, CpuActivations::kBF16);
  const Sequences s = SequencesOf(c, 1);
  const std::vector<std::uint32_t> none(c.lengths.size(), 0);
  TestPool reference_pool = MakePool(s, 3);
  const auto expected =
      Attend(*backend, reference_pool, s, none, s.lengths, Form::kReference, c.is_latent);
  // The last token of every sequence, as in decode.
  std::vector<std::uint32_t> cached;
  for (const std::uint32_t length : s.lengths) cached.push_back(length - 1);
  const std::vector<std::uint32_t> one(c.lengths.size(), 1);
  const auto check = [&](const std::string& name, Form form) {
    TestPool pool = MakePool(s, 4);
    ASSERT_EQ(FirstDifference(Attend(*backend, pool, s, none, s.lengths, form, c.is_latent),
                              expected, s.q_columns()),
              -1)
        << name;
    const auto last = Attend(*backend, pool, s, cached, one, form, c.is_latent);
    for (std::uint32_t b = 0; b < s.lengths.size(); ++b) {
      const std::span<const float> want(expected.data() + s.token(b, cached[b]) * s.q_columns(),
                                        s.q_columns());
      ASSERT_EQ(
          FirstDifference({last.data() + b * s.q_columns(), s.q_columns()}, want, s.q_columns()),
          -1)
          << name << ", last token of sequence " << b;
    }
  };
  for (const std::string& isa : VectorIsas()) {
    const ScopedIsa scoped(isa);
    check(isa, Form::kVectors);
  }
  if (!ScopedTiles::CanRun()) return;
  const ScopedTiles tiles;
  check(tiles.is_hardware() ? "tiles" : "software tiles", Form::kTiles);
}

// The error that rounding q and the weights costs; ExactRow reads K and V as they are stored.
TEST_P(Bf16AttentionTest, HasTheErrorOfRoundedQueriesAndWeights) {
  const Case& c = GetParam();
  if (c.is_latent) GTEST_SKIP() << "ExactRow does not read K as values";
  const TestBackend backend(c.shape.threads, CpuActivations::kBF16);
  const Sequences s = SequencesOf(c, 2);
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.shape.head_size));
  std::vector<double> exact;
  for (std::uint32_t b = 0; b < s.lengths.size(); ++b) {
    for (std::uint32_t t = 0; t < s.lengths[b]; ++t) {
      const auto row = ExactRow(s, b, t, scale);
      exact.insert(exact.end(), row.begin(), row.end());
    }
  }
  TestPool pool = MakePool(s, 5);
  const std::vector<std::uint32_t> none(c.lengths.size(), 0);
  const auto got = Attend(*backend, pool, s, none, s.lengths, Form::kVectors);
  const double error = RelativeError(got, exact);
  EXPECT_LE(error, 4e-3);
  // A row that sees one token has no error.
  if (c.window != 1 && c.chunk != 1) {
    EXPECT_GE(error, 2e-4);
  }
}

TEST(Bf16AttentionClassTest, LevelsWithoutFusedMultiplyAddRunTheReference) {
  const Case c{{kPages, 4, 2, 20, 16, 2}, {40, 3}};
  const TestBackend backend(2, CpuActivations::kBF16);
  const Sequences s = SequencesOf(c, 6);
  TestPool pool = MakePool(s, 7);
  const auto expected = Attend(*backend, pool, s, {0, 0}, s.lengths, Form::kReference);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const auto got = Attend(*backend, pool, s, {0, 0}, s.lengths, Form::kVectors);
    EXPECT_EQ(FirstDifference(got, expected, s.q_columns()), -1) << isa;
  }
}

// Only bf16 activations over bf16 pages are rounded.
TEST(Bf16AttentionClassTest, OtherPagesAndOtherActivationsAreNotRounded) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16, DType::kI8, DType::kF8E4M3}) {
    const Sequences s({dtype, 4, 2, 32, 16, 1}, {70}, 8);
    std::vector<std::vector<float>> out;
    for (const CpuActivations activations :
         {CpuActivations::kInt8, CpuActivations::kF32, CpuActivations::kBF16}) {
      const TestBackend backend(1, activations);
      TestPool pool = MakePool(s, 9);
      out.push_back(RunStep(*backend, pool, s, {0}, {70}));
    }
    EXPECT_EQ(out[0], out[1]) << DTypeName(dtype);
    EXPECT_EQ(out[0] == out[2], dtype != DType::kBF16) << DTypeName(dtype);
  }
}

// Compares row (b, t) of the one-shot output with the same row computed in any other way.
TEST(Bf16AttentionClassTest, BitsDoNotDependOnChunksBatchPagesOrThreads) {
  const AttentionCase shape{kPages, 6, 2, 48, 16, 1};
  const std::vector<std::uint32_t> lengths = {700, 40, 129};
  for (const Case& c :
       {Case{shape, lengths}, Case{shape, lengths, 100, 0, true}, Case{shape, lengths, 530, 1.5f},
        Case{shape, lengths, 7}, Case{shape, lengths, 0, 0, true, false, 100},
        Case{shape, lengths, 0, 0, false, false, 512}}) {
    const Sequences s = SequencesOf(c, 10);
    const std::size_t columns = s.q_columns();
    TestPool first = MakePool(s, 11);
    const TestBackend single(1, CpuActivations::kBF16);
    const auto whole = Attend(*single, first, s, {0, 0, 0}, s.lengths, Form::kVectors);
    std::uint32_t seed = 12;
    for (const std::string& isa : VectorIsas()) {
      const ScopedIsa scoped(isa);
      for (const auto& [threads, chunk] :
           {std::pair{1, 16u}, {2, 100u}, {3, 1u}, {7, 513u}, {3, 37u}}) {
        const TestBackend backend(threads, CpuActivations::kBF16);
        TestPool pool = MakePool(s, ++seed);
        std::vector<std::uint32_t> done(3, 0);
        if (chunk == 1) {
          done[0] = 640;
          Attend(*backend, pool, s, {0, 0, 0}, done, Form::kVectors);
        }
        while (done != s.lengths) {
          std::vector<std::uint32_t> fresh;
          for (std::uint32_t b = 0; b < 3; ++b) {
            fresh.push_back(std::min(chunk + b, s.lengths[b] - done[b]));
          }
          const auto out = Attend(*backend, pool, s, done, fresh, Form::kVectors);
          std::size_t row = 0;
          for (std::uint32_t b = 0; b < 3; ++b) {
            for (std::uint32_t i = 0; i < fresh[b]; ++i, ++row) {
              ASSERT_EQ(std::memcmp(out.data() + row * columns,
                                    whole.data() + s.token(b, done[b] + i) * columns, columns * 4),
                        0)
                  << isa << " window " << c.window << " mask chunk " << c.chunk << " threads "
                  << threads << " chunk " << chunk << " sequence " << b << " position "
                  << done[b] + i;
            }
            done[b] += fresh[b];
          }
        }
      }
    }
  }
}

// Values that are not finite, subnormal or beyond bf16, in queries, keys and values.
TEST(Bf16AttentionSpecialTest, SpecialValuesEqualTheReference) {
  constexpr float kSpecials[] = {kNan,   kInfinity, -kInfinity,
                                 1e-40f, -0.0f,     3.4e38f,
                                 -1e30f, 0x1p-126f, 0x1p-126f * (1 - 0x1p-20f),
                                 1e30f};
  for (const Case& c :
       {Case{{kPages, 4, 2, 20, 16, 1}, {70}}, Case{{kPages, 3, 3, 32, 32, 1}, {70}},
        Case{{kPages, 4, 1, 32, 16, 1}, {70}, 9, 0, true},
        Case{{kPages, 4, 1, 32, 16, 1}, {70}, 0, 3.0f}}) {
    const TestBackend backend(1, CpuActivations::kBF16);
    for (const float special : kSpecials) {
      for (const int place : {0, 1, 2, 3}) {
        Sequences s = SequencesOf(c, 20);
        // Position 37 is neither at the border of a strip nor at that of a block.
        const std::size_t at = 37 * s.kv_columns() + 3;
        if (place == 0) s.q[37 * s.q_columns() + 5] = special;
        if (place == 1) s.k[at] = special;
        if (place == 2) s.v[at] = special;
        if (place == 3) {
          for (float& x : s.v) x *= 0x1p-126f;
          s.k[at] = special;
        }
        TestPool pool = MakePool(s, 21);
        const auto expected = Attend(*backend, pool, s, {0}, {70}, Form::kReference);
        const auto check = [&](const std::string& name, Form form) {
          TestPool clean = MakePool(s, 22);
          ASSERT_EQ(
              FirstDifference(Attend(*backend, clean, s, {0}, {70}, form), expected, s.q_columns()),
              -1)
              << name << ": " << special << " in place " << place << ", window " << c.window;
        };
        for (const std::string& isa : VectorIsas()) {
          const ScopedIsa scoped(isa);
          check(isa, Form::kVectors);
        }
        if (ScopedTiles::CanRun()) {
          const ScopedTiles tiles;
          check("tiles", Form::kTiles);
        }
      }
    }
  }
}

// Earlier rows are processed together with the token, and a weight of 0 times NaN would be NaN.
TEST(Bf16AttentionSpecialTest, NanAffectsTheRowsThatSeeItOnly) {
  const TestBackend backend(1, CpuActivations::kBF16);
  struct Place {
    std::uint32_t token;
    std::uint32_t length;
    std::uint32_t window;
  };
  // The last row that sees token 511 sees no other token of its span.
  for (const auto& [token, length, window] :
       {Place{37, 70, 0}, Place{37, 70, 10}, Place{511, 560, 10}}) {
    for (const bool is_key : {false, true}) {
      const Case c{{kPages, 4, 2, 32, 16, 1}, {length}, window};
      const Sequences clean = SequencesOf(c, 30);
      Sequences poisoned = clean;
      (is_key ? poisoned.k : poisoned.v)[token * clean.kv_columns() + 3] = kNan;
      TestPool pool = MakePool(clean, 31);
      const auto expected = Attend(*backend, pool, clean, {0}, {length}, Form::kVectors);
      const auto check = [&](const std::string& name, Form form) {
        TestPool other = MakePool(poisoned, 32);
        const auto got = Attend(*backend, other, poisoned, {0}, {length}, form);
        for (std::size_t row = 0; row < length; ++row) {
          const bool sees = row >= token && (window == 0 || row < token + window);
          // KV head 0 serves the first two heads. A NaN key affects all columns.
          const float* const at = got.data() + row * clean.q_columns();
          EXPECT_EQ(std::isnan(at[3]), sees) << name << ", row " << row;
          EXPECT_EQ(std::isnan(at[4]), sees && is_key) << name << ", row " << row;
          if (!sees) {
            EXPECT_EQ(std::memcmp(at, expected.data() + row * clean.q_columns(),
                                  clean.q_columns() * sizeof(float)),
                      0)
                << name << ", row " << row;
          }
        }
      };
      check("reference", Form::kReference);
      for (const std::string& isa : VectorIsas()) {
        const ScopedIsa scoped(isa);
        check(isa, Form::kVectors);
      }
      if (ScopedTiles::CanRun()) {
        const ScopedTiles tiles;
        check("tiles", Form::kTiles);
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels

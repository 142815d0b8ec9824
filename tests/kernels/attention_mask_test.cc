// Windows, chunks, soft caps and sinks of attention on the CPU. Results are compared with double
// precision and bitwise between all divisions of a step.

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/kernels/attention_sequences.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

// The sinks are near the scores, one is far above and one far below all of them.
std::vector<float> Sinks(std::uint32_t heads) {
  std::vector<float> sinks = RandomFloats(heads, 99, 2.0f);
  sinks[0] = 40.0f;
  sinks[heads / 2] = -60.0f;
  return sinks;
}

struct MaskCase {
  AttentionCase shape;
  std::uint32_t window;
  float softcap;
  bool sinks;
  std::uint32_t chunk = 0;
};

Sequences MaskedSequences(const MaskCase& c, std::vector<std::uint32_t> lengths,
                          std::uint32_t seed) {
  Sequences s(c.shape, std::move(lengths), seed);
  s.mask = {c.window, c.softcap, c.sinks ? Sinks(c.shape.heads) : std::vector<float>{}, c.chunk};
  return s;
}

// Appends rows [from, to) of sequence b.
void AppendExact(const Sequences& s, std::uint32_t b, std::uint32_t from, std::uint32_t to,
                 std::vector<double>* exact) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.shape.head_size));
  for (std::uint32_t t = from; t < to; ++t) {
    const auto row = ExactRow(s, b, t, scale);
    exact->insert(exact->end(), row.begin(), row.end());
  }
}

class AttentionMaskTest : public testing::TestWithParam<MaskCase> {};

TEST_P(AttentionMaskTest, EqualsReferenceAndDouble) {
  const MaskCase c = GetParam();
  const TestBackend backend(c.shape.threads);
  const Sequences s = MaskedSequences(c, {1, 15, 16, 17, 33, 150}, 1);
  std::vector<double> exact;
  for (std::uint32_t b = 0; b < s.lengths.size(); ++b) AppendExact(s, b, 0, s.lengths[b], &exact);
  const std::vector<std::uint32_t> none(s.lengths.size(), 0);
  TestPool pool = MakePool(s, 3);
  EXPECT_LE(RelativeError(RunStep(*backend, pool, s, none, s.lengths, false), exact), 2e-6);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    TestPool clean = MakePool(s, 4);
    EXPECT_LE(RelativeError(RunStep(*backend, clean, s, none, s.lengths), exact), 1e-6) << isa;
  }
}

constexpr AttentionCase kF32{DType::kF32, 4, 2, 64, 16, 2};
constexpr AttentionCase kBF16{DType::kBF16, 20, 1, 64, 16, 3};
constexpr AttentionCase kOdd{DType::kBF16, 6, 2, 20, 64, 2};
constexpr AttentionCase kI8{DType::kI8, 8, 1, 48, 32, 2};
constexpr AttentionCase kF8{DType::kF8E4M3, 3, 3, 36, 16, 1};
INSTANTIATE_TEST_SUITE_P(
    Masks, AttentionMaskTest,
    testing::Values(MaskCase{kF32, 1, 0, false}, MaskCase{kF32, 3, 0, false},
                    MaskCase{kBF16, 16, 0, false}, MaskCase{kBF16, 65, 0, false},
                    MaskCase{kOdd, 31, 0, false}, MaskCase{kI8, 40, 0, false},
                    MaskCase{kF8, 17, 0, false}, MaskCase{kF32, 0, 1.5f, false},
                    MaskCase{kBF16, 0, 50.0f, false}, MaskCase{kI8, 0, 0.5f, false},
                    MaskCase{kF8, 20, 1.0f, false}, MaskCase{kF32, 0, 0, true},
                    MaskCase{kOdd, 0, 0, true}, MaskCase{kI8, 128, 0, true},
                    MaskCase{kBF16, 8, 0, true}, MaskCase{kF32, 33, 2.0f, true},
                    MaskCase{kF32, 0, 0, false, 1}, MaskCase{kF32, 0, 0, false, 3},
                    MaskCase{kBF16, 0, 0, false, 16}, MaskCase{kOdd, 0, 0, false, 31},
                    MaskCase{kI8, 0, 0, true, 40}, MaskCase{kF8, 0, 1.0f, false, 20},
                    MaskCase{kBF16, 0, 0, false, 65}),
    [](const auto& info) {
      const MaskCase& c = info.param;
      return absl::StrCat(DTypeName(c.shape.dtype), "_d", c.shape.head_size, "_w", c.window, "_cap",
                          static_cast<int>(c.softcap * 10), c.sinks ? "_sinks" : "",
                          c.chunk == 0 ? "" : absl::StrCat("_c", c.chunk));
    });

class AttentionMaskTypeTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionMaskTypeTest, testing::Values(DType::kBF16, DType::kI8),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// The windows start in the first, a middle and the last span of their rows.
TEST_P(AttentionMaskTypeTest, WindowsAcrossSpansEqualDoublePrecision) {
  for (const std::uint32_t window : {20u, 600u, 1099u, 1200u}) {
    const MaskCase c{{GetParam(), 4, 2, 16, 16, 1}, window, 0, window == 600};
    const Sequences s = MaskedSequences(c, {1700, 1100}, 5);
    std::vector<double> exact;
    AppendExact(s, 0, 1690, 1700, &exact);
    AppendExact(s, 1, 1099, 1100, &exact);
    for (const int threads : {1, 7}) {
      const TestBackend backend(threads);
      TestPool pool = MakePool(s, 6);
      RunStep(*backend, pool, s, {0, 0}, {1690, 1099});
      const auto out = RunStep(*backend, pool, s, {1690, 1099}, {10, 1});
      EXPECT_LE(RelativeError(out, exact), 1e-6) << "window " << window << " threads " << threads;
    }
  }
}

// The chunks start in the first, a middle and the last span of their rows, and inside a step.
TEST_P(AttentionMaskTypeTest, ChunksAcrossSpansEqualDoublePrecision) {
  for (const std::uint32_t chunk : {20u, 512u, 600u, 1099u, 1695u}) {
    const MaskCase c{{GetParam(), 4, 2, 16, 16, 1}, 0, 0, chunk == 600, chunk};
    const Sequences s = MaskedSequences(c, {1700, 1100}, 5);
    std::vector<double> exact;
    AppendExact(s, 0, 1690, 1700, &exact);
    AppendExact(s, 1, 1099, 1100, &exact);
    for (const int threads : {1, 7}) {
      const TestBackend backend(threads);
      TestPool pool = MakePool(s, 6);
      RunStep(*backend, pool, s, {0, 0}, {1690, 1099});
      const auto out = RunStep(*backend, pool, s, {1690, 1099}, {10, 1});
      EXPECT_LE(RelativeError(out, exact), 1e-6) << "chunk " << chunk << " threads " << threads;
    }
  }
}

// The rows of all steps of `chunk` tokens must equal the rows of `whole` bitwise.
void ExpectSameBits(const Sequences& s, const std::vector<float>& whole, std::uint32_t first,
                    std::uint32_t chunk, int threads, std::uint32_t seed) {
  const TestBackend backend(threads);
  const std::size_t columns = s.q_columns();
  const auto count = static_cast<std::uint32_t>(s.lengths.size());
  TestPool pool = MakePool(s, seed);
  std::vector<std::uint32_t> done(count, 0);
  if (first > 0) {
    std::vector<std::uint32_t> fresh(count, 0);
    fresh[0] = first;
    RunStep(*backend, pool, s, done, fresh);
    done[0] = first;
  }
  while (done != s.lengths) {
    std::vector<std::uint32_t> fresh;
    for (std::uint32_t b = 0; b < count; ++b) {
      fresh.push_back(std::min(chunk + b, s.lengths[b] - done[b]));
    }
    const auto out = RunStep(*backend, pool, s, done, fresh);
    std::size_t row = 0;
    for (std::uint32_t b = 0; b < count; ++b) {
      for (std::uint32_t i = 0; i < fresh[b]; ++i, ++row) {
        ASSERT_EQ(std::memcmp(out.data() + row * columns,
                              whole.data() + s.token(b, done[b] + i) * columns, columns * 4),
                  0)
            << "threads " << threads << " chunk " << chunk << " sequence " << b << " position "
            << done[b] + i;
      }
      done[b] += fresh[b];
    }
  }
}

TEST_P(AttentionMaskTypeTest, BitsDoNotDependOnChunksBatchPagesOrThreads) {
  const AttentionCase shape{GetParam(), 6, 2, 48, 16, 1};
  const MaskCase cases[] = {{shape, 100, 0, true},        {shape, 530, 1.5f, false},
                            {shape, 7, 0, false},         {shape, 0, 0, true, 100},
                            {shape, 0, 1.5f, false, 530}, {shape, 0, 0, false, 512}};
  for (const MaskCase& c : cases) {
    const Sequences s = MaskedSequences(c, {700, 40, 129}, 7);
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const TestBackend backend(1);
      TestPool pool = MakePool(s, 8);
      const auto whole = RunStep(*backend, pool, s, {0, 0, 0}, s.lengths);
      std::uint32_t seed = 9;
      for (const int threads : {1, 7}) {
        for (const std::uint32_t chunk : {1u, 100u, 513u}) {
          SCOPED_TRACE(absl::StrCat(isa, " window ", c.window, " chunk ", c.chunk));
          // Single tokens take long, so they start at the end of the first span and cross into the
          // second.
          ExpectSameBits(s, whole, chunk == 1 ? 640 : 0, chunk, threads, ++seed);
        }
      }
    }
  }
}

// A long window or chunk equals none, and a sink of weight zero equals no sink.
TEST_P(AttentionMaskTypeTest, NeutralMasksChangeNoBit) {
  const TestBackend backend(3);
  Sequences s({GetParam(), 4, 2, 32, 16, 1}, {700, 65}, 60);
  TestPool pool = MakePool(s, 61);
  const auto plain = RunStep(*backend, pool, s, {0, 0}, s.lengths);
  for (const std::uint32_t window : {700u, 701u, 4096u, 0xffffffffu}) {
    s.mask = {.window = window, .softcap = 0, .sinks = {}};
    EXPECT_EQ(RunStep(*backend, pool, s, {0, 0}, s.lengths), plain) << window;
  }
  for (const std::uint32_t chunk : {700u, 4096u, 0xffffffffu}) {
    s.mask = {.window = 0, .softcap = 0, .sinks = {}, .chunk = chunk};
    EXPECT_EQ(RunStep(*backend, pool, s, {0, 0}, s.lengths), plain) << chunk;
  }
  s.mask = {.window = 0, .softcap = 0, .sinks = std::vector<float>(4, -1e30f)};
  EXPECT_EQ(RunStep(*backend, pool, s, {0, 0}, s.lengths), plain);
  s.mask = {.window = 699, .softcap = 0, .sinks = {}};
  const auto shorter = RunStep(*backend, pool, s, {0, 0}, s.lengths);
  const std::size_t last = std::size_t{699} * s.q_columns();
  EXPECT_EQ(std::memcmp(shorter.data(), plain.data(), last * 4), 0);
  EXPECT_NE(std::memcmp(shorter.data() + last, plain.data() + last, s.q_columns() * 4), 0);
}

// The last row that sees token 511 sees no other token of its span.
TEST(AttentionMaskedTest, NanOutsideTheWindowHasNoEffect) {
  for (const std::uint32_t token : {50u, 511u}) {
    const std::uint32_t length = token + 70;
    Sequences clean({DType::kF32, 2, 1, 16, 16, 1}, {length}, 30);
    clean.mask.window = 10;
    Sequences poisoned = clean;
    poisoned.v[token * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
    poisoned.k[token * 16] = std::numeric_limits<float>::quiet_NaN();
    const std::size_t columns = clean.q_columns();
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const TestBackend backend(1);
      TestPool a = MakePool(clean, 31);
      TestPool b = MakePool(clean, 31);
      const auto expected = RunStep(*backend, a, clean, {0}, {length});
      const auto out = RunStep(*backend, b, poisoned, {0}, {length});
      for (std::size_t row = 0; row < length; ++row) {
        if (row >= token && row < token + 10) {
          EXPECT_TRUE(std::isnan(out[row * columns + 3])) << isa << " row " << row;
        } else {
          EXPECT_EQ(std::memcmp(&out[row * columns], &expected[row * columns], columns * 4), 0)
              << isa << " row " << row;
        }
      }
    }
  }
}

// A pool of one sequence whose first pages are unreadable. A step that reads them crashes the test
// program.
class UnreadablePages {
 public:
  static constexpr std::uint32_t kPageSize = 16, kHeadSize = 64, kPages = 90;
  // A page of K and V takes two pages of the machine.
  static constexpr std::size_t kPageBytes = 2 * kPageSize * kHeadSize * sizeof(float);
  static_assert(kPageBytes % 4096 == 0);

  UnreadablePages() {
    void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                              /*fd=*/-1, /*offset=*/0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    for (std::uint32_t i = 0; i < kPages; ++i) table_[i] = i + 1;
    geometry_.num_blocks = kPages + 1;
    geometry_.num_layers = 1;
    geometry_.page_size = kPageSize;
    geometry_.num_heads = 1;
    geometry_.head_size = kHeadSize;
    geometry_.dtype = DType::kF32;
    const auto values = RandomFloats(kBytes / sizeof(float), 70);
    std::memcpy(memory_, values.data(), kBytes);
  }
  ~UnreadablePages() { munmap(memory_, kBytes); }

  // Makes the pages of the first `tokens` tokens unreadable. REQUIRES: a multiple of the page size.
  void CloseBefore(std::uint32_t tokens) {
    EXPECT_EQ(mprotect(memory_ + kPageBytes, tokens / kPageSize * kPageBytes, PROT_NONE), 0);
  }

  // Runs attention of `rows` rows whose K and V already are in the pages.
  std::vector<float> Run(const Backend& backend, std::uint32_t cached, std::uint32_t rows,
                         std::uint32_t window, std::uint32_t chunk = 0) {
    const std::uint32_t room = kPages * kPageSize;
    const cache::KvStepInputs inputs{table_, &cached, kStride, 1, room, room, room};
    const auto collection = MakeKvCollection(geometry_, memory_, inputs);
    EXPECT_TRUE(collection.ok()) << collection.status();
    const AnyKvView keys = KeyView(*collection, 0);
    const AnyKvView values = ValueView(*collection, 0);
    const auto q = RandomFloats(std::size_t{rows} * 4 * kHeadSize, 71);
    std::vector<float> out(q.size());
    const std::uint32_t offsets[] = {0, rows};
    const absl::Status status = PagedAttention(backend, {.keys = &keys,
                                                         .values = &values,
                                                         .q = q.data(),
                                                         .out = out.data(),
                                                         .row_offsets = offsets,
                                                         .q_stride = 4 * kHeadSize,
                                                         .out_stride = 4 * kHeadSize,
                                                         .batch_size = 1,
                                                         .num_heads = 4,
                                                         .scale = 0.125f,
                                                         .window = window,
                                                         .chunk = chunk});
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

 private:
  static constexpr std::size_t kBytes = (kPages + 1) * kPageBytes;
  static constexpr std::uint32_t kStride = (kPages + 7) / 8 * 8 + 16;
  std::byte* memory_ = nullptr;
  alignas(64) std::uint32_t table_[kStride] = {};
  cache::KvGeometry geometry_;
};

TEST(AttentionMaskedTest, DoesNotReadPagesBeforeTheWindow) {
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    for (const int threads : {1, 5}) {
      const TestBackend backend(threads);
      UnreadablePages pages;
      // Runs one decode token, then 100 prefill tokens. The first key of the first row is 1100 - 40
      // + 1.
      const auto one = pages.Run(*backend, 1100, 1, 40);
      const auto many = pages.Run(*backend, 1100, 100, 40);
      pages.CloseBefore(1061 / 16 * 16);
      EXPECT_EQ(pages.Run(*backend, 1100, 1, 40), one) << isa;
      EXPECT_EQ(pages.Run(*backend, 1100, 100, 40), many) << isa;
    }
  }
}

TEST(AttentionMaskedTest, DoesNotReadPagesBeforeTheChunk) {
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    for (const int threads : {1, 5}) {
      const TestBackend backend(threads);
      UnreadablePages pages;
      // The chunk of all rows begins at token 1060.
      const auto one = pages.Run(*backend, 1100, 1, 0, 1060);
      const auto many = pages.Run(*backend, 1100, 100, 0, 1060);
      pages.CloseBefore(1060 / 16 * 16);
      EXPECT_EQ(pages.Run(*backend, 1100, 1, 0, 1060), one) << isa;
      EXPECT_EQ(pages.Run(*backend, 1100, 100, 0, 1060), many) << isa;
    }
  }
}

TEST(AttentionMaskedTest, RejectsWrongMasks) {
  const TestBackend backend(1);
  TestPool pool({DType::kF32, 1, 1, 16, 16}, {0}, {1}, 34);
  const AnyKvView keys = pool.keys();
  const AnyKvView values = pool.values();
  std::vector<float> q(16), out(16);
  AttentionParams params{.keys = &keys,
                         .values = &values,
                         .q = q.data(),
                         .out = out.data(),
                         .row_offsets = pool.row_offsets(),
                         .q_stride = 16,
                         .out_stride = 16,
                         .batch_size = 1,
                         .num_heads = 1,
                         .scale = 1,
                         .softcap = -1};
  absl::Status status = PagedAttention(*backend, params);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("softcap -1"));
  params.softcap = 0;
  params.window = 3;
  params.chunk = 4;
  status = PagedAttention(*backend, params);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("window 3 and chunk 4"));
}

}  // namespace
}  // namespace quire::kernels

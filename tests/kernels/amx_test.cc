// Compares the AMX kernel bitwise with the AVX-512 VNNI kernel. If the CPU or the operating system
// rejects tile instructions, the same machine code runs on the tiles of software_tiles.h.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>

#include "kernels/linear/int_linear.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/quantized_test_util.h"
#include "tests/kernels/software_tiles.h"

namespace quire::kernels {
namespace {

using internal::IntLinearArgs;
using internal::IntLinearKernels;

// Every format, group and kind of minimum, with 1 to 9 panels. Tiles are used for a scale per
// feature and more than 128 inputs, a multiple of 64. The other shapes take the AVX-512 VNNI path.
std::vector<QuantizedShape> AmxShapes() {
  using enum WeightFormat;
  std::vector<QuantizedShape> shapes = {{kInt8, 37, 320, 320},    {kInt8, 70, 64, 64},
                                        {kInt8, 130, 1152, 1152}, {kInt8, 37, 333, 333},
                                        {kInt8, 35, 48, 16},      {kInt4, 37, 352, 32}};
  std::uint32_t n = 5;
  for (const WeightFormat format : {kInt8, kInt4}) {
    for (const std::uint32_t group : {16u, 32u, 64u, 128u}) {
      if (format == kInt4 && group == 16) continue;
      for (const auto& [has_min, has_zero_points] :
           {std::pair{false, false}, {true, false}, {true, true}}) {
        shapes.push_back({format, n, group == 128 ? 384u : 320u, group, has_min, has_zero_points});
        n = n % 131 + 13;
      }
    }
  }
  return shapes;
}

// Uses the tiles of the CPU if the process may, else software tiles.
class AmxKernelTest : public testing::Test {
 public:
  static void SetUpTestSuite() {
    const absl::Status hardware = SelectCpuIsa("amx");
    std::printf("tiles: %s\n", hardware.ok() ? "hardware" : hardware.ToString().c_str());
    EXPECT_TRUE(SelectCpuIsa("auto").ok());
  }

 protected:
  void SetUp() override {
    if (!SelectCpuIsa("avx512_vnni").ok()) GTEST_SKIP() << "this CPU has no AVX-512 VNNI";
    const absl::Status hardware = SelectCpuIsa("amx");
    ASSERT_TRUE(SelectCpuIsa("auto").ok());
    if (!hardware.ok()) software_.emplace();
  }

 private:
  std::optional<ScopedSoftwareTiles> software_;
};

class AmxTest : public AmxKernelTest, public testing::WithParamInterface<QuantizedShape> {};

std::vector<float> RunLinear(const Backend& backend, const IntLinearKernels& kernels,
                             const TestMatrix& matrix, std::uint32_t rows, bool has_extras) {
  const QuantizedShape& shape = matrix.shape;
  const std::int64_t x_stride = shape.k + 5;
  const auto x = RandomFloats(static_cast<std::size_t>(rows * x_stride), 21);
  const auto bias = RandomFloats(shape.n, 22);
  const auto residual = RandomFloats(std::size_t{rows} * shape.n, 23);
  GuardedRows y(rows, shape.n);
  internal::LinearQuantized(backend,
                            {.x = x.data(),
                             .weight = &matrix.packed,
                             .bias = has_extras ? bias.data() : nullptr,
                             .residual = has_extras ? residual.data() : nullptr,
                             .y = y.data(),
                             .x_stride = x_stride,
                             .residual_stride = shape.n,
                             .y_stride = y.stride(),
                             .num_rows = rows},
                            kernels);
  EXPECT_TRUE(y.GuardsIntact());
  return y.Packed();
}

TEST_P(AmxTest, EqualsAvx512VnniBitwise) {
  const TestBackend one(1);
  const TestBackend three(3);
  const TestMatrix matrix = MakeMatrix(*one, GetParam(), 20);
  for (const std::uint32_t rows : {1u, 15u, 16u, 17u, 31u, 64u, 333u}) {
    for (const bool has_extras : {false, true}) {
      const Backend& backend = has_extras ? *three : *one;
      const auto expected =
          RunLinear(*one, internal::kIntLinearAvx512Vnni, matrix, rows, has_extras);
      const auto y = RunLinear(backend, internal::kIntLinearAmx, matrix, rows, has_extras);
      ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
          << rows << " rows" << (has_extras ? ", with bias and residual" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AmxTest, testing::ValuesIn(AmxShapes()),
                         [](const auto& info) { return NameOf(info.param); });

// Memory directly before an unreadable page.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size) : mapped_((size + kPage - 1) / kPage * kPage + kPage) {
    start_ = static_cast<std::uint8_t*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(start_, MAP_FAILED);
    EXPECT_EQ(mprotect(start_ + mapped_ - kPage, kPage, PROT_NONE), 0);
    data_ = start_ + mapped_ - kPage - size;
    std::fill_n(data_, size, std::uint8_t{3});
  }
  GuardedBytes(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(start_, mapped_); }
  std::uint8_t* data() const { return data_; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t mapped_;
  std::uint8_t* start_;
  std::uint8_t* data_;
};

TEST_F(AmxKernelTest, ReadsNothingAfterTheLastRowAndPanel) {
  constexpr std::uint32_t kPanels = 5, kInputs = 192, kRows = 17;
  const GuardedBytes panels(kPanels * kInputs * 16);
  const GuardedBytes q(kRows * kInputs);
  const std::vector<float> weight_scales(kPanels * 16, 1.0f);
  std::vector<float> scales(kRows, 1.0f);
  std::vector<std::int32_t> sums(kRows, 3 * kInputs);
  std::vector<float> y(kRows * kPanels * 16, kNan);
  IntLinearArgs args = {};
  args.panels = panels.data();
  args.panel_bytes = kInputs * 16;
  args.scales = weight_scales.data();
  args.scale_per_feature = true;
  args.n = kPanels * 16;
  args.k = args.group = kInputs;
  args.x = {reinterpret_cast<std::int8_t*>(q.data()), scales.data(), sums.data()};
  args.num_rows = kRows;
  args.y = y.data();
  args.y_stride = args.n;
  internal::kIntLinearAmx.linear(args, 0, kPanels);
  EXPECT_THAT(y, testing::Each(3.0f * kInputs * (3 - 128)));
}

// A configuration of tiles 0 to 2 for the product of [2, 8] signed and [8, 3] unsigned bytes.
std::array<std::uint8_t, 64> SmallConfig() {
  std::array<std::uint8_t, 64> config = {};
  config[0] = 1;
  constexpr std::array<std::array<std::uint8_t, 2>, 3> kShapes = {{{2, 12}, {2, 8}, {2, 12}}};
  for (std::size_t tile = 0; tile < kShapes.size(); ++tile) {
    config[16 + 2 * tile] = kShapes[tile][1];
    config[48 + tile] = kShapes[tile][0];
  }
  return config;
}

TEST(SoftwareTilesTest, MultipliesSignedByUnsignedBytes) {
  Tiles tiles;
  tiles.Configure(SmallConfig().data());
  // Rows are 9 bytes apart, and the bytes between them are not read.
  const std::array<std::int8_t, 17> a = {-128, 127, -1, 0,  1, 2, 3, 4, 99,
                                         5,    -5,  7,  -7, 0, 0, 0, -9};
  const std::array<std::uint8_t, 24> b = {255, 255, 255, 255, 1, 2, 3, 4, 0, 0, 0, 1,
                                          1,   1,   1,   1,   9, 0, 0, 0, 0, 0, 0, 255};
  const std::array<std::int32_t, 6> start = {1000, 0, 0, 0, 0, INT32_MIN};
  tiles.Load(0, reinterpret_cast<const std::uint8_t*>(start.data()), 12);
  tiles.Load(1, reinterpret_cast<const std::uint8_t*>(a.data()), 9);
  tiles.Load(2, b.data(), 12);
  tiles.MultiplyAdd(0, 1, 2);
  std::array<std::int32_t, 8> sums;
  sums.fill(7);
  tiles.Store(0, reinterpret_cast<std::uint8_t*>(sums.data()), 16);
  // The sums were computed by hand. The last one wraps around: -2^31 - 7 * 1 - 9 * 255 + 2^32.
  EXPECT_THAT(sums, testing::ElementsAre(1000 + 255 * (-128 + 127 - 1) + 1 + 2 + 3 + 4,
                                         -128 + 127 * 2 - 3 + 9, 4 * 255, 7,  //
                                         -9, 5 - 5 * 2 + 7 * 3 - 7 * 4, INT32_MAX - 2301, 7));
  tiles.Zero(0);
  tiles.Store(0, reinterpret_cast<std::uint8_t*>(sums.data()), 16);
  EXPECT_THAT(sums, testing::ElementsAre(0, 0, 0, 7, 0, 0, 0, 7));
}

TEST(SoftwareTilesDeathTest, FaultsLikeHardware) {
  const auto configure = [](std::size_t offset, std::uint8_t value) {
    auto config = SmallConfig();
    config[offset] = value;
    Tiles().Configure(config.data());
  };
  EXPECT_DEATH(configure(0, 2), "palette");
  EXPECT_DEATH(configure(2, 1), "config.i. == 0");    // reserved bytes
  EXPECT_DEATH(configure(32, 64), "config.i. == 0");  // a ninth tile
  EXPECT_DEATH(configure(56, 1), "config.i. == 0");
  EXPECT_DEATH(configure(16, 65), "row_bytes <= ");
  EXPECT_DEATH(configure(48, 17), "rows <= ");
  EXPECT_DEATH(configure(50, 0), "row_bytes == 0");  // a tile with bytes and without rows
  // One operand does not match the other two.
  const auto multiply = [](std::size_t offset, std::uint8_t value) {
    auto config = SmallConfig();
    config[offset] = value;
    Tiles tiles;
    tiles.Configure(config.data());
    tiles.MultiplyAdd(0, 1, 2);
  };
  EXPECT_DEATH(multiply(16, 8), "c.row_bytes == b.row_bytes");
  EXPECT_DEATH(multiply(18, 4), "a.row_bytes / 4 == b.rows");
  EXPECT_DEATH(multiply(18, 7), "% 4 == 0");
  EXPECT_DEATH(multiply(49, 3), "c.rows == a.rows");
  Tiles tiles;
  EXPECT_DEATH(tiles.Zero(0), "rows > 0");  // not configured
  tiles.Configure(SmallConfig().data());
  EXPECT_DEATH(tiles.Zero(3), "rows > 0");
  EXPECT_DEATH(tiles.MultiplyAdd(0, 1, 1), "left != right");
  tiles.Release();
  EXPECT_DEATH(tiles.Zero(0), "rows > 0");
}

}  // namespace
}  // namespace quire::kernels

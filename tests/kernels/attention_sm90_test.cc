// Prefill and decode of compute capability 9.0 on the emulated GPU or a real one. Results are
// compared with double precision over the same pages, and must be bitwise invariant to batching,
// chunking and scheduling. All bytes of the pool that no sequence owns are NaN.

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/attention/kv_tensor_maps.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

// P and the output are rounded to 16 bits. With one-byte pages, an element times its scale is also
// rounded.
double Tolerance(DType kv) {
  return kv == DType::kF8E4M3 || kv == DType::kI8 ? 6e-3 : 4e-3;
}
constexpr char kPrefill[] = "attention prefill sm_90a";
constexpr char kPrefillBytes[] = "attention prefill bytes sm_90a";
constexpr char kDecode[] = "attention decode sm_90a";

constexpr DType kElements[] = {DType::kBF16, DType::kF8E4M3, DType::kI8};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

AttentionShape Shape(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t head_size,
                     std::uint32_t page_size, DType kv = DType::kBF16) {
  return {heads, kv_heads, head_size, page_size, kv, DType::kBF16, 0, true, 8};
}

void ExpectExact(const AttentionBackend& cuda, const AttentionShape& shape,
                 const std::vector<StepRows>& step) {
  std::string text = absl::StrCat("heads ", shape.heads, "/", shape.kv_heads, " of ",
                                  shape.head_size, ", pages of ", shape.page_size, ":");
  std::vector<std::uint32_t> lengths;
  for (const StepRows& r : step) {
    lengths.push_back(r.cached + r.prompt + r.generated);
    absl::StrAppend(&text, " {", r.cached, " + ", r.prompt, " + ", r.generated, "}");
  }
  SCOPED_TRACE(text);
  const AttentionRig rig(shape, lengths, 11);
  const auto launches = [] {
    return cuda_emulator::LaunchCount(kPrefill) + cuda_emulator::LaunchCount(kPrefillBytes) +
           cuda_emulator::LaunchCount(kDecode);
  };
  const std::uint64_t before = launches();
  const std::vector<float> out = rig.Run(cuda, step);
  bool prompt = false;
  bool generated = false;
  for (const StepRows& r : step) {
    prompt |= r.prompt > 0;
    generated |= r.generated > 0;
  }
  if (cuda_emulator::IsEmulated()) {
    // Decode tokens over one-byte pages use the portable kernel.
    const bool has_decode = shape.kv == DType::kBF16;
    EXPECT_EQ(launches(), before + (prompt ? 1 : 0) + (generated && has_decode ? 1 : 0));
  }
  EXPECT_LE(RelativeError(out, rig.Exact(step)), Tolerance(shape.kv));
}

// Lengths and chunks at and around the boundaries of tiles, pages and row blocks, over bf16 and
// one-byte pages.
TEST(AttentionSm90Test, PromptRowsEqualDoublePrecision) {
  const AttentionBackend cuda(2);
  const struct {
    std::uint32_t heads, kv_heads, cached, prompt;
  } cases[] = {{2, 2, 0, 1},   {8, 2, 0, 63},  {7, 1, 0, 64},    {4, 1, 0, 65},   {2, 1, 0, 127},
               {1, 1, 0, 128}, {2, 1, 0, 129}, {16, 1, 15, 5},   {7, 1, 449, 30}, {4, 2, 127, 65},
               {4, 4, 128, 1}, {3, 1, 255, 2}, {2, 1, 383, 130}, {16, 1, 511, 17}};
  constexpr std::uint32_t kPages[] = {16, 64, 128, 32};
  constexpr std::uint32_t kHeadSizes[] = {64, 128, 96, 80};
  std::uint32_t i = 0;
  for (const auto& c : cases) {
    for (const DType kv : {DType::kBF16, i % 3 == 0 ? DType::kI8 : DType::kF8E4M3}) {
      ExpectExact(cuda, Shape(c.heads, c.kv_heads, kHeadSizes[(i + i / 4) % 4], kPages[i % 4], kv),
                  {{0, c.cached, c.prompt, 0}});
    }
    ++i;
  }
}

TEST(AttentionSm90Test, EveryKernelEqualsDoublePrecision) {
  const AttentionBackend cuda;
  for (const DType kv : kElements) {
    for (const std::uint32_t head_size : {64u, 128u}) {
      ExpectExact(cuda, Shape(4, 2, head_size, 16, kv), {{0, 97, 70, 0}});
    }
  }
}

// Each block has several items. Some sequences have no rows, and decode tokens run next to prefill
// tokens.
TEST(AttentionSm90Test, MixedStepsEqualDoublePrecision) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    ExpectExact(
        AttentionBackend(2), Shape(8, 2, 64, 16, kv),
        {{0, 0, 0, 0}, {1, 20, 30, 5}, {2, 0, 0, 0}, {3, 200, 0, 1}, {4, 5, 9, 0}, {5, 0, 150, 0}});
  }
}

// A prompt over one-byte pages equals one over bf16 pages with each element times its scale,
// bitwise and for all score rules. Only the way of tiles into shared memory differs.
TEST(AttentionSm90Test, OneBytePagesEqualTheirProductsBitwise) {
  struct {
    std::uint32_t head_size, page_size, window;
    float softcap;
    bool sinks;
  } const cases[] = {{64, 16, 0, 0, false},
                     {128, 64, 0, 0, true},
                     {128, 16, 130, 0, false},
                     {96, 32, 0, 2, false},
                     {80, 128, 70, 3, true}};
  for (const DType kv : {DType::kF8E4M3, DType::kI8}) {
    for (const auto& c : cases) {
      AttentionShape shape = Shape(6, 2, c.head_size, c.page_size, kv);
      shape.window = c.window;
      shape.softcap = c.softcap;
      shape.sinks = c.sinks;
      shape.loudness = 4;
      const std::vector<StepRows> step = {{0, 77, 140, 0}, {1, 0, 0, 0}, {2, 255, 5, 0}};
      const std::vector<std::uint32_t> lengths = {217, 9, 260};
      const std::vector<float> out =
          AttentionRig(shape, lengths, 5).Run(AttentionBackend(3, 8), step);
      shape.kv = DType::kBF16;
      shape.products_of = kv;
      EXPECT_TRUE(SameBits(out, AttentionRig(shape, lengths, 5).Run(AttentionBackend(2, 3), step)))
          << DTypeName(kv) << ", heads of " << c.head_size;
    }
  }
}

TEST(AttentionSm90Test, FewerItemsThanBlocks) {
  ExpectExact(AttentionBackend(16), Shape(2, 1, 64, 64), {{0, 0, 3, 0}});
}

TEST(AttentionSm90Test, ChunkingDoesNotChangeBits) {
  const AttentionBackend cuda;
  for (const DType kv : {DType::kBF16, DType::kF8E4M3, DType::kI8}) {
    for (const bool cancelling : {false, true}) {
      AttentionShape shape = Shape(6, 2, 64, 16, kv);
      shape.cancelling = cancelling;
      const AttentionRig rig(shape, {300}, 9);
      const std::vector<float> once = rig.Run(cuda, {{0, 0, 300, 0}});
      std::vector<float> chunks;
      for (const auto& [first, count] :
           {std::pair{0u, 50u}, {50u, 1u}, {51u, 80u}, {131u, 125u}, {256u, 44u}}) {
        const std::vector<float> out = rig.Run(cuda, {{0, first, count, 0}});
        chunks.insert(chunks.end(), out.begin(), out.end());
      }
      EXPECT_TRUE(SameBits(once, chunks)) << DTypeName(kv) << cancelling;
    }
  }
}

TEST(AttentionSm90Test, RowsDoNotDependOnTheBatch) {
  const AttentionBackend cuda;
  for (const DType kv : kElements) {
    const AttentionRig rig(Shape(14, 2, 64, 32, kv), {200, 40, 130}, 3);
    const std::vector<StepRows> step = {{0, 190, 10, 0}, {1, 10, 20, 0}, {2, 0, 130, 0}};
    const std::vector<float> together = rig.Run(cuda, step);
    std::vector<float> alone;
    for (const StepRows& rows : step) {
      const std::vector<float> out = rig.Run(cuda, {rows});
      alone.insert(alone.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(SameBits(together, alone)) << DTypeName(kv);
  }
}

// Boxes of other sizes load the same tile.
TEST(AttentionSm90Test, ThreadOrderAndMultiprocessorsDoNotChangeBits) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    const AttentionRig rig(Shape(8, 2, 128, 16, kv), {140, 90}, 6);
    const std::vector<StepRows> step = {{0, 0, 140, 0}, {1, 20, 70, 0}};
    const std::vector<float> out = rig.Run(AttentionBackend(4, 1), step);
    EXPECT_TRUE(SameBits(out, rig.Run(AttentionBackend(4, 77), step)));
    EXPECT_TRUE(SameBits(out, rig.Run(AttentionBackend(1, 5), step)));
  }
}

// Lengths at and around pages, tiles, spans and groups, as in the kernel without tensor maps.
TEST(AttentionSm90Test, DecodeRowsEqualThePortableKernelBitwise) {
  const std::uint32_t lengths[] = {1, 16, 17, 63, 64, 65, 127, 129, 511, 512, 513, 577, 1000, 2049};
  constexpr std::uint32_t kPages[] = {16, 64, 128, 32};
  constexpr std::uint32_t kHeadSizes[] = {64, 128, 96, 80};
  std::uint32_t i = 0;
  for (const std::uint32_t length : lengths) {
    AttentionShape shape = Shape(i % 3 == 0 ? 7 : 4, i % 3 == 0 ? 1 : 2,
                                 kHeadSizes[(i + i / 4) % 4], kPages[i % 4], DType::kBF16);
    const std::uint32_t count = std::min(1 + i % 4, length);
    const std::vector<StepRows> step = {{0, length - count, 0, count}, {1, 33, 0, 1}, {2, 7, 0, 0}};
    const AttentionBackend cuda(1 + static_cast<int>(i % 3), 20 + i);
    ExpectExact(cuda, shape, step);
    const std::vector<std::uint32_t> tokens = {length, 34, 7};
    shape.cancelling = i % 2 == 1;
    const std::vector<float> out = AttentionRig(shape, tokens, 11).Run(cuda, step);
    shape.tensor_maps = false;
    EXPECT_TRUE(SameBits(out, AttentionRig(shape, tokens, 11).Run(cuda, step)))
        << length << " keys, heads of " << shape.head_size << ", pages of " << shape.page_size;
    ++i;
  }
}

// Rows that are not aligned to 16 bytes use the portable kernels, with or without tensor maps.
TEST(AttentionSm90Test, OtherRowsUseThePortableKernels) {
  const AttentionBackend cuda;
  AttentionShape shape = Shape(4, 2, 64, 16);
  shape.out_gap = 4;
  const std::vector<StepRows> step = {{0, 20, 70, 2}};
  const std::uint64_t before =
      cuda_emulator::LaunchCount(kPrefill) + cuda_emulator::LaunchCount(kDecode);
  const std::vector<float> out = AttentionRig(shape, {92}, 3).Run(cuda, step);
  EXPECT_EQ(cuda_emulator::LaunchCount(kPrefill) + cuda_emulator::LaunchCount(kDecode), before);
  shape.tensor_maps = false;
  EXPECT_TRUE(SameBits(out, AttentionRig(shape, {92}, 3).Run(cuda, step)));
}

// Creates the maps of three layers.
std::unique_ptr<cuda::KvTensorMaps> CreateMaps(std::int32_t capability, std::uint32_t head_size,
                                               DType dtype, std::uint32_t granularity = 0,
                                               std::uint32_t num_heads = 2) {
  cache::KvGeometry geometry;
  geometry.num_blocks = 4;
  geometry.num_layers = 3;
  geometry.page_size = 16;
  geometry.num_heads = num_heads;
  geometry.head_size = head_size;
  geometry.dtype = dtype;
  if (DTypeSize(dtype) == 1) {
    geometry.scale_dtype = DType::kF32;
    geometry.granularity = granularity != 0 ? granularity : head_size;
  }
  alignas(256) static std::byte memory[256];
  alignas(256) static std::byte scales[256];
  alignas(32) static std::uint32_t table[64] = {};
  auto collection = MakeKvCollection(geometry, memory, {table, table, 24, 1, 1, 16, 0},
                                     geometry.quantized() ? scales : nullptr);
  EXPECT_TRUE(collection.ok()) << collection.status();
  Device device = *OpenCudaDevice(0);
  device.compute_capability = capability;
  auto maps = cuda::KvTensorMaps::Create(device, *collection);
  EXPECT_TRUE(maps.ok()) << maps.status();
  return *std::move(maps);
}

TEST(KvTensorMapsTest, CreatedOnlyIfAKernelReadsThem) {
  const AttentionBackend cuda;
  const auto maps = CreateMaps(90, 64, DType::kBF16);
  ASSERT_NE(maps, nullptr);
  EXPECT_EQ(maps->num_layers(), 3u);
  EXPECT_EQ(maps->layer(2).keys.bytes, 64 * 64 * 2);
  EXPECT_EQ(maps->layer(0).values.box_bytes, 16 * 64 * 2);
  EXPECT_NE(std::memcmp(&maps->layer(0).keys, &maps->layer(0).values, sizeof(cuda::TmaTile)), 0);
  EXPECT_NE(CreateMaps(90, 128, DType::kBF16), nullptr);
  EXPECT_EQ(CreateMaps(90, 128, DType::kF16), nullptr);
  EXPECT_EQ(CreateMaps(80, 64, DType::kBF16), nullptr);
  EXPECT_EQ(CreateMaps(100, 64, DType::kBF16), nullptr);
  EXPECT_EQ(CreateMaps(90, 32, DType::kBF16), nullptr);
  EXPECT_EQ(CreateMaps(90, 256, DType::kBF16), nullptr);
  EXPECT_EQ(CreateMaps(90, 64, DType::kF32), nullptr);

  for (const DType bytes : {DType::kF8E4M3, DType::kI8}) {
    const auto narrow = CreateMaps(90, 80, bytes);
    ASSERT_NE(narrow, nullptr);
    EXPECT_EQ(narrow->layer(2).keys.bytes, 64 * 128);
    EXPECT_EQ(narrow->layer(0).values.box_bytes, 16 * 128);
    EXPECT_EQ(CreateMaps(90, 64, bytes, 16), nullptr);
    EXPECT_EQ(CreateMaps(90, 72, bytes), nullptr);
    EXPECT_EQ(CreateMaps(90, 144, bytes), nullptr);
    EXPECT_EQ(CreateMaps(89, 64, bytes), nullptr);
  }
}

// The collection has two layers per layer of the model.
TEST(KvTensorMapsTest, MapsOfMlaRows) {
  const AttentionBackend cuda;
  const auto latent = CreateMaps(90, 576, DType::kBF16, 0, 1);
  ASSERT_NE(latent, nullptr);
  EXPECT_EQ(&latent->latent(4), &latent->layer(2).keys);
  EXPECT_EQ(&latent->latent(5), &latent->layer(2).values);
  EXPECT_EQ(latent->latent(0).box_bytes, 16 * 64 * 2);
  EXPECT_EQ(CreateMaps(80, 576, DType::kBF16, 0, 1), nullptr);
  EXPECT_EQ(CreateMaps(90, 584, DType::kBF16, 0, 1), nullptr);
  EXPECT_EQ(CreateMaps(90, 592, DType::kBF16, 0, 1), nullptr);
  EXPECT_EQ(CreateMaps(90, 576, DType::kF16, 0, 1), nullptr);
}

}  // namespace
}  // namespace quire::kernels

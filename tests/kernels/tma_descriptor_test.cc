// Tensor maps encoded by the emulated driver, and copies through them in an emulator kernel,
// compared with loads through the views. Compiled like kernels, with the emulator's headers.

#include "kernels/cuda/tma_descriptor.h"

#include <cstring>
#include <string>
#include <vector>

#include "cache_manager/views/reference/tma_reference_source.h"
#include "gmock/gmock.h"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/kv_store/kv_dispatch.h"
#include "tests/cache_manager/kv_test_util.h"
#include "tests/cuda_emulator/kernel_test.h"
#include "tests/kernels/tma_emulation.h"

namespace quire::kernels::cuda {
namespace {

using cache::testing::LookupStride;
using cache::testing::MakeGeometry;
using cache::testing::WithScales;
using cuda_emulator::DeviceArray;
using ::testing::HasSubstr;

constexpr std::uint32_t kMaxBoxes = 32;

// Coordinates of up to kMaxBoxes boxes and their destinations in shared memory.
struct Boxes {
  std::uint32_t count = 0;
  std::int32_t at[kMaxBoxes][3];
  std::uint32_t to[kMaxBoxes];

  void Add(std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t byte) {
    at[count][0] = static_cast<std::int32_t>(x);
    at[count][1] = static_cast<std::int32_t>(y);
    at[count][2] = static_cast<std::int32_t>(z);
    to[count++] = byte;
  }
};

__global__ void LoadTile(const __grid_constant__ CUtensorMap map, const Boxes boxes,
                         std::uint32_t bytes, std::byte* out) {
  std::byte* const tile = SharedMemory();
  auto* const barrier = reinterpret_cast<Barrier*>(tile + bytes);
  if (ThreadIndex() == 0) {
    BarrierInit(barrier, 1);
    BarrierInitFence();
  }
  SyncBlock();
  if (ThreadIndex() == 0) {
    BarrierExpect(barrier, bytes);
    for (std::uint32_t i = 0; i < boxes.count; ++i) {
      TmaLoad3D(tile + boxes.to[i], &map, barrier, boxes.at[i][0], boxes.at[i][1], boxes.at[i][2],
                L2Hint::kNormal);
    }
  }
  BarrierWait(barrier, 0);
  for (std::uint32_t i = ThreadIndex(); i < bytes; i += BlockThreads()) out[i] = tile[i];
}

class TmaDescriptorTest : public cuda_emulator::KernelTest {
 protected:
  // Creates a pool in device memory with distinct bytes and one sequence of two pages.
  template <typename C>
  C Collection(const cache::KvGeometry& geometry) {
    const auto guard = static_cast<std::size_t>(cache::kGuardRows * geometry.row_elements() *
                                                DTypeSize(geometry.dtype));
    const auto bytes = static_cast<std::size_t>(geometry.num_blocks * geometry.block_stride() *
                                                DTypeSize(geometry.dtype));
    memory_.emplace(bytes + 2 * guard);
    for (std::size_t i = 0; i < memory_->size(); ++i) {
      (*memory_)[i] = static_cast<std::byte>((i * 2654435761u) >> 13 & 0x77);
    }
    scales_.emplace(static_cast<std::size_t>(geometry.num_blocks * 4096));
    arrays_.emplace(1, LookupStride(2));
    arrays_->page(0, 0) = 3;
    arrays_->page(0, 1) = 1;
    arrays_->SetLength(0, 2 * geometry.page_size);
    using Element = typename C::Cache::Element;
    cache::KvPoolPointers<Element, typename C::Cache::Scale> pointers{};
    pointers.blocks = reinterpret_cast<Element*>(memory_->data() + guard);
    if constexpr (C::Cache::kQuantized) pointers.scales = scales_->data();
    auto made = C::Create(geometry, pointers, arrays_->inputs);
    QUIRE_CHECK(made.ok());
    return *std::move(made);
  }
  KvCollection<BF16> Plain(std::uint32_t head_size, std::uint32_t page_size) {
    return Collection<KvCollection<BF16>>(
        MakeGeometry(5, 2, 2, page_size, 3, head_size, DType::kBF16));
  }
  using Rope = cache::PagedKVCacheCollection<F8E4M3, cache::KVCacheStaticParams<1, 640, true, 64>,
                                             64, float, 640>;
  Rope RopeAware() {
    return Collection<Rope>(WithScales(MakeGeometry(5, 1, 2, 64, 1, 640), DType::kF8E4M3, 640));
  }

  std::vector<std::byte> Load(const TmaTile& tile, const Boxes& boxes) {
    const DeviceArray<std::byte> out(static_cast<std::size_t>(tile.bytes));
    Run(LoadTile,
        {.threads = 32,
         .shared_bytes = static_cast<std::uint32_t>(tile.bytes) + 16 + kSharedAlignment},
        tile.map(), boxes, static_cast<std::uint32_t>(tile.bytes), out.data());
    return {out.data(), out.data() + out.size()};
  }
  // Returns the bits of element (row, column) of a tile of 16-bit elements.
  static std::uint16_t At(const std::vector<std::byte>& bytes, const TmaTile& tile,
                          TmaSwizzle swizzle, std::uint32_t row, std::uint32_t column) {
    const std::int64_t unit = tile.box_shape[0];
    const std::int64_t line = column / unit * tile.tile_shape[0] + row;
    std::uint16_t bits;
    std::memcpy(&bits,
                bytes.data() + testing::SwizzleByte((line * unit + column % unit) * 2, swizzle), 2);
    return bits;
  }

  std::optional<DeviceArray<std::byte>> memory_;
  std::optional<DeviceArray<float>> scales_;
  std::optional<cache::testing::StepArrays> arrays_;
};

TEST_F(TmaDescriptorTest, TileOfAPagedView) {
  for (const std::uint32_t head_size : {64u, 72u, 96u, 128u}) {
    for (const std::uint32_t page : {16u, 64u}) {
      for (const TmaSwizzle swizzle : {TmaSwizzle::k128B, TmaSwizzle::k64B, TmaSwizzle::k32B}) {
        const auto collection = Plain(head_size, page);
        const auto view = collection.get_value_cache(1);
        const std::uint32_t rows = page == 16 ? 32 : 64;
        const auto tile = CreateTmaTile(device_, view, {.tile_rows = rows, .swizzle = swizzle});
        ASSERT_TRUE(tile.ok()) << tile.status();
        EXPECT_EQ(tile->tile_shape,
                  (std::array<std::uint32_t, 3>{rows, 1, PaddedDepth(2, swizzle, head_size)}));
        const std::uint32_t unit = tile->box_shape[0];
        Boxes boxes;
        for (std::uint32_t p = 0; p < rows / tile->box_shape[2]; ++p) {
          for (std::uint32_t j = 0; j < tile->tile_shape[2] / unit; ++j) {
            boxes.Add(j * unit, 2, view.row_idx(0, p * page), (j * rows + p * page) * unit * 2);
          }
        }
        ASSERT_EQ(boxes.count * tile->box_bytes, tile->bytes);
        const std::vector<std::byte> bytes = Load(*tile, boxes);
        for (std::uint32_t r = 0; r < rows; ++r) {
          for (std::uint32_t d = 0; d < tile->tile_shape[2]; ++d) {
            const std::uint16_t want =
                d < head_size ? view.template load<1>(0, 2, r, d).lane[0].bits : 0;
            ASSERT_EQ(At(bytes, *tile, swizzle, r, d), want) << head_size << " " << r << " " << d;
          }
        }
      }
    }
  }
}

TEST_F(TmaDescriptorTest, FirstRowsOfARaggedTile) {
  const auto collection = Plain(64, 16);
  const auto view = collection.get_key_cache(0);
  const auto ragged = CreateRaggedTmaTile(device_, view, {.tile_rows = 16});
  ASSERT_TRUE(ragged.ok()) << ragged.status();
  for (const std::uint32_t n : {0u, 1u, 7u, 16u}) {
    Boxes boxes;
    const auto at = ragged->coordinates(0, 1, view.row_idx(0, 0), n);
    boxes.Add(0, static_cast<std::uint32_t>(at[1]), static_cast<std::uint32_t>(at[2]), 0);
    const std::vector<std::byte> bytes = Load(ragged->tile, boxes);
    for (std::uint32_t r = 0; r < 16; ++r) {
      for (std::uint32_t d = 0; d < 64; ++d) {
        ASSERT_EQ(At(bytes, ragged->tile, TmaSwizzle::k128B, r, d),
                  r < n ? view.template load<1>(0, 1, r, d).lane[0].bits : 0)
            << n << " " << r << " " << d;
      }
    }
  }
}

TEST_F(TmaDescriptorTest, RopeValues) {
  const auto collection = RopeAware();
  const auto view = collection.get_key_cache(1);
  const auto tile =
      CreateRopeTmaTile(device_, view, {.tile_rows = 64, .tile_columns = 64, .padded_depth = 512});
  ASSERT_TRUE(tile.ok()) << tile.status();
  Boxes boxes;
  boxes.Add(0, 0, view.row_idx(0, 64), 0);
  const std::vector<std::byte> bytes = Load(*tile, boxes);
  for (std::uint32_t r = 0; r < 64; ++r) {
    for (std::uint32_t d = 0; d < 64; ++d) {
      ASSERT_EQ(At(bytes, *tile, TmaSwizzle::k128B, r, d),
                view.template load_rope<1>(0, 64 + r, d).lane[0].bits);
    }
  }
}

TEST_F(TmaDescriptorTest, EveryBuilderByGeneration) {
  const auto plain_collection = Plain(64, 16);
  const auto plain = plain_collection.get_key_cache(0);
  const auto plain_memory = *std::move(memory_);
  const auto plain_arrays = *std::move(arrays_);
  const auto collection = RopeAware();
  const auto rope = collection.get_key_cache(0);
  const cache::KVCacheMHAOperand operand{plain};
  const auto expect = [&](std::int32_t least, const char* name, const auto& build) {
    for (const std::int32_t capability : {0, 80, 90, 100}) {
      Device device = capability == 0 ? Device::Cpu() : device_;
      if (capability != 0) device.compute_capability = capability;
      const absl::Status status = build(device);
      if (capability >= least) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << name;
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
      EXPECT_THAT(std::string(status.message()), HasSubstr(least == 90 ? "9.0" : "10.0"));
      EXPECT_THAT(std::string(status.message()), HasSubstr(capability == 0    ? "cpu"
                                                           : capability == 80 ? "8.0"
                                                                              : "9.0"));
    }
  };
  expect(90, "CreateTmaTile",
         [&](const Device& d) { return CreateTmaTile(d, operand, {.tile_rows = 64}).status(); });
  expect(90, "CreatePagedTmaTile",
         [&](const Device& d) { return CreatePagedTmaTile(d, plain, {.tile_rows = 64}).status(); });
  expect(90, "CreateRaggedTmaTile", [&](const Device& d) {
    return CreateRaggedTmaTile(d, plain, {.tile_rows = 64}).status();
  });
  expect(90, "CreateRopeTmaTile", [&](const Device& d) {
    return CreateRopeTmaTile(d, rope, {.tile_rows = 64, .tile_columns = 64, .padded_depth = 512})
        .status();
  });
  expect(90, "CreateScaleTmaTile",
         [&](const Device& d) { return CreateScaleTmaTile(d, rope, {.tile_rows = 64}).status(); });
  expect(100, "CreateGather4TmaTile", [&](const Device& d) {
    return CreateGather4TmaTile(d, plain, {.tile_width = 64, .swizzle = TmaSwizzle::k128B})
        .status();
  });
  expect(100, "CreateRopeGather4TmaTile", [&](const Device& d) {
    return CreateRopeGather4TmaTile(d, rope, {.tile_width = 64, .padded_depth = 512}).status();
  });
  EXPECT_EQ(CreateTmaTile(device_, plain, {.tile_rows = 24}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TmaDescriptorTest, DriverThatFails) {
  const auto collection = Plain(64, 16);
  cuda_emulator::InjectFault({"cudaGetDriverEntryPointByVersion", cudaErrorInvalidValue, 0, false});
  const absl::Status status =
      CreateTmaTile(device_, collection.get_key_cache(0), {.tile_rows = 64}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuTensorMapEncodeTiled"));
}

}  // namespace
}  // namespace quire::kernels::cuda

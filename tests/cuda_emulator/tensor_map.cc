#include "tests/cuda_emulator/tensor_map.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/async_copy.h"
#include "tests/cuda_emulator/barrier.h"
#include "tests/cuda_emulator/runtime_state.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {
namespace {

constexpr std::uint32_t kMaxRank = 5;
constexpr std::uint32_t kMagic = 0x70616d74;

// The emulator's content of the 128 opaque bytes.
struct Map {
  std::uint32_t magic = kMagic;
  std::uint8_t rank = 0;
  std::uint8_t element_bytes = 0;
  std::uint8_t swizzle_bytes = 0;  // 0 means none
  std::uint8_t element_strides[kMaxRank] = {};
  const std::byte* address = nullptr;
  std::uint64_t strides[kMaxRank - 1] = {};  // bytes, from the second extent on
  std::uint32_t last[kMaxRank] = {};         // extent - 1
  std::uint16_t box_last[kMaxRank] = {};     // box extent - 1
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

std::uint32_t ElementBytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
    default:
      return 0;
  }
}

bool IsFloat(CUtensorMapDataType type) {
  return type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ||
         type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT64 ||
         type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ || type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 ||
         type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

// Returns the bytes of a row of the pattern, or ~0u for patterns that are not emulated.
std::uint32_t SwizzleBytes(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      return 0;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return 128;
    default:
      return ~0u;
  }
}

bool DimsAreValid(const Map& map, const cuuint64_t* dims, const cuuint64_t* strides,
                  const cuuint32_t* box, const cuuint32_t* element_strides) {
  constexpr std::uint64_t kMaxDim = std::uint64_t{1} << 32;
  constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 40;
  for (std::uint32_t i = 0; i < map.rank; ++i) {
    if (dims[i] == 0 || dims[i] > kMaxDim || box[i] == 0 || box[i] > 256) return false;
    if (element_strides[i] == 0 || element_strides[i] > 8) return false;
    if (i == 0) continue;
    if (strides[i - 1] % 16 != 0 || strides[i - 1] >= kMaxStride) return false;
  }
  const std::uint64_t box_row = std::uint64_t{box[0]} * map.element_bytes;
  if (box_row % 16 != 0) return false;
  return map.swizzle_bytes == 0 || box_row <= map.swizzle_bytes;
}

const Map& Decode(const CUtensorMap* map, std::uint32_t rank) {
  const auto& decoded = *reinterpret_cast<const Map*>(map);
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0) {
    Fatal("a tensor map is not aligned to 64 bytes");
  }
  if (decoded.magic != kMagic) Fatal("a tensor map that was never encoded");
  if (decoded.rank != rank) {
    Fatal("a load with " + std::to_string(rank) + " coordinates through a map of " +
          std::to_string(decoded.rank));
  }
  return decoded;
}

// Returns the destination of byte `offset` of a box: the number of its 16-byte chunk inside the
// pattern row, XOR the row's number, as bits of the shared address.
std::uint32_t Swizzle(std::uint32_t address, std::uint32_t swizzle_bytes) {
  if (swizzle_bytes == 0) return address;
  const std::uint32_t chunks = swizzle_bytes / 16;
  return address ^ ((address >> 7 & (chunks - 1)) << 4);
}

struct Box {
  Map map;
  const void* code;  // code that issued the copy
  std::uint32_t to;
  std::uint32_t barrier;
  std::int64_t at[kMaxRank];
  std::uint32_t extent[kMaxRank];
};

std::uint32_t BoxBytes(const Box& box) {
  std::uint32_t bytes = box.map.element_bytes;
  for (std::uint32_t i = 0; i < box.map.rank; ++i) bytes *= box.extent[i];
  return bytes;
}

// The elements that one run along the fastest extent reads from the tensor: [begin, end).
struct RowSource {
  const std::byte* from = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

RowSource SourceOf(const Box& box, const std::array<std::uint32_t, kMaxRank>& index) {
  const Map& map = box.map;
  bool inside = true;
  std::int64_t offset = 0;
  for (std::uint32_t i = 1; i < map.rank; ++i) {
    const std::int64_t at = box.at[i] + std::int64_t{index[i]} * map.element_strides[i];
    inside = inside && at >= 0 && at <= std::int64_t{map.last[i]};
    offset += at * static_cast<std::int64_t>(map.strides[i - 1]);
  }
  if (!inside) return {};
  RowSource source;
  source.begin = std::clamp<std::int64_t>(-box.at[0], 0, box.extent[0]);
  source.end = std::clamp<std::int64_t>(std::int64_t{map.last[0]} + 1 - box.at[0], source.begin,
                                        box.extent[0]);
  source.from = map.address + offset + (box.at[0] + source.begin) * map.element_bytes;
  return source;
}

// Calls `visit(index, to)` for each run. `to` is its destination before the swizzle.
template <typename Visit>
void ForEachRow(const Box& box, Visit visit) {
  const std::uint32_t row_bytes = box.extent[0] * box.map.element_bytes;
  std::uint32_t to = box.to;
  std::array<std::uint32_t, kMaxRank> index{};
  const std::uint32_t rows = BoxBytes(box) / row_bytes;
  for (std::uint32_t r = 0; r < rows; ++r, to += row_bytes) {
    std::uint32_t rest = r;
    for (std::uint32_t i = 1; i < box.map.rank; ++i) {
      index[i] = rest % box.extent[i];
      rest /= box.extent[i];
    }
    visit(index, to);
  }
}

// Elements out of range are zero.
void LandRow(const Box& box, const std::array<std::uint32_t, kMaxRank>& index, std::uint32_t to) {
  const Map& map = box.map;
  const std::uint32_t row_bytes = box.extent[0] * map.element_bytes;
  std::vector<std::byte> row(row_bytes);
  const RowSource source = SourceOf(box, index);
  const auto bytes = static_cast<std::size_t>((source.end - source.begin) * map.element_bytes);
  if (bytes > 0) {
    CheckGlobal(source.from, bytes, "bulk tensor copy");
    std::memcpy(row.data() + source.begin * map.element_bytes, source.from, bytes);
  }
  for (std::uint32_t i = 0; i < row_bytes; i += 16) {
    const std::uint32_t at = Swizzle(to + i, map.swizzle_bytes);
    std::memcpy(SharedPointer(at, 16, 16, "bulk tensor copy"), row.data() + i, 16);
  }
}

void Land(const Box& box) {
  ForEachRow(box, [&](const auto& index, std::uint32_t to) { LandRow(box, index, to); });
  CompleteCopy(box.barrier, box.to, BoxBytes(box), box.code);
}

// The copy's reads, as accesses of the thread that issues it.
void CheckSource(const Box& box) {
  if (!is_checking) return;
  ForEachRow(box, [&](const auto& index, std::uint32_t) {
    const RowSource source = SourceOf(box, index);
    const std::int64_t bytes = (source.end - source.begin) * box.map.element_bytes;
    if (bytes == 0) return;
    CheckGlobal(source.from, static_cast<std::uint64_t>(bytes), "bulk tensor copy");
    CheckAccess(source.from, static_cast<std::uint32_t>(bytes), Access::kRead, box.code);
  });
}

// The barrier's initialization must be visible to the copy unit.
void CheckBarrier(std::uint32_t barrier, const void* code) {
  CheckShared(*current_thread, barrier, 8, Access::kAsyncRead, code);
}

Box BoxOf(void* shared, const CUtensorMap* map, std::uint32_t rank,
          const std::int32_t* coordinates) {
  Box box{.map = Decode(map, rank), .code = nullptr, .to = 0, .barrier = 0, .at = {}, .extent = {}};
  for (std::uint32_t i = 0; i < rank; ++i) {
    box.at[i] = coordinates[i];
    const std::uint32_t step = box.map.element_strides[i];
    box.extent[i] = (box.map.box_last[i] + step) / step;
  }
  const std::uint32_t row_bytes = box.extent[0] * box.map.element_bytes;
  if (box.map.swizzle_bytes != 0 && row_bytes != box.map.swizzle_bytes) {
    Fatal("a box with rows of " + std::to_string(row_bytes) + " bytes under a swizzle of " +
          std::to_string(box.map.swizzle_bytes) + " bytes is not emulated");
  }
  // The pattern repeats every 8 rows. A destination inside it would be legal, but wgmma would read
  // it incorrectly.
  const std::uint32_t alignment =
      std::max<std::uint32_t>(128, std::uint32_t{box.map.swizzle_bytes} * 8);
  box.to = SharedAddress(shared, BoxBytes(box), alignment, "bulk tensor copy");
  return box;
}

void Issue(const Box& box) {
  CheckBarrier(box.barrier, box.code);
  BeginCopy(box.to, BoxBytes(box), box.code);
  Poison(box.to, BoxBytes(box));
  AddLateWork([box] { Land(box); });
}

}  // namespace

CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                     const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                     const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                     CUtensorMapFloatOOBfill fill) {
  const std::uint32_t swizzle_bytes = SwizzleBytes(swizzle);
  if (map == nullptr || reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || rank == 0 ||
      rank > kMaxRank || ElementBytes(type) == 0 || address == nullptr ||
      reinterpret_cast<std::uintptr_t>(address) % 16 != 0 ||
      interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle_bytes == ~0u ||
      promotion < CU_TENSOR_MAP_L2_PROMOTION_NONE ||
      promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
      (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !IsFloat(type))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Not emulated, since kernels read zeros outside the tensor.
  if (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) return CUDA_ERROR_INVALID_VALUE;
  {
    Runtime& runtime = TheRuntime();
    const std::lock_guard<std::mutex> lock(runtime.mutex);
    ++runtime.tensor_maps;
  }
  Map encoded;
  encoded.rank = static_cast<std::uint8_t>(rank);
  encoded.element_bytes = static_cast<std::uint8_t>(ElementBytes(type));
  encoded.swizzle_bytes = static_cast<std::uint8_t>(swizzle_bytes);
  encoded.address = static_cast<const std::byte*>(address);
  if (!DimsAreValid(encoded, dims, strides, box, element_strides)) return CUDA_ERROR_INVALID_VALUE;
  for (std::uint32_t i = 0; i < rank; ++i) {
    encoded.last[i] = static_cast<std::uint32_t>(dims[i] - 1);
    encoded.box_last[i] = static_cast<std::uint16_t>(box[i] - 1);
    // The first one is ignored without interleaving.
    encoded.element_strides[i] = static_cast<std::uint8_t>(i == 0 ? 1 : element_strides[i]);
    if (i > 0) encoded.strides[i - 1] = strides[i - 1];
  }
  std::memset(map, 0, sizeof(*map));
  std::memcpy(static_cast<void*>(map), &encoded, sizeof(encoded));
  return CUDA_SUCCESS;
}

void LoadBox(void* shared, const CUtensorMap* map, std::uint32_t barrier, std::uint32_t rank,
             const std::int32_t* coordinates) {
  Box box = BoxOf(shared, map, rank, coordinates);
  box.code = __builtin_return_address(0);
  box.barrier = barrier;
  CheckSource(box);
  Issue(box);
}

void MulticastBox(void* shared, const CUtensorMap* map, std::uint32_t barrier,
                  const std::int32_t* coordinates, std::uint32_t ranks) {
  Box box = BoxOf(shared, map, 2, coordinates);
  box.code = __builtin_return_address(0);
  box.barrier = barrier;
  CheckSource(box);
  for (std::uint32_t rank = 0; ranks >> rank != 0; ++rank) {
    if ((ranks >> rank & 1u) == 0) continue;
    const InBlock there(rank);
    Issue(box);
  }
}

void LoadBytes(void* shared, const void* global, std::uint32_t bytes, std::uint32_t barrier) {
  if (bytes == 0 || bytes % 16 != 0) {
    Fatal("a bulk copy of " + std::to_string(bytes) + " bytes is not a multiple of 16");
  }
  const std::uint32_t to = SharedAddress(shared, bytes, 16, "bulk copy");
  CheckAligned(global, 16, "bulk copy");
  CheckGlobal(global, bytes, "bulk copy");
  const void* const code = __builtin_return_address(0);
  CheckBarrier(barrier, code);
  if (is_checking) CheckAccess(global, bytes, Access::kRead, code);
  BeginCopy(to, bytes, code);
  Poison(to, bytes);
  AddLateWork([=] {
    std::memcpy(SharedPointer(to, bytes, 16, "bulk copy"), global, bytes);
    CompleteCopy(barrier, to, bytes, code);
  });
}

}  // namespace quire::cuda_emulator

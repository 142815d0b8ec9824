#pragma once

// Tensor maps of KV caches, encoded by the driver. tma_plan.h documents the content of each map and
// how a kernel uses its coordinates.
//
// Place:      see tma_plan.h. The functions exist only in builds with CUDA; the header needs no
//             CUDA headers.
// Invariants: the encoder is looked up in the driver by name, so nothing links against libcuda.
// Threads:    any, on a machine whose device is open (base/device.h).
// Lifetime:   tiles are values; the memory that they describe must remain mapped.
//
// Every Create function returns FAILED_PRECONDITION on a device without TMA. The message has both
// compute capabilities, the required one and that of the device. For a geometry that no map can
// describe, the function returns INVALID_ARGUMENT with the violated rule.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/status.h"
#include "cache_manager/views/tma_plan.h"

struct CUtensorMap_st;

namespace quire::kernels::cuda {

// A tensor map and the size of the tile that it loads per stage.
struct TmaTile {
  alignas(128) std::array<std::byte, 128> descriptor{};
  std::array<std::uint32_t, 3> tile_shape{};           // rows, heads, columns
  std::array<std::uint32_t, kMaxTmaRank> box_shape{};  // box of one copy, fastest extent first
  std::uint32_t rank = 0;
  std::int64_t bytes = 0;      // size of the tile, which is passed to the barrier
  std::int64_t box_bytes = 0;  // size of one copy

  const CUtensorMap_st& map() const {
    return *reinterpret_cast<const CUtensorMap_st*>(descriptor.data());
  }
};

// A tensor map with which a kernel copies the first n rows of a tile.
struct RaggedTmaTile {
  TmaTile tile;
  std::uint32_t tile_rows = 0;
  std::uint32_t num_heads = 0;

  // Returns the coordinates for copying `rows` rows from `start` on. REQUIRES: rows <= tile_rows.
  std::array<std::int32_t, 3> coordinates(std::uint32_t column, std::uint32_t head,
                                          std::uint32_t start, std::uint32_t rows) const {
    return {static_cast<std::int32_t>(column), static_cast<std::int32_t>(tile_rows - rows),
            static_cast<std::int32_t>((start + rows) * num_heads + head)};
  }
};

// Encodes a plan for `device`.
absl::StatusOr<TmaTile> EncodeTma(const Device& device, const TmaPlan& plan);
// Encodes a plan like the function above, for a device that supports the plan (CheckTmaDevice).
absl::StatusOr<TmaTile> EncodeTma(const TmaPlan& plan);

template <TmaReadable C>
absl::StatusOr<TmaTile> CreateTmaTile(const Device& device, const C& cache,
                                      const TmaTileSpec& spec) {
  QUIRE_ASSIGN_OR_RETURN(const TmaPlan plan, PlanTmaTile(TmaSourceOf(cache), spec));
  return EncodeTma(device, plan);
}
template <TmaPagedReadable C>
absl::StatusOr<TmaTile> CreatePagedTmaTile(const Device& device, const C& cache,
                                           const TmaTileSpec& spec) {
  QUIRE_ASSIGN_OR_RETURN(const TmaPlan plan, PlanPagedTmaTile(TmaSourceOf(cache), spec));
  return EncodeTma(device, plan);
}
template <TmaReadable C>
absl::StatusOr<RaggedTmaTile> CreateRaggedTmaTile(const Device& device, const C& cache,
                                                  const RaggedTmaTileSpec& spec) {
  const TmaSource source = TmaSourceOf(cache);
  QUIRE_ASSIGN_OR_RETURN(const TmaPlan plan, PlanRaggedTmaTile(source, spec));
  QUIRE_ASSIGN_OR_RETURN(const TmaTile tile, EncodeTma(device, plan));
  return RaggedTmaTile{tile, spec.tile_rows, source.num_heads};
}
template <TmaReadable C>
absl::StatusOr<TmaTile> CreateGather4TmaTile(const Device& device, const C& cache,
                                             const Gather4TmaTileSpec& spec) {
  QUIRE_ASSIGN_OR_RETURN(const TmaPlan plan, PlanGather4TmaTile(TmaSourceOf(cache), spec));
  return EncodeTma(device, plan);
}
template <TmaRopeReadable C>
absl::StatusOr<TmaTile> CreateRopeTmaTile(const Device& device, const C& cache,
                                          const RopeTmaTileSpec& spec) {
  QUIRE_ASSIGN_OR_RETURN(const TmaPlan plan, PlanRopeTmaTile(TmaSourceOf(cache), spec));
  return EncodeTma(device, plan);
}
template <TmaRopeReadable C>
absl::StatusOr<TmaTile> CreateRopeGather4TmaTile(const Device& device, const C& cache,
                                                 const RopeGather4TmaTileSpec& spec) {
  QUIRE_ASSIGN_OR_RETURN(const TmaPlan plan, PlanRopeGather4TmaTile(TmaSourceOf(cache), spec));
  return EncodeTma(device, plan);
}
template <TmaScaleReadable C>
absl::StatusOr<TmaTile> CreateScaleTmaTile(const Device& device, const C& cache,
                                           const ScaleTmaTileSpec& spec) {
  QUIRE_ASSIGN_OR_RETURN(const TmaPlan plan, PlanScaleTmaTile(TmaSourceOf(cache), spec));
  return EncodeTma(device, plan);
}

}  // namespace quire::kernels::cuda

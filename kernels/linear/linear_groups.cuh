#pragma once

// Finds the rows and the matrix of a block of GroupedLinear on the device.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/thread.cuh"
#include "kernels/linear/grouped_linear.h"

namespace quire::kernels::cuda {

// The groups of a launch, passed to kernels by value.
struct RowGroups {
  const std::uint32_t* offsets;  // [count + 1]; null: all rows have one matrix
  std::int64_t data_distance;    // bytes between the matrices of consecutive groups
  std::int64_t scale_distance;   // bytes between their scales
  std::int64_t bias_distance;    // floats between their biases
  const std::uint32_t* x_rows;   // [rows of the launch]: row m is x[x_rows[m]]; null: x[m]
  std::uint32_t count;           // number of groups
  std::uint32_t first_row;       // first row of the launch, in the numbering of `offsets`
};

inline RowGroups RowGroupsOf(const GroupedLinearParams& params) {
  return {.offsets = params.offsets,
          .data_distance = params.weights.data_distance,
          .scale_distance = params.weights.scale_distance,
          .bias_distance = params.weights.bias_distance,
          .x_rows = params.rows,
          .count = params.weights.count,
          .first_row = params.first_row};
}

// Returns an upper bound of the number of row tiles. In the worst case every group that can have
// rows ends with a tile of one row.
constexpr std::uint32_t MaxGroupTiles(std::uint32_t rows, std::uint32_t groups,
                                      std::uint32_t tile) {
  const std::uint32_t used = rows < groups ? rows : groups;
  return (rows - used) / tile + used;
}

// A tile of kTokens rows of one group. Rows are numbered from the first row of the launch.
struct GroupTile {
  std::uint32_t group;  // `count` if there is no such tile
  std::uint32_t begin;  // first row of the tile
  std::uint32_t end;    // end of the group's rows
};

// Returns the row of x for row `row` of the launch.
__device__ __forceinline__ std::uint32_t InputRow(const RowGroups& groups, std::uint32_t row) {
  return groups.x_rows == nullptr ? row : groups.x_rows[row];
}

// Returns the first row of group `group` in a launch of `rows` rows.
__device__ __forceinline__ std::uint32_t GroupBegin(const RowGroups& groups, std::uint32_t group,
                                                    std::uint32_t rows) {
  const std::uint32_t at = groups.offsets[group];
  if (at <= groups.first_row) return 0;
  return at - groups.first_row < rows ? at - groups.first_row : rows;
}

// Returns tile number `wanted`. Every warp computes it with one group per lane and a prefix sum by
// shuffles.
template <std::uint32_t kTokens>
__device__ __forceinline__ GroupTile GroupTileOf(const RowGroups& groups, std::uint32_t rows,
                                                 std::uint32_t wanted) {
  const std::uint32_t lane = Lane();
  std::uint32_t before = 0;  // tiles of groups below `first`
  for (std::uint32_t first = 0; first < groups.count; first += kWarpSize) {
    const std::uint32_t group = first + lane;
    const bool exists = group < groups.count;
    const std::uint32_t begin = exists ? GroupBegin(groups, group, rows) : 0;
    const std::uint32_t end = exists ? GroupBegin(groups, group + 1, rows) : 0;
    const std::uint32_t tiles = (end - begin + kTokens - 1) / kTokens;
    std::uint32_t sum = tiles;  // tiles of this lane and lower lanes
    for (std::uint32_t delta = 1; delta < kWarpSize; delta *= 2) {
      const std::uint32_t below = ShuffleUp(sum, delta);
      if (lane >= delta) sum += below;
    }
    // Number of these groups whose tiles all precede the wanted tile.
    const std::uint32_t passed = CountBits(Ballot(before + sum <= wanted));
    if (passed < kWarpSize) {
      const std::uint32_t skipped = before + Shuffle(sum - tiles, passed);
      const std::uint32_t own = Shuffle(begin, passed);
      return {first + passed, own + (wanted - skipped) * kTokens, Shuffle(end, passed)};
    }
    before += Shuffle(sum, kWarpSize - 1);
  }
  return {groups.count, 0, 0};
}

// Returns the group of row `row` of the launch by binary search. REQUIRES: the row belongs to a
// group.
__device__ __forceinline__ std::uint32_t GroupOfRow(const RowGroups& groups, std::uint32_t row) {
  std::uint32_t low = 0;
  std::uint32_t high = groups.count;  // the first group that begins after the row
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (groups.offsets[middle] <= groups.first_row + row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace quire::kernels::cuda

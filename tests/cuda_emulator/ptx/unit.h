#pragma once

// Describes the kernels of units.cu and units_sm90.cu: their launch shape, their input and, where a
// simple formula exists, their expected output.

#include <cuda.h>

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"

namespace quire::cuda_emulator::ptx {

using Words = std::vector<std::uint32_t>;

struct Unit {
  std::string name{};
  kernels::cuda::LaunchShape shape{};
  Words (*make_input)(std::mt19937& random) = nullptr;
  // The function that the host compiler generated from the kernel. `mapped_emulation` is used if
  // the first argument is a tensor map.
  void (*emulation)(const std::uint32_t* in, std::uint32_t* out) = nullptr;
  void (*mapped_emulation)(CUtensorMap map, const std::uint32_t* in, std::uint32_t* out) = nullptr;
  std::uint32_t map_rank = 0;
  // Computes the output by a formula that is independent of the emulator's models.
  Words (*expected)(const Words& in) = nullptr;
  // True if words are floats, where any NaN equals any other. Otherwise words are compared bitwise.
  bool is_float = false;
  // Limit of |x - expected| / (1 + |expected|) for floats, and limit of the distance from the host
  // emulation in units in the last place.
  float tolerance = 0.0f;
  std::uint32_t ulps = 0;
  // Hints in the kernel's PTX (Program::TakeHints).
  std::set<std::string> hints{};
};

const std::vector<Unit>& Units();

// A tensor [6, 10, 40] of numbered 32-bit elements, and its map with a box of `rank` dimensions and
// 1024 bytes. `p` points to kTensorWords words.
inline constexpr std::size_t kTensorWords = 6 * 10 * 40;
void EncodeTensor(std::uint32_t* p, std::uint32_t rank, CUtensorMap* map);

}  // namespace quire::cuda_emulator::ptx

#pragma once

// The kernels of units.cu and units_sm90.cu: how each is launched, which inputs it gets, and, where
// a plain formula exists, which output must come.

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
  // The function that the host compiler made of the kernel; `mapped` for one whose first argument
  // is a tensor map.
  void (*emulation)(const std::uint32_t* in, std::uint32_t* out) = nullptr;
  void (*mapped_emulation)(CUtensorMap map, const std::uint32_t* in, std::uint32_t* out) = nullptr;
  std::uint32_t map_rank = 0;
  // What a formula apart from all models gives.
  Words (*expected)(const Words& in) = nullptr;
  // Words are floats, of which any NaN is as good as another; otherwise they are equal as bits.
  bool is_float = false;
  // How far floats may lie from `expected`, by size + 1, and from the host emulation in units in
  // the last place.
  float tolerance = 0.0f;
  std::uint32_t ulps = 0;
  // What its PTX asks of the device that changes no value (Program::TakeHints).
  std::set<std::string> hints{};
};

const std::vector<Unit>& Units();

// [6, 10, 40] numbered 32-bit elements below the box of `rank` dimensions that has 1024 bytes; `p`
// points to so many words.
inline constexpr std::size_t kTensorWords = 6 * 10 * 40;
void EncodeTensor(std::uint32_t* p, std::uint32_t rank, CUtensorMap* map);

}  // namespace quire::cuda_emulator::ptx

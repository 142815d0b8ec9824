#pragma once

// The kernels of units.cu and units_sm90.cu: their launches, inputs, and expected outputs where a
// plain formula exists.

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
  // The host-compiled function of the kernel, or `mapped` if its first argument is a tensor map.
  void (*twin)(const std::uint32_t* in, std::uint32_t* out) = nullptr;
  void (*mapped_twin)(CUtensorMap map, const std::uint32_t* in, std::uint32_t* out) = nullptr;
  std::uint32_t map_rank = 0;
  // The result of a formula that is independent of all models.
  Words (*expected)(const Words& in) = nullptr;
  // If set, words are floats, and all NaN are equal. Otherwise they are compared as bits.
  bool is_float = false;
  // Tolerances of floats: relative to `expected` by magnitude + 1, and to the host emulation in
  // units in the last place.
  float tolerance = 0.0f;
  std::uint32_t ulps = 0;
  // Device requests of its PTX that change no value (Program::TakeHints).
  std::set<std::string> hints{};
};

const std::vector<Unit>& Units();

// A tensor of [6, 10, 40] numbered 32-bit elements and a box of `rank` dimensions with 1024 bytes.
// `p` points to the elements.
inline constexpr std::size_t kTensorWords = 6 * 10 * 40;
void EncodeTensor(std::uint32_t* p, std::uint32_t rank, CUtensorMap* map);

}  // namespace quire::cuda_emulator::ptx

#pragma once

// The tile instructions that the AMX kernels use, in software: ldtilecfg, tilerelease, tilezero,
// tileloadd, tileloaddt1, tilestored, tdpbsud and tdpbf16ps, as volume 2 of Intel's Software
// Developer's Manual defines them. Where the manual specifies a fault, QUIRE_CHECK ends the
// process.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace quire::kernels {

// The tile registers of one thread.
class Tiles {
 public:
  static constexpr std::size_t kNumTiles = 8;

  // `config` has 64 bytes; its layout is that of ldtilecfg.
  void Configure(const std::uint8_t* config);
  void Release();
  void Zero(std::size_t tile);
  // Rows are `stride` bytes apart.
  void Load(std::size_t tile, const std::uint8_t* from, std::int64_t stride);
  void Store(std::size_t tile, std::uint8_t* to, std::int64_t stride);
  // Adds the product of signed and unsigned bytes to `sums`, four bytes per 32-bit sum.
  void MultiplyAdd(std::size_t sums, std::size_t signed_bytes, std::size_t unsigned_bytes);
  // Adds the product of bf16 pairs to f32 `sums`: first the sum over the even elements of all
  // pairs, plus that over the odd ones. Subnormals are zeros.
  void MultiplyAddBF16(std::size_t sums, std::size_t a, std::size_t b);

 private:
  static constexpr std::size_t kMaxRows = 16;
  static constexpr std::size_t kMaxRowBytes = 64;

  struct Tile {
    std::size_t rows = 0;
    std::size_t row_bytes = 0;
    std::array<std::array<std::uint8_t, kMaxRowBytes>, kMaxRows> bytes = {};
  };

  // REQUIRES: the tile is configured.
  Tile& At(std::size_t tile);
  // Checks that the shapes match for sums of four bytes each.
  void CheckShapes(std::size_t sums, std::size_t a, std::size_t b);

  std::array<Tile, kNumTiles> tiles_ = {};
};

// While it exists, tile instructions that the CPU or the operating system refuses run in software:
// SIGILL enters a handler, which decodes and executes the instruction on the tiles of its thread.
// Other refused instructions end the process as before.
//
// Threads: at most one object at a time; its handler serves all threads.
class ScopedSoftwareTiles {
 public:
  ScopedSoftwareTiles();
  ~ScopedSoftwareTiles();
};

// Runs tile instructions on the CPU if the process may, else in software.
class ScopedTiles {
 public:
  // Returns false without AMX in the build or AVX-512 in the CPU.
  static bool CanRun();
  ScopedTiles();
  bool is_hardware() const { return !software_.has_value(); }

 private:
  std::optional<ScopedSoftwareTiles> software_;
};

}  // namespace quire::kernels

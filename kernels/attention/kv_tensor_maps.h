#pragma once

// The tensor maps with which attention kernels of compute capability 9.0 read a KV pool: one for K
// and one for V per layer.
//
// Place:      created by the CUDA runner at start, after the pool and its collection;
//             AttentionParams::maps points to it.
// Invariants: maps are host values that a launch copies into the kernel's arguments, so a captured
//             graph keeps them.
// Threads:    read-only.
// Lifetime:   the pool outlives the maps; the maps outlive every launch and every captured graph.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device.h"
#include "kernels/cuda/tma_descriptor.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

namespace cuda {

// A box of a map has TmaBoxRows(kKvTile, page size) rows with 128 bytes of one head each (64
// columns of 16 bits or 128 columns of one byte), and 128-byte swizzle. Columns beyond the head are
// read as zeros.
struct KvLayerMaps {
  TmaTile keys;
  TmaTile values;
};

class KvTensorMaps {
 public:
  // True if kernels can read `collection` through maps. This needs compute capability 9.0 and a
  // head size from 64 to 128. The head size must be a multiple of 8 for bf16 pages, and of 16 for
  // one-byte pages with one scale per token and head. MLA pools qualify with bf16 pages and one
  // head of 144 to 576 columns, a multiple of 16. The pool does not record whether such a head is
  // an MLA cache row.
  static bool IsSupported(const Device& device, const AnyKvCollection& collection);
  // Returns null if IsSupported is false. AttentionParams::maps is then null, and portable kernels
  // run. Errors are those of CreateTmaTile.
  static absl::StatusOr<std::unique_ptr<KvTensorMaps>> Create(const Device& device,
                                                              const AnyKvCollection& collection);

  std::uint32_t num_layers() const { return static_cast<std::uint32_t>(layers_.size()); }
  // REQUIRES: layer < num_layers().
  const KvLayerMaps& layer(std::uint32_t layer) const { return layers_[layer]; }
  // Returns the map of the rows that LatentView(collection, layer) views. REQUIRES: layer / 2 <
  // num_layers().
  const TmaTile& latent(std::uint32_t layer) const {
    return layer % 2 == 0 ? layers_[layer / 2].keys : layers_[layer / 2].values;
  }

 private:
  KvTensorMaps() = default;

  std::vector<KvLayerMaps> layers_;
};

}  // namespace cuda
}  // namespace quire::kernels

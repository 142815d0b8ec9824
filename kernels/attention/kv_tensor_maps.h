#pragma once

// The tensor maps through which attention kernels of compute capability 9.0 read a KV pool: one for
// K and one for V of each layer.
//
// Place:      made by the CUDA runner at start, after the pool and its collection;
//             AttentionParams::maps points to it.
// Invariants: host values, which a launch copies into the kernel's arguments, so a captured graph
//             keeps them.
// Threads:    read-only.
// Lifetime:   the pool outlives it; it outlives every launch and every captured graph.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device.h"
#include "kernels/cuda/tma_descriptor.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

namespace cuda {

// Boxes are 128 bytes of one head, 64 columns of 16 bits or 128 of one byte, in TmaBoxRows(kKvTile,
// page size) rows, swizzled in 128 bytes; columns beyond the head are zeros.
struct KvLayerMaps {
  TmaTile keys;
  TmaTile values;
};

class KvTensorMaps {
 public:
  // Whether a kernel may read such a pool through maps: compute capability 9.0, head sizes from 64
  // to 128; bf16 or f16 pages and multiples of 8, or pages of one byte, one scale to a token and
  // head, and multiples of 16. Or bf16 pages of one head of 144 to 576 columns, a multiple of 16:
  // only as latent rows, which a pool does not tell from K and V of such a head.
  static bool IsUseful(const Device& device, const AnyKvCollection& collection);
  // Null when IsUseful is false: AttentionParams::maps is null then, and the portable kernels run.
  // Returns the errors of CreateTmaTile.
  static absl::StatusOr<std::unique_ptr<KvTensorMaps>> Create(const Device& device,
                                                              const AnyKvCollection& collection);

  std::uint32_t num_layers() const { return static_cast<std::uint32_t>(layers_.size()); }
  // REQUIRES: layer < num_layers().
  const KvLayerMaps& layer(std::uint32_t layer) const { return layers_[layer]; }
  // Of the rows that LatentView(collection, layer) views. REQUIRES: layer / 2 < num_layers().
  const TmaTile& latent(std::uint32_t layer) const {
    return layer % 2 == 0 ? layers_[layer / 2].keys : layers_[layer / 2].values;
  }

 private:
  KvTensorMaps() = default;

  std::vector<KvLayerMaps> layers_;
};

}  // namespace cuda
}  // namespace quire::kernels

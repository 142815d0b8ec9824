#include "kernels/attention/kv_tensor_maps.h"

#include <utility>
#include <variant>

#include "base/status.h"
#include "kernels/attention/attention_work.h"
#include "kernels/kv_store/latent_store.h"

namespace quire::kernels::cuda {

bool KvTensorMaps::IsSupported(const Device& device, const AnyKvCollection& collection) {
  if (device.is_cpu() || device.compute_capability != 90) return false;
  const KvShape shape = KvShapeOf(KeyView(collection, 0));
  if (shape.dtype == DType::kBF16 && shape.num_heads == 1 && shape.head_size > 128) {
    return shape.head_size <= kMaxLatentColumns && shape.head_size % 16 == 0;
  }
  const bool is_wide = shape.dtype == DType::kBF16;
  const bool is_scaled = (shape.dtype == DType::kF8E4M3 || shape.dtype == DType::kI8) &&
                         shape.granularity == shape.head_size;
  return (is_wide || is_scaled) && shape.head_size >= 64 && shape.head_size <= 128 &&
         shape.head_size % (is_wide ? 8 : 16) == 0;
}

absl::StatusOr<std::unique_ptr<KvTensorMaps>> KvTensorMaps::Create(
    const Device& device, const AnyKvCollection& collection) {
  if (!IsSupported(device, collection)) return nullptr;
  std::unique_ptr<KvTensorMaps> maps(new KvTensorMaps());
  const auto create = [&device](const AnyKvView& view) {
    return std::visit(
        [&device](const auto& v) {
          return CreateTmaTile(device, v, {.tile_rows = kKvTile, .l2 = TmaL2Promotion::k128B});
        },
        view);
  };
  const std::uint32_t num_layers =
      std::visit([](const auto& c) { return c.num_layers(); }, collection);
  for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
    QUIRE_ASSIGN_OR_RETURN(TmaTile keys, create(KeyView(collection, layer)));
    QUIRE_ASSIGN_OR_RETURN(TmaTile values, create(ValueView(collection, layer)));
    maps->layers_.push_back({std::move(keys), std::move(values)});
  }
  return maps;
}

}  // namespace quire::kernels::cuda

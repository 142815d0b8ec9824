// This file is compiled but not run. It proves without a GPU that every member that kernels call is
// device code and that a view is a kernel argument. Kernels are in kernels/cuda.

#include "cache_manager/views/kv_cache_concepts.h"
#include "cache_manager/views/kv_quantize.h"
#include "cache_manager/views/reference/kv_continuous_collection.h"
#include "cache_manager/views/reference/kv_mha_operand.h"

namespace quire::cache {
namespace {

using DynamicParams = KVCacheStaticParams<kDynamicExtent, 128>;
using Static = PagedKVCache<BF16, KVCacheStaticParams<8, 128>, 64>;
using Dynamic = PagedKVCache<const BF16, DynamicParams, kDynamicExtent>;
using Quantized = PagedKVCache<F8E4M3, DynamicParams, kDynamicExtent, float, 32>;
using Rope = PagedKVCache<F8E4M3, KVCacheStaticParams<1, 640, true, 64>, 64, float, 640>;
using Continuous = ContinuousBatchingKVCache<float, DynamicParams>;

template <typename Cache>
__device__ float Scalars(const Cache& cache, std::uint32_t b, std::uint32_t t) {
  const auto at = static_cast<std::int32_t>(t);
  const KvTmaCoords coords = cache.kv_tma_coords(b, t);
  return static_cast<float>(cache.cache_length(b) + cache.max_prompt_length() +
                            cache.max_context_length() + cache.row_idx(b, t) + coords.row +
                            coords.page + cache.col_idx(0) + cache.max_tile_size()) +
         static_cast<float>(cache.num_kv_rows() + cache.get_tma_row(at) +
                            cache.sparse_tma_row(b, at) + cache.block_stride()) +
         (cache.empty_cache() ? 1.0f : 0.0f);
}

template <typename Operand>
__device__ float Tile(const Operand& operand, std::uint32_t b, std::uint32_t base) {
  const auto tile = operand.template populate<128, 128, true, false>(b, base);
  const auto part = tile.template sub_rows<64>(64);
  float sum = ToFloat(*operand.template block_paged_ptr<1>(b, base, 0, 0));
  for (std::uint32_t i = 0; i < 64; ++i) {
    sum += static_cast<float>(tile.cta_row(i) + tile.get_row(i) + part.get_row(i));
  }
  return sum + static_cast<float>(num_keys(operand, b, 1) + tile.num_pages());
}

__global__ void ReadPaged(Static cache, Dynamic dynamic, float* out) {
  const std::uint32_t b = blockIdx.x, t = threadIdx.x;
  const auto values = cache.load<8>(b, 0, t, 0);
  const auto converted = dynamic.load<8, float>(b, 0, t, 0);
  cache.store<8>(b, 1, t, 0, values);
  *out = converted[0] + Scalars(cache, b, t) + Scalars(dynamic, b, t) +
         Tile(KVCacheMHAOperand{cache}, b, 0) + Tile(KVCacheMHAOperand{dynamic}, b, 0);
}

__global__ void ReadQuantized(Quantized cache, float* out) {
  const std::uint32_t b = blockIdx.x, t = threadIdx.x;
  float x[32];
  for (int i = 0; i < 32; ++i) x[i] = static_cast<float>(i) * *out;
  F8E4M3 q[32];
  const GroupScale group = QuantizeGroup(x, 32, q);
  for (std::uint32_t d = 0; d < 32; ++d) cache.store<1>(b, 0, t, d, {{q[d]}});
  cache.store_scale<1>(b, 0, t, 0, {{group.scale}});
  const KVCacheMHAOperand operand{cache};
  const KVCacheScalesMHAOperand scales{cache};
  *out = cache.load<16>(b, 0, t, 16)[3] + cache.load_scale<1>(b, 0, t, 0)[0] +
         ToFloat(cache.load_quantized<4>(b, 0, t, 4)[1]) + *cache.scales_raw_ptr() +
         static_cast<float>(cache.scale_row_idx(b, t) + cache.scale_tma_coords(b, t).row) +
         operand.load_scale<1>(b, t, 0, 0)[0] + Scalars(cache, b, t) + Tile(operand, b, 0) +
         Tile(scales, b, 0);
}

__global__ void ReadRope(Rope cache, float* out) {
  const std::uint32_t t = threadIdx.x;
  cache.store_rope<8>(0, t, 8, cache.load_rope<8>(0, t, 0));
  *out = cache.load_content<16>(0, t, 16)[2] + cache.load_rope<8>(0, t, 8)[1].ToFloat();
}

__global__ void ReadPlain(Continuous cache, ContiguousMHAOperand<BF16> dense,
                          RaggedMHAOperand<float> ragged, float* out) {
  cache.store<4>(0, 0, 1, 0, cache.load<4>(0, 0, 0, 0));
  *out = Scalars(cache, 0, 1) + Tile(KVCacheMHAOperand{cache}, 0, 0) + Tile(dense, 0, 0) +
         Tile(ragged, 0, 0) + static_cast<float>(dense.get_tma_row(3) + ragged.get_tma_row(3));
}

}  // namespace

// Host stubs of the kernels, with views as arguments.
void LaunchAll(const Static& paged, const Quantized& quantized, const Rope& rope,
               const Continuous& continuous, float* out) {
  ReadPaged<<<1, 1>>>(paged, paged, out);
  ReadQuantized<<<1, 1>>>(quantized, out);
  ReadRope<<<1, 1>>>(rope, out);
  ReadPlain<<<1, 1>>>(continuous, {}, {}, out);
}

}  // namespace quire::cache

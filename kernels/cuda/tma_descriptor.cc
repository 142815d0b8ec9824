#include "kernels/cuda/tma_descriptor.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"

namespace quire::kernels::cuda {
namespace {

using Encoder = decltype(&cuTensorMapEncodeTiled);

absl::StatusOr<Encoder> GetEncoder() {
  constexpr unsigned int kIntroducedIn = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, kIntroducedIn, cudaEnableDefault, &found);
  if (error != cudaSuccess) return CudaStatus(error, "cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::FailedPreconditionError("the driver has no cuTensorMapEncodeTiled of CUDA 12.0");
  }
  return reinterpret_cast<Encoder>(function);
}

absl::StatusOr<CUtensorMapDataType> EncoderType(const TmaPlan& plan) {
  switch (plan.dtype) {
    case DType::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kF64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DType::kI32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::kI64:
      return CU_TENSOR_MAP_DATA_TYPE_INT64;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(plan.builder, ": tensor maps do not support ", DTypeName(plan.dtype)));
  }
}

}  // namespace

absl::StatusOr<TmaTile> EncodeTma(const Device& device, const TmaPlan& plan) {
  QUIRE_RETURN_IF_ERROR(CheckTmaDevice(device, plan));
  return EncodeTma(plan);
}

absl::StatusOr<TmaTile> EncodeTma(const TmaPlan& plan) {
  QUIRE_RETURN_IF_ERROR(CheckTmaPlan(plan));
  QUIRE_ASSIGN_OR_RETURN(const CUtensorMapDataType type, EncoderType(plan));
  QUIRE_ASSIGN_OR_RETURN(const Encoder encode, GetEncoder());
  std::array<cuuint64_t, kMaxTmaRank> extents;
  std::array<cuuint64_t, kMaxTmaRank> strides{};
  std::array<cuuint32_t, kMaxTmaRank> box;
  std::array<cuuint32_t, kMaxTmaRank> steps;
  for (std::size_t i = 0; i < kMaxTmaRank; ++i) {
    extents[i] = plan.extents[i];
    if (i + 1 < kMaxTmaRank) strides[i] = plan.strides[i];
    box[i] = plan.box[i];
    steps[i] = 1;
  }
  CUtensorMap map;
  static_assert(sizeof(map) == sizeof(TmaTile::descriptor) && alignof(CUtensorMap) <= 128);
  // The enumerators of swizzle and promotion have the same values as those of the driver API.
  const CUresult result =
      encode(&map, type, plan.rank, const_cast<void*>(plan.base), extents.data(), strides.data(),
             box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
             static_cast<CUtensorMapSwizzle>(plan.swizzle),
             static_cast<CUtensorMapL2promotion>(plan.l2), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(absl::StrCat(
        plan.builder, ": the driver refused the tensor map, error ", static_cast<int>(result)));
  }
  TmaTile tile;
  std::memcpy(tile.descriptor.data(), &map, sizeof(map));
  tile.tile_shape = plan.tile;
  tile.box_shape = plan.box;
  tile.rank = plan.rank;
  tile.bytes = plan.tile_bytes();
  tile.box_bytes = plan.box_bytes();
  return tile;
}

}  // namespace quire::kernels::cuda

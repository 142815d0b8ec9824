#include "kernels/cuda/tma_descriptor.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

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
  constexpr std::pair<DType, CUtensorMapDataType> kTypes[] = {
      {DType::kBF16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16},
      {DType::kF16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16},
      {DType::kF32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32},
      {DType::kF64, CU_TENSOR_MAP_DATA_TYPE_FLOAT64},
      {DType::kI32, CU_TENSOR_MAP_DATA_TYPE_INT32},
      {DType::kI64, CU_TENSOR_MAP_DATA_TYPE_INT64},
      {DType::kF8E4M3, CU_TENSOR_MAP_DATA_TYPE_UINT8},
      {DType::kI8, CU_TENSOR_MAP_DATA_TYPE_UINT8},
      {DType::kU8, CU_TENSOR_MAP_DATA_TYPE_UINT8},
  };
  for (const auto& [dtype, type] : kTypes) {
    if (dtype == plan.dtype) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(plan.builder, ": tensor maps do not support ", DTypeName(plan.dtype)));
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

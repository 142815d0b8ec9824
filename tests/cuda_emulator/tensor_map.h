#pragma once

// Tensor maps: cuTensorMapEncodeTiled according to the rules of cuda.h, and the boxes that copies
// load through them.

#include <cuda.h>

#include <cstdint>

namespace quire::cuda_emulator {

// The emulated cuTensorMapEncodeTiled. Returns CUDA_ERROR_INVALID_VALUE for values that the
// comments of cuda.h forbid, and for unsupported ones: interleaved layouts, packed types below 8
// bits, swizzles in units other than 16 bytes.
CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                     const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                     const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                     CUtensorMapFloatOOBfill fill);

// Issues the load of the box at `coordinates` (`rank` of them, fastest first) to shared memory. Its
// bytes, with zeros outside the tensor, arrive some time before a wait on the barrier at shared
// address `barrier` returns.
void LoadBox(void* shared, const CUtensorMap* map, std::uint32_t barrier, std::uint32_t rank,
             const std::int32_t* coordinates);

// The same for two dimensions, in every block of the cluster whose rank is a bit of `ranks`, for
// the barrier at the same address there.
void MulticastBox(void* shared, const CUtensorMap* map, std::uint32_t barrier,
                  const std::int32_t* coordinates, std::uint32_t ranks);

// The same for a run of bytes.
void LoadBytes(void* shared, const void* global, std::uint32_t bytes, std::uint32_t barrier);

}  // namespace quire::cuda_emulator

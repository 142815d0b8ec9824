#pragma once

// The functions of NCCL 2 that quire calls, as a table: the library is opened at run time, and
// tests put functions of their own here. NCCL's header comes with no CUDA toolkit, so they are
// declared here as it has them.

#include <cstddef>

struct CUstream_st;
struct ncclComm;

namespace quire::kernels {

using NcclComm = ::ncclComm*;
using NcclResult = int;  // ncclResult_t
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr int kNcclInt8 = 0;  // of ncclDataType_t

struct NcclApi {
  // A communicator for each of the devices, as ranks in their order, in one process.
  NcclResult (*init_all)(NcclComm* comms, int num_devices, const int* devices);
  NcclResult (*all_gather)(const void* part, void* all, std::size_t part_elements, int type,
                           NcclComm comm, CUstream_st* stream);
  // What lies between is for several ranks, which one thread speaks for.
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*async_error)(NcclComm comm, NcclResult* error);
  // Ends what the communicator has under way, and frees it.
  NcclResult (*abort)(NcclComm comm);
  const char* (*error_string)(NcclResult result);
  const char* (*last_error)(NcclComm comm);
};

}  // namespace quire::kernels

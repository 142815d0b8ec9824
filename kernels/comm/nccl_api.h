#pragma once

// The table of the NCCL 2 functions that quire calls. The library is opened at run time, and tests
// supply other functions. The CUDA toolkit does not include NCCL's header, so the types are
// declared here.

#include <cstddef>

struct CUstream_st;
struct ncclComm;

namespace quire::kernels {

using NcclComm = ::ncclComm*;
using NcclResult = int;  // ncclResult_t
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr int kNcclInt8 = 0;  // ncclInt8 of ncclDataType_t

struct NcclApi {
  // Creates one communicator per device in one process, with ranks in the order of `devices`.
  NcclResult (*init_all)(NcclComm* comms, int num_devices, const int* devices);
  NcclResult (*all_gather)(const void* part, void* all, std::size_t part_elements, int type,
                           NcclComm comm, CUstream_st* stream);
  // One thread may call operations of several ranks between group_start and group_end.
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*async_error)(NcclComm comm, NcclResult* error);
  // Aborts pending operations of the communicator and frees it.
  NcclResult (*abort)(NcclComm comm);
  const char* (*error_string)(NcclResult result);
  const char* (*last_error)(NcclComm comm);
};

}  // namespace quire::kernels

#pragma once

// Marks a function that kernels call on the device as well as host code.
#ifdef __CUDACC__
#define QUIRE_HOST_DEVICE __host__ __device__
#else
#define QUIRE_HOST_DEVICE
#endif

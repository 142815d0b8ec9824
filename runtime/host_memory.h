#pragma once

// The memory of the host that a process can still use.

#include <cstdint>

namespace quire::runtime {

// Returns the memory available without swapping (proc(5), MemAvailable), within the cgroup's limit.
std::int64_t FreeHostMemory();

}  // namespace quire::runtime

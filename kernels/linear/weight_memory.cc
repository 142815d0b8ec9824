#include "kernels/linear/weight_memory.h"

#include "base/check.h"
#include "base/status.h"

namespace quire::kernels {

absl::StatusOr<WeightMemory> WeightMemory::Allocate(std::int64_t size_bytes) {
  WeightMemory memory;
  QUIRE_ASSIGN_OR_RETURN(memory.block_, DeviceBuffer::Allocate(MemoryKind::kDevice, size_bytes));
  return memory;
}

DeviceBuffer WeightMemory::Take(std::int64_t size_bytes) {
  QUIRE_CHECK(PaddedBytes(size_bytes) <= left_bytes());
  DeviceBuffer piece = block_.Part(used_, size_bytes);
  used_ += PaddedBytes(size_bytes);
  return piece;
}

}  // namespace quire::kernels

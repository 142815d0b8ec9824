// Fuzzes the cached packed weights of an earlier start.

#include <array>

#include "runtime/packed_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

void Read(absl::string_view content) {
  static const TestBackend& cpu = *new TestBackend();
  std::array<std::byte, 40> small{};
  std::array<std::byte, 100> large{};
  const Weights::Section sections[] = {{"norm f32 [10]", small}, {"head int8 [10, 10]", large}};
  const fuzz::MemoryFile file(content);
  const absl::Status status = runtime::ReadPackedFile(
      file.path(), {.fingerprint = "f", .quantization = "int8"}, sections, cpu.backend);
  QUIRE_CHECK(status.ok() || absl::IsDataLoss(status));
}

}  // namespace
}  // namespace quire::models

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quire::models::Read(quire::fuzz::AsText(data, size));
  return 0;
}

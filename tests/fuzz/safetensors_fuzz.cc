// Fuzzes the header of a safetensors file.

#include "formats/tensors/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tensors =
      quire::formats::ReadSafetensors(quire::fuzz::AsBytes(data, size), "fuzz.safetensors");
  if (!tensors.ok()) return 0;
  for (const quire::formats::StoredTensor& tensor : *tensors) {
    quire::fuzz::TouchAll(tensor.bytes);
    QUIRE_CHECK(!tensor.ShapeText().empty() && tensor.num_elements() >= 0);
  }
  return 0;
}

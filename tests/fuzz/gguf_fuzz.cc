// Fuzzes a GGUF file: the container, the table of tensors, and the tokenizer in its metadata.

#include "formats/gguf.h"
#include "formats/model_files.h"
#include "formats/tensors/gguf_tensors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_exercise.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::formats {
namespace {

void Read(std::span<const std::byte> bytes) {
  const ModelFiles files = ModelFiles::FromMemory("fuzz", {{"fuzz.gguf", bytes}});
  const auto opened = OpenGguf(files);
  if (!opened.ok()) return;
  for (const absl::string_view key : opened->gguf.keys()) {
    (void)opened->gguf.OptionalString(key);
    (void)opened->gguf.OptionalStrings(key);
    (void)opened->gguf.OptionalFloats(key);
    (void)opened->gguf.OptionalIntegers(key);
    (void)opened->gguf.OptionalBools(key);
  }
  const auto loaded = LoadGgufTensors(*opened);
  if (loaded.ok()) {
    for (const StoredTensor& tensor : loaded->tensors) fuzz::TouchAll(tensor.bytes);
  }
  (void)ReadRopeFactors(*opened, kRopeFactors);
  const auto vocabulary = text::ReadGgufVocabulary(opened->gguf);
  if (!vocabulary.ok()) return;
  const auto tokenizer = text::Tokenizer::FromGguf(*vocabulary);
  if (tokenizer.ok()) fuzz::ExerciseTokenizer(**tokenizer);
}

}  // namespace
}  // namespace quire::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quire::formats::Read(quire::fuzz::AsBytes(data, size));
  return 0;
}

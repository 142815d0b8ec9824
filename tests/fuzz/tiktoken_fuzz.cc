// Fuzzes tokenizer.tiktoken up to the first NUL, then tokenizer_config.json, if there is one.

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_exercise.h"
#include "text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  absl::string_view config = quire::fuzz::AsText(data, size);
  const absl::string_view file = quire::fuzz::TakePart(&config, '\0');
  const auto tokenizer = quire::text::Tokenizer::FromTiktoken(file, config);
  if (tokenizer.ok()) quire::fuzz::ExerciseTokenizer(**tokenizer);
  return 0;
}

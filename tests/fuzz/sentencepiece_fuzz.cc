// Fuzzes a tokenizer.model of SentencePiece.

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_exercise.h"
#include "text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tokenizer =
      quire::text::Tokenizer::FromSentencePiece(quire::fuzz::AsText(data, size), "");
  if (tokenizer.ok()) quire::fuzz::ExerciseTokenizer(**tokenizer);
  return 0;
}

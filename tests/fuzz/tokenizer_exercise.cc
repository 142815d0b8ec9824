#include "tests/fuzz/tokenizer_exercise.h"

#include <string>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/utf8.h"
#include "text/detokenizer.h"

namespace quire::fuzz {
namespace {

constexpr absl::string_view kSample =
    "Hello  world, it's 123\t\xE6\xBC\xA2\xF0\x9F\x98\x80 <s>A\xCC\x81 \xE2\x96\x81|[INST]\n";

}  // namespace

void ExerciseTokenizer(const text::Tokenizer& tokenizer) {
  const auto ids = tokenizer.Encode(kSample, {});
  if (!ids.ok()) return;
  const auto pieces = tokenizer.EncodeWithPieces(kSample, {});
  QUIRE_CHECK(pieces.ok() && pieces->size() == ids->size());
  const auto text = tokenizer.Decode(*ids, /*skip_special_tokens=*/false);
  QUIRE_CHECK(text.ok());
  text::Detokenizer detokenizer(tokenizer, /*skip_special_tokens=*/false);
  std::string streamed;
  for (const std::int32_t id : *ids) streamed += detokenizer.Push(id);
  streamed += detokenizer.Finish();
  QUIRE_CHECK(streamed == *text);
  QUIRE_CHECK(!FirstInvalidUtf8(streamed).has_value());
  (void)tokenizer.Encode(kSample, {.parse_special_tokens = false, .from_template = true});
}

}  // namespace quire::fuzz

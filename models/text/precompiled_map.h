#pragma once

// SentencePiece's character map, as the normalizer Precompiled of tokenizer.json carries it.
//
// Place:      below Normalizer.
// Invariants: every look-up stays inside the map, whatever its bytes say.
// Threads:    immutable.
// Source:     sentencepiece, builder of normalization rules (a darts-clone double array and a text
//             with a zero byte behind each replacement); huggingface/spm_precompiled for how it is
//             applied.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/text/aligned_text.h"

namespace quire::text {

class PrecompiledMap {
 public:
  // Errors: INVALID_ARGUMENT for bad Base64, sizes that do not fit, or replacements that are not
  // UTF-8.
  static absl::StatusOr<PrecompiledMap> FromBase64(absl::string_view base64);

  // Replaces each grapheme cluster of less than six bytes by the image of the *shortest* map entry
  // that begins it, otherwise each of its characters; as Hugging Face tokenizers, not as
  // sentencepiece.
  AlignedText Apply(const AlignedText& text) const;

 private:
  PrecompiledMap() = default;
  // The replacement of the shortest entry that begins `text`.
  std::optional<absl::string_view> Find(absl::string_view text) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace quire::text

#pragma once

// SentencePiece's character map, as the normalizer Precompiled of tokenizer.json carries it.
//
// Place:      below Normalizer and SentencePieceNormalizer.
// Invariants: every look-up stays inside the map, whatever its bytes say, and reads at most
//             kMaxEntryBytes of the text.
// Threads:    immutable.
// Source:     sentencepiece, builder of normalization rules (a darts-clone double array and a text
//             with a zero byte behind each replacement); huggingface/spm_precompiled for how it is
//             applied.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/unicode/aligned_text.h"

namespace quire::text {

class PrecompiledMap {
 public:
  PrecompiledMap() = default;  // without entries

  // Errors: INVALID_ARGUMENT for bad Base64, sizes that do not fit, or replacements that are not
  // UTF-8 or too long.
  static absl::StatusOr<PrecompiledMap> FromBase64(absl::string_view base64);
  static absl::StatusOr<PrecompiledMap> FromBytes(absl::string_view bytes);

  struct Entry {
    std::size_t size_bytes;   // of the text it stands for; whole characters
    absl::string_view image;  // what replaces it
  };
  // The longest entry that begins `text`, as sentencepiece takes it. REQUIRES: `text` is UTF-8.
  std::optional<Entry> Longest(absl::string_view text) const;

  // Replaces each grapheme cluster of less than six bytes by the image of the *shortest* map entry
  // that begins it, otherwise each of its characters; as Hugging Face tokenizers, not as
  // sentencepiece.
  AlignedText Apply(const AlignedText& text) const;

 private:
  static constexpr std::size_t kMaxEntryBytes = 512;

  // The replacement of the shortest entry that begins `text`.
  std::optional<absl::string_view> Find(absl::string_view text) const;
  // Calls `use(entry)` for the entries that begin `text`, shortest first, while it returns true.
  template <typename Use>
  void ForEachEntry(absl::string_view text, Use use) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace quire::text

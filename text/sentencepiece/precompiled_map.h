#pragma once

// SentencePiece's character map, which tokenizer.json stores in its Precompiled normalizer.
//
// Place:      below Normalizer and SentencePieceNormalizer.
// Invariants: every look-up stays inside the map, even if the map is malformed, and reads at most
//             kMaxEntryBytes of the text.
// Threads:    immutable.
// Source:     sentencepiece, builder of normalization rules (a darts-clone double array, and
//             replacements that end with a zero byte); huggingface/spm_precompiled for Apply.

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

  // Returns INVALID_ARGUMENT for bad Base64, inconsistent sizes, and replacements that are too long
  // or not UTF-8.
  static absl::StatusOr<PrecompiledMap> FromBase64(absl::string_view base64);
  static absl::StatusOr<PrecompiledMap> FromBytes(absl::string_view bytes);

  struct Entry {
    std::size_t size_bytes;   // size of the replaced text, which consists of whole characters
    absl::string_view image;  // the replacement
  };
  // Returns the longest entry that is a prefix of `text`, as sentencepiece does. REQUIRES: `text`
  // is UTF-8.
  std::optional<Entry> Longest(absl::string_view text) const;

  // Replaces each grapheme cluster of less than six bytes by the image of the *shortest* entry that
  // is a prefix of the cluster. If the cluster is longer or no entry matches, does this for each
  // character of the cluster instead. Hugging Face tokenizers does the same, but sentencepiece does
  // not.
  AlignedText Apply(const AlignedText& text) const;

 private:
  static constexpr std::size_t kMaxEntryBytes = 512;

  // Returns the replacement of the shortest entry that is a prefix of `text`.
  std::optional<absl::string_view> Find(absl::string_view text) const;
  // Calls `use(entry)` for the entries that are prefixes of `text`, shortest first, until `use`
  // returns false.
  template <typename Use>
  void ForEachEntry(absl::string_view text, Use use) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace quire::text

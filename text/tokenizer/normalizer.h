#pragma once

// The normalizer of tokenizer.json or tokenizer.model, which rewrites text before it is split.
//
// Place:      between the two searches for added tokens. Sequences are flattened while loading.
// Invariants: every step runs in O(n log n) in the size of the text, even for long runs of
//             combining marks.
// Threads:    immutable; the scratch serves one thread.
// Source:     huggingface/tokenizers 0.23, `normalizers`.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/json_value.h"
#include "text/sentencepiece/precompiled_map.h"
#include "text/sentencepiece/sentencepiece_normalizer.h"
#include "text/unicode/aligned_text.h"
#include "text/unicode/normal_form.h"
#include "text/unicode/regex.h"

namespace quire::text {

class Normalizer {
 public:
  // `config` is the value of "normalizer"; null: text is unchanged.
  static absl::StatusOr<Normalizer> FromJson(const formats::JsonValue& config);

  static Normalizer OfSentencePiece(SentencePieceNormalizer sentencepiece);

  absl::Status Apply(AlignedText& text, RegexScratch& scratch) const;

  bool changes_nothing() const { return steps_.empty(); }

 private:
  enum class Kind {
    kNormalForm,
    kLowercase,
    kStrip,
    kStripAccents,
    kReplace,
    kPrepend,
    kByteLevel,
    kPrecompiled,
    kSentencePiece
  };
  struct Step {
    Kind kind;
    NormalForm form = NormalForm::kNfc;  // kNormalForm
    std::optional<Regex> pattern;        // kReplace
    std::string content;                 // kReplace, kPrepend
    bool strip_left = false;             // kStrip
    bool strip_right = false;
    std::optional<PrecompiledMap> map;                     // kPrecompiled
    std::optional<SentencePieceNormalizer> sentencepiece;  // kSentencePiece
  };

  absl::Status AddStep(const formats::JsonValue& config);

  std::vector<Step> steps_;
};

}  // namespace quire::text

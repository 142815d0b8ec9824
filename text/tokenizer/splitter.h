#pragma once

// The pre-tokenizer of tokenizer.json, which splits text into pieces that the model encodes
// separately.
//
// Place:      between normalizer and model. Sequences are flattened while loading.
// Invariants: pieces are in order, never empty, and do not overlap. Each step splits the pieces of
//             the previous step separately, so no match crosses the border between two pieces.
// Threads:    immutable; the scratch serves one thread.
// Source:     huggingface/tokenizers 0.23, `pre_tokenizers`; NormalizedString::split.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/json_value.h"
#include "text/tokenizer/component.h"
#include "text/unicode/aligned_text.h"
#include "text/unicode/regex.h"

namespace quire::text {

// Bytes [begin, end) of the text. `input_begin` is the position of the piece in the input, or -1 if
// the text is not tracked (aligned_text.h).
struct Piece {
  std::size_t begin;
  std::size_t end;
  std::int32_t input_begin;
};

struct PieceList {
  AlignedText text;
  std::vector<Piece> pieces;
};

class Splitter {
 public:
  // `config` is the value of "pre_tokenizer"; null: the text is one piece.
  static absl::StatusOr<Splitter> FromJson(const formats::JsonValue& config);

  // Splits at the matches of `pattern` and maps all bytes to the byte-level alphabet.
  static Splitter OfByteLevel(Regex pattern);

  // Splits the pieces in `list`. REQUIRES: list.text is tracked if needs_tracking().
  absl::Status Split(PieceList& list, RegexScratch& scratch) const;

  // Returns whether every byte becomes a character of the byte-level alphabet in some piece.
  bool maps_every_byte() const;

  // Whether Split needs tracked text. Metaspace with scheme "first" has to know whether a piece
  // starts at input offset 0.
  bool needs_tracking() const { return needs_tracking_; }

 private:
  enum class Kind { kPattern, kSpace, kPunctuation, kDigits, kByteLevel, kMetaspace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    Kind kind;
    std::optional<Regex> pattern;  // kPattern, kByteLevel; nullopt for kByteLevel without use_regex
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    bool adds_prefix_space = false;                 // kByteLevel
    std::string sign;                               // kMetaspace
    PrependScheme scheme = PrependScheme::kAlways;  // kMetaspace
    bool splits = true;                             // kMetaspace
  };
  struct Range {
    std::size_t begin;
    std::size_t end;
    bool is_match;
  };

  static absl::StatusOr<Behavior> BehaviorOf(const formats::JsonValue& config);
  absl::Status AddStep(const formats::JsonValue& config);
  absl::Status AddByteLevel(const formats::JsonValue& config);
  absl::Status AddMetaspace(const formats::JsonValue& config);

  // Finds the matches in `piece` and the ranges between them, in order. Offsets are relative to the
  // whole text.
  static absl::Status FindRanges(const Step& step, const AlignedText& text, const Piece& piece,
                                 RegexScratch& scratch, std::vector<Range>& ranges);
  static void JoinRanges(Behavior behavior, std::vector<Range>& ranges);
  static absl::Status SplitPieces(const Step& step, PieceList& list, RegexScratch& scratch);
  static void AddPrefixSpaces(PieceList& list);
  static void MapBytes(PieceList& list);
  static void InsertSigns(const Step& step, PieceList& list);

  std::vector<Step> steps_;
  bool needs_tracking_ = false;
};

}  // namespace quire::text

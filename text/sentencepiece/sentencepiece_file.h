#pragma once

// Parses and validates a tokenizer.model file of SentencePiece.
//
// Place:      below the tokenizer that is built from it. Code generated from tokenizer_model.proto
//             parses the message; only sentencepiece_file.cc uses that code.
// Invariants: piece texts are unique, non-empty and valid UTF-8. Scores are finite. Exactly one
//             piece is the unknown piece. With byte_fallback each byte has a piece.
// Threads:    a value type; one thread at a time per object.
// Source:     sentencepiece: sentencepiece_model.proto for field numbers and defaults,
//             model_interface.cc for the validity rules.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/subword/prefix_trie.h"

namespace quire::text {

struct SentencePiece {
  // The file format defines the numbers.
  enum class Type : std::int32_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };

  std::string text;
  float score = 0;
  Type type = Type::kNormal;
  // True if text of the prompt can match this piece. Byte pieces come only from byte fallback.
  bool matches_text() const {
    return type == Type::kNormal || type == Type::kUserDefined || type == Type::kUnused;
  }
};

struct SentencePieceFile {
  enum class Kind { kUnigram, kBpe };

  std::vector<SentencePiece> pieces;  // indexed by id
  Kind kind = Kind::kUnigram;
  std::int32_t unk_id = -1;
  std::array<std::int32_t, 256> byte_ids;  // only with byte_fallback
  bool byte_fallback = false;
  std::string unk_surface = " \xE2\x81\x87 ";  // decoded text of the unknown piece
  std::string bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";

  std::string charsmap;  // the input of PrecompiledMap; empty if the file has none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  // Returns the id of the control piece with this text, or -1.
  std::int32_t ControlId(absl::string_view text) const;
  // Returns the texts of the user-defined pieces, with their ids.
  PrefixTrie UserDefinedPieces() const;
};

// Parses the file. Errors name the field, such as `pieces[3].score`, or the byte at which the
// message is malformed. Returns INVALID_ARGUMENT for a malformed message, more than 64 MiB, wrong
// types and values, and duplicate texts. Returns UNIMPLEMENTED for model types other than unigram
// and BPE, and for unsupported settings that would change ids or texts.
absl::StatusOr<SentencePieceFile> ParseSentencePieceFile(absl::string_view bytes);

}  // namespace quire::text

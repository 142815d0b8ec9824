#pragma once

// A file tokenizer.model: what a SentencePiece model consists of, checked value by value.
//
// Place:      below the tokenizer that is built from it. The message is parsed by code that protoc
//             makes of tokenizer_model.proto; nothing of it is seen outside the .cc.
// Invariants: piece texts are UTF-8, not empty and each there once, scores are finite, one piece is
//             the unknown one, with byte_fallback there is one piece for each byte.
// Threads:    a value.
// Source:     sentencepiece, sentencepiece_model.proto, for numbers and defaults of the fields;
//             model_interface.cc for what makes a model invalid.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text {

struct SentencePiece {
  // As numbered in files.
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
  // Whether the text of a prompt can become it; others stand for themselves only.
  bool in_text() const {
    return type == Type::kNormal || type == Type::kUserDefined || type == Type::kUnused;
  }
};

struct SentencePieceFile {
  enum class Kind { kUnigram, kBpe };

  std::vector<SentencePiece> pieces;  // by id
  Kind kind = Kind::kUnigram;
  std::int32_t unk_id = -1;
  std::array<std::int32_t, 256> byte_ids;  // with byte_fallback
  bool byte_fallback = false;
  std::string unk_surface = " \xE2\x81\x87 ";  // what the unknown piece decodes to
  std::string bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";

  std::string charsmap;  // PrecompiledMap; empty: none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  // The control piece of this text, -1: none.
  std::int32_t ControlId(absl::string_view text) const;
};

// Errors name the field, such as `pieces[3].score`, or the byte where the file stops being a
// message: INVALID_ARGUMENT for what is no such message or has more than 64 MiB, wrong types and
// values, texts that two pieces have; UNIMPLEMENTED for model types other than unigram and BPE, and
// for settings that change ids or texts and are not followed here.
absl::StatusOr<SentencePieceFile> ParseSentencePieceFile(absl::string_view bytes);

}  // namespace quire::text

#include "text/sentencepiece/sentencepiece_file.h"

#include <google/protobuf/io/coded_stream.h>

#include <bit>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/subword/model_token.h"

namespace quire::text {
namespace {

// How a field stands in a message: the low three bits of its tag.
enum class Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  int number = 0;
  Wire wire = Wire::kVarint;
  std::uint64_t value = 0;  // of the three kinds of number
  absl::string_view bytes;  // kBytes
};

absl::Status Error(absl::string_view path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(path, " ", problem));
}

absl::Status NotFollowed(absl::string_view path, absl::string_view value) {
  return absl::UnimplementedError(absl::StrCat(path, " is ", value, ", which is not supported"));
}

// The fields of one message, one after the other. Unknown ones are for the caller to ignore.
class MessageReader {
 public:
  MessageReader(absl::string_view message, std::string path)
      : message_(message),
        path_(std::move(path)),
        in_(reinterpret_cast<const std::uint8_t*>(message.data()),
            static_cast<int>(message.size())) {}

  bool at_end() const { return in_.CurrentPosition() == static_cast<int>(message_.size()); }

  absl::StatusOr<Field> Next() {
    const int at = in_.CurrentPosition();
    const std::uint32_t tag = in_.ReadTag();
    Field field;
    field.number = static_cast<int>(tag >> 3);
    field.wire = static_cast<Wire>(tag & 7);
    if (field.number == 0 || !Read(field)) {
      return Error(
          path_, absl::StrCat("is no message: broken field at byte ", at, " of ", message_.size()));
    }
    return field;
  }

 private:
  bool Read(Field& field) {
    std::uint32_t narrow = 0;
    switch (field.wire) {
      case Wire::kVarint:
        return in_.ReadVarint64(&field.value);
      case Wire::kFixed64:
        return in_.ReadLittleEndian64(&field.value);
      case Wire::kFixed32:
        if (!in_.ReadLittleEndian32(&narrow)) return false;
        field.value = narrow;
        return true;
      case Wire::kBytes: {
        if (!in_.ReadVarint32(&narrow)) return false;
        const auto begin = static_cast<std::size_t>(in_.CurrentPosition());
        if (narrow > message_.size() - begin) return false;
        field.bytes = message_.substr(begin, narrow);
        return in_.Skip(static_cast<int>(narrow));
      }
    }
    return false;  // groups, which no published field uses
  }

  absl::string_view message_;
  std::string path_;
  google::protobuf::io::CodedInputStream in_;
};

// Calls `use(field)` for each field of a message.
template <typename Use>
absl::Status ForEachField(absl::string_view message, const std::string& path, Use use) {
  MessageReader reader(message, path);
  while (!reader.at_end()) {
    QUIRE_ASSIGN_OR_RETURN(const Field field, reader.Next());
    QUIRE_RETURN_IF_ERROR(use(field));
  }
  return absl::OkStatus();
}

absl::Status CheckWire(const Field& field, Wire wire, absl::string_view path) {
  if (field.wire == wire) return absl::OkStatus();
  return Error(path, absl::StrCat("has the wire type ", static_cast<std::uint32_t>(field.wire),
                                  ", must have ", static_cast<std::uint32_t>(wire)));
}

absl::Status ReadBool(const Field& field, const std::string& path, bool& value) {
  QUIRE_RETURN_IF_ERROR(CheckWire(field, Wire::kVarint, path));
  value = field.value != 0;
  return absl::OkStatus();
}

absl::Status ReadText(const Field& field, const std::string& path, std::string& value) {
  QUIRE_RETURN_IF_ERROR(CheckWire(field, Wire::kBytes, path));
  if (const auto offset = FirstInvalidUtf8(field.bytes)) {
    return Error(path, absl::StrCat("is not UTF-8 at byte ", *offset));
  }
  value = std::string(field.bytes);
  return absl::OkStatus();
}

absl::Status ReadPiece(absl::string_view message, const std::string& path, SentencePiece& piece) {
  QUIRE_RETURN_IF_ERROR(ForEachField(message, path, [&](const Field& field) -> absl::Status {
    switch (field.number) {
      case 1:
        return ReadText(field, path + ".piece", piece.text);
      case 2:
        QUIRE_RETURN_IF_ERROR(CheckWire(field, Wire::kFixed32, path + ".score"));
        piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
        return absl::OkStatus();
      case 3:
        QUIRE_RETURN_IF_ERROR(CheckWire(field, Wire::kVarint, path + ".type"));
        if (field.value < 1 || field.value > 6) {
          return Error(path + ".type", absl::StrCat("is ", field.value, ", must be in [1, 6]"));
        }
        piece.type = static_cast<SentencePiece::Type>(field.value);
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  }));
  if (piece.text.empty()) return Error(path + ".piece", "is empty");
  if (!std::isfinite(piece.score)) {
    return Error(path + ".score", absl::StrCat("is ", piece.score, ", must be finite"));
  }
  if (piece.text.size() > kMaxScoredBytes) {
    return Error(path + ".piece",
                 absl::StrCat("has ", piece.text.size(), " bytes, the limit is ", kMaxScoredBytes));
  }
  return absl::OkStatus();
}

absl::Status ReadTrainer(absl::string_view message, SentencePieceFile& file) {
  const std::string path = "trainer_spec";
  return ForEachField(message, path, [&](const Field& field) -> absl::Status {
    switch (field.number) {
      case 3: {
        const std::string name = path + ".model_type";
        QUIRE_RETURN_IF_ERROR(CheckWire(field, Wire::kVarint, name));
        if (field.value != 1 && field.value != 2) {
          return absl::UnimplementedError(
              absl::StrCat(name, " is ", field.value,
                           ", which is not supported, must be 1 (unigram) or 2 (BPE)"));
        }
        file.kind =
            field.value == 2 ? SentencePieceFile::Kind::kBpe : SentencePieceFile::Kind::kUnigram;
        return absl::OkStatus();
      }
      case 24: {
        bool is_suffix = false;
        const std::string name = path + ".treat_whitespace_as_suffix";
        QUIRE_RETURN_IF_ERROR(ReadBool(field, name, is_suffix));
        return is_suffix ? NotFollowed(name, "true") : absl::OkStatus();
      }
      case 35:
        return ReadBool(field, path + ".byte_fallback", file.byte_fallback);
      case 44:
        return ReadText(field, path + ".unk_surface", file.unk_surface);
      case 46:
        return ReadText(field, path + ".bos_piece", file.bos_piece);
      case 47:
        return ReadText(field, path + ".eos_piece", file.eos_piece);
      case 48:
        return ReadText(field, path + ".pad_piece", file.pad_piece);
      default:
        return absl::OkStatus();
    }
  });
}

absl::Status ReadNormalizer(absl::string_view message, SentencePieceFile& file) {
  const std::string path = "normalizer_spec";
  return ForEachField(message, path, [&](const Field& field) -> absl::Status {
    switch (field.number) {
      case 2:
        QUIRE_RETURN_IF_ERROR(CheckWire(field, Wire::kBytes, path + ".precompiled_charsmap"));
        file.charsmap = std::string(field.bytes);
        return absl::OkStatus();
      case 3:
        return ReadBool(field, path + ".add_dummy_prefix", file.add_dummy_prefix);
      case 4:
        return ReadBool(field, path + ".remove_extra_whitespaces", file.remove_extra_whitespaces);
      case 5:
        return ReadBool(field, path + ".escape_whitespaces", file.escape_whitespaces);
      default:
        return absl::OkStatus();
    }
  });
}

// Anything that would rewrite decoded text.
absl::Status CheckDenormalizer(absl::string_view message) {
  return ForEachField(message, "denormalizer_spec", [](const Field& field) -> absl::Status {
    if (field.number != 2 || field.bytes.empty()) return absl::OkStatus();
    return NotFollowed("denormalizer_spec.precompiled_charsmap",
                       absl::StrCat(field.bytes.size(), " bytes long"));
  });
}

absl::Status ReadModel(absl::string_view bytes, SentencePieceFile& file) {
  std::size_t total_bytes = 0;
  return ForEachField(bytes, "the file", [&](const Field& field) -> absl::Status {
    if (field.number < 1 || field.number > 5) return absl::OkStatus();
    constexpr absl::string_view kNames[] = {"pieces", "trainer_spec", "normalizer_spec",
                                            "self_test_data", "denormalizer_spec"};
    QUIRE_RETURN_IF_ERROR(CheckWire(field, Wire::kBytes, kNames[field.number - 1]));
    switch (field.number) {
      case 1: {
        if (file.pieces.size() == static_cast<std::size_t>(kMaxTokenIds)) {
          return Error("pieces", absl::StrCat("has more than ", kMaxTokenIds, " entries"));
        }
        total_bytes += field.bytes.size();
        if (total_bytes > kMaxVocabularyBytes) {
          return Error("pieces", absl::StrCat("has more than ", kMaxVocabularyBytes, " bytes"));
        }
        const std::string path = absl::StrCat("pieces[", file.pieces.size(), "]");
        return ReadPiece(field.bytes, path, file.pieces.emplace_back());
      }
      case 2:
        return ReadTrainer(field.bytes, file);
      case 3:
        return ReadNormalizer(field.bytes, file);
      case 5:
        return CheckDenormalizer(field.bytes);
      default:
        return absl::OkStatus();
    }
  });
}

// The value of `<0xHH>`, -1: another text.
int ByteOf(absl::string_view text) {
  unsigned value = 256;
  if (text.size() == 6) absl::SimpleHexAtoi(text.substr(3, 2), &value);
  return value < 256 && text == absl::StrFormat("<0x%02X>", value) ? static_cast<int>(value) : -1;
}

absl::Status IndexPieces(SentencePieceFile& file) {
  absl::flat_hash_map<absl::string_view, std::size_t> texts;
  bool has_normal = false;
  file.byte_ids.fill(-1);
  for (std::size_t i = 0; i < file.pieces.size(); ++i) {
    const SentencePiece& piece = file.pieces[i];
    const std::string path = absl::StrCat("pieces[", i, "]");
    const auto [it, is_new] = texts.emplace(piece.text, i);
    if (!is_new) {
      return Error(path + ".piece",
                   absl::StrCat("is \"", piece.text, "\", which pieces[", it->second, "] is too"));
    }
    has_normal = has_normal || piece.type == SentencePiece::Type::kNormal;
    if (piece.type == SentencePiece::Type::kUnknown) {
      if (file.unk_id >= 0) {
        return Error(path + ".type",
                     absl::StrCat("is UNKNOWN, which pieces[", file.unk_id, "] is too"));
      }
      file.unk_id = static_cast<std::int32_t>(i);
    }
    if (piece.type != SentencePiece::Type::kByte) continue;
    if (!file.byte_fallback) {
      return Error(path + ".type", "is BYTE, but trainer_spec.byte_fallback is false");
    }
    const int byte = ByteOf(piece.text);
    if (byte < 0) {
      return Error(path + ".piece", absl::StrCat("is \"", piece.text,
                                                 "\", must be <0x00> to <0xFF> for the type BYTE"));
    }
    file.byte_ids[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(i);
  }
  if (!has_normal) return Error("pieces", "has no piece of type NORMAL");
  if (file.unk_id < 0) return Error("pieces", "has no piece of type UNKNOWN");
  for (std::size_t byte = 0; file.byte_fallback && byte < file.byte_ids.size(); ++byte) {
    if (file.byte_ids[byte] >= 0) continue;
    return Error("trainer_spec.byte_fallback",
                 absl::StrFormat("is true, but no piece is <0x%02X>", byte));
  }
  return absl::OkStatus();
}

}  // namespace

std::int32_t SentencePieceFile::ControlId(absl::string_view text) const {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].type == SentencePiece::Type::kControl && pieces[i].text == text) {
      return static_cast<std::int32_t>(i);
    }
  }
  return -1;
}

absl::StatusOr<SentencePieceFile> ParseSentencePieceFile(absl::string_view bytes) {
  SentencePieceFile file;
  QUIRE_RETURN_IF_ERROR(ReadModel(bytes, file));
  QUIRE_RETURN_IF_ERROR(IndexPieces(file));
  return file;
}

}  // namespace quire::text

#include "text/sentencepiece/sentencepiece_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/sentencepiece/tokenizer_model.pb.h"
#include "text/subword/model_token.h"

namespace quire::text {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::UnknownFieldSet;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

using wire::ModelProto;

// Maximum size of a file. It limits the memory of the parsed message, in which an unknown field of
// two bytes takes 16 bytes. The number of pieces has its own limit (HasTooManyPieces). The largest
// published files have 5 MB.
constexpr std::size_t kMaxFileBytes = 2 * kMaxVocabularyBytes;

absl::Status Error(absl::string_view path, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(path, " ", problem));
}

absl::Status UnsupportedError(absl::string_view path, absl::string_view value) {
  return absl::UnimplementedError(absl::StrCat(path, " is ", value, ", which is not supported"));
}

// Returns the offset at which the message is malformed, or nullopt if it is well-formed. The
// generated parser does not report this offset.
std::optional<std::size_t> MalformedFieldOffset(absl::string_view bytes,
                                                const Descriptor& message) {
  CodedInputStream in(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  while (in.CurrentPosition() < static_cast<int>(bytes.size())) {
    const auto at = static_cast<std::size_t>(in.CurrentPosition());
    const std::uint32_t tag = in.ReadTag();
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    const FieldDescriptor* const field = message.FindFieldByNumber(number);
    if (field == nullptr || field->message_type() == nullptr ||
        WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (number == 0 || !WireFormatLite::SkipField(&in, tag)) return at;
      continue;
    }
    std::uint32_t size = 0;
    const bool has_size = in.ReadVarint32(&size);
    const auto begin = static_cast<std::size_t>(in.CurrentPosition());
    if (!has_size || size > bytes.size() - begin) return at;
    const auto found = MalformedFieldOffset(bytes.substr(begin, size), *field->message_type());
    if (found) return begin + *found;
    in.Skip(static_cast<int>(size));
  }
  return std::nullopt;
}

// Counts the pieces before they are parsed, because a parsed piece may take 40 times its bytes in
// the file. Reads only tags; the parser reports malformed messages.
bool HasTooManyPieces(absl::string_view bytes) {
  CodedInputStream in(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  std::int32_t pieces = 0;
  while (const std::uint32_t tag = in.ReadTag()) {
    if (WireFormatLite::GetTagFieldNumber(tag) == ModelProto::kPiecesFieldNumber &&
        ++pieces > kMaxTokenIds) {
      return true;
    }
    if (!WireFormatLite::SkipField(&in, tag)) return false;
  }
  return false;
}

absl::StatusOr<ModelProto> ParseMessage(absl::string_view bytes) {
  if (bytes.size() > kMaxFileBytes) {
    return Error("the file",
                 absl::StrCat("has ", bytes.size(), " bytes, the limit is ", kMaxFileBytes));
  }
  if (HasTooManyPieces(bytes)) {
    return Error("pieces", absl::StrCat("has more than ", kMaxTokenIds, " entries"));
  }
  ModelProto model;
  if (model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return model;
  const std::size_t at =
      MalformedFieldOffset(bytes, *ModelProto::descriptor()).value_or(bytes.size());
  return Error("the file", absl::StrCat("is not a valid message: malformed field at byte ", at,
                                        " of ", bytes.size()));
}

// The parser treats a field of the wrong wire type as an unknown field.
absl::Status CheckWireTypes(const Message& message, absl::string_view path) {
  const UnknownFieldSet& unknown = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const FieldDescriptor* const field =
        message.GetDescriptor()->FindFieldByNumber(unknown.field(i).number());
    if (field == nullptr) continue;
    constexpr int kWireTypes[] = {0, 5, 1, 2, 3};  // indexed by UnknownField::Type
    return Error(
        absl::StrCat(path, path.empty() ? "" : ".", field->name()),
        absl::StrCat("has the wire type ", kWireTypes[unknown.field(i).type()], ", must have ",
                     static_cast<int>(WireFormat::WireTypeForField(field))));
  }
  return absl::OkStatus();
}

absl::Status CheckUtf8(absl::string_view text, absl::string_view path) {
  const auto offset = FirstInvalidUtf8(text);
  return offset ? Error(path, absl::StrCat("is not UTF-8 at byte ", *offset)) : absl::OkStatus();
}

absl::Status ReadPiece(const ModelProto::Piece& message, const std::string& path,
                       SentencePiece& piece) {
  QUIRE_RETURN_IF_ERROR(CheckWireTypes(message, path));
  QUIRE_RETURN_IF_ERROR(CheckUtf8(message.piece(), path + ".piece"));
  if (message.type() < 1 || message.type() > 6) {
    return Error(path + ".type", absl::StrCat("is ", message.type(), ", must be in [1, 6]"));
  }
  if (message.piece().empty()) return Error(path + ".piece", "is empty");
  if (!std::isfinite(message.score())) {
    return Error(path + ".score", absl::StrCat("is ", message.score(), ", must be finite"));
  }
  if (message.piece().size() > kMaxScoredBytes) {
    return Error(path + ".piece", absl::StrCat("has ", message.piece().size(),
                                               " bytes, the limit is ", kMaxScoredBytes));
  }
  piece = {.text = message.piece(),
           .score = message.score(),
           .type = static_cast<SentencePiece::Type>(message.type())};
  return absl::OkStatus();
}

absl::Status ReadPieces(const ModelProto& model, SentencePieceFile& file) {
  std::size_t total_bytes = 0;
  file.pieces.resize(static_cast<std::size_t>(model.pieces_size()));
  for (int i = 0; i < model.pieces_size(); ++i) {
    total_bytes += model.pieces(i).ByteSizeLong();
    if (total_bytes > kMaxVocabularyBytes) {
      return Error("pieces", absl::StrCat("has more than ", kMaxVocabularyBytes, " bytes"));
    }
    QUIRE_RETURN_IF_ERROR(ReadPiece(model.pieces(i), absl::StrCat("pieces[", i, "]"),
                                    file.pieces[static_cast<std::size_t>(i)]));
  }
  return absl::OkStatus();
}

absl::Status ReadTrainer(const ModelProto::TrainerSpec& trainer, SentencePieceFile& file) {
  const std::string path = "trainer_spec";
  QUIRE_RETURN_IF_ERROR(CheckWireTypes(trainer, path));
  if (trainer.model_type() != 1 && trainer.model_type() != 2) {
    return absl::UnimplementedError(
        absl::StrCat(path, ".model_type is ", trainer.model_type(),
                     ", which is not supported, must be 1 (unigram) or 2 (BPE)"));
  }
  file.kind =
      trainer.model_type() == 2 ? SentencePieceFile::Kind::kBpe : SentencePieceFile::Kind::kUnigram;
  if (trainer.treat_whitespace_as_suffix()) {
    return UnsupportedError(path + ".treat_whitespace_as_suffix", "true");
  }
  file.byte_fallback = trainer.byte_fallback();
  QUIRE_RETURN_IF_ERROR(CheckUtf8(trainer.unk_surface(), path + ".unk_surface"));
  QUIRE_RETURN_IF_ERROR(CheckUtf8(trainer.bos_piece(), path + ".bos_piece"));
  QUIRE_RETURN_IF_ERROR(CheckUtf8(trainer.eos_piece(), path + ".eos_piece"));
  QUIRE_RETURN_IF_ERROR(CheckUtf8(trainer.pad_piece(), path + ".pad_piece"));
  file.unk_surface = trainer.unk_surface();
  file.bos_piece = trainer.bos_piece();
  file.eos_piece = trainer.eos_piece();
  file.pad_piece = trainer.pad_piece();
  return absl::OkStatus();
}

absl::Status ReadModel(absl::string_view bytes, SentencePieceFile& file) {
  QUIRE_ASSIGN_OR_RETURN(const ModelProto model, ParseMessage(bytes));
  QUIRE_RETURN_IF_ERROR(CheckWireTypes(model, ""));
  QUIRE_RETURN_IF_ERROR(ReadPieces(model, file));
  QUIRE_RETURN_IF_ERROR(ReadTrainer(model.trainer_spec(), file));
  const ModelProto::NormalizerSpec& normalizer = model.normalizer_spec();
  QUIRE_RETURN_IF_ERROR(CheckWireTypes(normalizer, "normalizer_spec"));
  file.charsmap = normalizer.precompiled_charsmap();
  file.add_dummy_prefix = normalizer.add_dummy_prefix();
  file.remove_extra_whitespaces = normalizer.remove_extra_whitespaces();
  file.escape_whitespaces = normalizer.escape_whitespaces();
  // A denormalizer would change decoded text.
  const ModelProto::NormalizerSpec& denormalizer = model.denormalizer_spec();
  QUIRE_RETURN_IF_ERROR(CheckWireTypes(denormalizer, "denormalizer_spec"));
  if (denormalizer.precompiled_charsmap().empty()) return absl::OkStatus();
  return UnsupportedError("denormalizer_spec.precompiled_charsmap",
                          absl::StrCat(denormalizer.precompiled_charsmap().size(), " bytes long"));
}

// Returns the value of `<0xHH>`, or -1 for any other text.
int ByteOf(absl::string_view text) {
  unsigned value = 0;
  const bool is_hex = text.size() == 6 && absl::SimpleHexAtoi(text.substr(3, 2), &value);
  return is_hex && text == absl::StrFormat("<0x%02X>", value) ? static_cast<int>(value) : -1;
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
                   absl::StrCat("is \"", piece.text, "\", which is already used by pieces[",
                                it->second, "]; pieces must be unique"));
    }
    has_normal = has_normal || piece.type == SentencePiece::Type::kNormal;
    if (piece.type == SentencePiece::Type::kUnknown) {
      if (file.unk_id >= 0) {
        return Error(path + ".type", absl::StrCat("is UNKNOWN, but pieces[", file.unk_id,
                                                  "] already is; only one piece can be UNKNOWN"));
      }
      file.unk_id = static_cast<std::int32_t>(i);
    }
    if (piece.type != SentencePiece::Type::kByte) continue;
    if (!file.byte_fallback) {
      return Error(path + ".type", "is BYTE, but trainer_spec.byte_fallback is false");
    }
    const int byte = ByteOf(piece.text);
    if (byte < 0) {
      return Error(path + ".piece",
                   absl::StrCat("is \"", piece.text, "\", must be <0x00> to <0xFF> for type BYTE"));
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

PrefixTrie SentencePieceFile::UserDefinedPieces() const {
  std::vector<std::pair<absl::string_view, std::int32_t>> entries;
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].type != SentencePiece::Type::kUserDefined) continue;
    entries.emplace_back(pieces[id].text, static_cast<std::int32_t>(id));
  }
  return PrefixTrie(std::move(entries));
}

absl::StatusOr<SentencePieceFile> ParseSentencePieceFile(absl::string_view bytes) {
  SentencePieceFile file;
  QUIRE_RETURN_IF_ERROR(ReadModel(bytes, file));
  QUIRE_RETURN_IF_ERROR(IndexPieces(file));
  return file;
}

}  // namespace quire::text

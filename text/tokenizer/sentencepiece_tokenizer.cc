#include "text/tokenizer/sentencepiece_tokenizer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "text/sentencepiece/sentencepiece_file.h"
#include "text/sentencepiece/sentencepiece_model.h"
#include "text/sentencepiece/sentencepiece_normalizer.h"

namespace quire::text {
namespace {

using Type = SentencePiece::Type;

constexpr absl::string_view kFile = "tokenizer.model";

std::string TextOf(const SentencePieceFile& file, std::size_t id, bool is_first) {
  const SentencePiece& piece = file.pieces[id];
  switch (piece.type) {
    case Type::kControl:
      return piece.text;
    case Type::kUnknown:
      return file.unk_surface;
    case Type::kByte:
      for (std::size_t byte = 0; byte < file.byte_ids.size(); ++byte) {
        if (file.byte_ids[byte] == static_cast<std::int32_t>(id)) {
          return std::string(1, static_cast<char>(byte));
        }
      }
      return "";
    default:
      break;
  }
  absl::string_view text = piece.text;
  const bool text_began_with_sign = file.add_dummy_prefix || file.remove_extra_whitespaces;
  if (is_first && text_began_with_sign) absl::ConsumePrefix(&text, kSentencePieceSpace);
  return absl::StrReplaceAll(text, {{kSentencePieceSpace, " "}});
}

Decoder MakeDecoder(const SentencePieceFile& file) {
  std::vector<TokenText> tokens;
  std::vector<std::string> first_texts;
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    tokens.push_back({TextOf(file, id, false), true, file.pieces[id].type == Type::kControl});
    first_texts.push_back(TextOf(file, id, true));
  }
  return Decoder::OfBytes(std::move(tokens), std::move(first_texts), file.remove_extra_whitespaces);
}

absl::StatusOr<AddedTokens> ControlTokens(const SentencePieceFile& file) {
  std::vector<AddedToken> tokens;
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type != Type::kControl) continue;
    AddedToken token;
    token.id = static_cast<std::int32_t>(id);
    token.content = file.pieces[id].text;
    token.special = true;
    tokens.push_back(std::move(token));
  }
  return AddedTokens::FromTokens(std::move(tokens));
}

// Returns {id} if `flag` is set in the configuration, else no ids.
absl::StatusOr<std::vector<std::int32_t>> ReadControlTokens(const formats::JsonValue& config,
                                                            absl::string_view flag,
                                                            bool default_value, std::int32_t id,
                                                            absl::string_view piece) {
  const absl::StatusOr<bool> adds = config.GetBoolOr(flag, default_value);
  if (!adds.ok()) return WithFileName("tokenizer_config.json", adds.status());
  if (!*adds) return std::vector<std::int32_t>();
  if (id < 0) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: ", flag,
                                                   " is true, but ", kFile,
                                                   " has no control piece \"", piece, "\""));
  }
  return std::vector<std::int32_t>{id};
}

struct Stages {
  SentencePieceModel model;
  SentencePieceNormalizer normalizer;
};

absl::StatusOr<Stages> MakeStages(absl::string_view bytes, SentencePieceFile& file) {
  QUIRE_ASSIGN_OR_RETURN(file, ParseSentencePieceFile(bytes));
  QUIRE_ASSIGN_OR_RETURN(SentencePieceModel model, SentencePieceModel::From(file));
  QUIRE_ASSIGN_OR_RETURN(SentencePieceNormalizer normalizer, SentencePieceNormalizer::From(file));
  return Stages{std::move(model), std::move(normalizer)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenizerParts>> BuildSentencePiece(absl::string_view model,
                                                                   const formats::JsonValue& config,
                                                                   std::int64_t cache_entries) {
  SentencePieceFile file;
  absl::StatusOr<Stages> stages = MakeStages(model, file);
  if (!stages.ok()) return WithFileName(kFile, stages.status());
  const std::int32_t bos = file.ControlId(file.bos_piece);
  const std::int32_t eos = file.ControlId(file.eos_piece);
  const std::int32_t pad = file.ControlId(file.pad_piece);
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::int32_t> before,
                         ReadControlTokens(config, "add_bos_token", bos >= 0, bos, file.bos_piece));
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::int32_t> after,
                         ReadControlTokens(config, "add_eos_token", false, eos, file.eos_piece));
  QUIRE_ASSIGN_OR_RETURN(AddedTokens control, ControlTokens(file));
  const std::string kind = absl::StrCat(stages->model.type(), " (", kFile, ")");
  EncoderParts parts{.added = std::move(control),
                     .normalizer = Normalizer::OfSentencePiece(std::move(stages->normalizer)),
                     .splitter = {},
                     .model = std::move(stages->model),
                     .post_processor = PostProcessor::Around(std::move(before), std::move(after)),
                     .special_in_templates_only = true};
  std::unique_ptr<TokenizerParts> built(
      new TokenizerParts{.encoder = Encoder(std::move(parts), cache_entries),
                         .decoder = MakeDecoder(file),
                         .kind = kind});
  if (bos >= 0) built->bos_token_id = bos;
  if (eos >= 0) built->eos_token_id = eos;
  if (pad >= 0) built->pad_token_id = pad;
  QUIRE_RETURN_IF_ERROR(CheckAddedTokensAreKnown(config, kFile, built->encoder));
  return built;
}

}  // namespace quire::text

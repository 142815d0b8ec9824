#include "text/tokenizer/token_model.h"

#include "absl/strings/str_cat.h"
#include "base/overloaded.h"
#include "base/status.h"
#include "text/tokenizer/component.h"

namespace quire::text {

absl::StatusOr<TokenModel> TokenModel::FromJson(const formats::JsonValue& config) {
  QUIRE_RETURN_IF_ERROR(config.CheckObject());
  std::string type = "BPE";
  // Files from before 2021 have no type; merges mean BPE.
  if (config.Find("type") || !config.Find("merges")) {
    QUIRE_ASSIGN_OR_RETURN(type, config.GetString("type"));
  }
  if (type == "BPE") {
    QUIRE_ASSIGN_OR_RETURN(Bpe bpe, Bpe::FromJson(config));
    return TokenModel(std::move(bpe));
  }
  if (type == "Unigram") {
    QUIRE_ASSIGN_OR_RETURN(Unigram unigram, Unigram::FromJson(config));
    return TokenModel(std::move(unigram));
  }
  return absl::UnimplementedError(absl::StrCat(config.PathOf("type"), " \"", type,
                                               "\" is not supported, must be BPE or Unigram"));
}

void TokenModel::Encode(absl::string_view piece, ModelScratch& scratch,
                        std::vector<ModelToken>& out) const {
  std::visit(
      Overloaded{[&](const Bpe& model) { model.Encode(piece, scratch.bpe, out); },
                 [&](const Unigram& model) { model.Encode(piece, scratch.viterbi, out); },
                 [&](const SentencePieceModel& model) { model.Encode(piece, scratch, out); }},
      model_);
}

std::optional<std::int32_t> TokenModel::TokenToId(absl::string_view token) const {
  return std::visit([token](const auto& model) { return model.TokenToId(token); }, model_);
}

std::size_t TokenModel::vocabulary_size() const {
  return std::visit(Overloaded{[](const Bpe& model) { return model.vocabulary_size(); },
                               [](const Unigram& model) { return model.tokens().size(); },
                               [](const SentencePieceModel& model) { return model.size(); }},
                    model_);
}

std::vector<std::pair<absl::string_view, std::int32_t>> TokenModel::Tokens() const {
  std::vector<std::pair<absl::string_view, std::int32_t>> tokens;
  tokens.reserve(vocabulary_size());
  const auto add_all = [&tokens](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      tokens.emplace_back(text, static_cast<std::int32_t>(tokens.size()));
    }
  };
  std::visit(Overloaded{[&](const Bpe& model) {
                          for (const auto& [text, id] : model.ids()) tokens.emplace_back(text, id);
                        },
                        [&](const Unigram& model) { add_all(model.tokens()); },
                        [&](const SentencePieceModel& model) { add_all(model.pieces()); }},
             model_);
  return tokens;
}

absl::string_view TokenModel::type() const {
  return std::visit(Overloaded{[](const Bpe&) { return absl::string_view("BPE"); },
                               [](const Unigram&) { return absl::string_view("Unigram"); },
                               [](const SentencePieceModel& model) { return model.type(); }},
                    model_);
}

}  // namespace quire::text

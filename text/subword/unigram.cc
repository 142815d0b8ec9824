#include "text/subword/unigram.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace quire::text {
namespace {

// Difference between the lowest score of a token and the score of an unknown character.
constexpr double kUnknownPenalty = 10;

}  // namespace

absl::StatusOr<Unigram> Unigram::FromJson(const formats::JsonValue& config) {
  Unigram unigram;
  std::vector<double> scores;
  QUIRE_RETURN_IF_ERROR(unigram.ReadVocabulary(config, scores));
  const std::optional<formats::JsonValue> unk = config.Find("unk_id");
  if (!unk || unk->is_null()) {
    return absl::UnimplementedError(
        absl::StrCat(config.PathOf("unk_id"), " is missing, which is not supported"));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t unk_id,
                         unk->AsInteger(0, static_cast<std::int64_t>(scores.size()) - 1));
  unigram.unk_id_ = static_cast<std::int32_t>(unk_id);
  QUIRE_ASSIGN_OR_RETURN(const bool byte_fallback, config.GetBoolOr("byte_fallback", false));
  unigram.byte_ids_.fill(-1);
  for (std::size_t byte = 0; byte_fallback && byte < unigram.byte_ids_.size(); ++byte) {
    unigram.byte_ids_[byte] = unigram.TokenToId(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
  std::vector<std::pair<absl::string_view, std::int32_t>> entries;
  entries.reserve(scores.size());
  for (std::size_t id = 0; id < scores.size(); ++id) {
    entries.emplace_back(unigram.tokens_[id], static_cast<std::int32_t>(id));
  }
  const double worst = *std::min_element(scores.begin(), scores.end());
  unigram.viterbi_ = Viterbi(PrefixTrie(std::move(entries)), std::move(scores),
                             {.unk_id = unigram.unk_id_, .unk_score = worst - kUnknownPenalty});
  return unigram;
}

absl::Status Unigram::ReadVocabulary(const formats::JsonValue& config,
                                     std::vector<double>& scores) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue vocabulary, config.Get("vocab"));
  QUIRE_RETURN_IF_ERROR(vocabulary.CheckArray());
  const std::size_t size = vocabulary.size();
  if (size == 0) return vocabulary.Error("has no tokens");
  if (size > static_cast<std::size_t>(kMaxTokenIds)) {
    return vocabulary.Error(absl::StrCat("has ", size, " tokens, the limit is ", kMaxTokenIds));
  }
  tokens_.reserve(size);
  scores.reserve(size);
  ids_.reserve(size);
  std::size_t total_bytes = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const formats::JsonValue entry = vocabulary.At(i);
    QUIRE_RETURN_IF_ERROR(entry.CheckArray());
    if (entry.size() != 2) {
      return entry.Error(absl::StrCat("has ", entry.size(), " elements, must have 2"));
    }
    QUIRE_ASSIGN_OR_RETURN(std::string token, entry.At(0).AsString());
    if (token.size() > kMaxScoredBytes) {
      return entry.At(0).Error(
          absl::StrCat("has ", token.size(), " bytes, the limit is ", kMaxScoredBytes));
    }
    total_bytes += token.size();
    const formats::JsonValue score = entry.At(1);
    if (!score.is_number() || !std::isfinite(score.raw().get<double>())) {
      return score.Error("must be a finite number");
    }
    scores.push_back(score.raw().get<double>());
    ids_[token] = static_cast<std::int32_t>(i);
    tokens_.push_back(std::move(token));
  }
  if (total_bytes <= kMaxVocabularyBytes) return absl::OkStatus();
  return vocabulary.Error(
      absl::StrCat("has ", total_bytes, " bytes, the limit is ", kMaxVocabularyBytes));
}

std::optional<std::int32_t> Unigram::TokenToId(absl::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

void Unigram::Encode(absl::string_view piece, ViterbiScratch& scratch,
                     std::vector<ModelToken>& out) const {
  const std::size_t first = out.size();
  viterbi_.Segment(piece, scratch, out);
  if (std::none_of(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                   [this](const ModelToken& token) { return token.id == unk_id_; })) {
    return;
  }
  const std::vector<ModelToken> found(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  out.resize(first);
  std::size_t begin = 0;
  std::size_t unknown_bytes = 0;  // size of the unknown run that ends at `begin`
  const auto end_run = [&] {
    if (unknown_bytes > 0) AppendUnknown(piece.substr(begin - unknown_bytes, unknown_bytes), out);
    unknown_bytes = 0;
  };
  for (const ModelToken& token : found) {
    if (token.id == unk_id_) {
      unknown_bytes += token.size_bytes;
    } else {
      end_run();
      out.push_back(token);
    }
    begin += token.size_bytes;
  }
  end_run();
}

void Unigram::AppendUnknown(absl::string_view text, std::vector<ModelToken>& out) const {
  const auto size_bytes = static_cast<std::uint32_t>(text.size());
  if (const auto id = TokenToId(text)) {  // the text equals that of the unknown token
    out.push_back({*id, size_bytes});
    return;
  }
  const auto byte_id = [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (std::all_of(text.begin(), text.end(), [&](char byte) { return byte_id(byte) >= 0; })) {
    for (const char byte : text) out.push_back({byte_id(byte), 1});
    return;
  }
  out.push_back({unk_id_, size_bytes});
}

}  // namespace quire::text

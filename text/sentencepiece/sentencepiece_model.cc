#include "text/sentencepiece/sentencepiece_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

// Difference between the lowest score of a piece and the score of an unknown character.
constexpr float kUnknownPenalty = 10;

bool IsOneCharacter(absl::string_view text) {
  return Utf8Length(text[0]) == text.size();
}

// Derives the merges of a BPE model: two symbols merge if their concatenation is a piece, and
// higher scores merge first. A symbol is a piece or a single character. Characters that are not
// pieces get ids after those of the pieces.
class MergeBuilder {
 public:
  explicit MergeBuilder(const SentencePieceFile& file) : file_(file) {}

  absl::StatusOr<BpeParts> Build() {
    NumberSymbols();
    std::vector<std::size_t> order;
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) {
      if (IsMergeCandidate(id)) order.push_back(id);
    }
    const auto score = [this](std::size_t id) { return file_.pieces[id].score; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
    std::uint32_t rank = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
      QUIRE_RETURN_IF_ERROR(AddMerges(order[i], rank));
    }
    return std::move(parts_);
  }

 private:
  // True for a piece of two or more characters that merges may produce. False for user-defined
  // pieces, which are extracted before merging.
  bool IsMergeCandidate(std::size_t id) const {
    const SentencePiece& piece = file_.pieces[id];
    return piece.matches_text() && piece.type != SentencePiece::Type::kUserDefined &&
           !IsOneCharacter(piece.text);
  }

  void NumberSymbols() {
    const auto num_pieces = static_cast<std::int32_t>(file_.pieces.size());
    for (std::int32_t id = 0; id < num_pieces; ++id) {
      const auto index = static_cast<std::size_t>(id);
      const std::string& text = file_.pieces[index].text;
      const bool is_character = file_.pieces[index].matches_text() && IsOneCharacter(text);
      if (IsMergeCandidate(index) || is_character) parts_.ids.emplace(text, id);
    }
    parts_.unk_id = num_pieces;
    std::int32_t next_id = num_pieces + 1;
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) {
      if (!IsMergeCandidate(id)) continue;
      const absl::string_view text = file_.pieces[id].text;
      for (std::size_t at = 0; at < text.size(); at += Utf8Length(text[at])) {
        const auto character = text.substr(at, Utf8Length(text[at]));
        if (parts_.ids.emplace(character, next_id).second) ++next_id;
      }
    }
  }

  absl::Status AddMerges(std::size_t id, std::uint32_t rank) {
    const absl::string_view text = file_.pieces[id].text;
    const auto find = [this](absl::string_view part) {
      const auto it = parts_.ids.find(part);
      return it == parts_.ids.end() ? -1 : it->second;
    };
    for (std::size_t cut = Utf8Length(text[0]); cut < text.size(); cut += Utf8Length(text[cut])) {
      const std::int32_t left = find(text.substr(0, cut));
      const std::int32_t right = left < 0 ? -1 : find(text.substr(cut));
      if (right < 0) continue;
      if (file_.pieces[id].type == SentencePiece::Type::kUnused) {
        return absl::UnimplementedError(
            absl::StrCat("pieces[", id, "] (\"", text,
                         "\") has type UNUSED and can be produced by merges; UNUSED is not "
                         "supported for such a piece"));
      }
      parts_.merges.push_back({left, right, static_cast<std::int32_t>(id), rank});
    }
    return absl::OkStatus();
  }

  const SentencePieceFile& file_;
  BpeParts parts_;
};

}  // namespace

absl::StatusOr<SentencePieceModel> SentencePieceModel::From(const SentencePieceFile& file) {
  SentencePieceModel model;
  model.unk_id_ = file.unk_id;
  model.byte_fallback_ = file.byte_fallback;
  model.byte_ids_ = file.byte_ids;
  for (const SentencePiece& piece : file.pieces) {
    const auto id = static_cast<std::int32_t>(model.pieces_.size());
    model.ids_.emplace(piece.text, id);
    model.pieces_.push_back(piece.text);
  }
  if (file.kind == SentencePieceFile::Kind::kUnigram) {
    model.MakeUnigram(file);
  } else {
    QUIRE_ASSIGN_OR_RETURN(BpeParts parts, MergeBuilder(file).Build());
    model.bpe_.emplace(std::move(parts));
    model.user_defined_pieces_ = file.UserDefinedPieces();
  }
  return model;
}

void SentencePieceModel::MakeUnigram(const SentencePieceFile& file) {
  // The initial values are those of sentencepiece. `best` starts at the smallest positive float, so
  // it is never below zero.
  float worst = std::numeric_limits<float>::max();
  float best = std::numeric_limits<float>::min();
  for (const SentencePiece& piece : file.pieces) {
    if (piece.type != SentencePiece::Type::kNormal) continue;
    worst = std::min(worst, piece.score);
    best = std::max(best, piece.score);
  }
  std::vector<std::pair<absl::string_view, std::int32_t>> entries;
  std::vector<double> scores;
  for (const SentencePiece& piece : file.pieces) {
    const auto id = static_cast<std::int32_t>(scores.size());
    // This formula of sentencepiece is meant to give a user-defined piece a higher score than any
    // other segmentation of the same bytes.
    const bool is_user_defined = piece.type == SentencePiece::Type::kUserDefined;
    const float bonus = static_cast<float>(piece.text.size()) * best;
    scores.push_back(is_user_defined ? bonus - 0.1 : static_cast<double>(piece.score));
    if (is_user_defined || piece.type == SentencePiece::Type::kNormal) {
      entries.emplace_back(piece.text, id);
    }
  }
  viterbi_ = Viterbi(
      PrefixTrie(std::move(entries)), std::move(scores),
      {.unk_id = file.unk_id, .unk_score = worst - kUnknownPenalty, .single_precision = true});
}

void SentencePieceModel::EncodeBpe(absl::string_view text, SentencePieceScratch& scratch) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size() && !user_defined_pieces_.empty();) {
    const auto [size, id] = user_defined_pieces_.Longest(text.substr(at));
    if (size == 0) {
      at += Utf8Length(text[at]);
      continue;
    }
    bpe_->Encode(text.substr(done, at - done), scratch.bpe, scratch.tokens);
    scratch.tokens.push_back({id, static_cast<std::uint32_t>(size)});
    at += size;
    done = at;
  }
  bpe_->Encode(text.substr(done), scratch.bpe, scratch.tokens);
}

void SentencePieceModel::Encode(absl::string_view text, SentencePieceScratch& scratch,
                                std::vector<ModelToken>& out) const {
  scratch.tokens.clear();
  if (bpe_) {
    EncodeBpe(text, scratch);
  } else {
    viterbi_.Segment(text, scratch.viterbi, scratch.tokens);
  }
  std::size_t at = 0;
  bool after_unknown = false;
  for (const ModelToken& token : scratch.tokens) {
    const bool is_unknown =
        token.id == unk_id_ || static_cast<std::size_t>(token.id) >= pieces_.size();
    if (!is_unknown) {
      out.push_back(token);
    } else if (byte_fallback_) {
      for (const char byte : text.substr(at, token.size_bytes)) {
        out.push_back({byte_ids_[static_cast<unsigned char>(byte)], 1});
      }
    } else if (after_unknown) {
      out.back().size_bytes += token.size_bytes;
    } else {
      out.push_back({unk_id_, token.size_bytes});
    }
    after_unknown = is_unknown;
    at += token.size_bytes;
  }
}

std::optional<std::int32_t> SentencePieceModel::TokenToId(absl::string_view piece) const {
  const auto it = ids_.find(piece);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

absl::string_view SentencePieceModel::type() const {
  return bpe_ ? "SentencePiece BPE" : "SentencePiece unigram";
}

}  // namespace quire::text

#include "text/subword/bpe.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::text {
namespace {

constexpr std::size_t kMaxCachedPieceBytes = 256;
// Up to this number of symbols, a linear scan for the best pair is faster than a heap.
constexpr std::size_t kMaxScannedSymbols = 32;
constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

std::uint64_t PairKey(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

absl::StatusOr<Bpe> Bpe::FromJson(const formats::JsonValue& config) {
  Bpe bpe;
  QUIRE_RETURN_IF_ERROR(bpe.ReadVocabulary(config));
  QUIRE_RETURN_IF_ERROR(bpe.ReadOptions(config));
  QUIRE_RETURN_IF_ERROR(bpe.ReadMerges(config));
  bpe.IndexByteTokens();
  QUIRE_RETURN_IF_ERROR(bpe.CheckByteTokens(config));
  bpe.IndexShortTokens();
  return bpe;
}

Bpe::Bpe(BpeParts parts)
    : ids_(std::move(parts.ids)),
      unk_id_(parts.unk_id.value_or(-1)),
      fuse_unk_(parts.fuse_unk),
      byte_fallback_(parts.byte_fallback),
      ignore_merges_(parts.ignore_merges) {
  merges_.reserve(parts.merges.size());
  for (const BpeMerge& merge : parts.merges) {
    merges_[PairKey(merge.left, merge.right)] = {merge.rank, merge.new_id};
  }
  IndexByteTokens();
  IndexShortTokens();
}

absl::Status Bpe::ReadVocabulary(const formats::JsonValue& config) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue vocabulary, config.Get("vocab"));
  QUIRE_RETURN_IF_ERROR(vocabulary.CheckObject());
  if (vocabulary.size() == 0) return vocabulary.Error("has no tokens");
  ids_.reserve(vocabulary.size());
  absl::flat_hash_set<std::int32_t> used_ids;
  used_ids.reserve(vocabulary.size());
  for (const auto& [token, value] : vocabulary.raw().items()) {
    const auto path = [&, &name = token] { return vocabulary.PathOf(name); };
    absl::StatusOr<std::int64_t> id = formats::JsonValue(value, "").AsInteger(0, kMaxTokenIds - 1);
    if (!id.ok()) return formats::JsonValue(value, path()).AsInteger(0, kMaxTokenIds - 1).status();
    ids_.emplace(token, static_cast<std::int32_t>(*id));
    if (!used_ids.insert(static_cast<std::int32_t>(*id)).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          path(), " is ", *id, ", which is already used by another token; ids must be unique"));
    }
  }
  return absl::OkStatus();
}

absl::Status Bpe::ReadOptions(const formats::JsonValue& config) {
  QUIRE_ASSIGN_OR_RETURN(fuse_unk_, config.GetBoolOr("fuse_unk", false));
  QUIRE_ASSIGN_OR_RETURN(byte_fallback_, config.GetBoolOr("byte_fallback", false));
  QUIRE_ASSIGN_OR_RETURN(ignore_merges_, config.GetBoolOr("ignore_merges", false));
  QUIRE_ASSIGN_OR_RETURN(const auto prefix, config.GetOptionalString("continuing_subword_prefix"));
  QUIRE_ASSIGN_OR_RETURN(const auto suffix, config.GetOptionalString("end_of_word_suffix"));
  QUIRE_ASSIGN_OR_RETURN(const auto unk, config.GetOptionalString("unk_token"));
  prefix_ = prefix.value_or("");
  suffix_ = suffix.value_or("");
  if (unk) {
    const auto id = TokenToId(*unk);
    if (!id) {
      return absl::InvalidArgumentError(
          absl::StrCat(config.PathOf("unk_token"), " \"", *unk, "\" is not in model.vocab"));
    }
    unk_id_ = *id;
  }
  const std::optional<formats::JsonValue> dropout = config.Find("dropout");
  if (dropout && !dropout->is_null() && dropout->raw() != 0) {
    return dropout->Error(absl::StrCat("is ", JsonText(dropout->raw()),
                                       ", must be null: tokenization must be deterministic"));
  }
  return absl::OkStatus();
}

absl::Status Bpe::ReadMerges(const formats::JsonValue& config) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue merges, config.Get("merges"));
  QUIRE_RETURN_IF_ERROR(merges.CheckArray());
  if (merges.size() >= kNoRank) return merges.Error("has too many entries");
  merges_.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const formats::JsonValue merge = merges.At(i);
    if (i == 0 && merge.is_string() &&
        absl::StartsWith(merge.raw().get_ref<const std::string&>(), "#version")) {
      continue;
    }
    QUIRE_RETURN_IF_ERROR(AddMerge(merge, static_cast<std::uint32_t>(i)));
  }
  return absl::OkStatus();
}

absl::Status Bpe::AddMerge(const formats::JsonValue& merge, std::uint32_t rank) {
  std::string left;
  std::string right;
  if (merge.is_string()) {
    const std::string& line = merge.raw().get_ref<const std::string&>();
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      return merge.Error(
          absl::StrCat("is \"", line, "\", must be two parts separated by one space"));
    }
    left = line.substr(0, space);
    right = line.substr(space + 1);
  } else {
    QUIRE_RETURN_IF_ERROR(merge.CheckArray());
    if (merge.size() != 2) {
      return merge.Error(absl::StrCat("has ", merge.size(), " parts, must have 2"));
    }
    QUIRE_ASSIGN_OR_RETURN(left, merge.At(0).AsString());
    QUIRE_ASSIGN_OR_RETURN(right, merge.At(1).AsString());
  }
  for (const std::string& part : {left, right}) {
    if (!TokenToId(part))
      return merge.Error(absl::StrCat("part \"", part, "\" is not in model.vocab"));
  }
  if (!absl::StartsWith(right, prefix_)) {
    return merge.Error(
        absl::StrCat("part \"", right, "\" does not start with continuing_subword_prefix"));
  }
  const std::string joined = left + right.substr(prefix_.size());
  const auto new_id = TokenToId(joined);
  if (!new_id)
    return merge.Error(absl::StrCat("gives \"", joined, "\", which is not in model.vocab"));
  merges_[PairKey(*TokenToId(left), *TokenToId(right))] = {rank, *new_id};
  return absl::OkStatus();
}

void Bpe::IndexShortTokens() {
  short_ids_.fill(-1);
  for (const auto& [token, id] : ids_) {
    if (token.empty() || token.size() > 2 || Utf8Length(token[0]) != token.size()) continue;
    short_ids_[DecodeUtf8At(token, 0).code_point] = id;
  }
}

void Bpe::IndexByteTokens() {
  byte_ids_.fill(-1);
  if (!byte_fallback_) return;
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = TokenToId(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
}

absl::Status Bpe::CheckByteTokens(const formats::JsonValue& config) const {
  if (!byte_fallback_ || unk_id_ >= 0) return absl::OkStatus();
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    if (byte_ids_[byte] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(config.PathOf("byte_fallback"), " is true, but model.vocab lacks \"",
                     absl::StrFormat("<0x%02X>", byte), "\" and there is no unk_token"));
  }
  return absl::OkStatus();
}

std::optional<std::int32_t> Bpe::TokenToId(absl::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const Bpe::MergeRule* Bpe::FindMerge(std::int32_t left, std::int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::Encode(absl::string_view piece, BpeScratch& scratch, std::vector<ModelToken>& out) const {
  if (scratch.bpe_ == nullptr) scratch.bpe_ = this;
  QUIRE_CHECK(scratch.bpe_ == this);
  if (piece.empty()) return;
  if (ignore_merges_) {
    if (const auto id = TokenToId(piece)) {
      out.push_back({*id, static_cast<std::uint32_t>(piece.size())});
      return;
    }
  }
  const bool cacheable = scratch.cache_entries_ > 0 && piece.size() <= kMaxCachedPieceBytes;
  if (cacheable) {
    const auto it = scratch.cache_.find(piece);
    if (it != scratch.cache_.end()) {
      out.insert(out.end(), it->second.begin(), it->second.end());
      return;
    }
  }
  SplitCharacters(piece, scratch);
  Merge(scratch);
  const std::size_t first = out.size();
  for (const auto& symbol : scratch.symbols_) {
    if (symbol.size_bytes > 0) out.push_back({symbol.id, symbol.size_bytes});
  }
  if (!cacheable) return;
  if (static_cast<std::int64_t>(scratch.cache_.size()) >= scratch.cache_entries_) {
    scratch.cache_.clear();
  }
  scratch.cache_.emplace(
      std::string(piece),
      std::vector<ModelToken>(out.begin() + static_cast<std::ptrdiff_t>(first), out.end()));
}

std::int32_t Bpe::CharacterId(absl::string_view character, bool is_first, bool is_last,
                              std::string& buffer) const {
  const bool has_prefix = !is_first && !prefix_.empty();
  const bool has_suffix = is_last && !suffix_.empty();
  if (!has_prefix && !has_suffix) {
    if (character.size() <= 2) return short_ids_[DecodeUtf8At(character, 0).code_point];
    return TokenToId(character).value_or(-1);
  }
  buffer.clear();
  absl::StrAppend(&buffer, has_prefix ? absl::string_view(prefix_) : "", character,
                  has_suffix ? absl::string_view(suffix_) : "");
  return TokenToId(buffer).value_or(-1);
}

// Splits a piece into its initial symbols. An unknown character is buffered until the next known
// character or the end, because fuse_unk may fuse it with the next unknown character. Byte-fallback
// tokens of the next characters therefore precede the unknown token, as in the Hugging Face
// implementation.
void Bpe::SplitCharacters(absl::string_view piece, BpeScratch& scratch) const {
  auto& symbols = scratch.symbols_;
  symbols.clear();
  const auto add = [&symbols](std::int32_t id, std::uint32_t size_bytes) {
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, size_bytes, index - 1, index + 1});
  };
  std::uint32_t unk_bytes = 0;  // size of the buffered unknown text
  std::string buffer;
  for (std::size_t i = 0; i < piece.size();) {
    const std::size_t size = Utf8Length(piece[i]);
    const absl::string_view character = piece.substr(i, size);
    const std::int32_t id = CharacterId(character, i == 0, i + size == piece.size(), buffer);
    // Byte fallback encodes the decorated character, which has the prefix or suffix, from `buffer`.
    const bool decorated =
        (i > 0 && !prefix_.empty()) || (i + size == piece.size() && !suffix_.empty());
    i += size;
    if (id >= 0) {
      if (unk_bytes > 0) add(unk_id_, std::exchange(unk_bytes, 0));
      add(id, static_cast<std::uint32_t>(size));
      continue;
    }
    if (byte_fallback_) {
      const absl::string_view bytes = decorated ? absl::string_view(buffer) : character;
      const auto byte_id = [this](char byte) {
        return byte_ids_[static_cast<unsigned char>(byte)];
      };
      if (std::all_of(bytes.begin(), bytes.end(), [&](char b) { return byte_id(b) >= 0; })) {
        for (const char byte : bytes) add(byte_id(byte), 1);
        continue;
      }
    }
    if (unk_id_ < 0) continue;
    if (unk_bytes > 0 && !fuse_unk_) add(unk_id_, std::exchange(unk_bytes, 0));
    unk_bytes += static_cast<std::uint32_t>(size);
  }
  if (unk_bytes > 0) add(unk_id_, unk_bytes);
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::Merge(BpeScratch& scratch) const {
  if (merges_.empty() || scratch.symbols_.size() < 2) return;
  if (scratch.symbols_.size() <= kMaxScannedSymbols) {
    MergeByScanning(scratch);
  } else {
    MergeByHeap(scratch);
  }
}

void Bpe::MergeByScanning(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols_;
  std::array<MergeRule, kMaxScannedSymbols> rules;  // rules[i] merges symbol i with symbol i + 1
  const auto update_rule = [&](std::size_t i) {
    const MergeRule* rule =
        i + 1 < symbols.size() ? FindMerge(symbols[i].id, symbols[i + 1].id) : nullptr;
    rules[i] = rule == nullptr ? MergeRule{kNoRank, -1} : *rule;
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) update_rule(i);
  while (true) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < symbols.size(); ++i) {
      if (rules[i].rank < rules[best].rank) best = i;
    }
    if (rules[best].rank == kNoRank) return;
    symbols[best].id = rules[best].new_id;
    symbols[best].size_bytes += symbols[best + 1].size_bytes;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(rules.begin() + best + 2, rules.begin() + symbols.size() + 1,
              rules.begin() + best + 1);
    update_rule(best);
    if (best > 0) update_rule(best - 1);
  }
}

void Bpe::MergeByHeap(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols_;
  auto& heap = scratch.heap_;
  heap.clear();
  const auto later = [](const auto& a, const auto& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto candidate = [&](std::int32_t position) {
    const auto& left = symbols[static_cast<std::size_t>(position)];
    const MergeRule* rule = FindMerge(left.id, symbols[static_cast<std::size_t>(left.next)].id);
    if (rule == nullptr) return false;
    heap.push_back({rule->rank, position, rule->new_id});
    return true;
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) candidate(static_cast<std::int32_t>(i));
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate best = heap.back();
    heap.pop_back();
    auto& left = symbols[static_cast<std::size_t>(best.position)];
    if (left.size_bytes == 0 || left.next < 0) continue;
    auto& right = symbols[static_cast<std::size_t>(left.next)];
    // The heap entry is stale if one of the two symbols was merged in the meantime.
    const MergeRule* rule = FindMerge(left.id, right.id);
    if (rule == nullptr || rule->new_id != best.new_id) continue;
    left.id = best.new_id;
    left.size_bytes += right.size_bytes;
    right.size_bytes = 0;
    left.next = right.next;
    if (left.next >= 0) {
      symbols[static_cast<std::size_t>(left.next)].previous = best.position;
      if (candidate(best.position)) std::push_heap(heap.begin(), heap.end(), later);
    }
    if (left.previous >= 0 && candidate(left.previous)) {
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
}

}  // namespace quire::text

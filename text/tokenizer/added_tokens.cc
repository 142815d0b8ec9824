#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/subword/model_token.h"
#include "text/unicode/regex_syntax.h"
#include "text/unicode/unicode.h"

namespace quire::text {
namespace {

using TrieEntries = std::vector<std::pair<absl::string_view, std::int32_t>>;

}  // namespace

absl::StatusOr<AddedTokens> AddedTokens::Empty(IdPolicy id_policy) {
  QUIRE_ASSIGN_OR_RETURN(Regex word, Regex::FromPcre(absl::StrCat("[", kRustWordClass, "]")));
  return AddedTokens(std::move(word), id_policy);
}

absl::StatusOr<AddedTokens> AddedTokens::FromTokens(std::vector<AddedToken> tokens) {
  QUIRE_ASSIGN_OR_RETURN(AddedTokens added, Empty(IdPolicy::kAsGiven));
  added.tokens_ = std::move(tokens);
  TrieEntries entries;
  for (std::size_t i = 0; i < added.tokens_.size(); ++i) {
    AddedToken& token = added.tokens_[i];
    if (token.content.size() > kMaxScoredBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the special token ", token.id, " has ",
                                                     token.content.size(), " bytes, the limit is ",
                                                     kMaxScoredBytes));
    }
    token.normalized_content = token.content;
    added.by_content_.emplace(token.content, i);
    added.by_id_.emplace(token.id, i);
    entries.emplace_back(token.content, static_cast<std::int32_t>(i));
  }
  added.raw_trie_ = PrefixTrie(std::move(entries));
  return added;
}

absl::StatusOr<AddedTokens> AddedTokens::FromJson(const formats::JsonValue& config,
                                                  const TokenModel& model,
                                                  const Normalizer& normalizer, IdPolicy id_policy,
                                                  RegexScratch& scratch) {
  QUIRE_ASSIGN_OR_RETURN(AddedTokens added, Empty(id_policy));
  added.next_id_ = static_cast<std::int64_t>(model.vocabulary_size());
  QUIRE_RETURN_IF_ERROR(config.CheckArray());
  for (std::size_t i = 0; i < config.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(added.Add(config.At(i), model));
  }
  std::vector<std::size_t> order(added.tokens_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return added.tokens_[a].id < added.tokens_[b].id;
  });
  TrieEntries raw;
  TrieEntries normalized;
  for (const std::size_t i : order) {
    AddedToken& token = added.tokens_[i];
    token.normalized_content = token.content;
    if (token.normalized) {
      AlignedText text(token.content, 0, false);
      text.set_limit_bytes(kMaxScoredBytes);
      if (const absl::Status status = normalizer.Apply(text, scratch); !status.ok()) {
        return config.At(i).Error(
            absl::StrCat("has content that cannot be normalized: ", status.message()));
      }
      token.normalized_content = text.text();
    }
    (token.normalized ? normalized : raw)
        .emplace_back(token.normalized_content, static_cast<std::int32_t>(i));
  }
  added.raw_trie_ = PrefixTrie(std::move(raw));
  // The trie keeps the last value of equal strings. The order is reversed, so that the lower id
  // wins if two contents have the same normalized form.
  std::reverse(normalized.begin(), normalized.end());
  added.normalized_trie_ = PrefixTrie(std::move(normalized));
  return added;
}

absl::Status AddedTokens::Add(const formats::JsonValue& config, const TokenModel& model) {
  AddedToken token;
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue id, config.Get("id"));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t id_value, id.AsInteger(0, kMaxTokenIds - 1));
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue content, config.Get("content"));
  QUIRE_ASSIGN_OR_RETURN(token.content, content.AsString());
  QUIRE_ASSIGN_OR_RETURN(token.single_word, config.GetBool("single_word"));
  QUIRE_ASSIGN_OR_RETURN(token.lstrip, config.GetBool("lstrip"));
  QUIRE_ASSIGN_OR_RETURN(token.rstrip, config.GetBool("rstrip"));
  QUIRE_ASSIGN_OR_RETURN(token.normalized, config.GetBool("normalized"));
  QUIRE_ASSIGN_OR_RETURN(token.special, config.GetBool("special"));
  if (token.content.empty()) return content.Error("is empty");
  if (token.content.size() > kMaxScoredBytes) {
    return content.Error(
        absl::StrCat("has ", token.content.size(), " bytes, the limit is ", kMaxScoredBytes));
  }
  if (by_content_.contains(token.content)) {
    return content.Error(absl::StrCat("\"", token.content, "\" occurs twice"));
  }
  // Hugging Face ignores the id in the file. It uses the id in the vocabulary, or the next free id
  // for content outside the vocabulary. A file with other ids is ambiguous and is rejected.
  const auto in_vocabulary = model.TokenToId(token.content);
  const std::int64_t free_id = id_policy_ == IdPolicy::kAsGiven ? id_value : next_id_;
  const std::int64_t expected = in_vocabulary ? *in_vocabulary : free_id;
  if (id_value != expected) {
    const std::string place =
        in_vocabulary ? " in model.vocab"
                      : absl::StrCat(", the next id after the ", model.vocabulary_size(),
                                     " entries of model.vocab and earlier added tokens");
    return id.Error(
        absl::StrCat("is ", id_value, ", but \"", token.content, "\" has id ", expected, place));
  }
  token.id = static_cast<std::int32_t>(id_value);
  if (!in_vocabulary) ++next_id_;
  if (!by_id_.emplace(token.id, tokens_.size()).second) {
    return id.Error(absl::StrCat(
        "is ", id_value, ", which is already used by another added token; ids must be unique"));
  }
  by_content_.emplace(token.content, tokens_.size());
  tokens_.push_back(std::move(token));
  return absl::OkStatus();
}

std::optional<std::int32_t> AddedTokens::TokenToId(absl::string_view content) const {
  const auto it = by_content_.find(content);
  if (it == by_content_.end()) return std::nullopt;
  return tokens_[it->second].id;
}

absl::StatusOr<bool> AddedTokens::StandsAlone(absl::string_view text,
                                              const PrefixTrie::Match& match,
                                              RegexScratch& scratch) const {
  bool is_word = false;
  const auto check = [&](std::size_t begin, std::size_t size) {
    return word_.ForEachMatch(text.substr(begin, size), scratch,
                              [&](std::size_t, std::size_t) { is_word = true; });
  };
  if (match.begin > 0) {
    const std::size_t size = DecodeUtf8Before(text, match.begin).size_bytes;
    QUIRE_RETURN_IF_ERROR(check(match.begin - size, size));
  }
  if (match.end < text.size()) {
    QUIRE_RETURN_IF_ERROR(check(match.end, Utf8Length(text[match.end])));
  }
  return !is_word;
}

absl::Status AddedTokens::CutBy(const PrefixTrie& trie, absl::string_view text,
                                TakesSpecial takes_special, RegexScratch& scratch,
                                std::vector<TextSegment>& segments) const {
  std::size_t done = 0;
  std::size_t from = 0;
  while (const auto match = trie.Find(text, from)) {
    from = match->end;
    const AddedToken& token = tokens_[static_cast<std::size_t>(match->value)];
    if (token.special && !takes_special(match->begin, match->end)) continue;
    if (token.single_word) {
      QUIRE_ASSIGN_OR_RETURN(const bool stands_alone, StandsAlone(text, *match, scratch));
      if (!stands_alone) continue;
    }
    std::size_t begin = match->begin;
    std::size_t end = match->end;
    if (token.lstrip) begin = std::max(SkipSpacesBack(text, begin, 0), done);
    if (token.rstrip) end = SkipSpaces(text, end);
    if (done < begin) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
  return absl::OkStatus();
}

}  // namespace quire::text

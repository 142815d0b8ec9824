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

std::int32_t StringTrie::Child(std::int32_t node, unsigned char byte) const {
  const auto it = children_.find(static_cast<std::uint64_t>(node) << 8 | byte);
  return it == children_.end() ? -1 : it->second;
}

void StringTrie::Add(absl::string_view text, std::size_t value) {
  const auto new_node = [this] {
    values_.push_back(kNoValue);
    return static_cast<std::int32_t>(values_.size() - 1);
  };
  std::int32_t& root = roots_[static_cast<unsigned char>(text[0])];
  if (root < 0) root = new_node();
  std::int32_t node = root;
  for (const char c : text.substr(1)) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t child = Child(node, byte);
    if (child < 0) {
      child = new_node();
      children_.emplace(static_cast<std::uint64_t>(node) << 8 | byte, child);
    }
    node = child;
  }
  std::size_t& slot = values_[static_cast<std::size_t>(node)];
  if (slot == kNoValue) slot = value;
}

std::optional<StringTrie::Match> StringTrie::Find(absl::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    std::int32_t node = roots_[static_cast<unsigned char>(text[begin])];
    std::optional<Match> longest;
    for (std::size_t end = begin + 1; node >= 0; ++end) {
      const std::size_t value = values_[static_cast<std::size_t>(node)];
      if (value != kNoValue) longest = Match{begin, end, value};
      if (end >= text.size()) break;
      node = Child(node, static_cast<unsigned char>(text[end]));
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

absl::StatusOr<AddedTokens> AddedTokens::Empty(IdPolicy id_policy) {
  QUIRE_ASSIGN_OR_RETURN(Regex word, Regex::FromPcre(absl::StrCat("[", kRustWordClass, "]")));
  return AddedTokens(std::move(word), id_policy);
}

absl::StatusOr<AddedTokens> AddedTokens::FromTokens(std::vector<AddedToken> tokens) {
  QUIRE_ASSIGN_OR_RETURN(AddedTokens added, Empty(IdPolicy::kAsGiven));
  added.tokens_ = std::move(tokens);
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
    added.raw_trie_.Add(token.content, i);
  }
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
  // If two contents have the same normalized form, the lower id wins, because the trie keeps the
  // first value.
  std::vector<std::size_t> order(added.tokens_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return added.tokens_[a].id < added.tokens_[b].id;
  });
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
    // Content whose normalized form is empty never matches.
    if (token.normalized_content.empty()) continue;
    (token.normalized ? added.normalized_trie_ : added.raw_trie_).Add(token.normalized_content, i);
  }
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
  // Hugging Face ignores the id in the file. Content that is in the vocabulary gets its id there,
  // and other content gets the next free id. A file with different ids is ambiguous and is
  // rejected.
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
                                              const StringTrie::Match& match,
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

absl::Status AddedTokens::CutBy(const StringTrie& trie, absl::string_view text,
                                TakesSpecial takes_special, RegexScratch& scratch,
                                std::vector<TextSegment>& segments) const {
  std::size_t done = 0;
  std::size_t from = 0;
  while (const auto match = trie.Find(text, from)) {
    from = match->end;
    const AddedToken& token = tokens_[match->value];
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

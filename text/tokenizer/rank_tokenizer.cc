#include "text/tokenizer/rank_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "text/unicode/unicode.h"

namespace quire::text {
namespace {

constexpr absl::string_view kTekkenFile = "tekken.json";
constexpr absl::string_view kTiktokenFile = "tokenizer.tiktoken";

struct RankToken {
  std::string bytes;
  std::int32_t rank;
};

struct RankVocabulary {
  std::vector<RankToken> tokens;
  std::int32_t id_of_rank_0 = 0;
  std::vector<AddedToken> special;
  std::optional<Regex> pattern;
  bool special_in_templates_only = false;
};

AddedToken SpecialToken(std::int32_t id, std::string content) {
  AddedToken token;
  token.id = id;
  token.content = std::move(content);
  token.special = true;
  return token;
}

// Maps the bytes of each token to its id. The keys are views of the vocabulary.
using IdsOfBytes = absl::flat_hash_map<absl::string_view, std::int32_t>;

absl::Status CheckByteTokens(const IdsOfBytes& ids) {
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    if (ids.contains(absl::string_view(&text, 1))) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("has no token for the byte %02X, each byte must have one", byte));
  }
  return absl::OkStatus();
}

// `name_of(i)` returns the name of the i-th token for messages.
template <typename NameOf>
absl::StatusOr<IdsOfBytes> IndexTokens(const RankVocabulary& v, NameOf name_of) {
  IdsOfBytes ids;
  ids.reserve(v.tokens.size());
  absl::flat_hash_set<std::int32_t> ranks;
  ranks.reserve(v.tokens.size());
  std::size_t total_bytes = 0;
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    const auto& [bytes, rank] = v.tokens[i];
    const auto error = [&](absl::string_view problem) {
      return absl::InvalidArgumentError(absl::StrCat(name_of(i), " ", problem));
    };
    if (bytes.empty()) return error("is empty");
    if (bytes.size() > kMaxScoredBytes) {
      return error(absl::StrCat("has ", bytes.size(), " bytes, the limit is ", kMaxScoredBytes));
    }
    total_bytes += bytes.size();
    if (total_bytes > kMaxVocabularyBytes) {
      return error(absl::StrCat("makes the vocabulary exceed ", kMaxVocabularyBytes, " bytes"));
    }
    if (!ranks.insert(rank).second) {
      return error(absl::StrCat("has the rank ", rank,
                                ", which is already used by another token; ranks must be unique"));
    }
    if (!ids.emplace(bytes, v.id_of_rank_0 + rank).second) {
      return error("has the same bytes as another token");
    }
  }
  QUIRE_RETURN_IF_ERROR(CheckByteTokens(ids));
  return ids;
}

std::string ByteLevelText(absl::string_view bytes) {
  std::string text;
  for (const char byte : bytes) absl::StrAppend(&text, ByteToUtf8(static_cast<std::uint8_t>(byte)));
  return text;
}

Bpe MakeBpe(const RankVocabulary& v, const IdsOfBytes& ids) {
  BpeParts parts;
  parts.ignore_merges = true;
  parts.ids.reserve(v.tokens.size());
  const auto find = [&ids](absl::string_view bytes) {
    const auto it = ids.find(bytes);
    return it == ids.end() ? -1 : it->second;
  };
  for (const auto& [bytes, rank] : v.tokens) {
    const std::int32_t id = v.id_of_rank_0 + rank;
    parts.ids.emplace(ByteLevelText(bytes), id);
    const absl::string_view whole = bytes;
    for (std::size_t cut = 1; cut < whole.size(); ++cut) {
      const std::int32_t left = find(whole.substr(0, cut));
      const std::int32_t right = left < 0 ? -1 : find(whole.substr(cut));
      if (right < 0) continue;
      parts.merges.push_back({left, right, id, static_cast<std::uint32_t>(rank)});
    }
  }
  return Bpe(std::move(parts));
}

Decoder MakeDecoder(const RankVocabulary& v) {
  std::int32_t max_id = -1;
  for (const RankToken& token : v.tokens) max_id = std::max(max_id, v.id_of_rank_0 + token.rank);
  for (const AddedToken& token : v.special) max_id = std::max(max_id, token.id);
  std::vector<TokenText> tokens(static_cast<std::size_t>(max_id) + 1);
  for (const auto& [bytes, rank] : v.tokens) {
    const std::int32_t id = v.id_of_rank_0 + rank;
    tokens[static_cast<std::size_t>(id)] = {bytes, true, false};
  }
  for (const AddedToken& token : v.special) {
    tokens[static_cast<std::size_t>(token.id)] = {token.content, true, true};
  }
  return Decoder::OfBytes(std::move(tokens), {}, false);
}

// Returns the id of a special token, or -1 if there is none.
std::int32_t SpecialId(const RankVocabulary& v, const std::optional<std::string>& content) {
  for (const AddedToken& token : v.special) {
    if (content && token.content == *content) return token.id;
  }
  return -1;
}

// Returns the id of the token that the key `name` names if `flag` is set in the configuration.
// Otherwise returns no ids.
absl::StatusOr<std::vector<std::int32_t>> TokensToAdd(const RankVocabulary& v,
                                                      const formats::JsonValue& config,
                                                      absl::string_view flag, bool default_value,
                                                      absl::string_view name,
                                                      std::optional<std::string> token) {
  QUIRE_ASSIGN_OR_RETURN(const bool adds, config.GetBoolOr(flag, default_value));
  if (!adds) return std::vector<std::int32_t>();
  if (config.Find(name)) {
    QUIRE_ASSIGN_OR_RETURN(token, NamedTokenText(config, name));
  }
  const std::int32_t id = SpecialId(v, token);
  if (id >= 0) return std::vector<std::int32_t>{id};
  return absl::InvalidArgumentError(absl::StrCat(
      flag, " is true, but ", name, " is ",
      token ? absl::StrCat("\"", *token, "\", which is not a special token") : "missing"));
}

struct Defaults {
  absl::string_view file;
  bool adds_bos;
  std::optional<std::string> bos, eos, pad;
};

absl::StatusOr<std::unique_ptr<TokenizerParts>> Assemble(RankVocabulary v, const IdsOfBytes& ids,
                                                         const formats::JsonValue& config,
                                                         const Defaults& defaults,
                                                         std::int64_t cache_entries) {
  auto before =
      TokensToAdd(v, config, "add_bos_token", defaults.adds_bos, "bos_token", defaults.bos);
  if (!before.ok()) return WithFileName(kConfigFile, before.status());
  auto after = TokensToAdd(v, config, "add_eos_token", false, "eos_token", defaults.eos);
  if (!after.ok()) return WithFileName(kConfigFile, after.status());
  QUIRE_ASSIGN_OR_RETURN(AddedTokens added, AddedTokens::FromTokens(v.special));
  EncoderParts parts{.added = std::move(added),
                     .normalizer = {},
                     .splitter = Splitter::OfByteLevel(*std::move(v.pattern)),
                     .model = MakeBpe(v, ids),
                     .post_processor = PostProcessor::Around(*std::move(before), *std::move(after)),
                     .special_in_templates_only = v.special_in_templates_only};
  std::unique_ptr<TokenizerParts> built(
      new TokenizerParts{.encoder = Encoder(std::move(parts), cache_entries),
                         .decoder = MakeDecoder(v),
                         .kind = absl::StrCat("byte ranks (", defaults.file, ")")});
  for (const auto& [content, id] : {std::pair(defaults.bos, &built->bos_token_id),
                                    std::pair(defaults.eos, &built->eos_token_id),
                                    std::pair(defaults.pad, &built->pad_token_id)}) {
    if (const std::int32_t found = SpecialId(v, content); found >= 0) *id = found;
  }
  QUIRE_RETURN_IF_ERROR(CheckAddedTokensAreKnown(config, defaults.file, built->encoder));
  return built;
}

absl::StatusOr<std::int64_t> Count(const formats::JsonValue& config, absl::string_view key) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue value, config.Get(key));
  return value.AsInteger(0, kMaxTokenIds);
}

absl::Status ReadPattern(const formats::JsonValue& config, RankVocabulary& v) {
  QUIRE_ASSIGN_OR_RETURN(const std::string pattern, config.GetString("pattern"));
  absl::StatusOr<Regex> regex = Regex::FromRust(pattern);
  if (!regex.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.PathOf("pattern"), ": ", regex.status().message()));
  }
  v.pattern = *std::move(regex);
  return absl::OkStatus();
}

// Checks that `rank` equals the entry's position in the list. mistral-common finds tokens by their
// position.
absl::Status CheckRank(const formats::JsonValue& entry, std::size_t place) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue rank, entry.Get("rank"));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t value, rank.AsInteger(0, kMaxTokenIds - 1));
  if (value == static_cast<std::int64_t>(place)) return absl::OkStatus();
  return rank.Error(absl::StrCat("is ", value, ", must be ", place));
}

absl::Status ReadTekkenSpecial(const formats::JsonValue& root, std::size_t count,
                               RankVocabulary& v) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue special, root.Get("special_tokens"));
  QUIRE_RETURN_IF_ERROR(special.CheckArray());
  if (special.size() > count) {
    return special.Error(absl::StrCat("has ", special.size(), " tokens, but ",
                                      "config.default_num_special_tokens is ", count));
  }
  absl::flat_hash_set<std::string> contents;
  for (std::size_t i = 0; i < count; ++i) {
    std::string content = absl::StrCat("<SPECIAL_", i, ">");
    const bool is_filler = i >= special.size();
    if (!is_filler) {
      QUIRE_RETURN_IF_ERROR(CheckRank(special.At(i), i));
      QUIRE_ASSIGN_OR_RETURN(content, special.At(i).GetString("token_str"));
    }
    const std::string path = is_filler ? special.path() : special.At(i).PathOf("token_str");
    if (content.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
    if (content.size() > kMaxScoredBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has ", content.size(), " bytes, the limit is ", kMaxScoredBytes));
    }
    if (!contents.insert(content).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has \"", content, "\", which occurs twice"));
    }
    v.special.push_back(SpecialToken(static_cast<std::int32_t>(i), std::move(content)));
  }
  return absl::OkStatus();
}

absl::StatusOr<RankVocabulary> ReadTekken(absl::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document, formats::JsonDocument::Parse(text));
  const formats::JsonValue root = document.root();
  QUIRE_RETURN_IF_ERROR(root.CheckObject());
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue config, root.Get("config"));
  QUIRE_RETURN_IF_ERROR(config.CheckObject());
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t size, Count(config, "default_vocab_size"));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t num_special,
                         Count(config, "default_num_special_tokens"));
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue vocabulary, root.Get("vocab"));
  QUIRE_RETURN_IF_ERROR(vocabulary.CheckArray());
  const auto num_ranks = size - num_special;
  if (num_ranks < 0 || num_ranks > static_cast<std::int64_t>(vocabulary.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        config.PathOf("default_vocab_size"), " is ", size, ", must be in [", num_special, ", ",
        num_special + static_cast<std::int64_t>(vocabulary.size()),
        "]; the maximum is default_num_special_tokens plus the number of vocab entries"));
  }
  RankVocabulary v;
  v.id_of_rank_0 = static_cast<std::int32_t>(num_special);
  v.special_in_templates_only = true;
  QUIRE_RETURN_IF_ERROR(ReadPattern(config, v));
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_ranks); ++i) {
    const formats::JsonValue entry = vocabulary.At(i);
    QUIRE_RETURN_IF_ERROR(CheckRank(entry, i));
    QUIRE_ASSIGN_OR_RETURN(const std::string base64, entry.GetString("token_bytes"));
    std::string bytes;
    if (!absl::Base64Unescape(base64, &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.PathOf("token_bytes"), " is not Base64"));
    }
    v.tokens.push_back({std::move(bytes), static_cast<std::int32_t>(i)});
  }
  QUIRE_RETURN_IF_ERROR(ReadTekkenSpecial(root, static_cast<std::size_t>(num_special), v));
  return v;
}

absl::Status ReadRanks(absl::string_view text, RankVocabulary& v) {
  std::size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    RankToken token;
    if (!absl::Base64Unescape(parts.first, &token.bytes) ||
        !absl::SimpleAtoi(parts.second, &token.rank) || token.rank < 0 ||
        token.rank >= kMaxTokenIds) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " is \"", absl::CHexEscape(line.substr(0, 80)),
                       "\", must be Base64, a space and a number below ", kMaxTokenIds));
    }
    if (v.tokens.size() == static_cast<std::size_t>(kMaxTokenIds)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " exceeds the limit of ", kMaxTokenIds, " tokens"));
    }
    v.tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Reads the pattern and the special tokens.
absl::Status ReadTiktokenConfig(const formats::JsonValue& config, RankVocabulary& v) {
  QUIRE_RETURN_IF_ERROR(ReadPattern(config, v));
  absl::flat_hash_set<std::int32_t> used_ids;
  for (const RankToken& token : v.tokens) used_ids.insert(token.rank);
  const std::optional<formats::JsonValue> special = config.Find("special_tokens");
  if (!special || special->is_null()) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(special->CheckObject());
  for (const auto& [content, value] : special->raw().items()) {
    if (content.size() > kMaxScoredBytes) {
      return special->Error(absl::StrCat("has a token of ", content.size(), " bytes, the limit is ",
                                         kMaxScoredBytes));
    }
    const formats::JsonValue entry(value, special->PathOf(content));
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t id, entry.AsInteger(0, kMaxTokenIds - 1));
    if (content.empty()) return special->Error("has a token with empty text");
    if (!used_ids.insert(static_cast<std::int32_t>(id)).second) {
      return entry.Error(
          absl::StrCat("is ", id, ", which is already used by another token; ids must be unique"));
    }
    v.special.push_back(SpecialToken(static_cast<std::int32_t>(id), content));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenizerParts>> BuildTekken(absl::string_view tekken_json,
                                                            const formats::JsonValue& config,
                                                            std::int64_t cache_entries) {
  absl::StatusOr<RankVocabulary> v = ReadTekken(tekken_json);
  if (!v.ok()) return WithFileName(kTekkenFile, v.status());
  const absl::StatusOr<IdsOfBytes> ids =
      IndexTokens(*v, [](std::size_t i) { return absl::StrCat("vocab[", i, "].token_bytes"); });
  if (!ids.ok()) return WithFileName(kTekkenFile, ids.status());
  // Moving the vocabulary keeps its strings in memory, so `ids` stays valid.
  return Assemble(
      *std::move(v), *ids, config,
      {.file = kTekkenFile, .adds_bos = true, .bos = "<s>", .eos = "</s>", .pad = "<pad>"},
      cache_entries);
}

absl::StatusOr<std::unique_ptr<TokenizerParts>> BuildTiktoken(absl::string_view ranks,
                                                              const formats::JsonValue& config,
                                                              std::int64_t cache_entries) {
  RankVocabulary v;
  if (const absl::Status status = ReadRanks(ranks, v); !status.ok()) {
    return WithFileName(kTiktokenFile, status);
  }
  const absl::StatusOr<IdsOfBytes> ids =
      IndexTokens(v, [](std::size_t i) { return absl::StrCat("token ", i + 1); });
  if (!ids.ok()) return WithFileName(kTiktokenFile, ids.status());
  if (const absl::Status status = ReadTiktokenConfig(config, v); !status.ok()) {
    return WithFileName(kConfigFile, status);
  }
  return Assemble(std::move(v), *ids, config,
                  {.file = kTiktokenFile, .adds_bos = false, .bos = {}, .eos = {}, .pad = {}},
                  cache_entries);
}

}  // namespace quire::text

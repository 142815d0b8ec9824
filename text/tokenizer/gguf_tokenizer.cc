#include "text/tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/utf8.h"
#include "formats/gguf_splits.h"
#include "text/sentencepiece/sentencepiece_normalizer.h"
#include "text/subword/model_token.h"

namespace quire::text {
namespace {

using nlohmann::json;

constexpr absl::string_view kPrefix = "tokenizer.ggml.";

class PipelineBuilder {
 public:
  explicit PipelineBuilder(const GgufVocabulary& vocabulary) : vocabulary_(vocabulary) {}

  absl::StatusOr<GgufPipeline> Build() {
    QUIRE_RETURN_IF_ERROR(CheckTypes());
    QUIRE_RETURN_IF_ERROR(CheckTokens());
    if (vocabulary_.model == "gpt2") {
      QUIRE_RETURN_IF_ERROR(ReadGpt2());
    } else if (vocabulary_.model == "llama") {
      QUIRE_RETURN_IF_ERROR(ReadLlama());
    } else if (vocabulary_.model == "gemma4") {
      QUIRE_RETURN_IF_ERROR(ReadGemma4());
    } else {
      return Unsupported("model", vocabulary_.model, "gpt2, llama, gemma4");
    }
    QUIRE_RETURN_IF_ERROR(AddTemplate());
    components_["added_tokens"] = added_tokens_;
    GgufPipeline pipeline{.model = Bpe(parts_),
                          .components_json = components_.dump(),
                          .bos_id = vocabulary_.bos_id,
                          .eos_id = vocabulary_.eos_id,
                          .pad_id = vocabulary_.pad_id,
                          .identity = {}};
    pipeline.identity = Identity(pipeline.components_json);
    return pipeline;
  }

 private:
  absl::Status Error(absl::string_view key, absl::string_view problem) const {
    return absl::InvalidArgumentError(
        absl::StrCat(vocabulary_.label, ": ", kPrefix, key, " ", problem));
  }
  absl::Status ElementError(absl::string_view key, std::size_t index,
                            absl::string_view problem) const {
    return Error(absl::StrCat(key, "[", index, "]"), problem);
  }
  absl::Status Unsupported(absl::string_view key, absl::string_view value,
                           absl::string_view supported) const {
    return absl::UnimplementedError(
        absl::StrCat(vocabulary_.label, ": ", kPrefix, key, " \"", value,
                     "\" is not supported (supported: ", supported, ")"));
  }
  absl::Status CheckCount(absl::string_view key, std::size_t count) const {
    if (count == vocabulary_.tokens.size()) return absl::OkStatus();
    return Error(key,
                 absl::StrCat("has ", count, " elements, must have ", vocabulary_.tokens.size(),
                              ", one for each of ", kPrefix, "tokens"));
  }

  GgufTokenType TypeOf(std::size_t id) const {
    // A token without text is never encoded and never decoded.
    if (vocabulary_.tokens[id].empty()) return GgufTokenType::kUnused;
    if (!vocabulary_.token_types) return GgufTokenType::kNormal;
    return static_cast<GgufTokenType>((*vocabulary_.token_types)[id]);
  }
  // Returns whether merges can produce the token. As in llama.cpp and tokenizer.json, this includes
  // user-defined tokens. A user-defined token with space signs never matches raw text as an added
  // token.
  bool IsMergeable(std::size_t id) const {
    const GgufTokenType type = TypeOf(id);
    return type == GgufTokenType::kNormal || type == GgufTokenType::kUserDefined;
  }
  bool IsAdded(std::size_t id) const {
    const GgufTokenType type = TypeOf(id);
    return type == GgufTokenType::kControl || type == GgufTokenType::kUserDefined ||
           type == GgufTokenType::kUnknown;
  }

  absl::Status CheckTypes() const;
  absl::Status CheckTokens();
  absl::Status ReadGpt2();
  absl::Status ReadMerges();
  absl::Status ReadLlama();
  absl::Status ReadGemma4();
  absl::Status ReadUnknownAndBytes();
  void AddSpaceSigns(bool adds_space);
  absl::Status ReadByteTokens();
  absl::Status CheckScores() const;
  void MergeByScores();
  void AddVocabulary(const std::vector<bool>& in_merges);
  absl::Status AddTemplate();
  std::string Identity(absl::string_view components_json) const;

  const GgufVocabulary& vocabulary_;
  absl::flat_hash_map<absl::string_view, std::int32_t> id_of_;  // ids of all tokens that have text
  bool adds_bos_by_default_ = false;
  BpeParts parts_;
  json components_ = json::object();
  json added_tokens_ = json::array();
};

absl::Status PipelineBuilder::CheckTypes() const {
  if (!vocabulary_.token_types) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckCount("token_type", vocabulary_.token_types->size()));
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    const std::int32_t type = (*vocabulary_.token_types)[id];
    if (type >= static_cast<std::int32_t>(GgufTokenType::kNormal) &&
        type <= static_cast<std::int32_t>(GgufTokenType::kByte)) {
      continue;
    }
    return ElementError("token_type", id, absl::StrCat("is ", type, ", must be in [1, 6]"));
  }
  return absl::OkStatus();
}

absl::Status PipelineBuilder::CheckTokens() {
  if (vocabulary_.tokens.empty()) return Error("tokens", "has no tokens");
  if (vocabulary_.tokens.size() > static_cast<std::size_t>(kMaxTokenIds)) {
    return Error("tokens", absl::StrCat("has ", vocabulary_.tokens.size(), " tokens, the limit is ",
                                        kMaxTokenIds));
  }
  id_of_.reserve(vocabulary_.tokens.size());
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    const absl::string_view token = vocabulary_.tokens[id];
    if (const auto offset = FirstInvalidUtf8(token)) {
      return ElementError("tokens", id, absl::StrCat("is not UTF-8 at byte ", *offset));
    }
    if (token.empty()) continue;
    const auto [it, is_new] = id_of_.emplace(token, static_cast<std::int32_t>(id));
    if (!is_new) {
      return ElementError("tokens", id,
                          absl::StrCat("is \"", token, "\", which is already used by token ",
                                       it->second, "; tokens must be unique"));
    }
  }
  return absl::OkStatus();
}

absl::Status PipelineBuilder::ReadGpt2() {
  if (!vocabulary_.pre) {
    return Error("pre", absl::StrCat("is missing, must be one of ", formats::GgufSplitNames()));
  }
  const std::optional<formats::GgufSplit> split = formats::FindGgufSplit(*vocabulary_.pre);
  if (!split) return Unsupported("pre", *vocabulary_.pre, formats::GgufSplitNames());
  if (vocabulary_.add_space_prefix.value_or(false)) {
    return absl::UnimplementedError(
        absl::StrCat(vocabulary_.label, ": ", kPrefix,
                     "add_space_prefix is true, must be false for model gpt2"));
  }
  adds_bos_by_default_ = split->adds_bos;
  parts_.ignore_merges = split->ignore_merges;
  components_["pre_tokenizer"] = json::parse(split->pre_tokenizer_json);
  components_["decoder"] = {{"type", "ByteLevel"}};
  return ReadMerges();
}

absl::Status PipelineBuilder::ReadMerges() {
  if (!vocabulary_.merges) {
    return Error("merges", absl::StrCat("is missing, but model ", vocabulary_.model, " needs it"));
  }
  std::vector<bool> in_merges(vocabulary_.tokens.size());
  parts_.merges.reserve(vocabulary_.merges->size());
  for (std::size_t i = 0; i < vocabulary_.merges->size(); ++i) {
    const absl::string_view line = (*vocabulary_.merges)[i];
    const std::size_t space = line.find(' ');
    if (space == absl::string_view::npos || line.find(' ', space + 1) != absl::string_view::npos) {
      return ElementError(
          "merges", i, absl::StrCat("is \"", line, "\", must be two parts separated by one space"));
    }
    const std::string joined = absl::StrCat(line.substr(0, space), line.substr(space + 1));
    std::int32_t ids[3];
    const absl::string_view texts[3] = {line.substr(0, space), line.substr(space + 1), joined};
    for (int part = 0; part < 3; ++part) {
      const auto it = id_of_.find(texts[part]);
      if (it == id_of_.end()) {
        return ElementError("merges", i,
                            absl::StrCat("is \"", line, "\", but \"", texts[part], "\" is not in ",
                                         kPrefix, "tokens"));
      }
      ids[part] = it->second;
      in_merges[static_cast<std::size_t>(it->second)] = true;
    }
    parts_.merges.push_back({ids[0], ids[1], ids[2], static_cast<std::uint32_t>(i)});
  }
  AddVocabulary(in_merges);
  return absl::OkStatus();
}

// Added tokens are not in the model's vocabulary unless merges name them, as in tokenizer.json.
// Otherwise the model would encode their text as the token even where special tokens must be plain
// text.
void PipelineBuilder::AddVocabulary(const std::vector<bool>& in_merges) {
  parts_.ids.reserve(vocabulary_.tokens.size());
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    const GgufTokenType type = TypeOf(id);
    const bool in_model = type == GgufTokenType::kNormal || type == GgufTokenType::kByte;
    if (in_model || in_merges[id]) {
      parts_.ids.emplace(vocabulary_.tokens[id], static_cast<std::int32_t>(id));
    }
    if (!IsAdded(id)) continue;
    added_tokens_.push_back({{"id", id},
                             {"content", vocabulary_.tokens[id]},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false},
                             {"special", type != GgufTokenType::kUserDefined}});
  }
}

absl::Status PipelineBuilder::ReadLlama() {
  QUIRE_RETURN_IF_ERROR(CheckScores());
  QUIRE_RETURN_IF_ERROR(ReadUnknownAndBytes());
  MergeByScores();
  std::vector<bool> in_merges(vocabulary_.tokens.size());
  for (std::size_t id = 0; id < in_merges.size(); ++id) in_merges[id] = IsMergeable(id);
  AddVocabulary(in_merges);
  AddSpaceSigns(vocabulary_.add_space_prefix.value_or(true));
  return absl::OkStatus();
}

absl::Status PipelineBuilder::ReadGemma4() {
  QUIRE_RETURN_IF_ERROR(ReadUnknownAndBytes());
  AddSpaceSigns(vocabulary_.add_space_prefix.value_or(false));
  return ReadMerges();
}

absl::Status PipelineBuilder::ReadUnknownAndBytes() {
  if (!vocabulary_.token_types) {
    return Error("token_type", absl::StrCat("is missing, but model ", vocabulary_.model,
                                            " needs it to identify its byte tokens"));
  }
  adds_bos_by_default_ = true;
  parts_.fuse_unk = true;
  parts_.unk_id = vocabulary_.unk_id;
  for (std::size_t id = 0; id < vocabulary_.tokens.size() && !parts_.unk_id; ++id) {
    if (TypeOf(id) == GgufTokenType::kUnknown) parts_.unk_id = static_cast<std::int32_t>(id);
  }
  return ReadByteTokens();
}

// Adds a normalizer that replaces spaces by kSentencePieceSpace, and a decoder that reverses this.
// If `adds_space`, the normalizer also puts a sign in front of the text.
void PipelineBuilder::AddSpaceSigns(bool adds_space) {
  json normalizers = json::array();
  json decoders = json::array(
      {{{"type", "Replace"}, {"pattern", {{"String", kSentencePieceSpace}}}, {"content", " "}},
       {{"type", "ByteFallback"}},
       {{"type", "Fuse"}}});
  if (adds_space) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSentencePieceSpace}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back(
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSentencePieceSpace}});
  components_["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
  components_["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
}

absl::Status PipelineBuilder::ReadByteTokens() {
  int bytes = 0;
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    if (TypeOf(id) != GgufTokenType::kByte) continue;
    unsigned value = 256;
    const absl::string_view token = vocabulary_.tokens[id];
    if (token.size() != 6 || !absl::SimpleHexAtoi(token.substr(3, 2), &value) || value > 255 ||
        token != absl::StrFormat("<0x%02X>", value)) {
      return ElementError(
          "tokens", id,
          absl::StrCat("is \"", token, "\", must be \"<0x00>\" to \"<0xFF>\" for a byte token"));
    }
    ++bytes;
  }
  parts_.byte_fallback = bytes > 0;
  if (parts_.unk_id || bytes == 256) return absl::OkStatus();
  return Error("unknown_token_id",
               absl::StrCat("is missing, but only ", bytes, " of 256 byte tokens exist"));
}

absl::Status PipelineBuilder::CheckScores() const {
  if (!vocabulary_.scores) return Error("scores", "is missing, but model llama needs it");
  QUIRE_RETURN_IF_ERROR(CheckCount("scores", vocabulary_.scores->size()));
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    if (!std::isfinite((*vocabulary_.scores)[id])) {
      return ElementError("scores", id,
                          absl::StrCat("is ", (*vocabulary_.scores)[id], ", must be finite"));
    }
    if (IsMergeable(id) && vocabulary_.tokens[id].size() > kMaxScoredBytes) {
      return ElementError("tokens", id,
                          absl::StrCat("has ", vocabulary_.tokens[id].size(),
                                       " bytes, the limit is ", kMaxScoredBytes));
    }
  }
  return absl::OkStatus();
}

// SentencePiece merges the pair whose concatenation has the best score, regardless of the scores of
// its two halves. Tokens with equal scores get the same rank, so that the leftmost pair merges
// first, as in SentencePiece.
void PipelineBuilder::MergeByScores() {
  std::vector<std::int32_t> order;  // ids, best score first
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    if (IsMergeable(id)) order.push_back(static_cast<std::int32_t>(id));
  }
  const auto score = [this](std::int32_t id) {
    return (*vocabulary_.scores)[static_cast<std::size_t>(id)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return score(a) > score(b); });
  const auto find = [this](absl::string_view text) {
    const auto it = id_of_.find(text);
    if (it == id_of_.end()) return -1;
    return IsMergeable(static_cast<std::size_t>(it->second)) ? it->second : -1;
  };
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
    const absl::string_view token = vocabulary_.tokens[static_cast<std::size_t>(order[i])];
    for (std::size_t cut = Utf8Length(token[0]); cut < token.size();
         cut += Utf8Length(token[cut])) {
      const std::int32_t left = find(token.substr(0, cut));
      const std::int32_t right = left < 0 ? -1 : find(token.substr(cut));
      if (right >= 0) parts_.merges.push_back({left, right, order[i], rank});
    }
  }
}

absl::Status PipelineBuilder::AddTemplate() {
  const bool adds_bos =
      vocabulary_.add_bos.value_or(adds_bos_by_default_ && vocabulary_.bos_id.has_value());
  const bool adds_eos = vocabulary_.add_eos.value_or(false);
  json single = json::array();
  json special = json::object();
  const auto add = [&](const char* name, std::optional<std::int32_t> id) -> absl::Status {
    const std::string key = absl::StrCat(name, "_token_id");
    if (!id) {
      return Error(key, absl::StrCat("is missing, but ", kPrefix, "add_", name, "_token is true"));
    }
    if (*id < 0 || static_cast<std::size_t>(*id) >= vocabulary_.tokens.size() ||
        TypeOf(static_cast<std::size_t>(*id)) == GgufTokenType::kUnused) {
      return Error(key, absl::StrCat("is ", *id, ", but no token with text has this id"));
    }
    special[name] = {{"id", name}, {"ids", {*id}}};
    single.push_back({{"SpecialToken", {{"id", name}}}});
    return absl::OkStatus();
  };
  if (adds_bos) QUIRE_RETURN_IF_ERROR(add("bos", vocabulary_.bos_id));
  single.push_back({{"Sequence", {{"id", "A"}}}});
  if (adds_eos) QUIRE_RETURN_IF_ERROR(add("eos", vocabulary_.eos_id));
  components_["post_processor"] = {
      {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", special}};
  return absl::OkStatus();
}

std::string PipelineBuilder::Identity(absl::string_view components_json) const {
  std::string identity =
      absl::StrCat(components_json, "\n", parts_.ignore_merges ? 1 : 0,
                   parts_.byte_fallback ? 1 : 0, " unk ", parts_.unk_id.value_or(-1), "\n");
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    const absl::string_view token = vocabulary_.tokens[id];
    absl::StrAppend(&identity, token.size(), ":", token, static_cast<std::int32_t>(TypeOf(id)),
                    ",");
  }
  for (const BpeMerge& merge : parts_.merges) {
    absl::StrAppend(&identity, merge.left, "+", merge.right, "@", merge.rank, ",");
  }
  return identity;
}

}  // namespace

absl::StatusOr<GgufPipeline> BuildGgufPipeline(const GgufVocabulary& vocabulary) {
  return PipelineBuilder(vocabulary).Build();
}

}  // namespace quire::text

#include "text/tokenizer/tokenizer.h"

#include <openssl/evp.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "base/utf8.h"
#include "formats/json_value.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/encoder.h"
#include "text/tokenizer/gguf_tokenizer.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/rank_tokenizer.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"
#include "text/tokenizer/token_model.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace quire::text {
namespace {

// The largest published tokenizer.json has 34 MB.
constexpr std::int64_t kMaxFileBytes = std::int64_t{512} << 20;

using FromFiles = absl::StatusOr<std::unique_ptr<Tokenizer>>(absl::string_view, absl::string_view,
                                                             const TokenizerOptions&);

struct Kind {
  absl::string_view file;
  FromFiles* read;
};
// The first of these files that exists is used.
constexpr Kind kKinds[] = {
    {"tokenizer.json", &Tokenizer::FromJson},
    {"tekken.json", &Tokenizer::FromTekken},
    {"tokenizer.model", &Tokenizer::FromSentencePiece},
    {"tokenizer.tiktoken", &Tokenizer::FromTiktoken},
};

struct UnsupportedKind {
  absl::string_view file;
  absl::string_view kind;
};
constexpr UnsupportedKind kUnsupportedKinds[] = {
    {"spiece.model", "a SentencePiece model under another name than tokenizer.model"},
    {"vocab.txt", "a WordPiece vocabulary"},
    {"vocab.json", "a vocabulary without its pipeline"},
};

absl::StatusOr<MappedFile> OpenFile(const std::filesystem::path& path) {
  QUIRE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path.string()));
  if (file.size_bytes() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " has ", file.size_bytes(),
                                                   " bytes, the limit is ", kMaxFileBytes));
  }
  return file;
}

std::string Sha256(std::initializer_list<absl::string_view> contents) {
  std::string message;
  for (const absl::string_view content : contents) {
    absl::StrAppend(&message, content.size(), "\n", content);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const int done = EVP_Digest(message.data(), message.size(), digest, &size, EVP_sha256(), nullptr);
  QUIRE_CHECK(done == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

// Returns the texts of all tokens, indexed by id, for the decoder and the post-processor.
std::vector<TokenText> TableOfTokens(const TokenModel& model, const AddedTokens& added) {
  std::int32_t max_id = -1;
  const auto texts = model.Tokens();
  for (const auto& [text, id] : texts) max_id = std::max(max_id, id);
  for (const AddedToken& token : added.tokens()) max_id = std::max(max_id, token.id);
  std::vector<TokenText> tokens(static_cast<std::size_t>(max_id) + 1);
  for (const auto& [text, id] : texts) {
    tokens[static_cast<std::size_t>(id)] = {std::string(text), true, false};
  }
  for (const AddedToken& token : added.tokens()) {
    tokens[static_cast<std::size_t>(token.id)] = {token.normalized_content, true, token.special};
  }
  return tokens;
}

// Builds the stages around `model`. `root` is a tokenizer.json, or has its components.
absl::StatusOr<std::unique_ptr<TokenizerParts>> Assemble(TokenModel model,
                                                         const formats::JsonValue& root,
                                                         AddedTokens::IdPolicy ids,
                                                         const TokenizerOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument null_document,
                         formats::JsonDocument::Parse("null"));
  const formats::JsonValue null = null_document.root();
  QUIRE_ASSIGN_OR_RETURN(Normalizer normalizer,
                         Normalizer::FromJson(root.Find("normalizer").value_or(null)));
  QUIRE_ASSIGN_OR_RETURN(Splitter splitter,
                         Splitter::FromJson(root.Find("pre_tokenizer").value_or(null)));
  RegexScratch scratch;
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument empty_list,
                         formats::JsonDocument::Parse("[]"));
  const formats::JsonValue added_json = root.Find("added_tokens").value_or(empty_list.root());
  QUIRE_ASSIGN_OR_RETURN(AddedTokens added,
                         AddedTokens::FromJson(added_json, model, normalizer, ids, scratch));
  QUIRE_ASSIGN_OR_RETURN(Decoder decoder, Decoder::FromJson(root.Find("decoder").value_or(null),
                                                            TableOfTokens(model, added)));
  QUIRE_ASSIGN_OR_RETURN(
      PostProcessor post_processor,
      PostProcessor::FromJson(root.Find("post_processor").value_or(null),
                              [&decoder](std::int32_t id) { return decoder.known(id); }));
  EncoderParts parts{.added = std::move(added),
                     .normalizer = std::move(normalizer),
                     .splitter = std::move(splitter),
                     .model = std::move(model),
                     .post_processor = std::move(post_processor)};
  return std::unique_ptr<TokenizerParts>(new TokenizerParts{
      .encoder = Encoder(std::move(parts), options.piece_cache_entries),
      .decoder = std::move(decoder),
  });
}

absl::StatusOr<std::unique_ptr<TokenizerParts>> ReadTokenizerJson(absl::string_view text,
                                                                  const TokenizerOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document, formats::JsonDocument::Parse(text));
  const formats::JsonValue root = document.root();
  QUIRE_RETURN_IF_ERROR(root.CheckObject());
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue model_json, root.Get("model"));
  QUIRE_ASSIGN_OR_RETURN(TokenModel model, TokenModel::FromJson(model_json));
  const std::string kind = absl::StrCat(model.type(), " (tokenizer.json)");
  QUIRE_ASSIGN_OR_RETURN(
      std::unique_ptr<TokenizerParts> parts,
      Assemble(std::move(model), root, AddedTokens::IdPolicy::kFollowVocabulary, options));
  parts->kind = kind;
  return parts;
}

// Sets `id` from the token named by `key` of tokenizer_config.json. If there is no such key, `id`
// is unchanged. A name that the tokenizer does not know is accepted, because published
// configurations name missing tokens.
absl::Status ReadNamedToken(const formats::JsonValue& config, absl::string_view key,
                            const Encoder& encoder, std::optional<std::int32_t>& id) {
  if (!config.Find(key)) return absl::OkStatus();
  const absl::StatusOr<std::optional<std::string>> text = NamedTokenText(config, key);
  if (!text.ok()) return WithFileName("tokenizer_config.json", text.status());
  id = *text ? encoder.TokenToId(**text) : std::nullopt;
  return absl::OkStatus();
}

absl::Status ReadNamedTokens(const formats::JsonValue& config, TokenizerParts& parts) {
  QUIRE_RETURN_IF_ERROR(ReadNamedToken(config, "bos_token", parts.encoder, parts.bos_token_id));
  QUIRE_RETURN_IF_ERROR(ReadNamedToken(config, "eos_token", parts.encoder, parts.eos_token_id));
  return ReadNamedToken(config, "pad_token", parts.encoder, parts.pad_token_id);
}

using Build = absl::StatusOr<std::unique_ptr<TokenizerParts>>(absl::string_view,
                                                              const formats::JsonValue&,
                                                              std::int64_t);

// Calls `build` with the parsed configuration, and sets the named tokens and the hash.
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildWithConfig(Build* build, absl::string_view file,
                                                           absl::string_view config_json,
                                                           const TokenizerOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument config, ParseTokenizerConfig(config_json));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<TokenizerParts> parts,
                         build(file, config.root(), options.piece_cache_entries));
  QUIRE_RETURN_IF_ERROR(ReadNamedTokens(config.root(), *parts));
  parts->sha256 = Sha256({file, config_json});
  return std::make_unique<Tokenizer>(std::move(parts));
}

// added_tokens.json predates tokenizer.json, and no other file contains its tokens.
absl::Status CheckNoAddedTokensFile(const std::filesystem::path& model_dir) {
  std::error_code error;
  const std::filesystem::path file = model_dir / "added_tokens.json";
  if (!std::filesystem::exists(file, error)) return absl::OkStatus();
  return absl::UnimplementedError(
      "added_tokens.json is supported only together with tokenizer.json");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& model_dir,
                                                           const TokenizerOptions& options) {
  std::error_code error;
  const auto has = [&](absl::string_view file) {
    return std::filesystem::exists(model_dir / std::string(file), error);
  };
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& candidate) { return has(candidate.file); });
  if (kind == std::end(kKinds)) {
    for (const UnsupportedKind& other : kUnsupportedKinds) {
      if (!has(other.file)) continue;
      return absl::UnimplementedError(absl::StrCat(
          model_dir.string(), " has ", other.file, " (", other.kind,
          "), which is not supported; add tokenizer.json, tekken.json, tokenizer.model or "
          "tokenizer.tiktoken"));
    }
    return absl::NotFoundError(
        absl::StrCat((model_dir / "tokenizer.json").string(), " does not exist"));
  }
  QUIRE_ASSIGN_OR_RETURN(const MappedFile file, OpenFile(model_dir / std::string(kind->file)));
  std::optional<MappedFile> config;
  if (has("tokenizer_config.json")) {
    QUIRE_ASSIGN_OR_RETURN(config, OpenFile(model_dir / "tokenizer_config.json"));
  }
  absl::Status status = absl::OkStatus();
  if (kind->file != "tokenizer.json") status = CheckNoAddedTokensFile(model_dir);
  if (!status.ok()) return WithFileName(model_dir.string(), status);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      kind->read(file.text(), config ? config->text() : absl::string_view(), options);
  if (!tokenizer.ok()) return WithFileName(model_dir.string(), tokenizer.status());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(
    absl::string_view tokenizer_json, absl::string_view tokenizer_config_json,
    const TokenizerOptions& options) {
  absl::StatusOr<std::unique_ptr<TokenizerParts>> parts =
      ReadTokenizerJson(tokenizer_json, options);
  if (!parts.ok()) return WithFileName("tokenizer.json", parts.status());
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument config,
                         ParseTokenizerConfig(tokenizer_config_json));
  QUIRE_RETURN_IF_ERROR(ReadNamedTokens(config.root(), **parts));
  (*parts)->sha256 = Sha256({tokenizer_json, tokenizer_config_json});
  return std::make_unique<Tokenizer>(*std::move(parts));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromSentencePiece(
    absl::string_view tokenizer_model, absl::string_view tokenizer_config_json,
    const TokenizerOptions& options) {
  return BuildWithConfig(&BuildSentencePiece, tokenizer_model, tokenizer_config_json, options);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromTekken(
    absl::string_view tekken_json, absl::string_view tokenizer_config_json,
    const TokenizerOptions& options) {
  return BuildWithConfig(&BuildTekken, tekken_json, tokenizer_config_json, options);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromTiktoken(
    absl::string_view tokenizer_tiktoken, absl::string_view tokenizer_config_json,
    const TokenizerOptions& options) {
  return BuildWithConfig(&BuildTiktoken, tokenizer_tiktoken, tokenizer_config_json, options);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocabulary& vocabulary,
                                                               const TokenizerOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(GgufPipeline pipeline, BuildGgufPipeline(vocabulary));
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument components,
                         formats::JsonDocument::Parse(pipeline.components_json));
  absl::StatusOr<std::unique_ptr<TokenizerParts>> parts = Assemble(
      std::move(pipeline.model), components.root(), AddedTokens::IdPolicy::kAsGiven, options);
  if (!parts.ok()) return WithFileName(vocabulary.label, parts.status());
  (*parts)->bos_token_id = pipeline.bos_id;
  (*parts)->eos_token_id = pipeline.eos_id;
  (*parts)->pad_token_id = pipeline.pad_id;
  (*parts)->kind = absl::StrCat(vocabulary.model, " (GGUF)");
  (*parts)->sha256 = Sha256({pipeline.identity});
  return std::make_unique<Tokenizer>(*std::move(parts));
}

Tokenizer::Tokenizer(std::unique_ptr<TokenizerParts> parts) : parts_(std::move(parts)) {
  if (!parts_->encoder.covers_every_byte()) return;
  std::size_t max_bytes = 1;
  for (std::int32_t id = 0; id < vocab_size(); ++id)
    max_bytes = std::max(max_bytes, TokenBytes(id).size());
  parts_->max_token_bytes = max_bytes;
}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::vector<std::int32_t>> Tokenizer::Encode(absl::string_view text,
                                                            const EncodeOptions& options) const {
  QUIRE_ASSIGN_OR_RETURN(const auto tokens, parts_->encoder.Encode(text, options, false));
  std::vector<std::int32_t> ids;
  ids.reserve(tokens.size());
  for (const EncodedToken& token : tokens) ids.push_back(token.id);
  return ids;
}

absl::StatusOr<std::vector<TokenPiece>> Tokenizer::EncodeWithPieces(
    absl::string_view text, const EncodeOptions& options) const {
  QUIRE_ASSIGN_OR_RETURN(const auto tokens, parts_->encoder.Encode(text, options, true));
  std::vector<TokenPiece> pieces;
  pieces.reserve(tokens.size());
  for (const EncodedToken& token : tokens) {
    pieces.push_back({.id = token.id,
                      .piece = TokenBytes(token.id),
                      .start_byte = token.span.begin,
                      .end_byte = token.span.end,
                      .special = IsSpecial(token.id)});
  }
  return pieces;
}

absl::StatusOr<std::string> Tokenizer::DecodeBytes(std::span<const std::int32_t> ids,
                                                   bool skip_special_tokens) const {
  DecoderStream stream(parts_->decoder, skip_special_tokens);
  std::string bytes;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!HasText(ids[i])) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", ids[i], " at position ", i,
                                                     " has no text; ids must be below ",
                                                     vocab_size()));
    }
    stream.Push(ids[i], bytes);
  }
  stream.Finish(bytes);
  return bytes;
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const std::int32_t> ids,
                                              bool skip_special_tokens) const {
  QUIRE_ASSIGN_OR_RETURN(const std::string bytes, DecodeBytes(ids, skip_special_tokens));
  Utf8Repairer repairer;
  std::string text;
  repairer.Push(bytes, text);
  repairer.Finish(text);
  return text;
}

std::string Tokenizer::TokenBytes(std::int32_t id) const {
  return HasText(id) ? parts_->decoder.bytes(id) : std::string();
}

std::optional<std::size_t> Tokenizer::max_token_bytes() const {
  return parts_->max_token_bytes;
}

std::int32_t Tokenizer::vocab_size() const {
  return parts_->decoder.size();
}
bool Tokenizer::HasText(std::int32_t id) const {
  return parts_->decoder.known(id);
}
bool Tokenizer::IsSpecial(std::int32_t id) const {
  return parts_->decoder.special(id);
}

std::optional<std::int32_t> Tokenizer::TokenToId(absl::string_view token) const {
  return parts_->encoder.TokenToId(token);
}

std::optional<std::int32_t> Tokenizer::bos_token_id() const {
  return parts_->bos_token_id;
}
std::optional<std::int32_t> Tokenizer::eos_token_id() const {
  return parts_->eos_token_id;
}
std::optional<std::int32_t> Tokenizer::pad_token_id() const {
  return parts_->pad_token_id;
}
const std::string& Tokenizer::kind() const {
  return parts_->kind;
}
const std::string& Tokenizer::sha256() const {
  return parts_->sha256;
}
const Decoder& Tokenizer::decoder() const {
  return parts_->decoder;
}

}  // namespace quire::text

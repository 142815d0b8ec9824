#include "text/tokenizer/decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/tokenizer/component.h"
#include "text/unicode/unicode.h"

namespace quire::text {
namespace {

constexpr std::int64_t kMaxStrip = 1 << 20;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (absl::ascii_isxdigit(static_cast<unsigned char>(c)))
    return absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10;
  return -1;
}

// Parses `<0xHH>` as one byte. Rust also accepts "+1" as a hexadecimal number, so this function
// does too.
std::optional<char> ByteOf(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return std::nullopt;
  const int high = token[3] == '+' ? 0 : HexDigit(token[3]);
  const int low = HexDigit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

// Maps every character to a byte with the GPT-2 table. A token with a character outside the table
// is unchanged.
std::string FromByteLevel(std::string token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const Utf8Char c = DecodeUtf8At(token, i);
    const auto byte = CharToByte(c.code_point);
    if (!byte) return token;
    bytes.push_back(static_cast<char>(*byte));
    i += c.size_bytes;
  }
  return bytes;
}

std::string Strip(absl::string_view token, absl::string_view content, std::uint32_t start,
                  std::uint32_t stop) {
  for (; start > 0 && absl::StartsWith(token, content); --start)
    token.remove_prefix(content.size());
  for (; stop > 0 && absl::EndsWith(token, content); --stop) token.remove_suffix(content.size());
  return std::string(token);
}

absl::StatusOr<std::string> Replace(const std::string& token, const Regex& pattern,
                                    const std::string& content, RegexScratch& scratch) {
  std::string replaced;
  std::size_t done = 0;
  QUIRE_RETURN_IF_ERROR(
      pattern.ForEachMatch(token, scratch, [&](std::size_t begin, std::size_t end) {
        replaced.append(token, done, begin - done);
        replaced += content;
        done = end;
      }));
  replaced.append(token, done);
  return replaced;
}

}  // namespace

absl::StatusOr<Decoder> Decoder::FromJson(const formats::JsonValue& config,
                                          std::vector<TokenText> tokens) {
  Decoder decoder;
  decoder.tokens_ = std::move(tokens);
  decoder.joins_with_space_ = config.is_null();
  if (!config.is_null()) QUIRE_RETURN_IF_ERROR(decoder.AddStage(config));
  const bool first_differs = std::any_of(decoder.stages_.begin(), decoder.stages_.end(),
                                         [](const Stage& stage) { return stage.strips_first; });
  RegexScratch scratch;
  decoder.bytes_.reserve(decoder.tokens_.size());
  for (const TokenText& token : decoder.tokens_) {
    QUIRE_ASSIGN_OR_RETURN(std::string bytes, decoder.Apply(token.text, false, scratch));
    decoder.bytes_.push_back(std::move(bytes));
    if (!first_differs) continue;
    QUIRE_ASSIGN_OR_RETURN(bytes, decoder.Apply(token.text, true, scratch));
    decoder.first_bytes_.push_back(std::move(bytes));
  }
  return decoder;
}

Decoder Decoder::OfBytes(std::vector<TokenText> tokens, std::vector<std::string> first_texts,
                         bool first_until_bytes) {
  Decoder decoder;
  decoder.bytes_.reserve(tokens.size());
  for (const TokenText& token : tokens) decoder.bytes_.push_back(token.text);
  decoder.tokens_ = std::move(tokens);
  decoder.first_bytes_ = std::move(first_texts);
  decoder.first_until_bytes_ = first_until_bytes;
  return decoder;
}

absl::Status Decoder::AddStage(const formats::JsonValue& config) {
  QUIRE_ASSIGN_OR_RETURN(const std::string type, config.GetString("type"));
  if (type == "Sequence") {
    return ForEachPart(config, "decoders",
                       [this](const formats::JsonValue& part) { return AddStage(part); });
  }
  if (type == "Fuse") {
    has_fuse_ = true;
    return absl::OkStatus();
  }
  if (type == "Strip") return AddStrip(config);
  // Text that has been streamed cannot be changed, so no stage may depend on several tokens.
  const bool is_known =
      type == "Replace" || type == "ByteFallback" || type == "ByteLevel" || type == "Metaspace";
  if (is_known && (has_fuse_ || (has_bytes_ && type == "Replace"))) {
    return absl::UnimplementedError(absl::StrCat(config.PathOf("type"), " \"", type, "\" after ",
                                                 has_fuse_ ? "Fuse" : "a decoder of bytes",
                                                 " is not supported"));
  }
  if (type == "Replace") return AddReplace(config);
  if (type == "Metaspace") return AddMetaspace(config);
  if (type == "ByteFallback" || type == "ByteLevel") {
    has_bytes_ = true;
    Stage stage;
    stage.kind = type == "ByteLevel" ? Stage::Kind::kByteLevel : Stage::Kind::kByteFallback;
    stages_.push_back(std::move(stage));
    return absl::OkStatus();
  }
  return UnsupportedType(config, type);
}

absl::Status Decoder::AddReplace(const formats::JsonValue& config) {
  Stage stage;
  stage.kind = Stage::Kind::kReplace;
  QUIRE_ASSIGN_OR_RETURN(stage.pattern, PatternOf(config));
  QUIRE_ASSIGN_OR_RETURN(stage.content, config.GetString("content"));
  stages_.push_back(std::move(stage));
  return absl::OkStatus();
}

absl::Status Decoder::AddStrip(const formats::JsonValue& config) {
  Stage stage;
  stage.kind = Stage::Kind::kStrip;
  QUIRE_ASSIGN_OR_RETURN(stage.content, CharacterOf(config, "content"));
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue start, config.Get("start"));
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue stop, config.Get("stop"));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t start_count, start.AsInteger(0, kMaxStrip));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t stop_count, stop.AsInteger(0, kMaxStrip));
  stage.start = static_cast<std::uint32_t>(start_count);
  stage.stop = static_cast<std::uint32_t>(stop_count);
  if (!has_fuse_) {
    stages_.push_back(std::move(stage));
    return absl::OkStatus();
  }
  if (stage.stop > 0) {
    return absl::UnimplementedError(
        absl::StrCat(stop.path(), " is ", stop_count,
                     ", must be 0 after Fuse: the end of a stream is not known in advance"));
  }
  if (strip_count_ > 0) {
    return absl::UnimplementedError(
        absl::StrCat(config.PathOf("type"), " \"Strip\" twice after Fuse is not supported"));
  }
  strip_character_ = stage.content;
  strip_count_ = stage.start;
  return absl::OkStatus();
}

absl::Status Decoder::AddMetaspace(const formats::JsonValue& config) {
  Stage stage;
  stage.kind = Stage::Kind::kMetaspace;
  QUIRE_ASSIGN_OR_RETURN(stage.content, CharacterOf(config, "replacement"));
  QUIRE_ASSIGN_OR_RETURN(const PrependScheme scheme, PrependSchemeOf(config));
  stage.strips_first = scheme != PrependScheme::kNever;
  stages_.push_back(std::move(stage));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Decoder::Apply(std::string token, bool is_first,
                                           RegexScratch& scratch) const {
  for (const Stage& stage : stages_) {
    switch (stage.kind) {
      case Stage::Kind::kReplace: {
        QUIRE_ASSIGN_OR_RETURN(token, Replace(token, *stage.pattern, stage.content, scratch));
        break;
      }
      case Stage::Kind::kByteFallback:
        if (const auto byte = ByteOf(token)) token.assign(1, *byte);
        break;
      case Stage::Kind::kStrip:
        token = Strip(token, stage.content, stage.start, stage.stop);
        break;
      case Stage::Kind::kByteLevel:
        // ByteFallback may have replaced the token by bytes that are not UTF-8; the table does not
        // apply to them.
        if (!FirstInvalidUtf8(token)) token = FromByteLevel(std::move(token));
        break;
      case Stage::Kind::kMetaspace:
        token = absl::StrReplaceAll(token,
                                    {{stage.content, is_first && stage.strips_first ? "" : " "}});
        break;
    }
  }
  return token;
}

DecoderStream::DecoderStream(const Decoder& decoder, bool skip_special_tokens,
                             std::function<bool(absl::string_view)> shows_special)
    : decoder_(&decoder),
      skip_special_tokens_(skip_special_tokens),
      shows_special_(std::move(shows_special)) {}

bool DecoderStream::IsSkipped(std::int32_t id) const {
  if (!decoder_->known(id)) return true;
  if (!skip_special_tokens_ || !decoder_->special(id)) return false;
  return !shows_special_ || !shows_special_(decoder_->bytes(id));
}

void DecoderStream::Push(std::int32_t id, std::string& out) {
  if (IsSkipped(id)) return;
  const bool is_first = std::exchange(state_.is_first, false);
  if (decoder_->joins_with_space_ && !is_first && !state_.is_verbatim) out.push_back(' ');
  const auto& table =
      is_first && !decoder_->first_bytes_.empty() ? decoder_->first_bytes_ : decoder_->bytes_;
  const std::string& bytes = table[Decoder::Index(id)];
  if (decoder_->first_until_bytes_ && is_first && bytes.empty()) state_.is_first = true;
  if (state_.stripped >= decoder_->strip_count_) {
    out += bytes;
  } else {
    AppendStripped(bytes, out);
  }
}

void DecoderStream::AppendStripped(absl::string_view bytes, std::string& out) {
  const std::string& strip = decoder_->strip_character_;
  std::string& prefix = state_.strip_prefix;
  while (!bytes.empty() && state_.stripped < decoder_->strip_count_) {
    if (bytes[0] != strip[prefix.size()]) {
      state_.stripped = decoder_->strip_count_;
      break;
    }
    prefix.push_back(bytes[0]);
    bytes.remove_prefix(1);
    if (prefix.size() == strip.size()) {
      prefix.clear();
      ++state_.stripped;
    }
  }
  if (state_.stripped < decoder_->strip_count_) return;
  out += prefix;
  prefix.clear();
  out.append(bytes.data(), bytes.size());
}

void DecoderStream::Finish(std::string& out) {
  out += state_.strip_prefix;
  state_.strip_prefix.clear();
}

}  // namespace quire::text

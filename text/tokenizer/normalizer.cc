#include "text/tokenizer/normalizer.h"

#include <utility>

#include "base/status.h"
#include "base/utf8.h"
#include "text/tokenizer/component.h"
#include "text/unicode/unicode.h"

namespace quire::text {
namespace {

// Calls `rewrite(c, begin, end, result)` for each character.
template <typename Rewrite>
void RewriteCharacters(AlignedText& text, Rewrite rewrite) {
  AlignedText result = text.EmptyLike();
  const std::string& bytes = text.text();
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Char c = DecodeUtf8At(bytes, i);
    rewrite(c.code_point, i, i + c.size_bytes, result);
    i += c.size_bytes;
  }
  text = std::move(result);
}

void Lowercase(AlignedText& text) {
  std::string lower;
  RewriteCharacters(text, [&](char32_t c, std::size_t begin, std::size_t, AlignedText& result) {
    lower.clear();
    AppendLowercase(c, lower);
    result.AppendLike(lower, text, begin);
  });
}

void StripAccents(AlignedText& text) {
  RewriteCharacters(text, [&](char32_t c, std::size_t begin, std::size_t end, AlignedText& result) {
    if (!IsMark(c)) result.AppendFrom(text, begin, end);
  });
}

void ToByteLevel(AlignedText& text) {
  AlignedText result = text.EmptyLike();
  const std::string& bytes = text.text();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    result.AppendLike(ByteToUtf8(static_cast<std::uint8_t>(bytes[i])), text, i);
  }
  text = std::move(result);
}

void Strip(AlignedText& text, bool left, bool right) {
  const std::string& bytes = text.text();
  const std::size_t begin = left ? SkipSpaces(bytes, 0) : 0;
  const std::size_t end = right ? SkipSpacesBack(bytes, bytes.size(), begin) : bytes.size();
  if (begin == 0 && end == bytes.size()) return;
  AlignedText result = text.EmptyLike();
  result.AppendFrom(text, begin, end);
  text = std::move(result);
}

// Replacement text gets the position of the last replaced character. A replacement of an empty
// match gets the position of the character before the match. If a match of several characters at
// the start of the input is replaced, the first piece therefore starts after input offset 0. The
// scheme "first" of Metaspace depends on this.
absl::Status Replace(AlignedText& text, const Regex& pattern, absl::string_view content,
                     RegexScratch& scratch) {
  AlignedText result = text.EmptyLike();
  std::size_t done = 0;
  QUIRE_RETURN_IF_ERROR(
      pattern.ForEachMatch(text.text(), scratch, [&](std::size_t begin, std::size_t end) {
        result.AppendFrom(text, done, begin);
        if (end > 0) {
          result.AppendLike(content, text, end - 1);
        } else {
          InputSpan start;
          if (text.tracked() && !text.text().empty())
            start = {text.span(0).begin, text.span(0).begin};
          result.Append(content, start);
        }
        done = end;
      }));
  result.AppendFrom(text, done, text.text().size());
  text = std::move(result);
  return absl::OkStatus();
}

void Prepend(AlignedText& text, absl::string_view content) {
  if (text.text().empty()) return;
  AlignedText result = text.EmptyLike();
  result.AppendLike(content, text, 0);
  result.AppendFrom(text, 0, text.text().size());
  text = std::move(result);
}

std::optional<NormalForm> NormalFormNamed(absl::string_view type) {
  if (type == "NFC") return NormalForm::kNfc;
  if (type == "NFD") return NormalForm::kNfd;
  if (type == "NFKC") return NormalForm::kNfkc;
  if (type == "NFKD") return NormalForm::kNfkd;
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::FromJson(const formats::JsonValue& config) {
  Normalizer normalizer;
  if (!config.is_null()) QUIRE_RETURN_IF_ERROR(normalizer.AddStep(config));
  return normalizer;
}

Normalizer Normalizer::OfSentencePiece(SentencePieceNormalizer sentencepiece) {
  Normalizer normalizer;
  Step step;
  step.kind = Kind::kSentencePiece;
  step.sentencepiece = std::move(sentencepiece);
  normalizer.steps_.push_back(std::move(step));
  return normalizer;
}

absl::Status Normalizer::AddStep(const formats::JsonValue& config) {
  // Does not use QUIRE_ASSIGN_OR_RETURN because of a false g++ 12 warning about an uninitialized
  // string.
  const absl::StatusOr<std::string> type_or = config.GetString("type");
  QUIRE_RETURN_IF_ERROR(type_or.status());
  const std::string& type = *type_or;
  if (type == "Sequence") {
    return ForEachPart(config, "normalizers",
                       [this](const formats::JsonValue& part) { return AddStep(part); });
  }
  Step step;
  if (const std::optional<NormalForm> form = NormalFormNamed(type)) {
    step.kind = Kind::kNormalForm;
    step.form = *form;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "StripAccents") {
    step.kind = Kind::kStripAccents;
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    QUIRE_ASSIGN_OR_RETURN(step.strip_left, config.GetBool("strip_left"));
    QUIRE_ASSIGN_OR_RETURN(step.strip_right, config.GetBool("strip_right"));
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    QUIRE_ASSIGN_OR_RETURN(step.pattern, PatternOf(config));
    QUIRE_ASSIGN_OR_RETURN(step.content, config.GetString("content"));
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    QUIRE_ASSIGN_OR_RETURN(step.content, config.GetString("prepend"));
  } else if (type == "Precompiled") {
    step.kind = Kind::kPrecompiled;
    QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue map, config.Get("precompiled_charsmap"));
    QUIRE_ASSIGN_OR_RETURN(const std::string base64, map.AsString());
    absl::StatusOr<PrecompiledMap> parsed = PrecompiledMap::FromBase64(base64);
    if (!parsed.ok()) return map.Error(parsed.status().message());
    step.map = *std::move(parsed);
  } else {
    return UnsupportedType(config, type);
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status Normalizer::Apply(AlignedText& text, RegexScratch& scratch) const {
  QUIRE_RETURN_IF_ERROR(text.CheckSize());
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kNormalForm:
        text = ToNormalForm(text, step.form);
        break;
      case Kind::kLowercase:
        Lowercase(text);
        break;
      case Kind::kStrip:
        Strip(text, step.strip_left, step.strip_right);
        break;
      case Kind::kStripAccents:
        StripAccents(text);
        break;
      case Kind::kReplace:
        QUIRE_RETURN_IF_ERROR(Replace(text, *step.pattern, step.content, scratch));
        break;
      case Kind::kPrepend:
        Prepend(text, step.content);
        break;
      case Kind::kByteLevel:
        ToByteLevel(text);
        break;
      case Kind::kPrecompiled:
        text = step.map->Apply(text);
        break;
      case Kind::kSentencePiece:
        text = step.sentencepiece->Apply(text);
        break;
    }
    QUIRE_RETURN_IF_ERROR(text.CheckSize());
  }
  return absl::OkStatus();
}

}  // namespace quire::text

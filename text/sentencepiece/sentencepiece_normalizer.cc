#include "text/sentencepiece/sentencepiece_normalizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/utf8.h"

namespace quire::text {

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::From(
    const SentencePieceFile& file) {
  SentencePieceNormalizer normalizer;
  if (!file.charsmap.empty()) {
    absl::StatusOr<PrecompiledMap> map = PrecompiledMap::FromBytes(file.charsmap);
    if (!map.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("normalizer_spec.precompiled_charsmap ", map.status().message()));
    }
    normalizer.map_ = *std::move(map);
  }
  normalizer.user_defined_pieces_ = file.UserDefinedPieces();
  normalizer.add_dummy_prefix_ = file.add_dummy_prefix;
  normalizer.remove_extra_whitespaces_ = file.remove_extra_whitespaces;
  normalizer.space_ = file.escape_whitespaces ? kSentencePieceSpace : absl::string_view(" ");
  return normalizer;
}

SentencePieceNormalizer::Step SentencePieceNormalizer::StepAt(absl::string_view text) const {
  const std::size_t symbol = user_defined_pieces_.Longest(text).first;
  if (symbol > 0) return {text.substr(0, symbol), symbol};
  if (const auto entry = map_.Longest(text)) return {entry->image, entry->size_bytes};
  const std::size_t character = Utf8Length(text[0]);
  return {text.substr(0, character), character};
}

AlignedText SentencePieceNormalizer::Apply(const AlignedText& text) const {
  const absl::string_view in = text.text();
  AlignedText out = text.EmptyLike();
  std::size_t at = 0;
  while (remove_extra_whitespaces_ && at < in.size()) {
    const Step step = StepAt(in.substr(at));
    if (step.image != " ") break;
    at += step.size;
  }
  if (at == in.size()) return out;
  if (add_dummy_prefix_) out.AppendLike(space_, text, at);
  bool after_space = remove_extra_whitespaces_;
  while (at < in.size()) {
    const Step step = StepAt(in.substr(at));
    absl::string_view image = step.image;
    while (after_space && absl::ConsumePrefix(&image, " ")) {
    }
    InputSpan span;
    if (text.tracked()) span = {text.span(at).begin, text.span(at + step.size - 1).end};
    if (!image.empty()) {
      after_space = remove_extra_whitespaces_ && absl::EndsWith(image, " ");
      while (!image.empty()) {
        const std::size_t word = image.find(' ');
        out.Append(image.substr(0, word), span);
        if (word == absl::string_view::npos) break;
        out.Append(space_, span);
        image.remove_prefix(word + 1);
      }
    }
    at += step.size;
  }
  std::size_t end = out.text().size();
  while (remove_extra_whitespaces_ && absl::EndsWith(out.view(0, end), space_)) {
    end -= space_.size();
  }
  if (end == out.text().size()) return out;
  AlignedText stripped = text.EmptyLike();
  stripped.AppendFrom(out, 0, end);
  return stripped;
}

}  // namespace quire::text

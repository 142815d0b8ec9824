#include "text/tokenizer/splitter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/unicode/regex_syntax.h"
#include "text/unicode/unicode.h"

namespace quire::text {
namespace {

// Source: openai/gpt-2, encoder.py.
constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

absl::StatusOr<Splitter> Splitter::FromJson(const formats::JsonValue& config) {
  Splitter splitter;
  if (!config.is_null()) QUIRE_RETURN_IF_ERROR(splitter.AddStep(config));
  return splitter;
}

Splitter Splitter::OfByteLevel(Regex pattern) {
  Splitter splitter;
  Step step;
  step.kind = Kind::kByteLevel;
  step.pattern = std::move(pattern);
  splitter.steps_.push_back(std::move(step));
  return splitter;
}

absl::StatusOr<Splitter::Behavior> Splitter::BehaviorOf(const formats::JsonValue& config) {
  QUIRE_ASSIGN_OR_RETURN(const std::string name, config.GetString("behavior"));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return absl::InvalidArgumentError(absl::StrCat(
      config.PathOf("behavior"), " is \"", name,
      "\", must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous"));
}

bool Splitter::maps_every_byte() const {
  const auto maps_bytes = [](const Step& step) { return step.kind == Kind::kByteLevel; };
  const auto drops_bytes = [](const Step& step) {
    return step.kind == Kind::kMetaspace || step.behavior == Behavior::kRemoved;
  };
  return std::any_of(steps_.begin(), steps_.end(), maps_bytes) &&
         std::none_of(steps_.begin(), steps_.end(), drops_bytes);
}

absl::Status Splitter::AddStep(const formats::JsonValue& config) {
  QUIRE_ASSIGN_OR_RETURN(const std::string type, config.GetString("type"));
  if (type == "Sequence") {
    return ForEachPart(config, "pretokenizers",
                       [this](const formats::JsonValue& part) { return AddStep(part); });
  }
  if (type == "ByteLevel") return AddByteLevel(config);
  if (type == "Metaspace") return AddMetaspace(config);
  Step step;
  if (type == "Split") {
    step.kind = Kind::kPattern;
    QUIRE_ASSIGN_OR_RETURN(step.pattern, PatternOf(config));
    QUIRE_ASSIGN_OR_RETURN(step.behavior, BehaviorOf(config));
    QUIRE_ASSIGN_OR_RETURN(step.invert, config.GetBool("invert"));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    QUIRE_ASSIGN_OR_RETURN(const bool individual, config.GetBool("individual_digits"));
    step.behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    if (config.Find("behavior")) {
      QUIRE_ASSIGN_OR_RETURN(step.behavior, BehaviorOf(config));
    }
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kSpace;
    step.behavior = Behavior::kRemoved;
  } else if (type == "Whitespace") {
    step.kind = Kind::kPattern;
    QUIRE_ASSIGN_OR_RETURN(
        step.pattern, Regex::FromPcre(absl::StrCat("[", kRustWordClass, "]+|[^", kRustWordClass,
                                                   kSpaceClass, "]+")));
    step.behavior = Behavior::kRemoved;
    step.invert = true;
  } else {
    return UnsupportedType(config, type);
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status Splitter::AddByteLevel(const formats::JsonValue& config) {
  Step step;
  step.kind = Kind::kByteLevel;
  QUIRE_ASSIGN_OR_RETURN(step.adds_prefix_space, config.GetBool("add_prefix_space"));
  QUIRE_ASSIGN_OR_RETURN(const bool uses_pattern, config.GetBoolOr("use_regex", true));
  if (uses_pattern) {
    QUIRE_ASSIGN_OR_RETURN(step.pattern, Regex::FromOniguruma(kGpt2Pattern));
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status Splitter::AddMetaspace(const formats::JsonValue& config) {
  Step step;
  step.kind = Kind::kMetaspace;
  QUIRE_ASSIGN_OR_RETURN(step.sign, CharacterOf(config, "replacement"));
  QUIRE_ASSIGN_OR_RETURN(step.scheme, PrependSchemeOf(config));
  QUIRE_ASSIGN_OR_RETURN(step.splits, config.GetBoolOr("split", true));
  QUIRE_ASSIGN_OR_RETURN(step.pattern, Regex::FromLiteral(step.sign));
  step.behavior = Behavior::kMergedWithNext;
  needs_tracking_ = needs_tracking_ || step.scheme == PrependScheme::kFirst;
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status Splitter::Split(PieceList& list, RegexScratch& scratch) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel:
        if (step.adds_prefix_space) AddPrefixSpaces(list);
        QUIRE_RETURN_IF_ERROR(list.text.CheckSize());
        if (step.pattern) QUIRE_RETURN_IF_ERROR(SplitPieces(step, list, scratch));
        MapBytes(list);
        break;
      case Kind::kMetaspace:
        InsertSigns(step, list);
        QUIRE_RETURN_IF_ERROR(list.text.CheckSize());
        if (step.splits) QUIRE_RETURN_IF_ERROR(SplitPieces(step, list, scratch));
        break;
      default:
        QUIRE_RETURN_IF_ERROR(SplitPieces(step, list, scratch));
    }
    QUIRE_RETURN_IF_ERROR(list.text.CheckSize());
  }
  return absl::OkStatus();
}

absl::Status Splitter::FindRanges(const Step& step, const AlignedText& text, const Piece& piece,
                                  RegexScratch& scratch, std::vector<Range>& ranges) {
  std::size_t done = piece.begin;
  const auto add_match = [&](std::size_t begin, std::size_t end) {
    if (begin != done) ranges.push_back({done, begin, step.invert});
    ranges.push_back({begin, end, !step.invert});
    done = end;
  };
  if (step.pattern) {
    QUIRE_RETURN_IF_ERROR(step.pattern->ForEachMatch(
        text.view(piece.begin, piece.end), scratch, [&](std::size_t begin, std::size_t end) {
          add_match(piece.begin + begin, piece.begin + end);
        }));
  } else {
    for (std::size_t i = piece.begin; i < piece.end;) {
      const Utf8Char c = DecodeUtf8At(text.text(), i);
      const bool is_match = step.kind == Kind::kSpace         ? IsSpace(c.code_point)
                            : step.kind == Kind::kPunctuation ? IsPunctuation(c.code_point)
                                                              : IsNumeric(c.code_point);
      if (is_match) add_match(i, i + c.size_bytes);
      i += c.size_bytes;
    }
  }
  if (done != piece.end) ranges.push_back({done, piece.end, step.invert});
  return absl::OkStatus();
}

// Joins and removes ranges as `behavior` specifies. The remaining ranges are the pieces.
void Splitter::JoinRanges(Behavior behavior, std::vector<Range>& ranges) {
  std::vector<Range> joined;
  bool previous_matched = false;
  const auto add_or_join = [&](const Range& range, bool joins) {
    if (joins && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, range.begin);
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
    previous_matched = range.is_match;
  };
  switch (behavior) {
    case Behavior::kIsolated:
      return;
    case Behavior::kRemoved:
      ranges.erase(std::remove_if(ranges.begin(), ranges.end(),
                                  [](const Range& range) { return range.is_match; }),
                   ranges.end());
      return;
    case Behavior::kContiguous:
      for (const Range& range : ranges) add_or_join(range, range.is_match == previous_matched);
      break;
    case Behavior::kMergedWithPrevious:
      for (const Range& range : ranges) add_or_join(range, range.is_match && !previous_matched);
      break;
    case Behavior::kMergedWithNext:
      for (auto it = ranges.rbegin(); it != ranges.rend(); ++it) {
        add_or_join(*it, it->is_match && !previous_matched);
      }
      std::reverse(joined.begin(), joined.end());
      break;
  }
  ranges = std::move(joined);
}

absl::Status Splitter::SplitPieces(const Step& step, PieceList& list, RegexScratch& scratch) {
  std::vector<Piece> split;
  split.reserve(list.pieces.size());
  std::vector<Range> ranges;
  for (const Piece& piece : list.pieces) {
    ranges.clear();
    QUIRE_RETURN_IF_ERROR(FindRanges(step, list.text, piece, scratch, ranges));
    JoinRanges(step.behavior, ranges);
    for (const Range& range : ranges) {
      if (range.begin == range.end) continue;
      const std::int32_t input_begin = list.text.tracked() ? list.text.span(range.begin).begin : -1;
      split.push_back({range.begin, range.end, input_begin});
    }
  }
  list.pieces = std::move(split);
  return absl::OkStatus();
}

// Only U+0020 counts as a space: a piece that starts with a tab gets the prefix too.
void Splitter::AddPrefixSpaces(PieceList& list) {
  AlignedText text = list.text.EmptyLike();
  for (Piece& piece : list.pieces) {
    const std::size_t begin = text.text().size();
    if (list.text.text()[piece.begin] != ' ') text.AppendLike(" ", list.text, piece.begin);
    text.AppendFrom(list.text, piece.begin, piece.end);
    piece.begin = begin;
    piece.end = text.text().size();
  }
  list.text = std::move(text);
}

void Splitter::MapBytes(PieceList& list) {
  AlignedText text = list.text.EmptyLike();
  for (Piece& piece : list.pieces) {
    const std::size_t begin = text.text().size();
    for (std::size_t i = piece.begin; i < piece.end; ++i) {
      const auto byte = static_cast<std::uint8_t>(list.text.text()[i]);
      text.AppendLike(ByteToUtf8(byte), list.text, i);
    }
    piece.begin = begin;
    piece.end = text.text().size();
  }
  list.text = std::move(text);
}

void Splitter::InsertSigns(const Step& step, PieceList& list) {
  AlignedText text = list.text.EmptyLike();
  for (Piece& piece : list.pieces) {
    const std::size_t begin = text.text().size();
    const absl::string_view old = list.text.view(piece.begin, piece.end);
    const bool has_sign = old[0] == ' ' || absl::StartsWith(old, step.sign);
    const bool prepends = step.scheme == PrependScheme::kAlways ||
                          (step.scheme == PrependScheme::kFirst && piece.input_begin == 0);
    if (prepends && !has_sign) text.AppendLike(step.sign, list.text, piece.begin);
    for (std::size_t i = piece.begin; i < piece.end;) {
      // Searches only inside the piece; searching the whole text for each piece would be quadratic.
      const std::size_t rest = list.text.view(i, piece.end).find(' ');
      const std::size_t space = rest == absl::string_view::npos ? piece.end : i + rest;
      text.AppendFrom(list.text, i, space);
      if (space < piece.end) text.AppendLike(step.sign, list.text, space);
      i = space + 1;
    }
    piece.begin = begin;
    piece.end = text.text().size();
  }
  list.text = std::move(text);
}

}  // namespace quire::text

#include "text/tools/call_parsers.h"

#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "text/tools/call_reader.h"

namespace quire::text {
namespace {

constexpr absl::string_view kChannel = "<|channel|>", kStart = "<|start|>",
                            kMessage = "<|message|>";
constexpr absl::string_view kEnd = "<|end|>", kReturn = "<|return|>", kCallEnd = "<|call|>";
// Maximum size of a header; longer text is not a header.
constexpr std::size_t kMaxHeaderBytes = 512;

bool IsSpace(char byte) {
  return absl::ascii_isspace(static_cast<unsigned char>(byte));
}

absl::string_view AsText(const char& byte) {
  return absl::string_view(&byte, 1);
}

std::string TakeAll(std::string& text) {
  return std::exchange(text, {});
}

// Removes leading white space from `text` and returns it.
std::string TakeSpace(std::string& text) {
  std::size_t spaces = 0;
  while (spaces < text.size() && IsSpace(text[spaces])) ++spaces;
  std::string space = text.substr(0, spaces);
  text.erase(0, spaces);
  return space;
}

}  // namespace

MarkerMatch MatchMarkers(absl::string_view text, std::initializer_list<absl::string_view> markers) {
  MarkerMatch match;
  for (const absl::string_view marker : markers) {
    if (marker.empty()) continue;
    if (absl::StartsWith(text, marker)) return {.marker = marker, .is_prefix = false};
    match.is_prefix |= absl::StartsWith(marker, text);
  }
  return match;
}

void MarkedParser::Push(char byte, PartSink& sink) {
  buffered_ += byte;
  if (state_ != State::kCall) {
    PushText(sink);
    return;
  }
  const auto ends_call = [this](auto& end) { return end.Push(buffered_); };
  const auto* object_end = std::get_if<ObjectCallEnd>(&call_end_);
  if (std::visit(ends_call, call_end_)) {
    ToolCall call = ReadMarkedCall(buffered_, format_, tools_);
    markup_.Call(TakeAll(buffered_), std::move(call), sink);
    state_ = in_section_ ? State::kSection : State::kAfterMarkup;
  } else if (object_end != nullptr && object_end->CannotBecomeCall(buffered_)) {
    markup_.Failed(TakeAll(buffered_), "bad_call", sink);
    state_ = State::kText;
  }
}

void MarkedParser::PushText(PartSink& sink) {
  while (true) {
    if (state_ != State::kText) markup_.Hold(TakeSpace(buffered_));
    if (buffered_.empty()) return;
    const MarkerMatch match = MatchMarkers(
        buffered_, {state_ == State::kSection ? format_.section_end : format_.section_begin,
                    format_.call_begin[0], format_.call_begin[1]});
    if (match.is_prefix) return;
    if (match.marker.empty()) {
      markup_.Content(buffered_.substr(0, 1), sink);
      buffered_.erase(0, 1);
      state_ = State::kText;
      in_section_ = false;
      continue;
    }
    if (match.marker == format_.section_begin) {
      in_section_ = true;
      state_ = State::kSection;
      markup_.Open(TakeAll(buffered_));
    } else if (match.marker == format_.section_end) {
      in_section_ = false;
      state_ = State::kAfterMarkup;
      markup_.Close(TakeAll(buffered_), sink);
    } else {
      state_ = State::kCall;
      call_end_ = MakeCallEnd(format_, buffered_);
    }
    return;
  }
}

void MarkedParser::Finish(PartSink& sink) {
  if (state_ == State::kCall) {
    ToolCall call = ReadMarkedCall(buffered_, format_, tools_);
    if (!call.error.empty()) call.error = "unfinished";
    markup_.Call(TakeAll(buffered_), std::move(call), sink);
    return;
  }
  if (!buffered_.empty()) markup_.Content(TakeAll(buffered_), sink);
  markup_.Finish(sink);
}

void ListParser::Push(char byte, PartSink& sink) {
  switch (state_) {
    case State::kText:
    case State::kAfterMarkup:
      buffered_ += byte;
      PushText(sink);
      return;
    case State::kMarker:
      PushMarker(byte, sink);
      return;
    case State::kItems:
      PushItems(byte, sink);
      return;
    case State::kItem:
      buffered_ += byte;
      if (json_.Push(byte)) EndItem(sink);
      return;
    case State::kEnd:
      buffered_ += byte;
      PushEnd(sink);
      return;
  }
}

void ListParser::EndItem(PartSink& sink) {
  markup_.Call(buffered_, ReadObjectCall(buffered_, tools_), sink);
  buffered_.clear();
  state_ = State::kItems;
  if (is_single_) EndList();
}

void ListParser::PushText(PartSink& sink) {
  while (true) {
    if (state_ == State::kAfterMarkup) markup_.Hold(TakeSpace(buffered_));
    if (buffered_.empty()) return;
    const MarkerMatch match =
        MatchMarkers(buffered_, {format_.call_begin[0], format_.call_begin[1]});
    if (match.is_prefix) return;
    if (!match.marker.empty()) {
      state_ = State::kMarker;
      return;
    }
    markup_.Content(buffered_.substr(0, 1), sink);
    buffered_.erase(0, 1);
    state_ = State::kText;
  }
}

void ListParser::PushMarker(char byte, PartSink& sink) {
  if (IsSpace(byte)) {
    buffered_ += byte;
  } else if (byte == '[') {
    markup_.Open(TakeAll(buffered_) + byte);
    state_ = State::kItems;
    is_single_ = false;
  } else if (byte == '{') {
    markup_.Open(TakeAll(buffered_));
    is_single_ = true;
    PushItems(byte, sink);
  } else {
    markup_.Failed(TakeAll(buffered_), "bad_call", sink);
    buffered_ = byte;
    state_ = State::kText;
    PushText(sink);
  }
}

void ListParser::PushItems(char byte, PartSink& sink) {
  if (IsSpace(byte) || byte == ',') {
    markup_.Hold(AsText(byte));
  } else if (byte == '{') {
    buffered_ = byte;
    json_.Push(byte);
    state_ = State::kItem;
  } else if (byte == ']') {
    markup_.Close(AsText(byte), sink);
    EndList();
  } else {
    markup_.Failed(AsText(byte), "bad_call", sink);
    state_ = State::kText;
  }
}

void ListParser::PushEnd(PartSink& sink) {
  markup_.Hold(TakeSpace(buffered_));
  if (buffered_.empty()) return;
  const MarkerMatch match = MatchMarkers(buffered_, {format_.call_end});
  if (match.is_prefix) return;
  state_ = State::kAfterMarkup;
  if (match.marker.empty()) {
    PushText(sink);
    return;
  }
  markup_.Close(TakeAll(buffered_), sink);
}

void ListParser::Finish(PartSink& sink) {
  if (state_ == State::kMarker || state_ == State::kItem) {
    markup_.Failed(TakeAll(buffered_), "unfinished", sink);
    return;
  }
  if (!buffered_.empty()) markup_.Content(TakeAll(buffered_), sink);
  markup_.Finish(sink);
}

void ObjectParser::Push(char byte, PartSink& sink) {
  switch (state_) {
    case State::kStart:
      buffered_ += byte;
      PushStart(sink);
      return;
    case State::kAfterTag:
      if (IsSpace(byte)) {
        markup_.Hold(AsText(byte));
      } else if (byte == '{') {
        BeginObject(byte);
      } else {
        markup_.Failed(AsText(byte), "bad_call", sink);
        state_ = State::kText;
      }
      return;
    case State::kObject:
      buffered_ += byte;
      if (json_.Push(byte)) EndObject(sink);
      return;
    case State::kBetween:
      if (IsSpace(byte) || byte == ';') {
        markup_.Hold(AsText(byte));
      } else if (byte == '{') {
        BeginObject(byte);
      } else {
        markup_.Content(AsText(byte), sink);
        state_ = State::kText;
      }
      return;
    case State::kText:
      sink.Content(AsText(byte));
      return;
  }
}

void ObjectParser::PushStart(PartSink& sink) {
  markup_.Hold(TakeSpace(buffered_));
  if (buffered_.empty()) return;
  if (buffered_ == "{") {
    BeginObject('{');
    return;
  }
  const MarkerMatch match = MatchMarkers(buffered_, {format_.call_begin[0]});
  if (match.is_prefix) return;
  if (match.marker.empty()) {
    markup_.Content(TakeAll(buffered_), sink);
    state_ = State::kText;
    return;
  }
  markup_.Open(TakeAll(buffered_));
  state_ = State::kAfterTag;
  is_call_expected_ = true;
}

void ObjectParser::BeginObject(char byte) {
  buffered_ = byte;
  json_.Push(byte);
  state_ = State::kObject;
}

void ObjectParser::EndObject(PartSink& sink) {
  if (!is_call_expected_ && !LooksLikeCall(buffered_)) {
    markup_.Content(TakeAll(buffered_), sink);
    state_ = State::kText;
    return;
  }
  markup_.Call(buffered_, ReadObjectCall(buffered_, tools_), sink);
  buffered_.clear();
  state_ = State::kBetween;
}

void ObjectParser::Finish(PartSink& sink) {
  if (state_ == State::kObject) {
    markup_.Failed(TakeAll(buffered_), "unfinished", sink);
    return;
  }
  if (!buffered_.empty()) markup_.Content(TakeAll(buffered_), sink);
  markup_.Finish(sink);
}

void PythonParser::Push(char byte, PartSink& sink) {
  switch (state_) {
    case State::kStart:
      buffered_ += byte;
      PushStart(sink);
      return;
    case State::kName:
      PushName(byte, sink);
      return;
    case State::kArguments:
      buffered_ += byte;
      if (python_.Push(byte)) state_ = State::kAfterCall;
      return;
    case State::kAfterCall:
      PushAfterCall(byte, sink);
      return;
    case State::kClosed:
      buffered_ += byte;
      PushClosed(sink);
      return;
    case State::kText:
      sink.Content(AsText(byte));
      return;
  }
}

void PythonParser::PushStart(PartSink& sink) {
  prefix_ += TakeSpace(buffered_);
  if (buffered_.empty()) return;
  if (buffered_ == "[") {
    prefix_ += TakeAll(buffered_);
    state_ = State::kName;
    return;
  }
  const MarkerMatch match = MatchMarkers(buffered_, {format_.call_begin[0]});
  if (match.is_prefix) return;
  if (match.marker.empty()) {
    BecomeText(sink);
  } else {
    markup_.Open(TakeAll(prefix_) + TakeAll(buffered_));
  }
}

void PythonParser::PushName(char byte, PartSink& sink) {
  if (IsSpace(byte) && buffered_.empty() && has_calls_) {
    markup_.Hold(AsText(byte));
  } else if (IsSpace(byte)) {
    (buffered_.empty() ? prefix_ : buffered_) += byte;
    if (buffered_.size() > kMaxNameBytes) BecomeText(sink);
  } else if (IsPythonNameByte(byte) && (buffered_.empty() || !IsSpace(buffered_.back()))) {
    buffered_ += byte;
    if (buffered_.size() > kMaxNameBytes) BecomeText(sink);
  } else if (byte == '(' && !buffered_.empty()) {
    if (!has_calls_) markup_.Open(TakeAll(prefix_));
    buffered_ += byte;
    python_ = PythonTracker();
    has_calls_ = true;
    state_ = State::kArguments;
  } else if (byte == ']' && buffered_.empty() && has_calls_) {
    markup_.Close(AsText(byte), sink);
    state_ = State::kClosed;
  } else {
    buffered_ += byte;
    BecomeText(sink);
  }
}

void PythonParser::PushAfterCall(char byte, PartSink& sink) {
  if (IsSpace(byte)) {
    prefix_ += byte;
  } else if (byte == ',') {
    EmitCall(sink);
    markup_.Hold(AsText(byte));
    state_ = State::kName;
  } else if (byte == ']') {
    EmitCall(sink);
    markup_.Close(AsText(byte), sink);
    state_ = State::kClosed;
  } else {
    buffered_ += TakeAll(prefix_) + byte;
    BecomeText(sink);
  }
}

void PythonParser::PushClosed(PartSink& sink) {
  markup_.Hold(TakeSpace(buffered_));
  if (buffered_.empty()) return;
  const MarkerMatch match = MatchMarkers(buffered_, {format_.call_end});
  if (match.is_prefix) return;
  if (match.marker.empty()) {
    markup_.Content(TakeAll(buffered_), sink);
    state_ = State::kText;
  } else {
    markup_.Close(TakeAll(buffered_), sink);
  }
}

// Emits the buffered text, which is not a call: inside a list of calls as a failed call, otherwise
// as content.
void PythonParser::BecomeText(PartSink& sink) {
  const std::string text = TakeAll(prefix_) + TakeAll(buffered_);
  if (has_calls_) {
    markup_.Failed(text, "bad_call", sink);
  } else {
    markup_.Content(text, sink);
  }
  state_ = State::kText;
}

// Emits the call, then buffers the white space after it.
void PythonParser::EmitCall(PartSink& sink) {
  markup_.Call(buffered_, ReadPythonToolCall(buffered_, tools_), sink);
  buffered_.clear();
  markup_.Hold(TakeAll(prefix_));
}

void PythonParser::Finish(PartSink& sink) {
  if (state_ == State::kAfterCall) EmitCall(sink);
  const bool is_cut =
      state_ == State::kArguments || (state_ == State::kName && has_calls_ && !buffered_.empty());
  if (is_cut) {
    markup_.Failed(TakeAll(buffered_), "unfinished", sink);
    return;
  }
  const std::string text = TakeAll(prefix_) + TakeAll(buffered_);
  if (!text.empty()) markup_.Content(text, sink);
  markup_.Finish(sink);
}

void HarmonyParser::Push(char byte, PartSink& sink) {
  buffered_ += byte;
  switch (state_) {
    case State::kBetween:
      PushBetween(sink);
      return;
    case State::kHeader:
      if (absl::EndsWith(buffered_, kMessage)) {
        EndHeader(sink);
      } else if (buffered_.size() > kMaxHeaderBytes) {
        sink.Failed(TakeAll(buffered_), "bad_call");
        state_ = State::kContent;
      }
      return;
    case State::kContent:
    case State::kReasoning:
      PushBody(sink);
      return;
    case State::kCall:
      PushCall(byte, sink);
      return;
  }
}

void HarmonyParser::PushBetween(PartSink& sink) {
  while (!buffered_.empty()) {
    const MarkerMatch match = MatchMarkers(
        buffered_, {kStart, kChannel, is_first_ ? " to=" : "", is_first_ ? "to=" : ""});
    if (match.is_prefix) return;
    if (!match.marker.empty()) {
      is_first_ = false;
      state_ = State::kHeader;
      return;
    }
    if (!IsSpace(buffered_.front())) {
      is_first_ = false;
      state_ = State::kContent;
      PushBody(sink);
      return;
    }
    sink.Markup(buffered_.substr(0, 1));
    buffered_.erase(0, 1);
  }
}

// buffered_ is the whole header. The recipient follows the role or the channel.
void HarmonyParser::EndHeader(PartSink& sink) {
  const absl::string_view header = buffered_;
  const std::size_t to = header.find("to=");
  if (to != absl::string_view::npos) {
    const absl::string_view rest = header.substr(to + 3);
    recipient_ = std::string(rest.substr(0, rest.find_first_of(" <\t\n")));
    arguments_begin_ = json_end_ = buffered_.size();
    state_ = State::kCall;
    return;
  }
  const std::size_t channel = header.rfind(kChannel);
  const bool is_analysis = channel != absl::string_view::npos &&
                           absl::StartsWith(header.substr(channel + kChannel.size()), "analysis");
  state_ = is_analysis ? State::kReasoning : State::kContent;
  sink.Markup(TakeAll(buffered_));
}

void HarmonyParser::PushBody(PartSink& sink) {
  while (!buffered_.empty()) {
    const MarkerMatch match = MatchMarkers(buffered_, {kEnd, kReturn, kCallEnd, kStart});
    if (match.is_prefix) return;
    if (match.marker == kStart) {
      state_ = State::kHeader;
      return;
    }
    if (!match.marker.empty()) {
      sink.Markup(TakeAll(buffered_));
      state_ = State::kBetween;
      return;
    }
    if (state_ == State::kReasoning) {
      sink.Reasoning(buffered_.substr(0, 1));
    } else {
      sink.Content(buffered_.substr(0, 1));
    }
    buffered_.erase(0, 1);
  }
}

void HarmonyParser::PushCall(char byte, PartSink& sink) {
  if (json_.Push(byte)) json_end_ = buffered_.size();
  if (json_.is_inside()) return;
  for (const absl::string_view marker : {kCallEnd, kEnd, kReturn, kStart}) {
    if (buffered_.size() < json_end_ + marker.size() || !absl::EndsWith(buffered_, marker))
      continue;
    const absl::string_view call = absl::StripSuffix(buffered_, marker);
    const bool begins_next = marker == kStart;
    sink.Call(begins_next ? call : absl::string_view(buffered_), ReadCall(call));
    buffered_ = begins_next ? std::string(marker) : std::string();
    state_ = begins_next ? State::kHeader : State::kBetween;
    return;
  }
}

ToolCall HarmonyParser::ReadCall(absl::string_view call) const {
  return ReadNamedCall(absl::StripPrefix(recipient_, "functions."),
                       absl::StripAsciiWhitespace(call.substr(arguments_begin_)), tools_);
}

void HarmonyParser::Finish(PartSink& sink) {
  if (state_ == State::kCall) {
    ToolCall call = ReadCall(buffered_);
    if (!call.error.empty()) call.error = "unfinished";
    sink.Call(TakeAll(buffered_), std::move(call));
  } else if (state_ == State::kHeader) {
    sink.Markup(TakeAll(buffered_));
  } else if (state_ == State::kReasoning) {
    sink.Reasoning(TakeAll(buffered_));
  } else {
    sink.Content(TakeAll(buffered_));
  }
}

}  // namespace quire::text

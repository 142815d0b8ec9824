#include "text/tools/call_parsers.h"

#include <utility>

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
// A name, or a header, that goes on for longer is none.
constexpr std::size_t kMaxNameBytes = 256;
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

// Removes white space from the beginning of `text` and returns it.
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
    if (absl::StartsWith(text, marker)) return {.marker = marker, .may_come = false};
    match.may_come |= absl::StartsWith(marker, text);
  }
  return match;
}

void MarkedParser::Push(char byte, PartSink& sink) {
  held_ += byte;
  if (state_ != State::kCall) {
    PushText(sink);
    return;
  }
  if (EndsCall(byte)) {
    ToolCall call = ReadMarkedCall(held_, format_, tools_);
    markup_.Call(TakeAll(held_), std::move(call), sink);
    state_ = in_section_ ? State::kSection : State::kAfterMarkup;
  } else if (IsHopeless()) {
    markup_.Failed(TakeAll(held_), "bad_call", sink);
    state_ = State::kText;
  }
}

void MarkedParser::PushText(PartSink& sink) {
  while (true) {
    if (state_ != State::kText) markup_.Hold(TakeSpace(held_));
    if (held_.empty()) return;
    const MarkerMatch match = MatchMarkers(
        held_, {state_ == State::kSection ? format_.section_end : format_.section_begin,
                format_.call_begin[0], format_.call_begin[1]});
    if (match.may_come) return;
    if (match.marker.empty()) {
      markup_.Content(held_.substr(0, 1), sink);
      held_.erase(0, 1);
      state_ = State::kText;
      in_section_ = false;
      continue;
    }
    if (match.marker == format_.section_begin) {
      in_section_ = true;
      state_ = State::kSection;
      markup_.Open(TakeAll(held_));
    } else if (match.marker == format_.section_end) {
      in_section_ = false;
      state_ = State::kAfterMarkup;
      markup_.Close(TakeAll(held_), sink);
    } else {
      BeginCall();
    }
    return;
  }
}

// held_ is its first marker.
void MarkedParser::BeginCall() {
  state_ = State::kCall;
  json_ = JsonTracker();
  json_end_ = held_.size();
  in_value_ = has_function_ = has_parameter_ = false;
}

bool MarkedParser::EndsCall(char byte) {
  switch (format_.shape) {
    case CallShape::kXmlParameters:
      return EndsXmlCall();
    case CallShape::kKeyValues:
      if (in_value_) {
        in_value_ = !absl::EndsWith(held_, "</arg_value>");
        return false;
      }
      in_value_ = absl::EndsWith(held_, "<arg_value>");
      return absl::EndsWith(held_, format_.call_end);
    default:
      break;
  }
  if (json_.Push(byte)) {
    json_end_ = held_.size();
    return format_.call_end.empty();
  }
  return !json_.is_inside() && !format_.call_end.empty() &&
         held_.size() >= json_end_ + format_.call_end.size() &&
         absl::EndsWith(held_, format_.call_end);
}

// A value may hold the closing markers, so the outer one counts behind the end of the function
// only, and that behind the end of a parameter.
bool MarkedParser::EndsXmlCall() {
  has_function_ |= absl::EndsWith(held_, format_.call_begin[1]);
  has_parameter_ |= absl::EndsWith(held_, "<parameter=");
  absl::string_view text = held_;
  const bool is_marked = absl::StartsWith(text, format_.call_begin[0]);
  if (is_marked) {
    if (!absl::ConsumeSuffix(&text, format_.call_end)) return false;
    if (!has_function_) return true;  // no call, but over
    text = absl::StripTrailingAsciiWhitespace(text);
  }
  if (!absl::ConsumeSuffix(&text, kEndFunction)) return false;
  return is_marked || !has_parameter_ ||
         absl::EndsWith(absl::StripTrailingAsciiWhitespace(text), "</parameter>");
}

// A format without a closing marker: what is no name will not become a call.
bool MarkedParser::IsHopeless() const {
  if (!format_.call_end.empty() || json_.is_inside()) return false;
  return held_.back() == '\n' || held_.size() > format_.call_begin[0].size() + kMaxNameBytes;
}

void MarkedParser::Finish(PartSink& sink) {
  if (state_ == State::kCall) {
    ToolCall call = ReadMarkedCall(held_, format_, tools_);
    if (!call.error.empty()) call.error = "unfinished";
    markup_.Call(TakeAll(held_), std::move(call), sink);
    return;
  }
  if (!held_.empty()) markup_.Content(TakeAll(held_), sink);
  markup_.Finish(sink);
}

void ListParser::Push(char byte, PartSink& sink) {
  switch (state_) {
    case State::kText:
    case State::kAfterMarkup:
      held_ += byte;
      PushText(sink);
      return;
    case State::kMarker:
      PushMarker(byte, sink);
      return;
    case State::kItems:
      PushItems(byte, sink);
      return;
    case State::kItem:
      held_ += byte;
      if (json_.Push(byte)) EndItem(sink);
      return;
    case State::kEnd:
      held_ += byte;
      PushEnd(sink);
      return;
  }
}

void ListParser::EndItem(PartSink& sink) {
  markup_.Call(held_, ReadObjectCall(held_, tools_), sink);
  held_.clear();
  state_ = State::kItems;
  if (is_single_) EndList();
}

void ListParser::PushText(PartSink& sink) {
  while (true) {
    if (state_ == State::kAfterMarkup) markup_.Hold(TakeSpace(held_));
    if (held_.empty()) return;
    const MarkerMatch match = MatchMarkers(held_, {format_.call_begin[0], format_.call_begin[1]});
    if (match.may_come) return;
    if (!match.marker.empty()) {
      state_ = State::kMarker;
      return;
    }
    markup_.Content(held_.substr(0, 1), sink);
    held_.erase(0, 1);
    state_ = State::kText;
  }
}

void ListParser::PushMarker(char byte, PartSink& sink) {
  if (IsSpace(byte)) {
    held_ += byte;
  } else if (byte == '[') {
    markup_.Open(TakeAll(held_) + byte);
    state_ = State::kItems;
    is_single_ = false;
  } else if (byte == '{') {
    markup_.Open(TakeAll(held_));
    is_single_ = true;
    PushItems(byte, sink);
  } else {
    markup_.Failed(TakeAll(held_), "bad_call", sink);
    held_ = byte;
    state_ = State::kText;
    PushText(sink);
  }
}

void ListParser::PushItems(char byte, PartSink& sink) {
  if (IsSpace(byte) || byte == ',') {
    markup_.Hold(AsText(byte));
  } else if (byte == '{') {
    held_ = byte;
    json_ = JsonTracker();
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
  markup_.Hold(TakeSpace(held_));
  if (held_.empty()) return;
  const MarkerMatch match = MatchMarkers(held_, {format_.call_end});
  if (match.may_come) return;
  state_ = State::kAfterMarkup;
  if (match.marker.empty()) {
    PushText(sink);
    return;
  }
  markup_.Close(TakeAll(held_), sink);
}

void ListParser::Finish(PartSink& sink) {
  if (state_ == State::kMarker || state_ == State::kItem) {
    markup_.Failed(TakeAll(held_), "unfinished", sink);
    return;
  }
  if (!held_.empty()) markup_.Content(TakeAll(held_), sink);
  markup_.Finish(sink);
}

void ObjectParser::Push(char byte, PartSink& sink) {
  switch (state_) {
    case State::kStart:
      held_ += byte;
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
      held_ += byte;
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
  markup_.Hold(TakeSpace(held_));
  if (held_.empty()) return;
  if (held_ == "{") {
    BeginObject('{');
    return;
  }
  const MarkerMatch match = MatchMarkers(held_, {format_.call_begin[0]});
  if (match.may_come) return;
  if (match.marker.empty()) {
    markup_.Content(TakeAll(held_), sink);
    state_ = State::kText;
    return;
  }
  markup_.Open(TakeAll(held_));
  state_ = State::kAfterTag;
  is_call_expected_ = true;
}

void ObjectParser::BeginObject(char byte) {
  held_ = byte;
  json_ = JsonTracker();
  json_.Push(byte);
  state_ = State::kObject;
}

void ObjectParser::EndObject(PartSink& sink) {
  if (!is_call_expected_ && !LooksLikeCall(held_)) {
    markup_.Content(TakeAll(held_), sink);
    state_ = State::kText;
    return;
  }
  markup_.Call(held_, ReadObjectCall(held_, tools_), sink);
  held_.clear();
  state_ = State::kBetween;
}

void ObjectParser::Finish(PartSink& sink) {
  if (state_ == State::kObject) {
    markup_.Failed(TakeAll(held_), "unfinished", sink);
    return;
  }
  if (!held_.empty()) markup_.Content(TakeAll(held_), sink);
  markup_.Finish(sink);
}

void PythonParser::Push(char byte, PartSink& sink) {
  switch (state_) {
    case State::kStart:
      held_ += byte;
      PushStart(sink);
      return;
    case State::kName:
      PushName(byte, sink);
      return;
    case State::kArguments:
      held_ += byte;
      if (python_.Push(byte)) state_ = State::kAfterCall;
      return;
    case State::kAfterCall:
      PushAfterCall(byte, sink);
      return;
    case State::kClosed:
      held_ += byte;
      PushClosed(sink);
      return;
    case State::kText:
      sink.Content(AsText(byte));
      return;
  }
}

void PythonParser::PushStart(PartSink& sink) {
  prefix_ += TakeSpace(held_);
  if (held_.empty()) return;
  if (held_ == "[") {
    prefix_ += TakeAll(held_);
    state_ = State::kName;
    return;
  }
  const MarkerMatch match = MatchMarkers(held_, {format_.call_begin[0]});
  if (match.may_come) return;
  if (match.marker.empty()) {
    BecomeText(sink);
  } else {
    markup_.Open(TakeAll(prefix_) + TakeAll(held_));
  }
}

void PythonParser::PushName(char byte, PartSink& sink) {
  if (IsSpace(byte) && held_.empty() && has_calls_) {
    markup_.Hold(AsText(byte));
  } else if (IsSpace(byte)) {
    (held_.empty() ? prefix_ : held_) += byte;
    if (held_.size() > kMaxNameBytes) BecomeText(sink);
  } else if (IsPythonNameByte(byte) && (held_.empty() || !IsSpace(held_.back()))) {
    held_ += byte;
    if (held_.size() > kMaxNameBytes) BecomeText(sink);
  } else if (byte == '(' && !held_.empty()) {
    if (!has_calls_) markup_.Open(TakeAll(prefix_));
    held_ += byte;
    python_ = PythonTracker();
    has_calls_ = true;
    state_ = State::kArguments;
  } else if (byte == ']' && held_.empty() && has_calls_) {
    markup_.Close(AsText(byte), sink);
    state_ = State::kClosed;
  } else {
    held_ += byte;
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
    held_ += TakeAll(prefix_) + byte;
    BecomeText(sink);
  }
}

void PythonParser::PushClosed(PartSink& sink) {
  markup_.Hold(TakeSpace(held_));
  if (held_.empty()) return;
  const MarkerMatch match = MatchMarkers(held_, {format_.call_end});
  if (match.may_come) return;
  if (match.marker.empty()) {
    markup_.Content(TakeAll(held_), sink);
    state_ = State::kText;
  } else {
    markup_.Close(TakeAll(held_), sink);
  }
}

// What is held is no call. In a list of calls it was meant as one.
void PythonParser::BecomeText(PartSink& sink) {
  const std::string text = TakeAll(prefix_) + TakeAll(held_);
  if (has_calls_) {
    markup_.Failed(text, "bad_call", sink);
  } else {
    markup_.Content(text, sink);
  }
  state_ = State::kText;
}

// Emits the call, then holds the white space behind it.
void PythonParser::EmitCall(PartSink& sink) {
  markup_.Call(held_, ReadPythonToolCall(held_, tools_), sink);
  held_.clear();
  markup_.Hold(TakeAll(prefix_));
}

void PythonParser::Finish(PartSink& sink) {
  if (state_ == State::kAfterCall) EmitCall(sink);
  const bool is_cut =
      state_ == State::kArguments || (state_ == State::kName && has_calls_ && !held_.empty());
  if (is_cut) {
    markup_.Failed(TakeAll(held_), "unfinished", sink);
    return;
  }
  const std::string text = TakeAll(prefix_) + TakeAll(held_);
  if (!text.empty()) markup_.Content(text, sink);
  markup_.Finish(sink);
}

void HarmonyParser::Push(char byte, PartSink& sink) {
  held_ += byte;
  switch (state_) {
    case State::kBetween:
      PushBetween(sink);
      return;
    case State::kHeader:
      if (absl::EndsWith(held_, kMessage)) {
        EndHeader(sink);
      } else if (held_.size() > kMaxHeaderBytes) {
        sink.Failed(TakeAll(held_), "bad_call");
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
  while (!held_.empty()) {
    const MarkerMatch match =
        MatchMarkers(held_, {kStart, kChannel, is_first_ ? " to=" : "", is_first_ ? "to=" : ""});
    if (match.may_come) return;
    if (!match.marker.empty()) {
      is_first_ = false;
      state_ = State::kHeader;
      return;
    }
    if (!IsSpace(held_.front())) {
      is_first_ = false;
      state_ = State::kContent;
      PushBody(sink);
      return;
    }
    sink.Markup(held_.substr(0, 1));
    held_.erase(0, 1);
  }
}

// held_ is the whole header. The recipient stands behind the role or behind the channel.
void HarmonyParser::EndHeader(PartSink& sink) {
  const absl::string_view header = held_;
  const std::size_t to = header.find("to=");
  if (to != absl::string_view::npos) {
    const absl::string_view rest = header.substr(to + 3);
    recipient_ = std::string(rest.substr(0, rest.find_first_of(" <\t\n")));
    body_ = json_end_ = held_.size();
    json_ = JsonTracker();
    state_ = State::kCall;
    return;
  }
  const std::size_t channel = header.rfind(kChannel);
  const bool is_analysis = channel != absl::string_view::npos &&
                           absl::StartsWith(header.substr(channel + kChannel.size()), "analysis");
  state_ = is_analysis ? State::kReasoning : State::kContent;
  sink.Markup(TakeAll(held_));
}

void HarmonyParser::PushBody(PartSink& sink) {
  while (!held_.empty()) {
    const MarkerMatch match = MatchMarkers(held_, {kEnd, kReturn, kCallEnd, kStart});
    if (match.may_come) return;
    if (match.marker == kStart) {
      state_ = State::kHeader;
      return;
    }
    if (!match.marker.empty()) {
      sink.Markup(TakeAll(held_));
      state_ = State::kBetween;
      return;
    }
    if (state_ == State::kReasoning) {
      sink.Reasoning(held_.substr(0, 1));
    } else {
      sink.Content(held_.substr(0, 1));
    }
    held_.erase(0, 1);
  }
}

void HarmonyParser::PushCall(char byte, PartSink& sink) {
  if (json_.Push(byte)) json_end_ = held_.size();
  if (json_.is_inside()) return;
  for (const absl::string_view marker : {kCallEnd, kEnd, kReturn, kStart}) {
    if (held_.size() < json_end_ + marker.size() || !absl::EndsWith(held_, marker)) continue;
    const absl::string_view call = absl::StripSuffix(held_, marker);
    const bool begins_next = marker == kStart;
    sink.Call(begins_next ? call : absl::string_view(held_), ReadCall(call));
    held_ = begins_next ? std::string(marker) : std::string();
    state_ = begins_next ? State::kHeader : State::kBetween;
    return;
  }
}

ToolCall HarmonyParser::ReadCall(absl::string_view call) const {
  return ReadNamedCall(absl::StripPrefix(recipient_, "functions."),
                       absl::StripAsciiWhitespace(call.substr(body_)), tools_);
}

void HarmonyParser::Finish(PartSink& sink) {
  if (state_ == State::kCall) {
    ToolCall call = ReadCall(held_);
    if (!call.error.empty()) call.error = "unfinished";
    sink.Call(TakeAll(held_), std::move(call));
  } else if (state_ == State::kHeader) {
    sink.Markup(TakeAll(held_));
  } else if (state_ == State::kReasoning) {
    sink.Reasoning(TakeAll(held_));
  } else {
    sink.Content(TakeAll(held_));
  }
}

}  // namespace quire::text

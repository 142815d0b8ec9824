#pragma once

// Finds the calls in what follows the reasoning: one class for each way in which formats mark them.
//
// Place:      inside OutputParser, which chooses by ToolFormat::shape.
// Invariants: as OutputParser's. Each byte that was pushed is held, or in the sink.
// Threads:    one.

#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"
#include "text/tools/declared_tools.h"
#include "text/tools/held_markup.h"
#include "text/tools/json_tracker.h"
#include "text/tools/output_part.h"
#include "text/tools/python_call.h"
#include "text/tools/tool_format.h"

namespace quire::text {

// How the beginning of a text stands to some markers. Empty markers are none.
struct MarkerMatch {
  absl::string_view marker = {};  // with which it begins
  bool may_come = false;          // it is the beginning of one
};
MarkerMatch MatchMarkers(absl::string_view text, std::initializer_list<absl::string_view> markers);

// No calls.
class PlainParser {
 public:
  void Push(char byte, PartSink& sink) { sink.Content(absl::string_view(&byte, 1)); }
  void Finish(PartSink&) {}
  std::size_t num_held() const { return 0; }
};

// kObject, kNameThenJson, kXmlParameters, kKeyValues: calls anywhere in the text between markers,
// with a section around them or without.
class MarkedParser {
 public:
  MarkedParser(const ToolFormat& format, const DeclaredTools& tools)
      : format_(format), tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_held() const { return markup_.size() + held_.size(); }

 private:
  // White space behind markup is held by markup_.
  enum class State { kText, kAfterMarkup, kSection, kCall };

  void PushText(PartSink& sink);
  void BeginCall();
  // Whether the last byte of held_ ended the call.
  bool EndsCall(char byte);
  bool EndsXmlCall();
  bool IsHopeless() const;

  const ToolFormat& format_;
  const DeclaredTools& tools_;
  State state_ = State::kAfterMarkup;
  bool in_section_ = false;
  HeldMarkup markup_;
  std::string held_;  // kCall: the call so far; else what may become a marker
  JsonTracker json_;
  std::size_t json_end_ = 0;  // of held_: how much is before the end of its last JSON object
  bool in_value_ = false;     // kKeyValues
  // kXmlParameters: the call has had such a tag.
  bool has_function_ = false, has_parameter_ = false;
};

// kList: objects in a list behind a marker.
class ListParser {
 public:
  ListParser(const ToolFormat& format, const DeclaredTools& tools)
      : format_(format), tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_held() const { return markup_.size() + held_.size(); }

 private:
  enum class State { kText, kAfterMarkup, kMarker, kItems, kItem, kEnd };

  void PushText(PartSink& sink);
  void PushMarker(char byte, PartSink& sink);
  void PushItems(char byte, PartSink& sink);
  void PushEnd(PartSink& sink);
  void EndItem(PartSink& sink);
  void EndList() { state_ = format_.call_end.empty() ? State::kAfterMarkup : State::kEnd; }

  const ToolFormat& format_;
  const DeclaredTools& tools_;
  State state_ = State::kAfterMarkup;
  HeldMarkup markup_;
  std::string held_;        // kMarker: the marker and white space; kItem: the item; else as above
  bool is_single_ = false;  // an object without a list
  JsonTracker json_;
};

// kObjectAtStart: objects as the first thing of the answer.
class ObjectParser {
 public:
  ObjectParser(const ToolFormat& format, const DeclaredTools& tools)
      : format_(format), tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_held() const { return markup_.size() + held_.size(); }

 private:
  enum class State { kStart, kAfterTag, kObject, kBetween, kText };

  void PushStart(PartSink& sink);
  void EndObject(PartSink& sink);
  void BeginObject(char byte);

  const ToolFormat& format_;
  const DeclaredTools& tools_;
  State state_ = State::kStart;
  bool is_call_expected_ = false;  // behind the tag or a call, where other JSON is a failure
  HeldMarkup markup_;
  std::string held_;
  JsonTracker json_;
};

// kPythonAtStart: a list of calls as the first thing of the answer.
class PythonParser {
 public:
  PythonParser(const ToolFormat& format, const DeclaredTools& tools)
      : format_(format), tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_held() const { return markup_.size() + prefix_.size() + held_.size(); }

 private:
  enum class State { kStart, kName, kArguments, kAfterCall, kClosed, kText };

  void PushStart(PartSink& sink);
  void PushName(char byte, PartSink& sink);
  void PushAfterCall(char byte, PartSink& sink);
  void PushClosed(PartSink& sink);
  void BecomeText(PartSink& sink);
  void EmitCall(PartSink& sink);

  const ToolFormat& format_;
  const DeclaredTools& tools_;
  State state_ = State::kStart;
  bool has_calls_ = false;  // the bracket has turned out to be a list of calls
  HeldMarkup markup_;
  // The bracket and white space until there is a call; in kAfterCall white space behind held_.
  std::string prefix_;
  std::string held_;  // the call, or what may become a marker
  PythonTracker python_;
};

// kHarmony: messages, each with a header.
class HarmonyParser {
 public:
  explicit HarmonyParser(const DeclaredTools& tools) : tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_held() const { return held_.size(); }

 private:
  enum class State { kBetween, kHeader, kContent, kReasoning, kCall };

  void PushBetween(PartSink& sink);
  void PushBody(PartSink& sink);
  void EndHeader(PartSink& sink);
  void PushCall(char byte, PartSink& sink);
  // Of the call in held_, without its closing marker.
  ToolCall ReadCall(absl::string_view call) const;

  const DeclaredTools& tools_;
  State state_ = State::kBetween;
  bool is_first_ = true;   // nothing has come yet: the prompt may have begun the header
  std::string held_;       // a marker's beginning, the header, or the call with its header
  std::string recipient_;  // of the call
  std::size_t body_ = 0;   // of held_: where the call's arguments begin
  JsonTracker json_;
  std::size_t json_end_ = 0;
};

}  // namespace quire::text

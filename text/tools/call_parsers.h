#pragma once

// Parsers of tool calls in the text after the reasoning, one class for each way of marking calls.
//
// Place:      inside OutputParser, which chooses by ToolFormat::shape.
// Invariants: the invariants of OutputParser hold. Each pushed byte is either buffered or in the
//             sink.
// Threads:    one thread.

#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"
#include "text/tools/buffered_markup.h"
#include "text/tools/call_end.h"
#include "text/tools/declared_tools.h"
#include "text/tools/json_tracker.h"
#include "text/tools/output_part.h"
#include "text/tools/python_call.h"
#include "text/tools/tool_format.h"

namespace quire::text {

// The result of comparing the start of a text with markers. Empty markers are ignored.
struct MarkerMatch {
  absl::string_view marker = {};  // the marker with which the text starts; empty: none
  bool is_prefix = false;         // the text is a proper prefix of a marker
};
MarkerMatch MatchMarkers(absl::string_view text, std::initializer_list<absl::string_view> markers);

// Treats all text as content.
class PlainParser {
 public:
  void Push(char byte, PartSink& sink) { sink.Content(absl::string_view(&byte, 1)); }
  void Finish(PartSink&) {}
  std::size_t num_buffered() const { return 0; }
};

// kObject, kNameThenJson, kXmlParameters, kKeyValues: calls between markers anywhere in the text,
// with or without a section around them.
class MarkedParser {
 public:
  MarkedParser(const ToolFormat& format, const DeclaredTools& tools)
      : format_(format), tools_(tools), call_end_(MakeCallEnd(format, {})) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_buffered() const { return markup_.size() + buffered_.size(); }

 private:
  // In kAfterMarkup, markup_ buffers white space.
  enum class State { kText, kAfterMarkup, kSection, kCall };

  void PushText(PartSink& sink);

  const ToolFormat& format_;
  const DeclaredTools& tools_;
  State state_ = State::kAfterMarkup;
  bool in_section_ = false;
  BufferedMarkup markup_;
  std::string buffered_;  // kCall: the call so far; otherwise a possible prefix of a marker
  CallEnd call_end_;      // kCall
};

// kList: objects in a list after a marker.
class ListParser {
 public:
  ListParser(const ToolFormat& format, const DeclaredTools& tools)
      : format_(format), tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_buffered() const { return markup_.size() + buffered_.size(); }

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
  BufferedMarkup markup_;
  // kMarker: the marker and white space; kItem: the item; otherwise a possible prefix of a marker.
  std::string buffered_;
  bool is_single_ = false;  // an object without a list
  JsonTracker json_;
};

// kObjectAtStart: objects at the start of the output.
class ObjectParser {
 public:
  ObjectParser(const ToolFormat& format, const DeclaredTools& tools)
      : format_(format), tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_buffered() const { return markup_.size() + buffered_.size(); }

 private:
  enum class State { kStart, kAfterTag, kObject, kBetween, kText };

  void PushStart(PartSink& sink);
  void EndObject(PartSink& sink);
  void BeginObject(char byte);

  const ToolFormat& format_;
  const DeclaredTools& tools_;
  State state_ = State::kStart;
  bool is_call_expected_ = false;  // the tag was read, so each object counts as a call
  BufferedMarkup markup_;
  std::string buffered_;
  JsonTracker json_;
};

// kPythonAtStart: a bracketed list of calls at the start of the output.
class PythonParser {
 public:
  PythonParser(const ToolFormat& format, const DeclaredTools& tools)
      : format_(format), tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_buffered() const { return markup_.size() + prefix_.size() + buffered_.size(); }

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
  bool has_calls_ = false;  // the bracket is known to begin a list of calls
  BufferedMarkup markup_;
  // The bracket and white space before the first call; in kAfterCall, white space after buffered_.
  std::string prefix_;
  std::string buffered_;  // the call, or a possible prefix of a marker
  PythonTracker python_;
};

// kHarmony: a sequence of messages, each with a header.
class HarmonyParser {
 public:
  explicit HarmonyParser(const DeclaredTools& tools) : tools_(tools) {}

  void Push(char byte, PartSink& sink);
  void Finish(PartSink& sink);
  std::size_t num_buffered() const { return buffered_.size(); }

 private:
  enum class State { kBetween, kHeader, kContent, kReasoning, kCall };

  void PushBetween(PartSink& sink);
  void PushBody(PartSink& sink);
  void EndHeader(PartSink& sink);
  void PushCall(char byte, PartSink& sink);
  // Parses the call in buffered_, without its closing marker.
  ToolCall ReadCall(absl::string_view call) const;

  const DeclaredTools& tools_;
  State state_ = State::kBetween;
  bool is_first_ = true;   // no text yet: the prompt may contain the start of the header
  std::string buffered_;   // a possible prefix of a marker, the header, or the call with its header
  std::string recipient_;  // recipient of the call
  std::size_t arguments_begin_ = 0;  // offset of the call's arguments in buffered_
  JsonTracker json_;
  std::size_t json_end_ = 0;
};

}  // namespace quire::text

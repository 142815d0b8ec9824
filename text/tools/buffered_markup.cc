#include "text/tools/buffered_markup.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace quire::text {

void BufferedMarkup::Open(absl::string_view marker) {
  Hold(marker);
  is_open_ = true;
  group_has_call_ = follows_call_ = false;
}

void BufferedMarkup::Close(absl::string_view marker, PartSink& sink) {
  if (!group_has_call_) {
    Content(marker, sink);
    return;
  }
  Hold(marker);
  sink.Markup(std::exchange(buffered_, {}));
  follows_call_ = true;
}

void BufferedMarkup::Call(absl::string_view source, ToolCall call, PartSink& sink) {
  const std::string before = std::exchange(buffered_, {});
  is_open_ = false;
  follows_call_ = call.error.empty();
  if (follows_call_) {
    group_has_call_ = true;
    sink.Markup(before);
    sink.Call(source, std::move(call));
  } else {
    sink.Call(absl::StrCat(before, source), std::move(call));
  }
}

void BufferedMarkup::Failed(absl::string_view source, absl::string_view error, PartSink& sink) {
  Call(source, {.name = {}, .arguments_json = {}, .error = std::string(error)}, sink);
}

void BufferedMarkup::Content(absl::string_view text, PartSink& sink) {
  sink.Content(std::exchange(buffered_, {}));
  sink.Content(text);
  is_open_ = follows_call_ = false;
}

void BufferedMarkup::Finish(PartSink& sink) {
  if (is_open_) {
    Failed("", "unfinished", sink);
  } else if (follows_call_) {
    sink.Markup(std::exchange(buffered_, {}));
  } else {
    Content("", sink);
  }
}

}  // namespace quire::text

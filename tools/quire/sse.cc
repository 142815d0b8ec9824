#include "tools/quire/sse.h"

#include <utility>

#include "absl/strings/strip.h"

namespace quire::client {

void SseParser::EndLine(std::vector<std::string>* events) {
  absl::string_view line = absl::StripSuffix(line_, "\r");
  if (line.empty()) {
    if (has_data_) events->push_back(std::move(data_));
    data_.clear();
    has_data_ = false;
  } else if (absl::ConsumePrefix(&line, "data") && (line.empty() || line[0] == ':')) {
    absl::ConsumePrefix(&line, ":");
    absl::ConsumePrefix(&line, " ");
    if (has_data_) data_ += '\n';
    data_.append(line.data(), line.size());
    has_data_ = true;
  }
  line_.clear();
}

std::vector<std::string> SseParser::Feed(absl::string_view bytes) {
  std::vector<std::string> events;
  for (const char c : bytes) {
    if (c == '\n') {
      EndLine(&events);
    } else {
      line_ += c;
    }
  }
  return events;
}

}  // namespace quire::client

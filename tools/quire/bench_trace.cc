#include "tools/quire/bench_trace.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace quire::client {
namespace {

constexpr char kAzureHeader[] = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::int64_t kMaxTraceTokens = 10'000'000;
constexpr double kMaxTraceSeconds = 1e9;

bool IsValidTokenCount(std::int64_t tokens) {
  return tokens >= 0 && tokens <= kMaxTraceTokens;
}

// Returns false if the line is not in this format.
bool ParseAzure(absl::string_view line, TraceEntry* entry) {
  const std::vector<std::string> fields = absl::StrSplit(line, ',');
  absl::Time time;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[1], &entry->input_tokens) ||
      !absl::SimpleAtoi(fields[2], &entry->output_tokens) ||
      !absl::ParseTime("%Y-%m-%d %H:%M:%E*S", fields[0], &time, nullptr)) {
    return false;
  }
  entry->seconds = absl::ToDoubleSeconds(time - absl::UnixEpoch());
  return true;
}

bool ParseMooncake(absl::string_view line, TraceEntry* entry) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto timestamp = json.find("timestamp");
  const auto input = json.find("input_length");
  const auto output = json.find("output_length");
  if (timestamp == json.end() || !timestamp->is_number() || input == json.end() ||
      !input->is_number_integer() || output == json.end() || !output->is_number_integer()) {
    return false;
  }
  entry->seconds = timestamp->get<double>() / 1e3;
  entry->input_tokens = input->get<std::int64_t>();
  entry->output_tokens = output->get<std::int64_t>();
  const auto ids = json.find("hash_ids");
  if (ids == json.end()) return true;
  if (!ids->is_array()) return false;
  for (const auto& id : *ids) {
    if (!id.is_number_integer()) return false;
    entry->block_ids.push_back(id.get<std::int64_t>());
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<TraceEntry>> ParseTrace(absl::string_view text, double speed) {
  std::vector<TraceEntry> entries;
  std::int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || absl::EqualsIgnoreCase(line, kAzureHeader)) continue;
    TraceEntry entry;
    const bool parsed = line[0] == '{' ? ParseMooncake(line, &entry) : ParseAzure(line, &entry);
    if (!parsed || !IsValidTokenCount(entry.input_tokens) ||
        !IsValidTokenCount(entry.output_tokens)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " must be a CSV row ", kAzureHeader,
                       " or a JSON object with timestamp, input_length and output_length; token "
                       "counts must be 0 to ",
                       kMaxTraceTokens));
    }
    // Some recorded rows have no tokens, but a request needs at least one.
    entry.input_tokens = std::max<std::int64_t>(entry.input_tokens, 1);
    entry.output_tokens = std::max<std::int64_t>(entry.output_tokens, 1);
    entries.push_back(std::move(entry));
  }
  if (entries.empty()) return absl::InvalidArgumentError("the trace has no requests");
  std::stable_sort(entries.begin(), entries.end(),
                   [](const TraceEntry& a, const TraceEntry& b) { return a.seconds < b.seconds; });
  const double start = entries.front().seconds;
  for (TraceEntry& entry : entries) entry.seconds = (entry.seconds - start) / speed;
  // Also refuses NaN, which infinite times produce.
  if (!(entries.back().seconds <= kMaxTraceSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("--trace lasts ", entries.back().seconds,
                                                   " s, the limit is ", kMaxTraceSeconds, " s"));
  }
  return entries;
}

absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path, double speed) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  absl::StatusOr<std::vector<TraceEntry>> entries = ParseTrace(text.str(), speed);
  if (entries.ok()) return entries;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", entries.status().message()));
}

}  // namespace quire::client

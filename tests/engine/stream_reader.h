#pragma once

// Reads a TokenStream to its end and checks the order of its events.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/output/token_stream.h"

namespace quire::engine {

struct Reading {
  struct Choice {
    std::string text;
    std::vector<std::int32_t> token_ids;
    std::vector<float> logprobs;
    FinishReason finish = FinishReason::kLength;
    std::string stop_text;
    Usage usage;
    bool completed = false;
  };
  std::map<std::int32_t, Choice> choices;
  StartedEvent started;
  std::int32_t prompt_positions = 0;
  std::string prompt_bytes;
  std::vector<float> prompt_logprobs;
  int num_deltas = 0;
  std::string order_errors;  // violations of S1 to S6
  absl::Status status;
  Usage usage;
  bool got_started = false;

  void Add(OutputEvent event);
};

// Waits for events through the ready callback, without polling.
Reading ReadAll(TokenStream& stream);

// Returns the sum over all series of `family` whose line contains `label`.
double SumOfFamily(const std::string& exposition, const std::string& family,
                   absl::string_view label = "");

}  // namespace quire::engine

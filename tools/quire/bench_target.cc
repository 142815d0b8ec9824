#include "tools/quire/bench_target.h"

#include <utility>

namespace quire::client {

void SampleClock::OnTokens(std::int64_t count) {
  const auto now = Clock::now();
  if (sample_.output_tokens == 0) {
    first_ = now;
  } else {
    sample_.itl_seconds.push_back(std::chrono::duration<double>(now - last_).count());
    sample_.itl_tokens.push_back(count);
  }
  last_ = now;
  sample_.output_tokens += count;
  ++sample_.messages;
}

RequestSample SampleClock::End() {
  sample_.e2e_seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  if (sample_.output_tokens > 0) {
    sample_.ttft_seconds = std::chrono::duration<double>(first_ - start_).count();
    sample_.first_to_last_token_seconds = std::chrono::duration<double>(last_ - first_).count();
  }
  return std::move(sample_);
}

}  // namespace quire::client

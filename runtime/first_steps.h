#pragma once

// The steps that run before the first request.
//
//   CPU   one token: its logits must be finite
//   GPU   the same, and a sequence computed in different ways. The logits of a token must not
//         depend on the division of its prompt into steps, on other rows or on a captured graph.
//         Kernels for prompts and the kernels for generated tokens, which fuse several ops, must
//         agree, unless rounding can change the experts or the keys that a token chooses.
//
// Place:   called by ModelStack; complements RunSelfCheck, which compares single kernels.
// Threads: one thread, before the engine runs.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "kernels/backend/kernel_check.h"
#include "models/config/layer_spec.h"
#include "runtime/step/step_runner.h"

namespace quire::cache {
class CacheManager;
}

namespace quire::runtime {

struct FirstSteps {
  cache::CacheManager* cache;  // none of its rows has pages
  StepRunner* runner;
  const models::ModelSpec* spec;
  // The members below are used by CompareSteps only.
  std::uint32_t max_rows;
  std::uint32_t max_step_tokens;
  std::uint32_t max_context_tokens;
  DType activation;
};

// Computes one token. Returns INVALID_ARGUMENT if its logits, or its hidden states if the model has
// no head, are not finite.
absl::Status RunOneToken(const FirstSteps& steps);

// Compares steps as described above and appends the comparisons to `checks`, whether they passed,
// failed or were skipped. Returns errors of the runner and the cache. Their messages begin with
// "steps" and the shape of the comparison. Skips all comparisons if the model has no head, or if a
// step or a sequence is limited to fewer than four tokens. Skips the comparisons of two sequences
// if max_rows is 1 or the pages of two sequences do not fit.
absl::Status CompareSteps(const FirstSteps& steps, std::vector<kernels::KernelCheck>* checks);

}  // namespace quire::runtime

#pragma once

// Reference sampler with a full sort and double precision, for tests of the fast sampler.

#include <cstdint>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace quire::kernels::internal {

struct ReferenceSample {
  std::int32_t token = -1;  // -1: non_finite or no_survivor
  bool non_finite = false;
  bool no_survivor = false;
  std::vector<std::int32_t> survivors;  // after step 9, best first
  // Smallest relative distance between a value and a threshold to which it was compared, in
  // top-n-sigma, top-p, XTC and the race of step 10. If the margin is within the rounding error of
  // exp, 1e-6, the fast sampler may decide differently.
  double margin = 1;
  std::vector<double> logprobs;  // [vocab] raw
  double processed_logprob = 0;  // log-probability of the token among the survivors; 0 if greedy
};

// Runs steps 0 to 10 for a row. Penalties, bias and temperature use the f32 operations that
// sampling.h specifies.
ReferenceSample SampleCpu(const SamplingRow& row, std::uint32_t vocab);

}  // namespace quire::kernels::internal

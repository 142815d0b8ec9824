#pragma once

// The sampler by full sort and in double precision: what the fast one is tested against.

#include <cstdint>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace quire::kernels::internal {

struct ReferenceSample {
  std::int32_t token = -1;  // -1: non_finite or no_survivor
  bool non_finite = false;
  bool no_survivor = false;
  std::vector<std::int32_t> survivors;  // after step 9, best first
  // How near the nearest decision was, relative: top-p and min-p borders and the race. The fast
  // sampler may differ when this is within its rounding of exp, 1e-6.
  double margin = 1;
  std::vector<double> logprobs;  // [vocab] raw
  double processed_logprob = 0;  // of the token among the survivors; 0 when greedy
};

// The row's steps 0 to 10. Penalties, bias and temperature are the f32 operations of the contract.
ReferenceSample SampleCpu(const SamplingRow& row, std::uint32_t vocab);

}  // namespace quire::kernels::internal

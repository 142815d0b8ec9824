#pragma once

// The passes of the sampler that touch a whole row of the vocabulary, one function each, compiled
// per instruction set. Results do not depend on the width of a register.

#include <cstddef>
#include <cstdint>

namespace quire::kernels::internal {

struct LogitScan {
  float max;        // -infinity when there is nothing else; unspecified when non_finite
  bool non_finite;  // NaN or +infinity is present
};
LogitScan ScanLogits(const float* z, std::size_t count);

// sum exp(z - max) in parts of 4096 with 16 virtual lanes, parts added in f64 in order.
double SumOfExp(const float* z, std::size_t count, float max);

// x = x * factor, kept finite unless x was -infinity; returns the largest.
float ScaleLogits(float* x, std::size_t count, float factor);

// Ids [begin, end) and values of all x >= cut, ids ascending; returns how many.
struct IdRange {
  std::size_t begin;
  std::size_t end;
};
std::size_t CollectAtLeast(const float* x, IdRange range, float cut, std::int32_t* ids,
                           float* values);

// w = exp(x - max).
void ExpMinus(const float* x, std::size_t count, float max, float* w);

}  // namespace quire::kernels::internal

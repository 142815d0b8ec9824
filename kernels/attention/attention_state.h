#pragma once

// States of online softmax and how two of them become one. The same function reduces states inside
// an item and over the items of a row, so that where it was cut leaves no trace in its bits:
// reducing in the fixed order of kernels/cuda/README.md (tiles, spans, groups) is a chain of such
// steps.
//
// A state of some keys: max of their scores, sum of 2^(score - max), and per column the values
// weighted by the same powers, not yet divided by the sum. Scores are in units of log2, so a power
// is one ex2. No keys: max -inf, sum 0, values 0; reducing with such a state is exact.
//
// Idea: the merge of partial softmax states of Milakov and Gimelshein (2018), as used by
// FlashAttention's split KV.

#include <limits>

#ifdef __CUDACC__
#define QUIRE_STATE_INLINE __device__ __forceinline__
#else
#define QUIRE_STATE_INLINE inline
#endif

namespace quire::kernels {

// Math names a type Real and the functions Exp2, Mul, Fma (a b + c) and Max on it, whose rounding
// is fixed.
template <typename Math>
struct AttentionState {
  using Real = typename Math::Real;
  Real max = -std::numeric_limits<Real>::infinity();
  Real sum = 0;
};

// What to multiply the values of the left and of the right state with.
template <typename Math>
struct AttentionReduction {
  typename Math::Real left;
  typename Math::Real right;
};

// The subtrahend of scores below the maximum `max`: 0 when there is no key, so that -inf minus it
// is not NaN.
template <typename Math>
QUIRE_STATE_INLINE typename Math::Real ScoreBase(typename Math::Real max) {
  return max == -std::numeric_limits<typename Math::Real>::infinity() ? typename Math::Real{0}
                                                                      : max;
}

// *left becomes the state of the keys of both.
template <typename Math>
QUIRE_STATE_INLINE AttentionReduction<Math> ReduceState(AttentionState<Math>* left,
                                                        const AttentionState<Math>& right) {
  const typename Math::Real max = Math::Max(left->max, right.max);
  const typename Math::Real base = ScoreBase<Math>(max);
  const AttentionReduction<Math> reduce{Math::Exp2(left->max - base), Math::Exp2(right.max - base)};
  left->max = max;
  left->sum = Math::Fma(right.sum, reduce.right, Math::Mul(left->sum, reduce.left));
  return reduce;
}

// One column of it.
template <typename Math>
QUIRE_STATE_INLINE typename Math::Real ReduceValue(const AttentionReduction<Math>& reduce,
                                                   typename Math::Real left,
                                                   typename Math::Real right) {
  return Math::Fma(right, reduce.right, Math::Mul(left, reduce.left));
}

// A column of the result; 0 where a row saw no key.
template <typename Math>
QUIRE_STATE_INLINE typename Math::Real FinishValue(const AttentionState<Math>& state,
                                                   typename Math::Real value) {
  return state.sum > 0 ? value / state.sum : typename Math::Real{0};
}

}  // namespace quire::kernels

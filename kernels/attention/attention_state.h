#pragma once

// Online-softmax states and their reduction. The same function reduces states inside an item and
// across the items of a row, so splitting a row does not change its bits. The fixed order of
// kernels/cuda/README.md (tiles, spans, groups) is a chain of such reductions.
//
// The state of a set of keys has the maximum of the scores and the sum of the weights 2^(score -
// max). For each column it has the weighted sum of the values. The weighted sums are not yet
// divided by the sum of the weights. Scores are multiplied by log2(e), so that a power is one ex2
// instruction. The state of an empty set has max -inf, sum 0 and values 0. Reducing it into another
// state does not change that state.
//
// The merge of partial softmax states is by Milakov and Gimelshein (2018) and is used by
// FlashAttention's split KV.

#include <limits>

#ifdef __CUDACC__
#define QUIRE_STATE_INLINE __device__ __forceinline__
#else
#define QUIRE_STATE_INLINE inline
#endif

namespace quire::kernels {

// Math defines a type Real and the functions Exp2, Mul, Fma (a b + c) and Max on it, with fixed
// rounding.
template <typename Math>
struct AttentionState {
  using Real = typename Math::Real;
  Real max = -std::numeric_limits<Real>::infinity();
  Real sum = 0;
};

// Factors of the left and the right state in a reduction.
template <typename Math>
struct AttentionReduction {
  typename Math::Real left;
  typename Math::Real right;
};

// Returns the value to subtract from scores with maximum `max`. It is 0 if there is no key, because
// -inf minus -inf is NaN.
template <typename Math>
QUIRE_STATE_INLINE typename Math::Real ScoreBase(typename Math::Real max) {
  return max == -std::numeric_limits<typename Math::Real>::infinity() ? typename Math::Real{0}
                                                                      : max;
}

// Reduces maximum and sum of `right` into *left. Returns the factors for ReduceValue.
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

// Returns the reduced value of one column.
template <typename Math>
QUIRE_STATE_INLINE typename Math::Real ReduceValue(const AttentionReduction<Math>& reduce,
                                                   typename Math::Real left,
                                                   typename Math::Real right) {
  return Math::Fma(right, reduce.right, Math::Mul(left, reduce.left));
}

// Returns a column of the result; 0 if the row saw no key.
template <typename Math>
QUIRE_STATE_INLINE typename Math::Real FinishValue(const AttentionState<Math>& state,
                                                   typename Math::Real value) {
  return state.sum > 0 ? value / state.sum : typename Math::Real{0};
}

}  // namespace quire::kernels

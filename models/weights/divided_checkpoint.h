#pragma once

// The part of a model that one of several devices stores and computes (tensor parallelism). Every
// rank computes a range of heads. Rows of q, k, v, gate and up are divided among the ranks, and so
// are the columns of o and down. The products of o and down are partial sums, which the ranks add
// (kernels/comm/communicator.h). Rank 0 has the biases of o and down. Embedding, norms and output
// head are replicated. The tensor table states how each tensor is divided (config/tensor_table.h).
//
//   heads 4, KV heads 2, 4 ranks     rank       0     1     2     3
//                                    head       0     1     2     3
//                                    KV head    0     0     1     1
//
// A KV head that serves the heads of several ranks is replicated on each of them.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/config/family.h"
#include "models/config/layer_spec.h"
#include "models/config/rank_part.h"
#include "models/weights/checkpoint.h"

namespace quire::models {

// Returns the spec of a rank's part. Returns INVALID_ARGUMENT if the rank does not exist, or the
// number of ranks does not divide the heads and the intermediate size of a layer. Returns
// INVALID_ARGUMENT if the number of ranks is neither a divisor nor a multiple of the KV heads.
// Returns UNIMPLEMENTED that names the layer and the field for parts of a model that cannot be
// divided.
absl::StatusOr<ModelSpec> SpecOfPart(const ModelSpec& whole, RankPart part);

// Returns the tensors of SpecOfPart(spec, part), named as in `whole`. The result must not outlive
// `whole`. Returns UNIMPLEMENTED that names the tensor for quantized matrices and for fused
// tensors. Returns INVALID_ARGUMENT for a tensor whose shape differs from the spec. REQUIRES:
// SpecOfPart is OK.
absl::StatusOr<Checkpoint> CheckpointOfPart(const Checkpoint& whole, const ModelSpec& spec,
                                            const TensorNames& names, RankPart part);

}  // namespace quire::models

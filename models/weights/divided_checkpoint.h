#pragma once

// The part of a model that one of several devices holds and computes. Every rank has all heads of
// its own, end to end: rows of q, k, v, gate and up are divided among the ranks, and so are the
// columns of o and down, whose products are then parts of a sum that the ranks add up
// (kernels/comm/communicator.h) with the biases of rank 0. Embedding, norms and output head are
// whole on every rank.
//
//   heads 4, KV heads 2, 4 ranks     rank       0     1     2     3
//                                    head       0     1     2     3
//                                    KV head    0     0     1     1
//
// A KV head that serves the heads of several ranks is on each of them.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/config/family.h"
#include "models/config/layer_spec.h"
#include "models/config/rank_part.h"
#include "models/weights/checkpoint.h"

namespace quire::models {

// What a rank computes of `whole`. Returns INVALID_ARGUMENT for a rank that does not exist or a
// number of ranks that does not divide the heads, the KV heads (or they it) or the inner size of a
// layer, with the numbers; UNIMPLEMENTED that names the layer and the field for what is not
// divided: mixtures of experts, latent attention, sinks, norms over all heads.
absl::StatusOr<ModelSpec> SpecOfPart(const ModelSpec& whole, RankPart part);

// The tensors of SpecOfPart(spec, part), under their names. `whole` outlives it. Returns
// UNIMPLEMENTED for a matrix of codes or blocks and for parts that are fused in one tensor, with
// its name; INVALID_ARGUMENT for a tensor whose extent is not the spec's. REQUIRES: SpecOfPart is
// OK.
absl::StatusOr<Checkpoint> CheckpointOfPart(const Checkpoint& whole, const ModelSpec& spec,
                                            const TensorNames& names, RankPart part);

}  // namespace quire::models

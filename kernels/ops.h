#pragma once

// Table of contents: every op, one line each. An op is a params struct of pointers and strides in,
// an absl::Status out; x.h is its contract, x.cc checks and dispatches, x_cpu.cc is the plain
// reference, x_simd.cc the fast path where one pays. docs/kernels.md explains the numerics they
// share.

#include "kernels/activation.h"   // GatedProduct: act(gate) * up, act silu, gelu or relu2
#include "kernels/attention.h"    // PagedAttention: causal, grouped heads, prefill and decode
#include "kernels/backend.h"      // Backend: where the ops run
#include "kernels/embedding.h"    // Embedding: rows of the token table
#include "kernels/expert_rows.h"  // rows to their experts and back, summed
#include "kernels/head_columns.h"  // CopyHeadColumns
#include "kernels/head_linear.h"  // HeadLinear: Linear for every head
#include "kernels/kv_dispatch.h"  // the one list of KV element types
#include "kernels/kv_store.h"     // KvStore: K and V rows into their pages
#include "kernels/latent_store.h"  // LatentStore: rope and pages of latent attention
#include "kernels/linear.h"       // Linear: x W^T + bias + residual; PackLinearWeights
#include "kernels/norm.h"         // RmsNorm: of rows or of their heads
#include "kernels/page_copy.h"    // CopyPage, ZeroPage
#include "kernels/qkv_store.h"    // QkvStore: rope on q and k, then K and V into their pages
#include "kernels/residual.h"     // ResidualAdd: the residual sum with factors
#include "kernels/rope.h"         // RopeAngles once per step, Rope once per layer
#include "kernels/router.h"       // Router: which experts compute a row, with what weights
#include "kernels/sampling.h"     // Sample, ScoreTokens: logits to tokens and log-probabilities
#include "kernels/softcap.h"      // Softcap: a factor on logits and a soft cap of them

#pragma once

// Includes every op. An op takes a struct of pointers and strides and returns an absl::Status. For
// an op OP, OP.h is the contract, OP.cc checks arguments and dispatches, OP_cpu.cc is the reference
// and OP_simd.cc an optional fast path. README.md documents the numerics that all ops share.

#include "kernels/attention/attention.h"      // PagedAttention: prefill and decode
#include "kernels/backend/backend.h"          // Backend: where the ops run
#include "kernels/elementwise/activation.h"   // GatedProduct: act(gate) * up
#include "kernels/elementwise/embedding.h"    // Embedding: rows of the token table
#include "kernels/elementwise/multiply.h"     // Multiply: x * gate
#include "kernels/elementwise/residual.h"     // ResidualAdd: scaled sum
#include "kernels/elementwise/softcap.h"      // Softcap: scales and caps logits
#include "kernels/elementwise/sum_rows.h"     // SumRows: sums rows in order
#include "kernels/kv_store/head_columns.h"    // CopyHeadColumns
#include "kernels/kv_store/kv_dispatch.h"     // the list of KV element types
#include "kernels/kv_store/kv_store.h"        // KvStore: K and V rows into pages
#include "kernels/kv_store/latent_store.h"    // LatentStore: rope and pages of latent attention
#include "kernels/kv_store/page_copy.h"       // CopyPage, ZeroPage
#include "kernels/kv_store/qkv_store.h"       // QkvStore: rope, then K and V into pages
#include "kernels/linear/head_linear.h"       // HeadLinear: Linear for every head
#include "kernels/linear/linear.h"            // Linear: x W^T + bias + residual
#include "kernels/moe/expert_rows.h"          // moves rows to experts and back
#include "kernels/moe/route.h"                // Route: router product, Router and sort
#include "kernels/moe/router.h"               // Router: selects experts and weights
#include "kernels/norm/layer_norm.h"          // LayerNorm
#include "kernels/norm/norm.h"                // RmsNorm: normalizes rows or heads
#include "kernels/recurrent/causal_conv.h"    // CausalConv: a filter over tokens
#include "kernels/recurrent/gate_norm.h"      // GateNorm: norm and gate
#include "kernels/recurrent/prepare_scan.h"   // PrepareScan: decays and rates
#include "kernels/recurrent/state_scan.h"     // StateScan: the recurrence of states
#include "kernels/rope/rope.h"                // RopeAngles (per step), Rope (per layer)
#include "kernels/sampling/sampling.h"        // Sample, ComputeLogprobs
#include "kernels/sparse/index_score.h"       // IndexScore: scores of keys for a selection
#include "kernels/sparse/index_store.h"       // IndexStore: norm, rope and pages of an indexer
#include "kernels/sparse/select_topk.h"       // SelectTopK: the keys with the largest scores
#include "kernels/sparse/sparse_attention.h"  // SparseAttention over selected keys

#pragma once

// Compares the kernels of a GPU with reference kernels on the machine where they run, before the
// first request. A faulty driver, compiler or GPU then stops the start instead of producing wrong
// text.
//
// Every check on the device except that of the index store runs twice, each time after its outputs
// were poisoned. Both runs must agree bitwise.
//
//   products   the model's own packed matrices, one of each kind, at 1 to 512 rows, against the
//              scalar kernel or the host by relative error; each row against the same row computed
//              alone
//   attention  random K and V in pages of the pool, lengths around 64, 512 and 2048, against the
//              scalar kernel, or against the CPU with f32 activations; decode kernels of compute
//              capability 9.0 over unquantized K and V against the portable kernel, bit for bit
//   selection  store, scores and selection of an indexer, and attention over the selected keys,
//              against the CPU; scores and keys bit for bit
//   others     embedding, KV store (first pages only) and sampler against the CPU, bit for bit;
//              norm, rope and gate against the CPU by relative error
//
// Kernels that fuse several ops, the router, recurrent layers, the step inputs and captured graphs
// are not compared with references. CompareSteps (first_steps.h) compares steps that run them with
// one another.
//
// Place:      called by CudaRunner, which lends its buffers; reported by ModelStack.
// Invariants: allocates no device memory. The pages that it wrote are zero afterwards.
// Threads:    one thread, while no step runs.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/kv_tensor_maps.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/kernel_check.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/sampling/device_sampler.h"
#include "models/blocks/layer_groups.h"
#include "models/blocks/step_buffers.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::cache {
class KvPool;
}

namespace quire::runtime {

// Numbers of rows at which products are compared. They lie at and around the tile sizes.
inline constexpr std::uint32_t kCheckedRows[] = {1, 8, 9, 17, 64, 65, 128, 129, 256, 512};
// Lengths of sequences at which attention is compared, in tokens.
inline constexpr std::uint32_t kCheckedLengths[] = {63, 64, 65, 511, 512, 513, 2047, 2048, 2049};
// A check that takes longer has failed. It takes less than a second on any supported GPU.
inline constexpr absl::Duration kSelfCheckLimit = absl::Minutes(2);

// The data that the check reads and overwrites. All pointers outlive the call.
struct SelfCheckParams {
  const models::ModelSpec* spec = nullptr;
  const models::Weights* weights = nullptr;
  const kernels::Backend* backend = nullptr;  // a GPU
  const models::LayerGroups* layers = nullptr;
  const models::StepBuffers* buffers = nullptr;         // every array but inv_freq is overwritten
  models::StepLimits limits = {};                       // the sizes of `buffers`
  std::span<const kernels::AnyKvCollection> kv = {};    // one per layer group, over `buffers`
  std::span<kernels::AttentionPlan* const> plans = {};  // one per layer group
  // One per layer group. Null: kernels without maps run.
  std::span<const kernels::cuda::KvTensorMaps* const> maps = {};
  const cache::KvPool* pool = nullptr;
  kernels::DeviceSampler* sampler = nullptr;
  std::uint32_t text_vocab = 0;
  // [vocab] host memory; null: every id below text_vocab has text.
  const std::uint8_t* has_text = nullptr;
};

// Work of a check, counted as it is enqueued. Tests derive the time on a GPU from it. Host work
// (random values and comparisons) is proportional to copied_bytes.
struct SelfCheckWork {
  double weight_bytes = 0;     // weights read by products, once per launch
  double tensor_flops = 0;     // products other than reference products
  double scalar_flops = 0;     // reference products, for whole tiles of 32 rows
  double attention_flops = 0;  // all launches of attention, reference launches included
  double copied_bytes = 0;     // between host and device
  std::int64_t launches = 0;   // products and attention
  friend bool operator==(const SelfCheckWork&, const SelfCheckWork&) = default;
};

// If a comparison failed, returns FAILED_PRECONDITION with kernel, shape, error and remedy of the
// first comparison that failed.
absl::Status FailureOf(std::span<const kernels::KernelCheck> checks,
                       const kernels::Backend& backend);

// Converts `status`, an error of the device or of memory, to the error of the self-check. The
// message of `status` begins with kernel and shape. CheckError adds "self-check of the kernels"
// before this message and the remedy after it. DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED keep their
// codes; other errors become FAILED_PRECONDITION. No remedy is added to RESOURCE_EXHAUSTED, which
// has one already.
absl::Status CheckError(const absl::Status& status, const kernels::Backend& backend);

struct SelfCheckReport {
  std::vector<kernels::KernelCheck> checks;  // in the order in which they ran
  SelfCheckWork work;
};

// Appends every comparison to `report`, whether it passed or not, and returns OK if all passed.
// Returns FAILED_PRECONDITION with kernel, shape, error and remedy of the first comparison that
// failed or whose kernel reported a device error. Returns DEADLINE_EXCEEDED if the check takes
// longer than `limit`; its kernels may still run, so the memory must not be freed. Returns
// RESOURCE_EXHAUSTED with the needed and available bytes if the buffers are too small for one row.
absl::Status RunSelfCheck(const SelfCheckParams& params, absl::Duration limit,
                          SelfCheckReport* report);

}  // namespace quire::runtime

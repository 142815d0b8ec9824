#pragma once

// A loaded checkpoint: its configuration, the specification of the computation, and the weights in
// the layout of the kernels.
//
//   ThreadPool pool(4);
//   QUIRE_ASSIGN_OR_RETURN(auto backend, kernels::Backend::Create(Device::Cpu(), &pool));
//   QUIRE_ASSIGN_OR_RETURN(auto files, ModelFiles::FromDirectory("/models/tiny"));
//   QUIRE_ASSIGN_OR_RETURN(auto model, LoadModel(files, backend, {}));
//   QUIRE_ASSIGN_OR_RETURN(auto geometry, KvGeometryFor(model->spec, {...}));     memory_plan.h
//   ... KvPool and CacheManager from geometry ...
//   QUIRE_ASSIGN_OR_RETURN(auto runner, CpuRunner::Create(*model, backend, &kv_pool, {...}));

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device.h"
#include "base/dtype.h"
#include "formats/model_files.h"
#include "kernels/backend/backend.h"
#include "models/config/layer_spec.h"
#include "models/config/model_config.h"
#include "models/config/rank_part.h"
#include "models/weights/quantization.h"

namespace quire::models {
class Weights;
}  // namespace quire::models

namespace quire::runtime {

enum class LoadMode : std::uint8_t {
  kReal,
  // Generates weights from the tensors' names, with the shapes of config.json. No tensor file is
  // needed, so a model can be measured without its weights.
  kDummy,
};

struct LoadOptions {
  LoadMode mode = LoadMode::kReal;
  // The RunnerOptions::activation that the model will run with. The CPU supports only f32.
  DType activation = DType::kF32;
  // Weight format of matrices.
  models::Quantization quantization = models::Quantization::kAuto;
  // Dynamic activation quantization (fp8) with one scale per row, for fp8_e4m3 weights.
  bool fp8_activations = false;
  // Directory in which packed weights are kept between starts; empty: none. CPU only.
  std::string packed_dir = {};
  // Weights that need more bytes than this are rejected before anything is loaded. 0: no limit.
  std::int64_t weight_limit_bytes = 0;
  // Maximum context of the model in use, which selects one of the two tables of a longrope model
  // (rope_table.h). 0: its max_position_embeddings.
  std::uint32_t max_context_tokens = 0;
  // The part of the model to load if several ranks share it.
  models::RankPart part = {};
};

// A loaded model.
//
// Place:      between the files of a model and the runners; the server shows its fields to clients.
// Invariants: spec passed ValidateSpec and CheckSupported; every weight is finite and has the
//             spec's shape.
// Threads:    immutable after LoadModel.
// Lifetime:   must outlive every runner made from it. It does not refer to the files.
struct Model {
  Model();
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  models::ModelConfig config;
  models::RankPart part;  // the part that spec, weights and counts describe
  models::ModelSpec spec;
  std::unique_ptr<models::Weights> weights;
  std::vector<float> label_weights;       // [labels, hidden] of a classifier, else empty
  models::GenerationDefaults generation;  // config.generation
  std::string source;                     // the path, or "embedded model"
  std::string architecture;               // "LlamaForCausalLM"
  std::string fingerprint;                // 32 hex digits: weights, configuration, tokenizer, and
                                          // the table that a longrope model was loaded with
  std::int64_t parameter_count = 0;       // a tied matrix counts once
  std::int64_t weight_bytes = 0;          // bytes in memory
  DType stored_dtype = DType::kInvalid;   // dtype of most parameters; kInvalid: quantized
  std::string quantization;               // "none", or the most common format, such as "int4_g32"
  std::vector<std::string> warnings;      // for the load log
};

// A configuration and the specification derived from it. No weights are read.
struct CheckedSpec {
  models::ModelConfig config;
  models::ModelSpec spec;  // passed ValidateSpec and CheckSupported
};
// Returns the specification of the computation on `device`. See LoadOptions for max_context_tokens.
// Returns the errors of LoadModel.
absl::StatusOr<CheckedSpec> ReadModelSpec(const formats::ModelFiles& files, DeviceKind device,
                                          std::uint32_t max_context_tokens = 0);

// Reads, checks and packs a model. Every error names the file, key or tensor, its value and the
// limit: NOT_FOUND (missing file), INVALID_ARGUMENT (damaged or contradictory), UNIMPLEMENTED
// (family, format or feature that is not supported), RESOURCE_EXHAUSTED (weight_limit_bytes or
// memory). A packed file that cannot be used or written is logged and is not an error.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const formats::ModelFiles& files,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options);
// Loads a model from a path that ModelFiles::FromPath opens.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(absl::string_view path,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options);

}  // namespace quire::runtime

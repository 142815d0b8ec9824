#pragma once

// A checkpoint made runnable: what config.json says, what is computed, and the weights in the
// layout of the kernels.
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
  // Weights made up from the tensors' names, of the shapes that config.json asks for; no tensor
  // file is needed. For measurements with models that are not at hand.
  kDummy,
};

struct LoadOptions {
  LoadMode mode = LoadMode::kReal;
  // The RunnerOptions::activation that the model will run with; the CPU has f32 only.
  DType activation = DType::kF32;
  // How matrices are held.
  models::Quantization quantization = models::Quantization::kAuto;
  // Rows that meet weights held as fp8_e4m3 are rounded to e4m3 with a scale a row.
  bool fp8_activations = false;
  // Where packed weights are kept between starts; empty: nowhere. The CPU's only.
  std::string packed_dir = {};
  // Refuses, before anything is loaded, a model whose weights take more than this. 0: no limit.
  std::int64_t weight_limit_bytes = 0;
  // The most tokens of context that the model will be used with, which chooses between the two
  // tables of a longrope model (rope_table.h). 0: its own max_position_embeddings.
  std::uint32_t max_context_tokens = 0;
  // Which part of the model is loaded, where several ranks share it.
  models::RankPart part = {};
};

// Place:      between the files of a model and CpuRunner; the server shows its fields to clients.
// Invariants: spec passed ValidateSpec and CheckBuilt; every weight is finite and has the spec's
//             shape.
// Threads:    immutable after LoadModel.
// Lifetime:   outlives every CpuRunner made from it. The files may go: nothing refers to them.
struct Model {
  Model();
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  models::ModelConfig config;
  models::RankPart part;  // what spec, weights and the counts of both are of
  models::ModelSpec spec;
  std::unique_ptr<models::Weights> weights;
  std::vector<float> label_weights;       // [labels, hidden] of a classifier, else empty
  models::GenerationDefaults generation;  // config.generation
  std::string source;                     // the path, or "embedded model"
  std::string architecture;               // "LlamaForCausalLM"
  std::string fingerprint;                // 32 hex digits: weights, configuration, tokenizer, and
                                          // the table that a longrope model was loaded with
  std::int64_t parameter_count = 0;       // a tied matrix counts once
  std::int64_t weight_bytes = 0;          // as held in memory
  DType stored_dtype = DType::kInvalid;   // of most parameters; kInvalid: blocks of a GGUF file
  std::string quantization;               // "none", or the form of most weights: "int4_g32"
  std::vector<std::string> warnings;      // for the load log
};

// A configuration and what it means, before any weight is read.
struct CheckedSpec {
  models::ModelConfig config;
  models::ModelSpec spec;  // passed ValidateSpec and CheckBuilt
};
// What `device` will be asked to compute; max_context_tokens as LoadOptions. Errors as LoadModel.
absl::StatusOr<CheckedSpec> ReadModelSpec(const formats::ModelFiles& files, DeviceKind device,
                                          std::uint32_t max_context_tokens = 0);

// Reads, checks and packs a model. Every error names the file, key or tensor, its value and the
// limit: NOT_FOUND (missing file), INVALID_ARGUMENT (broken or contradictory), UNIMPLEMENTED (a
// family, format or feature of another version), RESOURCE_EXHAUSTED (weight_limit_bytes, or
// memory). A packed file that cannot be used or written is a line of the log, not an error.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const formats::ModelFiles& files,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options);
// The same for a path as of ModelFiles::FromPath.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(absl::string_view path,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options);

}  // namespace quire::runtime

#include "models/model.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/fingerprint.h"
#include "models/families/registry.h"
#include "models/weights.h"

namespace quire::models {

Model::Model() = default;
Model::~Model() = default;

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelFiles& files,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options) {
  auto model = std::make_unique<Model>();
  QUIRE_ASSIGN_OR_RETURN(model->config, ReadModelConfig(files));
  const Family& family = FamilyNamed(model->config.family);
  absl::StatusOr<ModelSpec> spec = family.build_spec(model->config);
  absl::Status checked = spec.status();
  if (checked.ok()) checked = ValidateSpec(*spec);
  if (checked.ok()) checked = CheckBuilt(*spec);
  if (!checked.ok()) {
    return absl::Status(checked.code(),
                        absl::StrCat(files.LabelOf("config.json"), ": ", checked.message()));
  }
  model->spec = *std::move(spec);

  QUIRE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(files));
  absl::StatusOr<WeightSlots> slots = FindWeights(model->spec, family.names, checkpoint);
  if (!slots.ok()) {
    return absl::Status(slots.status().code(),
                        absl::StrCat(files.source(), ": ", slots.status().message()));
  }
  model->weight_bytes = WeightBytes(*slots);
  if (options.weight_limit_bytes > 0 && model->weight_bytes > options.weight_limit_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(files.source(), ": weights take ",
                                                     model->weight_bytes, " bytes, the limit is ",
                                                     options.weight_limit_bytes));
  }
  QUIRE_ASSIGN_OR_RETURN(Weights weights, Weights::Load(*slots, backend));
  model->weights = std::make_unique<Weights>(std::move(weights));
  QUIRE_ASSIGN_OR_RETURN(model->fingerprint, Fingerprint(files, checkpoint));
  model->generation = model->config.generation;
  model->source = files.source();
  model->architecture = model->config.architecture;
  model->parameter_count = slots->parameter_count;
  model->stored_dtype = slots->stored_dtype;
  model->warnings = model->config.warnings;
  for (const auto* more : {&checkpoint.warnings(), &std::as_const(slots->warnings)}) {
    model->warnings.insert(model->warnings.end(), more->begin(), more->end());
  }
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(absl::string_view directory,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::FromDirectory(directory));
  return LoadModel(files, backend, options);
}

}  // namespace quire::models

#include "models/model.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/uploader.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/fingerprint.h"
#include "models/dummy_checkpoint.h"
#include "models/families/registry.h"
#include "models/weights.h"

namespace quire::models {

Model::Model() = default;
Model::~Model() = default;

absl::StatusOr<CheckedSpec> ReadModelSpec(const ModelFiles& files) {
  CheckedSpec checked;
  QUIRE_ASSIGN_OR_RETURN(checked.config, ReadModelConfig(files));
  absl::StatusOr<ModelSpec> spec = FamilyNamed(checked.config.family).build_spec(checked.config);
  absl::Status status = spec.status();
  if (status.ok()) status = ValidateSpec(*spec);
  if (status.ok()) status = CheckBuilt(*spec);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(files.LabelOf("config.json"), ": ", status.message()));
  }
  checked.spec = *std::move(spec);
  return checked;
}

namespace {

// On a GPU with an uploader, which exists for as long as this takes.
absl::StatusOr<Weights> LoadWeights(const WeightSlots& slots, const kernels::Backend& backend,
                                    DType activation, std::int64_t weight_bytes) {
  if (backend.cuda() == nullptr) return Weights::Load(slots, backend);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Uploader> uploader,
                         kernels::Uploader::Create(*backend.cuda()->stream, backend.pool(),
                                                   kernels::Uploader::kPieceBytes, weight_bytes));
  backend.LendUploader(uploader.get());
  absl::StatusOr<Weights> weights = Weights::Load(slots, backend, activation);
  backend.LendUploader(nullptr);
  const absl::Status finished = uploader->Finish();
  if (weights.ok() && !finished.ok()) return finished;
  return weights;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelFiles& files,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(CheckedSpec checked, ReadModelSpec(files));
  auto model = std::make_unique<Model>();
  model->config = std::move(checked.config);
  model->spec = std::move(checked.spec);
  const Family& family = FamilyNamed(model->config.family);
  QUIRE_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                         options.mode == LoadMode::kDummy
                             ? DummyCheckpoint(model->config, model->spec, family.names,
                                               /*with_values=*/true)
                             : Checkpoint::Open(files));
  absl::StatusOr<WeightSlots> slots = FindWeights(model->spec, family.names, checkpoint);
  if (!slots.ok()) {
    return absl::Status(slots.status().code(),
                        absl::StrCat(files.source(), ": ", slots.status().message()));
  }
  model->weight_bytes =
      WeightBytes(*slots, {.cuda = backend.cuda() != nullptr, .activation = options.activation});
  if (options.weight_limit_bytes > 0 && model->weight_bytes > options.weight_limit_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(files.source(), ": weights take ",
                                                     model->weight_bytes, " bytes, the limit is ",
                                                     options.weight_limit_bytes));
  }
  QUIRE_ASSIGN_OR_RETURN(Weights weights,
                         LoadWeights(*slots, backend, options.activation, model->weight_bytes));
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

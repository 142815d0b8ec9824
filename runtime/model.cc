#include "runtime/model.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/uploader.h"
#include "models/families/read_model_config.h"
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"
#include "models/weights/divided_checkpoint.h"
#include "models/weights/dummy_checkpoint.h"
#include "models/weights/fingerprint.h"
#include "models/weights/stored_rows.h"
#include "models/weights/weights.h"
#include "runtime/packed_file.h"

namespace quire::runtime {

Model::Model() = default;
Model::~Model() = default;

namespace {

// Selects one of the two tables of a longrope model for its lifetime, because keys that were cached
// with one table are invalid with the other.
void ChooseLongrope(std::uint32_t max_context_tokens, models::ModelConfig* config) {
  if (config->rope.kind != models::RopeKind::kLongrope) return;
  const std::uint32_t context =
      max_context_tokens == 0 ? config->max_position_embeddings : max_context_tokens;
  config->rope.uses_long_factors = context > config->rope.original_max_position;
}

// Returns and logs the choices that are part of the fingerprint but are in no file.
std::string ChoicesOf(const models::ModelConfig& config) {
  if (config.rope.kind != models::RopeKind::kLongrope) return "";
  const absl::string_view set = config.rope.uses_long_factors ? "long" : "short";
  log::Info("model", "longrope factors chosen by the context",
            {{"factors", set}, {"original_context", config.rope.original_max_position}});
  return absl::StrCat("longrope ", set);
}

}  // namespace

absl::StatusOr<CheckedSpec> ReadModelSpec(const formats::ModelFiles& files, DeviceKind device,
                                          std::uint32_t max_context_tokens) {
  CheckedSpec checked;
  QUIRE_ASSIGN_OR_RETURN(checked.config, models::ReadModelConfig(files));
  ChooseLongrope(max_context_tokens, &checked.config);
  absl::StatusOr<models::ModelSpec> spec =
      models::FamilyNamed(checked.config.family).build_spec(checked.config);
  absl::Status status = spec.status();
  if (status.ok()) {
    spec->has_head = checked.config.output == models::ModelOutput::kTokens;
    spec->num_labels = static_cast<std::uint32_t>(checked.config.labels.size());
  }
  if (status.ok()) status = models::ValidateSpec(*spec);
  if (status.ok()) status = models::CheckSupported(*spec, device);
  if (!status.ok()) {
    const std::string label = files.gguf().empty() ? files.LabelOf("config.json") : files.source();
    return absl::Status(status.code(), absl::StrCat(label, ": ", status.message()));
  }
  checked.spec = *std::move(spec);
  return checked;
}

namespace {

// Loads weights. A GPU gets an uploader for the duration of the call.
absl::StatusOr<models::Weights> LoadWeights(const models::WeightSlots& slots,
                                            const kernels::Backend& backend,
                                            const models::WeightTarget& target,
                                            std::int64_t weight_bytes) {
  if (backend.cuda() == nullptr) return models::Weights::Load(slots, backend, target);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Uploader> uploader,
                         kernels::Uploader::Create(*backend.cuda()->stream, backend.pool(),
                                                   kernels::Uploader::kPieceBytes, weight_bytes));
  backend.SetUploader(uploader.get());
  absl::StatusOr<models::Weights> weights = models::Weights::Load(slots, backend, target);
  backend.SetUploader(nullptr);
  const absl::Status finished = uploader->Finish();
  if (weights.ok() && !finished.ok()) return finished;
  return weights;
}

// Returns the weights of the packed file, or nullopt if there is no valid packed file.
std::optional<models::Weights> ReadPacked(const std::string& path, const PackedFileKey& key,
                                          const models::WeightSlots& slots,
                                          models::Quantization quantization,
                                          const kernels::Backend& backend) {
  const absl::Time start = MonotonicNow();
  absl::StatusOr<models::Weights> weights = models::Weights::Allocate(slots, quantization, backend);
  absl::Status status = weights.status();
  if (status.ok()) status = ReadPackedFile(path, key, weights->Sections(), backend);
  if (status.ok()) {
    log::Info(
        "model", "packed weights read",
        {{"path", path}, {"bytes", weights->size_bytes()}, {"seconds", MonotonicNow() - start}});
    return *std::move(weights);
  }
  if (!absl::IsNotFound(status)) {
    log::Warn("model", "packed weights cannot be read and are packed again",
              {{"reason", status.message()}});
  }
  return std::nullopt;
}

// Reads the packed weights that an earlier start wrote to `directory`. If there are none, loads the
// weights and writes them there.
absl::StatusOr<models::Weights> LoadOrReadWeights(const models::WeightSlots& slots,
                                                  const std::string& directory,
                                                  const std::string& fingerprint,
                                                  const models::WeightTarget& target,
                                                  std::int64_t weight_bytes,
                                                  const kernels::Backend& backend) {
  if (target.cuda && !directory.empty()) {
    log::Warn("model", "packed weights are not kept",
              {{"reason", "model.packed_dir applies only to the CPU backend"}});
  }
  if (directory.empty() || target.cuda) return LoadWeights(slots, backend, target, weight_bytes);
  const PackedFileKey key{fingerprint, models::QuantizationName(target.quantization)};
  const std::string path = PackedFilePath(directory, key);
  std::optional<models::Weights> read = ReadPacked(path, key, slots, target.quantization, backend);
  if (read) return *std::move(read);
  QUIRE_ASSIGN_OR_RETURN(models::Weights weights,
                         LoadWeights(slots, backend, target, weight_bytes));
  const absl::Time start = MonotonicNow();
  const absl::Status written = WritePackedFile(path, key, weights.Sections(), backend);
  if (written.ok()) {
    log::Info(
        "model", "packed weights written",
        {{"path", path}, {"bytes", weights.size_bytes()}, {"seconds", MonotonicNow() - start}});
  } else {
    log::Warn("model", "packed weights are not kept", {{"reason", written.message()}});
  }
  return weights;
}

// Reads the label weights into host memory. They are small and multiply one hidden state per
// request.
absl::StatusOr<std::vector<float>> ReadLabelWeights(const models::WeightSlots& slots,
                                                    const models::ModelSpec& spec,
                                                    const kernels::Backend& backend) {
  std::vector<float> values(std::size_t{spec.num_labels} * spec.hidden);
  if (slots.labels == nullptr) return values;
  QUIRE_RETURN_IF_ERROR(models::CheckFinite(*slots.labels, backend));
  for (std::uint32_t row = 0; row < spec.num_labels; ++row) {
    models::WidenRow(*slots.labels, row,
                     {values.data() + std::size_t{row} * spec.hidden, spec.hidden});
  }
  return values;
}

// Prefixes the message with the source of the files, unless it begins with their name already.
absl::Status WithSource(const formats::ModelFiles& files, const absl::Status& status) {
  if (absl::StartsWith(status.message(), files.source())) return status;
  return absl::Status(status.code(), absl::StrCat(files.source(), ": ", status.message()));
}

// Replaces the model's spec by the spec of the rank's part, and returns the tensors of that part.
absl::StatusOr<models::Checkpoint> TakePart(const formats::ModelFiles& files,
                                            const models::TensorNames& names,
                                            const LoadOptions& options,
                                            const models::Checkpoint& whole, Model* model) {
  if (!options.packed_dir.empty()) {
    return absl::UnimplementedError(
        "model.packed_dir is not supported for a model that is divided among ranks");
  }
  absl::StatusOr<models::ModelSpec> spec = models::SpecOfPart(model->spec, options.part);
  if (!spec.ok()) return WithSource(files, spec.status());
  absl::StatusOr<models::Checkpoint> part =
      models::CheckpointOfPart(whole, model->spec, names, options.part);
  if (!part.ok()) return WithSource(files, part.status());
  model->spec = *std::move(spec);
  model->part = options.part;
  return part;
}

models::WeightTarget TargetOf(const kernels::Backend& backend, const LoadOptions& options) {
  const auto* const cuda = backend.cuda();
  return {.cuda = cuda != nullptr,
          .activation = options.activation,
          .quantization = options.quantization,
          .fp8_activations = options.fp8_activations,
          .dummy = options.mode == LoadMode::kDummy,
          .multiplies_fp8 = cuda != nullptr && cuda->has_sm90a()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const formats::ModelFiles& files,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(CheckedSpec checked,
                         ReadModelSpec(files, backend.device().kind, options.max_context_tokens));
  auto model = std::make_unique<Model>();
  model->config = std::move(checked.config);
  model->spec = std::move(checked.spec);
  const models::TensorNames& names = models::TensorNamesOf(model->config);
  absl::StatusOr<models::Checkpoint> opened =
      options.mode == LoadMode::kDummy
          ? models::DummyCheckpoint(model->config, model->spec, names, /*with_values=*/true)
          : models::Checkpoint::Open(files, model->config.stored_quantization);
  QUIRE_ASSIGN_OR_RETURN(const models::Checkpoint whole, std::move(opened));
  std::optional<models::Checkpoint> divided;
  if (!options.part.is_whole()) {
    absl::StatusOr<models::Checkpoint> cut = TakePart(files, names, options, whole, model.get());
    QUIRE_RETURN_IF_ERROR(cut.status());
    divided = *std::move(cut);
  }
  const models::Checkpoint& checkpoint = divided ? *divided : whole;
  const models::WeightTarget target = TargetOf(backend, options);
  absl::StatusOr<models::WeightSlots> slots =
      models::FindWeights(model->spec, names, checkpoint, target);
  // Messages about a missing tensor do not begin with a file.
  if (!slots.ok()) return WithSource(files, slots.status());
  model->weight_bytes = models::WeightBytes(*slots, target);
  if (options.weight_limit_bytes > 0 && model->weight_bytes > options.weight_limit_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(files.source(), ": weights take ",
                                                     model->weight_bytes, " bytes, the limit is ",
                                                     options.weight_limit_bytes));
  }
  QUIRE_ASSIGN_OR_RETURN(model->fingerprint,
                         models::Fingerprint(files, whole, ChoicesOf(model->config)));
  QUIRE_ASSIGN_OR_RETURN(models::Weights weights,
                         LoadOrReadWeights(*slots, options.packed_dir, model->fingerprint, target,
                                           model->weight_bytes, backend));
  model->weights = std::make_unique<models::Weights>(std::move(weights));
  QUIRE_ASSIGN_OR_RETURN(model->label_weights, ReadLabelWeights(*slots, model->spec, backend));
  model->generation = model->config.generation;
  model->source = files.source();
  model->architecture = model->config.architecture;
  model->parameter_count = slots->parameter_count;
  model->stored_dtype = slots->stored_dtype;
  model->quantization = slots->quantized_format.empty() ? "none" : slots->quantized_format;
  model->warnings = model->config.warnings;
  if (options.mode == LoadMode::kDummy &&
      model->config.stored_quantization.method != formats::StoredMethod::kNone) {
    model->warnings.push_back(
        "dummy weights do not have the format of quantization_config; only model.quantization "
        "quantizes them");
  }
  for (const auto* warnings : {&whole.warnings(), &std::as_const(slots->warnings)}) {
    model->warnings.insert(model->warnings.end(), warnings->begin(), warnings->end());
  }
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(absl::string_view path,
                                                 const kernels::Backend& backend,
                                                 const LoadOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFiles files, formats::ModelFiles::FromPath(path));
  return LoadModel(files, backend, options);
}

}  // namespace quire::runtime

#include "models/weights/checkpoint.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "formats/tensors/gguf_tensors.h"
#include "formats/tensors/quantized_tensor.h"
#include "models/weights/join_quantized.h"

namespace quire::models {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// File names by tensor name, from the index.
using WeightMap = std::map<std::string, std::string>;

struct ShardIndex {
  WeightMap weight_map;
  std::int64_t total_size = -1;  // -1: not stated
};

absl::Status CheckShardName(absl::string_view label, absl::string_view tensor,
                            absl::string_view file) {
  if (file.empty() || file.find_first_of("/\\") != absl::string_view::npos ||
      !absl::EndsWith(file, ".safetensors")) {
    return absl::InvalidArgumentError(
        absl::StrCat(label, ": weight_map gives \"", file, "\" for tensor ", tensor,
                     ", it must be the name of a .safetensors file in the same directory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardIndex> ReadIndex(const formats::ModelFile& file) {
  const auto refuse = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat(file.label(), ": ", problem));
  };
  const absl::StatusOr<formats::JsonDocument> document = formats::JsonDocument::Parse(file.text());
  if (!document.ok()) return refuse(document.status().message());
  const absl::StatusOr<formats::JsonValue> map = document->root().Get("weight_map");
  if (!map.ok()) return refuse(map.status().message());
  if (const absl::Status status = map->CheckObject(); !status.ok()) return refuse(status.message());

  ShardIndex index;
  for (const auto& [tensor, raw] : map->raw().items()) {
    const absl::StatusOr<std::string> shard =
        formats::JsonValue(raw, absl::StrCat("weight_map[\"", tensor, "\"]")).AsString();
    if (!shard.ok()) return refuse(shard.status().message());
    QUIRE_RETURN_IF_ERROR(CheckShardName(file.label(), tensor, *shard));
    index.weight_map.emplace(tensor, *shard);
  }
  if (index.weight_map.empty()) return refuse("weight_map is empty");
  const auto& raw = document->root().raw();
  if (const auto metadata = raw.find("metadata"); metadata != raw.end() && metadata->is_object()) {
    const auto size = metadata->find("total_size");
    if (size != metadata->end() && size->is_number_integer()) {
      index.total_size = size->get<std::int64_t>();
    }
  }
  return index;
}

// Returns the error for a model without safetensors files, with a hint about the files it has.
absl::Status NoWeightsError(const formats::ModelFiles& files) {
  for (const std::string& name : files.names()) {
    const bool pickled = absl::EndsWith(name, ".bin") || absl::EndsWith(name, ".pth") ||
                         absl::EndsWith(name, ".pt") || absl::EndsWith(name, ".ckpt");
    if (pickled && name != "training_args.bin") {
      return absl::InvalidArgumentError(absl::StrCat(
          files.LabelOf(name), ": pickled weights are not read, since loading them may run code; ",
          "convert them to safetensors (save_pretrained of transformers does)"));
    }
    if (absl::EndsWith(name, ".gguf")) {
      return absl::InvalidArgumentError(
          absl::StrCat(files.LabelOf(name),
                       ": a GGUF file is a complete model; set the model path to the file, not to ",
                       "its directory"));
    }
    if (absl::StartsWith(name, "consolidated") && absl::EndsWith(name, ".safetensors")) {
      return absl::UnimplementedError(absl::StrCat(
          files.LabelOf(name), ": this layout with params.json is not supported; use the files in ",
          "Hugging Face layout (model*.safetensors and config.json)"));
    }
    if (absl::StartsWith(name, "model-") && absl::EndsWith(name, ".safetensors")) {
      return absl::NotFoundError(
          absl::StrCat(files.LabelOf(kIndexFile), ": no such file, but there is a shard ", name));
    }
  }
  return absl::NotFoundError(
      absl::StrCat(files.source(), ": contains neither ", kSingleFile, " nor ", kIndexFile));
}

bool IsInside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  const std::less_equal<> before;  // total order, also for unrelated pointers
  return before(whole.data(), part.data()) &&
         before(part.data() + part.size(), whole.data() + whole.size());
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const formats::ModelFiles& files,
                                            const formats::StoredQuantization& quantization) {
  Checkpoint checkpoint;
  if (!files.gguf().empty()) {
    QUIRE_RETURN_IF_ERROR(checkpoint.AddGguf(files));
  } else if (files.Has(kSingleFile)) {
    QUIRE_RETURN_IF_ERROR(checkpoint.AddFile(files, kSingleFile));
  } else if (files.Has(kIndexFile)) {
    QUIRE_RETURN_IF_ERROR(checkpoint.AddShards(files));
  } else {
    return NoWeightsError(files);
  }
  if (files.gguf().empty()) {
    QUIRE_RETURN_IF_ERROR(JoinQuantized(quantization, &checkpoint.tensors_, &checkpoint.warnings_));
  }
  QUIRE_RETURN_IF_ERROR(checkpoint.Finish());
  return checkpoint;
}

absl::Status Checkpoint::AddFile(const formats::ModelFiles& files, absl::string_view name) {
  QUIRE_ASSIGN_OR_RETURN(formats::ModelFile file, files.Open(name));
  QUIRE_ASSIGN_OR_RETURN(std::vector<formats::StoredTensor> tensors,
                         formats::ReadSafetensors(file.bytes(), file.label()));
  files_.push_back(std::move(file));
  std::move(tensors.begin(), tensors.end(), std::back_inserter(tensors_));
  return absl::OkStatus();
}

absl::Status Checkpoint::AddGguf(const formats::ModelFiles& files) {
  QUIRE_ASSIGN_OR_RETURN(formats::OpenedGguf opened, formats::OpenGguf(files));
  QUIRE_ASSIGN_OR_RETURN(formats::GgufTensors read, formats::LoadGgufTensors(opened));
  tensors_ = std::move(read.tensors);
  memory_ = std::move(read.memory);
  files_.push_back(std::move(opened.file));
  return absl::OkStatus();
}

absl::Status Checkpoint::AddShards(const formats::ModelFiles& files) {
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFile index_file, files.Open(kIndexFile));
  QUIRE_ASSIGN_OR_RETURN(const ShardIndex index, ReadIndex(index_file));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index.weight_map) shards.insert(shard);
  for (const std::string& shard : shards) {
    if (!files.Has(shard)) {
      return absl::NotFoundError(absl::StrCat(
          files.LabelOf(shard), ": no such file, but weight_map of ", kIndexFile, " lists it"));
    }
    QUIRE_RETURN_IF_ERROR(AddFile(files, shard));
  }
  std::int64_t total = 0;
  std::map<absl::string_view, const formats::StoredTensor*> found;
  for (const formats::StoredTensor& tensor : tensors_) {
    found.emplace(tensor.name, &tensor);
    total += static_cast<std::int64_t>(tensor.bytes.size());
  }
  for (const auto& [tensor, shard] : index.weight_map) {
    const auto it = found.find(tensor);
    if (it == found.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          index_file.label(), ": weight_map lists tensor ", tensor, ", which is in no file"));
    }
    if (it->second->file != files.LabelOf(shard)) {
      warnings_.push_back(absl::StrCat("weight_map gives ", shard, " for tensor ", tensor,
                                       ", it was read from ", it->second->file));
    }
  }
  if (index.total_size >= 0 && index.total_size != total) {
    warnings_.push_back(absl::StrCat("metadata.total_size of ", kIndexFile, " is ",
                                     index.total_size, ", the tensors have ", total, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Finish() {
  std::stable_sort(tensors_.begin(), tensors_.end(),
                   [](const formats::StoredTensor& a, const formats::StoredTensor& b) {
                     return a.name < b.name;
                   });
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    formats::StoredTensor& tensor = tensors_[i];
    tensor.is_mapped =
        std::any_of(files_.begin(), files_.end(), [&](const formats::ModelFile& file) {
          return file.is_mapped() && IsInside(tensor.bytes, file.bytes());
        });
    if (!by_name_.emplace(tensor.name, i).second) {
      return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", tensor.name,
                                                     " is also in ", tensors_[i - 1].file));
    }
    if (tensor.quantized == nullptr) {
      total_bytes_ += static_cast<std::int64_t>(tensor.bytes.size());
      continue;
    }
    for (const formats::StoredTensor* source : tensor.quantized->Sources()) {
      total_bytes_ += static_cast<std::int64_t>(source->bytes.size());
    }
  }
  return absl::OkStatus();
}

Checkpoint Checkpoint::FromTensors(std::vector<formats::StoredTensor> tensors,
                                   std::shared_ptr<const void> memory) {
  Checkpoint checkpoint;
  checkpoint.tensors_ = std::move(tensors);
  checkpoint.memory_ = std::move(memory);
  QUIRE_CHECK(checkpoint.Finish().ok());
  return checkpoint;
}

const formats::StoredTensor* Checkpoint::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace quire::models

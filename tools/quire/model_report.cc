#include "tools/quire/model_report.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "formats/model_files.h"
#include "formats/tensors/gguf_tensors.h"
#include "formats/tensors/quantized_tensor.h"
#include "formats/tensors/safetensors.h"
#include "hub/cache/model_cache.h"
#include "models/config/config_keys.h"
#include "models/config/config_reader.h"
#include "models/config/hybrid_config.h"
#include "models/config/layer_spec.h"
#include "models/config/tensor_table.h"
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"
#include "runtime/model.h"
#include "text/chat/chat_template.h"
#include "text/chat/template_files.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"
#include "tools/quire/spec_text.h"

namespace quire::client {
namespace {

using nlohmann::ordered_json;

// Groups of tensors, in printing order.
constexpr absl::string_view kGroups[] = {"embedding",    "attention", "mlp",  "experts", "router",
                                         "layer inputs", "norms",     "head", "other"};

// `slot` is a name of models::TensorNames. Returns true if `name` is `slot` or the name of a part
// of that tensor, such as slot + ".weight".
bool IsPartOf(absl::string_view name, absl::string_view slot) {
  return !slot.empty() && absl::ConsumePrefix(&name, slot) &&
         (name.empty() || name[0] == '.' || name[0] == '_');
}

bool IsPartOfAny(absl::string_view name, std::initializer_list<absl::string_view> slots) {
  return std::any_of(slots.begin(), slots.end(),
                     [name](absl::string_view slot) { return IsPartOf(name, slot); });
}

// Returns the group of a tensor, given its name after the prefix of its MoE block.
absl::string_view ExpertGroup(const models::TensorNames& names, absl::string_view name) {
  return IsPartOfAny(name, {names.router, names.choice_bias, names.router_norm, names.expert_scale})
             ? "router"
             : "experts";
}

// Returns the group of the tensors of a block kind. Returns "" for an MoE block, because LayerGroup
// finds the group of its tensors.
absl::string_view BlockGroup(models::BlockKind block) {
  switch (block) {
    case models::BlockKind::kNorms:
      return "norms";
    case models::BlockKind::kAttention:
    case models::BlockKind::kMla:
    case models::BlockKind::kRecurrent:
    case models::BlockKind::kShortConv:
      return "attention";
    case models::BlockKind::kMlp:
      return "mlp";
    case models::BlockKind::kInput:
      return "layer inputs";
    case models::BlockKind::kMoe:
      break;
  }
  return "";
}

// Returns true for expert tensors of GGUF files, whose names lack the prefix of the MoE block.
bool IsExpertTensor(const models::TensorNames& names, absl::string_view name) {
  if (!names.moe.empty()) return false;
  const bool is_shared =
      names.shared.empty() && IsPartOfAny(name, {names.shared_mlp_gate, names.shared_mlp_up,
                                                 names.shared_mlp_down, names.shared_gate});
  return is_shared || IsPartOfAny(name, {names.gate_stack, names.up_stack, names.gate_up_stack,
                                         names.down_stack, names.latent_in, names.latent_out});
}

absl::string_view LayerGroup(const models::TensorNames& names, absl::string_view name) {
  absl::string_view group;
  if (names.moe.empty() && IsPartOfAny(name, {names.router_norm, names.expert_scale})) {
    return "router";
  }
  if (IsExpertTensor(names, name)) return "experts";
  if (names.moe.empty() && IsPartOfAny(name, {names.router})) return "router";
  models::ForEachTensor([&](models::BlockKind block, const models::TensorInfo& info) {
    const absl::string_view block_group = BlockGroup(block);
    if (!group.empty() || block_group.empty()) return;
    for (const models::PartInfo& part : info.PartsIn(names)) {
      if (IsPartOf(name, names.*part.name)) group = block_group;
      if (part.stack_name != nullptr && IsPartOf(name, names.*part.stack_name)) group = block_group;
    }
  });
  if (!group.empty()) return group;
  if (names.moe.empty() && IsPartOf(name, "experts")) return "experts";
  if (names.moe.empty() && ExpertGroup(names, name) == "router") return "router";
  for (const absl::string_view moe : {names.moe, names.moe_alias}) {
    absl::string_view rest = name;
    if (!moe.empty() && absl::ConsumePrefix(&rest, moe) && absl::ConsumePrefix(&rest, ".")) {
      return ExpertGroup(names, rest);
    }
  }
  return "other";
}

absl::string_view FindGroup(const models::TensorNames& names, absl::string_view name) {
  // The embedding is checked after these names, because its name may be a prefix of them.
  if (IsPartOfAny(name, {names.input_embedding, names.input_context, names.input_norm})) {
    return "layer inputs";
  }
  if (IsPartOf(name, names.final_norm)) return "norms";
  if (IsPartOf(name, names.embedding)) return "embedding";
  if (IsPartOf(name, names.head)) return "head";
  if (!absl::ConsumePrefix(&name, names.layer_prefix)) return "other";
  const std::size_t dot = name.find('.');
  return dot == absl::string_view::npos ? "other" : LayerGroup(names, name.substr(dot + 1));
}

std::string MiB(std::int64_t bytes) {
  return absl::StrFormat("%.2f MiB", static_cast<double>(bytes) / (1 << 20));
}

class Inspector {
 public:
  explicit Inspector(const PlanRequest& request) : request_(request) {}

  ModelReport Run() {
    report_.json["model"] = request_.model;
    absl::StatusOr<std::string> path = hub::LocateModel(request_.model);
    if (!path.ok()) {
      AddProblem(path.status());
      return Finish();
    }
    request_.model = *std::move(path);
    absl::StatusOr<formats::ModelFiles> files = formats::ModelFiles::FromPath(request_.model);
    if (!files.ok()) {
      AddProblem(files.status());
      return Finish();
    }
    AddKeys(*files);
    AddModel(*files);
    AddText(*files);
    AddPlan();
    return Finish();
  }

 private:
  void Add(absl::string_view name, absl::string_view text) {
    report_.lines.push_back(absl::StrFormat("%-12s %s", name, text));
  }
  void AddProblem(const absl::Status& status) {
    for (const absl::string_view line : absl::StrSplit(status.message(), '\n')) {
      const std::string text(line);
      if (std::find(problems_.begin(), problems_.end(), text) == problems_.end()) {
        problems_.push_back(text);
      }
    }
  }

  void AddKeys(const formats::ModelFiles& files);
  void AddModel(const formats::ModelFiles& files);
  void AddWeights(const formats::ModelFiles& files, const models::ModelConfig& config);
  void AddText(const formats::ModelFiles& files);
  void AddTemplates(const formats::ModelFiles& files, const text::Tokenizer& tokenizer);
  void AddPlan();
  ModelReport Finish();

  PlanRequest request_;
  ModelReport report_;
  std::vector<std::string> key_lines_;
  std::vector<std::string> problems_;
};

const models::Family* FindFamily(const models::ConfigReader& reader) {
  const auto architectures = reader.OptionalStrings("architectures");
  if (architectures.ok() && *architectures && !(*architectures)->empty()) {
    return models::FindFamilyByArchitecture((*architectures)->front());
  }
  const auto type = reader.OptionalString("model_type");
  return type.ok() && *type ? models::FindFamilyByModelType(**type) : nullptr;
}

// Lists all configuration keys, even those after a refused one.
void Inspector::AddKeys(const formats::ModelFiles& files) {
  if (!files.gguf().empty() || !files.Has("config.json")) return;
  const absl::StatusOr<formats::ModelFile> file = files.Open("config.json");
  if (!file.ok()) return AddProblem(file.status());
  const absl::StatusOr<formats::JsonDocument> document =
      formats::JsonDocument::Parse(models::WithQuotedInfinity(file->text()));
  if (!document.ok() || !document->root().is_object()) return;  // AddModel reports the error
  const models::ConfigReader reader(file->label(), document->root());
  const models::Family* family = FindFamily(reader);
  if (family == nullptr) return;
  const std::pair<models::KeyUse, absl::string_view> kinds[] = {
      {models::KeyUse::kIgnored, "ignored"},
      {models::KeyUse::kUnknown, "unknown"},
      {models::KeyUse::kRefused, "refused"}};
  ordered_json& json = report_.json["keys"];
  for (const auto& [use, name] : kinds) {
    std::vector<std::string> texts;
    json[std::string(name)] = ordered_json::array();
    for (const models::ConfigKey& key : models::ListKeys(reader, *family)) {
      if (key.use != use) continue;
      texts.push_back(use == models::KeyUse::kRefused ? absl::StrCat(key.key, " = ", key.value)
                                                      : key.key);
      json[std::string(name)].push_back(key.key);
    }
    if (!texts.empty()) {
      key_lines_.push_back(absl::StrCat(name, ": ", absl::StrJoin(texts, ", ")));
    }
  }
}

void Inspector::AddModel(const formats::ModelFiles& files) {
  // The context determines the RoPE table of longrope models. AddPlan reports errors of the
  // configuration.
  const absl::StatusOr<server::DaemonOptions> options = ReadOptions(request_);
  const std::int32_t context = options.ok() ? options->model.max_context_tokens.value_or(0) : 0;
  const absl::StatusOr<runtime::CheckedSpec> checked =
      runtime::ReadModelSpec(files, request_.device(), static_cast<std::uint32_t>(context));
  if (!checked.ok()) return AddProblem(checked.status());
  const models::ModelConfig& config = checked->config;
  Add("architecture", absl::StrCat(config.architecture, ", family ", config.family));
  report_.json["architecture"] = config.architecture;
  report_.json["family"] = config.family;
  AddWeights(files, config);
  const std::vector<std::string> spec =
      absl::StrSplit(absl::StripSuffix(models::DumpSpec(checked->spec), "\n"), '\n');
  report_.json["spec"] = spec;
  for (const SpecLine& line : DescribeSpec(checked->spec)) Add(line.name, line.text);
  report_.json["warnings"] = config.warnings;
  for (const std::string& warning : config.warnings) Add("warning", warning);
}

// Returns the number of bytes in the files, including scales and zero points. A tensor that several
// matrices share counts once.
std::int64_t StoredBytes(const formats::StoredTensor& tensor,
                         std::set<const formats::QuantizedTensor*>& counted) {
  if (tensor.quantized == nullptr) return static_cast<std::int64_t>(tensor.bytes.size());
  std::int64_t bytes = 0;
  if (!counted.insert(tensor.quantized.get()).second) return bytes;
  for (const formats::StoredTensor* source : tensor.quantized->Sources()) {
    bytes += static_cast<std::int64_t>(source->bytes.size());
  }
  return bytes;
}

void Inspector::AddWeights(const formats::ModelFiles& files, const models::ModelConfig& config) {
  const absl::StatusOr<models::Checkpoint> checkpoint =
      models::Checkpoint::Open(files, config.stored_quantization);
  if (!checkpoint.ok()) return AddProblem(checkpoint.status());
  struct Sum {
    std::int64_t tensors = 0, parameters = 0, bytes = 0;
    void Add(std::int64_t values, std::int64_t size) {
      ++tensors;
      parameters += values;
      bytes += size;
    }
  };
  std::map<absl::string_view, Sum> groups;
  std::map<std::string, std::int64_t> types;
  std::set<const formats::QuantizedTensor*> counted;
  Sum all;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    std::int64_t values = 1;
    for (const std::int64_t dimension : tensor.shape) values *= dimension;
    const std::int64_t bytes = StoredBytes(tensor, counted);
    groups[FindGroup(models::TensorNamesOf(config), tensor.name)].Add(values, bytes);
    all.Add(values, bytes);
    types[tensor.type] += bytes;
  }
  Add("parameters",
      absl::StrCat(all.parameters, " in ", all.tensors, " tensors, ", MiB(all.bytes), " in files"));
  report_.json["parameters"] = all.parameters;
  report_.json["tensors"] = all.tensors;
  report_.json["stored_bytes"] = all.bytes;
  std::vector<std::string> type_texts;
  type_texts.reserve(types.size());
  for (const auto& [type, bytes] : types) type_texts.push_back(absl::StrCat(type, " ", MiB(bytes)));
  Add("types", absl::StrJoin(type_texts, ", "));
  report_.json["stored_bytes_by_type"] = types;
  ordered_json& json = report_.json["groups"];
  for (const absl::string_view name : kGroups) {
    const auto it = groups.find(name);
    if (it == groups.end()) continue;
    const Sum& sum = it->second;
    Add("", absl::StrFormat("%-10s %15d parameters %12s in %d tensors", name, sum.parameters,
                            MiB(sum.bytes), sum.tensors));
    json[std::string(name)] = {
        {"tensors", sum.tensors}, {"parameters", sum.parameters}, {"stored_bytes", sum.bytes}};
  }
}

absl::StatusOr<std::unique_ptr<text::Tokenizer>> OpenTokenizer(const formats::ModelFiles& files,
                                                               const std::string& path) {
  if (files.gguf().empty()) return text::Tokenizer::Load(path);
  QUIRE_ASSIGN_OR_RETURN(const formats::OpenedGguf opened, formats::OpenGguf(files));
  QUIRE_ASSIGN_OR_RETURN(const text::GgufVocabulary vocabulary,
                         text::ReadGgufVocabulary(opened.gguf));
  return text::Tokenizer::FromGguf(vocabulary);
}

void Inspector::AddText(const formats::ModelFiles& files) {
  const auto tokenizer = OpenTokenizer(files, request_.model);
  if (!tokenizer.ok()) return AddProblem(tokenizer.status());
  ordered_json json = {{"kind", (*tokenizer)->kind()}, {"vocab_size", (*tokenizer)->vocab_size()}};
  std::string line =
      absl::StrCat((*tokenizer)->kind(), ", vocabulary ", (*tokenizer)->vocab_size());
  const std::pair<absl::string_view, std::optional<std::int32_t>> ids[] = {
      {"bos", (*tokenizer)->bos_token_id()},
      {"eos", (*tokenizer)->eos_token_id()},
      {"pad", (*tokenizer)->pad_token_id()}};
  for (const auto& [name, id] : ids) {
    if (!id) continue;
    json[absl::StrCat(name, "_token_id")] = *id;
    absl::StrAppend(&line, ", ", name, " ", *id);
  }
  Add("tokenizer", line);
  report_.json["tokenizer"] = json;
  AddTemplates(files, **tokenizer);
}

void Inspector::AddTemplates(const formats::ModelFiles& files, const text::Tokenizer& tokenizer) {
  const absl::StatusOr<text::TemplateFiles> found = text::ReadTemplateFiles(files);
  if (!found.ok()) return AddProblem(found.status());
  const text::FoundTemplates sources = text::FindTemplates(*found);
  const auto templates = text::ChatTemplates::Create(sources, tokenizer, {});
  if (!templates.ok()) return AddProblem(templates.status());
  const std::vector<std::string> names = (*templates)->names();
  report_.json["templates"] = {{"origin", sources.origin}, {"names", names}};
  if (!(*templates)->problem().empty()) {
    report_.json["templates"]["problem"] = (*templates)->problem();
  }
  if (!names.empty()) {
    Add("templates", absl::StrCat(absl::StrJoin(names, ", "), " of ", sources.origin));
  }
  if (names.empty() || !(*templates)->problem().empty()) {
    Add("templates",
        (*templates)->problem().empty() ? absl::string_view("none") : (*templates)->problem());
  }
}

void Inspector::AddPlan() {
  const absl::StatusOr<PlanReport> plan = MakePlan(request_);
  if (!plan.ok()) return AddProblem(plan.status());
  const absl::string_view name = request_.device() == DeviceKind::kCpu ? "CPU plan" : "GPU plan";
  for (std::size_t i = 0; i < plan->lines.size(); ++i) {
    Add(i == 0 ? name : absl::string_view(), plan->lines[i]);
  }
  report_.json["plan"] = plan->json;
}

ModelReport Inspector::Finish() {
  for (std::size_t i = 0; i < key_lines_.size(); ++i) Add(i == 0 ? "keys" : "", key_lines_[i]);
  for (const std::string& problem : problems_) Add("problem", problem);
  report_.json["problems"] = problems_;
  report_.is_servable = problems_.empty();
  return std::move(report_);
}

}  // namespace

ModelReport InspectModel(const PlanRequest& request) {
  return Inspector(request).Run();
}

}  // namespace quire::client

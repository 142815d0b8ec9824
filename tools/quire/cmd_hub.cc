// quire pull, list, rm: models of a Hugging Face hub in the cache of this user.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/json_text.h"
#include "base/status.h"
#include "hub/cache/cache_dir.h"
#include "hub/cache/model_cache.h"
#include "hub/cache/model_name.h"
#include "hub/hub_settings.h"
#include "hub/pull.h"
#include "tools/quire/client.h"
#include "tools/quire/pull_display.h"

namespace quire::client {
namespace {

struct NameOptions {
  std::string model;
  std::string gguf;
};

absl::StatusOr<hub::ModelName> ReadName(const NameOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(hub::ModelName name, hub::ParseModelName(options.model));
  if (options.gguf.empty()) return name;
  if (!name.file.empty() && name.file != options.gguf) {
    return absl::InvalidArgumentError(absl::StrCat("--gguf ", options.gguf, " and the name ",
                                                   options.model, " name different files"));
  }
  return hub::ParseModelName(
      hub::ModelName{name.repository, name.revision, options.gguf}.ToString());
}

void PrintPulled(const CommonOptions& common, const hub::ModelName& name,
                 const hub::PullResult& result) {
  if (common.json) {
    const nlohmann::ordered_json json = {{"name", name.ToString()},
                                         {"commit", result.commit},
                                         {"path", result.path},
                                         {"files", result.file_count},
                                         {"size_bytes", result.size_bytes},
                                         {"received_bytes", result.received_bytes}};
    std::printf("%s\n", JsonText(json).c_str());
    return;
  }
  std::printf("%s: %lld files, %s, received %s\n%s\n", name.ToString().c_str(),
              static_cast<long long>(result.file_count),
              hub::FormatBytes(result.size_bytes).c_str(),
              hub::FormatBytes(result.received_bytes).c_str(), result.path.c_str());
  if (result.is_split_gguf) {
    std::printf("quired does not read split GGUF files; join them with llama-gguf-split --merge\n");
  } else {
    std::printf("serve it with: quired %s\n", name.ToString().c_str());
  }
}

int RunPull(const CommonOptions& common, const NameOptions& options) {
  const absl::StatusOr<hub::ModelName> name = ReadName(options);
  if (!name.ok()) return FailWith(name.status(), kWrongUsage);
  const absl::StatusOr<hub::HubSettings> settings = hub::HubSettings::Read();
  if (!settings.ok()) return FailWith(settings.status(), kRequestFailed);
  if (settings->sends_unencrypted_token()) {
    std::fprintf(stderr,
                 "quire: warning: HF_ENDPOINT is %s, so the token is sent unencrypted; use an "
                 "https:// URL, or give no token\n",
                 settings->endpoint.c_str());
  }
  hub::StopSignal stop;
  hub::PullProgress progress;
  std::atomic<bool> is_interrupted{false};
  absl::StatusOr<hub::PullResult> result;
  {
    const PullDisplay display(&progress);
    InterruptGuard guard([&] {
      is_interrupted.store(true);
      stop.Request();
    });
    result = hub::Pull(*settings, *name, &stop, &progress);
  }
  if (result.ok()) {
    PrintPulled(common, *name, *result);
    return kOk;
  }
  if (is_interrupted.load()) {
    std::fprintf(stderr, "quire: interrupted; run the same command again to continue\n");
    return kInterrupted;
  }
  return FailWith(result.status(),
                  absl::IsUnavailable(result.status()) ? kCannotConnect : kRequestFailed);
}

// Returns the columns of the table of `quire list`.
std::vector<std::string> Columns(const hub::CachedModel& model) {
  const bool is_used = model.last_used > absl::InfinitePast();
  return {model.name(),
          model.revision.empty() ? "-" : model.revision,
          hub::FormatBytes(model.size_bytes),
          model.format,
          is_used ? absl::FormatTime("%Y-%m-%d", model.last_used, absl::LocalTimeZone()) : "-",
          model.path};
}

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const std::vector<std::string>& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      absl::StrAppendFormat(&line, "%-*s  ", static_cast<int>(widths[i]), row[i]);
    }
    std::printf("%s%s\n", line.c_str(), row.back().c_str());
  }
}

void PrintModelJson(const hub::CachedModel& model) {
  nlohmann::ordered_json json = {{"name", model.name()},
                                 {"repository", model.repository},
                                 {"revision", model.revision},
                                 {"commit", model.commit},
                                 {"file", model.file},
                                 {"format", model.format},
                                 {"size_bytes", model.size_bytes},
                                 {"path", model.path}};
  json["last_used"] = nullptr;
  if (model.last_used > absl::InfinitePast()) {
    json["last_used"] = absl::FormatTime(absl::RFC3339_sec, model.last_used, absl::UTCTimeZone());
  }
  std::printf("%s\n", JsonText(json).c_str());
}

int RunList(const CommonOptions& common) {
  const absl::StatusOr<std::string> root = hub::CacheDir();
  if (!root.ok()) return FailWith(root.status(), kRequestFailed);
  const absl::StatusOr<std::vector<hub::CachedModel>> models = hub::ModelCache(*root).List();
  if (!models.ok()) return FailWith(models.status(), kRequestFailed);
  if (common.json) {
    for (const hub::CachedModel& model : *models) PrintModelJson(model);
    return kOk;
  }
  if (models->empty()) {
    std::printf("no models in %s; download one with: quire pull ORG/NAME\n", root->c_str());
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "REVISION", "SIZE", "FORMAT", "LAST USED", "PATH"}};
  for (const hub::CachedModel& model : *models) rows.push_back(Columns(model));
  PrintTable(rows);
  return kOk;
}

int RunRemove(const CommonOptions& common, const NameOptions& options) {
  const absl::StatusOr<hub::ModelName> name = ReadName(options);
  if (!name.ok()) return FailWith(name.status(), kWrongUsage);
  const absl::StatusOr<std::string> root = hub::CacheDir();
  if (!root.ok()) return FailWith(root.status(), kRequestFailed);
  const absl::StatusOr<std::int64_t> freed = hub::ModelCache(*root).Remove(*name);
  if (!freed.ok()) return FailWith(freed.status(), kRequestFailed);
  if (common.json) {
    const nlohmann::ordered_json json = {{"name", name->ToString()}, {"freed_bytes", *freed}};
    std::printf("%s\n", JsonText(json).c_str());
  } else {
    std::printf("removed %s, freed %s\n", name->ToString().c_str(),
                hub::FormatBytes(*freed).c_str());
  }
  return kOk;
}

void AddName(CLI::App* command, NameOptions* options) {
  command->add_option("model", options->model, "ORG/NAME, ORG/NAME@REVISION or ORG/NAME:FILE.gguf")
      ->required();
  command->add_option("--gguf", options->gguf, "GGUF file of the repository, with its shards");
}

}  // namespace

void AddHub(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto pulled = std::make_shared<NameOptions>();
  CLI::App* pull = app->add_subcommand(
      "pull", "download a model of the Hugging Face hub; continues an interrupted download");
  AddName(pull, pulled.get());
  pull->callback([=] { *exit_code = RunPull(*common, *pulled); });

  app->add_subcommand("list", "list the downloaded models")->callback([=] {
    *exit_code = RunList(*common);
  });

  auto removed = std::make_shared<NameOptions>();
  CLI::App* remove =
      app->add_subcommand("rm", "remove a downloaded model, one revision or one GGUF file of it");
  AddName(remove, removed.get());
  remove->callback([=] { *exit_code = RunRemove(*common, *removed); });
}

}  // namespace quire::client

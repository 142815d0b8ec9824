#include "server/config/live_config.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status.h"
#include "quire/config/v1/config.pb.h"
#include "server/config/scalar_value.h"

namespace quire::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

// A hot key that must not exceed its value at start, which determined the size of allocated memory.
struct StartBound {
  absl::string_view path;
  std::int64_t (*value)(const DaemonOptions& o);
};
constexpr StartBound kStartBounds[] = {
    {"limits.max_logprobs",
     [](const DaemonOptions& o) { return std::int64_t{o.engine.limits.max_logprobs}; }},
    {"scheduler.max_running_sequences",
     [](const DaemonOptions& o) { return std::int64_t{o.engine.max_running_sequences}; }},
    {"scheduler.max_step_tokens",
     [](const DaemonOptions& o) { return std::int64_t{o.engine.max_step_tokens}; }},
};

// Returns a field list for CompareWithFields: `field` if it is set, otherwise nothing.
std::vector<const FieldDescriptor*> FieldIfSet(const Message& section,
                                               const FieldDescriptor* field) {
  const auto* reflection = section.GetReflection();
  const bool has = field->is_repeated() ? reflection->FieldSize(section, field) > 0
                                        : reflection->HasField(section, field);
  return has ? std::vector<const FieldDescriptor*>{field} : std::vector<const FieldDescriptor*>{};
}

// Appends every key that differs between the sections `old` and `next`, in schema order. Compares
// the values instead of their printed form, because all secrets print the same.
void CompareSections(const LayeredConfig& old_config, const Message& old,
                     const LayeredConfig& next_config, const Message& next,
                     const std::string& prefix, std::vector<ConfigChange>* changes) {
  for (int i = 0; i < old.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = old.GetDescriptor()->field(i);
    const std::string path = prefix + field->name();
    if (IsSection(field)) {
      CompareSections(old_config, old.GetReflection()->GetMessage(old, field), next_config,
                      next.GetReflection()->GetMessage(next, field), path + ".", changes);
      continue;
    }
    MessageDifferencer differencer;
    if (differencer.CompareWithFields(old, next, FieldIfSet(old, field), FieldIfSet(next, field))) {
      continue;
    }
    changes->push_back({.path = path,
                        .old_value = old_config.PrintValue(path, Spelling::kYaml),
                        .new_value = next_config.PrintValue(path, Spelling::kYaml),
                        .location = OriginOf(next_config.origins(), path),
                        .hot = RuleOf(field).hot()});
  }
}

// Returns why the change cannot be applied, or "" if it can.
std::string DescribeRefusal(const ConfigChange& change, const DaemonOptions& start,
                            const DaemonOptions& next) {
  if (!change.hot) {
    return absl::StrCat(change.location, ": ", change.path, " (", change.new_value, "; ",
                        change.old_value, " in effect) can only be changed by a restart");
  }
  for (const StartBound& bound : kStartBounds) {
    if (bound.path != change.path || bound.value(next) <= bound.value(start)) continue;
    return absl::StrCat(change.location, ": ", change.path, " (", bound.value(next),
                        ") is larger than its value at start (", bound.value(start),
                        "), for which memory was planned; a larger value needs a restart");
  }
  return "";
}

std::string JoinPaths(const std::vector<ConfigChange>& changes) {
  return absl::StrJoin(changes, ",", [](std::string* out, const ConfigChange& change) {
    absl::StrAppend(out, change.path);
  });
}

}  // namespace

LiveConfig::LiveConfig(ConfigSources sources, std::unique_ptr<const LayeredConfig> config,
                       probe::Registry* metrics)
    : sources_(std::move(sources)),
      start_options_(ToOptions(*config)),
      metrics_(metrics),
      version_(Version{.config = std::shared_ptr<const LayeredConfig>(std::move(config)),
                       .options = std::make_shared<const DaemonOptions>(start_options_)}) {
  if (metrics_ == nullptr) return;
  for (const char* result : {"applied", "unchanged", "rejected"}) CountReload(result, 0);
  PublishLoadTime();
}

std::shared_ptr<const LayeredConfig> LiveConfig::config() const {
  return version_.Get()->config;
}

std::shared_ptr<const DaemonOptions> LiveConfig::options() const {
  return version_.Get()->options;
}

absl::Status LiveConfig::Subscribe(std::string name, Prepare prepare, Files files) {
  MutexLock lock(&mutex_);
  FileStamps stamps;
  if (files) {
    QUIRE_ASSIGN_OR_RETURN(stamps, StampFiles(files(*options())));
  }
  absl::StatusOr<Apply> apply = prepare(*options());
  if (!apply.ok()) return apply.status();
  (*apply)();
  stamps_.merge(stamps);
  subscribers_.push_back(
      {.name = std::move(name), .prepare = std::move(prepare), .files = std::move(files)});
  return absl::OkStatus();
}

ReloadResult LiveConfig::Reload(bool dry_run) {
  MutexLock lock(&mutex_);
  ReloadResult result = ReloadLocked(dry_run);
  result.config_sha256 = config()->Sha256();
  if (!dry_run) Report(result);
  return result;
}

ReloadResult LiveConfig::ReloadLocked(bool dry_run) {
  ReloadResult result;
  std::shared_ptr<const LayeredConfig> next = LayeredConfig::Load(sources_, &result.errors);
  if (next == nullptr) return result;
  DaemonOptions next_options = ToOptions(*next);
  // After a `quire pull`, the name of a model may resolve to another revision than the loaded one.
  next_options.model.path = start_options_.model.path;
  auto options = std::make_shared<const DaemonOptions>(std::move(next_options));
  std::vector<ConfigChange> changes;
  CompareSections(*config(), config()->config(), *next, next->config(), "", &changes);
  for (ConfigChange& change : changes) {
    std::string refusal = DescribeRefusal(change, start_options_, *options);
    (refusal.empty() ? result.changed : result.rejected).push_back(std::move(change));
    if (!refusal.empty()) result.errors.push_back(std::move(refusal));
  }
  if (!result.ok()) return result;
  const std::vector<NamedFile> files = SubscribedFiles(*options);
  absl::StatusOr<FileStamps> stamps = WaitUntilSettled(files, stamps_);
  if (!stamps.ok()) {
    result.errors.emplace_back(stamps.status().message());
    return result;
  }
  const std::vector<Apply> applies = PrepareSubscribers(*options, &result);
  const absl::Status unchanged = CheckUnchanged(files, *stamps);
  if (!unchanged.ok()) result.errors.emplace_back(unchanged.message());
  if (dry_run || !result.ok()) return result;
  stamps_ = *std::move(stamps);
  version_.Set(Version{.config = std::move(next), .options = std::move(options)});
  for (const Apply& apply : applies) apply();
  return result;
}

std::vector<NamedFile> LiveConfig::SubscribedFiles(const DaemonOptions& next) {
  std::vector<NamedFile> files;
  for (const Subscriber& subscriber : subscribers_) {
    if (!subscriber.files) continue;
    for (NamedFile& file : subscriber.files(next)) files.push_back(std::move(file));
  }
  return files;
}

std::vector<LiveConfig::Apply> LiveConfig::PrepareSubscribers(const DaemonOptions& next,
                                                              ReloadResult* result) {
  std::vector<Apply> applies;
  for (const Subscriber& subscriber : subscribers_) {
    absl::StatusOr<Apply> apply = subscriber.prepare(next);
    if (apply.ok()) {
      applies.push_back(*std::move(apply));
    } else {
      result->errors.push_back(absl::StrCat(subscriber.name, ": ", apply.status().message()));
    }
  }
  return applies;
}

void LiveConfig::PublishLoadTime() {
  metrics_
      ->AddGauge("quire_config_last_reload_success_timestamp_seconds",
                 "Unix time at which the effective configuration was loaded.")
      .Set(absl::ToDoubleSeconds(config()->load_time() - absl::UnixEpoch()));
}

void LiveConfig::CountReload(absl::string_view result, double by) {
  metrics_
      ->AddCounter("quire_config_reloads_total", "Configuration reloads by result.",
                   {{"result", std::string(result)}})
      .Increment(by);
}

// Called after the new options were applied, so that the log lines use the new log level and file.
void LiveConfig::Report(const ReloadResult& result) {
  const char* const outcome = !result.ok()             ? "rejected"
                              : result.changed.empty() ? "unchanged"
                                                       : "applied";
  if (metrics_ != nullptr) {
    CountReload(outcome, 1);
    if (result.ok()) PublishLoadTime();
  }
  for (const ConfigChange& change : result.ok() ? result.changed : std::vector<ConfigChange>()) {
    log::Info("config", "changed",
              {{"key", change.path},
               {"from", change.old_value},
               {"to", change.new_value},
               {"location", change.location}});
  }
  for (const std::string& error : result.errors) {
    log::Error("config", "reload refused, the previous configuration stays in effect",
               {{"error", error}});
  }
  log::Info("config", "reload",
            {{"result", outcome},
             {"changed", JoinPaths(result.changed)},
             {"rejected", JoinPaths(result.rejected)},
             {"errors", static_cast<std::int64_t>(result.errors.size())},
             {"config_sha256", result.config_sha256}});
}

}  // namespace quire::server

#include "server/preloaded_constraints.h"

#include <future>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "engine/constraint/constraint_compiler.h"
#include "engine/constraint/constraint_grammar.h"
#include "engine/constraint/grammar_library.h"

namespace quire::server {
namespace {

using Result = engine::ConstraintCompiler::Result;

absl::Status AddEntryName(std::size_t index, const engine::ConstraintSpec& spec,
                          const absl::Status& status) {
  const absl::string_view kind = engine::ConstraintKindName(spec.kind);
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, absl::StrCat("constraint.", kind, ": "));
  return absl::Status(status.code(),
                      absl::StrCat("structured.preload[", index, "].", kind, ": ", message));
}

absl::Status NoStructuredOutput(std::size_t entries) {
  return absl::UnimplementedError(
      absl::StrCat("structured.preload: has ", entries,
                   " entries, but structured output is not available on this server"));
}

// Returns the forms in which requests use the constraint: from the first token, after optional
// reasoning, and after reasoning that the prompt has opened.
std::vector<engine::ConstraintSpec> MakeForms(const engine::ConstraintSpec& spec,
                                              const text::ToolFormat* reasoning) {
  std::vector<engine::ConstraintSpec> forms = {spec};
  if (reasoning == nullptr) return forms;
  for (const bool is_open : {false, true}) {
    engine::ConstraintSpec& after_reasoning = forms.emplace_back(spec);
    after_reasoning.tool_format = reasoning;
    after_reasoning.starts_after_reasoning = true;
    after_reasoning.opens_reasoning = is_open;
  }
  return forms;
}

}  // namespace

absl::Status CheckPreload(std::span<const engine::ConstraintSpec> specs) {
  if (!specs.empty() && engine::GrammarLibrary::Version().empty()) {
    return NoStructuredOutput(specs.size());
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const absl::Status status = engine::WriteConstraint(specs[i]).status();
    if (!status.ok()) return AddEntryName(i, specs[i], status);
  }
  return absl::OkStatus();
}

absl::Status PreloadConstraints(std::span<const engine::ConstraintSpec> specs,
                                const text::ToolFormat* reasoning,
                                engine::ConstraintCompiler* compiler) {
  if (specs.empty()) return absl::OkStatus();
  if (compiler == nullptr) return NoStructuredOutput(specs.size());
  std::vector<std::pair<std::size_t, std::future<Result>>> builds;  // entry index and result
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (engine::ConstraintSpec& spec : MakeForms(specs[i], reasoning)) {
      const auto answer = std::make_shared<std::promise<Result>>();
      builds.emplace_back(i, answer->get_future());
      compiler->Compile(std::move(spec),
                        [answer](Result result) { answer->set_value(std::move(result)); });
    }
  }
  // Equal constraints count once.
  std::set<std::shared_ptr<const engine::CompiledConstraint>> compiled;
  std::int64_t bytes = 0;
  for (auto& [entry, build] : builds) {
    Result result = build.get();
    if (!result.ok()) return AddEntryName(entry, specs[entry], result.status());
    const std::int64_t more = (*result)->MemoryBytes();
    if (compiled.insert(*std::move(result)).second) bytes += more;
  }
  if (const auto kept = static_cast<std::size_t>(compiler->GetCounts().cached_constraints);
      kept < compiled.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "structured.preload: the ", compiled.size(), " compiled constraints have ", bytes,
        " bytes, but only ", kept, " fit into the cache; increase structured.cache_bytes"));
  }
  log::Info("server", "constraints compiled",
            {{"count", static_cast<std::int64_t>(compiled.size())}, {"bytes", bytes}});
  return absl::OkStatus();
}

}  // namespace quire::server

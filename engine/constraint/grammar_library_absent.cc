// Implementation for a build without xgrammar (cmake/xgrammar.cmake).

#include "base/error_reason.h"
#include "engine/constraint/grammar_library.h"

namespace quire::engine {

struct GrammarLibrary::Impl {};

absl::string_view GrammarLibrary::Version() {
  return "";
}

GrammarLibrary::~GrammarLibrary() = default;

absl::StatusOr<std::unique_ptr<GrammarLibrary>> GrammarLibrary::Create(std::vector<std::string>,
                                                                       const GrammarLimits&) {
  return WithReason(absl::UnimplementedError(
                        "this build does not support structured output (it has no xgrammar)"),
                    Reason::kFeatureUnsupported, {{"feature", "structured output"}});
}

absl::StatusOr<std::shared_ptr<const CompiledConstraint>> GrammarLibrary::Compile(
    absl::string_view, const std::stop_token&, std::vector<std::string>) const {
  return absl::UnimplementedError(
      "this build does not support structured output (it has no xgrammar)");
}

}  // namespace quire::engine

// Fuzzes constraints. The first byte selects the kind, and whether the rest is its text or the
// input of a generator (constraint_writer.h). The second selects a walk. The constraint is
// compiled, and the tokens that its masks allow are accepted.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "engine/constraint/constraint_grammar.h"
#include "engine/constraint/grammar_library.h"
#include "tests/fuzz/constraint_writer.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using quire::engine::ConstraintKind;
using quire::engine::GrammarLibrary;

constexpr std::int32_t kEnd = 256;
// The limits keep a run short.
constexpr quire::engine::GrammarLimits kLimits{
    .compile_steps = 1 << 20, .compile_bytes = 16 << 20, .token_steps = 1 << 16, .states = 1 << 16};

const GrammarLibrary* Library() {
  static const GrammarLibrary* const library = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    tokens.emplace_back();
    auto made = GrammarLibrary::Create(std::move(tokens), kLimits);
    return made.ok() ? made->release() : nullptr;
  }();
  return library;
}

// A rejection is the client's error and names a reason.
void CheckRefusal(const absl::Status& status) {
  const auto reason = quire::GetErrorReason(status);
  QUIRE_CHECK(reason.has_value() && reason->reason == quire::Reason::kBadConstraint);
  QUIRE_CHECK(!absl::StrContains(status.message(), "error of the server"));
}

void Walk(const std::string& grammar, std::uint8_t step) {
  const auto constraint = Library()->Compile(grammar);
  if (!constraint.ok()) return CheckRefusal(constraint.status());
  const auto matcher = (*constraint)->NewMatcher({&kEnd, 1});
  std::vector<std::uint32_t> words((*constraint)->mask_words());
  for (int i = 0; i < 12; ++i) {
    const auto summary = matcher->FillMask(words);
    QUIRE_CHECK(matcher->CheckIntegrity().ok());
    if (!summary.ok()) return CheckRefusal(summary.status());
    // No allowed token leads to a state without allowed tokens.
    QUIRE_CHECK(summary->may_end || summary->may_continue);
    if (!summary->may_continue) return;
    std::vector<std::int32_t> allowed;
    for (std::int32_t token = 0; token < kEnd; ++token) {
      if ((words[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0) {
        allowed.push_back(token);
      }
    }
    const std::int32_t next = allowed[step * static_cast<std::size_t>(i + 1) % allowed.size()];
    const absl::Status accepted = matcher->Accept(next);
    QUIRE_CHECK(!absl::IsInvalidArgument(accepted));
    if (!accepted.ok()) return CheckRefusal(accepted);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  quire::engine::ConstraintSpec spec;
  spec.kind = data[0] % 3 == 0   ? ConstraintKind::kJsonSchema
              : data[0] % 3 == 1 ? ConstraintKind::kRegex
                                 : ConstraintKind::kGrammar;
  const absl::string_view rest = quire::fuzz::AsText(data + 2, size - 2);
  spec.text = data[0] < 128 ? std::string(rest) : quire::fuzz::WrittenConstraint(spec.kind, rest);
  const auto grammar = quire::engine::WriteConstraint(spec);
  if (!grammar.ok()) {
    CheckRefusal(grammar.status());
  } else if (Library() != nullptr) {
    Walk(grammar->text, data[1]);
  }
  return 0;
}

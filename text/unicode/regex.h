#pragma once

// Regular expressions of tokenizer files on PCRE2, with the meaning they have for Oniguruma
// (tokenizer.json) or for the Rust crate fancy-regex (tiktoken and Tekken files).
//
// Place:      below normalizer, splitter and decoder; the only user of PCRE2.
// Invariants: interpreter and JIT give the same matches; where JIT compilation is not possible the
//             interpreter runs. Match and depth limits are off: patterns come from the model's
//             owner.
// Threads:    Regex is immutable; a RegexScratch serves one thread at a time, for any number of
//             them. Source:     pcre2api(3); docs/tokenizers.md has the table of rewrites.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text {

// Match data and stack for one thread.
class RegexScratch {
 public:
  // `use_jit` false runs the interpreter, as on machines that forbid writable code.
  explicit RegexScratch(bool use_jit = true);
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  // Errors: INVALID_ARGUMENT with the reason and the offset in the pattern.
  static absl::StatusOr<Regex> FromOniguruma(absl::string_view pattern);
  static absl::StatusOr<Regex> FromRust(absl::string_view pattern);
  static absl::StatusOr<Regex> FromLiteral(absl::string_view text);
  static absl::StatusOr<Regex> FromPcre(absl::string_view pattern);

  // Calls `on_match(begin, end)` for all matches from left to right; none overlap, and none is
  // empty where the one before it ended. REQUIRES: `subject` is UTF-8. Errors: INTERNAL if PCRE2
  // gives up.
  absl::Status ForEachMatch(absl::string_view subject, RegexScratch& scratch,
                            absl::FunctionRef<void(std::size_t, std::size_t)> on_match) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled);
  static absl::StatusOr<Regex> Compile(absl::string_view pattern, std::uint32_t options);

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace quire::text

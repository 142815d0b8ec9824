#pragma once

// Regular expressions of tokenizer files, run by PCRE2 with the semantics of Oniguruma
// (tokenizer.json) or of the Rust crate fancy-regex (tiktoken and Tekken files).
//
// Place:      below normalizer, splitter and decoder; the only user of PCRE2.
// Invariants: interpreter and JIT give the same matches; the interpreter runs on machines that
//             forbid JIT compilation. Match and depth limits are disabled, because patterns come
//             from the model's owner.
// Threads:    Regex is immutable; a RegexScratch serves one thread at a time, for any number of
//             regexes.
// Source:     pcre2api(3); docs/tokenizers.md has the table of rewrites.

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
  // If `use_jit` is false, the interpreter runs, as on machines that forbid JIT compilation.
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
  // The functions return INVALID_ARGUMENT with the cause and the offset in the pattern.
  static absl::StatusOr<Regex> FromOniguruma(absl::string_view pattern);
  static absl::StatusOr<Regex> FromRust(absl::string_view pattern);
  static absl::StatusOr<Regex> FromLiteral(absl::string_view text);
  static absl::StatusOr<Regex> FromPcre(absl::string_view pattern);

  // Calls `on_match(begin, end)` for all matches from left to right. Matches do not overlap, and an
  // empty match does not start at the end of the previous one. Returns INTERNAL if PCRE2 fails.
  // REQUIRES: `subject` is UTF-8.
  absl::Status ForEachMatch(absl::string_view subject, RegexScratch& scratch,
                            absl::FunctionRef<void(std::size_t, std::size_t)> on_match) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled);
  static absl::StatusOr<Regex> Compile(absl::string_view pattern, std::uint32_t options);

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace quire::text

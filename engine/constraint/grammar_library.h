#pragma once

// Wraps the grammar library xgrammar, which compiles a grammar in text form to a constraint. Only
// one source file uses the library's types, headers and exceptions. A build without the library
// uses another source file, whose functions return UNIMPLEMENTED.
//
// Place:      below the code that writes grammars; above xgrammar.
// Invariants: every failure of the library becomes a Status, and the library prints nothing.
//             GrammarLimits bounds the time and memory of every call, for any grammar.
// Threads:    Compile may be called from any thread. constraint.h states the rules for its result.
// Lifetime:   constraints may outlive the library object.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/constraint.h"

namespace quire::engine {

// Limits are counts instead of times, so that accepting a constraint does not depend on the
// machine's speed. A step visits one state of the library's parser and takes about 20 ns. A stored
// state takes about 50 bytes, and each byte of JSON output stores one or two states.
struct GrammarLimits {
  std::int64_t compile_steps = std::int64_t{128} << 20;
  std::int64_t compile_bytes = std::int64_t{256} << 20;  // size of precomputed masks
  std::int64_t token_steps = 4 << 20;                    // per accepted token, and per mask
  std::int64_t states = 1 << 20;  // maximum number of stored states per matcher
};

class GrammarLibrary {
 public:
  // Returns name and version of the library, or "" in a build without it.
  static absl::string_view Version();

  // `tokens` contains the bytes of each token, by id. Tokens that do not represent text, such as
  // special tokens and padding, are empty. Takes about a microsecond per token. Returns
  // UNIMPLEMENTED / FEATURE_UNSUPPORTED in a build without the library.
  static absl::StatusOr<std::unique_ptr<GrammarLibrary>> Create(std::vector<std::string> tokens,
                                                                const GrammarLimits& limits = {});
  ~GrammarLibrary();
  GrammarLibrary(const GrammarLibrary&) = delete;
  GrammarLibrary& operator=(const GrammarLibrary&) = delete;

  // Compiles a grammar in the library's EBNF that starts at the rule `root`. If the library rejects
  // the grammar or a limit is exceeded, returns BAD_CONSTRAINT, stage `compile`, with the library's
  // message or the limit. (Matchers report exceeded limits with stage `limit`.) After a stop
  // request, returns CANCELLED within a few milliseconds; parsing a very long grammar can delay
  // this. `unenforced` becomes the constraint's unenforced().
  absl::StatusOr<std::shared_ptr<const CompiledConstraint>> Compile(
      absl::string_view grammar, const std::stop_token& stop = {},
      std::vector<std::string> unenforced = {}) const;

 private:
  struct Impl;
  explicit GrammarLibrary(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace quire::engine

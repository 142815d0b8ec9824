#pragma once

// The grammar library behind a wall: takes a grammar as text and gives a compiled constraint. Its
// exceptions, headers and types stay in one source; a build without it has another source in its
// place, which refuses.
//
// Place:      below what makes grammars of specs; above xgrammar.
// Invariants: every failure of the library is a Status; what it would print goes to no stream. What
//             a call takes is bounded by GrammarLimits, whatever the grammar.
// Threads:    Compile and what it returns as constraint.h says: any.
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

// Counts, and no times: whether a constraint is served does not depend on the machine. A step is a
// look at one state of the library's parser, and takes some 20 ns; a state that is kept has some 50
// bytes, and text of JSON needs one to two for each byte.
struct GrammarLimits {
  std::int64_t compile_steps = std::int64_t{128} << 20;
  std::int64_t compile_bytes = std::int64_t{256} << 20;  // of masks that are made beforehand
  std::int64_t token_steps = 4 << 20;                    // of accepting a token, and of one mask
  std::int64_t states = 1 << 20;                         // that one matcher keeps
};

class GrammarLibrary {
 public:
  // Name and version of the library, or "" in a build without it.
  static absl::string_view Version();

  // `tokens` has the bytes of each row of the output matrix, empty for rows that no text reaches:
  // special tokens, padding. Takes about a microsecond a token. UNIMPLEMENTED / FEATURE_UNSUPPORTED
  // in a build without the library.
  static absl::StatusOr<std::unique_ptr<GrammarLibrary>> Create(std::vector<std::string> tokens,
                                                                const GrammarLimits& limits = {});
  ~GrammarLibrary();
  GrammarLibrary(const GrammarLibrary&) = delete;
  GrammarLibrary& operator=(const GrammarLibrary&) = delete;

  // `grammar` is in the library's EBNF, its start is `root`. BAD_CONSTRAINT, stage `compile`, with
  // the library's words, or the limit that it exceeds; what its matchers exceed is of stage
  // `limit`. CANCELLED when it was told to stop, which it sees where it counts steps: within some
  // ms, but for the reading of a grammar that is very long. `unenforced` is what
  // unenforced() of the constraint returns.
  absl::StatusOr<std::shared_ptr<const CompiledConstraint>> Compile(
      absl::string_view grammar, const std::stop_token& stop = {},
      std::vector<std::string> unenforced = {}) const;

 private:
  class Impl;
  explicit GrammarLibrary(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace quire::engine

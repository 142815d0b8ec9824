#pragma once

// A wrapper of the grammar library: takes a grammar as text and returns a compiled constraint. Only
// one source file uses the library's types, headers and exceptions. A build without the library
// uses another source file, whose functions return UNIMPLEMENTED.
//
// Place:      below the code that writes grammars; above xgrammar.
// Invariants: every failure of the library becomes a Status, and the library prints nothing.
//             GrammarLimits bounds the time and memory of every call, for any grammar.
// Threads:    Compile, and what it returns as in constraint.h, from any thread.
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
// state has about 50 bytes, and JSON text needs one to two of them per byte.
struct GrammarLimits {
  std::int64_t compile_steps = std::int64_t{128} << 20;
  std::int64_t compile_bytes = std::int64_t{256} << 20;  // size of precomputed masks
  std::int64_t token_steps = 4 << 20;                    // for accepting a token, and for one mask
  std::int64_t states = 1 << 20;  // maximum number of stored states per matcher
};

class GrammarLibrary {
 public:
  // Returns name and version of the library, or "" in a build without it.
  static absl::string_view Version();

  // `tokens` contains the bytes of each row of the output matrix. Rows that text cannot produce,
  // such as special tokens and padding, are empty. Takes about a microsecond per token. Returns
  // UNIMPLEMENTED / FEATURE_UNSUPPORTED in a build without the library.
  static absl::StatusOr<std::unique_ptr<GrammarLibrary>> Create(std::vector<std::string> tokens,
                                                                const GrammarLimits& limits = {});
  ~GrammarLibrary();
  GrammarLibrary(const GrammarLibrary&) = delete;
  GrammarLibrary& operator=(const GrammarLibrary&) = delete;

  // Compiles a grammar in the library's EBNF that starts at the rule `root`. Returns
  // BAD_CONSTRAINT, stage `compile`, with the library's message or the exceeded limit; matchers
  // return stage `limit`. Returns CANCELLED within some ms after a stop was requested, or later
  // while it parses a very long grammar. The constraint's unenforced() returns `unenforced`.
  absl::StatusOr<std::shared_ptr<const CompiledConstraint>> Compile(
      absl::string_view grammar, const std::stop_token& stop = {},
      std::vector<std::string> unenforced = {}) const;

 private:
  class Impl;
  explicit GrammarLibrary(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace quire::engine

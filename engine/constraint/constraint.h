#pragma once

// The engine's interface to structured output: the spec of a request, its compiled form, and the
// matcher of one choice. The matcher computes the mask of allowed next tokens.
//
//   ConstraintSpec -> ConstraintCompiler -> CompiledConstraint -> ConstraintMatcher, one per choice
//
// Place:      between the API, which creates specs, and the engine, which gets masks from matchers.
//             Does not depend on the scheduler, requests or a grammar library.
// Invariants: a mask has one bit per token id: bit t % 32 of word t / 32 is 1 if token t is
//             allowed. Bits at and above the vocabulary size are 0. The mask depends only on the
//             spec, the tokenizer, the end tokens and the tokens accepted so far. A special token
//             is allowed only where the constraint contains it, and end tokens exactly where the
//             text may end.
// Threads:    a CompiledConstraint is immutable. A matcher is used by one thread at a time; several
//             matchers of one constraint may run in parallel.
// Lifetime:   a matcher keeps its compiled constraint alive.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text {
struct ToolFormat;
}

namespace quire::engine {

enum class ConstraintKind : std::uint8_t {
  kJsonSchema,      // text: a JSON Schema
  kRegex,           // text: a regular expression, anchored at both ends
  kGrammar,         // text: EBNF that starts at the rule `root`
  kJsonObject,      // any JSON object
  kChoice,          // choices: the allowed texts
  kStructuralTags,  // tags: free text with constrained sections
  kToolCalls,       // tags: tool calls in the format of the model, with or without free text
};
inline constexpr int kNumConstraintKinds = 7;
absl::string_view ConstraintKindName(ConstraintKind kind);  // "json_schema" ...

// The white space that is allowed between two JSON tokens.
enum class JsonWhitespace : std::uint8_t {
  kBounded,  // none, a space, or a newline and an indent, so that pretty-printing is allowed
  kCompact,  // the output of Python's json.dumps: ", " and ": "
};

// The treatment of schema keywords that cannot be enforced exactly.
enum class UnenforcedPolicy : std::uint8_t {
  kRefuse,    // the constraint is rejected
  kAnnotate,  // the keywords are ignored and listed in CompiledConstraint::unenforced()
};

struct ConstraintTag {
  std::string begin = {};
  ConstraintKind kind = ConstraintKind::kJsonSchema;  // kJsonSchema, kRegex or kGrammar
  std::string text = {};                              // in the syntax of `kind`
  std::string end = {};
  std::string field = {};  // request field that contains `text`, for errors

  friend bool operator==(const ConstraintTag&, const ConstraintTag&) = default;
};

// A plain value. Fields that `kind` does not use keep their defaults.
struct ConstraintSpec {
  ConstraintKind kind = ConstraintKind::kJsonObject;
  std::string text;
  JsonWhitespace whitespace = JsonWhitespace::kBounded;
  UnenforcedPolicy unenforced = UnenforcedPolicy::kRefuse;
  std::vector<std::string> choices;
  std::vector<ConstraintTag> tags;    // for tool calls: the name and the arguments of each tool
  std::vector<std::string> triggers;  // texts that end free text; each is the beginning of a tag
  bool at_least_one_tag = false;
  bool stop_after_first_tag = false;
  // The format of the model. Set for kToolCalls, where it must support forced calls, and if
  // starts_after_reasoning is set.
  const text::ToolFormat* tool_format = nullptr;
  // With starts_after_reasoning: the prompt ends inside a reasoning section, so the output begins
  // with the rest of that section.
  bool opens_reasoning = false;
  // For kToolCalls: free text is allowed until the trigger of the format.
  bool calls_are_optional = false;
  // The constraint begins after the reasoning section.
  bool starts_after_reasoning = false;
  // If true, ResolveConstraint clears starts_after_reasoning when the output cannot contain
  // reasoning after this prompt. ResolveConstraint always clears this flag, so compiled specs never
  // have it.
  bool start_depends_on_prompt = false;

  std::int64_t InputBytes() const;  // total size of the client's texts in the spec
  friend bool operator==(const ConstraintSpec&, const ConstraintSpec&) = default;
};

// Returns the number of words of a mask for `vocab_size` tokens.
constexpr std::uint32_t MaskWords(std::uint32_t vocab_size) {
  return (vocab_size + 31) / 32;
}

// Summary of a mask. If only may_end is set, the choice ends without another token. If neither is
// set, no token is allowed. This only happens if the vocabulary cannot spell any continuation.
struct MaskSummary {
  bool may_end = false;       // the text so far is complete
  bool may_continue = false;  // a token that is not an end token is allowed
};

// The state of one choice in a constraint.
class ConstraintMatcher {
 public:
  virtual ~ConstraintMatcher() = default;

  // Advances by one token. An end token is accepted where the text may end, and no token is
  // accepted after it. If the mask excludes the token, returns INVALID_ARGUMENT and leaves the
  // state unchanged. If the token needs too many parser states or steps (GrammarLimits), returns
  // RESOURCE_EXHAUSTED / BAD_CONSTRAINT, stage `limit`, and all later calls fail as well. The
  // numbers of states and steps grow with the number of ways to parse the accepted tokens.
  virtual absl::Status Accept(std::int32_t token) = 0;

  // Writes the mask of the next token. Errors: RESOURCE_EXHAUSTED as in Accept. REQUIRES:
  // words.size() == mask_words() of the constraint.
  virtual absl::StatusOr<MaskSummary> FillMask(std::span<std::uint32_t> words) = 0;

  virtual std::uint32_t num_accepted() const = 0;

  // Returns an independent matcher in the same state.
  virtual std::unique_ptr<ConstraintMatcher> Fork() const = 0;

  virtual absl::Status CheckIntegrity() const = 0;
};

class CompiledConstraint {
 public:
  explicit CompiledConstraint(std::vector<std::string> unenforced = {})
      : unenforced_(std::move(unenforced)) {}
  virtual ~CompiledConstraint() = default;

  // Returns a matcher that has accepted no token. `end_tokens` are the ids that end an output: the
  // model's EOS tokens, and those stop ids of the request that are special tokens. Cheap compared
  // to a step.
  virtual std::unique_ptr<ConstraintMatcher> NewMatcher(
      std::span<const std::int32_t> end_tokens) const = 0;

  virtual std::uint32_t vocab_size() const = 0;  // number of token ids, including padding
  virtual std::int64_t MemoryBytes() const = 0;  // memory that the object uses
  std::uint32_t mask_words() const { return MaskWords(vocab_size()); }

  // Returns JSON pointers, as URI fragments such as "#/properties/a/not", to the schema keywords
  // that are not enforced. For tags and tools, each pointer is prefixed with the name of the
  // request field that contains the schema. Empty unless the spec has UnenforcedPolicy::kAnnotate.
  const std::vector<std::string>& unenforced() const { return unenforced_; }

 private:
  const std::vector<std::string> unenforced_;
};

// Returns an INVALID_ARGUMENT / BAD_CONSTRAINT error with metadata `stage`. Long messages are
// truncated, because they may quote client input.
absl::Status BadConstraint(absl::string_view stage, absl::string_view message);

// Returns the whole characters in the first `max_bytes` of the text, followed by "..." if the text
// is longer. REQUIRES: `text` is UTF-8.
std::string Shorten(absl::string_view text, std::size_t max_bytes);

}  // namespace quire::engine

#pragma once

// Structured output as the engine sees it: what a request asks for, what was made of it, and the
// state of one choice, which says before each token what may come next.
//
//   ConstraintSpec -> ConstraintCompiler -> CompiledConstraint -> ConstraintMatcher, one a choice
//
// Place:      between the wire, which makes specs, and the engine, which asks matchers for masks.
//             Knows no scheduler, no request and no grammar library.
// Invariants: a mask has one bit a row of the output matrix: token t is bit t % 32 of word t / 32,
//             1 = allowed; bits at and above the vocabulary are 0. It depends on the spec, the
//             tokenizer, the end tokens and the tokens accepted so far, and on nothing else.
//             Special tokens without a place in the constraint are never allowed; end tokens are
//             allowed exactly where the text may end.
// Threads:    a CompiledConstraint is immutable: any. A matcher belongs to one thread at a time;
//             matchers of the same constraint run beside each other.
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
  kRegex,           // text: an expression, anchored at both ends
  kGrammar,         // text: EBNF whose start is `root`
  kJsonObject,      // any object
  kChoice,          // choices: the only answers
  kStructuralTags,  // tags: free text with constrained sections
  kToolCalls,       // tags: tool calls in the format of the model, alone or in free text
};
inline constexpr int kNumConstraintKinds = 7;
absl::string_view ConstraintKindName(ConstraintKind kind);  // "json_schema" ...

// Which white space may stand between two tokens of JSON.
enum class JsonWhitespace : std::uint8_t {
  kBounded,  // none, a space, or a newline and an indent; pretty-printed documents are among them
  kCompact,  // what Python's json.dumps writes: ", " and ": "
};

// The treatment of keywords of a schema that cannot be enforced exactly.
enum class UnenforcedPolicy : std::uint8_t {
  kRefuse,    // the constraint is refused
  kAnnotate,  // they are left out, and CompiledConstraint::unenforced() names them
};

struct ConstraintTag {
  std::string begin = {};
  ConstraintKind kind = ConstraintKind::kJsonSchema;  // kJsonSchema, kRegex or kGrammar
  std::string text = {};                              // of that kind
  std::string end = {};
  std::string field = {};  // where the client wrote `text`, for errors

  friend bool operator==(const ConstraintTag&, const ConstraintTag&) = default;
};

// A plain value. Fields that its kind does not name are as here.
struct ConstraintSpec {
  ConstraintKind kind = ConstraintKind::kJsonObject;
  std::string text;
  JsonWhitespace whitespace = JsonWhitespace::kBounded;
  UnenforcedPolicy unenforced = UnenforcedPolicy::kRefuse;
  std::vector<std::string> choices;
  std::vector<ConstraintTag> tags;    // of tool calls: the name and the arguments of each tool
  std::vector<std::string> triggers;  // free text ends where one begins; each tag begins with one
  bool at_least_one_tag = false;
  bool stop_after_first_tag = false;
  // kToolCalls: how the model writes them, of formats that can be forced; whether the prompt ends
  // inside a section of reasoning, which comes first; and whether the text is free but for what the
  // trigger of the format begins, of formats that have one.
  const text::ToolFormat* tool_format = nullptr;
  bool opens_reasoning = false;
  bool calls_are_optional = false;
  // With tool_format: the constraint begins behind the section of reasoning; and whether it does so
  // unless the prompt shows that there is none, which is known, and this false, before anything is
  // compiled.
  bool starts_after_reasoning = false;
  bool start_follows_prompt = false;

  std::int64_t InputBytes() const;  // of everything that the client sent
  friend bool operator==(const ConstraintSpec&, const ConstraintSpec&) = default;
};

// Words of a mask over `vocab_size` rows.
constexpr std::uint32_t MaskWords(std::uint32_t vocab_size) {
  return (vocab_size + 31) / 32;
}

// What a mask says beside its bits. Finished: may_end and not may_continue; the choice ends without
// another token. Neither: no token is left, which only a vocabulary that cannot spell the language
// brings about.
struct MaskSummary {
  bool may_end = false;       // the text so far is in the language
  bool may_continue = false;  // a token that is not an end token is allowed
};

// The state of one choice.
class ConstraintMatcher {
 public:
  virtual ~ConstraintMatcher() = default;

  // Goes on by one token. An end token is accepted where the text may end, and nothing after it.
  // Errors: INVALID_ARGUMENT for a token that the mask excludes, and the state is as before;
  // RESOURCE_EXHAUSTED / BAD_CONSTRAINT, stage `limit`, when the state, or the work
  // for the token, outgrows its limit: both grow with the ways in which the tokens so far may be
  // read. What has failed so once fails so from then on.
  virtual absl::Status Accept(std::int32_t token) = 0;

  // The mask of the next token. Errors: RESOURCE_EXHAUSTED, as Accept has it. REQUIRES:
  // words.size() == mask_words() of the constraint.
  virtual absl::StatusOr<MaskSummary> FillMask(std::span<std::uint32_t> words) = 0;

  // Takes back the last `count` accepted tokens. REQUIRES: count <= num_accepted().
  virtual void Rollback(std::uint32_t count) = 0;
  virtual std::uint32_t num_accepted() const = 0;

  // A matcher in the same state that goes its own way.
  virtual std::unique_ptr<ConstraintMatcher> Fork() const = 0;

  // Proves what the implementation can prove of its state.
  virtual absl::Status CheckIntegrity() const = 0;
};

class CompiledConstraint {
 public:
  explicit CompiledConstraint(std::vector<std::string> unenforced = {})
      : unenforced_(std::move(unenforced)) {}
  virtual ~CompiledConstraint() = default;

  // A matcher before the first token. `end_tokens` are the ids that end an answer: the model's set
  // of EOS, and those stop ids of the request that are special tokens. Cheap beside a step.
  virtual std::unique_ptr<ConstraintMatcher> NewMatcher(
      std::span<const std::int32_t> end_tokens) const = 0;

  virtual std::uint32_t vocab_size() const = 0;  // rows of the output matrix
  virtual std::int64_t MemoryBytes() const = 0;  // what keeping it costs
  std::uint32_t mask_words() const { return MaskWords(vocab_size()); }

  // JSON pointers to the keywords of its schemas that it does not enforce, as URI fragments:
  // "#/properties/a/not". The field of the schema comes before those of a tag or a tool. Empty
  // unless the spec has UnenforcedPolicy::kAnnotate.
  const std::vector<std::string>& unenforced() const { return unenforced_; }

 private:
  const std::vector<std::string> unenforced_;
};

// INVALID_ARGUMENT / BAD_CONSTRAINT with metadata `stage`. A message that repeats much of what a
// client sent is cut.
absl::Status BadConstraint(absl::string_view stage, absl::string_view message);

// The whole characters in the first `max_bytes` of the text, with "..." where that is not all.
// REQUIRES: `text` is UTF-8.
std::string Shortened(absl::string_view text, std::size_t max_bytes);

}  // namespace quire::engine

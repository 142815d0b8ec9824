#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "base/thread_priority.h"
#include "engine/constraint/grammar_library.h"

namespace xgrammar {

// The patched library calls these functions instead of writing to standard error.
[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

// Throws the exception that the library also throws for other failures. CatchErrors catches it.
void LogFatalImpl(const std::string&, int, const std::string& message) {
  std::rethrow_exception(std::make_exception_ptr(XGrammarError(message)));
}

// Drops warnings, for example about rejected tokens, because the caller gets the result anyway.
void LogMessageImpl(const std::string&, int, int, const std::string&) {}

// The counters that the patched library updates (cmake/xgrammar/quire_counters.inc): steps, bytes
// of precomputed masks, stored parser states, and nesting of repetitions.
extern __thread std::int64_t granted_steps;
__thread std::int64_t granted_steps = 0;
void RequestSteps();
void CountMaskBytes(std::size_t bytes);
void CountStates(std::size_t states);
void CountNesting(int levels);  // negative when nesting decreases

}  // namespace xgrammar

namespace quire::engine {

namespace {

constexpr std::uint32_t kMaxErrorBytes = 500;

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

struct Allowance {
  std::int64_t limit = kNoLimit;
  std::int64_t left = limit;
};

// The limits of one call of the library.
struct LibraryBudget {
  Allowance steps;
  Allowance mask_bytes;
  Allowance states;
  Allowance nesting;                      // nesting of repetitions
  const std::stop_token* stop = nullptr;  // null for calls that cannot be stopped
};

constexpr std::int64_t kMaxNesting = 1000;

// Number of steps after which a call checks for a stop request and yields the processor; about 0.15
// ms.
constexpr std::int64_t kStepsPerGrant = 1 << 13;

thread_local LibraryBudget library_budget;  // budget of the current call on this thread

struct OverBudget {
  std::int64_t limit;
  const char* unit;
};

// Makes `budget` the budget of the current thread until the end of the scope. Then writes the
// remaining budget back to `budget`.
class BudgetScope {
 public:
  explicit BudgetScope(LibraryBudget* budget) : budget_(*budget) {
    library_budget = *budget;
    xgrammar::granted_steps = 0;
  }
  ~BudgetScope() {
    library_budget.steps.left += std::exchange(xgrammar::granted_steps, 0);
    budget_ = std::exchange(library_budget, LibraryBudget{});
  }
  BudgetScope(const BudgetScope&) = delete;
  BudgetScope& operator=(const BudgetScope&) = delete;

 private:
  LibraryBudget& budget_;
};

struct StopException {};

void TakeFrom(Allowance* allowance, std::int64_t amount, const char* unit) {
  allowance->left -= amount;
  if (allowance->left < 0) {
    std::rethrow_exception(std::make_exception_ptr(OverBudget{allowance->limit, unit}));
  }
}

// Grants more steps to a call that has used up, or slightly exceeded, the steps granted so far.
void GrantSteps() {
  if (library_budget.stop != nullptr) {
    if (library_budget.stop->stop_requested()) {
      std::rethrow_exception(std::make_exception_ptr(StopException()));
    }
    YieldAtLowPriority();
  }
  Allowance& steps = library_budget.steps;
  TakeFrom(&steps, -xgrammar::granted_steps, "steps");
  xgrammar::granted_steps = std::min(kStepsPerGrant, steps.left);
  steps.left -= xgrammar::granted_steps;
}

// Runs a call of the library and converts exceptions to a Status.
template <typename Call>
absl::Status CatchErrors(LibraryBudget* budget, const Call& call) {
  try {
    const BudgetScope scope(budget);
    call();
    return absl::OkStatus();
  } catch (const OverBudget& over) {
    const std::string what =
        absl::StrCat("the constraint exceeds the limit of ", over.limit, " ", over.unit);
    if (budget->mask_bytes.limit != kNoLimit) return BadConstraint("compile", what);
    return WithReason(absl::ResourceExhaustedError(what), Reason::kBadConstraint,
                      {{"stage", "limit"}});
  } catch (const StopException&) {
    return absl::CancelledError("constraint: compilation was stopped");
  } catch (const std::exception& error) {
    return BadConstraint(
        "compile",
        absl::StrCat("constraint: ", absl::string_view(error.what()).substr(0, kMaxErrorBytes)));
  } catch (...) {
    return BadConstraint("compile", "constraint: the grammar library failed");
  }
}

class XgrammarMatcher final : public ConstraintMatcher {
 public:
  XgrammarMatcher(xgrammar::GrammarMatcher matcher, const GrammarLimits& limits,
                  std::uint32_t vocab_size, std::vector<std::int32_t> end_tokens)
      : matcher_(std::move(matcher)),
        limits_(limits),
        vocab_size_(vocab_size),
        end_tokens_(std::move(end_tokens)) {}

  absl::Status Accept(std::int32_t token) override {
    if (!failure_.ok()) return failure_;
    bool accepted = false;
    if (IsEnd(token)) {
      accepted = !has_ended_ && matcher_.IsCompleted();
      has_ended_ = has_ended_ || accepted;
    } else if (!has_ended_ && token >= 0 && static_cast<std::uint32_t>(token) < vocab_size_) {
      LibraryBudget budget{.steps = {limits_.token_steps},
                           .mask_bytes = {},
                           .states = {limits_.states, limits_.states - num_states_},
                           .nesting = {}};
      QUIRE_RETURN_IF_ERROR(Run(&budget, [&] { accepted = matcher_.AcceptToken(token); }));
      if (accepted) num_states_ = limits_.states - budget.states.left;
    }
    if (!accepted) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", token, " violates the constraint after ", num_accepted_, " tokens"));
    }
    ++num_accepted_;
    return absl::OkStatus();
  }

  absl::StatusOr<MaskSummary> FillMask(std::span<std::uint32_t> words) override {
    QUIRE_CHECK(words.size() == MaskWords(vocab_size_));
    if (has_ended_) {
      std::fill(words.begin(), words.end(), 0);
      return MaskSummary{.may_end = true};
    }
    std::int64_t shape[] = {static_cast<std::int64_t>(words.size())};
    DLTensor tensor{.data = words.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = shape,
                    .strides = nullptr,
                    .byte_offset = 0};
    // The library knows no end tokens, so it sets none of their bits.
    LibraryBudget budget{
        .steps = {limits_.token_steps}, .mask_bytes = {}, .states = {}, .nesting = {}};
    QUIRE_RETURN_IF_ERROR(Run(&budget, [&] { matcher_.FillNextTokenBitmask(&tensor); }));
    if (vocab_size_ % 32 != 0) words.back() &= (1u << (vocab_size_ % 32)) - 1;
    MaskSummary summary;
    summary.may_end = matcher_.IsCompleted();
    summary.may_continue = std::any_of(words.begin(), words.end(), [](auto w) { return w != 0; });
    if (summary.may_end) {
      for (const std::int32_t token : end_tokens_) {
        words[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
      }
    }
    return summary;
  }

  std::uint32_t num_accepted() const override { return num_accepted_; }

  std::unique_ptr<ConstraintMatcher> Fork() const override {
    auto fork =
        std::make_unique<XgrammarMatcher>(matcher_.Fork(), limits_, vocab_size_, end_tokens_);
    fork->num_accepted_ = num_accepted_;
    fork->has_ended_ = has_ended_;
    fork->num_states_ = num_states_;
    fork->failure_ = failure_;
    return fork;
  }

  absl::Status CheckIntegrity() const override {
    if (num_states_ > limits_.states) {
      return absl::InternalError("the number of states of the matcher is wrong");
    }
    if (!failure_.ok()) return absl::OkStatus();
    if (matcher_.IsTerminated())
      return absl::InternalError("the library has terminated although it knows no end token");
    if (has_ended_ && !matcher_.IsCompleted()) {
      return absl::InternalError("an end token was accepted where the text may not end");
    }
    return absl::OkStatus();
  }

 private:
  // A failed call leaves the library's state undefined, so all later calls return the same error.
  template <typename Call>
  absl::Status Run(LibraryBudget* budget, const Call& call) {
    if (failure_.ok()) failure_ = CatchErrors(budget, call);
    return failure_;
  }

  bool IsEnd(std::int32_t token) const {
    return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
  }

  xgrammar::GrammarMatcher matcher_;
  GrammarLimits limits_;
  std::uint32_t vocab_size_;
  std::vector<std::int32_t> end_tokens_;
  std::uint32_t num_accepted_ = 0;
  bool has_ended_ = false;  // the last accepted token was an end token
  std::int64_t num_states_ = 0;
  absl::Status failure_;
};

class XgrammarConstraint final : public CompiledConstraint {
 public:
  XgrammarConstraint(xgrammar::CompiledGrammar grammar, const GrammarLimits& limits,
                     std::uint32_t vocab_size, std::vector<std::string> unenforced)
      : CompiledConstraint(std::move(unenforced)),
        grammar_(std::move(grammar)),
        limits_(limits),
        vocab_size_(vocab_size),
        memory_bytes_(static_cast<std::int64_t>(grammar_.MemorySizeBytes())) {
    for (const std::string& keyword : this->unenforced()) {
      memory_bytes_ += static_cast<std::int64_t>(sizeof(std::string) + keyword.capacity());
    }
  }

  std::unique_ptr<ConstraintMatcher> NewMatcher(
      std::span<const std::int32_t> end_tokens) const override {
    for (const std::int32_t token : end_tokens) {
      QUIRE_CHECK(token >= 0 && static_cast<std::uint32_t>(token) < vocab_size_);
    }
    return std::make_unique<XgrammarMatcher>(
        xgrammar::GrammarMatcher(grammar_), limits_, vocab_size_,
        std::vector<std::int32_t>(end_tokens.begin(), end_tokens.end()));
  }
  std::uint32_t vocab_size() const override { return vocab_size_; }
  std::int64_t MemoryBytes() const override { return memory_bytes_; }

 private:
  xgrammar::CompiledGrammar grammar_;
  GrammarLimits limits_;
  std::uint32_t vocab_size_;
  std::int64_t memory_bytes_;
};

}  // namespace

struct GrammarLibrary::Impl {
  // The library's caches are disabled, because xgrammar 0.2.8 confuses the masks of two rules of
  // different grammars if the rules differ only in a repeated character class. ConstraintCompiler
  // caches whole constraints instead.
  Impl(const xgrammar::TokenizerInfo& tokens, std::uint32_t num_tokens,
       const GrammarLimits& the_limits)
      : compiler(tokens, /*max_threads=*/1, /*cache_enabled=*/false),
        vocab_size(num_tokens),
        limits(the_limits) {}

  xgrammar::GrammarCompiler compiler;
  const std::uint32_t vocab_size;
  const GrammarLimits limits;
};

absl::string_view GrammarLibrary::Version() {
  return "xgrammar 0.2.8";
}

absl::StatusOr<std::unique_ptr<GrammarLibrary>> GrammarLibrary::Create(
    std::vector<std::string> tokens, const GrammarLimits& limits) {
  std::unique_ptr<Impl> impl;
  LibraryBudget budget;
  QUIRE_RETURN_IF_ERROR(CatchErrors(&budget, [&] {
    const xgrammar::TokenizerInfo info(tokens, xgrammar::VocabType::RAW, std::nullopt,
                                       std::vector<std::int32_t>());
    impl = std::make_unique<Impl>(info, static_cast<std::uint32_t>(tokens.size()), limits);
  }));
  return std::unique_ptr<GrammarLibrary>(new GrammarLibrary(std::move(impl)));
}

GrammarLibrary::GrammarLibrary(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrammarLibrary::~GrammarLibrary() = default;

absl::StatusOr<std::shared_ptr<const CompiledConstraint>> GrammarLibrary::Compile(
    absl::string_view grammar, const std::stop_token& stop,
    std::vector<std::string> unenforced) const {
  std::shared_ptr<const CompiledConstraint> constraint;
  LibraryBudget budget{.steps = {impl_->limits.compile_steps},
                       .mask_bytes = {impl_->limits.compile_bytes},
                       .states = {},
                       .nesting = {kMaxNesting},
                       .stop = &stop};
  QUIRE_RETURN_IF_ERROR(CatchErrors(&budget, [&] {
    constraint = std::make_shared<XgrammarConstraint>(
        impl_->compiler.CompileGrammar(std::string(grammar)), impl_->limits, impl_->vocab_size,
        std::move(unenforced));
  }));
  // Every output creates a matcher. If creating one exceeds the limit, the constraint is rejected
  // now.
  budget.steps = {impl_->limits.token_steps};
  QUIRE_RETURN_IF_ERROR(CatchErrors(&budget, [&] { constraint->NewMatcher({}); }));
  return constraint;
}

}  // namespace quire::engine

namespace xgrammar {

void RequestSteps() {
  quire::engine::GrantSteps();
}

void CountMaskBytes(std::size_t bytes) {
  quire::engine::TakeFrom(&quire::engine::library_budget.mask_bytes,
                          static_cast<std::int64_t>(bytes), "bytes of masks");
}

void CountNesting(int levels) {
  quire::engine::TakeFrom(&quire::engine::library_budget.nesting, levels, "nested repetitions");
}

void CountStates(std::size_t states) {
  quire::engine::TakeFrom(&quire::engine::library_budget.states, static_cast<std::int64_t>(states),
                          "states");
}

}  // namespace xgrammar

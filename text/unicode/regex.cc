#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/unicode/regex.h"

#include <pcre2.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/unicode/regex_syntax.h"

namespace quire::text {
namespace {

constexpr std::size_t kJitStackStartBytes = 32 * 1024;
constexpr std::size_t kJitStackMaxBytes = 8 * 1024 * 1024;
constexpr std::size_t kMaxPatternBytes = 64 * 1024;
// Maximum nesting of parentheses, which PCRE2's compiler parses recursively. It equals PCRE2's
// default, but a build of PCRE2 can change the default.
constexpr std::uint32_t kMaxParentheses = 250;

absl::Status CheckSize(absl::string_view pattern) {
  if (pattern.size() <= kMaxPatternBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("regular expression has ", pattern.size(),
                                                 " bytes, the limit is ", kMaxPatternBytes));
}

std::string PcreMessage(int code) {
  PCRE2_UCHAR8 buffer[256];
  const int length = pcre2_get_error_message_8(code, buffer, sizeof(buffer));
  if (length < 0) return absl::StrCat("error ", code);
  return std::string(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(length));
}

}  // namespace

struct RegexScratch::State {
  explicit State(bool jit) : use_jit(jit) {
    match_data = pcre2_match_data_create_8(1, nullptr);
    context = pcre2_match_context_create_8(nullptr);
    stack =
        jit ? pcre2_jit_stack_create_8(kJitStackStartBytes, kJitStackMaxBytes, nullptr) : nullptr;
    constexpr std::uint32_t kNoLimit = std::numeric_limits<std::uint32_t>::max();
    // A run of spaces costs one step per space, so the default limit of ten million would reject
    // valid long prompts.
    pcre2_set_match_limit_8(context, kNoLimit);
    pcre2_set_depth_limit_8(context, kNoLimit);
    if (stack != nullptr) pcre2_jit_stack_assign_8(context, nullptr, stack);
  }
  ~State() {
    pcre2_jit_stack_free_8(stack);
    pcre2_match_context_free_8(context);
    pcre2_match_data_free_8(match_data);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  pcre2_match_data_8* match_data;
  pcre2_match_context_8* context;
  pcre2_jit_stack_8* stack;
  bool use_jit;
};

RegexScratch::RegexScratch(bool use_jit) : state_(std::make_unique<State>(use_jit)) {}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;

struct Regex::Compiled {
  ~Compiled() { pcre2_code_free_8(code); }
  pcre2_code_8* code = nullptr;
  std::string source;  // for messages
};

Regex::Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

absl::StatusOr<Regex> Regex::FromOniguruma(absl::string_view pattern) {
  QUIRE_RETURN_IF_ERROR(CheckSize(pattern));
  QUIRE_ASSIGN_OR_RETURN(const std::string rewritten, OnigurumaToPcre(pattern));
  return Compile(rewritten, PCRE2_MULTILINE);
}

absl::StatusOr<Regex> Regex::FromRust(absl::string_view pattern) {
  QUIRE_RETURN_IF_ERROR(CheckSize(pattern));
  QUIRE_ASSIGN_OR_RETURN(const std::string rewritten, RustToPcre(pattern));
  return Compile(rewritten, PCRE2_DOLLAR_ENDONLY);
}

absl::StatusOr<Regex> Regex::FromLiteral(absl::string_view text) {
  return Compile(text, PCRE2_LITERAL);
}

absl::StatusOr<Regex> Regex::FromPcre(absl::string_view pattern) {
  return Compile(pattern, 0);
}

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern, std::uint32_t options) {
  using ContextPtr =
      std::unique_ptr<pcre2_compile_context_8, decltype(&pcre2_compile_context_free_8)>;
  const ContextPtr context(pcre2_compile_context_create_8(nullptr), &pcre2_compile_context_free_8);
  pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit_8(context.get(), kMaxParentheses);

  // A literal does not need UCP, and PCRE2 rejects UCP together with LITERAL.
  const std::uint32_t ucp = (options & PCRE2_LITERAL) != 0 ? 0 : PCRE2_UCP;
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(),
                                   options | ucp | PCRE2_UTF, &error, &offset, context.get());
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("regular expression: ", PcreMessage(error),
                                                   " at offset ", offset, " of ", pattern));
  }
  compiled->source = std::string(pattern);
  // On machines that forbid JIT compilation this call fails, and pcre2_match uses the interpreter.
  (void)pcre2_jit_compile_8(compiled->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(compiled));
}

absl::Status Regex::ForEachMatch(absl::string_view subject, RegexScratch& scratch,
                                 absl::FunctionRef<void(std::size_t, std::size_t)> on_match) const {
  RegexScratch::State& state = *scratch.state_;
  // An empty view may have a null pointer, which PCRE2 rejects.
  const char* data = subject.empty() ? "" : subject.data();
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer_8(state.match_data);
  const std::uint32_t base_options = PCRE2_NO_UTF_CHECK | (state.use_jit ? 0 : PCRE2_NO_JIT);
  std::size_t start = 0;
  std::size_t last_end = std::string::npos;
  while (start <= subject.size()) {
    const auto match = [&](std::uint32_t options) {
      return pcre2_match_8(compiled_->code, reinterpret_cast<PCRE2_SPTR8>(data), subject.size(),
                           start, options, state.match_data, state.context);
    };
    int found = match(base_options);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(base_options | PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
    if (found < 0) {
      return absl::InternalError(absl::StrCat("regular expression ", compiled_->source,
                                              " failed at byte ", start, ": ", PcreMessage(found)));
    }
    const std::size_t begin = range[0];
    const std::size_t end = range[1];
    if (begin == end && begin == last_end) {
      if (start >= subject.size()) return absl::OkStatus();
      start += Utf8Length(subject[start]);
      continue;
    }
    on_match(begin, end);
    start = end;
    last_end = end;
  }
  return absl::OkStatus();
}

}  // namespace quire::text

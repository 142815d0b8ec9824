#include "tests/cuda_emulator/ptx/module.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace quire::cuda_emulator::ptx {
namespace {

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

// Splits at commas that no bracket encloses.
std::vector<absl::string_view> SplitOperands(absl::string_view text) {
  std::vector<absl::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != ',' || (depth != 0 && i < text.size())) continue;
    parts.push_back(absl::StripAsciiWhitespace(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (parts.size() == 1 && parts[0].empty()) parts.clear();
  return parts;
}

class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Module> Run() {
    while (SkipBlanks()) {
      absl::Status status = ParseStatement();
      if (!status.ok()) {
        const auto line = 1 + std::count(text_.begin(), text_.begin() + Signed(statement_), '\n');
        return absl::InvalidArgumentError(absl::StrCat("PTX line ", line, ": ", status.message()));
      }
    }
    if (!scopes_.empty()) return absl::InvalidArgumentError("PTX ends inside a kernel");
    for (Kernel& kernel : module_.kernels) {
      for (Instruction& instruction : kernel.instructions) {
        const auto number = static_cast<std::uint32_t>(std::atoi(instruction.source.file.c_str()));
        instruction.source.file = files_[number];
      }
    }
    return std::move(module_);
  }

 private:
  using Scope = std::map<std::string, std::uint32_t, std::less<>>;

  static std::ptrdiff_t Signed(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

  // Advances to the next statement and returns false at the end. The compiler's comments around
  // inline assembly count as statements, since an empty asm has no other trace.
  bool SkipBlanks() {
    for (;;) {
      while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_])))
        ++at_;
      if (!absl::StartsWith(text_.substr(at_), "//")) break;
      const absl::string_view comment = TakeUntil('\n');
      if (comment == "// begin inline asm") Emit({.text = "asm"});
    }
    statement_ = at_;
    return at_ < text_.size();
  }

  // Returns the text before the next `end`, and advances past it.
  absl::string_view TakeUntil(char end) {
    const std::size_t found = std::min(text_.find(end, at_), text_.size());
    const absl::string_view taken = text_.substr(at_, found - at_);
    at_ = std::min(found + 1, text_.size());
    return absl::StripAsciiWhitespace(taken);
  }

  absl::Status ParseStatement() {
    if (text_[at_] == '{' && !scopes_.empty()) {
      ++at_;
      scopes_.emplace_back();
      return absl::OkStatus();
    }
    if (text_[at_] == '}' && !scopes_.empty()) {
      ++at_;
      scopes_.pop_back();
      return absl::OkStatus();
    }
    if (text_[at_] == '.') return ParseDirective();
    if (scopes_.empty()) return absl::InvalidArgumentError("a statement outside kernels");
    std::size_t end = at_;
    while (end < text_.size() && IsNameCharacter(text_[end])) ++end;
    const bool is_label = end > at_ && text_.substr(end, 1) == ":" && text_.substr(end, 2) != "::";
    if (is_label) {
      Kernel& kernel = module_.kernels.back();
      kernel.labels.emplace_back(text_.substr(at_, end - at_), kernel.instructions.size());
      at_ = end + 1;
      return absl::OkStatus();
    }
    return ParseInstruction(TakeUntil(';'));
  }

  absl::Status ParseDirective() {
    const absl::string_view rest = text_.substr(at_);
    const absl::string_view word = rest.substr(0, rest.find_first_of(" \t\n"));
    if (word == ".version" || word == ".target" || word == ".address_size") {
      TakeUntil('\n');
      return absl::OkStatus();
    }
    if (word == ".loc" || word == ".file") return ParseLine(TakeUntil('\n'));
    if (word == ".section") {  // of debug information
      TakeUntil('}');
      return absl::OkStatus();
    }
    if (word == ".visible") return ParseEntry();
    const absl::string_view statement = TakeUntil(';');
    if (word == ".extern") return ParseShared(statement);
    if (word == ".reg" && !scopes_.empty()) return Declare(statement);
    if (statement == ".pragma \"nounroll\"") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("not interpreted: ", statement));
  }

  // .loc FILE LINE COLUMN, ...; .file NUMBER "NAME"
  absl::Status ParseLine(absl::string_view statement) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(statement, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    std::uint32_t number;
    if (words.size() < 3 || !absl::SimpleAtoi(words[1], &number)) {
      return absl::InvalidArgumentError(absl::StrCat("not a place: ", statement));
    }
    if (words[0] == ".file") {
      const std::size_t quote = statement.find('"') + 1;
      files_[number] = std::string(statement.substr(quote, statement.rfind('"') - quote));
      return absl::OkStatus();
    }
    source_.file = std::string(words[1]);  // the file's name appears last in the text
    if (!absl::SimpleAtoi(words[2], &source_.line)) {
      return absl::InvalidArgumentError(absl::StrCat("not a line: ", statement));
    }
    return absl::OkStatus();
  }

  // .extern .shared .align 16 .b8 NAME[]
  absl::Status ParseShared(absl::string_view statement) {
    if (!absl::StartsWith(statement, ".extern .shared ") ||
        !absl::ConsumeSuffix(&statement, "[]")) {
      return absl::InvalidArgumentError(absl::StrCat("not interpreted: ", statement));
    }
    module_.dynamic_shared = std::string(statement.substr(statement.rfind(' ') + 1));
    return absl::OkStatus();
  }

  // .visible .entry NAME(.param .u64 A, .param .align 64 .b8 B[128]) .maxntid 128, 1, 1 {
  absl::Status ParseEntry() {
    absl::string_view head = TakeUntil('(');
    if (!scopes_.empty() || !absl::ConsumePrefix(&head, ".visible .entry ")) {
      return absl::InvalidArgumentError(absl::StrCat("not interpreted: ", head));
    }
    Kernel kernel{.name = std::string(head)};
    for (const absl::string_view parameter : SplitOperands(TakeUntil(')'))) {
      QUIRE_RETURN_IF_ERROR(AddParameter(parameter, &kernel));
    }
    for (const absl::string_view line : absl::StrSplit(TakeUntil('{'), '\n', absl::SkipEmpty())) {
      std::vector<absl::string_view> words =
          absl::StrSplit(line, absl::ByAnyChar(" \t,"), absl::SkipEmpty());
      std::uint32_t* const value = words[0] == ".maxntid"        ? &kernel.max_threads
                                   : words[0] == ".minnctapersm" ? &kernel.min_blocks
                                                                 : nullptr;
      if (value == nullptr || words.size() < 2 || !absl::SimpleAtoi(words[1], value)) {
        return absl::InvalidArgumentError(absl::StrCat("not interpreted: ", line));
      }
    }
    module_.kernels.push_back(std::move(kernel));
    scopes_.emplace_back();
    return absl::OkStatus();
  }

  static absl::Status AddParameter(absl::string_view text, Kernel* kernel) {
    std::vector<absl::string_view> words =
        absl::StrSplit(text, absl::ByAnyChar(" \t[]"), absl::SkipEmpty());
    std::uint32_t alignment = 0;
    Parameter parameter;
    if (words.size() == 3 && words[0] == ".param" && words[1].size() == 4 &&
        absl::SimpleAtoi(words[1].substr(2), &alignment)) {
      alignment /= 8;
      parameter = {.name = std::string(words[2]), .offset = 0, .bytes = alignment};
    } else if (words.size() != 6 || words[1] != ".align" ||
               !absl::SimpleAtoi(words[2], &alignment) || words[3] != ".b8" ||
               !absl::SimpleAtoi(words[5], &parameter.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("not interpreted: ", text));
    } else {
      parameter.name = std::string(words[4]);
    }
    parameter.offset = (kernel->parameter_bytes + alignment - 1) / alignment * alignment;
    kernel->parameter_bytes = parameter.offset + parameter.bytes;
    kernel->parameters.push_back(std::move(parameter));
    return absl::OkStatus();
  }

  // .reg .b32 %r<5>, .reg .f16 low,high
  absl::Status Declare(absl::string_view statement) {
    std::vector<absl::string_view> words =
        absl::StrSplit(statement, absl::ByAnyChar(" \t,"), absl::SkipEmpty());
    for (std::size_t i = 2; i < words.size(); ++i) {
      const std::vector<absl::string_view> parts = absl::StrSplit(words[i], absl::ByAnyChar("<>"));
      std::uint32_t count = 1;
      if (parts.size() > 1 && !absl::SimpleAtoi(parts[1], &count)) {
        return absl::InvalidArgumentError(absl::StrCat("not a register: ", words[i]));
      }
      for (std::uint32_t n = 0; n < count; ++n) {
        std::string name = parts.size() > 1 ? absl::StrCat(parts[0], n) : std::string(parts[0]);
        scopes_.back()[std::move(name)] = module_.kernels.back().num_registers++;
      }
    }
    return absl::OkStatus();
  }

  std::optional<std::uint32_t> FindRegister(absl::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    return std::nullopt;
  }

  void Emit(Instruction instruction) {
    if (scopes_.empty()) return;
    instruction.source = source_;
    module_.kernels.back().instructions.push_back(std::move(instruction));
  }

  // [@p] opcode.modifier.modifier operand, operand
  absl::Status ParseInstruction(absl::string_view text) {
    Instruction instruction{.text = std::string(text)};
    if (absl::ConsumePrefix(&text, "@")) {
      instruction.guard_negated = absl::ConsumePrefix(&text, "!");
      const std::size_t end = text.find_first_of(" \t");
      const std::optional<std::uint32_t> guard = FindRegister(text.substr(0, end));
      if (!guard) return absl::InvalidArgumentError(absl::StrCat("no predicate: ", text));
      instruction.guard = *guard;
      text = absl::StripAsciiWhitespace(text.substr(end));
    }
    const std::size_t end = std::min(text.find_first_of(" \t\n"), text.size());
    instruction.modifiers = absl::StrSplit(text.substr(0, end), '.');
    instruction.opcode = std::move(instruction.modifiers.front());
    instruction.modifiers.erase(instruction.modifiers.begin());
    for (const absl::string_view operand : SplitOperands(text.substr(end))) {
      QUIRE_ASSIGN_OR_RETURN(Operand parsed, ParseOperand(operand));
      instruction.operands.push_back(std::move(parsed));
    }
    Emit(std::move(instruction));
    return absl::OkStatus();
  }

  absl::StatusOr<Operand> ParseOperand(absl::string_view text) const {
    if (text.empty()) return absl::InvalidArgumentError("an operand is empty");
    if (text == "_") return Operand{};
    if (absl::ConsumePrefix(&text, "{") && absl::ConsumeSuffix(&text, "}")) {
      return ParseElements(text, Operand::Kind::kVector);
    }
    if (absl::ConsumePrefix(&text, "[") && absl::ConsumeSuffix(&text, "]")) {
      return ParseAddress(text);
    }
    Operand operand{.kind = Operand::Kind::kRegister};
    operand.negated = absl::ConsumePrefix(&text, "!");
    const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('|', 1));
    if (const std::optional<std::uint32_t> reg = FindRegister(parts[0])) {
      operand.reg = *reg;
      if (parts.size() == 1) return operand;
      const std::optional<std::uint32_t> second = FindRegister(parts[1]);
      if (!second) return absl::InvalidArgumentError(absl::StrCat("no predicate: ", text));
      operand.second = *second;
      return operand;
    }
    if (operand.negated) return absl::InvalidArgumentError(absl::StrCat("no predicate: ", text));
    if (absl::ascii_isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-')
      return ParseImmediate(text);
    if (!std::all_of(text.begin(), text.end(), IsNameCharacter)) {
      return absl::InvalidArgumentError(absl::StrCat("not an operand: ", text));
    }
    return Operand{.kind = Operand::Kind::kName, .name = std::string(text)};
  }

  absl::StatusOr<Operand> ParseElements(absl::string_view text, Operand::Kind kind) const {
    Operand operand{.kind = kind};
    for (const absl::string_view part : SplitOperands(text)) {
      QUIRE_ASSIGN_OR_RETURN(Operand element, ParseOperand(part));
      operand.elements.push_back(std::move(element));
    }
    return operand;
  }

  // BASE, BASE+4 or BASE, {x, y}
  absl::StatusOr<Operand> ParseAddress(absl::string_view text) const {
    const std::size_t comma = text.find(',');
    absl::string_view base = text.substr(0, comma);
    const std::size_t plus = base.find('+');
    std::int64_t offset = 0;
    if (plus != absl::string_view::npos && !absl::SimpleAtoi(base.substr(plus + 1), &offset)) {
      return absl::InvalidArgumentError(absl::StrCat("not an address: ", text));
    }
    Operand operand{.kind = Operand::Kind::kAddress, .bits = static_cast<std::uint64_t>(offset)};
    if (comma != absl::string_view::npos) {
      QUIRE_ASSIGN_OR_RETURN(const Operand coordinates,
                             ParseOperand(absl::StripAsciiWhitespace(text.substr(comma + 1))));
      operand.elements = coordinates.elements;
    }
    QUIRE_ASSIGN_OR_RETURN(Operand first, ParseOperand(base.substr(0, plus)));
    operand.elements.insert(operand.elements.begin(), std::move(first));
    return operand;
  }

  static absl::StatusOr<Operand> ParseImmediate(absl::string_view text) {
    const std::string digits(text);
    const bool is_float = absl::StartsWith(text, "0f") || absl::StartsWith(text, "0d");
    const char* const begin = digits.c_str() + (is_float ? 2 : 0);
    char* end = nullptr;
    // strtoull accepts a sign and returns the two's complement.
    const std::uint64_t bits = std::strtoull(begin, &end, is_float ? 16 : 0);
    if (!is_float && end != begin && *end == 'U') ++end;  // an unsigned number
    if (end == begin || *end != '\0') {
      return absl::InvalidArgumentError(absl::StrCat("not a number: ", text));
    }
    return Operand{.kind = Operand::Kind::kImmediate, .bits = bits};
  }

  absl::string_view text_;
  std::size_t at_ = 0;
  std::size_t statement_ = 0;
  Module module_;
  std::vector<Scope> scopes_;  // of registers: the kernel's, and those of its inner blocks
  std::map<std::uint32_t, std::string> files_;
  SourceLine source_;  // with the file as its number
};

}  // namespace

std::string SourceLine::ToString() const {
  return absl::StrCat(file, ":", line);
}

absl::StatusOr<Module> ParseModule(absl::string_view text) {
  return Parser(text).Run();
}

}  // namespace quire::cuda_emulator::ptx

#pragma once

// Parses expressions.
//
// Place:      below parser.h, which parses statements.
// Threads:    one thread.
// Lifetime:   the tokens must outlive it.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/ast.h"
#include "text/chat/jinja/lexer.h"

namespace quire::text::jinja {

class ExpressionParser {
 public:
  // REQUIRES: the last token is kEnd.
  explicit ExpressionParser(const std::vector<Token>* tokens) : tokens_(tokens) {}

  const Token& current() const { return (*tokens_)[at_]; }
  const Token& next() const { return (*tokens_)[at_ + 1 < tokens_->size() ? at_ + 1 : at_]; }
  void Advance() {
    if (at_ + 1 < tokens_->size()) ++at_;
  }
  bool IsOperator(absl::string_view text) const {
    return current().type == TokenType::kOperator && current().text == text;
  }
  bool IsName(absl::string_view text) const {
    return current().type == TokenType::kName && current().text == text;
  }
  bool SkipOperator(absl::string_view text) {
    if (!IsOperator(text)) return false;
    Advance();
    return true;
  }
  bool SkipName(absl::string_view text) {
    if (!IsName(text)) return false;
    Advance();
    return true;
  }
  absl::Status ExpectOperator(absl::string_view text);
  absl::StatusOr<std::string> ExpectName();
  // Returns INVALID_ARGUMENT at the current token: "unexpected X, expected <expected>".
  absl::Status ExpectedError(absl::string_view expected) const;

  // Parses one expression, with or without the form `a if b else c`.
  absl::StatusOr<ExprPtr> ParseExpression(bool with_conditional = true);
  // Parses one expression, or a tuple of several with commas between them.
  absl::StatusOr<ExprPtr> ParseTuple(bool with_conditional);
  // Parses the filters "name(...) | name(...) ..." of a block. The first filter has no input
  // expression, because its input is the text of the block.
  absl::StatusOr<ExprPtr> ParseFilters();
  // Parses the target of set or for. `with_attributes` allows ns.name.
  absl::StatusOr<Target> ParseTarget(bool with_attributes);

  // The use of a filter, test or method that is not supported.
  struct UnsupportedUse {
    Position position;
    std::string problem;
    bool is_conditional = false;  // inside an `if`, whose branches may never be executed
  };
  const std::vector<UnsupportedUse>& unsupported() const { return unsupported_; }
  std::size_t unsupported_count() const { return unsupported_.size(); }
  // Marks the uses since `begin`, an earlier unsupported_count(), as conditional.
  void MarkConditional(std::size_t begin);

  // Names of the variables in the parsed expressions. The parser of macros (parser.cc) searches
  // them for the special names `caller`, `varargs` and `kwargs`.
  std::vector<std::string>& names_read() { return names_read_; }

 private:
  using Result = absl::StatusOr<ExprPtr>;

  Result ParseConditional();
  Result ParseOr();
  Result ParseAnd();
  Result ParseNot();
  Result ParseCompare();
  Result ParseSum();
  Result ParseConcat();
  Result ParseProduct();
  Result ParsePower();
  // Parses a unary expression with the filters and tests that follow it.
  Result ParseOperand();
  Result ParseUnary(bool with_filters);
  Result ParsePrimary();
  Result ParseLiteral();
  Result ParseList();
  Result ParseDict();
  Result ParsePostfix(ExprPtr node);
  Result ParseFilterOrTest(ExprPtr node);
  Result ParseFilter(ExprPtr input);
  Result ParseTest(ExprPtr value);
  Result ParseSubscript(ExprPtr node);
  Result ParseIndex(ExprPtr node, Position position);
  Result ParseCall(ExprPtr callee);
  // Parses left-associative operators of one precedence level.
  Result ParseBinary(Result (ExpressionParser::*operand)(),
                     const std::vector<std::pair<absl::string_view, Operator>>& operators);
  // Parses a chain of `and` or `or`.
  Result ParseLogic(Result (ExpressionParser::*operand)(), absl::string_view name, ExprKind kind);
  absl::Status ParseArguments(Expr* call);
  bool EndsTuple() const;
  bool SkipCompareOperator(Operator* found);

  ExprPtr Make(ExprKind kind, Position position) const;
  // Appends the child and updates the depth of the parent.
  absl::Status AddChild(Expr* parent, ExprPtr child) const;

  const std::vector<Token>* const tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;  // number of unfinished calls of ParseExpression, ParseUnary and ParseTarget
  std::vector<std::string> names_read_;
  std::vector<UnsupportedUse> unsupported_;
};

}  // namespace quire::text::jinja

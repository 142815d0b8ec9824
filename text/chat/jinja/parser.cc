#include "text/chat/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/chat/jinja/expressions.h"
#include "text/chat/jinja/lexer.h"

namespace quire::text::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;

class Parser {
 public:
  explicit Parser(const std::vector<Token>* tokens) : expressions_(tokens) {}

  absl::StatusOr<ParsedTemplate> Run() {
    ParsedTemplate parsed;
    QUIRE_ASSIGN_OR_RETURN(parsed.body, ParseBody({}));
    for (const ExpressionParser::UnsupportedUse& found : expressions_.unsupported()) {
      const absl::Status error = ErrorAt(found.position, found.problem);
      if (!found.is_conditional) return error;
      parsed.warnings.emplace_back(error.message());
    }
    return parsed;
  }

 private:
  using Result = absl::StatusOr<StmtPtr>;

  static StmtPtr Make(StmtKind kind, Position position) {
    auto node = std::make_unique<Stmt>();
    node->kind = kind;
    node->position = position;
    return node;
  }

  bool IsOneOf(std::initializer_list<absl::string_view> names) const {
    return std::any_of(names.begin(), names.end(),
                       [this](absl::string_view name) { return expressions_.IsName(name); });
  }

  absl::Status ExpectBlockEnd() {
    if (expressions_.current().type != TokenType::kBlockEnd)
      return expressions_.ExpectedError("'%}'");
    expressions_.Advance();
    return absl::OkStatus();
  }

  // Returns an error if the current name closes a block other than the innermost open block, or
  // starts a branch of such a block. `ends` are the names that the innermost open block allows.
  absl::Status CheckNoStrayEnd(std::initializer_list<absl::string_view> ends) const {
    if (!IsOneOf({"elif", "else", "endif", "endfor", "endset", "endmacro", "endcall", "endfilter",
                  "endwith", "endgeneration"})) {
      return absl::OkStatus();
    }
    if (ends.size() > 0) return expressions_.ExpectedError(QuoteClosingTag(ends));
    return ErrorAt(
        expressions_.current().position,
        absl::StrCat("unexpected '", expressions_.current().text, "', no block is open"));
  }

  // The last of `ends` is the tag that closes the block.
  static std::string QuoteClosingTag(std::initializer_list<absl::string_view> ends) {
    return absl::StrCat("'", *(ends.end() - 1), "'");
  }

  // Parses statements up to a block whose name is one of `ends`, or up to the end of the template
  // if `ends` is empty. Afterwards that name is the current token.
  absl::StatusOr<Body> ParseBody(std::initializer_list<absl::string_view> ends) {
    const Position begin = expressions_.current().position;
    if (++nesting_ > kMaxNesting) {
      return ErrorAt(begin, absl::StrCat("blocks are nested more than ", kMaxNesting, " deep"));
    }
    Body body;
    for (;;) {
      const Token& token = expressions_.current();
      if (token.type == TokenType::kEnd) {
        if (ends.size() > 0) return expressions_.ExpectedError(QuoteClosingTag(ends));
        break;
      }
      if (token.type == TokenType::kData) {
        body.push_back(Make(StmtKind::kText, token.position));
        body.back()->text = token.text;
        expressions_.Advance();
        continue;
      }
      const bool is_block = token.type == TokenType::kBlockBegin;
      expressions_.Advance();
      if (is_block && IsOneOf(ends)) break;
      if (is_block) QUIRE_RETURN_IF_ERROR(CheckNoStrayEnd(ends));
      QUIRE_ASSIGN_OR_RETURN(StmtPtr statement, is_block ? ParseBlock() : ParseOutput());
      body.push_back(std::move(statement));
    }
    --nesting_;
    return body;
  }

  // Parses a body that only `end` closes, and the closing tag.
  absl::StatusOr<Body> ParseBodyTo(absl::string_view end) {
    QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
    QUIRE_ASSIGN_OR_RETURN(Body body, ParseBody({end}));
    expressions_.Advance();
    QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
    return body;
  }

  Result ParseOutput() {
    StmtPtr node = Make(StmtKind::kOutput, expressions_.current().position);
    QUIRE_ASSIGN_OR_RETURN(node->expr, expressions_.ParseTuple(/*with_conditional=*/true));
    if (expressions_.current().type != TokenType::kOutputEnd)
      return expressions_.ExpectedError("'}}'");
    expressions_.Advance();
    return node;
  }

  Result ParseBlock() {
    const Position position = expressions_.current().position;
    if (expressions_.current().type != TokenType::kName)
      return expressions_.ExpectedError("the name of a statement");
    const std::string name = expressions_.current().text;
    expressions_.Advance();
    if (name == "if") return ParseIf(position);
    if (name == "for") return ParseFor(position);
    if (name == "set") return ParseSet(position);
    if (name == "macro") return ParseMacro(position);
    if (name == "call") return ParseCallBlock(position);
    if (name == "filter") return ParseFilterBlock(position);
    if (name == "with") return ParseWith(position);
    if (name == "break" || name == "continue") return ParseJump(name, position);
    if (name == "generation") {
      // Hugging Face marks the assistant's text for training with this block. The block prints its
      // body.
      StmtPtr node = Make(StmtKind::kScope, position);
      QUIRE_ASSIGN_OR_RETURN(node->body, ParseBodyTo("endgeneration"));
      return node;
    }
    return ErrorAt(position, absl::StrCat("the statement '", name, "' is not supported"));
  }

  Result ParseIf(Position position) {
    StmtPtr node = Make(StmtKind::kIf, position);
    const std::size_t unsupported = expressions_.unsupported_count();
    for (;;) {
      Branch branch;
      QUIRE_ASSIGN_OR_RETURN(branch.condition, expressions_.ParseTuple(/*with_conditional=*/false));
      QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
      QUIRE_ASSIGN_OR_RETURN(branch.body, ParseBody({"elif", "else", "endif"}));
      node->branches.push_back(std::move(branch));
      if (!expressions_.SkipName("elif")) break;
    }
    if (expressions_.SkipName("else")) {
      QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
      Branch branch;
      QUIRE_ASSIGN_OR_RETURN(branch.body, ParseBody({"endif"}));
      node->branches.push_back(std::move(branch));
    }
    expressions_.Advance();
    QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
    expressions_.MarkConditional(unsupported);
    return node;
  }

  Result ParseFor(Position position) {
    StmtPtr node = Make(StmtKind::kFor, position);
    QUIRE_ASSIGN_OR_RETURN(node->target, expressions_.ParseTarget(/*with_attributes=*/false));
    if (!expressions_.SkipName("in")) return expressions_.ExpectedError("'in'");
    QUIRE_ASSIGN_OR_RETURN(node->expr, expressions_.ParseTuple(/*with_conditional=*/false));
    if (expressions_.SkipName("if")) {
      QUIRE_ASSIGN_OR_RETURN(node->condition, expressions_.ParseExpression());
    }
    if (expressions_.IsName("recursive")) {
      return ErrorAt(expressions_.current().position, "recursive loops are not supported");
    }
    QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
    if (++loop_depth_ > kMaxLoopNesting) {
      return ErrorAt(position,
                     absl::StrCat("loops are nested more than ", kMaxLoopNesting, " deep"));
    }
    QUIRE_ASSIGN_OR_RETURN(node->body, ParseBody({"else", "endfor"}));
    --loop_depth_;
    if (expressions_.SkipName("else")) {
      QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
      QUIRE_ASSIGN_OR_RETURN(node->else_body, ParseBody({"endfor"}));
    }
    expressions_.Advance();
    QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
    return node;
  }

  Result ParseSet(Position position) {
    StmtPtr node = Make(StmtKind::kSet, position);
    QUIRE_ASSIGN_OR_RETURN(node->target, expressions_.ParseTarget(/*with_attributes=*/true));
    if (expressions_.SkipOperator("=")) {
      QUIRE_ASSIGN_OR_RETURN(node->expr, expressions_.ParseTuple(/*with_conditional=*/true));
      QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
      return node;
    }
    node->kind = StmtKind::kSetBlock;
    if (expressions_.SkipOperator("|")) {
      QUIRE_ASSIGN_OR_RETURN(node->expr, expressions_.ParseFilters());
    }
    QUIRE_ASSIGN_OR_RETURN(node->body, ParseBodyTo("endset"));
    return node;
  }

  absl::Status ParseParameters(Stmt* macro) {
    QUIRE_RETURN_IF_ERROR(expressions_.ExpectOperator("("));
    while (!expressions_.IsOperator(")")) {
      if (!macro->parameters.empty()) QUIRE_RETURN_IF_ERROR(expressions_.ExpectOperator(","));
      Parameter parameter;
      QUIRE_ASSIGN_OR_RETURN(parameter.name, expressions_.ExpectName());
      if (expressions_.SkipOperator("=")) {
        QUIRE_ASSIGN_OR_RETURN(parameter.default_value, expressions_.ParseExpression());
      } else if (!macro->parameters.empty() && macro->parameters.back().default_value != nullptr) {
        return expressions_.ExpectedError(
            "a default value, because the previous parameter has one");
      }
      macro->parameters.push_back(std::move(parameter));
    }
    return expressions_.ExpectOperator(")");
  }

  // Parses the body of a macro. break and continue in the body cannot apply to a loop outside the
  // macro.
  absl::Status ParseMacroBody(absl::string_view end, Stmt* macro) {
    const int loops = std::exchange(loop_depth_, 0);
    std::vector<std::string> outer;
    outer.swap(expressions_.names_read());
    QUIRE_ASSIGN_OR_RETURN(macro->body, ParseBodyTo(end));
    loop_depth_ = loops;
    const std::vector<std::string>& read = expressions_.names_read();
    const auto reads = [&read](const char* name) {
      return std::find(read.begin(), read.end(), name) != read.end();
    };
    macro->uses_caller = reads("caller");
    macro->uses_varargs = reads("varargs");
    macro->uses_kwargs = reads("kwargs");
    outer.swap(expressions_.names_read());
    return absl::OkStatus();
  }

  Result ParseMacro(Position position) {
    StmtPtr node = Make(StmtKind::kMacro, position);
    QUIRE_ASSIGN_OR_RETURN(node->text, expressions_.ExpectName());
    QUIRE_RETURN_IF_ERROR(ParseParameters(node.get()));
    QUIRE_RETURN_IF_ERROR(ParseMacroBody("endmacro", node.get()));
    return node;
  }

  Result ParseCallBlock(Position position) {
    StmtPtr node = Make(StmtKind::kCallBlock, position);
    node->text = "caller";
    if (expressions_.IsOperator("(")) QUIRE_RETURN_IF_ERROR(ParseParameters(node.get()));
    const Position at = expressions_.current().position;
    QUIRE_ASSIGN_OR_RETURN(node->expr, expressions_.ParseExpression());
    if (node->expr->kind != ExprKind::kCall) return ErrorAt(at, "expected a call");
    QUIRE_RETURN_IF_ERROR(ParseMacroBody("endcall", node.get()));
    return node;
  }

  Result ParseFilterBlock(Position position) {
    StmtPtr node = Make(StmtKind::kFilterBlock, position);
    QUIRE_ASSIGN_OR_RETURN(node->expr, expressions_.ParseFilters());
    QUIRE_ASSIGN_OR_RETURN(node->body, ParseBodyTo("endfilter"));
    return node;
  }

  Result ParseWith(Position position) {
    StmtPtr node = Make(StmtKind::kWith, position);
    while (expressions_.current().type != TokenType::kBlockEnd) {
      if (!node->assignments.empty()) QUIRE_RETURN_IF_ERROR(expressions_.ExpectOperator(","));
      Target target;
      target.position = expressions_.current().position;
      QUIRE_ASSIGN_OR_RETURN(target.name, expressions_.ExpectName());
      QUIRE_RETURN_IF_ERROR(expressions_.ExpectOperator("="));
      QUIRE_ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseExpression());
      node->assignments.emplace_back(std::move(target), std::move(value));
    }
    QUIRE_ASSIGN_OR_RETURN(node->body, ParseBodyTo("endwith"));
    return node;
  }

  Result ParseJump(absl::string_view name, Position position) {
    if (loop_depth_ == 0)
      return ErrorAt(position, absl::StrCat("'", name, "' is only allowed inside a loop"));
    QUIRE_RETURN_IF_ERROR(ExpectBlockEnd());
    return Make(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, position);
  }

  ExpressionParser expressions_;
  int nesting_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

absl::StatusOr<ParsedTemplate> Parse(absl::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the template has ", source.size(),
                                                   " bytes, the limit is ", kMaxTemplateBytes));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Token> tokens, Tokenize(source));
  return Parser(&tokens).Run();
}

}  // namespace quire::text::jinja

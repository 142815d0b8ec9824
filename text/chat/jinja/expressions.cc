#include "text/chat/jinja/expressions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/chat/jinja/filters.h"
#include "text/chat/jinja/methods.h"
#include "text/chat/jinja/parser.h"
#include "text/chat/jinja/tests.h"

namespace quire::text::jinja {
namespace {

// Maximum of depth_ in ParseExpression and ParseTarget; ParseUnary allows twice as much. This
// bounds the recursion of the parser. An open bracket in an expression adds two to depth_, so at
// most 31 brackets can be open. A sign adds one.
constexpr int kMaxParseDepth = 64;
// Maximum number of children of a call, filter or test: the callee or the input, and the positional
// arguments. Filters such as map pass their arguments on to the filter that they name. This limit
// therefore bounds how deep such filters nest.
constexpr std::size_t kMaxArguments = 64;

class DepthGuard {
 public:
  explicit DepthGuard(int* depth) : depth_(depth) { ++*depth_; }
  ~DepthGuard() { --*depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int* const depth_;
};

std::string Describe(const Token& token) {
  switch (token.type) {
    case TokenType::kEnd:
      return "the end of the template";
    case TokenType::kData:
      return "text";
    case TokenType::kOutputBegin:
      return "'{{'";
    case TokenType::kOutputEnd:
      return "'}}'";
    case TokenType::kBlockBegin:
      return "'{%'";
    case TokenType::kBlockEnd:
      return "'%}'";
    case TokenType::kString:
      return "a string";
    default:
      return absl::StrCat("'", token.text.substr(0, 60), "'");
  }
}

bool IsReserved(absl::string_view name) {
  return name == "true" || name == "false" || name == "none" || name == "True" || name == "False" ||
         name == "None";
}

}  // namespace

absl::Status ExpressionParser::ExpectedError(absl::string_view expected) const {
  return ErrorAt(current().position,
                 absl::StrCat("unexpected ", Describe(current()), ", expected ", expected));
}

absl::Status ExpressionParser::ExpectOperator(absl::string_view text) {
  if (SkipOperator(text)) return absl::OkStatus();
  return ExpectedError(absl::StrCat("'", text, "'"));
}

absl::StatusOr<std::string> ExpressionParser::ExpectName() {
  if (current().type != TokenType::kName) return ExpectedError("a name");
  std::string name = current().text;
  Advance();
  return name;
}

ExprPtr ExpressionParser::Make(ExprKind kind, Position position) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->position = position;
  return node;
}

absl::Status ExpressionParser::AddChild(Expr* parent, ExprPtr child) const {
  if (child != nullptr) parent->depth = std::max(parent->depth, child->depth + 1);
  parent->children.push_back(std::move(child));
  if (parent->depth <= kMaxExpressionDepth) return absl::OkStatus();
  return ErrorAt(parent->position,
                 absl::StrCat("the expression is nested more than ", kMaxExpressionDepth, " deep"));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseExpression(bool with_conditional) {
  const DepthGuard nested(&depth_);
  if (depth_ > kMaxParseDepth) {
    return ErrorAt(current().position, "the expression has too many open brackets");
  }
  return with_conditional ? ParseConditional() : ParseOr();
}

ExpressionParser::Result ExpressionParser::ParseConditional() {
  const Position position = current().position;
  const std::size_t unsupported = unsupported_count();
  QUIRE_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
  while (SkipName("if")) {
    ExprPtr node = Make(ExprKind::kConditional, position);
    QUIRE_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(condition)));
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(value)));
    ExprPtr else_value;
    if (SkipName("else")) {
      QUIRE_ASSIGN_OR_RETURN(else_value, ParseExpression());
    }
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(else_value)));
    value = std::move(node);
    MarkConditional(unsupported);
  }
  return value;
}

void ExpressionParser::MarkConditional(std::size_t begin) {
  for (std::size_t i = begin; i < unsupported_.size(); ++i) unsupported_[i].is_conditional = true;
}

ExpressionParser::Result ExpressionParser::ParseLogic(Result (ExpressionParser::*operand)(),
                                                      absl::string_view name, ExprKind kind) {
  const Position position = current().position;
  QUIRE_ASSIGN_OR_RETURN(ExprPtr left, (this->*operand)());
  while (SkipName(name)) {
    QUIRE_ASSIGN_OR_RETURN(ExprPtr right, (this->*operand)());
    ExprPtr node = Make(kind, position);
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(left)));
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(right)));
    left = std::move(node);
  }
  return left;
}

ExpressionParser::Result ExpressionParser::ParseOr() {
  return ParseLogic(&ExpressionParser::ParseAnd, "or", ExprKind::kOr);
}

ExpressionParser::Result ExpressionParser::ParseAnd() {
  return ParseLogic(&ExpressionParser::ParseNot, "and", ExprKind::kAnd);
}

ExpressionParser::Result ExpressionParser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  std::vector<Position> positions;
  while (IsName("not")) {
    positions.push_back(current().position);
    Advance();
  }
  QUIRE_ASSIGN_OR_RETURN(ExprPtr value, ParseCompare());
  for (auto position = positions.rbegin(); position != positions.rend(); ++position) {
    ExprPtr node = Make(ExprKind::kNot, *position);
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(value)));
    value = std::move(node);
  }
  return value;
}

// Consumes a comparison operator and sets `*found`. Returns false if there is none.
bool ExpressionParser::SkipCompareOperator(Operator* found) {
  constexpr std::pair<absl::string_view, Operator> kOperators[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
  for (const auto& [text, op] : kOperators) {
    if (!SkipOperator(text)) continue;
    *found = op;
    return true;
  }
  if (SkipName("in")) {
    *found = Operator::kIn;
    return true;
  }
  if (IsName("not") && next().type == TokenType::kName && next().text == "in") {
    Advance();
    Advance();
    *found = Operator::kNotIn;
    return true;
  }
  return false;
}

ExpressionParser::Result ExpressionParser::ParseCompare() {
  const Position position = current().position;
  QUIRE_ASSIGN_OR_RETURN(ExprPtr left, ParseSum());
  Operator op;
  if (!SkipCompareOperator(&op)) return left;
  ExprPtr node = Make(ExprKind::kCompare, position);
  QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(left)));
  do {
    node->operators.push_back(op);
    QUIRE_ASSIGN_OR_RETURN(ExprPtr right, ParseSum());
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(right)));
  } while (SkipCompareOperator(&op));
  return node;
}

ExpressionParser::Result ExpressionParser::ParseBinary(
    Result (ExpressionParser::*operand)(),
    const std::vector<std::pair<absl::string_view, Operator>>& operators) {
  const Position position = current().position;
  QUIRE_ASSIGN_OR_RETURN(ExprPtr left, (this->*operand)());
  for (;;) {
    const auto found =
        std::find_if(operators.begin(), operators.end(),
                     [this](const auto& candidate) { return IsOperator(candidate.first); });
    if (found == operators.end()) return left;
    Advance();
    ExprPtr node = Make(ExprKind::kBinary, position);
    node->operators.push_back(found->second);
    QUIRE_ASSIGN_OR_RETURN(ExprPtr right, (this->*operand)());
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(left)));
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(right)));
    left = std::move(node);
  }
}

ExpressionParser::Result ExpressionParser::ParseSum() {
  return ParseBinary(&ExpressionParser::ParseConcat,
                     {{"+", Operator::kAdd}, {"-", Operator::kSubtract}});
}

ExpressionParser::Result ExpressionParser::ParseConcat() {
  const Position position = current().position;
  QUIRE_ASSIGN_OR_RETURN(ExprPtr first, ParseProduct());
  if (!IsOperator("~")) return first;
  ExprPtr node = Make(ExprKind::kConcat, position);
  QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(first)));
  while (SkipOperator("~")) {
    QUIRE_ASSIGN_OR_RETURN(ExprPtr part, ParseProduct());
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(part)));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::ParseProduct() {
  return ParseBinary(&ExpressionParser::ParsePower, {{"*", Operator::kMultiply},
                                                     {"/", Operator::kDivide},
                                                     {"//", Operator::kFloorDivide},
                                                     {"%", Operator::kModulo}});
}

ExpressionParser::Result ExpressionParser::ParsePower() {
  return ParseBinary(&ExpressionParser::ParseOperand, {{"**", Operator::kPower}});
}

ExpressionParser::Result ExpressionParser::ParseOperand() {
  return ParseUnary(/*with_filters=*/true);
}

ExpressionParser::Result ExpressionParser::ParseUnary(bool with_filters) {
  const DepthGuard nested(&depth_);
  if (depth_ > 2 * kMaxParseDepth)
    return ErrorAt(current().position, "the expression has too many consecutive signs");
  const Position position = current().position;
  ExprPtr node;
  if (IsOperator("-") || IsOperator("+")) {
    node = Make(IsOperator("-") ? ExprKind::kNegate : ExprKind::kPlus, position);
    Advance();
    QUIRE_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(/*with_filters=*/false));
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(operand)));
  } else {
    QUIRE_ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  QUIRE_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  if (with_filters) return ParseFilterOrTest(std::move(node));
  return node;
}

ExpressionParser::Result ExpressionParser::ParsePrimary() {
  const Token& token = current();
  if (token.type == TokenType::kName && !IsReserved(token.text)) {
    ExprPtr node = Make(ExprKind::kName, token.position);
    node->name = token.text;
    names_read_.push_back(token.text);
    Advance();
    return node;
  }
  if (SkipOperator("(")) {
    ExprPtr node;
    if (IsOperator(")")) {
      node = Make(ExprKind::kTuple, token.position);
    } else {
      QUIRE_ASSIGN_OR_RETURN(node, ParseTuple(/*with_conditional=*/true));
    }
    QUIRE_RETURN_IF_ERROR(ExpectOperator(")"));
    return node;
  }
  if (IsOperator("[")) return ParseList();
  if (IsOperator("{")) return ParseDict();
  return ParseLiteral();
}

ExpressionParser::Result ExpressionParser::ParseLiteral() {
  const Token& token = current();
  ExprPtr node = Make(ExprKind::kConst, token.position);
  switch (token.type) {
    case TokenType::kName:
      if (token.text == "none" || token.text == "None") {
        node->constant = Value::None();
      } else {
        node->constant = Value::Bool(token.text == "true" || token.text == "True");
      }
      break;
    case TokenType::kInteger:
      node->constant = Value::Int(token.integer);
      break;
    case TokenType::kFloat:
      node->constant = Value::Float(token.number);
      break;
    case TokenType::kString: {
      std::string text;
      for (; current().type == TokenType::kString; Advance()) text += current().text;
      node->constant = Value::String(std::move(text));
      return node;
    }
    default:
      return ExpectedError("an expression");
  }
  Advance();
  return node;
}

ExpressionParser::Result ExpressionParser::ParseList() {
  ExprPtr node = Make(ExprKind::kList, current().position);
  Advance();
  while (!IsOperator("]")) {
    if (!node->children.empty()) {
      QUIRE_RETURN_IF_ERROR(ExpectOperator(","));
      if (IsOperator("]")) break;
    }
    QUIRE_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(item)));
  }
  QUIRE_RETURN_IF_ERROR(ExpectOperator("]"));
  return node;
}

ExpressionParser::Result ExpressionParser::ParseDict() {
  ExprPtr node = Make(ExprKind::kDict, current().position);
  Advance();
  while (!IsOperator("}")) {
    if (!node->children.empty()) {
      QUIRE_RETURN_IF_ERROR(ExpectOperator(","));
      if (IsOperator("}")) break;
    }
    QUIRE_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    QUIRE_RETURN_IF_ERROR(ExpectOperator(":"));
    QUIRE_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(key)));
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(value)));
  }
  QUIRE_RETURN_IF_ERROR(ExpectOperator("}"));
  return node;
}

bool ExpressionParser::EndsTuple() const {
  return current().type == TokenType::kOutputEnd || current().type == TokenType::kBlockEnd ||
         current().type == TokenType::kEnd || IsOperator(")") || IsOperator("=") || IsName("in");
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseTuple(bool with_conditional) {
  const Position position = current().position;
  QUIRE_ASSIGN_OR_RETURN(ExprPtr first, ParseExpression(with_conditional));
  if (!IsOperator(",")) return first;
  ExprPtr node = Make(ExprKind::kTuple, position);
  QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(first)));
  while (SkipOperator(",")) {
    if (EndsTuple()) break;
    QUIRE_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression(with_conditional));
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(item)));
  }
  return node;
}

ExpressionParser::Result ExpressionParser::ParsePostfix(ExprPtr node) {
  for (;;) {
    if (IsOperator(".") || IsOperator("[")) {
      QUIRE_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
    } else if (IsOperator("(")) {
      QUIRE_ASSIGN_OR_RETURN(node, ParseCall(std::move(node)));
    } else {
      return node;
    }
  }
}

ExpressionParser::Result ExpressionParser::ParseFilterOrTest(ExprPtr node) {
  for (;;) {
    if (IsOperator("|")) {
      Advance();
      QUIRE_ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
    } else if (IsName("is")) {
      QUIRE_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else if (IsOperator("(")) {
      QUIRE_ASSIGN_OR_RETURN(node, ParseCall(std::move(node)));
    } else {
      return node;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFilters() {
  ExprPtr input;
  do {
    QUIRE_ASSIGN_OR_RETURN(input, ParseFilter(std::move(input)));
  } while (SkipOperator("|"));
  return input;
}

ExpressionParser::Result ExpressionParser::ParseFilter(ExprPtr input) {
  ExprPtr node = Make(ExprKind::kFilter, current().position);
  QUIRE_ASSIGN_OR_RETURN(node->name, ExpectName());
  node->filter = FindFilter(node->name);
  if (node->filter == nullptr) {
    unsupported_.push_back(
        {node->position, absl::StrCat("the filter '", node->name, "' is not supported")});
  }
  QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(input)));
  if (IsOperator("(")) QUIRE_RETURN_IF_ERROR(ParseArguments(node.get()));
  return node;
}

ExpressionParser::Result ExpressionParser::ParseTest(ExprPtr value) {
  Advance();
  const Position position = current().position;
  const bool negated = SkipName("not");
  ExprPtr node = Make(ExprKind::kTest, current().position);
  QUIRE_ASSIGN_OR_RETURN(node->name, ExpectName());
  node->test = FindTest(node->name);
  if (node->test == nullptr) {
    unsupported_.push_back(
        {node->position, absl::StrCat("the test '", node->name, "' is not supported")});
  }
  QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(value)));
  const TokenType type = current().type;
  if (IsOperator("(")) {
    QUIRE_RETURN_IF_ERROR(ParseArguments(node.get()));
  } else if (type == TokenType::kString || type == TokenType::kInteger ||
             type == TokenType::kFloat || IsOperator("[") || IsOperator("{") ||
             (type == TokenType::kName && !IsName("else") && !IsName("or") && !IsName("and"))) {
    if (IsName("is")) return ErrorAt(current().position, "tests cannot be chained with is");
    QUIRE_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    QUIRE_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(argument)));
  }
  if (!negated) return node;
  ExprPtr negation = Make(ExprKind::kNot, position);
  QUIRE_RETURN_IF_ERROR(AddChild(negation.get(), std::move(node)));
  return negation;
}

ExpressionParser::Result ExpressionParser::ParseSubscript(ExprPtr node) {
  const Position position = current().position;
  if (!SkipOperator(".")) {
    Advance();
    return ParseIndex(std::move(node), position);
  }
  if (current().type == TokenType::kInteger) {
    ExprPtr index = Make(ExprKind::kIndex, position);
    QUIRE_RETURN_IF_ERROR(AddChild(index.get(), std::move(node)));
    QUIRE_ASSIGN_OR_RETURN(ExprPtr number, ParseLiteral());
    QUIRE_RETURN_IF_ERROR(AddChild(index.get(), std::move(number)));
    return index;
  }
  ExprPtr attribute = Make(ExprKind::kAttribute, position);
  QUIRE_ASSIGN_OR_RETURN(attribute->name, ExpectName());
  QUIRE_RETURN_IF_ERROR(AddChild(attribute.get(), std::move(node)));
  return attribute;
}

// Parses an index or a slice, and the closing "]". The "[" has been consumed already.
ExpressionParser::Result ExpressionParser::ParseIndex(ExprPtr node, Position position) {
  std::vector<ExprPtr> parts(1);
  bool is_slice = false;
  while (!IsOperator("]")) {
    if (IsOperator(":")) {
      is_slice = true;
      Advance();
      parts.emplace_back();
      if (parts.size() > 3) return ExpectedError("']'");
      continue;
    }
    if (parts.back() != nullptr) return ExpectedError("']'");
    QUIRE_ASSIGN_OR_RETURN(parts.back(), is_slice ? ParseExpression() : ParseTuple(true));
  }
  if (!is_slice && parts.front() == nullptr) return ExpectedError("an index");
  Advance();
  ExprPtr index = Make(is_slice ? ExprKind::kSlice : ExprKind::kIndex, position);
  QUIRE_RETURN_IF_ERROR(AddChild(index.get(), std::move(node)));
  if (is_slice) parts.resize(3);
  for (ExprPtr& part : parts) QUIRE_RETURN_IF_ERROR(AddChild(index.get(), std::move(part)));
  return index;
}

ExpressionParser::Result ExpressionParser::ParseCall(ExprPtr callee) {
  ExprPtr node = Make(ExprKind::kCall, callee->position);
  if (callee->kind == ExprKind::kAttribute && IsUnsupportedMethod(callee->name)) {
    unsupported_.push_back(
        {callee->position, absl::StrCat("the method '", callee->name, "' is not supported")});
  }
  QUIRE_RETURN_IF_ERROR(AddChild(node.get(), std::move(callee)));
  QUIRE_RETURN_IF_ERROR(ParseArguments(node.get()));
  return node;
}

absl::Status ExpressionParser::ParseArguments(Expr* call) {
  QUIRE_RETURN_IF_ERROR(ExpectOperator("("));
  bool first = true;
  while (!IsOperator(")")) {
    if (!first) {
      QUIRE_RETURN_IF_ERROR(ExpectOperator(","));
      if (IsOperator(")")) break;
    }
    first = false;
    if (IsOperator("*") || IsOperator("**")) return ExpectedError("an argument without stars");
    const bool is_named = current().type == TokenType::kName &&
                          next().type == TokenType::kOperator && next().text == "=";
    std::string name;
    if (is_named) {
      name = current().text;
      const auto is_same = [&name](const auto& argument) { return argument.first == name; };
      if (std::any_of(call->named.begin(), call->named.end(), is_same)) {
        return ExpectedError("an argument name that is not already used");
      }
      Advance();
      Advance();
    } else if (!call->named.empty()) {
      return ExpectedError("a named argument");
    }
    QUIRE_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    if (!is_named) {
      QUIRE_RETURN_IF_ERROR(AddChild(call, std::move(value)));
      if (call->children.size() > kMaxArguments) {
        return ErrorAt(call->position,
                       absl::StrCat("the call has more than ", kMaxArguments - 1, " arguments"));
      }
      continue;
    }
    call->depth = std::max(call->depth, value->depth + 1);
    call->named.emplace_back(std::move(name), std::move(value));
  }
  return ExpectOperator(")");
}

absl::StatusOr<Target> ExpressionParser::ParseTarget(bool with_attributes) {
  const DepthGuard nested(&depth_);
  if (depth_ > kMaxParseDepth) return ErrorAt(current().position, "the target is nested too deep");
  std::vector<Target> elements;
  const Position position = current().position;
  bool is_tuple = false;
  do {
    if (EndsTuple()) break;
    Target element;
    element.position = current().position;
    if (SkipOperator("(")) {
      QUIRE_ASSIGN_OR_RETURN(element, ParseTarget(with_attributes));
      QUIRE_RETURN_IF_ERROR(ExpectOperator(")"));
    } else {
      if (current().type == TokenType::kName && IsReserved(current().text)) {
        return ExpectedError("a name that can be assigned to");
      }
      QUIRE_ASSIGN_OR_RETURN(element.name, ExpectName());
      if (with_attributes && SkipOperator(".")) {
        QUIRE_ASSIGN_OR_RETURN(element.attribute, ExpectName());
        names_read_.push_back(element.name);
      }
    }
    elements.push_back(std::move(element));
    if (!IsOperator(",")) break;
    is_tuple = true;
  } while (SkipOperator(","));
  if (elements.empty()) return ExpectedError("a name");
  if (!is_tuple) return std::move(elements.front());
  Target target;
  target.position = position;
  target.elements = std::move(elements);
  target.is_tuple = true;
  return target;
}

}  // namespace quire::text::jinja

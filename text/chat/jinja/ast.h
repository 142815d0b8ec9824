#pragma once

// The syntax tree of a template.
//
// Place:      between parser and interpreter.
// Invariants: depths are within the parser's limits. A kFilter node without `filter`, or a kTest
//             node without `test`, has a name that is not supported. The parser accepts such nodes
//             only inside an `if`, whose branches may never be executed.
// Threads:    immutable after parsing.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

struct FilterRow;  // filters.h
struct TestRow;    // tests.h

// Position of the first character of a token or node. Lines and columns count from 1; a column is
// one character.
struct Position {
  std::int32_t line = 0;
  std::int32_t column = 0;
};

enum class Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : std::uint8_t {
  kConst,        // constant
  kName,         // name
  kAttribute,    // children[0].name
  kIndex,        // children[0][children[1]]
  kSlice,        // children[0][children[1]:children[2]:children[3]]; null: omitted
  kCall,         // children[0](children[1..], named)
  kFilter,       // children[0] | filter(children[1..], named); null children[0]: the block's text
  kTest,         // children[0] is test(children[1..], named)
  kNegate,       // -children[0]
  kPlus,         // +children[0]
  kNot,          // not children[0]
  kBinary,       // children[0] operators[0] children[1]
  kCompare,      // children[0] operators[0] children[1] operators[1] children[2] ...
  kAnd,          // two children
  kOr,           // two children
  kConcat,       // children joined by ~
  kConditional,  // children[1] if children[0] else children[2], which may be null
  kList,
  kTuple,
  kDict  // key, value, key, value ...
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  Position position;
  int depth = 1;  // 1 + the maximum depth of the children
  Value constant;
  std::string name;
  const FilterRow* filter = nullptr;
  const TestRow* test = nullptr;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;  // named arguments
  std::vector<Operator> operators;
};

// The target of set and for: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  Position position;
  std::string name;
  std::string attribute;  // attribute of the namespace `name`; empty: assign to the name itself
  std::vector<Target> elements;  // not empty: unpack the value into these
  bool is_tuple = false;
};

enum class StmtKind : std::uint8_t {
  kText,         // text
  kOutput,       // expr
  kIf,           // branches; the else branch has no condition
  kFor,          // for target in expr if condition: body, else_body
  kSet,          // target = expr
  kSetBlock,     // target = body, filtered by expr unless it is null
  kMacro,        // name(parameters): body
  kCallBlock,    // calls expr; body is its caller macro, with `parameters`
  kFilterBlock,  // body, filtered by expr
  kWith,         // assignments: body
  kScope,        // body
  kBreak,
  kContinue
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Branch {
  ExprPtr condition;
  Body body;
};

struct Parameter {
  std::string name;
  ExprPtr default_value;  // null: no default
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  Position position;
  std::string text;  // also the name of a macro
  Target target;
  ExprPtr expr;
  ExprPtr condition;
  Body body;
  Body else_body;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  // Whether the body of a macro uses these special names.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

}  // namespace quire::text::jinja

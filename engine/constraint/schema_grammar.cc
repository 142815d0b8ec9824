#include "engine/constraint/schema_grammar.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/utf8.h"
#include "engine/constraint/number_grammar.h"

namespace quire::engine {

namespace {

using Expression = GrammarText::Expression;

// Undeclared names may differ from the declared names at up to this many nodes of the NameTree
// below.
constexpr std::int64_t kMaxNameStates = 4;
constexpr int kMaxNameDepth = 64;

// The first kMaxNameDepth characters of names, as a tree.
struct NameTree {
  bool is_name = false;
  std::map<char32_t, NameTree> next;

  void Add(absl::string_view name) {
    NameTree* at = this;
    std::size_t i = 0;
    for (int depth = 0; i < name.size() && depth < kMaxNameDepth; ++depth) {
      const Utf8Char c = DecodeUtf8At(name, i);
      at = &at->next[c.code_point];
      i += c.size_bytes;
    }
    at->is_name |= i == name.size();
  }

  // Returns the number of nodes at a depth less than `depth`.
  std::int64_t CountTo(int depth) const {
    if (depth == 0) return 0;
    std::int64_t count = 1;
    for (const auto& [c, child] : next) count += child.CountTo(depth - 1);
    return count;
  }
};

enum class ValueSyntax : std::uint8_t { kJson, kPython };

// Quotes of a string, and the encoding of the characters inside them.
struct Quotes {
  char mark;
  Spelling spelling;
};
constexpr Quotes kDouble = {'"', Spelling::kJsonString}, kSingle = {'\'', Spelling::kSingleQuoted};

class Writer {
 public:
  Writer(const SchemaDocument& document, ValueSyntax syntax, JsonWhitespace whitespace,
         GrammarText* grammar)
      : document_(document),
        grammar_(*grammar),
        is_python_(syntax == ValueSyntax::kPython),
        quotes_(is_python_ ? std::vector{kDouble, kSingle} : std::vector{kDouble}) {
    is_compact_ = whitespace == JsonWhitespace::kCompact;
    if (is_compact_) return;
    indent_ = WriteIndent();
    gap_ = grammar_.Share(GrammarText::Choice(OptionsWithGap(GrammarText::Empty())));
  }

  std::vector<Expression> Write(std::span<const SchemaId> schemas) {
    std::vector<Expression> written;
    const auto is_string = [&](const Shape& shape) { return shape.string.has_value(); };
    strings_are_nested_ = !is_python_ && std::ranges::none_of(schemas, [&](SchemaId id) {
      return std::ranges::any_of(document_.ShapesOf(id), is_string);
    });
    for (const SchemaId id : schemas) written.push_back(WriteSchema(id));
    WriteReservedRules();
    return written;
  }

  // Writes the objects that the root schema accepts, each in the form name=value, name=value.
  std::optional<Expression> WriteArguments() {
    std::vector<Expression> options;
    for (const Shape& shape : document_.ShapesOf(document_.root())) {
      for (const OrderedJson& value : shape.values) {
        if (value.is_object()) options.push_back(WritePairs(value, &Writer::WriteArgument));
      }
      if (!shape.object) continue;
      const auto properties = FindUsableProperties(*shape.object);
      if (!properties) continue;
      const ObjectText text{
          .name = &Writer::WriteArgument, .end = GrammarText::Empty(), .other = {}};
      const auto body = WriteMembers(*shape.object, *properties, text);
      if (body) options.push_back(*body);
    }
    if (options.empty()) return std::nullopt;
    const Expression written = grammar_.Share(GrammarText::Choice(options));
    WriteReservedRules();
    return written;
  }

 private:
  // Maximum indentation after a newline, in spaces and in tabs.
  static constexpr std::size_t kMaxSpaces = 40, kMaxTabs = 10;
  // Maximum number of white-space gaps that are written in place. Such a gap makes masks fast, but
  // the grammar library precomputes some masks for each one. All other gaps share one rule, and
  // their masks take twice as long.
  static constexpr int kMaxFastGaps = 256;
  // Longer expressions are shared instead of copied.
  static constexpr std::size_t kMaxCopiedBytes = 160;

  // Writes the white space at the start of a line, with each length spelled out. The library builds
  // one automaton from it and precomputes its masks. In JSON, the rule declares the few characters
  // that can follow.
  Expression WriteIndent() {
    Expression& cached = grammar_.CachedExpression(is_python_ ? "indent of Python" : "indent");
    if (!cached.empty()) return cached;
    std::vector<Expression> lengths;
    for (std::size_t i = 0; i <= kMaxSpaces; ++i) {
      lengths.push_back(GrammarText::Literal(std::string(i, ' ')));
    }
    for (std::size_t i = 1; i <= kMaxTabs; ++i) {
      lengths.push_back(GrammarText::Literal(std::string(i, '\t')));
    }
    const GrammarText::Rule rule = grammar_.Reserve();
    grammar_.Define(
        rule, GrammarText::Choice(lengths),
        is_python_ ? "" : "[\\u0022\\u002c-\\u002d0-9\\u003a\\u005b\\u005dfnt\\u007b\\u007d]");
    return cached = GrammarText::Reference(rule);
  }

  // Returns the alternatives of a gap followed by `next`.
  std::vector<Expression> OptionsWithGap(const Expression& next) const {
    std::vector<Expression> options = {next};
    for (const char* const space : {" ", "\n", "\r\n"}) {
      std::vector<Expression> parts = {GrammarText::Literal(space)};
      if (*space != ' ') parts.push_back(indent_);
      parts.push_back(next);
      options.push_back(GrammarText::Sequence(parts));
    }
    return options;
  }

  // Writes a gap and `next` in one rule, so that the library can precompute which tokens may follow
  // the gap. With a separate gap rule, the library would need a search each time that it computes a
  // mask.
  Expression AfterGap(const Expression& next) {
    if (is_compact_) return next;
    if (num_fast_gaps_ == kMaxFastGaps) return GrammarText::Sequence({gap_, next});
    ++num_fast_gaps_;
    const Expression copied = next.size() > kMaxCopiedBytes ? grammar_.Share(next) : next;
    return grammar_.Share(GrammarText::Choice(OptionsWithGap(copied)));
  }

  // Writes the white space after a comma or a colon, and then `next`.
  Expression AfterSeparator(const Expression& next) {
    if (is_compact_) return GrammarText::Sequence({GrammarText::Literal(" "), next});
    return AfterGap(next);
  }

  void WriteReservedRules() {
    // Schemas are written one after the other, so recursive references do not recurse here.
    for (std::size_t i = 0; i < reserved_.size() && !grammar_.is_refused(); ++i) {
      const auto [id, rule] = reserved_[i];
      std::vector<Expression> options;
      for (const Shape& shape : document_.ShapesOf(id)) AddShape(shape, &options);
      // WriteSchema is only called for schemas that accept some value.
      if (options.empty()) {
        grammar_.Refuse("internal error: a schema accepts no value");
      } else {
        grammar_.Define(rule, GrammarText::Choice(options));
      }
    }
  }

  // Returns an expression for the schema. For a schema of scalars it is a shared expression, and
  // for any other schema a reference to a rule that WriteReservedRules defines. REQUIRES: the
  // schema accepts some value.
  Expression WriteSchema(SchemaId id) {
    const auto found = schemas_.find(id);
    if (found != schemas_.end()) return found->second;
    // Schemas of scalars reserve no rule, because such a rule could be an alias of another rule.
    // An alias makes masks slow (GrammarText::Share).
    if (std::ranges::none_of(document_.ShapesOf(id), [](const Shape& shape) {
          return shape.array.has_value() || shape.object.has_value();
        })) {
      std::vector<Expression> options;
      for (const Shape& shape : document_.ShapesOf(id)) AddShape(shape, &options);
      if (!options.empty()) {
        return schemas_.emplace(id, grammar_.Share(GrammarText::Choice(options))).first->second;
      }
    }
    const GrammarText::Rule rule = grammar_.Reserve();
    reserved_.emplace_back(id, rule);
    return schemas_.emplace(id, GrammarText::Reference(rule)).first->second;
  }

  void AddShape(const Shape& shape, std::vector<Expression>* options) {
    for (const OrderedJson& value : shape.values) options->push_back(WriteValue(value));
    if (shape.null) options->push_back(WriteScalar(nullptr));
    if (shape.boolean) {
      options->push_back(WriteScalar(true));
      options->push_back(WriteScalar(false));
    }
    if (shape.number) options->push_back(WriteNumber(*shape.number));
    if (shape.string) options->push_back(WriteString(*shape.string));
    if (shape.array) AddArray(*shape.array, options);
    if (shape.object) AddObject(*shape.object, options);
  }

  static Expression WriteQuoteMark(const Quotes& quotes) {
    return GrammarText::Literal(absl::string_view(&quotes.mark, 1));
  }

  // Writes a string with each of the allowed quotes.
  template <typename Write>
  Expression WriteInQuotes(const Write& write) {
    std::vector<Expression> options;
    for (const Quotes& quotes : quotes_) options.push_back(write(quotes));
    return options.size() == 1 ? options[0] : grammar_.Share(GrammarText::Choice(options));
  }

  Expression WriteFreeString() {
    return WriteInQuotes([&](const Quotes& quotes) { return WriteFreeString(quotes); });
  }

  Expression WriteFreeString(const Quotes& quotes) {
    const std::string name = absl::StrCat("free string", is_python_ ? " of Python " : "",
                                          is_python_ ? absl::string_view(&quotes.mark, 1) : "",
                                          strings_are_nested_ ? " nested" : "");
    Expression& cached = grammar_.CachedExpression(name);
    if (!cached.empty()) return cached;
    const auto mark = static_cast<char32_t>(quotes.mark);
    const CodePoints raw =
        CodePoints::All().Minus(CodePoints({{0, 0x1F}, {mark, mark}, {'\\', '\\'}}));
    // The one-letter escapes. Python does not treat \/ as an escape.
    std::vector<CodePoints::Range> letters = {{mark, mark}, {'\\', '\\'}, {'b', 'b'}, {'f', 'f'},
                                              {'n', 'n'},   {'r', 'r'},   {'t', 't'}};
    if (!is_python_) letters.emplace_back('/', '/');
    // A single rule up to the closing quote gives the fastest masks.
    const GrammarText::Rule rest = grammar_.Reserve();
    const Expression again = GrammarText::Reference(rest);
    const Expression escaped = grammar_.Character(CodePoints(letters), Spelling::kPlain);
    grammar_.Define(
        rest,
        absl::StrCat(WriteQuoteMark(quotes), " | ", grammar_.Character(raw, Spelling::kPlain), " ",
                     again, " | \"\\u005c\" ", escaped, " ", again, " | \"\\u005c\" ",
                     WriteUnicodeEscape(), " ", again),
        strings_are_nested_ ? GrammarText::Sequence({gap_, "[\\u002c\\u003a\\u005d\\u007d]"}) : "");
    cached = grammar_.Share(GrammarText::Sequence({WriteQuoteMark(quotes), again}));
    return cached;
  }

  // Matches any \u escape except unpaired surrogates. Python has no surrogate pairs, so its escapes
  // exclude all surrogates.
  Expression WriteUnicodeEscape() const {
    constexpr char kHex[] = "[0-9A-Fa-f]";
    const Expression pair = absl::StrCat(" | [Dd] [89ABab] ", kHex, " ", kHex,
                                         " \"\\u005cu\" [Dd] [C-Fc-f] ", kHex, " ", kHex);
    return absl::StrCat("\"u\" ([0-9A-Ca-cE-Fe-f] ", kHex, " ", kHex, " ", kHex, " | [Dd] [0-7] ",
                        kHex, " ", kHex, is_python_ ? "" : pair, ")");
  }

  static Expression WriteQuoted(const Quotes& quotes, const Expression& body) {
    return GrammarText::Sequence({WriteQuoteMark(quotes), body, WriteQuoteMark(quotes)});
  }

  Expression WriteString(const StringShape& string) {
    if (!string.pattern && string.min == 0 && !string.max) return WriteFreeString();
    return WriteInQuotes([&](const Quotes& quotes) { return WriteString(string, quotes); });
  }

  Expression WriteString(const StringShape& string, const Quotes& quotes) {
    if (string.pattern) {
      return grammar_.Share(
          WriteQuoted(quotes, WriteRegex(*string.pattern, quotes.spelling, &grammar_)));
    }
    const CodePoints any = CodePoints::All();
    if (string.max && *string.max <= GrammarText::kMaxCounted) {
      const Expression rest = grammar_.CharactersBefore(WriteQuoteMark(quotes), any,
                                                        quotes.spelling, string.min, *string.max);
      return grammar_.Share(GrammarText::Sequence({WriteQuoteMark(quotes), rest}));
    }
    return grammar_.Share(WriteQuoted(
        quotes, grammar_.RepeatCharacter(any, quotes.spelling, string.min, string.max)));
  }

  Expression WriteNumber(const NumberShape& number) {
    if (number.multiples) return grammar_.Share(WriteNumbers(*number.multiples, &grammar_));
    if (number.range.low || number.range.high) {
      const auto within =
          number.integers ? IntegersWithin(number.range) : NumbersWithin(number.range);
      QUIRE_CHECK(within.has_value());
      return grammar_.Share(*within);
    }
    const Expression whole = "\"-\"? (\"0\" | [1-9] [0-9]*)";
    if (number.integers) return grammar_.Share(whole);
    return grammar_.Share(absl::StrCat(
        whole, " (\"\\u002e\" [0-9] [0-9]*)? ([Ee] (\"\\u002b\" | \"-\")? [0-9] [0-9]?)?"));
  }

  // Returns the canonical text without its quotes.
  static std::string Canonical(const std::string& text, const Quotes& quotes) {
    const std::string json = OrderedJson(text).dump();
    if (quotes.spelling == Spelling::kJsonString) return json.substr(1, json.size() - 2);
    std::string out;
    for (std::size_t i = 1; i + 1 < json.size(); ++i) {
      if (json[i] == '\\' && json[i + 1] == '"') {
        out += json[++i];
      } else if (json[i] == '\\') {
        out += json[i++];
        out += json[i];
      } else {
        if (json[i] == quotes.mark) out += '\\';
        out += json[i];
      }
    }
    return out;
  }

  Expression WriteStringLiteral(const std::string& text) {
    return WriteInQuotes([&](const Quotes& quotes) {
      const std::string mark(1, quotes.mark);
      return GrammarText::Literal(absl::StrCat(mark, Canonical(text, quotes), mark));
    });
  }

  Expression WriteScalar(const OrderedJson& value) {
    if (value.is_string()) return WriteStringLiteral(value.get<std::string>());
    if (is_python_ && value.is_null()) return GrammarText::Literal("None");
    if (is_python_ && value.is_boolean()) {
      return GrammarText::Literal(value.get<bool>() ? "True" : "False");
    }
    return GrammarText::Literal(value.dump());
  }

  // Writes one constant, with gaps where they are allowed.
  Expression WriteValue(const OrderedJson& value) {
    if (value.is_array()) {
      std::vector<Expression> parts = {GrammarText::Literal("["), gap_};
      for (std::size_t i = 0; i < value.size(); ++i) {
        if (i > 0) parts.push_back(WriteConstantSeparator(","));
        parts.push_back(WriteValue(value[i]));
      }
      if (!value.empty()) parts.push_back(gap_);
      parts.push_back(GrammarText::Literal("]"));
      return GrammarText::Sequence(parts);
    }
    if (!value.is_object()) return WriteScalar(value);
    std::vector<Expression> parts = {GrammarText::Literal("{"), gap_};
    parts.push_back(WritePairs(value, &Writer::WriteKey));
    if (!value.empty()) parts.push_back(gap_);
    parts.push_back(GrammarText::Literal("}"));
    return GrammarText::Sequence(parts);
  }

  // Writes the name of a member and then `value`, which matches the member's value and all text
  // after it.
  using WriteName = Expression (Writer::*)(const std::string& name, const Expression& value);
  Expression WriteKey(const std::string& name, const Expression& value) {
    return WriteNameAndValue(WriteStringLiteral(name), value);
  }
  Expression WriteArgument(const std::string& name, const Expression& value) {
    return GrammarText::Sequence({GrammarText::Literal(absl::StrCat(name, "=")), value});
  }

  Expression WritePairs(const OrderedJson& object, WriteName write_name) {
    std::vector<Expression> parts;
    for (const auto& [name, member] : object.items()) {
      if (!parts.empty()) parts.push_back(WriteConstantSeparator(","));
      if (write_name == &Writer::WriteArgument) {
        parts.push_back(WriteArgument(name, WriteValue(member)));
      } else {
        parts.push_back(WriteStringLiteral(name));
        parts.push_back(WriteConstantSeparator(":"));
        parts.push_back(WriteValue(member));
      }
    }
    return GrammarText::Sequence(parts);
  }

  // Writes a comma or a colon inside a constant. Unlike WriteComma and WriteNameAndValue, adds no
  // rules.
  Expression WriteConstantSeparator(absl::string_view mark) const {
    return GrammarText::Sequence(
        {gap_, GrammarText::Literal(mark), is_compact_ ? GrammarText::Literal(" ") : gap_});
  }

  Expression WriteComma(const Expression& next) {
    return AfterGap(GrammarText::Sequence({GrammarText::Literal(","), AfterSeparator(next)}));
  }
  Expression WriteNameAndValue(const Expression& name, const Expression& value) {
    return GrammarText::Sequence({name, AfterGap(GrammarText::Sequence(
                                            {GrammarText::Literal(":"), AfterSeparator(value)}))});
  }

  void AddArray(const ArrayShape& array, std::vector<Expression>* options) {
    if (array.unique != nullptr) return AddUniqueItems(*array.unique, options);
    // Count the positions that accept some value, and how many items are allowed.
    std::size_t prefix = 0;
    while (prefix < array.prefix.size() && document_.HasValue(array.prefix[prefix])) ++prefix;
    std::optional<std::int64_t> max = array.max;
    const bool is_cut = prefix < array.prefix.size();
    if (is_cut || !document_.HasValue(array.items)) {
      max = std::min<std::int64_t>(static_cast<std::int64_t>(prefix), max.value_or(INT64_MAX));
    }
    if (max && *max < array.min) return;
    const auto count = static_cast<std::int64_t>(prefix);
    // Built from the last position to the first: `rest` matches what may follow the current
    // position.
    Expression rest = AfterGap(GrammarText::Literal("]"));
    if (!max || *max > count) {
      const bool is_first = count == 0;  // the first item has no comma before it
      const std::int64_t before = is_first ? 1 : count;
      const std::optional<std::int64_t> more = max ? std::optional(*max - before) : std::nullopt;
      const Expression item = WriteSchema(array.items);
      rest = GrammarText::Sequence(
          {grammar_.Repeat(WriteComma(item), std::max<std::int64_t>(array.min - before, 0), more),
           rest});
      if (is_first) {
        return FinishArray(array.min == 0, GrammarText::Sequence({item, rest}), options);
      }
    }
    for (std::size_t i = prefix; i-- > 1;) {
      const auto at = static_cast<std::int64_t>(i);
      if (max && at >= *max) continue;
      std::vector<Expression> alternatives = {
          WriteComma(GrammarText::Sequence({WriteSchema(array.prefix[i]), rest}))};
      if (at >= array.min) alternatives.push_back(AfterGap(GrammarText::Literal("]")));
      rest = grammar_.Share(GrammarText::Choice(alternatives));
    }
    if (prefix == 0 || (max && *max == 0)) {
      if (array.min == 0) options->push_back(WriteEmptyContainer("[", "]"));
      return;
    }
    FinishArray(array.min == 0, GrammarText::Sequence({WriteSchema(array.prefix[0]), rest}),
                options);
  }

  void AddUniqueItems(const UniqueItems& items, std::vector<Expression>* options) {
    std::vector<Expression> values;
    for (const OrderedJson& value : items.values)
      values.push_back(grammar_.Share(WriteValue(value)));
    // Built from the last state to the first: rest[i] matches what may follow in state i.
    std::vector<Expression> rest(items.states.size());
    const auto next = [&](const UniqueItems::State& state) {
      std::vector<Expression> alternatives;
      for (const auto& [value, to] : state.transitions) {
        alternatives.push_back(GrammarText::Sequence({values[value], rest[to]}));
      }
      return grammar_.Share(GrammarText::Choice(alternatives));
    };
    for (std::size_t i = items.states.size(); i-- > 1;) {
      const UniqueItems::State& state = items.states[i];
      std::vector<Expression> alternatives;
      if (!state.transitions.empty()) alternatives.push_back(WriteComma(next(state)));
      if (state.may_end) alternatives.push_back(AfterGap(GrammarText::Literal("]")));
      // If nothing can follow in a state, no transition leads to it, and its rest[i] stays empty.
      if (!alternatives.empty()) rest[i] = grammar_.Share(GrammarText::Choice(alternatives));
    }
    const UniqueItems::State& start = items.states[0];
    if (!start.transitions.empty()) return FinishArray(start.may_end, next(start), options);
    options->push_back(WriteEmptyContainer("[", "]"));
  }

  void FinishArray(bool may_be_empty, const Expression& items, std::vector<Expression>* options) {
    options->push_back(GrammarText::Sequence({GrammarText::Literal("["), AfterGap(items)}));
    if (may_be_empty) options->push_back(WriteEmptyContainer("[", "]"));
  }

  Expression WriteEmptyContainer(absl::string_view open, absl::string_view close) {
    return GrammarText::Sequence(
        {GrammarText::Literal(open), AfterGap(GrammarText::Literal(close))});
  }

  // Writes the remaining characters of an undeclared name and its closing quote. Fewer than `depth`
  // of them match a path in `tree`. `rest` matches all after the first character that differs. The
  // depth is limited, because each branching position costs a traversal of the vocabulary.
  Expression WriteUndeclaredName(const NameTree& tree, int depth, const Quotes& quotes,
                                 const Expression& rest) {
    std::vector<Expression> options;
    std::vector<CodePoints::Range> declared_chars;
    for (const auto& [c, next] : tree.next) {
      declared_chars.emplace_back(c, c);
      if (depth <= 1) continue;
      options.push_back(
          GrammarText::Sequence({grammar_.Character(CodePoints({{c, c}}), quotes.spelling),
                                 WriteUndeclaredName(next, depth - 1, quotes, rest)}));
    }
    const CodePoints others = CodePoints(std::move(declared_chars)).Complement();
    options.push_back(GrammarText::Sequence({grammar_.Character(others, quotes.spelling), rest}));
    if (!tree.is_name) options.push_back(WriteQuoteMark(quotes));
    return grammar_.Share(GrammarText::Choice(options));
  }

  Expression WriteOtherName(const ObjectShape& object) {
    if (!object.names && object.properties.empty()) return WriteFreeString();
    return WriteInQuotes([&](const Quotes& quotes) { return WriteOtherName(object, quotes); });
  }

  Expression WriteOtherName(const ObjectShape& object, const Quotes& quotes) {
    if (object.names) {
      return WriteQuoted(quotes, WriteRegex(*object.names, quotes.spelling, &grammar_));
    }
    NameTree tree;
    for (const auto& property : object.properties) tree.Add(property.name);
    int depth = 1;
    while (depth < kMaxNameDepth && tree.CountTo(depth + 1) <= kMaxNameStates) ++depth;
    // The grammar allows one spelling of each character, so no other spelling of a declared name
    // can pass as an undeclared name.
    const GrammarText::Rule rest = grammar_.Reserve();
    const Expression again = GrammarText::Reference(rest);
    const Expression any = grammar_.Character(CodePoints::All(), quotes.spelling);
    grammar_.Define(
        rest, GrammarText::Choice({WriteQuoteMark(quotes), GrammarText::Sequence({any, again})}));
    return GrammarText::Sequence(
        {WriteQuoteMark(quotes), WriteUndeclaredName(tree, depth, quotes, again)});
  }

  // Returns the properties that accept some value, or nullopt if a required property accepts none.
  std::optional<std::vector<ObjectShape::Property>> FindUsableProperties(
      const ObjectShape& object) const {
    std::vector<ObjectShape::Property> properties;
    for (const auto& property : object.properties) {
      if (document_.HasValue(property.schema)) {
        properties.push_back(property);
      } else if (property.required) {
        return std::nullopt;
      }
    }
    return properties;
  }

  // Determines how the members of an object are written.
  struct ObjectText {
    WriteName name;
    Expression end;  // text after the last member; the gap before it is added separately
    std::optional<Expression> other;  // an undeclared member; nullopt: none is allowed
  };

  void AddObject(const ObjectShape& object, std::vector<Expression>* options) {
    const auto properties = FindUsableProperties(object);
    if (!properties) return;
    ObjectText text{.name = &Writer::WriteKey, .end = GrammarText::Literal("}"), .other = {}};
    if (document_.HasValue(object.additional)) {
      text.other =
          grammar_.Share(WriteNameAndValue(WriteOtherName(object), WriteSchema(object.additional)));
    }
    if (const auto body = WriteMembers(object, *properties, text)) {
      options->push_back(GrammarText::Sequence({GrammarText::Literal("{"), AfterGap(*body)}));
    }
  }

  // Writes what may follow the opening bracket. Returns nullopt if nothing is valid.
  std::optional<Expression> WriteMembers(const ObjectShape& object,
                                         const std::vector<ObjectShape::Property>& properties,
                                         const ObjectText& text) {
    // before[i] has the possible numbers of members before property i, and before.back() those
    // before the end. Numbers above `max_count` are stored as `max_count`, because they allow the
    // same text.
    const std::int64_t max_count = std::max<std::int64_t>({1, object.min, object.max.value_or(0)});
    const auto is_full = [&](std::int64_t count) { return object.max && count >= *object.max; };
    std::vector<std::set<std::int64_t>> before(properties.size() + 1);
    before[0] = {0};
    for (std::size_t i = 0; i < properties.size(); ++i) {
      for (const std::int64_t count : before[i]) {
        if (!is_full(count)) before[i + 1].insert(std::min(count + 1, max_count));
        if (!properties[i].required) before[i + 1].insert(count);
      }
    }
    // Built from the last property to the first: rest[n] matches what may follow n members. A
    // missing entry means that nothing is valid.
    std::map<std::int64_t, Expression> rest;
    for (const std::int64_t count : before.back()) {
      if (count >= object.min) rest[count] = grammar_.Share(WriteEnd(object, count, text));
    }
    for (std::size_t i = properties.size(); i-- > 0;) {
      std::map<std::int64_t, Expression> here;
      for (const std::int64_t count : before[i]) {
        std::vector<Expression> options;
        const auto with = rest.find(std::min(count + 1, max_count)), without = rest.find(count);
        if (!is_full(count) && with != rest.end()) {
          const Expression member = (this->*text.name)(
              properties[i].name,
              GrammarText::Sequence({WriteSchema(properties[i].schema), with->second}));
          options.push_back(count > 0 ? WriteComma(member) : member);
        }
        if (!properties[i].required && without != rest.end()) options.push_back(without->second);
        if (!options.empty()) here[count] = grammar_.Share(GrammarText::Choice(options));
      }
      rest = std::move(here);
    }
    const auto all = rest.find(0);
    return all == rest.end() ? std::nullopt : std::optional(all->second);
  }

  // Writes undeclared members and the end.
  Expression WriteEnd(const ObjectShape& object, std::int64_t count, const ObjectText& text) {
    const std::optional<std::int64_t> left =
        object.max ? std::optional(*object.max - count) : std::nullopt;
    if (!text.other || left == 0) return count == 0 ? text.end : AfterGap(text.end);
    const Expression more = WriteComma(*text.other);
    const Expression close = AfterGap(text.end);
    if (count > 0) return GrammarText::Sequence({grammar_.Repeat(more, 0, left), close});
    const std::optional<std::int64_t> after_first = left ? std::optional(*left - 1) : std::nullopt;
    return GrammarText::Choice(
        {GrammarText::Sequence({*text.other, grammar_.Repeat(more, 0, after_first), close}),
         text.end});
  }

  const SchemaDocument& document_;
  GrammarText& grammar_;
  const bool is_python_;
  const std::vector<Quotes> quotes_;
  bool is_compact_ = false;
  // True if all strings of the schemas are inside objects and arrays. Always false for Python.
  bool strings_are_nested_ = false;
  Expression indent_, gap_;  // empty if compact
  int num_fast_gaps_ = 0;
  std::map<SchemaId, Expression> schemas_;
  // The schemas with a reserved rule, in the order in which the rules are defined.
  std::vector<std::pair<SchemaId, GrammarText::Rule>> reserved_;
};

}  // namespace

std::vector<Expression> WriteSchemas(const SchemaDocument& document,
                                     std::span<const SchemaId> schemas, JsonWhitespace whitespace,
                                     GrammarText* grammar) {
  return Writer(document, ValueSyntax::kJson, whitespace, grammar).Write(schemas);
}

std::optional<Expression> WritePythonArguments(const SchemaDocument& document,
                                               JsonWhitespace whitespace, GrammarText* grammar) {
  return Writer(document, ValueSyntax::kPython, whitespace, grammar).WriteArguments();
}

}  // namespace quire::engine

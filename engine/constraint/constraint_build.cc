#include "engine/constraint/constraint_build.h"

#include <memory>
#include <stop_token>

#include "base/check.h"
#include "base/status.h"
#include "engine/constraint/constraint_grammar.h"
#include "engine/constraint/grammar_library.h"
#include "engine/constraint/special_tokens.h"

namespace quire::engine {

absl::StatusOr<ConstraintCompiler::BuildFunction> MakeConstraintBuildFunction(
    ConstraintVocabulary vocabulary) {
  // The library never allows a token with empty text. 0xFF occurs in no grammar, so a special token
  // with this text is allowed only where a grammar names its id.
  for (const auto& [text, id] : vocabulary.special) {
    std::string& token = vocabulary.tokens[static_cast<std::size_t>(id)];
    QUIRE_CHECK(token.empty());
    token.assign(1, static_cast<char>(0xFF));
  }
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const GrammarLibrary> library,
                         GrammarLibrary::Create(std::move(vocabulary.tokens)));
  return ConstraintCompiler::BuildFunction(
      [library = std::move(library), special = SpecialTokens(vocabulary.special)](
          const ConstraintSpec& spec, const std::stop_token& stop) -> ConstraintCompiler::Result {
        QUIRE_ASSIGN_OR_RETURN(ConstraintGrammar grammar, WriteConstraint(spec, special));
        return library->Compile(grammar.text, stop, std::move(grammar.unenforced));
      });
}

}  // namespace quire::engine

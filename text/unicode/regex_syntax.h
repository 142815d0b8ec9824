#pragma once

// Rewrites a pattern of Oniguruma (Ruby syntax, as Hugging Face tokenizers compiles it) or of the
// Rust crate fancy-regex (as tiktoken does) into one that means the same for PCRE2 10.42, or
// refuses it.
//
// Place:      in front of Regex::FromOniguruma and Regex::FromRust only.
// Threads:    pure.
// Source:     Oniguruma doc/RE, pcre2pattern(3) and experiments; table in docs/tokenizers.md.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text {

// What goes between the brackets of a class for the 25 white-space characters. PCRE2's \s under UCP
// has U+180E as well.
inline constexpr absl::string_view kSpaceClass =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f})"
    R"(\x{205f}\x{3000})";

// Word characters of Oniguruma; the Rust crate regex adds the joiners U+200C and U+200D. PCRE2's \w
// under UCP lacks marks and has all of \p{N}.
inline constexpr absl::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

// Errors: INVALID_ARGUMENT with the construct and its byte offset. Errors of syntax that both
// engines share are left to PCRE2.
absl::StatusOr<std::string> OnigurumaToPcre(absl::string_view pattern);  // UTF, UCP, MULTILINE
absl::StatusOr<std::string> RustToPcre(absl::string_view pattern);       // UTF, UCP, DOLLAR_ENDONLY

}  // namespace quire::text

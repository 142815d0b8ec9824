#pragma once

// Translates patterns to equivalent patterns for PCRE2 10.42, or rejects them. The input has the
// syntax of Oniguruma (Ruby syntax, as compiled by Hugging Face tokenizers) or of the Rust crate
// fancy-regex (as used by tiktoken).
//
// Place:      used by Regex::FromOniguruma and Regex::FromRust only.
// Threads:    pure functions.
// Source:     Oniguruma doc/RE, pcre2pattern(3) and experiments; table in docs/tokenizers.md.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text {

// The 25 white-space characters, for use inside brackets. PCRE2's \s under UCP also contains
// U+180E.
inline constexpr absl::string_view kSpaceClass =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f})"
    R"(\x{205f}\x{3000})";

// Word characters of the Rust crate regex: those of Oniguruma and the joiners U+200C and U+200D.
inline constexpr absl::string_view kRustWordClass =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d})";

// Return INVALID_ARGUMENT for an unsupported construct, with the construct and its byte offset. A
// syntax error that PCRE2 also rejects may be copied to the result. Compiling the result then
// reports the error.
//
// The returned pattern is for the PCRE2 options UTF, UCP and MULTILINE.
absl::StatusOr<std::string> OnigurumaToPcre(absl::string_view pattern);
// The returned pattern is for the PCRE2 options UTF, UCP and DOLLAR_ENDONLY.
absl::StatusOr<std::string> RustToPcre(absl::string_view pattern);

}  // namespace quire::text

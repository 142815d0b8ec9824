#pragma once

// Unicode normal forms of aligned text.
//
// Place:      below Normalizer. Uses utf8proc's tables, but not its reordering, which takes
//             quadratic time for long runs of combining marks.
// Invariants: a changed character has the span of the whole cluster that was rewritten.
// Threads:    pure functions.
// Source:     Unicode Standard Annex 15.

#include "text/unicode/aligned_text.h"

namespace quire::text {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

AlignedText ToNormalForm(const AlignedText& text, NormalForm form);

}  // namespace quire::text

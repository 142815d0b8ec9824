#pragma once

// Suggests a name for a misspelled one.
//
// Threads:    pure functions.
// Source:     Wagner and Fischer, "The String-to-String Correction Problem", JACM 21(1), 1974.

#include "absl/strings/string_view.h"

namespace quire {

// Returns the smallest number of bytes to insert, delete or replace that turns `a` into `b`. The
// time is proportional to the product of both sizes.
int EditDistance(absl::string_view a, absl::string_view b);

}  // namespace quire

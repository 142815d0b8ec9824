#pragma once

// Lets threads whose work can wait stand back behind those that make the next tokens.

namespace quire {

// The niceness of such threads. Where all processors are busy one of them has a tenth of what a
// thread of usual priority has, so that its work ends all the same; an idle machine gives it all
// that it can use.
inline constexpr int kBackgroundNice = 10;

// The calling thread's niceness becomes at least kBackgroundNice, for good: without a privilege no
// thread may raise its priority again. Threads that it starts inherit it. Where a sandbox forbids
// that, it stays as it is.
void LowerThreadPriority();

}  // namespace quire

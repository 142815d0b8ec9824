#pragma once

// Low priority for threads whose work can wait for the threads that compute tokens.

namespace quire {

// Niceness of low-priority threads. On a busy processor such a thread gets about 1.5 % of the time
// of a thread with niceness 0.
inline constexpr int kBackgroundNice = 19;

// Raises the niceness of the calling thread to at least kBackgroundNice. Undoing this needs a
// privilege, and threads started later inherit it. Returns false if a sandbox forbids it.
bool LowerPriority();

// Yields the processor if the calling thread has low priority. Call it every few tenths of a
// millisecond of work. Niceness alone is not enough: a running thread keeps its processor until the
// next scheduler tick (4 ms at 250 Hz) even if a compute thread wakes up, and a step waits for its
// slowest thread.
void YieldAtLowPriority();

}  // namespace quire

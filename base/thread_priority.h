#pragma once

// Gives low priority to threads whose work is less urgent than computing tokens.

namespace quire {

// Niceness of low-priority threads. On a busy processor such a thread gets about 1.5 % of the time
// of a thread with niceness 0.
inline constexpr int kBackgroundNice = 19;

// Raises the niceness of the calling thread to at least kBackgroundNice. Undoing this needs a
// privilege. Threads that the calling thread starts later inherit the niceness. Returns false if a
// sandbox forbids the change.
bool LowerPriority();

// Yields the processor if the calling thread has low priority. Call it every few tenths of a
// millisecond of work. Niceness alone is not enough: even if a compute thread wakes up, a running
// thread keeps its processor until the next scheduler tick (4 ms at 250 Hz). A step waits for its
// slowest thread.
void YieldAtLowPriority();

}  // namespace quire

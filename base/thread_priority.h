#pragma once

// Gives low priority to threads whose work is less urgent than computing tokens.

namespace quire {

// Niceness of low-priority threads. On a busy processor such a thread gets about 1.5 % of the time
// that a thread with niceness 0 gets.
inline constexpr int kBackgroundNice = 19;

// Raises the niceness of the calling thread to at least kBackgroundNice. Lowering it again needs a
// privilege. Threads that the calling thread starts later inherit the niceness. Returns false if a
// sandbox forbids the change.
bool LowerPriority();

// Yields the processor if the calling thread has low priority. Call it every few tenths of a
// millisecond of work. Niceness alone is not enough. If a compute thread wakes up, a running
// low-priority thread keeps its processor until the next scheduler tick (4 ms at 250 Hz), and a
// step waits for its slowest compute thread.
void YieldAtLowPriority();

}  // namespace quire

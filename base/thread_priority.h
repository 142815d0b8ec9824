#pragma once

// Lets threads whose work can wait stand back behind those that make the next tokens, and says what
// they have had of the processors.

#include <cstdint>

#include "absl/time/time.h"

namespace quire {

// The niceness of threads that stand back. Where all processors are busy, one of them has 1.5 % of
// what a thread of usual priority has, and what that leaves while it waits, so that its work ends
// all the same; an idle machine gives it all that it can use.
inline constexpr int kBackgroundNice = 19;

// The system's id of the calling thread.
std::int64_t ThisThread();

// The niceness of a thread of this process, which has not ended, becomes at least kBackgroundNice,
// for good: without a privilege it is not given its priority again. Threads that it starts inherit
// it. False: a sandbox forbids that, and it stays as it is.
bool LowerPriority(std::int64_t thread);

// Lets others have the processor of the calling thread, if that stands back; else does nothing. To
// be called every few tenths of a millisecond of work: by niceness alone a thread whose turn has
// come keeps its processor until the next tick of the system's clock, 4 ms at 250 Hz, from those
// that wake meanwhile too, and a step of a model that waits for one of its threads stands still for
// as long. A turn that is given away is lost, so what remains are times when no other thread wants
// the processor.
void GiveWay();

// The time of a processor that a thread of this process, which has not ended, has used. Infinite
// where the system does not say.
absl::Duration ProcessorTime(std::int64_t thread);

}  // namespace quire

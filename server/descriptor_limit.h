#pragma once

// How many files and connections this process may have open.
//
// Place:   called by main once, before anything listens.
// Threads: one.

namespace quire::server {

// Raises the soft limit of open files to the hard one, which the system's defaults leave far above
// it, and logs both.
void RaiseDescriptorLimit();

}  // namespace quire::server

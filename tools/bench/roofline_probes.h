#pragma once

// Roofline probes: the maximum rates of a machine. They are measured in the same process as the
// kernels, whose rates are compared with them (kernels/README.md).
//
// Place:   used by bench_kernels. Uses no code of the kernels.
// Threads: one caller at a time. Each probe is measured at its first use and cached.

namespace quire::roofline_probes {

struct ReadRate {
  double mean = 0;  // bytes per second over about two seconds: probe B
  double best = 0;  // bytes per second of the fastest pass, which takes tens of milliseconds
};
// Measures the memory bandwidth of `threads` threads, each reading its part of 512 MiB in huge
// pages. Kernels are compared with the mean, because their rates are means too. On a shared machine
// the best pass may be twice as fast.
ReadRate DramRead(int threads);

// Returns f32 multiply-adds per second, counted as two operations, in the widest registers of the
// machine. Returns 0 if the probe is not implemented for the architecture.
double FloatPeak(int threads);

// Returns int8 multiply-adds per second, counted as two operations. Uses 512-bit vpdpbusd if
// available, else 256-bit vpdpbusd. Without either, uses the faster of vpmaddwd on 16-bit values
// and vpmaddubsw with vpmaddwd, both with 256 bits. Returns 0 if the probe is not implemented for
// the architecture.
double Int8Peak(int threads);

// Returns the instructions of Int8Peak, such as "vpdpbusd, 512 bits".
const char* Int8PeakName();

}  // namespace quire::roofline_probes

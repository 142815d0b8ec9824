#pragma once

// What a machine can do at most, measured in the process that measures the kernels: the roofline
// probes that their figures are shares of (kernels/README.md).
//
// Place:   under bench_kernels. Sums nothing that a kernel uses.
// Threads: one caller at a time; each roofline probe is measured at its first use and kept.

namespace quire::roofline_probes {

struct ReadRate {
  double mean = 0;  // bytes per second over about two seconds: the roofline probe B
  double best = 0;  // of a single pass, tens of milliseconds
};
// What `threads` threads read from memory, each its own part of 512 MiB in huge pages. Kernels'
// figures are means too; on a machine whose memory is shared the best pass may be twice the mean.
ReadRate DramRead(int threads);

// Multiply-adds of f32 per second, counted as two operations, in the widest registers of the
// machine. 0 where this program has no loop for the architecture.
double FloatPeak(int threads);

// Products of int8 and sums of them per second, counted as two operations: vpdpbusd of 512 bits
// where the machine has it, else of 256 bits, else the better of vpmaddwd on 16-bit values and
// vpmaddubsw with vpmaddwd, both of 256 bits. 0 where this program has no loop for the
// architecture.
double Int8Peak(int threads);

// The instructions behind Int8Peak: "vpdpbusd, 512 bits".
const char* Int8PeakName();

}  // namespace quire::roofline_probes

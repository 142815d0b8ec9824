#!/bin/sh
# Units compiled for one instruction set must share no inline function with the rest of the program, because the linker
# could keep their copy for all processors. So their objects may define no weak symbol.
# Usage: isa_units_test.sh FOLDER, where FOLDER has the objects of kernels/.
set -eu

weak() {
  symbols_of=$(nm --defined-only "$1") && printf '%s\n' "$symbols_of" | awk '$2 ~ /^[VWuvw]$/'
}

units=$(find "$1" \( -name 'int_linear_*.cc.o' ! -name '*_scalar.cc.o' ! -name '*_choice.cc.o' \) -o -name bf16_linear_amx.cc.o -o -name bf16_linear_avx512bf16.cc.o)
count=$(printf '%s\n' "$units" | wc -l)
if [ "$count" -lt 9 ]; then
  echo "expected 9 objects of instruction sets under $1, found: $units"
  exit 1
fi
# An ordinary unit has such symbols. If it has none, the search is wrong.
ordinary=$(find "$1" -name 'backend.cc.o')
if [ -z "$(weak "$ordinary")" ]; then
  echo "no weak symbol in $ordinary, where some are expected"
  exit 1
fi
status=0
for unit in $units; do
  symbols=$(weak "$unit")
  if [ -n "$symbols" ]; then
    echo "$unit defines:"
    echo "$symbols"
    status=1
  fi
done
exit $status

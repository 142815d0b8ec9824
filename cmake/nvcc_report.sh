#!/bin/sh
# Launcher of nvcc. It stores the output of ptxas next to the object (x.o -> x.o.ptxas, read by
# tools/checks/cuda_gate.py) and prints only warnings and errors. It fails on two remarks that ptxas reports as
# information, although they mean that the kernel differs from its source.
#
#   nvcc_report.sh [ccache] nvcc ARGUMENTS
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
case $object in
  *.o) ;;
  *) exec "$@" ;;
esac
"$@" >"$object.ptxas" 2>&1
status=$?
if grep -E 'setmaxnreg.*ignored|wgmma.*(serializ|serialis)' "$object.ptxas" >&2; then
  echo "error: the remark above means that the kernel differs from its source" >&2
  rm -f "$object"
  exit 1
fi
grep -v -E '^ptxas info|bytes stack frame|^$' "$object.ptxas" >&2
exit $status

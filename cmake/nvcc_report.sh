#!/bin/sh
# Launcher of nvcc: keeps what ptxas says of an object beside it (x.o -> x.o.ptxas, read by tools/checks/cuda_gate.py),
# shows only what is not information, and fails on two remarks that ptxas calls information although the
# kernel is then not what its source says.
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
  echo "error: see the remark above; the object is not used" >&2
  rm -f "$object"
  exit 1
fi
grep -v -E '^ptxas info|bytes stack frame|^$' "$object.ptxas" >&2
exit $status

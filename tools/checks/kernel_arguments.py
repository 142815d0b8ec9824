"""The bytes of each kernel argument: what the host passes, and what the machine code takes.

The two sides of nvcc lay out classes apart, and a driver copies as many bytes as the machine code says, so a class that
they lay out in two ways arrives as other values. The emulator has one compiler for both and cannot show it.

The host's sizes are those of g++, in the name of `Enqueue` (kernels/cuda/launch.h): one instance for each list of
argument types. The machine code's are in EIATTR_KPARAM_INFO of a kernel, for each architecture.
"""

import re
import subprocess

HOST = re.compile(r"quire::kernels::cuda::Enqueue<((?:\d+ul(?:, )?)*)(.*?) ?>\(cudaLaunchConfig_st")
ARCHITECTURE = re.compile(r"arch = (\S+)")
KERNEL = re.compile(r"\.nv\.info\.(\S+)")
ARGUMENT = re.compile(r"\s+Value:\s+Index : \S+\s+Ordinal : (\S+)\s+Offset  : \S+\s+Size    : (\S+)")


def host_sizes(symbols):
    """{types of the arguments: their sizes} of the lines of `nm -C`."""
    return {match[2]: [int(size) for size in re.findall(r"\d+", match[1])] for match in HOST.finditer(symbols)}


def device_sizes(listing):
    """{(mangled kernel, architecture): sizes of its arguments} of `cuobjdump -elf`."""
    result, architecture, sizes = {}, None, {}
    for line in listing.splitlines():
        if match := ARCHITECTURE.match(line):
            architecture = match[1]
        elif match := KERNEL.match(line):
            sizes = result[match[1], architecture] = {}
        elif match := ARGUMENT.match(line):
            sizes[int(match[1], 16)] = int(match[2], 16)
    return {kernel: [size for _, size in sorted(sizes.items())] for kernel, sizes in result.items()}


def types_of(name):
    """`quire::Args, unsigned int` for `void quire::Kernel<8u>(quire::Args, unsigned int)`."""
    depth = 0
    for i in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[i], 0)
        if depth == 0:
            return name[i + 1:-1]
    return name


def check(unit, path, cuobjdump, count):
    """The errors of an object that has machine code of `count` kernels, one for each architecture counted."""
    def read(*command):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    host, device = host_sizes(read("nm", "-C", path)), device_sizes(read(cuobjdump, "-elf", path))
    if len(device) != count:
        return [f"{unit}: the machine code tells the arguments of {len(device)} kernels of {count}"]
    errors = []
    for (name, architecture), taken in sorted(device.items()):
        plain = read("c++filt", name).strip()
        passed = host.get(types_of(plain))
        if passed is None:
            errors.append(f"{unit}: {plain} for {architecture}: the host launches nothing with these arguments")
        elif passed != taken:
            errors.append(f"{unit}: {plain} for {architecture}: takes arguments of {taken} bytes, "
                          f"the host passes {passed}")
    return errors

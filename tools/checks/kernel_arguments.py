"""Compares the sizes of kernel arguments on the host and in the machine code.

The host and device compilers of nvcc lay out classes independently, and the driver copies as many bytes as the machine
code declares. So a class that they lay out differently arrives with wrong values. The emulator has one compiler and
cannot detect that.

The host's sizes are in the symbol names of `Enqueue` (kernels/cuda/launch.h), with one instance per list of argument
types. The sizes of the machine code are in EIATTR_KPARAM_INFO of each kernel and architecture.
"""

import re
import subprocess

HOST = re.compile(r"quire::kernels::cuda::Enqueue<((?:\d+ul(?:, )?)*)(.*?) ?>\(cudaLaunchConfig_st")
ARCHITECTURE = re.compile(r"arch = (\S+)")
KERNEL = re.compile(r"\.nv\.info\.(\S+)")
ARGUMENT = re.compile(r"\s+Value:\s+Index : \S+\s+Ordinal : (\S+)\s+Offset  : \S+\s+Size    : (\S+)")


def host_sizes(symbols):
    """Returns {types of the arguments: their sizes} from the output of `nm -C`."""
    return {match[2]: [int(size) for size in re.findall(r"\d+", match[1])] for match in HOST.finditer(symbols)}


def device_sizes(listing):
    """Returns {(mangled kernel, architecture): sizes of its arguments} from `cuobjdump -elf`."""
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
    """Returns `quire::Args, unsigned int` for `void quire::Kernel<8u>(quire::Args, unsigned int)`."""
    depth = 0
    for i in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[i], 0)
        if depth == 0:
            return name[i + 1:-1]
    return name


def check(unit, path, cuobjdump, count):
    """Returns the errors of an object with `count` kernels, counted per architecture."""
    def read(*command):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    host, device = host_sizes(read("nm", "-C", path)), device_sizes(read(cuobjdump, "-elf", path))
    if len(device) != count:
        return [f"{unit}: the machine code describes the arguments of {len(device)} of {count} kernels"]
    errors = []
    for (name, architecture), device_bytes in sorted(device.items()):
        plain = read("c++filt", name).strip()
        host_bytes = host.get(types_of(plain))
        if host_bytes is None:
            errors.append(f"{unit}: {plain} for {architecture}: the host launches no kernel with these arguments")
        elif host_bytes != device_bytes:
            errors.append(f"{unit}: {plain} for {architecture}: takes arguments of {device_bytes} bytes, "
                          f"the host passes {host_bytes}")
    return errors

"""Hashes of the machine code of CUDA kernels in an object or a program, read from its fat binaries.

A fat binary is a header of 16 bytes that begins with MAGIC, followed by entries. Entries of kind 2 are cubins, ELF files
whose section .text.NAME is the code of the kernel with the mangled name NAME. nvcc leaves cubins uncompressed and the linker
copies them, so an object and the programs linked from it have the same hashes.
"""

import hashlib
import struct

MAGIC = b"\x50\xed\x55\xba"
CUBIN = 2


class CodeError(Exception):
    """The file has machine code that this parser cannot read."""


def cubins(content):
    """Yields (compute capability, cubin) of all fat binaries, 90 for 9.0."""
    at = content.find(MAGIC)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", content, at + 6)
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, begin, length, _, _, _, _, capability = struct.unpack_from("<HHIQIIHHI", content, entry)
            if kind == CUBIN:
                yield capability, content[entry + begin:entry + begin + length]
            entry += begin + length
        at = content.find(MAGIC, at)


def sections(cubin):
    """Yields name and content of the sections of a 64-bit ELF file."""
    if cubin[:5] != b"\x7fELF\x02":
        raise CodeError("a cubin is compressed or not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    rows = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    text = cubin[rows[names][4]:rows[names][4] + rows[names][5]]
    for name, _, _, _, offset, length in rows:
        yield text[name:text.index(b"\0", name)].decode(), cubin[offset:offset + length]


def hashes(content):
    """Returns {(mangled kernel, compute capability): hash}."""
    try:
        return {(name.removeprefix(".text."), capability): hashlib.sha256(code).hexdigest()[:16]
                for capability, cubin in cubins(content) for name, code in sections(cubin) if name.startswith(".text.")}
    except (struct.error, IndexError, ValueError) as error:
        raise CodeError(f"the magic number of a fat binary is followed by something else: {error}") from error


def on_device(found, capability):
    """Returns {kernel: hash} of the code that a device runs. Code for 8.0 runs on all devices 8.x."""
    chosen = {}
    for (kernel, arch), value in sorted(found.items(), key=lambda item: item[0][1]):
        if arch <= capability and arch // 10 == capability // 10:
            chosen[kernel] = value
    return chosen

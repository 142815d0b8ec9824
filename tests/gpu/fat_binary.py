"""Fat binaries in the form that nvcc writes, for tests of tools/gpu_run/code_hashes.py."""

import struct


def cubin(kernels):
    """Returns an ELF file with the sections .text.NAME of {NAME: code}."""
    names, offsets, body = b"\0", [], b""
    for name in (*(f".text.{kernel}" for kernel in kernels), ".shstrtab"):
        offsets.append(len(names))
        names += name.encode() + b"\0"
    rows = [struct.pack("<IIQQQQ24x", 0, 0, 0, 0, 0, 0)]
    for offset, code in zip(offsets, (*kernels.values(), names)):
        rows.append(struct.pack("<IIQQQQ24x", offset, 1, 0, 0, 64 + len(body), len(code)))
        body += code
    header = struct.pack("<4sB35xQ10xHHH", b"\x7fELF", 2, 64 + len(body), 64, len(rows), len(rows) - 1)
    return header + body + b"".join(rows)


def entry(kind, capability, content):
    return struct.pack("<HHIQIIHHI32x", kind, 0x101, 64, len(content), 0, 0, 0, 0, capability) + content


def fat_binary(*entries):
    """Returns a fat binary with entries of entry()."""
    content = b"".join(entries)
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(content)) + content


def of_kernels(kernels, capability):
    return fat_binary(entry(2, capability, cubin(kernels)))

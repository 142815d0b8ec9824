"""What a process takes of the machine, looked at from outside."""

import contextlib
import os
import threading
import types

MIB = 1 << 20


def resident(pid):
    """Bytes of memory."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))


def processor_seconds(pid):
    """Of all threads, those that have ended too."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def peak_memory(pid):
    """`bytes` of what it gives is the most that was seen meanwhile."""
    peak, stop = types.SimpleNamespace(bytes=resident(pid)), threading.Event()

    def watch():
        while not stop.wait(0.02):
            peak.bytes = max(peak.bytes, resident(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()

"""Measures the resources that a process uses, from outside the process."""

import contextlib
import os
import pathlib
import threading
import types

MIB = 1 << 20


def process_status(pid):
    """Returns the fields of /proc/PID/status as text."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def resident_bytes(pid):
    return int(process_status(pid)["VmRSS"].split()[0]) << 10


def processor_seconds(pid):
    """Returns the CPU time of all threads, including those that have ended."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads_named(pid, name):
    """Returns the ids of the process's threads with this name (docs/architecture.md, section 5)."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
            if (task / "comm").read_text().strip() == name:
                found.append(int(task.name))
    return found


@contextlib.contextmanager
def peak_memory(pid):
    """Yields an object whose field `bytes` is the maximum resident size so far."""
    peak, stop = types.SimpleNamespace(bytes=resident_bytes(pid)), threading.Event()

    def watch():
        while not stop.wait(0.02):
            peak.bytes = max(peak.bytes, resident_bytes(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()

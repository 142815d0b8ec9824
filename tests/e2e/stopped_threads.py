"""Stops single threads of a child process, which simulates a kernel that does not end."""

import contextlib
import ctypes
import os
import pathlib

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000


def _ptrace(request, tid):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(request, tid, None, None) == 0, os.strerror(ctypes.get_errno())


def stop_thread(tid):
    """Stops the thread permanently."""
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        _ptrace(request, tid)
    assert os.waitpid(tid, WALL)[0] == tid


def _waits(tid):
    """Returns whether a stopped thread is in a blocking call: epoll_wait, epoll_pwait or futex of x86-64."""
    return pathlib.Path(f"/proc/{tid}/syscall").read_text().split()[0] in ("232", "281", "202")


def stop_waiting_thread(tid):
    """Stops the thread while it waits, when it is unlikely to own a lock that others need (for example of the
    allocator)."""
    stop_thread(tid)
    for _ in range(10_000):
        if _waits(tid):
            return
        _ptrace(PTRACE_DETACH, tid)
        os.sched_yield()
        stop_thread(tid)
    raise AssertionError(f"thread {tid} never waits")


@contextlib.contextmanager
def stopped_threads(tids):
    for tid in tids:
        stop_waiting_thread(tid)
    try:
        yield
    finally:
        for tid in tids:
            _ptrace(PTRACE_DETACH, tid)

"""Waiting helpers of tests. style_check.py refuses sleeps in all other files of tests/ (docs/style.md, section 5)."""

import time

SECONDS_BETWEEN_LOOKS = 0.02


def comes_true(condition, timeout=20, not_yet=()):
    """Returns the first true result of `condition`, or its last result after `timeout` seconds.

    An exception of a type in `not_yet` counts as a false result.
    """
    deadline = time.monotonic() + timeout
    while True:
        is_last = time.monotonic() >= deadline
        try:
            answer = condition()
        except not_yet:
            answer = False
        if answer or is_last:
            return answer
        time.sleep(SECONDS_BETWEEN_LOOKS)


def wait_until(condition, what, timeout=20, not_yet=()):
    """Returns the first true result of `condition`; fails the test if there is none within `timeout` seconds."""
    answer = comes_true(condition, timeout, not_yet)
    assert answer, f"not in {timeout} s: {what}"
    return answer


def stays(condition, seconds, why):
    """Asserts that `condition` is true at every poll for `seconds`.

    `why` says what must not happen. The check misses what a slow machine does later, so a test that can wait for an
    event calls wait_until().
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"not for {seconds} s: {why}"
        time.sleep(SECONDS_BETWEEN_LOOKS)


def pace(seconds):
    """Pauses a client that is slow on purpose, or one that polls."""
    time.sleep(seconds)

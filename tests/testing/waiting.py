"""How tests wait. No other file of tests/ pauses: style_check.py refuses sleeps elsewhere (docs/style.md, section 5)."""

import time

SECONDS_BETWEEN_LOOKS = 0.02


def comes_true(condition, timeout=20, not_yet=()):
    """The first true answer of `condition`, or its last one after `timeout` seconds.

    An exception of a type in `not_yet` counts as a false answer."""
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
    """The first true answer of `condition`; the test fails when there is none within `timeout` seconds."""
    answer = comes_true(condition, timeout, not_yet)
    assert answer, f"not in {timeout} s: {what}"
    return answer


def stays(condition, seconds, why):
    """Shows that something does not happen: `condition` holds whenever it is looked at for `seconds`.

    `why` says what must not happen. It can miss what a slow machine does later, so a test that can
    wait for something calls wait_until()."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"not for {seconds} s: {why}"
        time.sleep(SECONDS_BETWEEN_LOOKS)


def pace(seconds):
    """The pause of a client between two sends: one that is slow, or that does not ask as fast as it can."""
    time.sleep(seconds)

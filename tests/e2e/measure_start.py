"""Prints how long quired takes from exec to health SERVING with the embedded model, over several starts.

    QUIRE_BUILD=build/release build/venv/bin/python tests/e2e/measure_start.py [STARTS]
"""

import statistics
import sys
import tempfile
import time

from daemon import Daemon


def main():
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seconds = []
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as folder, Daemon(folder) as daemon:
            daemon.wait_serving()
            seconds.append(time.monotonic() - daemon.start_time)
    print(
        f"exec to SERVING over {starts} starts: "
        f"min {min(seconds):.3f} s, median {statistics.median(seconds):.3f} s, max {max(seconds):.3f} s"
    )


if __name__ == "__main__":
    main()

"""Measures what test_neighbours.py bounds, with more calls, and cases that take minutes. Prints rows and writes JSON.

    QUIRE_BUILD=$PWD/build/ci build/venv/bin/python tests/chaos/measure.py [--calls N] [--json FILE] [CASE...]

A case is one of test_neighbours.py or of LONG below. The default is all cases.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # writes nothing into the source folder
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e"), str(HERE.parent / "testing")]

import attacks  # noqa: E402
from generated_api import make_api  # noqa: E402
from neighbours import CASES, Scene, percentile, run_case  # noqa: E402
from process_figures import MIB, resident_bytes  # noqa: E402
from waiting import comes_true, pace  # noqa: E402

COLUMNS = ["attack", "quiet median, ms", "quiet p99, ms", "attacked median, ms", "attacked p99, ms", "memory before, MiB",
           "peak, MiB", "after, MiB", "seconds until then", "cores used meanwhile"]
MAX_CONNECTIONS = 10_000  # default of server.grpc.max_connections
SPARE_CONNECTIONS = 20  # for the neighbour, probes and the daemon's calls to itself
LONG_COLUMNS = ["what", "when", "memory, MiB", "descriptors", "connections", "p99 of 100 calls, ms"]


def attack_row(api, folder, case, num_calls):
    found = run_case(api, folder, case, num_calls)
    times = [1000 * percentile(values, share) for values in (found.quiet, found.attacked) for share in (0.5, 0.99)]
    memory = [found.before / MIB, found.peak / MIB, found.after / MIB]
    return [case, *(round(v, 1) for v in (*times, *memory, found.seconds_until_back)), round(found.processor_share, 2)]


def look(scene, what, when, with_calls=True):
    """Returns one row of the long cases."""
    taken = round(1000 * percentile(scene.calls(100), 0.99), 1) if with_calls else None
    return [what, when, round(resident_bytes(scene.pid) / MIB, 1), len(os.listdir(f"/proc/{scene.pid}/fd")),
            int(scene.metric("quire_grpc_connections_active")), taken]


def settle(scene, before):
    """Waits until memory is within 10 % of `before`, for half a minute at most."""
    comes_true(lambda: resident_bytes(scene.pid) < 1.1 * before, 30)


def connection_limit(scene):
    """Returns how many gRPC connections the daemon permits, fewer than configured if there are too few descriptors."""
    warnings = [json.loads(line) for line in scene.daemon.lines if "fewer connections than" in line]
    return warnings[0]["possible"] if warnings else MAX_CONNECTIONS


def held(api, folder, what, opened):
    """Opens 8000 connections, or fewer if the daemon permits fewer, half of them from each of two addresses."""
    with Scene(api, folder, what).running() as scene:
        yield look(scene, what, "before")
        before = resident_bytes(scene.pid)
        count = min(8000, connection_limit(scene) - SPARE_CONNECTIONS)
        connections = [opened(scene.daemon.grpc_address, source=f"127.0.0.{2 + i % 2}") for i in range(count)]
        yield look(scene, what, f"while {count} were opened and held")
        for connection in connections:
            connection.close()
        settle(scene, before)
        yield look(scene, what, "after")


def silent(api, folder):
    return held(api, folder, "silent connections", attacks.connect)


def idle(api, folder):
    return held(api, folder, "connections without calls", attacks.begin)


def gone(api, folder):
    """Resets (RST) 10 000 connections in a row, every fifth in the middle of an answer."""
    what = "disconnects"
    with Scene(api, folder, what).running() as scene:
        yield look(scene, what, "before")
        before, fields = resident_bytes(scene.pid), json.loads(scene.target())
        headers = attacks.GRPC_HEADERS + attacks.literal(b"authorization", b"Bearer a")
        call = attacks.whole_call(1, headers, bytes.fromhex(fields["long_request"]))
        for number in range(10000):
            connection = attacks.begin(fields["grpc"])
            if number % 5 == 0:
                attacks.send_quietly(connection, call)
                connection.recv(100)
                connection.recv(2000)
            attacks.reset(connection)
        settle(scene, before)
        yield look(scene, what, "after 10 000")


def overload(api, folder):
    """Overloads the daemon for two minutes."""
    what = "five times the capacity"
    settings = ["scheduler.max_running_sequences=8", "limits.max_queued_requests=16"]
    with Scene(api, folder, "overload", settings).running() as scene:
        yield look(scene, what, "before")
        before = resident_bytes(scene.pid)
        start, waiting = time.monotonic(), 0
        with scene.attack():
            while (passed := time.monotonic() - start) < 120:
                pace(2)
                waiting = max(waiting, scene.metric("quire_requests_waiting"))
                if int(passed) % 20 < 2:
                    yield look(scene, what, f"after {passed:.0f} s", with_calls=False)
        settle(scene, before)
        pages = scene.metric("quire_kv_cache_pages", 'state="used"')
        yield look(scene, what, f"afterwards; at most {waiting:.0f} were waiting, {pages:.0f} pages are in use")


LONG = {case.__name__: case for case in (silent, idle, gone, overload)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=[[], *CASES, *LONG])
    arguments = parser.parse_args()
    rows, long_rows = [], []
    with tempfile.TemporaryDirectory(prefix="quire-chaos-") as base:
        (pathlib.Path(base) / "generated").mkdir()
        api = make_api(f"{base}/generated")
        for case in arguments.cases or [*CASES, *LONG]:
            folder = pathlib.Path(base) / case
            folder.mkdir()
            if case in CASES:
                rows.append(attack_row(api, folder, case, arguments.calls))
                print(*rows[-1], sep="\t", flush=True)
                continue
            for row in LONG[case](api, folder):
                long_rows.append(row)
                print(*row, sep="\t", flush=True)
    if arguments.json:
        found = {"columns": COLUMNS, "rows": rows, "long_columns": LONG_COLUMNS, "long_rows": long_rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Compares the path of a prompt in docs/architecture.md, section 3, with the functions that a real daemon calls."""

import os
import pathlib
import re
import shutil

import pytest
from attack_tools import request_of
from daemon import ROOT, Daemon
from waiting import wait_until

ROW = re.compile(r"^\| (\d+) \| `([\w:]+)` \| ([\w/.]+) \| ([\w -]+) \|", re.MULTILINE)
# Other thread names belong to gRPC.
OWN_THREADS = {"engine", "text", "output", "compute", "calls", "http", "grpc-edge", "loader", "housekeeper", "reloader",
               "log", "file"}
MAX_FILES = 12


@pytest.fixture(scope="module")
def walk():
    """Returns (function, file, thread) of every row of the table, in order."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("\n## 3. ", 1)[1].split("\n## ", 1)[0]
    rows = ROW.findall(section)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    return [tuple(row) for _, *row in rows]


def test_the_files_of_the_path_are_few_and_define_its_functions(walk):
    assert 1 < len({file for _, file, _ in walk}) <= MAX_FILES
    for function, file, _ in walk:
        owner, _, name = function.rpartition("::")
        text = (ROOT / file).read_text()
        in_class = f"class {owner} " in text and re.search(rf"^  \S[^\n;]*\b{name}\(", text, re.MULTILINE)
        assert in_class or re.search(rf"^\S[^\n;]*\b{function}\(", text, re.MULTILINE), f"{function} is not in {file}"


def test_a_prompt_takes_the_documented_path(api, walk, tmp_path):
    gdb = shutil.which("gdb")
    assert gdb, "no gdb (scripts/packages.txt)"
    hits = tmp_path / "hits"
    functions = list(dict.fromkeys(function for function, _, _ in walk))
    env = dict(os.environ, WALK_HITS=str(hits), WALK_FUNCTIONS=" ".join(functions))
    script = pathlib.Path(__file__).with_name("walk_breakpoints.py")
    prefix = [gdb, "-nx", "-batch", "-x", str(script), "--args"]
    with Daemon(tmp_path, env=env, prefix=prefix, settings=["device.cpu.threads=1"]) as daemon:
        daemon.wait_serving(120)
        hits.write_text("")  # discards the steps of the start
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            messages = list(stub.Generate(request_of(api, tokens=1), timeout=120))
            assert any(message.HasField("delta") for message in messages)
        wait_until(lambda: functions[-1] in hits.read_text(), "the walk's last function")
    seen = [line.split(" ", 1) for line in hits.read_text().splitlines()]
    position = 0
    for function, _, threads in walk:
        places = [i for i in range(position, len(seen)) if seen[i][0] == function]
        assert places, f"{function} was not entered in its turn: {seen}"
        position = places[0]
        thread = seen[position][1] if seen[position][1] in OWN_THREADS else "gRPC"
        assert thread in threads.split(" or "), f"{function} ran on {seen[position][1]}"

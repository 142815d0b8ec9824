"""A daemon that gets no more memory from the system."""

import re
import resource

import http.client
import pytest
from daemon import Daemon

MIB = 1 << 20


def test_out_of_memory_ends_the_process_with_one_line(tmp_path):
    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0", "openai.max_body_bytes=64MiB"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as status:
            taken = int(re.search(r"^VmSize:\s+(\d+) kB", status.read(), re.MULTILINE).group(1)) * 1024
        resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (taken + 100 * MIB, resource.RLIM_INFINITY))
        connection = http.client.HTTPConnection(daemon.openai_address, timeout=60)
        with pytest.raises((OSError, http.client.HTTPException)):
            connection.request("POST", "/v1/completions", b'{"prompt": [%s1]}' % (b"1," * (24 * MIB)))
            connection.getresponse()
        assert daemon.process.wait(timeout=60) == 70
        assert "out of memory, exiting with status 70" in daemon.log

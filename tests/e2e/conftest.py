import pathlib
import signal
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "testing")]

from daemon import Daemon  # noqa: E402
from generated_api import make_api  # noqa: E402

# A shell starts what runs in the background with SIGINT ignored, and so would be all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    """The modules that protoc makes of the published protos."""
    return make_api(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """The embedded model, shared by the tests of one file."""
    with Daemon(tmp_path_factory.mktemp("quired")) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture
def generation(api, daemon):
    with daemon.channel() as channel:
        yield api.GenerationServiceStub(channel)


@pytest.fixture
def admin(api, daemon):
    with daemon.admin_channel() as channel:
        yield api.AdminServiceStub(channel)

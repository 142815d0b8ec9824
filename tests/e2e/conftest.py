import pathlib
import signal
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "testing")]

from daemon import Daemon  # noqa: E402
from generated_api import make_api  # noqa: E402

# A shell starts background jobs with SIGINT ignored, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    """The modules that protoc generates from the published protos."""
    return make_api(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """A daemon with the embedded model, shared by the tests of one file."""
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

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e"), str(HERE.parent / "testing")]

from generated_api import make_api  # noqa: E402


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    """The modules that protoc generates from the published protos."""
    return make_api(tmp_path_factory.mktemp("generated"))

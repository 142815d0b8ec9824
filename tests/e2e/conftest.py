import importlib
import pathlib
import signal
import sys
import types

import grpc_tools
import pytest
from grpc_tools import protoc

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "testing")]

from daemon import ROOT, Daemon  # noqa: E402

# A shell starts what runs in the background with SIGINT ignored, and so would be all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    """The modules that protoc makes of the published protos."""
    out = tmp_path_factory.mktemp("generated")
    protos = sorted((ROOT / "proto" / "quire" / "v1").glob("*.proto"))
    assert protos, "no published protos"
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", f"--python_out={out}", f"--grpc_python_out={out}"]
    assert protoc.main(arguments + [str(p) for p in protos]) == 0
    sys.path.insert(0, str(out))
    names = types.SimpleNamespace()
    for name in ("generation", "chat", "sampling", "text", "model", "types", "admin"):
        module = importlib.import_module(f"quire.v1.{name}_pb2")
        for symbol in dir(module):
            if not symbol.startswith("_"):
                setattr(names, symbol, getattr(module, symbol))
    names.GenerationServiceStub = importlib.import_module("quire.v1.generation_pb2_grpc").GenerationServiceStub
    names.AdminServiceStub = importlib.import_module("quire.v1.admin_pb2_grpc").AdminServiceStub
    return names


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

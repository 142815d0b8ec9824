"""Generates a client from the published protos with protoc."""

import importlib
import pathlib
import sys
import types

import grpc_tools
from daemon import ROOT
from grpc_tools import protoc


def make_api(out):
    """Returns one namespace with every message and stub. The modules are written to the folder `out`."""
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

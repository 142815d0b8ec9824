"""Generates the message classes with protoc while the package is built. The repository has no generated files.

`proto` is a link to the repository's own folder, and a copy of it in a source distribution.
"""

import importlib.metadata
import pathlib
import re
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
UNTESTED_PROTOBUF = 8  # major release


def make_messages(target):
    """Writes the modules of proto/quire/v1 into the package `target`, so that no top-level name is taken."""
    import grpc_tools
    from grpc_tools import protoc

    protos = sorted((HERE / "proto" / "quire" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as out:
        arguments = ["protoc", f"-I{HERE / 'proto'}", f"-I{pathlib.Path(grpc_tools.__file__).parent / '_proto'}"]
        arguments += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
        if not protos or protoc.main([*arguments, *map(str, protos)]) != 0:
            raise RuntimeError(f"protoc generated no messages from {HERE / 'proto'}")
        target.mkdir(parents=True, exist_ok=True)
        for made in sorted(pathlib.Path(out, "quire", "v1").iterdir()):
            text = re.sub(r"^from quire\.v1 import", "from . import", made.read_text("utf-8"), flags=re.MULTILINE)
            # Sets the module name of message classes, which pickle needs.
            text = re.sub(r"'quire\.v1\.(\w+_pb2)'", r"'quire_client.v1.\1'", text)
            (target / made.name).write_text(text, "utf-8")
    (target / "__init__.py").write_text("".join(f"from .{one.stem}_pb2 import *\n" for one in protos), "utf-8")


class BuildWithMessages(build_py):
    def run(self):
        super().run()
        root = HERE / "src" if self.editable_mode else pathlib.Path(self.build_lib)
        make_messages(root / "quire_client" / "v1")


def dependencies():
    """Returns the dependencies of the generated code. The lower bounds are those of its generator. The upper bound is the
    first major release of protobuf that was not tested, because generated code also runs with protobuf releases that are
    later than the generator allows.
    """
    wanted = " ".join(importlib.metadata.requires("grpcio-tools") or [])
    grpcio, protobuf = (re.search(rf"\b{name}\b[^;]*?>=\s*([\d.]+)", wanted).group(1) for name in ("grpcio", "protobuf"))
    lowest = [f"grpcio>={grpcio}", f"grpcio-health-checking>={grpcio}", f"protobuf>={protobuf},<{UNTESTED_PROTOBUF}"]
    return [*lowest, "googleapis-common-protos>=1.56.4"]


setup(cmdclass={"build_py": BuildWithMessages}, install_requires=dependencies())

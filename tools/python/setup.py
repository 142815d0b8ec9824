"""Makes the message classes with protoc while the package is built; nothing generated is kept in the repository.

`proto` is a link to the repository's own folder, and a copy of it in a source distribution.
"""

import importlib.metadata
import pathlib
import re

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent


def make_messages(target):
    """Writes the modules of proto/quire/v1 into the package `target`, so that no top-level name is taken."""
    import grpc_tools
    from grpc_tools import protoc

    protos = sorted((HERE / "proto" / "quire" / "v1").glob("*.proto"))
    target.mkdir(parents=True, exist_ok=True)
    arguments = ["protoc", f"-I{HERE / 'proto'}", f"-I{pathlib.Path(grpc_tools.__file__).parent / '_proto'}"]
    arguments += [f"--python_out={target}", f"--pyi_out={target}", *map(str, protos)]
    if not protos or protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc made no messages of {HERE / 'proto'}")
    for made in (target / "quire" / "v1").iterdir():
        text = re.sub(r"^from quire\.v1 import", "from . import", made.read_text("utf-8"), flags=re.MULTILINE)
        (target / made.name).write_text(text, "utf-8")
        made.unlink()
    (target / "quire" / "v1").rmdir()
    (target / "quire").rmdir()
    (target / "__init__.py").write_text("", "utf-8")


class BuildWithMessages(build_py):
    def run(self):
        super().run()
        root = HERE / "src" if self.editable_mode else pathlib.Path(self.build_lib)
        make_messages(root / "quire_client" / "_proto")


def dependencies():
    """What the generated code needs is what its generator needs."""
    wanted = importlib.metadata.requires("grpcio-tools") or []
    shared = [one for one in wanted if re.match(r"(grpcio|protobuf)\b", one) and "extra" not in one]
    return [*shared, "grpcio-health-checking", "googleapis-common-protos"]


setup(cmdclass={"build_py": BuildWithMessages}, install_requires=dependencies())

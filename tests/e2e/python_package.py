"""Builds tools/python from copies, as a user or a publisher would, so that the source tree stays clean.

This is a pytest plugin with the fixtures `package` and `q`, the installed quire_client.
"""

import importlib
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import types
import venv

import pytest
from daemon import ROOT


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(source, out):
    """Builds with the installed setuptools and grpcio-tools, so that nothing is downloaded."""
    flags = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", out, source)
    (wheel,) = out.glob("*.whl")
    return wheel


def build_all(folder):
    """Builds a source distribution, a wheel of the tree, a wheel of the source distribution, and a venv with the first
    wheel.

    The venv also sees the packages of this Python, which replace what pip would download.
    """
    ignored = shutil.ignore_patterns("build", "dist", "*.egg-info", "_proto", "__pycache__")
    tree = folder / "tree"
    for part in ("tools/python", "proto"):
        shutil.copytree(ROOT / part, tree / part, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "LICENSE", tree / "LICENSE")
    made = types.SimpleNamespace(run=run, source=tree / "tools" / "python")
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=made.source)
    (made.sdist,) = folder.glob("*.tar.gz")
    made.wheel = build_wheel(made.source, folder / "wheel")
    (folder / "alone").mkdir()
    run("tar", "-xf", made.sdist, "-C", folder / "alone")
    (alone,) = (folder / "alone").iterdir()
    made.wheel_of_sdist = build_wheel(alone, folder / "wheel_of_sdist")

    venv.create(folder / "venv")
    made.python = folder / "venv" / "bin" / "python"
    site = run(made.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    made.site = pathlib.Path(site)
    (made.site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    flags = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", made.python, "install", *flags, made.wheel)
    return made


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    return build_all(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def q(package):
    """Imports and returns the installed package."""
    sys.path.insert(0, str(package.site))
    module = importlib.import_module("quire_client")
    assert module.__file__.startswith(str(package.site))
    return module

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

# A Python with the oldest dependencies of the package, made by make_clients of scripts/common.sh. A published package is
# built with it.
OLDEST = ROOT / "build" / "oldest_client" / "bin" / "python"


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(source, out):
    """Builds with the setuptools and grpcio-tools of OLDEST, so that nothing is downloaded."""
    flags = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run(OLDEST, "-m", "pip", "wheel", *flags, "--wheel-dir", out, source)
    (wheel,) = out.glob("*.whl")
    return wheel


def build_all(folder):
    """Builds a source distribution, a wheel of the tree, a wheel of the source distribution, and two venvs with the first
    wheel.

    One venv sees the packages of this Python, which are the newest, and the other those of OLDEST. They replace what pip
    would download.
    """
    ignored = shutil.ignore_patterns("build", "dist", "*.egg-info", "_proto", "__pycache__")
    tree = folder / "tree"
    for part in ("tools/python", "proto"):
        shutil.copytree(ROOT / part, tree / part, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "LICENSE", tree / "LICENSE")
    made = types.SimpleNamespace(run=run, source=tree / "tools" / "python")
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(OLDEST, "-c", build, cwd=made.source)
    (made.sdist,) = folder.glob("*.tar.gz")
    made.wheel = build_wheel(made.source, folder / "wheel")
    (folder / "alone").mkdir()
    run("tar", "-xf", made.sdist, "-C", folder / "alone")
    (alone,) = (folder / "alone").iterdir()
    made.wheel_of_sdist = build_wheel(alone, folder / "wheel_of_sdist")

    made.python, made.site = install(made.wheel, folder / "venv", sysconfig.get_path("purelib"))
    oldest = run(OLDEST, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    made.oldest_python, _ = install(made.wheel, folder / "oldest", oldest)
    return made


def install(wheel, folder, dependencies):
    """Makes a venv with the wheel that sees the packages in `dependencies`. Returns its Python and its packages' folder."""
    venv.create(folder)
    python = folder / "bin" / "python"
    site = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(str(dependencies) + "\n")
    flags = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *flags, wheel)
    return python, site


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

"""Shared helpers of the deployment checks: the files, and quired's own report of its configuration."""

import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

import custom_resources
import jsonschema
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "testing")]

from daemon import BUILD, QUIRE, QUIRED, Daemon  # noqa: E402

__all__ = ["BUILD", "QUIRE", "QUIRED", "ROOT", "Daemon"]

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "m": 60, "h": 3600}


def seconds(text):
    """Parses `45s`, `30min`, `1m30s`, or a plain number of seconds."""
    if re.fullmatch(r"[0-9.]+", str(text)):
        return float(text)
    parts = re.findall(r"([0-9.]+)(us|ms|min|s|m|h)", text)
    assert parts and "".join(a + b for a, b in parts) == text, f"not a duration: {text}"
    return sum(float(number) * UNITS[unit] for number, unit in parts)


@functools.cache
def effective(*files):
    """Returns quired's configuration from these files on top of the image's profile."""
    command = [str(QUIRED), "--print-effective-config=json", "--set", f"profile={ROOT}/configs/container.yaml"]
    for name in files:
        command += ["--config", str(ROOT / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def port(address):
    return int(address.rsplit(":", 1)[1])


def ports(config):
    """Returns (gRPC, HTTP). Both are reachable from other machines."""
    grpc, http = config["server"]["grpc"]["listen"], config["server"]["http"]["listen"]
    assert len(grpc) == 1 and grpc[0].startswith("0.0.0.0:") and http.startswith("0.0.0.0:")
    return port(grpc[0]), port(http)


def stop_seconds(config):
    """Maximum time until the process ends by itself: 2 s for the last steps, plus 10 s for a step that never ends."""
    times = config["shutdown"]
    return sum(seconds(times[name]) for name in ("pre_drain_delay", "drain_timeout", "force_timeout")) + 2 + 10


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text())


def dockerfile():
    """Returns [(stage, instruction, arguments)] with continuation lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "docker" / "Dockerfile").read_text(), flags=re.MULTILINE)
    stage, found = "", []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        instruction, arguments = line.split(None, 1)
        if instruction == "FROM":
            stage = re.fullmatch(r"\S+ AS (\S+)", arguments).group(1)
        found.append((stage, instruction, arguments))
    return found


def of_stage(stage, instruction):
    return [arguments for where, what, arguments in dockerfile() if where == stage and what == instruction]


def image_user():
    (user,) = set(of_stage("cpu", "USER") + of_stage("cuda", "USER"))
    return user


def needs(program):
    """Skips the test if the program is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    return program


def kubernetes_tools():
    """Returns the folder with helm, kubectl and the schemas of Kubernetes. Skips the test if it is missing."""
    version = re.search(r"^version=(\S+)$", (ROOT / "scripts" / "fetch_kubernetes_tools").read_text(), re.MULTILINE)[1]
    folder = ROOT / "build" / f"kubernetes-{version}"
    if not folder.exists():
        pytest.skip(f"{folder} is missing; scripts/fetch_kubernetes_tools gets it")
    return folder


@functools.cache
def kustomized(folder):
    """Returns the documents that kubectl renders for a folder with a kustomization.yaml."""
    done = subprocess.run([kubernetes_tools() / "kubectl", "kustomize", str(folder)], capture_output=True, text=True,
                          timeout=60)
    # Deprecated fields of kustomize are reported on stderr.
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@functools.cache
def kubernetes_schemas():
    """Returns the published schemas of Kubernetes, which allow no unknown fields, and {(apiVersion, kind): name}."""
    text = (kubernetes_tools() / "schemas.json").read_text()
    definitions = json.loads(text.replace('"/api/_definitions.json#/', '"#/'))["$defs"]
    names = {("/".join(filter(None, (kind["group"], kind["version"]))), kind["kind"]): name
             for name, definition in definitions.items()
             for kind in definition.get("x-kubernetes-group-version-kind", [])}
    return definitions, names


def check_schema(document):
    """Checks a resource against the published schema of its kind."""
    kind = document["apiVersion"], document["kind"]
    schema = custom_resources.schema(*kind)
    if schema is None:
        definitions, names = kubernetes_schemas()
        schema = {"$defs": definitions, "$ref": f"#/$defs/{names[kind]}"}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
    assert not (found := [f"{kind}: {error.json_path}: {error.message[:300]}" for error in errors]), found


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return answer.read().decode()


def quire(daemon, *arguments, code=0):
    command = [str(QUIRE), "--address", daemon.grpc_address, "--admin", daemon.admin, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def metric_names(expression):
    """Returns the metrics that a PromQL expression reads, including recorded ones (with a colon)."""
    without_strings = re.sub(r'"(?:\\.|[^"\\])*"', '""', expression)
    without_labels = re.sub(r"\{[^}]*\}|\b(?:by|on|without|ignoring)\s*\([^)]*\)", "", without_strings)
    return set(re.findall(r"\b(?:quire[:_]|process_)[a-z0-9_:]+", without_labels)) | set(
        re.findall(r"\bup\b", without_labels))


def rules():
    """Returns [(file, rule)] of the Prometheus rules."""
    return [(path.name, rule)
            for path in sorted((ROOT / "deploy" / "prometheus").glob("*.yml"))
            for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]

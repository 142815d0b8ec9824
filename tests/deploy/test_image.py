"""The files of the container image and of compose, checked without an engine. scripts/test_container builds and runs
them."""

import json
import os
import re
import subprocess
import time

import pytest
from deployment import (QUIRE, QUIRED, ROOT, Daemon, dockerfile, effective, image_user, needs, of_stage, port, ports,
                        read_yaml, seconds, stop_seconds)
from waiting import wait_until

COMPOSE = "docker/compose.yaml"
GPU = "docker/compose.gpu.yaml"


def test_stages_have_the_order_required_by_the_legacy_builder():
    stages = list(dict.fromkeys(stage for stage, _, _ in dockerfile() if stage))
    assert stages == ["sources", "build", "test", "runtime", "cpu", "cuda-build", "cuda"]


def test_only_the_cuda_toolkit_is_downloaded_during_the_build():
    """A TLS-inspecting proxy is unknown inside the image. Sources come with the context, and pip uses the host's
    certificates."""
    fetched = re.search(r"^version=(\S+)$", (ROOT / "scripts" / "fetch_xgrammar").read_text(), re.M)[1]
    folder = f"build/xgrammar-{fetched}"
    steps = dockerfile()
    assert ("sources", "COPY", f"{folder} {folder}") in steps
    fetching = [(stage, text) for stage, instruction, text in steps
                if instruction == "RUN" and re.search(r"pip|curl|wget|git clone|fetch_", text)]
    assert [stage for stage, _ in fetching] == ["cuda-build"]
    assert "PIP_CERT=/src/build/host-ca.crt" in fetching[0][1]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "build" not in ignored and {"build/*", f"!{folder}", "!build/host-ca.crt"} <= set(ignored)
    shipped = [text for stage, instruction, text in steps
               if instruction == "COPY" and stage in ("runtime", "cpu", "cuda")]
    assert all(text.startswith(("scripts/", "--from=")) for text in shipped), shipped


def test_uses_only_instructions_of_every_builder():
    text = (ROOT / "docker" / "Dockerfile").read_text()
    for unknown in (r"^#\s*syntax=", r"<<[A-Z]", r"--mount=", r"--link\b", r"--chmod="):
        assert not re.search(unknown, text, re.MULTILINE), unknown
    known = {"ARG", "FROM", "RUN", "COPY", "WORKDIR", "ENV", "ENTRYPOINT", "STOPSIGNAL", "EXPOSE", "HEALTHCHECK", "LABEL", "USER"}
    assert {instruction for _, instruction, _ in dockerfile()} <= known


def test_installing_layers_remove_package_lists():
    installs = [arguments for _, what, arguments in dockerfile() if what == "RUN" and "apt-get install" in arguments]
    assert installs
    for arguments in installs:
        assert "--no-install-recommends" in arguments and "apt-get clean" in arguments
        assert "rm -rf /var/lib/apt/lists/*" in arguments


def test_ports_profile_and_user_match_the_configuration():
    grpc, http = ports(effective())
    openai = effective()["openai"]
    assert openai["listen"].startswith("0.0.0.0:") and openai["enabled"]
    assert of_stage("runtime", "EXPOSE") == [f"{grpc} {http} {port(openai['listen'])}"]
    (profile,) = of_stage("runtime", "ENV")
    assert profile == "QUIRE__PROFILE=container" and (ROOT / "configs" / "container.yaml").exists()
    assert image_user() == "10001:10001"
    assert of_stage("runtime", "ENTRYPOINT") == ['["/usr/bin/quired"]']
    assert of_stage("runtime", "STOPSIGNAL") == ["SIGTERM"]


def test_health_check_runs_the_client_directly():
    (check,) = of_stage("runtime", "HEALTHCHECK")
    options, command = check.split(" CMD ")
    assert json.loads(command) == ["/usr/bin/quire", "health"]
    times = dict(re.findall(r"--([a-z-]+)=(\S+)", options))
    # As in the startup probe of deploy/k8s, this is the time allowed for loading.
    assert seconds(times["start-period"]) == 600 and seconds(times["interval"]) == 5


def test_health_socket_is_in_a_writable_folder():
    (socket,) = effective()["server"]["admin"]["listen"]
    folder = os.path.dirname(socket.removeprefix("unix:"))
    assert any(f"-o 10001 -g 10001 -m 0750 {folder}" in run for run in of_stage("runtime", "RUN"))
    (mount,) = read_yaml(COMPOSE)["services"]["quired"]["tmpfs"]
    assert mount.startswith(f"{folder}:uid=10001,gid=10001,")


def packages(group):
    return set(re.findall(rf"^{group} (\S+)$", (ROOT / "scripts" / "packages.txt").read_text(), re.MULTILINE))


def test_runtime_packages_match_the_linked_libraries():
    paths = set()
    for program in (QUIRED, QUIRE):
        named = subprocess.run(["readelf", "-d", str(program)], capture_output=True, text=True, check=True).stdout
        named = set(re.findall(r"NEEDED.*\[(.*)\]", named))
        loaded = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        paths |= {path for name, path in re.findall(r"(\S+) => (/\S+)", loaded) if name in named}
    owners = set()
    for path in paths:
        # dpkg knows a library by its path before or after /lib became a link to /usr/lib.
        for name in (os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")):
            found = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
            if found.returncode == 0:
                owners.add(found.stdout.split(":")[0])
                break
        else:
            raise AssertionError(f"no package has {path}")
    in_every_system = {"libc6", "libgcc-s1"}
    certificates_to_trust = {"ca-certificates"}  # quire pull
    assert owners - in_every_system == packages("runtime") - certificates_to_trust


def bill(tmp_path, epoch="1700000000"):
    built = tmp_path / "build-packages.txt"
    built.write_text("libcli11-dev 2.1.2+ds-1 all\nlibfoo++-dev 1:2.0~rc1-3 amd64\nnobody-asked 1 all\n")
    wanted = tmp_path / "packages.txt"
    wanted.write_text("# list\nbuild libcli11-dev\nbuild libfoo++-dev\ntest nobody-asked\n")
    done = subprocess.run(["sh", str(ROOT / "scripts" / "sbom"), "quire", "0.1.0", str(built), str(wanted),
                           str(ROOT / "scripts" / "libraries.txt")],
                          capture_output=True, text=True, timeout=60, env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bill_of_materials_is_spdx(tmp_path):
    document = json.loads(bill(tmp_path))
    assert document["spdxVersion"] == "SPDX-2.3" and document["dataLicense"] == "CC0-1.0"
    assert document["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    ids = [package["SPDXID"] for package in document["packages"]]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", name) for name in ids)
    of_dpkg = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\n"],
                             capture_output=True, text=True, check=True).stdout
    installed = {tuple(line.split()[1:]) for line in of_dpkg.splitlines() if line.startswith("ii")}
    named = {(package["name"], package["versionInfo"]) for package in document["packages"]
             if package["SPDXID"].startswith("SPDXRef-deb-")}
    assert named == installed
    relations = {(r["spdxElementId"], r["relationshipType"], r["relatedSpdxElement"]) for r in document["relationships"]}
    assert ("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-quire") in relations
    assert len(relations) == len(document["packages"]) == len(document["relationships"])
    assert all({left, right} <= {*ids, "SPDXRef-DOCUMENT"} for left, _, right in relations)
    built = {package["name"]: package for package in document["packages"] if package["SPDXID"].startswith("SPDXRef-build-")}
    assert set(built) == {"libcli11-dev", "libfoo++-dev"}
    linked = {right for left, relation, right in relations if (left, relation) == ("SPDXRef-quire", "STATIC_LINK")}
    assert linked == {f"SPDXRef-library-{name}" for name in ("xgrammar", "dlpack", "picojson")}
    library = next(package for package in document["packages"] if package["name"] == "xgrammar")
    fetched = re.search(r"^version=(\S+)$", (ROOT / "scripts" / "fetch_xgrammar").read_text(), re.M)[1]
    assert library["versionInfo"] == fetched and library["licenseDeclared"] == "Apache-2.0"
    assert library["externalRefs"][0]["referenceLocator"] == f"pkg:pypi/xgrammar@{fetched}"
    (reference,) = built["libfoo++-dev"]["externalRefs"]
    assert reference["referenceLocator"] == "pkg:deb/debian/libfoo%2B%2B-dev@1%3A2.0~rc1-3?arch=amd64"


def test_equal_images_have_equal_bills(tmp_path):
    assert bill(tmp_path) == bill(tmp_path)
    assert bill(tmp_path) != bill(tmp_path, epoch="1700000001")


def compose_config(*files):
    needs("docker-compose")
    command = ["docker-compose"]
    for name in files:
        command += ["--file", str(ROOT / name)]
    return subprocess.run([*command, "config"], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("files", [(COMPOSE,), (COMPOSE, GPU)])
def test_compose_files_have_known_keys_only(files):
    done = compose_config(*files)
    assert done.returncode == 0, done.stderr


def test_compose_matches_the_configuration():
    services = read_yaml(COMPOSE)["services"]
    grpc, http = ports(effective())
    quired = services["quired"]
    openai = port(effective()["openai"]["listen"])
    assert quired["ports"] == [f"127.0.0.1:{number}:{number}" for number in (grpc, openai, http)]
    assert seconds(quired["stop_grace_period"]) > stop_seconds(effective())
    assert f"quired:{grpc}" in services["check"]["entrypoint"]
    assert quired["image"] == services["check"]["image"]
    (job,) = read_yaml("docker/prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"quired:{http}"]}]
    for service in services.values():
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges"]
        assert all(text.startswith("127.0.0.1:") for text in service.get("ports", []))
    build = quired["build"]
    assert (ROOT / "docker" / build["context"] / build["dockerfile"]).samefile(ROOT / "docker" / "Dockerfile")
    assert build["target"] == "cpu" and read_yaml(GPU)["services"]["quired"]["build"]["target"] == "cuda"


def test_compose_check_generates_or_fails(tmp_path):
    program, *arguments = map(str, read_yaml(COMPOSE)["services"]["check"]["entrypoint"])
    assert program == "/usr/bin/quire"
    grpc, _ = ports(effective())
    with Daemon(tmp_path) as daemon:
        daemon.wait_serving()
        assert arguments.count(f"quired:{grpc}") == 1
        command = [str(QUIRE), *(daemon.grpc_address if one == f"quired:{grpc}" else one for one in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.split()) > 8
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 3


def test_mounted_files_exist_at_their_expected_paths():
    services = read_yaml(COMPOSE)["services"]
    mounts = {}
    for service in ("prometheus", "grafana"):
        for volume in services[service]["volumes"]:
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                assert (ROOT / "docker" / source).exists(), volume
                mounts[target] = (ROOT / "docker" / source).resolve()

    def inside(path):
        """Returns the file of this repository at a path of the container."""
        (target,) = [target for target in mounts if path == target or path.startswith(target + "/")]
        return mounts[target] / path[len(target):].lstrip("/") if path != target else mounts[target]

    for rule_file in read_yaml("docker/prometheus.yml")["rule_files"]:
        assert inside(rule_file).is_file(), rule_file
    assert inside(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).is_file()
    (provider,) = read_yaml("deploy/grafana/provisioning/dashboards/quire.yaml")["providers"]
    assert f"{provider['options']['path']}/dashboard.json" in mounts
    (source,) = read_yaml("deploy/grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services


def test_yaml_files_pass_the_linter():
    needs("yamllint")
    done = subprocess.run(["yamllint", "--strict", "--config-file", str(ROOT / "deploy" / "yamllint.yaml"), "docker", "deploy",
                           "configs", "tests/deploy"], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_health_check_passes_soon_after_the_start(tmp_path):
    """Runs the image's HEALTHCHECK command within a few seconds of the start with the embedded model."""
    socket = tmp_path / "admin.sock"
    start = time.monotonic()
    with subprocess.Popen([str(QUIRED), "--set", "server.grpc.listen=[127.0.0.1:0]", "--set", "server.http.listen=127.0.0.1:0",
                           "--set", "openai.listen=127.0.0.1:0", "--set", f"server.admin.listen=[unix:{socket}]",
                           "--set", "shutdown.pre_drain_delay=0s"],
                          stderr=subprocess.DEVNULL) as process:
        try:
            health = [str(QUIRE), "--admin", f"unix:{socket}", "health"]
            wait_until(lambda: process.poll() is not None or subprocess.run(health, capture_output=True).returncode == 0,
                       "the daemon is healthy", 30)
            assert process.poll() is None and time.monotonic() - start < 15
        finally:
            process.terminate()
        assert process.wait(30) == 0

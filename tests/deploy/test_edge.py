"""Debian's nginx with the shipped edge configuration in front of a real daemon, and the files that deploy both."""

import os
import re
import socket
import subprocess

import grpc
import pytest
import yaml
from deployment import ROOT, Daemon, effective, kustomized, needs, ports, read_yaml, seconds, stop_seconds
from attack_tools import Files, bearer, failure, generate, request_of, token_line
from certificates import Authority
from conftest import api  # noqa: F401 - a fixture
from daemon import QUIRE, reason_of
from waiting import wait_until

OVERLAY = ROOT / "deploy" / "k8s" / "overlays" / "edge"
COMPOSE = ["docker/compose.yaml", "docker/compose.edge.yaml"]
CONF = (OVERLAY / "nginx.conf").read_text()


def value(directive):
    """Returns the value of a directive that occurs once in the configuration."""
    (found,) = re.findall(rf"^ *{directive} (.*);$", CONF, re.MULTILINE)
    return found


def replaced(text, old, new):
    assert text.count(old) == 1, old
    return text.replace(old, new)


class Edge:
    """nginx on its own port, in front of the daemon at an address."""

    def __init__(self, folder, grpc_address):
        # nginx adopts a listening socket, as after a binary upgrade, so the test owns the port.
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        conf = replaced(CONF, "listen 8443 ", f"listen 127.0.0.1:{self.port} ")
        conf = replaced(conf, "server quire:50051;", f"server {grpc_address};")
        conf = conf.replace("/run/nginx/", f"{folder}/")
        (folder / "nginx.conf").write_text(conf)
        self.log = folder / "nginx.log"
        command = [needs("nginx"), "-c", str(folder / "nginx.conf"), "-g", "daemon off;" + (" user root;" if os.geteuid() == 0 else "")]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=[self.listener.fileno()],
                                            env={**os.environ, "NGINX": f"{self.listener.fileno()};"})

    def __enter__(self):
        wait_until(lambda: self.process.poll() is not None or (self.log.parent / "nginx.pid").exists(), "nginx runs")
        assert self.process.poll() is None, self.log.read_text()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        self.listener.close()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """Returns (daemon, edge, authority of the edge's certificate). Each side has its own authority, as docs/security.md
    requires."""
    folder, beside = tmp_path_factory.mktemp("daemon"), tmp_path_factory.mktemp("edge")
    of_daemon, of_edge, outside = Authority("of the daemon"), Authority("of the edge"), Authority("outside")
    files, edge_files = Files(folder), Files(beside)
    pairs = [(files, "tls", of_daemon.issue("quire", host="quire")), (edge_files, "edge-client", of_edge.issue("edge")),
             (edge_files, "edge", outside.issue("edge"))]
    for where, name, (certificate, key) in pairs:
        where.write(f"{name}.crt", certificate)
        where.write(f"{name}.key", key)
    files.write("edge-ca.crt", of_edge.pem)
    edge_files.write("daemon-ca.crt", of_daemon.pem)
    files.write("tokens", token_line("alice", "acme", "generate") + token_line("root", "ops", "admin"))
    config = files.write("edge.yaml", (OVERLAY / "edge.yaml").read_text().replace("/etc/quire-tls", str(folder)))
    with Daemon(folder, "--config", str(config)) as daemon:
        daemon.wait_listening()
        wait_until(lambda: '"ready"' in daemon.log, "the model is loaded")
        with Edge(beside, daemon.grpc_address) as edge:
            yield daemon, edge, outside


def channel_to(port, authority, host="localhost"):
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), ("grpc.ssl_target_name_override", host)]
    return grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(authority.pem), options=options)


def test_calls_of_every_kind_pass_the_edge(api, deployed):  # noqa: F811
    _, edge, outside = deployed
    with channel_to(edge.port, outside) as channel:
        stub = api.GenerationServiceStub(channel)
        assert stub.ListModels(api.ListModelsRequest(), metadata=bearer("alice"), timeout=30).models
        messages = generate(api, channel, bearer("alice"), tokens=20)
        assert messages[-1].completed.usage.completion_tokens == 20

        item = api.BatchGenerateRequest(generate=request_of(api, request_id="one"))
        answers = list(stub.BatchGenerate(iter([item]), metadata=bearer("alice"), timeout=30))
        assert answers[-1].HasField("done"), answers


def test_command_line_client_passes_the_edge(deployed, tmp_path):
    _, edge, outside = deployed
    authority, token = Files(tmp_path).write("ca.crt", outside.pem), Files(tmp_path).write("token", "alice\n")
    done = subprocess.run([str(QUIRE), "--address", f"localhost:{edge.port}", "--tls-ca", str(authority), "--token-file", str(token),
                           "generate", "Once upon a time", "--max-tokens", "8"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_errors_of_the_daemon_pass_the_edge(api, deployed):  # noqa: F811
    """The details that clients act on are in trailers."""
    _, edge, outside = deployed
    with channel_to(edge.port, outside) as channel:
        for metadata, reason in (((), "TOKEN_MISSING"), (bearer("mallory"), "TOKEN_INVALID")):
            error = failure(lambda metadata=metadata: generate(api, channel, metadata))
            assert (error.code(), reason_of(error)[0]) == (grpc.StatusCode.UNAUTHENTICATED, reason)


def test_only_the_edge_can_reach_the_daemon(api, deployed):  # noqa: F811
    daemon, edge, _ = deployed
    authority = Authority("of an attacker")
    port = int(daemon.grpc_address.rsplit(":", 1)[1])
    ca = (edge.log.parent / "daemon-ca.crt").read_bytes()
    certificate, key = authority.issue("edge")
    for client in ((None, None), (key, certificate)):
        credentials = grpc.ssl_channel_credentials(ca, *client)
        options = [("grpc.ssl_target_name_override", "quire"), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
            assert failure(lambda channel=channel: generate(api, channel, bearer("alice"))).code() == grpc.StatusCode.UNAVAILABLE


def test_internal_services_are_not_exposed(api, deployed):  # noqa: F811
    _, edge, outside = deployed
    with channel_to(edge.port, outside) as channel:
        error = failure(lambda: api.AdminServiceStub(channel).Drain(api.DrainRequest(), metadata=bearer("root"), timeout=30))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
        reflection = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        assert failure(lambda: list(reflection(iter([b""]), timeout=30))).code() == grpc.StatusCode.UNIMPLEMENTED


def test_edge_rejects_oversized_requests(api, deployed):  # noqa: F811
    daemon, edge, outside = deployed
    lines = len(daemon.lines)
    with channel_to(edge.port, outside) as channel:
        failure(lambda: generate(api, channel, (*bearer("alice"), ("x-large", "x" * 20000))))
        failure(lambda: generate(api, channel, bearer("alice"), text="x" * (18 << 20)))
        assert generate(api, channel, bearer("alice"))
    assert not [line for line in daemon.lines[lines:] if "INPUT_TOO_LARGE" in line]


def test_limits_do_not_exceed_those_of_the_daemon():
    of_grpc = effective()["server"]["grpc"]
    units = {"k": 1 << 10, "m": 1 << 20, "KiB": 1 << 10, "MiB": 1 << 20}

    def to_bytes(text):
        number, unit = re.fullmatch(r"(\d+)([a-zA-Z]*)", str(text)).groups()
        return int(number) * units.get(unit, 1)

    message = to_bytes(of_grpc["max_receive_message_bytes"])
    bodies = re.findall(r"client_max_body_size (\w+);", CONF)
    assert sorted(bodies) == ["0", "17m"] and message < to_bytes("17m") < message + (2 << 20)
    count, size = value("large_client_header_buffers").split()
    assert int(count) * to_bytes(size) == to_bytes(of_grpc["max_metadata_bytes"])
    assert int(value("http2_max_concurrent_streams")) <= of_grpc["max_concurrent_streams"]
    grpc_port, _ = ports(effective())
    assert f"server quire:{grpc_port};" in CONF
    assert seconds(read_yaml(COMPOSE[1])["services"]["edge"]["stop_grace_period"]) > stop_seconds(effective())


def dockerfile_says(instruction):
    (found,) = re.findall(rf"^{instruction} (.*)$", (ROOT / "docker" / "edge.Dockerfile").read_text(), re.MULTILINE)
    return found


def test_compose_files_have_known_keys_only(tmp_path):
    command = [needs("docker-compose")]
    for name in COMPOSE:
        command += ["--file", str(ROOT / name)]
    done = subprocess.run([*command, "config"], capture_output=True, text=True, timeout=60, env={**os.environ, "QUIRE_EDGE": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    edge, quired = services["edge"], services["quired"]
    mounted = {mount.split(":")[1]: mount.split(":")[0] for mount in edge["volumes"]}
    named = set(re.findall(r"\b[a-z-]+\.(?:crt|key)\b", CONF))
    assert {os.path.basename(path) for path in mounted} == named | {"nginx.conf"}
    assert os.path.samefile(mounted["/etc/quire-edge/nginx.conf"], OVERLAY / "nginx.conf")
    assert dockerfile_says("ENTRYPOINT").count('"/etc/quire-edge/nginx.conf"') == 1
    assert edge["tmpfs"] == [f"/run/nginx:uid={dockerfile_says('USER').split(':')[0]},gid=10002,mode=0750"]
    assert edge["read_only"] and edge["cap_drop"] == ["ALL"] and edge["security_opt"] == ["no-new-privileges"]
    assert "quire" in quired["networks"]["default"]["aliases"]
    folder = read_yaml("deploy/k8s/overlays/edge/edge.yaml")["tls"]["cert_file"].rsplit("/", 1)[0]
    assert f"{tmp_path}/daemon:{folder}:ro" in quired["volumes"]


def test_overlay_puts_the_edge_in_front_of_the_base():
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in kustomized(OVERLAY)}
    quire, edge = by_name["Deployment", "quire"]["spec"], by_name["Deployment", "quire-edge"]["spec"]
    (quired,), (nginx,) = quire["template"]["spec"]["containers"], edge["template"]["spec"]["containers"]
    # quired reads both files of one ConfigMap, and the certificates at the paths in edge.yaml.
    (config,) = [one for (kind, name), one in by_name.items() if kind == "ConfigMap" and name.startswith("quire-") and "edge.yaml" in one["data"]]
    assert set(config["data"]) == {"quire.yaml", "edge.yaml"}
    assert quired["args"] == [part for name in ("quire", "edge") for part in ("--config", f"/etc/quire/{name}.yaml")]
    mounts = {mount["name"]: mount["mountPath"] for mount in quired["volumeMounts"]}
    tls = read_yaml("deploy/k8s/overlays/edge/edge.yaml")["tls"]
    assert tls["require_client_cert"] and tls["cert_file"].startswith(mounts["tls"] + "/")
    # nginx has every file that its configuration names, and the right user and port.
    (projected,) = [volume["projected"]["sources"] for volume in edge["template"]["spec"]["volumes"] if "projected" in volume]
    paths = {item["path"] for source in projected for item in source.get("secret", {}).get("items", [])}
    assert paths == set(re.findall(r"\b[a-z-]+\.(?:crt|key)\b", CONF))
    user, group = map(int, dockerfile_says("USER").split(":"))
    security = edge["template"]["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["runAsNonRoot"]) == (user, group, True)
    assert nginx["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    (port,) = nginx["ports"]
    assert f"listen {port['containerPort']} " in CONF and dockerfile_says("EXPOSE") == str(port["containerPort"])
    (outside,) = by_name["Service", "quire-edge"]["spec"]["ports"]
    assert outside["targetPort"] == port["name"] and by_name["Service", "quire-edge"]["spec"]["selector"] == edge["selector"]["matchLabels"]
    assert edge["template"]["spec"]["terminationGracePeriodSeconds"] >= quire["template"]["spec"]["terminationGracePeriodSeconds"]
    # OpenAI-compatible HTTP does not pass the edge, so it is off and no Service has it.
    assert read_yaml("deploy/k8s/overlays/edge/edge.yaml")["openai"] == {"enabled": False}
    assert {port["name"] for port in by_name["Service", "quire"]["spec"]["ports"]} == {"grpc", "http"}
    # Only the edge can reach the daemon's gRPC port.
    policy = by_name["NetworkPolicy", "quire"]["spec"]
    assert policy["podSelector"]["matchLabels"] == quire["selector"]["matchLabels"]
    (rule,) = [rule for rule in policy["ingress"] if {"port": "grpc"} in rule["ports"]]
    assert rule["from"] == [{"podSelector": {"matchLabels": edge["selector"]["matchLabels"]}}]

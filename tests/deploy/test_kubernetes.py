"""The manifests of deploy/k8s as kubectl renders them, checked against the image, quired's configuration and metrics.
"""

import functools
import re
import subprocess

import pytest
import yaml
from deployment import ROOT, Daemon, effective, image_user, needs, ports, scrape, seconds, stop_seconds

OVERLAYS = ["base", "overlays/monitoring", "overlays/gpu", "overlays/gateway"]


@functools.cache
def rendered(overlay):
    needs("kubectl")
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / "deploy" / "k8s" / overlay)], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(overlay, kind):
    return [document for document in rendered(overlay) if document["kind"] == kind]


def pod(overlay):
    (deployment,) = of_kind(overlay, "Deployment")
    return deployment["spec"]["template"]["spec"]


def container(overlay):
    (found,) = pod(overlay)["containers"]
    return found


def config():
    return effective("deploy/k8s/base/quire.yaml")


def test_covers_every_overlay():
    found = {path.parent.relative_to(ROOT / "deploy" / "k8s").as_posix()
             for path in (ROOT / "deploy" / "k8s").rglob("kustomization.yaml")}
    assert found == {*OVERLAYS, "overlays/edge"}  # test_edge.py covers the last one


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_and_labels(overlay):
    documents = rendered(overlay)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))
    (deployment,) = of_kind(overlay, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    def is_of_pods(selector):
        return selector and selector.items() <= labels.items()

    assert is_of_pods(deployment["spec"]["selector"]["matchLabels"])
    for service in of_kind(overlay, "Service"):
        assert is_of_pods(service["spec"]["selector"])
    for kind in ("PodDisruptionBudget", "InferencePool"):
        for document in of_kind(overlay, kind):
            assert is_of_pods(document["spec"]["selector"]["matchLabels"])
    # The configuration is referenced by its name with the content hash.
    (config_map,) = of_kind(overlay, "ConfigMap")
    (volume,) = [volume for volume in pod(overlay)["volumes"] if "configMap" in volume]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports(overlay):
    grpc, http = ports(config())
    by_name = {port["name"]: port["containerPort"] for port in container(overlay)["ports"]}
    assert by_name == {"grpc": grpc, "http": http}
    plain, headless = sorted(of_kind(overlay, "Service"), key=lambda service: "clusterIP" in service["spec"])
    assert headless["spec"]["clusterIP"] == "None" and "clusterIP" not in plain["spec"]
    for service in (plain, headless):
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in by_name and port["port"] == by_name[port["targetPort"]]
        (of_grpc,) = [port for port in service["spec"]["ports"] if port["targetPort"] == "grpc"]
        assert of_grpc["appProtocol"] == "kubernetes.io/h2c"
    for pool in of_kind(overlay, "InferencePool"):
        assert pool["spec"]["targetPorts"] == [{"number": grpc}]
        assert pool["apiVersion"] == "inference.networking.k8s.io/v1"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_use_existing_paths(overlay):
    probes = {name: container(overlay)[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    assert all(probe["httpGet"]["port"] == "http" for probe in probes.values())
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/startupz", "readiness": "/readyz", "liveness": "/livez"}
    handlers = (ROOT / "server" / "http" / "ops_handlers.cc").read_text()
    assert all(f'"{path}"' in handlers for path in paths.values())
    # A pod is taken out of service before it rejects requests, and is restarted later than the daemon itself times out.
    readiness, liveness, startup = probes["readiness"], probes["liveness"], probes["startup"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < seconds(config()["shutdown"]["pre_drain_delay"])
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > seconds(config()["health"]["engine_stall_timeout"])
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_termination_times(overlay):
    assert pod(overlay)["terminationGracePeriodSeconds"] > stop_seconds(config())
    # The daemon itself waits for load balancers.
    assert "lifecycle" not in container(overlay)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_security(overlay):
    user, group = (int(number) for number in image_user().split(":"))
    of_pod = pod(overlay)["securityContext"]
    assert of_pod["runAsNonRoot"] is True and (of_pod["runAsUser"], of_pod["runAsGroup"]) == (user, group)
    assert of_pod["fsGroup"] == group and of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container(overlay)["securityContext"]
    assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is (overlay != "overlays/gpu")
    assert pod(overlay)["automountServiceAccountToken"] is False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_mounts(overlay):
    mounts = {mount["name"]: mount for mount in container(overlay)["volumeMounts"]}
    assert all("subPath" not in mount for mount in mounts.values())
    assert set(mounts) == {volume["name"] for volume in pod(overlay)["volumes"]}
    # The named configuration is the mounted one, and quired accepts it.
    (config_map,) = of_kind(overlay, "ConfigMap")
    (name,) = config_map["data"]
    assert container(overlay)["args"] == ["--config", f"{mounts['config']['mountPath']}/{name}"]
    assert config_map["data"][name] == (ROOT / "deploy" / "k8s" / "base" / name).read_text()
    (socket,) = config()["server"]["admin"]["listen"]
    assert socket.startswith(f"unix:{mounts['run']['mountPath']}/")
    if "models" in mounts:
        (path,) = [entry["value"] for entry in container(overlay)["env"] if entry["name"] == "QUIRE__MODEL__PATH"]
        assert path.startswith(mounts["models"]["mountPath"] + "/") and mounts["models"]["readOnly"] is True


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_variables_are_configuration_keys(overlay):
    for entry in container(overlay).get("env", []):
        section = config()
        for part in entry["name"].removeprefix("QUIRE__").lower().split("__"):
            assert part in section, entry["name"]
            section = section[part]


def test_gpu_pod_is_recreated_on_update():
    (deployment,) = of_kind("overlays/gpu", "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert container("overlays/gpu")["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container("overlays/gpu")["image"] == "quire:cuda" and container("base")["image"] == "quire:latest"


@pytest.mark.parametrize("overlay", ["overlays/monitoring", "overlays/gateway"])
def test_scraping_and_scaling(overlay, tmp_path):
    (monitor,) = of_kind(overlay, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["path"] == "/metrics" and seconds(endpoint["scrapeTimeout"]) < seconds(endpoint["interval"])
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    ports_found = [port["name"] for service in of_kind(overlay, "Service")
                   if wanted <= service["metadata"]["labels"].items() for port in service["spec"]["ports"]]
    assert ports_found.count(endpoint["port"]) == 1, "no pod is scraped twice"
    (scaler,) = of_kind(overlay, "HorizontalPodAutoscaler")
    (deployment,) = of_kind(overlay, "Deployment")
    assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment",
                                                "name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"], "the autoscaler sets the number of replicas"
    metrics = {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    assert metrics == {"quire_requests_waiting", "quire_kv_cache_usage_ratio"}
    with Daemon(tmp_path) as daemon:
        text = scrape(daemon.wait_serving().http_address)
    assert all(re.search(rf"^# TYPE {name} gauge$", text, re.MULTILINE) for name in metrics)


def test_documented_adapter_serves_the_autoscaler_metrics():
    (adapter,) = [block for block in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "operations.md").read_text(), re.DOTALL)
                  if "seriesQuery" in block]
    (rule,) = yaml.safe_load(adapter)["rules"]
    (scaler,) = of_kind("overlays/monitoring", "HorizontalPodAutoscaler")
    for metric in scaler["spec"]["metrics"]:
        assert metric["pods"]["metric"]["name"] in rule["seriesQuery"]

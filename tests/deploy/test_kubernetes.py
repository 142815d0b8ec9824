"""The manifests of deploy/k8s as kubectl renders them, checked against the image, quired's configuration and metrics.
"""

import os
import re

import pytest
import yaml
from deployment import (ROOT, Daemon, check_schema, effective, image_user, kustomized, port, ports, scrape, seconds,
                        stop_seconds)

K8S = ROOT / "deploy" / "k8s"
OVERLAYS = ["base", "overlays/monitoring", "overlays/keda", "overlays/gpu", "overlays/gateway"]


def of_kind(overlay, kind):
    return [document for document in kustomized(K8S / overlay) if document["kind"] == kind]


def named(overlay, kind, name):
    (found,) = [document for document in of_kind(overlay, kind) if document["metadata"]["name"] == name]
    return found


def pod(overlay):
    return named(overlay, "Deployment", "quire")["spec"]["template"]["spec"]


def container(overlay):
    (found,) = pod(overlay)["containers"]
    return found


def config():
    return effective("deploy/k8s/base/quire.yaml")


def test_covers_every_overlay():
    found = {path.parent.relative_to(K8S).as_posix() for path in K8S.rglob("kustomization.yaml")}
    assert found == {*OVERLAYS, "overlays/edge"}  # test_edge.py covers the last one


@pytest.mark.parametrize("overlay", [*OVERLAYS, "overlays/edge"])
def test_published_schemas_accept_every_resource(overlay):
    for document in kustomized(K8S / overlay):
        check_schema(document)


def test_schemas_reject_misspelt_fields():
    """Every kind that the manifests use has a schema that allows only known fields."""
    for document in {document["kind"]: document for overlay in OVERLAYS for document in kustomized(K8S / overlay)}.values():
        field = "spec" if "spec" in document else "metadata"
        with pytest.raises(AssertionError, match="misspelt"):
            check_schema({**document, field: {**document[field], "misspelt": "x"}})


@pytest.mark.parametrize("overlay", [*OVERLAYS, "overlays/edge"])
def test_images_are_set_in_one_place(overlay, tmp_path):
    """A kustomization.yaml as in docs/operations.md changes every image of quire."""
    (example,) = re.findall(r"cat >kustomization.yaml <<'END'\n(.*?)END\n", (ROOT / "docs" / "operations.md").read_text(),
                            re.DOTALL)
    wanted = yaml.safe_load(example)
    (image,) = wanted["images"]
    if overlay == "overlays/edge":
        wanted["images"].append({**image, "name": "quire-edge", "newName": "registry.example/quire-edge"})
    # kustomize reads no absolute paths.
    wanted["resources"] = [os.path.relpath(K8S / overlay, tmp_path.resolve())]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    images = {container["image"] for document in kustomized(tmp_path) if document["kind"] == "Deployment"
              for container in document["spec"]["template"]["spec"]["containers"]}
    ours = {name for name in images if "quire" in name}
    assert ours == {f"{one['newName']}:{one['newTag']}" for one in wanted["images"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_and_labels(overlay):
    names = [(document["kind"], document["metadata"]["name"]) for document in kustomized(K8S / overlay)]
    assert len(names) == len(set(names))
    deployment = named(overlay, "Deployment", "quire")
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    def is_of_pods(selector):
        return selector and selector.items() <= labels.items()

    assert is_of_pods(deployment["spec"]["selector"]["matchLabels"])
    for name in ("quire", "quire-headless"):
        assert is_of_pods(named(overlay, "Service", name)["spec"]["selector"])
    for kind in ("PodDisruptionBudget", "InferencePool"):
        for document in of_kind(overlay, kind):
            assert is_of_pods(document["spec"]["selector"]["matchLabels"])
    # The configuration is referenced by its name with the content hash.
    (volume,) = [volume for volume in pod(overlay)["volumes"] if "configMap" in volume]
    assert list(named(overlay, "ConfigMap", volume["configMap"]["name"])["data"]) == ["quire.yaml"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports(overlay):
    grpc, http = ports(config())
    openai = port(config()["openai"]["listen"])
    by_name = {one["name"]: one["containerPort"] for one in container(overlay)["ports"]}
    assert by_name == {"grpc": grpc, "openai": openai, "http": http}
    plain, headless = named(overlay, "Service", "quire"), named(overlay, "Service", "quire-headless")
    assert headless["spec"]["clusterIP"] == "None" and "clusterIP" not in plain["spec"]
    assert [one["targetPort"] for one in plain["spec"]["ports"]] == list(by_name)
    for service in (plain, headless):
        for one in service["spec"]["ports"]:
            assert one["port"] == by_name[one["targetPort"]]
        (of_grpc,) = [one for one in service["spec"]["ports"] if one["targetPort"] == "grpc"]
        assert of_grpc["appProtocol"] == "kubernetes.io/h2c"


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
    (volume,) = [volume for volume in pod(overlay)["volumes"] if volume["name"] == "config"]
    config_map = named(overlay, "ConfigMap", volume["configMap"]["name"])
    (name,) = config_map["data"]
    assert container(overlay)["args"] == ["--config", f"{mounts['config']['mountPath']}/{name}"]
    assert config_map["data"][name] == (K8S / "base" / name).read_text()
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


def test_scraping_and_scaling(tmp_path):
    overlay = "overlays/monitoring"
    (monitor,) = of_kind(overlay, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["path"] == "/metrics" and seconds(endpoint["scrapeTimeout"]) < seconds(endpoint["interval"])
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    ports_found = [one["name"] for service in of_kind(overlay, "Service")
                   if wanted <= service["metadata"]["labels"].items() for one in service["spec"]["ports"]]
    assert ports_found.count(endpoint["port"]) == 1, "no pod is scraped twice"
    (scaler,) = of_kind(overlay, "HorizontalPodAutoscaler")
    (deployment,) = of_kind(overlay, "Deployment")
    assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment",
                                                "name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"], "the autoscaler sets the number of replicas"
    metrics = {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    assert metrics == {"quire_requests_waiting", "quire_kv_cache_usage_ratio"}
    assert_gauges(metrics, tmp_path)


def assert_gauges(names, folder):
    with Daemon(folder) as daemon:
        text = scrape(daemon.wait_serving().http_address)
    assert all(re.search(rf"^# TYPE {name} gauge$", text, re.MULTILINE) for name in names), names


def check_keda(scaled, deployment, service, namespace, folder):
    """KEDA reads the queue of every pod behind a Service, and the Deployment leaves the number of replicas to it."""
    assert scaled["spec"]["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"]
    (trigger,) = scaled["spec"]["triggers"]
    (port_of_metrics,) = [one["port"] for one in service["spec"]["ports"] if one["targetPort"] == "http"]
    assert trigger["metadata"]["url"] == f"http://{service['metadata']['name']}.{namespace}.svc:{port_of_metrics}/metrics"
    assert trigger["metadata"]["aggregationType"] == "sum" and trigger["metricType"] == "AverageValue"
    assert_gauges([trigger["metadata"]["valueLocation"]], folder)


def test_keda_scales_on_waiting_requests(tmp_path):
    (scaled,) = of_kind("overlays/keda", "ScaledObject")
    check_keda(scaled, named("overlays/keda", "Deployment", "quire"), named("overlays/keda", "Service", "quire"), "default",
               tmp_path)


def test_gateway_pool_and_picker_belong_together(tmp_path):
    overlay = "overlays/gateway"
    (pool,), (route,), (account,), (binding,), (role,) = (
        of_kind(overlay, kind) for kind in ("InferencePool", "HTTPRoute", "ServiceAccount", "RoleBinding", "Role"))
    (target,) = pool["spec"]["targetPorts"]
    assert target["number"] == port(config()["openai"]["listen"])
    assert route["spec"]["rules"][0]["backendRefs"] == [
        {"group": pool["apiVersion"].split("/")[0], "kind": "InferencePool", "name": pool["metadata"]["name"]}]
    # The pool names the Service of the picker, and the Service reaches its pod.
    reference = pool["spec"]["endpointPickerRef"]
    service = named(overlay, "Service", reference["name"])
    picker = named(overlay, "Deployment", "quire-picker")["spec"]["template"]
    assert service["spec"]["selector"] == picker["metadata"]["labels"]
    assert not pool["spec"]["selector"]["matchLabels"].items() <= picker["metadata"]["labels"].items()
    (port_of_service,) = service["spec"]["ports"]
    (program,) = picker["spec"]["containers"]
    ports_of_picker = {one["name"]: one["containerPort"] for one in program["ports"]}
    assert ports_of_picker[port_of_service["targetPort"]] == reference["port"]["number"] == port_of_service["port"]
    assert program["readinessProbe"]["grpc"]["port"] == ports_of_picker["health"]
    # The picker knows its pool, may read it, and scrapes the port of the metrics.
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in program["args"])
    assert flags["pool-name"] == pool["metadata"]["name"] and flags["pool-group"] in pool["apiVersion"]
    assert flags["model-server-metrics-port"] == str(ports(config())[1])
    assert picker["spec"]["serviceAccountName"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {"pods", "inferencepools"} <= {name for rule in role["rules"] for name in rule["resources"]}
    # Its configuration is mounted where the flag names it, uses only plugins that it declares, and reads our metrics.
    (volume,) = picker["spec"]["volumes"]
    folder, name = flags["config-file"].rsplit("/", 1)
    assert program["volumeMounts"][0]["mountPath"] == folder
    picker_config = yaml.safe_load(named(overlay, "ConfigMap", volume["configMap"]["name"])["data"][name])
    plugins = {plugin["type"]: plugin.get("parameters") for plugin in picker_config["plugins"]}
    (profile,) = picker_config["schedulingProfiles"]
    assert {one["pluginRef"] for one in profile["plugins"]} <= set(plugins)
    extractor = plugins["core-metrics-extractor"]
    (engine,) = extractor["engineConfigs"]
    assert engine["name"] == extractor["defaultEngine"] and engine["loraSpec"] == ""
    assert plugins["metrics-data-source"]["path"] == "/metrics"
    assert_gauges([engine[f"{spec}Spec"] for spec in ("queuedRequests", "runningRequests", "kvUsage", "cacheInfo")], tmp_path)


def test_documented_adapter_serves_the_autoscaler_metrics():
    (adapter,) = [block for block in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "operations.md").read_text(), re.DOTALL)
                  if "seriesQuery" in block]
    (rule,) = yaml.safe_load(adapter)["rules"]
    (scaler,) = of_kind("overlays/monitoring", "HorizontalPodAutoscaler")
    for metric in scaler["spec"]["metrics"]:
        assert metric["pods"]["metric"]["name"] in rule["seriesQuery"]

"""The Helm chart as helm renders it, checked against published schemas, the image and quired's configuration."""

import re
import subprocess

import pytest
import yaml
from deployment import (QUIRED, ROOT, Daemon, check_schema, effective, image_user, kubernetes_tools, kustomized, port, ports,
                        read_yaml, seconds, stop_seconds)
from attack_tools import token_line
from certificates import Authority
from test_kubernetes import K8S, check_keda
from waiting import wait_until

CHART = ROOT / "deploy" / "helm" / "quire"
# Values that together render every branch of the templates.
CASES = {
    "default": {},
    "name of the release": {"release": "story", "podDisruptionBudget.enabled": "false"},
    "gpu": {"gpu.count": "1", "replicas": "1", "model.path": "/models/model", "model.volume.claim": "models"},
    "pull": {"model.pull.name": "org/name@main", "model.pull.gguf": "name.gguf", "model.pull.tokenSecret": "hub"},
    "folder of the node": {"model.path": "/models/model", "model.volume.hostPath": "/srv/models"},
    "secrets": {"auth.tokensSecret": "tokens", "tls.secret": "tls", "tls.clientCaKey": "ca.crt",
                "imagePullSecrets[0].name": "registry", "service.type": "LoadBalancer", "service.annotations.a": "b"},
    "tokens only": {"auth.tokensSecret": "tokens"},
    "operators": {"podMonitor.enabled": "true", "podMonitor.labels.team": "a", "autoscaling.enabled": "true",
                  "config.auth.anonymous_scopes[0]": "metrics"},
    "places": {"nodeSelector.disk": "ssd", "tolerations[0].key": "gpu", "podAnnotations.a": "b",
               "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
               ".matchExpressions[0].key": "gpu",
               "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
               ".matchExpressions[0].operator": "Exists"},
}


def helm(*arguments):
    return subprocess.run([kubernetes_tools() / "helm", *arguments], capture_output=True, text=True, timeout=60)


def template(values, *arguments):
    values = dict(values)
    release = values.pop("release", "quire")
    settings = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    return helm("template", release, str(CHART), "--namespace", "prod", *settings, *arguments)


def render(case):
    done = template(CASES[case])
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def pod_of(documents):
    (deployment,) = of_kind(documents, "Deployment")
    return deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize("case", CASES)
def test_published_schemas_accept_every_resource(case):
    documents = render(case)
    assert {"Deployment", "ConfigMap", "Service", "Pod"} <= {document["kind"] for document in documents}
    for document in documents:
        check_schema(document)


@pytest.mark.parametrize("case", CASES)
def test_lint_accepts_the_chart(case):
    settings = [part for name, value in CASES[case].items() if name != "release" for part in ("--set", f"{name}={value}")]
    done = helm("lint", "--strict", str(CHART), *settings)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cases_render_every_line_of_the_templates():
    """Every value is used by some case, so that no branch of the templates stays unchecked."""
    used = {name.split("[")[0] for case in CASES.values() for name in case}
    conditions = set()
    for path in (CHART / "templates").rglob("*.yaml"):
        for action in re.findall(r"{{-? (?:if|else if|with) (.*?)}}", path.read_text()):
            conditions |= set(re.findall(r"\.Values\.([A-Za-z.]+)", action))
    missing = {name for name in conditions if not any(one == name or one.startswith(name + ".") for one in used)}
    assert conditions and not missing


@pytest.mark.parametrize("name", ["modle.path=x", "model.pth=x", "image.repo=x", "resources.limit.cpu=1", "gpu.counts=1",
                                  "autoscaling.max=3"])
def test_misspelt_values_are_refused_by_name(name):
    done = helm("template", "quire", str(CHART), "--set", name)
    misspelt = next(part for part in name.split("=")[0].split(".") if f"'{part}'" in done.stderr)
    assert done.returncode != 0 and f"additional properties '{misspelt}' not allowed" in done.stderr


@pytest.mark.parametrize("name, cause", [("model.pull.name=llama", "/model/pull/name"), ("gpu.count=one", "/gpu/count"),
                                         ("image.pullPolicy=Sometimes", "/image/pullPolicy")])
def test_wrong_values_are_refused_by_name(name, cause):
    done = helm("template", "quire", str(CHART), "--set", name)
    assert done.returncode != 0 and cause in done.stderr


def test_two_volumes_are_refused():
    done = template({"model.volume.claim": "a", "model.volume.hostPath": "/a"})
    assert done.returncode != 0 and "set one of them" in done.stderr


def test_schema_knows_exactly_the_values():
    def names(value, prefix=""):
        if not isinstance(value, dict) or prefix in ("config.", "resources."):
            return {prefix[:-1]}
        return {prefix[:-1]}.union(*(names(one, f"{prefix}{name}.") for name, one in value.items()))

    def names_of_schema(schema, prefix=""):
        if prefix in ("config.", "resources."):
            return {prefix[:-1]}
        return {prefix[:-1]}.union(*(names_of_schema(one, f"{prefix}{name}.")
                                     for name, one in schema.get("properties", {}).items()))

    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    # Helm itself adds `global`.
    assert names_of_schema(schema) - {"global"} == names(read_yaml("deploy/helm/quire/values.yaml"))


def test_versions_match_the_project():
    chart = read_yaml("deploy/helm/quire/Chart.yaml")
    version = re.search(r"project\(quire VERSION (\S+) ", (ROOT / "CMakeLists.txt").read_text())[1]
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("case", CASES)
def test_daemon_accepts_the_configuration(case, tmp_path):
    documents = render(case)
    (config_map,) = of_kind(documents, "ConfigMap")
    # The mounts are folders of this test. Nothing is pulled here, so the embedded model replaces the pulled one.
    text = config_map["data"]["quire.yaml"].replace(" org/name@main:name.gguf\n", " embedded\n")
    for mount in ("/models", "/etc/quire-auth", "/etc/quire-tls"):
        text = text.replace(f" {mount}/", f" {tmp_path}/{mount.rsplit('/', 1)[1]}/")
        (tmp_path / mount.rsplit("/", 1)[1]).mkdir()
    (tmp_path / "models" / "model").symlink_to(ROOT / "assets" / "story")
    (tmp_path / "quire-auth" / "tokens").write_text(token_line("alice", "acme", "generate"))
    authority = Authority("of the callers")
    for name, content in zip(("tls.crt", "tls.key"), authority.issue("quire", host="quire")):
        (tmp_path / "quire-tls" / name).write_bytes(content)
    (tmp_path / "quire-tls" / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "quire.yaml").write_text(text)
    command = [str(QUIRED), "--config", str(tmp_path / "quire.yaml"), "--print-effective-config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    container = pod_of(documents)["containers"][0]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert set(mount["name"] for mount in container["volumeMounts"]) == {volume["name"] for volume in pod_of(documents)["volumes"]}
    assert container["args"] == ["--config", "/etc/quire/quire.yaml"] and "/etc/quire" in mounts
    # Every file that the configuration names is in a mounted folder.
    config = yaml.safe_load(config_map["data"]["quire.yaml"])
    files = [config.get("auth", {}).get("tokens_file"), config["model"]["path"],
             *(value for key, value in config.get("tls", {}).items() if key.endswith("_file"))]
    assert all(any(path.startswith(f"{mount}/") for mount in mounts) for path in files if path and path.startswith("/"))
    assert pod_of(documents)["terminationGracePeriodSeconds"] > stop_seconds(
        {"shutdown": {name: config["shutdown"][name] for name in ("pre_drain_delay", "drain_timeout", "force_timeout")}})


def test_pods_are_those_of_the_base():
    """The chart and deploy/k8s/base start the same container, with the same probes, ports and privileges."""
    ours = pod_of(render("default"))
    (deployment,) = [one for one in kustomized(K8S / "base") if one["kind"] == "Deployment"]
    base = deployment["spec"]["template"]["spec"]
    (chart,) = of_kind(render("default"), "Deployment")
    assert chart["spec"]["progressDeadlineSeconds"] == deployment["spec"]["progressDeadlineSeconds"] == 1200
    assert ours["securityContext"] == base["securityContext"]
    assert str(ours["securityContext"]["runAsUser"]) == image_user().split(":")[0]
    (left,), (right,) = ours["containers"], base["containers"]
    assert left == right
    config = effective("deploy/k8s/base/quire.yaml")
    (config_map,) = of_kind(render("default"), "ConfigMap")
    base_config = read_yaml("deploy/k8s/base/quire.yaml")
    assert yaml.safe_load(config_map["data"]["quire.yaml"]) == base_config
    by_name = {one["name"]: one["containerPort"] for one in left["ports"]}
    assert by_name == dict(zip(("grpc", "http"), ports(config))) | {"openai": port(config["openai"]["listen"])}


@pytest.mark.parametrize("case", CASES)
def test_services_reach_the_pods(case):
    documents = render(case)
    (deployment,) = of_kind(documents, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    numbers = {one["name"]: one["containerPort"] for one in pod_of(documents)["containers"][0]["ports"]}
    plain, headless = of_kind(documents, "Service")
    name = deployment["metadata"]["name"]
    assert (plain["metadata"]["name"], headless["metadata"]["name"]) == (name, f"{name}-headless")
    assert "quire" in name and headless["spec"]["clusterIP"] == "None"
    assert [one["targetPort"] for one in plain["spec"]["ports"]] == ["grpc", "openai", "http"]
    for service in (plain, headless):
        assert service["spec"]["selector"].items() <= labels.items()
        assert all(one["port"] == numbers[one["targetPort"]] for one in service["spec"]["ports"])
        protocols = {one["name"]: one["appProtocol"] for one in service["spec"]["ports"]}
        assert protocols["grpc"] == ("https" if case == "secrets" else "kubernetes.io/h2c")
    # The pod of `helm test` is not behind the Services.
    (test,) = of_kind(documents, "Pod")
    assert not plain["spec"]["selector"].items() <= test["metadata"]["labels"].items()
    for monitor in of_kind(documents, "PodMonitor"):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == "http" and seconds(endpoint["scrapeTimeout"]) < seconds(endpoint["interval"])


def test_image_is_set_in_one_place():
    done = template({**CASES["pull"], "image.repository": "registry.example/quire", "image.tag": "v1"})
    images = re.findall(r"image: (\S+)", done.stdout)
    assert len(images) == 3 and set(images) == {"registry.example/quire:v1"}
    assert pod_of(render("gpu"))["containers"][0]["image"] == "quire:cuda"


def test_a_rollout_may_take_as_long_as_a_pull():
    (deployment,) = of_kind(render("pull"), "Deployment")
    assert deployment["spec"]["progressDeadlineSeconds"] == 7200


def test_pull_stores_the_model_where_the_daemon_looks():
    pod = pod_of(render("pull"))
    (pull,), (daemon,) = pod["initContainers"], pod["containers"]
    assert pull["command"] + pull["args"] == ["/usr/bin/quire", "pull", "org/name@main", "--gguf", "name.gguf"]
    homes = [{one["name"]: one.get("value") for one in container["env"]}["HF_HOME"] for container in (pull, daemon)]
    assert homes[0] == homes[1]
    mounts = [{mount["mountPath"]: mount for mount in container["volumeMounts"]} for container in (pull, daemon)]
    assert homes[0].startswith("/models/") and "readOnly" not in mounts[0]["/models"] and mounts[1]["/models"]["readOnly"]
    (config_map,) = of_kind(render("pull"), "ConfigMap")
    assert yaml.safe_load(config_map["data"]["quire.yaml"])["model"]["path"] == "org/name@main:name.gguf"


def test_gpu_pod():
    documents = render("gpu")
    container = pod_of(documents)["containers"][0]
    assert container["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": "1"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert of_kind(documents, "Deployment")[0]["spec"]["strategy"] == {"type": "Recreate"}
    (config_map,) = of_kind(documents, "ConfigMap")
    assert yaml.safe_load(config_map["data"]["quire.yaml"])["device"] == {"type": "cuda"}


def test_keda_scales_on_waiting_requests(tmp_path):
    documents = render("operators")
    (scaled,), (deployment,) = of_kind(documents, "ScaledObject"), of_kind(documents, "Deployment")
    check_keda(scaled, deployment, of_kind(documents, "Service")[0], "prod", tmp_path)


@pytest.mark.parametrize("case", ["default", "tokens only", "secrets"])
def test_helm_test_asks_a_live_daemon(case, tmp_path):
    """Runs the program of `helm test` with the daemon's address, and again after the daemon has ended."""
    (pod,) = of_kind(render(case), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    service, number, path, expected = container["args"]
    assert service == "quire" and (number, path) == (("9464", "/readyz") if case == "secrets" else ("8000", "/v1/models"))
    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0", "shutdown.pre_drain_delay=0s"]
    if "auth.tokensSecret" in CASES[case]:
        (tmp_path / "tokens").write_text(token_line("alice", "acme", "generate"))
        settings += ["auth.mode=token", f"auth.tokens_file={tmp_path}/tokens"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_listening()
        host, live = (daemon.http_address if case == "secrets" else daemon.openai_address).rsplit(":", 1)

        def passes(path, expected):
            command = [*container["command"], host, live, path, expected]
            return subprocess.run(command, capture_output=True, timeout=60).returncode == 0

        wait_until(lambda: passes(path, expected), "the check passes")
        assert not passes("/no-such-path", "200")
    assert not passes(path, expected)

"""Dashboard, alerts and recording rules, checked against the metrics of a running quired."""

import json
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest
import yaml
from deployment import ROOT, Daemon, metric_names, needs, quire, read_yaml, rules, scrape
from waiting import wait_until

SUFFIXES = ("_bucket", "_sum", "_count")
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """The embedded model after a request of each outcome that can be produced on demand."""
    with Daemon(tmp_path_factory.mktemp("quired"), settings=["shutdown.pre_drain_delay=0s"]) as running:
        running.wait_serving()
        quire(running, "generate", "Once upon a time", "--max-tokens", "8", "--quiet")
        quire(running, "generate", "x", "--temperature", "1000", code=1)
        yield running


@pytest.fixture(scope="module")
def families(daemon):
    """Returns {name: type} of one scrape. Histograms are also listed under the names of their series."""
    found = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape(daemon.http_address), re.MULTILINE))
    assert len(found) > 40
    return found


def is_served(name, families):
    for suffix in SUFFIXES:
        if name.endswith(suffix) and families.get(name.removesuffix(suffix)) == "histogram":
            return True
    return families.get(name) in ("counter", "gauge")


def dashboard_queries():
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            queries.append((variable["name"], re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"]).group(1)))
    return queries


def test_every_metric_of_the_dashboard_exists_in_a_scrape(families):
    queries = dashboard_queries()
    assert len(queries) > 40
    for title, expression in queries:
        names = metric_names(expression)
        assert names, f"{title}: no metric in {expression}"
        for name in names:
            assert is_served(name, families), f"{title}: {name}"


def test_every_metric_of_the_dashboard_is_documented():
    text = (ROOT / "docs" / "metrics.md").read_text()
    for _, expression in dashboard_queries():
        for name in metric_names(expression):
            base = re.sub(r"(_bucket|_sum|_count)$", "", name)
            assert f"`{base.removeprefix('quire_')}`" in text, base


def test_labels_of_the_dashboard_exist(daemon):
    text = scrape(daemon.http_address)
    known = set(re.findall(r'[{,]([a-z_]+)="', text)) | {"job", "instance"}
    used = set()
    for _, expression in dashboard_queries():
        for labels in re.findall(r"\bby \(([^)]*)\)", expression):
            used |= set(re.split(r",\s*", labels))
        for labels in re.findall(r"\{([^}]*)\}", expression):
            used |= set(re.findall(r'(\w+)=', labels))
    legends = " ".join(target["legendFormat"] for panel in json.loads(DASHBOARD.read_text())["panels"]
                       for target in panel.get("targets", []))
    used |= set(re.findall(r"\{\{(\w+)\}\}", legends))
    assert used <= known, used - known


def test_panels_do_not_overlap_and_have_unique_ids():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_every_metric_of_the_rules_exists_in_a_scrape_or_is_recorded(families):
    recorded = {rule["record"] for _, rule in rules() if "record" in rule}
    assert recorded
    for file, rule in rules():
        names = metric_names(rule["expr"])
        assert names
        for name in names - recorded - {"up"}:
            assert is_served(name, families), f"{file}: {rule.get('alert', rule.get('record'))}: {name}"


def test_alert_texts_name_existing_metrics_and_keys(families):
    """Checks the metrics and configuration keys in the alert texts."""
    reference = (ROOT / "docs" / "reference" / "config.md").read_text()
    for _, rule in rules():
        text = " ".join(rule.get("annotations", {}).values())
        for name in re.findall(r"\bquire_[a-z_]+\b", text):
            assert is_served(name, families), name
        for key in re.findall(r"\b(?:limits|scheduler|kv_cache|shutdown|model)\.[a-z_]+\b", text):
            assert f"`{key}`" in reference, key


def test_every_alert_has_a_unit_test():
    tested = {case["alertname"] for test in read_yaml("tests/deploy/rules_test.yml")["tests"]
              for case in test.get("alert_rule_test", []) if case["exp_alerts"]}
    assert tested == {rule["alert"] for _, rule in rules() if "alert" in rule}


def test_mistakes_of_clients_are_tested_against_every_alert():
    (burst,) = [test for test in read_yaml("tests/deploy/rules_test.yml")["tests"] if "mistakes" in test["name"]]
    silent = {case["alertname"] for case in burst["alert_rule_test"] if not case["exp_alerts"]}
    assert silent == {rule["alert"] for _, rule in rules() if "alert" in rule}
    reasons = set(re.findall(r'reason="(\w+)"', str(burst["input_series"])))
    source = (ROOT / "base" / "error_reason.cc").read_text()
    assert all(f'"{reason}"' in source for reason in reasons)


def test_every_alert_waits_before_it_fires():
    assert all(rule["for"] for _, rule in rules() if "alert" in rule)


def test_rules_count_existing_reasons_and_codes():
    source = (ROOT / "base" / "error_reason.cc").read_text()
    for label, names in ((label, names.split("|")) for _, rule in rules()
                         for label, names in re.findall(r'(reason|code)=~"([^"]*)"', rule["expr"])):
        for name in names:
            constant = "k" + "".join(part.capitalize() for part in name.split("_"))
            assert (f'"{name}"' if label == "reason" else constant) in source, name


def test_promtool_accepts_rules_and_their_tests():
    needs("promtool")
    files = sorted(str(path) for path in (ROOT / "deploy" / "prometheus").glob("*.yml"))
    for command in (["check", "rules", *files], ["test", "rules", str(ROOT / "tests" / "deploy" / "rules_test.yml")]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, path, **parameters):
    url = f"http://127.0.0.1:{port}/api/v1/{path}?" + urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)["data"]


def wait_for(what, question):
    return wait_until(question, what, 25, not_yet=(OSError, ValueError))


def test_prometheus_evaluates_the_rules_of_a_live_daemon(daemon, tmp_path):
    """Uses the shipped files, except for the target and the evaluation interval."""
    needs("prometheus")
    port = free_port()
    config = read_yaml("docker/prometheus.yml")
    config["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
    names = [path.rsplit("/", 1)[1] for path in config["rule_files"]]
    for name in names:
        text = (ROOT / "deploy" / "prometheus" / name).read_text().replace("interval: 15s", "interval: 200ms")
        (tmp_path / name).write_text(text)
    config["rule_files"] = [str(tmp_path / name) for name in names]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [daemon.http_address, f"127.0.0.1:{free_port()}"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
               f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as prometheus:
        try:
            wait_for("the target is up", lambda: any(
                target["health"] == "up" for target in ask(port, "targets")["activeTargets"]))
            wait_for("a rule is recorded", lambda: ask(
                port, "query", query="quire:request_queue_seconds:p95_5m")["result"])
            # The second target is unreachable. Its alert stays pending for the required minute.
            pending = wait_for("the alert is raised", lambda: ask(port, "alerts")["alerts"])
            assert {(alert["labels"]["alertname"], alert["state"]) for alert in pending} == {("QuireDown", "pending")}
            evaluated = [rule for group in ask(port, "rules")["groups"] for rule in group["rules"]]
            assert len(evaluated) == len(rules()) and all(rule["health"] in ("ok", "unknown") for rule in evaluated)
        finally:
            prometheus.send_signal(signal.SIGTERM)
        assert prometheus.wait(20) == 0

"""Tests of the status page in a real browser, with a real daemon under load."""

import json
import os
import pathlib
import re
import shutil
import threading
import urllib.error
import urllib.request

import pytest
from attack_tools import tls_channel
from certificates import Authority
from daemon import Daemon, becomes_serving
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from waiting import wait_until

USES = ("free", "cached", "shared", "work", "used")
IDS = ("theme", "text", "max-tokens", "temperature", "send")
# Computes the contrast of text with its background as defined by WCAG 2.
CONTRAST = """
const channel = c => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
const parse = text => text.match(/[\\d.]+/g).map(Number);
const ground = element => {
  for (; element; element = element.parentElement) {
    const colour = parse(getComputedStyle(element).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const found = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own && !['INPUT', 'TEXTAREA'].includes(element.tagName)) continue;
  if (!element.offsetParent || ['SCRIPT', 'STYLE'].includes(element.tagName)) continue;
  const a = light(parse(getComputedStyle(element).color)), b = light(ground(element));
  found.push([element.id || element.tagName + ' ' + element.textContent.slice(0, 20),
              (Math.max(a, b) + .05) / (Math.min(a, b) + .05)]);
}
return found;
"""


def fetch(daemon, path):
    with urllib.request.urlopen(f"http://{daemon.http_address}{path}", timeout=10) as answer:
        return answer.read().decode()


def pages_by_state(daemon):
    text = fetch(daemon, "/metrics")
    return {
        state: int(float(value))
        for state, value in re.findall(r'quire_kv_cache_pages\{[^}]*state="(\w+)"[^}]*\} (\S+)', text)
    }


def counts_of(runs):
    counts = dict.fromkeys(USES, 0)
    for value, length in runs:
        counts[USES[min(value, 4)]] += length
    return counts


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    settings = (
        "openai.enabled=true",
        "openai.listen=127.0.0.1:0",
        "kv_cache.page_size=16",
        "kv_cache.capacity_bytes=16MiB",
        # The slow kernels keep eight streams running until one Python process has read nearly all of their tokens.
        "device.cpu.isa=scalar",
    )
    with Daemon(tmp_path_factory.mktemp("quired"), settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    profile = tmp_path_factory.mktemp("chromium")
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1200,900",
                     "disable-background-networking", "disable-component-update", "no-first-run",
                     f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, daemon):
    browser.get(f"http://{daemon.http_address}/")
    WebDriverWait(browser, 20).until(lambda b: b.find_element(By.ID, "state").text == "ready")
    return browser


@pytest.fixture
def load(daemon, api):
    """Runs eight streams until the test ends. Four of them share their first pages."""
    over = threading.Event()

    def stream(i, channel):
        stub = api.GenerationServiceStub(channel)
        while not over.is_set():
            request = api.GenerateRequest(text="Once upon a time there was a girl. " * (3 if i < 4 else 1) + str(i))
            request.stopping.max_tokens = 200
            request.stopping.ignore_eos = True
            request.output.stream = True
            call = stub.Generate(request)
            for _ in call:
                if over.is_set():
                    call.cancel()
                    break

    with daemon.channel() as channel:

        def body(i):
            try:
                stream(i, channel)
            except Exception:  # the end of the load cancels the call
                if not over.is_set():
                    raise

        threads = [threading.Thread(target=body, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        yield
        over.set()
        for thread in threads:
            thread.join()


def cells(page):
    values = page.execute_script("return [...document.querySelectorAll('#pool i')].map(i => i.dataset.use)")
    return {use: values.count(use) for use in USES}


def text(page, element_id):
    return page.find_element(By.ID, element_id).text


def test_cells_equal_the_pages_of_the_metrics(daemon, page, admin, api):
    # No request runs, so page, status.json and metrics can be compared one after another.
    page.find_element(By.ID, "text").clear()
    page.find_element(By.ID, "text").send_keys("Once upon a time there was a little")
    page.find_element(By.ID, "send").click()
    WebDriverWait(page, 30).until(lambda b: "tokens/s" in text(b, "play-note"))
    metrics = pages_by_state(daemon)
    assert metrics["cached"] > 0 and metrics["used"] == 0
    WebDriverWait(page, 10).until(lambda b: cells(b)["cached"] == metrics["cached"])
    drawn = cells(page)
    assert drawn == {"free": metrics["free"], "cached": metrics["cached"], "shared": 0, "work": 0, "used": 0}
    assert {use: int(text(page, f"count-{use}")) for use in USES} == drawn
    assert counts_of(json.loads(fetch(daemon, "/status.json"))["pages"]["runs"]) == drawn


def test_numbers_change_under_load(daemon, page, load):
    WebDriverWait(page, 20).until(lambda b: text(b, "running") == "8")
    seen = set()

    def has_changed_twice():
        seen.add((text(page, "generation"), tuple(sorted(cells(page).items()))))
        return len(seen) >= 3

    wait_until(has_changed_twice, "the numbers change", 30)
    assert float(text(page, "generation")) > 0
    WebDriverWait(page, 20).until(lambda b: "s" in text(b, "gap-99") and "s" in text(b, "ttft-50"))
    WebDriverWait(page, 20).until(lambda b: cells(b)["used"] > 0 and cells(b)["shared"] > 0)
    drawn, status = cells(page), json.loads(fetch(daemon, "/status.json"))
    total = sum(n for _, n in status["pages"]["runs"])
    assert sum(drawn.values()) == total == sum(pages_by_state(daemon).values())
    # After a stream has ended, its successor owns no page before its first step.
    wait_until(lambda: len(json.loads(fetch(daemon, "/status.json"))["pages"]["owners"]) == 8, "eight owners", 30)
    out = os.environ.get("QUIRE_SCREENSHOTS")
    for theme in ("light", "dark"):
        page.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
        picture = page.get_screenshot_as_png()
        assert len(picture) > 10000
        if out:
            (pathlib.Path(out) / f"status_{theme}.png").write_bytes(picture)


def test_tab_key_reaches_all_controls_in_order(page):
    order = []
    for _ in IDS:
        ActionChains(page).send_keys(Keys.TAB).perform()
        order.append(page.switch_to.active_element.get_attribute("id"))
    assert order == list(IDS)
    # Enter in a field submits the form. Stop cancels the request.
    page.find_element(By.ID, "max-tokens").send_keys(Keys.ENTER)
    WebDriverWait(page, 10).until(lambda b: "tokens/s" in text(b, "play-note"))
    page.execute_script("document.getElementById('send').click(); document.getElementById('stop').click()")
    WebDriverWait(page, 10).until(lambda b: text(b, "play-note") == "stopped")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(page, theme):
    page.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
    found = page.execute_script(CONTRAST)
    assert len(found) > 20
    assert not [(what, round(ratio, 2)) for what, ratio in found if ratio < 4.5]


def test_page_has_no_errors_and_contacts_only_the_daemon(daemon, page):
    page.get_log("browser"), page.get_log("performance")
    page.refresh()
    base, asked = f"http://{daemon.http_address}/", []

    def has_asked_often():
        for entry in page.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        return asked.count(base + "status.json") >= 4

    wait_until(has_asked_often, "the page asks for its numbers again and again")
    assert not [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert {url for url in asked if not url.startswith((base, "data:"))} == set()


def test_pages_of_other_origins_may_not_use_the_model(daemon, page):
    openai = json.loads(fetch(daemon, "/status.json"))["openai"]["address"]
    page_port = daemon.http_address.split(":")[1]
    own = f"http://{daemon.http_address}"
    for origin, host, refusal in (
        ("http://example.com", openai, "ORIGIN_NOT_ALLOWED"),
        (f"http://localhost:{page_port}", openai, "ORIGIN_NOT_ALLOWED"),  # differs from the host of this request
        (f"http://127.0.0.1:{int(page_port) - 1}", openai, "ORIGIN_NOT_ALLOWED"),
        ("null", openai, "ORIGIN_NOT_ALLOWED"),
        # The attacker's name resolves to this host.
        (f"http://evil.test:{page_port}", f"evil.test:{openai.split(':')[1]}", "HOST_NOT_ALLOWED"),
        (own, openai, None),
    ):
        request = urllib.request.Request(
            f"http://{openai}/v1/completions", data=b"{}", headers={"Origin": origin, "Host": host}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        code = json.loads(refused.value.read())["error"]["code"]
        if refusal is None:  # the request is parsed, and its page may read the error
            assert (refused.value.code, code) == (400, "PROMPT_MISSING")
            assert refused.value.headers["Access-Control-Allow-Origin"] == own
        else:
            assert (refused.value.code, code) == (403, refusal), origin
            assert "Access-Control-Allow-Origin" not in refused.value.headers


def test_requests_with_another_host_name_may_not_read_the_status(daemon):
    for path, host, expected in (
        ("/status.json", "evil.test", 403), ("/metrics", "evil.test:80", 403), ("/livez", "evil.test", 200),
        ("/status.json", "localhost", 200), ("/metrics", "[::1]:80", 200),
    ):
        request = urllib.request.Request(f"http://{daemon.http_address}{path}", headers={"Host": host})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                code = answer.status
        except urllib.error.HTTPError as error:
            code = error.code
        assert code == expected, (path, host)


@pytest.mark.parametrize("with_certificates", [False, True])
def test_remote_addresses_need_authorization(tmp_path, with_certificates):
    settings = ["server.http.listen=0.0.0.0:0"]
    if with_certificates:  # client certificates, which this listener does not request
        authority = Authority()
        pem, key = authority.issue("server")
        probe = authority.issue("probe")
        for name, content in (("server.pem", pem), ("server.key", key), ("ca.pem", authority.pem)):
            (tmp_path / name).write_bytes(content)
        settings += [f"tls.cert_file={tmp_path}/server.pem", f"tls.key_file={tmp_path}/server.key"]
        settings += [f"tls.client_ca_file={tmp_path}/ca.pem", "tls.require_client_cert=true", "auth.mode=mtls"]
    with Daemon(tmp_path, settings=settings) as daemon:
        if with_certificates:
            daemon.wait_listening()
            with tls_channel(daemon, authority, probe) as channel:
                assert becomes_serving(channel)
        else:
            daemon.wait_serving()
        port = daemon.http_address.rsplit(":", 1)[1]
        for path, expected in (("/status.json", 403), ("/", 200), ("/readyz", 200)):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                    code = answer.status
            except urllib.error.HTTPError as error:
                code = error.code
            assert code == expected, path

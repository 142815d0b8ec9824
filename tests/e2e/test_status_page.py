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
from daemon import TESTDATA, Daemon, becomes_serving
from google.protobuf import duration_pb2
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from waiting import wait_until

USES = ("free", "cached", "shared", "work", "used")
# The controls in the order of the tab key, on a page without messages. None: the element has no id.
IDS = ("theme", "options", "mode", "system", "temperature", "top-p", "max-tokens", "seed", "log", "text", "send", None,
       "pool-in", "pool")
TEMPLATE = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"
# Opens a section of reasoning, which the story model never ends.
REASONING_TEMPLATE = TEMPLATE + "<think>"
MIN_TOUCH_PIXELS = 44
# Records what the Content-Security-Policy blocks.
VIOLATIONS = """
window.violations = [];
document.addEventListener('securitypolicyviolation', event => violations.push(event.blockedURI));
"""
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


def test_no_answer_is_cached(daemon):
    for path in ("/", "/status.json", "/metrics"):
        with urllib.request.urlopen(f"http://{daemon.http_address}{path}", timeout=10) as answer:
            assert answer.headers.get_all("Cache-Control") == ["no-store"], path


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
    folder = tmp_path_factory.mktemp("quired")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    settings = (
        "openai.enabled=true",
        "openai.listen=127.0.0.1:0",
        "kv_cache.page_size=16",
        "kv_cache.capacity_bytes=16MiB",
        # The slow kernels keep eight streams running until one Python process has read nearly all of their tokens.
        "device.cpu.isa=scalar",
        f"chat.template_file={template}",
    )
    with Daemon(folder, settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    profile = tmp_path_factory.mktemp("chromium")
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage",
                     "disable-background-networking", "disable-component-update", "no-first-run",
                     f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    frame = driver.execute_script("return outerHeight - innerHeight")
    driver.set_window_size(1280, 800 + frame)
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": VIOLATIONS})
    yield driver
    driver.quit()


def open_page(browser, daemon):
    browser.get(f"http://{daemon.http_address}/")
    wait_until(lambda: text(browser, "state") == "ready", "the page shows the state")
    return browser


@pytest.fixture
def page(browser, daemon):
    return open_page(browser, daemon)


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


def text(page, element_id):
    return page.find_element(By.ID, element_id).text


def element(page, element_id):
    return page.find_element(By.ID, element_id)


def press(page, element_id):
    element(page, element_id).click()


def fill(page, **values):
    """Sets fields of the settings, which are hidden until the button is pressed."""
    if not element(page, "settings").is_displayed():
        press(page, "options")
    for name, value in values.items():
        field = element(page, name.replace("_", "-"))
        field.clear()
        field.send_keys(str(value))


def say(page, message):
    element(page, "text").send_keys(message, Keys.ENTER)


def turns(page):
    """Returns [role, text, reasoning, meta] of every turn."""
    return page.execute_script("""return [...document.querySelectorAll('#log li')].map(li => [li.className,
        li.querySelector(':scope > .text').textContent, li.querySelector('details .text')?.textContent ?? '',
        [...li.querySelectorAll('.meta > span:not(.actions)')].map(s => s.textContent).join(', ')])""")


def act(page, name):
    """Presses the last button of this name below a turn."""
    page.find_elements(By.XPATH, f"//*[@id='log']//button[text()='{name}']")[-1].click()


def wait_answered(page, count):
    """Returns the turns when there are `count` and no answer is incomplete."""
    return wait_until(lambda: len(turns(page)) == count and element(page, "send").is_displayed() and turns(page),
                      "the answer is complete", 60)


def ask(daemon, path, **body):
    openai = json.loads(fetch(daemon, "/status.json"))["openai"]["address"]
    request = urllib.request.Request(f"http://{openai}/v1/{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def drawn(page):
    """Returns the counts over the columns of the pool, and those of the legend, of one moment."""
    columns, legend = page.execute_script("""return [document.getElementById('pool').columns.map(c => c.counts),
        arguments[0].map(use => Number(document.getElementById('count-' + use).textContent.replaceAll(',', '')))]""",
                                          list(USES))
    counts = {use: sum(column[use] for column in columns) for use in USES}
    assert counts == dict(zip(USES, legend))
    return counts


def test_pool_equals_its_legend_and_the_metrics(daemon, page):
    # No request runs, so page, status.json and metrics can be compared one after another.
    say(page, "Tell me about a girl")
    wait_answered(page, 2)
    metrics = pages_by_state(daemon)
    assert metrics["cached"] > 0 and metrics["used"] == 0
    wait_until(lambda: drawn(page)["cached"] == metrics["cached"], "the page shows the cached pages")
    expected = {"free": metrics["free"], "cached": metrics["cached"], "shared": 0, "work": 0, "used": 0}
    assert drawn(page) == expected == counts_of(json.loads(fetch(daemon, "/status.json"))["pages"]["runs"])
    assert f"{sum(expected.values()):,} pages of 16 tokens" in text(page, "pool-size")


def test_numbers_change_under_load(daemon, page, load):
    wait_until(lambda: text(page, "running") == "8", "eight requests run", 30)
    seen = set()

    def has_changed_twice():
        seen.add((text(page, "generation"), tuple(sorted(drawn(page).items()))))
        return len(seen) >= 3

    wait_until(has_changed_twice, "the numbers change", 30)
    assert float(text(page, "generation")) > 0
    wait_until(lambda: "s" in text(page, "gap-99") and "s" in text(page, "ttft-50"), "latencies are shown")
    wait_until(lambda: drawn(page)["used"] > 0 and drawn(page)["shared"] > 0, "used and shared pages are shown")
    counts, status = drawn(page), json.loads(fetch(daemon, "/status.json"))
    total = sum(n for _, n in status["pages"]["runs"])
    assert sum(counts.values()) == total == sum(pages_by_state(daemon).values())
    # The totals are sums over the table of the same moment.
    totals, rows = page.execute_script("""return [['running', 'waiting'].map(id => Number($(id).textContent)),
        [...document.querySelectorAll('#queue tr')].map(row => Number(row.lastChild.textContent))]""")
    assert sum(totals) == sum(rows) > 0
    use, counts = page.execute_script("""return [$('cache-use').textContent,
        arguments[0].map(use => Number($('count-' + use).textContent.replaceAll(',', '')))]""", list(USES))
    share = 100 * sum(counts[USES.index(use)] for use in ("used", "shared", "work")) / total
    assert abs(float(use) - share) <= 0.51
    # After a stream has ended, its successor owns no page before its first step.
    wait_until(lambda: len(json.loads(fetch(daemon, "/status.json"))["pages"]["owners"]) == 8, "eight owners", 30)
    out = os.environ.get("QUIRE_SCREENSHOTS")
    if out:
        fill(page, seed=2, max_tokens=120)
        press(page, "options")
        say(page, "A story about a cat.")
        wait_answered(page, 2)
        wait_until(lambda: len(json.loads(fetch(daemon, "/status.json"))["history"]["running"]) > 24, "a history", 200)
    for theme in ("light", "dark"):
        page.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
        picture = page.get_screenshot_as_png()
        assert len(picture) > 10000
        if out:
            (pathlib.Path(out) / f"status_{theme}.png").write_bytes(picture)


def test_history_is_shown_after_a_reload(daemon, page, load):
    def points():
        return page.execute_script("""return [...document.querySelectorAll('#chart-requests path.a')]
            .map(path => path.getAttribute('d') || '').join('').split(/[ML]/).length - 1""")

    # Samples are 5 s apart, and the current numbers are the last point.
    wait_until(lambda: sum(n > 0 for n in json.loads(fetch(daemon, "/status.json"))["history"]["running"]) >= 3,
               "samples of the load", 60)
    wait_until(lambda: points() >= 3, "the chart shows them")
    before = points()
    page.refresh()
    wait_until(points, "the first drawing of the new page")
    assert points() >= before
    figure = element(page, "chart-requests")
    assert figure.find_element(By.CLASS_NAME, "scale").text.split() == ["10", "0"]  # the scale above 8 requests
    assert figure.find_element(By.CLASS_NAME, "ends").text.split() == "10 min ago requests now".split()


def test_zoom_shows_fewer_pages_and_counts_them(daemon, page):
    total = sum(n for _, n in json.loads(fetch(daemon, "/status.json"))["pages"]["runs"])

    def shown():
        return page.execute_script("const c = $('pool').columns; return c.at(-1).last - c[0].first")

    assert shown() == total and text(page, "pool-scale") == "each square is a page"
    press(page, "pool-in")
    assert shown() == round(total / 4)
    press(page, "pool-right")
    assert page.execute_script("return $('pool').columns[0].first") > 0
    element(page, "pool").send_keys(Keys.ARROW_RIGHT)
    note = text(page, "pool-note")
    first, last = map(int, re.match(r"Pages (\d+)–(\d+): ", note).groups())
    assert last - first + 1 == page.execute_script("const c = $('pool').columns[0]; return c.last - c.first")
    assert sum(map(int, re.findall(r"(\d+) (?:free|cached|shared|copied|used)", note))) == last - first + 1
    element(page, "pool").send_keys(Keys.ESCAPE)
    assert shown() == total
    # A drag over the middle half zooms into it.
    box = element(page, "pool")
    width = box.size["width"]
    actions = ActionChains(page).move_to_element_with_offset(box, -width // 4, 0).click_and_hold()
    actions.move_to_element_with_offset(box, width // 4, 0).release().perform()
    assert total * 0.3 < shown() < total * 0.8


def test_large_pools_are_drawn_by_column(page):
    for total in (8000, 80000):
        columns, scale = page.execute_script("""const n = arguments[0];
            setPages({page_size: 16, owners: ['a', 'b'], runs: [[4, n / 2], [1, n / 4], [0, n / 4]]});
            return [$('pool').columns.map(c => c.counts), $('pool-scale').textContent]""", total)
        assert 80 < len(columns) < 300
        counts = {use: sum(column[use] for column in columns) for use in USES}
        assert counts == {"used": total / 2, "cached": total / 4, "shared": 0, "work": 0, "free": total / 4}
        assert re.fullmatch(r"each column is [\d,]+ pages, stacked by use", scale)


def test_chat_round_trip(daemon, page):
    fill(page, temperature=0, max_tokens=24, seed=7, system="Be kind.")
    say(page, "Tell me a story")
    first = wait_answered(page, 2)
    assert first[0][:2] == ["user", "Tell me a story"] and first[1][0] == "assistant"
    assert re.search(r"max tokens reached, 24 tokens, [\d.]+ tokens/s, first token after [\d.]+ m?s", first[1][3])
    say(page, "And then?")
    second = wait_answered(page, 4)
    # The same request with the system prompt, both turns and the settings has the same answer.
    messages = [{"role": "system", "content": "Be kind."}]
    messages += [{"role": role, "content": content} for role, content, _, _ in second[:3]]
    same = ask(daemon, "chat/completions", messages=messages, temperature=0, max_tokens=24, seed=7)
    assert second[3][1] == same["choices"][0]["message"]["content"]
    # The answer is announced when it is complete.
    log = element(page, "log")
    assert log.get_attribute("aria-live") == "polite" and log.get_attribute("aria-busy") == "false"
    press(page, "clear")
    assert turns(page) == []


def test_enter_sends_and_shift_enter_does_not(page):
    fill(page, max_tokens=4)
    box = element(page, "text")
    box.send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two")
    assert box.get_attribute("value") == "one\ntwo" and turns(page) == []
    box.send_keys(Keys.ENTER)
    assert wait_answered(page, 2)[0][1] == "one\ntwo"
    assert box.get_attribute("value") == ""


def test_stop_ends_the_request_and_keeps_the_text(daemon, page):
    fill(page, max_tokens="")
    # Presses the button at the first text, so that the answer cannot end before.
    page.execute_script("""new MutationObserver((_, observer) => {
        if (!document.querySelector('#log .assistant .text')?.textContent) return;
        observer.disconnect();
        $('stop').click();
    }).observe($('log'), {childList: true, subtree: true})""")
    say(page, "Tell me a long story")
    answer = wait_answered(page, 2)[1]
    assert answer[1] and answer[3].startswith("stopped, ") and "first token after" in answer[3]
    wait_until(lambda: json.loads(fetch(daemon, "/status.json"))["queue"] == [], "the request is cancelled")
    # The conversation goes on.
    fill(page, max_tokens=4)
    say(page, "Go on")
    assert "4 tokens" in wait_answered(page, 4)[3][3]


def test_regenerate_and_edit_replace_turns(daemon, page):
    fill(page, temperature=0, max_tokens=8)
    say(page, "Tell me about Tom")
    before = wait_answered(page, 2)
    fill(page, max_tokens=12)
    act(page, "Regenerate")
    after = wait_until(lambda: "12 tokens" in turns(page)[-1][3] and wait_answered(page, 2), "another answer")
    assert after[0] == before[0] and after[1][1].startswith(before[1][1]) and len(after[1][1]) > len(before[1][1])
    act(page, "Edit")
    box = element(page, "text")
    assert box.get_attribute("value") == "Tell me about Tom"
    box.send_keys(" and Lily", Keys.ENTER)
    edited = wait_until(lambda: turns(page)[0][1] == "Tell me about Tom and Lily" and wait_answered(page, 2),
                        "the edited message is answered")
    messages = [{"role": "user", "content": edited[0][1]}]
    same = ask(daemon, "chat/completions", messages=messages, temperature=0, max_tokens=12)
    assert edited[1][1] == same["choices"][0]["message"]["content"]


def test_errors_show_message_and_param(page):
    fill(page, top_p=3, max_tokens=4)
    say(page, "Hello")
    wait_answered(page, 2)
    error = page.find_element(By.CSS_SELECTOR, "#log .error")
    assert error.get_attribute("role") == "alert"
    assert "top_p is 3" in error.text and "param: top_p" in error.text
    fill(page, top_p="")
    act(page, "Try again")
    wait_until(lambda: "4 tokens" in turns(page)[-1][3], "the repeated request succeeds")
    assert not page.find_elements(By.CSS_SELECTOR, "#log .error")


def test_model_without_template_continues_text(browser, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(TESTDATA / "models" / "llama-mha-f32", model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.dtype=f32"]
    with Daemon(tmp_path, str(model), settings=settings) as daemon:
        page = open_page(browser, daemon.wait_serving())
        assert "chat.template_file" in text(page, "chat-note") and text(page, "h-chat") == "Completion"
        fill(page, temperature=0, max_tokens=5)
        assert not element(page, "system").is_displayed()
        say(page, "One two three")
        answer = wait_answered(page, 2)[1]
        same = ask(daemon, "completions", prompt="One two three", temperature=0, max_tokens=5)
        assert answer[1] == same["choices"][0]["text"] and "5 tokens" in answer[3]


def test_reasoning_is_folded(browser, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(REASONING_TEMPLATE)
    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0", f"chat.template_file={template}",
                "chat.tool_format=think"]
    with Daemon(tmp_path, settings=settings) as daemon:
        page = open_page(browser, daemon.wait_serving())
        fill(page, max_tokens=16)
        say(page, "Hello")
        _, content, reasoning, _ = wait_answered(page, 2)[1]
        assert content == "" and len(reasoning) > 10
        details = page.find_element(By.CSS_SELECTOR, "#log details")
        assert details.get_attribute("open") is None
        details.find_element(By.TAG_NAME, "summary").click()
        assert details.find_element(By.CLASS_NAME, "text").is_displayed()


def test_lost_connection_greys_the_numbers_and_comes_back(browser, tmp_path):
    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0"]
    with Daemon(tmp_path, settings=settings) as daemon:
        page = open_page(browser, daemon.wait_serving())
        opacity = "return Number(getComputedStyle($('panels')).opacity)"
        assert page.execute_script(opacity) == 1 and text(page, "age") == ""
        daemon.process.kill()
        wait_until(lambda: text(page, "state") == "disconnected", "the page notices")
        wait_until(lambda: page.execute_script(opacity) < 0.6, "the numbers are grey")
        assert not element(page, "send").is_enabled()
        seen = set()
        wait_until(lambda: seen.add(text(page, "age")) or len(seen) >= 3, "the age grows")
        assert all(re.fullmatch(r"Last update \d+ s ago\.", age) for age in seen)
        address = daemon.http_address
    with Daemon(tmp_path, settings=[*settings, f"server.http.listen={address}"]) as daemon:
        daemon.wait_serving()
        wait_until(lambda: text(page, "state") == "ready", "the page is connected again", 30)
        wait_until(lambda: page.execute_script(opacity) == 1, "the numbers are no longer grey")
        assert text(page, "age") == "" and element(page, "send").is_enabled()


def test_drain_shows_the_remaining_time(page, admin, api):
    admin.Drain(api.DrainRequest(timeout=duration_pb2.Duration(seconds=500)))
    wait_until(lambda: text(page, "state") == "draining", "the page shows the drain")
    assert "draining" in text(page, "chat-note") and not element(page, "send").is_enabled()
    seen = []

    def counts_down():
        left = int(re.fullmatch(r"(\d+) s left", text(page, "drain-left")).group(1))
        if left not in seen:
            seen.append(left)
        return len(seen) >= 3

    wait_until(counts_down, "the time left changes")
    assert 480 < seen[-1] < seen[0] <= 500 and seen == sorted(seen, reverse=True)
    admin.Resume(api.ResumeRequest())
    wait_until(lambda: text(page, "state") == "ready", "the drain is over")
    assert text(page, "drain-left") == ""


@pytest.mark.parametrize("width", [320, 390])
def test_phones_have_no_overflow_and_large_targets(page, width):
    size = {"width": width, "height": 700, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        page.refresh()
        wait_until(lambda: text(page, "state") == "ready", "the page is drawn")
        fill(page, max_tokens=30)
        press(page, "options")
        say(page, "wordwithoutspaces" * 10)
        wait_answered(page, 2)
        fill(page)
        assert page.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [width, width]
        boxes = page.execute_script("""return ['chat', 'panels'].map(id => $(id).getBoundingClientRect().top)""")
        assert boxes[0] < boxes[1]
        small = page.execute_script("""return [...document.querySelectorAll('button, input, select, textarea, summary')]
            .filter(e => e.offsetParent).map(e => [e.id || e.textContent, e.getBoundingClientRect()])
            .filter(([id, r]) => r.height < arguments[0] || r.width < arguments[0]).map(([id]) => id)""",
                                    MIN_TOUCH_PIXELS)
        assert small == []
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_content_security_policy_is_kept(page):
    fill(page, max_tokens=4)
    say(page, "Hello")
    wait_answered(page, 2)
    press(page, "pool-in")
    press(page, "theme")
    assert page.execute_script("return violations") == []
    # The policy blocks a foreign image, and this test would see it.
    page.execute_script("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:1/x.png'}))")
    wait_until(lambda: page.execute_script("return violations") == ["http://127.0.0.1:1/x.png"], "the image is blocked")


def test_tab_key_reaches_all_controls_in_order(page):
    press(page, "options")
    page.execute_script("document.activeElement.blur()")
    page.execute_script("getSelection().removeAllRanges(); document.body.tabIndex = -1; document.body.focus()")
    order = []
    for _ in IDS:
        ActionChains(page).send_keys(Keys.TAB).perform()
        order.append(page.switch_to.active_element.get_attribute("id") or None)
    assert order == list(IDS)
    for control in page.find_elements(By.CSS_SELECTOR, "button, input, select, textarea, canvas, summary"):
        if control.is_displayed():
            assert control.accessible_name, control.get_attribute("outerHTML")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(page, theme):
    page.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
    fill(page, max_tokens=4)
    say(page, "Hello")
    wait_answered(page, 2)
    found = page.execute_script(CONTRAST)
    assert len(found) > 40
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
        ("http://example.com", openai, "origin_not_allowed"),
        (f"http://localhost:{page_port}", openai, "origin_not_allowed"),  # differs from the host of this request
        (f"http://127.0.0.1:{int(page_port) - 1}", openai, "origin_not_allowed"),
        ("null", openai, "origin_not_allowed"),
        # The attacker's name resolves to this host.
        (f"http://evil.test:{page_port}", f"evil.test:{openai.split(':')[1]}", "host_not_allowed"),
        (own, openai, None),
    ):
        request = urllib.request.Request(
            f"http://{openai}/v1/completions", data=b"{}", headers={"Origin": origin, "Host": host}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        code = json.loads(refused.value.read())["error"]["code"]
        if refusal is None:  # the request is parsed, and its page may read the error
            assert (refused.value.code, code) == (400, "missing_required_parameter")
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

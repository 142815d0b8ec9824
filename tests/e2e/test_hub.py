"""Models by name: `quire pull`, `list` and `rm` against a local server that speaks the protocol of the Hugging Face hub,
and quired, `inspect` and `plan` with the names of downloaded models."""

import json
import os
import pathlib
import pty
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from certificates import Authority
from daemon import QUIRE, QUIRED, ROOT, TESTDATA, Daemon
from fake_hub import FakeHub, Fault, blob_hash
from waiting import wait_until

STORY = ROOT / "assets" / "story"
GGUF = TESTDATA / "gguf" / "models" / "llama-q8_0" / "model.gguf"
NAME = "org/story"
# The environment of the user has no effect on the tests.
VARIABLES = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE", "http_proxy", "https_proxy",
             "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


def story_files():
    return {path.name: path.read_bytes() for path in STORY.iterdir() if path.name != "README.md"}


def other_formats():
    """Files of a repository that quired does not read."""
    return {"README.md": b"# story", ".gitattributes": b"", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx",
            "training_args.bin": b"pickle", "consolidated.safetensors": b"the same again"}


@pytest.fixture
def hub():
    with FakeHub() as running:
        yield running


@pytest.fixture
def env(hub, tmp_path):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(VARIABLES)}
    return {**clean, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}


def cache_of(env):
    return pathlib.Path(env["HF_HOME"]) / "hub"


def repository_of(env, name=NAME):
    return cache_of(env) / f"models--{name.replace('/', '--')}"


def quire(env, *arguments, code=0, timeout=120):
    done = subprocess.run([QUIRE, *arguments], capture_output=True, text=True, env=env, timeout=timeout, check=False)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def pull(env, *arguments, **keywords):
    return quire(env, "pull", *arguments, **keywords)


def start_pull(env, *arguments):
    return subprocess.Popen([QUIRE, "pull", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def listed(env):
    return [json.loads(line) for line in quire(env, "list", "--json").stdout.splitlines()]


def check_snapshot(env, name, commit, files):
    """Asserts that the snapshot has exactly these files, in the layout of huggingface_hub."""
    folder = repository_of(env, name)
    snapshot = folder / "snapshots" / commit
    found = {path.relative_to(snapshot).as_posix(): path for path in snapshot.rglob("*") if not path.is_dir()}
    assert set(found) == set(files)
    for file, content in files.items():
        target = os.readlink(found[file])
        assert target == "../" * (2 + file.count("/")) + "blobs/" + blob_hash(file, content)
        assert found[file].read_bytes() == content
    assert {path.name for path in (folder / "blobs").iterdir()} == {blob_hash(*item) for item in files.items()}


def test_a_model_is_pulled_listed_served_and_removed(api, hub, env, tmp_path):
    files = {**story_files(), "additional_chat_templates/tool_use.jinja": b"{{ messages }}"}
    commit = hub.add(NAME, {**files, **other_formats()})
    done = pull(env, NAME)
    assert done.stdout.splitlines()[-1] == f"serve it with: quired {NAME}"
    check_snapshot(env, NAME, commit, files)
    assert (repository_of(env) / "refs" / "main").read_text() == commit
    for file in other_formats():
        assert not hub.seen(file=file)

    (model,) = listed(env)
    path = str(repository_of(env) / "snapshots" / commit)
    assert (model["name"], model["revision"], model["commit"], model["format"]) == (NAME, "main", commit, "safetensors")
    assert model["path"] == path and model["size_bytes"] == sum(map(len, files.values())) and model["last_used"]
    table = quire(env, "list").stdout.splitlines()
    assert table[0].split() == ["NAME", "REVISION", "SIZE", "FORMAT", "LAST", "USED", "PATH"]
    assert table[1].split()[0] == NAME and table[1].endswith(path)

    inspected = json.loads(quire(env, "inspect", NAME, "--json").stdout)
    assert inspected["model"] == NAME and not inspected.get("problems")
    quire(env, "plan", NAME)

    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.capacity_bytes=64MiB"]
    with Daemon(tmp_path, NAME, settings=settings, env=env) as daemon:
        daemon.wait_serving()
        body = json.dumps({"model": NAME, "prompt": "Once upon a time", "max_tokens": 8}).encode()
        request = urllib.request.Request(f"http://{daemon.openai_address}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["text"]
        with urllib.request.urlopen(f"http://{daemon.openai_address}/v1/models/{NAME}", timeout=60) as answer:
            assert json.load(answer)["id"] == NAME
        # A newer revision does not change the model that is served, and does not fail a reload.
        hub.add(NAME, {**files, "generation_config.json": b"{}"})
        pull(env, NAME)
        with daemon.admin_channel() as channel:
            api.AdminServiceStub(channel).ReloadConfig(api.ReloadConfigRequest(), timeout=60)
            assert f'path: "{NAME}"' in api.AdminServiceStub(channel).GetConfig(api.GetConfigRequest()).yaml

    freed = quire(env, "rm", NAME)
    assert freed.stdout.startswith(f"removed {NAME}, freed 11.")
    assert not repository_of(env).exists() and not listed(env)
    assert "no models in" in quire(env, "list").stdout


def test_a_second_pull_downloads_nothing_and_a_new_commit_only_what_changed(hub, env):
    hub.add(NAME, story_files())
    pull(env, NAME)
    hub.forget()
    assert json.loads(pull(env, NAME, "--json").stdout)["received_bytes"] == 0
    assert not hub.seen(server="cdn")
    changed = {**story_files(), "generation_config.json": b'{"temperature": 0.5}'}
    commit = hub.add(NAME, changed)
    done = json.loads(pull(env, NAME, "--json").stdout)
    assert done["received_bytes"] == 20 and done["commit"] == commit
    assert not hub.seen(server="cdn")
    assert len(listed(env)) == 2


def test_a_revision_has_a_name_of_its_own(hub, env, tmp_path):
    old = hub.add(NAME, {**story_files(), "generation_config.json": b"{}"}, "v1.0")
    new = hub.add(NAME, story_files())
    pull(env, f"{NAME}@v1.0")
    done = subprocess.run([QUIRED, NAME, "--validate"], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 78
    assert f"run: quire pull {NAME}; the cache has the revisions v1.0" in done.stderr
    assert json.loads(quire(env, "inspect", f"{NAME}@v1.0", "--json").stdout)["model"] == f"{NAME}@v1.0"
    pull(env, f"{NAME}@{new}")
    assert {(m["revision"], m["commit"]) for m in listed(env)} == {("v1.0", old), (new, new)}
    quire(env, "rm", f"{NAME}@{new}")
    assert [m["commit"] for m in listed(env)] == [old]
    quire(env, "inspect", f"{NAME}@v1.0")


def test_a_model_that_was_not_pulled_is_refused_with_the_command(hub, env, tmp_path):
    hub.add(NAME, story_files())
    for name, command in [(NAME, f"quire pull {NAME}"), (f"{NAME}@v2", f"quire pull {NAME}@v2"),
                          (f"{NAME}:m.gguf", f"quire pull {NAME} --gguf m.gguf")]:
        for origin, arguments in [("MODEL", [name]), ("--set", ["--set", f"model.path={name}"])]:
            done = subprocess.run([QUIRED, *arguments], capture_output=True, text=True, env=env, timeout=60, check=False)
            assert done.returncode == 78
            assert done.stderr == (f'{origin}: model.path: "{name}" is not a file or directory, and the model {name} was not pulled; '
                                   f"run: {command}\n")
    assert not hub.requests
    # A path that exists wins over a name.
    (tmp_path / "org").mkdir()
    shutil.copytree(STORY, tmp_path / NAME)
    done = subprocess.run([QUIRED, NAME, "--validate"], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60,
                          check=False)
    assert done.returncode == 0, done.stderr


def test_the_token_goes_to_the_hub_only(hub, env):
    hub.add(NAME, story_files())
    hub.gated[NAME] = "hf_secret"
    pull({**env, "HF_TOKEN": "hf_secret"}, NAME)
    assert all(r[3].get("Authorization") == "Bearer hf_secret" for r in hub.seen(server="hub"))
    assert hub.seen(server="cdn") and not any("Authorization" in r[3] for r in hub.seen(server="cdn"))
    token = pathlib.Path(env["HF_HOME"]) / "token"
    token.write_text("hf_secret\n")
    quire(env, "rm", NAME)
    pull(env, NAME)
    assert not any("Authorization" in r[3] for r in hub.seen(server="cdn"))


def test_a_renamed_repository_is_followed_with_the_token(hub, env):
    hub.add("new/story", story_files())
    hub.gated["new/story"] = "hf_secret"
    hub.renamed[NAME] = "new/story"
    pull({**env, "HF_TOKEN": "hf_secret"}, NAME)
    assert listed(env)[0]["name"] == NAME


def weights():
    return story_files()["model.safetensors"]


def test_a_killed_pull_continues_where_it_was(hub, env):
    files = story_files()
    commit = hub.add(NAME, files)
    event = threading.Event()
    hub.faults["model.safetensors"] = [Fault(hold=(5_000_000, event))]
    process = start_pull(env, NAME)
    part = repository_of(env) / "blobs" / f"{blob_hash('model.safetensors', weights())}.incomplete"
    wait_until(lambda: part.exists() and part.stat().st_size == 5_000_000, "half of the weights")
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    done = subprocess.run([QUIRED, NAME], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 78 and f"run: quire pull {NAME}" in done.stderr
    assert [m["format"] for m in listed(env)] == ["incomplete"]

    hub.forget()
    received = json.loads(pull(env, NAME, "--json").stdout)["received_bytes"]
    (request,) = hub.seen("cdn", "GET")
    assert request[3]["Range"] == "bytes=5000000-"
    assert len(weights()) - 5_000_000 <= received < len(weights()) - 5_000_000 + 200_000
    check_snapshot(env, NAME, commit, files)


def test_kills_at_any_time_leave_a_sound_cache(hub, env):
    files = story_files()
    commit = hub.add(NAME, files)
    for delay in range(12):
        # Every round gets a part of the weights, so the kills hit all phases.
        hub.faults["model.safetensors"] = [Fault(hold=(1_000_000, threading.Event()))]
        process = start_pull(env, NAME)
        deadline = time.monotonic() + 0.02 * delay
        wait_until(lambda: process.poll() is not None or time.monotonic() >= deadline, "the time of the kill")
        process.kill()
        process.wait(10)
        found = subprocess.run([QUIRED, NAME, "--validate"], capture_output=True, text=True, env=env, timeout=60, check=False)
        assert found.returncode == 78
    hub.faults.clear()
    pull(env, NAME)
    check_snapshot(env, NAME, commit, files)
    assert json.loads(quire(env, "inspect", NAME, "--json").stdout)["model"] == NAME


def test_an_interrupt_ends_the_pull_and_keeps_the_part(hub, env):
    hub.add(NAME, story_files())
    hub.faults["model.safetensors"] = [Fault(hold=(1000, threading.Event()))]
    process = start_pull(env, NAME)
    part = repository_of(env) / "blobs" / f"{blob_hash('model.safetensors', weights())}.incomplete"
    wait_until(lambda: part.exists() and part.stat().st_size == 1000, "the first bytes")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and "interrupted; run the same command again" in err
    assert part.stat().st_size == 1000
    pull(env, NAME)


def test_a_damaged_part_of_an_earlier_download_is_replaced(hub, env):
    files = story_files()
    commit = hub.add(NAME, files)
    blobs = repository_of(env) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{blob_hash('model.safetensors', weights())}.incomplete").write_bytes(b"x" * 1000)
    (blobs / f"{blob_hash('config.json', files['config.json'])}.incomplete").write_bytes(b"x" * 100_000)
    pull(env, NAME)
    check_snapshot(env, NAME, commit, files)


# Faults of the first requests for the weights, the number of requests in all, and what is printed.
FAULTS = {
    "errors of the server": ([Fault(status=500), Fault(status=503)], 3, "HTTP 503"),
    "too many requests": ([Fault(status=429, headers={"Retry-After": "1"})], 2, "HTTP 429; next attempt in 1s"),
    "truncation": ([Fault(cut=4_000_000), Fault(cut=4_000_000)], 3, "next attempt"),
    "connection closed at once": ([Fault(cut=0)], 2, "next attempt"),
    "a server that ignores ranges": ([Fault(cut=4_000_000), Fault(ignore_range=True)], 2, "next attempt"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_survived(name, hub, env):
    faults, requests, message = FAULTS[name]
    commit = hub.add(NAME, story_files())
    hub.faults["model.safetensors"] = list(faults)
    start = time.monotonic()
    done = pull(env, NAME)
    assert f"model.safetensors: " in done.stderr and message in done.stderr
    assert len(hub.seen("cdn", "GET")) == requests
    if name == "too many requests":
        assert time.monotonic() - start >= 1
    if name == "truncation":
        assert [r[3].get("Range") for r in hub.seen("cdn", "GET")] == [None, "bytes=4000000-", "bytes=8000000-"]
    check_snapshot(env, NAME, commit, story_files())


def test_a_stalled_transfer_is_retried(hub, env):
    hub.add(NAME, story_files())
    hub.faults["model.safetensors"] = [Fault(hold=(1000, threading.Event()))]
    done = pull({**env, "HF_HUB_DOWNLOAD_TIMEOUT": "1"}, NAME)
    assert "next attempt" in done.stderr
    assert [r[3].get("Range") for r in hub.seen("cdn", "GET")] == [None, "bytes=1000-"]


def test_an_endless_error_is_not_read(hub, env):
    hub.add(NAME, story_files())
    hub.faults["model.safetensors"] = [Fault(status=404, endless=True)]
    assert f"has no model {NAME}" in pull(env, NAME, code=1, timeout=30).stderr
    hub.faults["model.safetensors"] = [Fault(status=503, endless=True)]
    assert "HTTP 503; next attempt" in pull(env, NAME, timeout=30).stderr


def test_wrong_bytes_are_deleted(hub, env):
    commit = hub.add(NAME, story_files())
    for file in ("model.safetensors", "config.json"):
        hub.faults[file] = [Fault(damage=True)]
        done = pull(env, NAME, code=1)
        assert f"quire: {file}: the content has the hash" in done.stderr
        assert blob_hash(file, story_files()[file]) in done.stderr
        assert not list((repository_of(env) / "blobs").glob(f"{blob_hash(file, story_files()[file])}*"))
        assert not (repository_of(env) / "refs" / "main").exists()
        quire(env, "rm", NAME)
    pull(env, NAME)
    check_snapshot(env, NAME, commit, story_files())


def test_the_list_is_asked_for_again(hub, env):
    hub.add(NAME, story_files())
    hub.faults["list"] = [Fault(status=502), Fault(status=429, headers={"Retry-After": "1"})]
    done = pull(env, NAME)
    assert "HTTP 502; next attempt in 500ms" in done.stderr and "HTTP 429; next attempt in 1s" in done.stderr
    hub.faults["list"] = [Fault(status=429, headers={"Retry-After": "3600"})]
    assert "HTTP 429" in pull(env, NAME, code=1).stderr


def test_a_server_that_asks_for_too_long_a_wait_ends_the_pull(hub, env):
    hub.add(NAME, story_files())
    hub.faults["model.safetensors"] = [Fault(status=429, headers={"Retry-After": "3600"})]
    err = pull(env, NAME, code=1).stderr
    assert "model.safetensors: gave up after 1 failed attempts: HTTP 429; the server asks to retry after 1h; run the same" in err


def tls_context(tmp_path):
    """Returns a context for servers at 127.0.0.1, and the file of the authority that issued its certificate."""
    authority = Authority()
    certificate, key = authority.issue("hub")
    (tmp_path / "server.pem").write_bytes(certificate + key)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    return context, str(tmp_path / "ca.pem")


def test_certificates_are_verified(env, tmp_path):
    context, authority = tls_context(tmp_path)
    with FakeHub(hub_tls=context, cdn_tls=context) as hub:
        commit = hub.add(NAME, story_files())
        secure = {**env, "HF_ENDPOINT": hub.url}
        assert "name the certificates to trust in SSL_CERT_FILE" in pull(secure, NAME, code=1).stderr
        assert not hub.requests
        pull({**secure, "SSL_CERT_FILE": authority}, NAME)
        check_snapshot(env, NAME, commit, story_files())


def test_a_secure_hub_does_not_redirect_to_plain_http(env, tmp_path):
    context, authority = tls_context(tmp_path)
    with FakeHub(hub_tls=context) as hub:
        hub.add(NAME, story_files())
        err = pull({**env, "HF_ENDPOINT": hub.url, "SSL_CERT_FILE": authority}, NAME, code=1).stderr
        assert 'Protocol "http" ' in err and not hub.seen(server="cdn")


def test_refusals_say_what_to_do(hub, env):
    hub.add(NAME, story_files())
    hub.gated[NAME] = "hf_secret"
    page = f"{hub.url}/{NAME}"
    assert f"{NAME} is gated: accept its terms at {page} and set HF_TOKEN" in pull(env, NAME, code=1).stderr
    wrong = {**env, "HF_TOKEN": "hf_wrong"}
    assert f"accept its terms at {page} and use a token of that account" in pull(wrong, NAME, code=1).stderr
    assert "has no model org/absent, or it is private; check the name" in pull(env, "org/absent", code=1).stderr
    assert f"{NAME} has no revision v9; see {page}" in pull(env, f"{NAME}@v9", code=1).stderr
    assert "write ORG/NAME" in pull(env, "story", code=2).stderr
    assert "write ORG/NAME" in pull(env, f"{NAME}/../x", code=2).stderr
    nowhere = {**env, "HF_ENDPOINT": "http://127.0.0.1:1"}
    assert "cannot reach http://127.0.0.1:1" in pull(nowhere, NAME, code=3).stderr
    assert "HF_ENDPOINT is" in pull({**env, "HF_ENDPOINT": "huggingface.co"}, NAME, code=1).stderr
    secret = {**env, "HF_ENDPOINT": "https://user:secret@127.0.0.1:1"}
    err = pull(secret, NAME, code=1).stderr
    assert "HF_ENDPOINT has a user name or password before its host" in err and "HF_TOKEN" in err and "secret" not in err
    unencrypted = {**env, "HF_ENDPOINT": "http://0.0.0.0:1", "HF_TOKEN": "hf_secret"}
    err = pull(unencrypted, NAME, code=3).stderr
    assert "warning: HF_ENDPOINT is http://0.0.0.0:1, so the token is sent unencrypted" in err and "hf_secret" not in err
    assert "warning" not in pull({**nowhere, "HF_TOKEN": "hf_secret"}, NAME, code=3).stderr
    assert "is not in" in quire(env, "rm", "org/absent", code=1).stderr
    assert not (repository_of(env) / "refs").exists()


def test_offline_nothing_is_requested(hub, env):
    hub.add(NAME, story_files())
    offline = {**env, "HF_HUB_OFFLINE": "1"}
    assert "HF_HUB_OFFLINE is set" in pull(offline, NAME, code=1).stderr
    assert not hub.requests
    pull(env, NAME)
    quire(offline, "inspect", NAME)


def test_file_names_of_the_server_stay_in_the_cache(hub, env, tmp_path):
    commit = hub.add(NAME, story_files())
    for name in ("../../../../evil", "/evil", "a/../../../evil", "a\\b", "a\0b", "model.safetensors/../../x"):
        hub.listed[NAME] = [{"rfilename": name, "size": 4, "blobId": "a" * 40}]
        assert "is not a relative path inside the repository" in pull(env, NAME, code=1).stderr
    hub.listed[NAME] = [{"rfilename": "model.safetensors", "size": 4, "blobId": "../../evil"}]
    assert "has a hash that is neither a git SHA-1 nor a SHA-256" in pull(env, NAME, code=1).stderr
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]
    assert not repository_of(env).exists() and commit


def test_space_is_checked_before_the_download(hub, env):
    hub.add(NAME, story_files())
    hub.listed[NAME] = [{"rfilename": "model.safetensors", "size": 1 << 43, "lfs": {"sha256": "a" * 64, "size": 1 << 43}}]
    err = pull(env, NAME, code=1).stderr
    assert f"quire: {NAME} needs 8192.00 GiB more, and the disk of {cache_of(env)} has " in err
    assert "set HF_HOME to a directory of another disk" in err
    assert not hub.seen(file="model.safetensors")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a small disk, which only root can mount")
def test_a_disk_that_fills_up_keeps_the_part(hub, env, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)], capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs")
    try:
        commit = hub.add(NAME, story_files())
        filler = disk / "filler"
        hub.faults["model.safetensors"] = [Fault(before_body=lambda: filler.write_bytes(bytes(8 << 20)))]
        small = {**env, "HF_HOME": str(disk)}
        err = pull(small, NAME, code=1).stderr
        assert f"quire: model.safetensors: the disk of {disk}/hub is full; " in err and "run the same command again" in err
        filler.unlink()
        pull(small, NAME)
        assert any("Range" in r[3] for r in hub.seen("cdn", "GET"))
        check_snapshot(small, NAME, commit, story_files())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_two_pulls_at_once_download_each_file_once(hub, env):
    files = story_files()
    commit = hub.add(NAME, files)
    event = threading.Event()
    hub.faults["model.safetensors"] = [Fault(hold=(1000, event))]
    first = start_pull(env, NAME)
    wait_until(lambda: hub.seen("cdn", "GET"), "the first download")
    second = start_pull(env, NAME)
    waits = []
    reader = threading.Thread(target=lambda: waits.extend(iter(second.stderr.readline, "")))
    reader.start()
    wait_until(lambda: any("waits for another download" in line for line in waits), "the second one waits")
    assert "is being downloaded by another process" in quire(env, "rm", NAME, code=1).stderr
    event.set()
    assert first.wait(60) == 0 and second.wait(60) == 0
    reader.join(10)
    for process in (first, second):
        process.stdout.close()
        process.stderr.close()
    assert len(hub.seen("cdn", "GET")) == 1
    check_snapshot(env, NAME, commit, files)


def test_gguf_files_are_chosen_by_name(api, hub, env, tmp_path):
    content = GGUF.read_bytes()
    other = content + bytes(32)
    hub.add("org/g", {"README.md": b"", "m.Q8_0.gguf": content, "m.Q4_0.gguf": other,
                      "m-big-00001-of-00002.gguf": b"one", "m-big-00002-of-00002.gguf": b"two"})
    err = pull(env, "org/g", code=1).stderr
    assert "org/g has only GGUF files; choose one with --gguf FILE:\n  m-big-00001-of-00002.gguf (6 B)\n  m.Q4_0.gguf" in err
    assert "org/g has no file m.Q9.gguf; its GGUF files are:" in pull(env, "org/g", "--gguf", "m.Q9.gguf", code=1).stderr
    assert "quired org/g:m.Q8_0.gguf" in pull(env, "org/g", "--gguf", "m.Q8_0.gguf").stdout
    assert not hub.seen(file="m.Q4_0.gguf")
    with Daemon(tmp_path, "org/g", settings=["kv_cache.capacity_bytes=64MiB"], env=env) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            assert api.GenerationServiceStub(channel).GetModel(api.GetModelRequest()).model.id == "org/g"
    pull(env, "org/g:m.Q4_0.gguf")
    assert "does not read split GGUF files" in pull(env, "org/g:m-big-00001-of-00002.gguf").stdout
    done = subprocess.run([QUIRED, "org/g"], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 78 and "name one of them: org/g:m-big-00001-of-00002.gguf, org/g:m.Q4_0.gguf" in done.stderr
    quire(env, "inspect", "org/g:m.Q8_0.gguf")
    assert [m["name"] for m in listed(env)] == ["org/g:m-big-00001-of-00002.gguf", "org/g:m.Q4_0.gguf", "org/g:m.Q8_0.gguf"]
    assert json.loads(quire(env, "rm", "org/g:m-big-00001-of-00002.gguf", "--json").stdout)["freed_bytes"] == 6
    assert json.loads(quire(env, "rm", "org/g", "--gguf", "m.Q4_0.gguf", "--json").stdout)["freed_bytes"] == len(other)
    assert [m["name"] for m in listed(env)] == ["org/g:m.Q8_0.gguf"]
    quire(env, "rm", "org/g:m.Q4_0.gguf", code=1)


def test_weights_in_other_formats_are_refused(hub, env):
    hub.add(NAME, {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    assert "only weights that quired does not read, such as pytorch_model.bin" in pull(env, NAME, code=1).stderr


def test_a_hub_without_hashes_in_the_list_is_asked_per_file(hub, env):
    commit = hub.add(NAME, story_files())
    hub.has_blobs = False
    pull(env, NAME)
    check_snapshot(env, NAME, commit, story_files())
    assert len(hub.seen("hub", "HEAD")) == len(story_files())


def test_a_cdn_that_refuses_head_is_not_asked(hub, env):
    commit = hub.add("new/story", story_files())
    hub.renamed[NAME] = "new/story"  # the redirect of the hub itself is followed
    hub.has_blobs, hub.cdn_allows_head = False, False
    pull(env, NAME)
    check_snapshot(env, NAME, commit, story_files())
    assert not hub.seen("cdn", "HEAD")


def test_a_terminal_shows_bars(hub, env):
    hub.add(NAME, story_files())
    event = threading.Event()
    hub.faults["model.safetensors"] = [Fault(hold=(6_000_000, event))]
    reading, writing = pty.openpty()
    process = subprocess.Popen([QUIRE, "pull", NAME], stdout=subprocess.PIPE, stderr=writing, env=env)
    os.close(writing)
    shown = []

    def read():
        while True:
            try:
                part = os.read(reading, 65536)
            except OSError:  # the terminal is closed
                return
            shown.append(part.decode())

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: "[##########----------]  52 %  model.safetensors  5.7 MiB of 11.0 MiB" in "".join(shown), "the bar")
    event.set()
    process.communicate(timeout=60)
    assert process.returncode == 0
    reader.join(10)
    os.close(reading)
    text = "".join(shown)
    assert "\x1b[2A\x1b[J" in text  # the bars are drawn over
    assert "model.safetensors: 11.0 MiB" in text and "5 of 5 files" in text


def in_huggingface_hub(env, code):
    """Runs code with the real huggingface_hub, whose constants are read from the environment at import."""
    done = subprocess.run([sys.executable, "-c", "import huggingface_hub as h\n" + code], capture_output=True, text=True,
                          env={**env, "HF_HUB_DISABLE_XET": "1"}, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_huggingface_hub_sees_the_same_cache(hub, env):
    commit = hub.add(NAME, {**story_files(), "1_Pooling/config.json": b"{}"})
    pull(env, NAME)
    scan = json.loads(in_huggingface_hub(env, f"""
import json
info = h.scan_cache_dir()
(repo,) = info.repos
(revision,) = repo.revisions
print(json.dumps([len(info.warnings), len(info.incomplete_files), repo.repo_id, revision.commit_hash, sorted(revision.refs),
                  len(revision.files), info.size_on_disk, h.snapshot_download({NAME!r}, local_files_only=True)]))"""))
    path = listed(env)[0]["path"]
    assert scan == [0, 0, NAME, commit, ["main"], 6, listed(env)[0]["size_bytes"], path]
    # It finds every file, and downloads none again.
    hub.forget()
    assert in_huggingface_hub(env, f"print(h.snapshot_download({NAME!r}))") == path
    assert not hub.seen("cdn") and not hub.seen("hub", "GET", "config.json")


def test_a_cache_of_huggingface_hub_is_used(hub, env):
    files = story_files()
    commit = hub.add(NAME, {**files, "README.md": b"# story"})
    path = in_huggingface_hub(env, f"print(h.snapshot_download({NAME!r}))")
    (model,) = listed(env)
    assert (model["name"], model["revision"], model["commit"], model["path"]) == (NAME, "main", commit, path)
    quire(env, "inspect", NAME)
    hub.forget()
    assert json.loads(pull(env, NAME, "--json").stdout)["received_bytes"] == 0
    assert in_huggingface_hub(env, "print(len(h.scan_cache_dir().warnings))") == "0"
    quire(env, "rm", NAME)
    assert in_huggingface_hub(env, "print(len(h.scan_cache_dir().repos))") == "0"


def test_a_download_of_huggingface_hub_is_waited_for(hub, env):
    hub.add(NAME, story_files())
    event = threading.Event()
    hub.faults["model.safetensors"] = [Fault(hold=(1000, event))]
    code = f"import huggingface_hub as h; h.hf_hub_download({NAME!r}, 'model.safetensors')"
    python = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True,
                              env={**env, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    wait_until(lambda: hub.seen("cdn", "GET"), "the other download", timeout=60)
    process = start_pull(env, NAME)
    waits = []
    reader = threading.Thread(target=lambda: waits.extend(iter(process.stderr.readline, "")))
    reader.start()
    wait_until(lambda: any("waits for another download" in line for line in waits), "quire waits")
    event.set()
    assert python.communicate(timeout=60)[1] == "" and python.returncode == 0
    assert process.wait(60) == 0
    reader.join(10)
    process.stdout.close()
    process.stderr.close()
    assert len(hub.seen("cdn", "GET")) == 1

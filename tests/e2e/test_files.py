"""Files that operators configure: half-written, empty, not regular, or on a file system that hangs."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest
from attack_tools import Files, bearer, endless, failure, generate, http_get, request_of, tls_channel, token_line  # noqa: F401
from certificates import Authority
from daemon import QUIRED, ROOT, Daemon, reason_of
from process_figures import threads_named
from waiting import pace, wait_until

# The settling time of base/settled_files.h, also used by the writer, which a slow machine may pause as long.
SETTLE_SECONDS = 1


def reload(api, daemon):
    with daemon.admin_channel() as channel:
        return list(api.AdminServiceStub(channel).ReloadConfig(api.ReloadConfigRequest(), timeout=60).errors)


def token_settings(tokens):
    return ["auth.mode=token", f"auth.tokens_file={tokens}"]


# --- half-written and empty files --------------------------------------------------------------------------------


def test_tokens_file_written_in_place_revokes_no_token(api, tmp_path, endless):  # noqa: F811
    """Every line is in order, so each prefix of the file is also a valid file."""
    tokens = tmp_path / "tokens"
    keep = token_line("keep", "k", "generate")
    tokens.write_text(keep)
    lines = [token_line(f"new-{i}", "n", "generate") for i in range(25)] + [keep]
    with Daemon(tmp_path, settings=[*token_settings(tokens), *endless]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            stream = api.GenerationServiceStub(channel).Generate(request_of(api, tokens=40000), metadata=bearer("keep"))
            ended = []

            def read():
                ended.append(failure(lambda: list(stream)))

            next(stream)
            reader = threading.Thread(target=read)
            reader.start()
            longest, last, refusals = 0, time.monotonic(), []
            with tokens.open("w") as out:
                for line in lines:
                    begin = time.monotonic()
                    out.write(line)
                    out.flush()
                    longest, last = max(longest, time.monotonic() - last), begin
                    daemon.process.send_signal(signal.SIGHUP)
                    refusals.append(reason_of_call(api, channel, "keep"))
                    pace(0.1)
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: not reason_of_call(api, channel, "new-0"), "the new tokens are in effect")
            if longest >= SETTLE_SECONDS:
                pytest.skip("the machine was too slow for the writer")
            assert not any(refusals) and not ended, (refusals, ended)
            stream.cancel()
            reader.join(30)


def reason_of_call(api, channel, token):
    try:
        generate(api, channel, bearer(token), tokens=1)
    except Exception as error:  # noqa: BLE001 - the reason is what is asked for
        return reason_of(error)[0]
    return ""


def test_tokens_file_with_a_count_may_be_written_slowly(api, tmp_path):
    tokens = tmp_path / "tokens"
    keep, new = token_line("keep", "k", "generate"), token_line("new", "n", "generate")
    tokens.write_text(keep)
    with Daemon(tmp_path, settings=token_settings(tokens)) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel, tokens.open("w") as out:
            out.write("# tokens: 2\n" + new)
            out.flush()
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: f'auth: auth.tokens_file: {tokens} has 1 tokens, but its comment declares \\"# tokens: 2\\"' in daemon.log,
                       "the log says what is missing")
            wait_until(lambda: "reload refused, the previous configuration stays in effect" in daemon.log, "the log says it")
            assert generate(api, channel, bearer("keep"))
            assert reason_of_call(api, channel, "new") == "TOKEN_INVALID"
            out.write(keep)
            out.flush()
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: not reason_of_call(api, channel, "new"), "the new token is in effect")
            assert generate(api, channel, bearer("keep"))


def test_bad_files_never_replace_good_ones(api, tmp_path):
    authority = Authority()
    files = Files(tmp_path)
    certificate, key = authority.issue("server")
    good = {
        "auth.tokens_file": files.write("tokens", token_line("keep", "k", "generate")),
        "tls.cert_file": files.write("cert.pem", certificate),
        "tls.key_file": files.write("key.pem", key),
        "chat.template_file": files.write("own.jinja", "{{ messages[0].content }}!"),
    }
    settings = ["auth.mode=token", *(f"{name}={path}" for name, path in good.items())]
    chat = api.RenderChatRequest(chat=api.ChatPrompt(messages=[api.ChatMessage(role="user", content="hi")]))
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_listening()
        with tls_channel(daemon, authority) as channel:
            stub = api.GenerationServiceStub(channel)
            wait_until(lambda: '"ready"' in daemon.log, "the model is loaded")

            def still_serves():
                with tls_channel(daemon, authority) as fresh:
                    assert generate(api, fresh, bearer("keep"), tokens=1)
                assert stub.RenderChat(chat, metadata=bearer("keep"), timeout=30).text == "hi!"

            still_serves()
            for name, share, why in (("auth.tokens_file", 0, "has no token"), ("tls.cert_file", 2 / 3, "contains no PEM certificate"),
                                     ("tls.key_file", 0, "no PEM private key that can be read without a passphrase"), ("chat.template_file", 0, "is empty"),
                                     ("chat.template_file", 2 / 3, "template")):
                path = good[name]
                content = path.read_bytes()
                path.write_bytes(content[:int(len(content) * share)])
                (error,) = reload(api, daemon)
                assert name in error and why in error
                said = f'"reload refused, the previous configuration stays in effect","error":{json.dumps(error, ensure_ascii=False)}'
                wait_until(lambda: said in daemon.log, "the log says it")  # noqa: B023
                still_serves()
                path.write_bytes(content)
            assert not reload(api, daemon)
            still_serves()


# --- files that are not regular -----------------------------------------------------------------------------------


def fifo(path):
    os.mkfifo(path)
    return path


def settings_with(key, folder):
    """Creates a FIFO without a reader or writer as the file of this key. Returns its path and the settings."""
    authority = Authority()
    certificate, private_key = authority.issue("server")
    files = Files(folder)
    pair = files.pair((certificate, private_key))
    path = folder / "fifo"
    fifo(path)
    setting = f"{key}={path}"
    if key == "auth.tokens_file":
        return path, ["auth.mode=token", setting]
    if key == "tls.cert_file":
        return path, [pair[1], setting]
    if key == "tls.key_file":
        return path, [pair[0], setting]
    if key == "tls.client_ca_file":
        return path, [*pair, setting]
    if key == "model.path":
        model = folder / "model"
        model.mkdir()
        for file in (ROOT / "assets" / "story").iterdir():
            if file.name != "config.json":
                (model / file.name).symlink_to(file)
        return fifo(model / "config.json"), [f"model.path={model}"]
    return path, [setting]


@pytest.mark.parametrize("key", ["auth.tokens_file", "tls.cert_file", "tls.key_file", "tls.client_ca_file",
                                 "chat.template_file", "logging.file", "model.path"])
def test_start_does_not_wait_for_irregular_files(tmp_path, key):
    path, settings = settings_with(key, tmp_path)
    with Daemon(tmp_path, settings=settings) as daemon:
        assert daemon.wait(30) == 78, daemon.log
        assert str(path) in daemon.log and "not a regular file" in daemon.log
        assert key in daemon.log or key == "model.path" and "cannot load the model" in daemon.log


@pytest.mark.parametrize("option", ["--config", "profile"])
def test_start_does_not_wait_for_an_irregular_configuration_file(tmp_path, option):
    path = fifo(tmp_path / "fifo.yaml")
    arguments = ["--config", str(path)] if option == "--config" else ["--set", f"profile={path}"]
    done = subprocess.run([str(QUIRED), "--validate", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 78
    assert option in done.stderr and f"{path} cannot be read: it is not a regular file" in done.stderr


def test_reload_does_not_wait_for_irregular_files(api, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line("keep", "k", "generate"))
    with Daemon(tmp_path, settings=[*token_settings(tokens), "shutdown.pre_drain_delay=0s"]) as daemon:
        daemon.wait_serving()
        tokens.unlink()
        fifo(tokens)
        assert reload(api, daemon) == [f"auth: auth.tokens_file: {tokens} cannot be read: it is not a regular file"]
        with daemon.channel() as channel:
            assert generate(api, channel, bearer("keep"))
        daemon.terminate()
        assert daemon.wait(30) == 0


# --- a file system that hangs --------------------------------------------------------------------------------------

# Opening a file of this name never returns, as on a network mount whose server is gone.
HANG = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static int open_or_hang(const char* name, const char* path, int flags, mode_t mode) {
  const char* base = strrchr(path, '/');
  if (strncmp(base == NULL ? path : base + 1, "hangs", 5) == 0) {
    for (;;) pause();
  }
  int (*next)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, name);
  return next(path, flags, mode);
}

#define REPLACE(name)                                          \
  int name(const char* path, int flags, ...) {                 \
    va_list rest;                                              \
    va_start(rest, flags);                                     \
    mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                              \
    return open_or_hang(#name, path, flags, mode);             \
  }
REPLACE(open)
REPLACE(open64)
"""


@pytest.fixture(scope="module")
def hanging(tmp_path_factory):
    """Environment of a process for which every file named "hangs..." is on a file system that hangs."""
    folder = tmp_path_factory.mktemp("hang")
    source, library = folder / "hang.c", folder / "hang.so"
    source.write_text(HANG)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return dict(os.environ, LD_PRELOAD=str(library))


def test_sigterm_ends_a_start_blocked_on_the_configuration(tmp_path, hanging):
    path = tmp_path / "hangs.yaml"
    path.write_text("{}\n")
    with Daemon(tmp_path, "--config", str(path), env=hanging) as daemon:
        wait_until(lambda: threads_named(daemon.process.pid, "file"), "the file is being read")
        daemon.terminate()
        assert daemon.wait(30) == 128 + signal.SIGTERM


def test_sigterm_ends_a_start_blocked_on_the_tokens_file(tmp_path, hanging):
    tokens = tmp_path / "hangs"
    tokens.write_text(token_line("keep", "k", "generate"))
    with Daemon(tmp_path, settings=token_settings(tokens), env=hanging) as daemon:
        wait_until(lambda: threads_named(daemon.process.pid, "file"), "the file is being read")
        daemon.terminate()
        assert daemon.wait(30) == 0


def test_start_blocked_on_the_tokens_file_times_out(tmp_path, hanging):
    tokens = tmp_path / "hangs"
    tokens.write_text(token_line("keep", "k", "generate"))
    with Daemon(tmp_path, settings=token_settings(tokens), env=hanging) as daemon:
        assert daemon.wait(30) == 78
        assert f"auth.tokens_file: {tokens} cannot be read: its file system did not respond within 5s" in daemon.log


def test_sigterm_ends_a_blocked_model_load(tmp_path, hanging):
    model = tmp_path / "model"
    model.mkdir()
    for file in (ROOT / "assets" / "story").iterdir():
        (model / file.name).symlink_to(file)
    (model / "hangs.gguf").write_bytes(b"GGUF")
    with Daemon(tmp_path, settings=[f"model.path={model}/hangs.gguf"], env=hanging) as daemon:
        daemon.wait_listening()
        wait_until(lambda: http_get(daemon.http_address, "/startupz")[0] == 503, "the model is being loaded")
        daemon.terminate()
        assert daemon.wait(30) == 0
        assert '"while_loading":true' in daemon.log
        assert not pathlib.Path(daemon.admin.removeprefix("unix:")).exists()


def test_sigterm_ends_a_reload_blocked_on_the_tokens_file(api, tmp_path, hanging):
    """The old tokens stay in use until then, and the process drains normally."""
    config = tmp_path / "quired.yaml"
    for name in ("tokens", "hangs"):
        (tmp_path / name).write_text(token_line("keep", "k", "generate"))
    config.write_text(f"auth: {{mode: token, tokens_file: {tmp_path}/tokens}}\n")
    with Daemon(tmp_path, "--config", str(config), settings=["shutdown.pre_drain_delay=0s"], env=hanging) as daemon:
        daemon.wait_serving()
        config.write_text(f"auth: {{mode: token, tokens_file: {tmp_path}/hangs}}\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: threads_named(daemon.process.pid, "file"), "the file is being read")
        with daemon.channel() as channel:
            assert generate(api, channel, bearer("keep"))
        daemon.terminate()
        assert daemon.wait(30) == 0

"""Attacks on a real daemon, in the order of the threat model in docs/security.md."""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import threading

import grpc
import pytest
from attack_tools import (
    ENDLESS,
    PROMPT,
    Files,
    Neighbour,
    bearer,
    cached_tokens,
    endless,  # noqa: F401 - a fixture
    failure,
    generate,
    http_get,
    request_of,
    tls_channel,
    token_line,
    waiting_count,
)
from certificates import HOUR, NOW, Authority
from daemon import QUIRE, QUIRED, Daemon, becomes_serving, reason_of
from waiting import wait_until

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def run_quired(folder, *settings):
    """Returns the exit code and error text of a daemon that should not start."""
    command = [str(QUIRED), "--set", "server.http.listen=127.0.0.1:0", "--set", "server.grpc.listen=[127.0.0.1:0]",
               "--set", "openai.listen=127.0.0.1:0"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=folder)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def authority():
    return Authority()


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_daemon(tmp_path_factory, authority):
    folder = tmp_path_factory.mktemp("tls")
    files = Files(folder)
    settings = ["tls.refresh_interval=1s", *files.pair(authority.issue("server"))]
    settings += ["openai.enabled=true", "openai.listen=127.0.0.1:0", "server.http.tls=true"]
    with Daemon(folder, settings=settings) as running:
        running.wait_listening()
        running.files = files
        with tls_channel(running, authority) as channel:
            assert becomes_serving(channel)
        yield running
        assert running.process.poll() is None, "quired died:\n" + running.log


def test_tls_serves_clients_that_trust_the_authority(api, authority, tls_daemon):
    with tls_channel(tls_daemon, authority) as channel:
        assert generate(api, channel)
    with tls_channel(tls_daemon, Authority("another")) as channel:
        assert failure(lambda: generate(api, channel)).code() == UNAVAILABLE
    with tls_daemon.channel() as plain:
        assert failure(lambda: generate(api, plain)).code() == UNAVAILABLE


def test_client_rejects_a_certificate_for_another_host(api, authority, tmp_path):
    files = Files(tmp_path)
    settings = files.pair(authority.issue("server", host="elsewhere.example"))
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_listening()
        with tls_channel(daemon, authority) as channel:
            assert failure(lambda: generate(api, channel)).code() == UNAVAILABLE


def context_of(side, version):
    """Returns a context for one version of TLS with the ciphers that it needs."""
    context = ssl.SSLContext(side)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
    context.minimum_version = version
    return context


def version_agreed(address, version):
    """Returns the TLS version that a server agrees on with a client of one version, or the error."""
    context = context_of(ssl.PROTOCOL_TLS_CLIENT, version)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address, timeout=10) as raw:
        try:
            with context.wrap_socket(raw) as connection:
                return connection.version()
        except (ssl.SSLError, ConnectionError) as error:
            return error


@contextlib.contextmanager
def old_server(folder, pair, version):
    """Runs a server of one TLS version and yields its address."""
    context = context_of(ssl.PROTOCOL_TLS_SERVER, version)
    (folder / "old.pem").write_bytes(b"".join(pair))
    context.load_cert_chain(folder / "old.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            raw, _ = server.accept()
            with raw, contextlib.suppress(OSError):
                context.wrap_socket(raw, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()
        thread.join(20)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
def test_tls_1_1_is_rejected(authority, tls_daemon, tmp_path):
    openai = json.loads(next(line for line in tls_daemon.lines if '"listening"' in line))["openai"]
    for old, name in ((ssl.TLSVersion.TLSv1_1, "TLSv1.1"), (ssl.TLSVersion.TLSv1, "TLSv1")):
        # The same client connects to a server that allows the version, so the daemon rejects it.
        with old_server(tmp_path, authority.issue("old"), old) as address:
            assert version_agreed(address, old) == name
        for listener in (tls_daemon.grpc_address, tls_daemon.http_address, openai):
            host, port = listener.rsplit(":", 1)
            assert version_agreed((host, int(port)), ssl.TLSVersion.TLSv1_2) == "TLSv1.2", listener
            assert isinstance(version_agreed((host, int(port)), old), OSError), (listener, name)


@pytest.mark.parametrize(
    "break_files, key, text",
    [
        (lambda f, a: f.pair(a.issue("server", not_before=NOW - 48 * HOUR, not_after=NOW - 24 * HOUR)),
         "tls.cert_file", "expired at"),
        (lambda f, a: f.pair(a.issue("server", not_before=NOW + 24 * HOUR, not_after=NOW + 48 * HOUR)),
         "tls.cert_file", "is not valid before"),
        (lambda f, a: f.pair((a.issue("server")[0], a.issue("server")[1])), "tls.key_file", "is not the key of"),
        (lambda f, a: f.pair((b"nonsense", b"nonsense")), "tls.cert_file", "contains no PEM certificate"),
        (lambda f, a: ["tls.cert_file=/no/such/cert.pem", "tls.key_file=/no/such/key.pem"],
         "tls.cert_file", "cannot be read"),
        (lambda f, a: [*f.pair(a.issue("server"))[:1], f"tls.key_file={f.folder}"], "tls.key_file", "cannot be read"),
        (lambda f, a: f.pair(a.issue("server"))[:1], "tls.cert_file", "set both or neither"),
    ],
    ids=["expired", "future", "mismatched", "nonsense", "absent", "unreadable", "alone"],
)
def test_bad_files_stop_the_start_and_validate(tmp_path, authority, break_files, key, text):
    settings = break_files(Files(tmp_path), authority)
    code, errors = run_quired(tmp_path, *settings)
    assert code == 78, errors
    assert key in errors and text in errors
    command = [str(QUIRED), "--validate"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 78 and key in done.stderr and text in done.stderr


def test_certificates_rotate_under_load_and_bad_ones_change_nothing(api, authority, tls_daemon):
    """An open stream continues, new connections get the new certificate, and bad files change nothing."""
    successor = Authority("successor")
    with tls_channel(tls_daemon, authority) as channel:
        neighbour = Neighbour(api, channel)
        try:
            tls_daemon.files.write("cert.pem", b"half a file")
            wait_until(lambda: "cannot use the new certificates" in tls_daemon.log, "the log names the bad file")
            with tls_channel(tls_daemon, authority) as fresh:
                assert generate(api, fresh)
            tls_daemon.files.pair(successor.issue("server"))
            wait_until(lambda: "new certificates apply" in tls_daemon.log, "the new files are taken")
            with tls_channel(tls_daemon, successor) as fresh:
                assert generate(api, fresh)
            with tls_channel(tls_daemon, authority) as fresh:
                assert failure(lambda: generate(api, fresh)).code() == UNAVAILABLE
        finally:
            neighbour.check()
    tls_daemon.files.pair(authority.issue("server"))
    wait_until(lambda: tls_daemon.log.count("new certificates apply") == 2, "the old authority is back")


# --- client certificates -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mtls_daemon(tmp_path_factory, authority):
    folder = tmp_path_factory.mktemp("mtls")
    files = Files(folder)
    settings = files.pair(authority.issue("server"))
    settings += [
        f"tls.client_ca_file={files.write('ca.pem', authority.pem)}",
        "tls.require_client_cert=true",
        "auth.mode=mtls",
    ]
    with Daemon(folder, settings=settings) as running:
        running.wait_listening()
        with tls_channel(running, authority, authority.issue("probe")) as channel:
            assert becomes_serving(channel)
        yield running
        assert running.process.poll() is None, "quired died:\n" + running.log


def test_a_client_certificate_names_the_tenant(api, authority, mtls_daemon):
    with tls_channel(mtls_daemon, authority, authority.issue("acme")) as channel:
        assert generate(api, channel)
    wait_until(lambda: '"tenant":"acme"' in mtls_daemon.log.replace('": "', '":"'), "the access log names acme")


@pytest.mark.parametrize(
    "client",
    [
        lambda a: (None, None),
        lambda a: Authority("stranger").issue("acme"),
        lambda a: a.issue("acme", not_before=NOW - 48 * HOUR, not_after=NOW - 24 * HOUR),
        lambda a: Authority("acme").self_signed,
    ],
    ids=["none", "unknown authority", "expired", "signed by itself"],
)
def test_other_client_certificates_are_rejected(api, authority, mtls_daemon, client):
    with tls_channel(mtls_daemon, authority, client(authority)) as channel:
        assert failure(lambda: generate(api, channel)).code() == UNAVAILABLE


# --- tokens --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def token_daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    files = Files(folder)
    tokens = files.write(
        "tokens",
        token_line("alice", "acme", "generate")
        + token_line("bob", "globex", "generate,metrics")
        + token_line("root", "ops", "admin"),
    )
    with Daemon(folder, settings=["auth.mode=token", f"auth.tokens_file={tokens}"]) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


def test_absent_wrong_and_misplaced_tokens_are_rejected(api, token_daemon):
    with token_daemon.channel() as channel:
        assert generate(api, channel, bearer("alice"))
        cases = [
            ((), UNAUTHENTICATED, "TOKEN_MISSING"),
            (bearer("mallory"), UNAUTHENTICATED, "TOKEN_INVALID"),
            (bearer(""), UNAUTHENTICATED, "TOKEN_MISSING"),
            (bearer(hashlib.sha256(b"alice").hexdigest()), UNAUTHENTICATED, "TOKEN_INVALID"),
            ((("authorization", "Basic YWxpY2U6"),), UNAUTHENTICATED, "TOKEN_MISSING"),
            ((("x-authorization", "Bearer alice"),), UNAUTHENTICATED, "TOKEN_MISSING"),
            (bearer("root"), grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING"),
        ]
        for metadata, code, reason in cases:
            error = failure(lambda metadata=metadata: generate(api, channel, metadata))
            assert (error.code(), reason_of(error)[0]) == (code, reason), metadata


def test_every_method_requires_a_token(api, token_daemon):
    """The methods come from the descriptor, so that none is missing."""
    data = api.GenerateRequest.DESCRIPTOR.file.services_by_name["GenerationService"]
    assert len(data.methods) >= 11
    with token_daemon.channel() as channel:
        for method in data.methods:
            path = f"/{data.full_name}/{method.name}"
            call = channel.stream_stream(path)(iter([b""]), timeout=10)
            error = failure(lambda call=call: list(call))
            assert (error.code(), reason_of(error)[0]) == (UNAUTHENTICATED, "TOKEN_MISSING"), path


def test_every_method_of_a_tcp_admin_listener_requires_a_token(api, tmp_path):
    tokens = Files(tmp_path).write("tokens", token_line("root", "ops", "admin") + token_line("a", "a", "generate"))
    settings = ["auth.mode=token", f"auth.tokens_file={tokens}", "server.admin.listen=[127.0.0.1:0]"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        address = json.loads(next(line for line in daemon.lines if '"listening"' in line))["admin"]
        service = api.DrainRequest.DESCRIPTOR.file.services_by_name["AdminService"]
        assert len(service.methods) >= 13
        with grpc.insecure_channel(address) as channel:
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                for metadata, expected in (
                    ((), (UNAUTHENTICATED, "TOKEN_MISSING")),
                    (bearer("a"), (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")),
                ):
                    call = channel.stream_stream(path)(iter([b""]), timeout=10, metadata=metadata)
                    error = failure(lambda call=call: list(call))
                    assert (error.code(), reason_of(error)[0]) == expected, path
            stats = api.AdminServiceStub(channel).GetStats(api.GetStatsRequest(), metadata=bearer("root"))
            assert stats.stats.total_kv_page_count > 0


def test_the_admin_socket_is_protected_by_its_mode(api, token_daemon):
    mode = os.stat(token_daemon.admin.removeprefix("unix:")).st_mode
    assert stat.S_IMODE(mode) == 0o660
    with token_daemon.admin_channel() as channel:
        assert api.AdminServiceStub(channel).GetStats(api.GetStatsRequest()).stats.total_kv_page_count > 0


@pytest.fixture
def open_folder():
    """A folder like /tmp, which every user can access."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield folder


@pytest.fixture(scope="module")
def programs_for_all():
    """Copies quired and quire to a folder that every user can access, since the checkout may be in a private folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield [shutil.copy(program, folder) for program in (QUIRED, QUIRE)]


@pytest.mark.parametrize("kind", ["own", "offset", "open", "link", "file", "foreign"])
def test_an_admin_socket_folder_that_others_may_enter_is_rejected(open_folder, programs_for_all, kind):
    # Root would use /run/quire.
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    if kind == "foreign" and user == os.geteuid():
        pytest.skip("only root can make a folder of another user")
    place = os.path.join(open_folder, f"quire-{user}")
    target = os.path.join(open_folder, "target")
    made = target if kind == "link" else place
    if kind == "file":
        open(made, "w").close()
    else:
        os.mkdir(made)
        os.chmod(made, 0o777 if kind == "open" else 0o700)
    os.chown(made, user if kind != "foreign" else os.geteuid(), -1)
    if kind == "link":
        os.symlink(target, place)
    as_user = {"env": {"TMPDIR": open_folder, "PATH": "/usr/bin:/bin"}, "cwd": open_folder, "text": True}
    if user != os.geteuid():
        as_user |= {"user": user, "group": 65534, "extra_groups": []}
    quired, quire = programs_for_all
    try:
        subprocess.run([quired, "--help"], check=True, stdout=subprocess.DEVNULL, **as_user)
    except PermissionError as error:
        pytest.skip(f"user {user} cannot start a program in the folder for temporary files: {error}")
    command = [quired, "--set", "server.http.listen=127.0.0.1:0", "--set", "server.grpc.listen=[127.0.0.1:0]",
               "--set", "openai.listen=127.0.0.1:0", "--set", "logging.format=json"]
    offset = ["--port-offset", "2"] if kind == "offset" else []  # the ports are 0, which stays 0
    command += offset
    with subprocess.Popen(command, stderr=subprocess.PIPE, **as_user) as process:
        try:
            if kind in ("own", "offset"):
                line = next(line for line in process.stderr if '"listening"' in line)
                assert json.loads(line)["admin"] == f"unix:{place}/admin.sock" + (".2" if offset else "")

                def stats():
                    answer = subprocess.run([quire, *offset, "stats"], capture_output=True, timeout=30, **as_user)
                    print(answer.returncode, answer.stderr)  # shown if the test fails
                    return answer

                wait_until(lambda: stats().returncode == 0, "the client finds the socket, and the model is loaded", 60)
                # The client also rejects the folder.
                os.chmod(place, 0o755)
                found = stats()
                assert found.returncode == 3 and "set it to 0700" in found.stderr
            else:
                errors = process.stderr.read()
                assert process.wait(30) == 78, errors
                assert "the folder of the admin socket, " + place in errors
        finally:
            process.kill()


def test_the_admin_socket_is_never_wider_than_its_mode(tmp_path):
    """Polls the mode continuously, starting before the daemon. Polling can miss a moment, but every value is real."""
    path = tmp_path / "admin.sock"
    modes = set()
    without_umask = ["sh", "-c", 'umask 0; exec "$@"', "sh"]
    with Daemon(tmp_path, prefix=without_umask, settings=["server.admin.socket_mode=0600"]) as daemon:
        while daemon.grpc_address is None and daemon.process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                modes.add(stat.S_IMODE(path.stat().st_mode))
        daemon.wait_listening()
        modes.add(stat.S_IMODE(path.stat().st_mode))
    assert modes == {0o600}, [oct(mode) for mode in modes]


def test_a_data_socket_requires_tokens(api, tmp_path):
    tokens = Files(tmp_path).write("tokens", token_line("alice", "acme", "generate"))
    address = f"unix:{tmp_path}/data.sock"
    settings = ["auth.mode=token", f"auth.tokens_file={tokens}", f"server.grpc.listen=[127.0.0.1:0, {address}]"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        with grpc.insecure_channel(address) as channel:
            assert reason_of(failure(lambda: generate(api, channel)))[0] == "TOKEN_MISSING"
            assert generate(api, channel, bearer("alice"))


def test_health_needs_no_token(token_daemon):
    with token_daemon.channel() as channel:
        assert becomes_serving(channel, timeout=10)


def test_metrics_require_their_scope(token_daemon):
    address = token_daemon.http_address
    assert http_get(address, "/metrics")[0] == 401
    assert http_get(address, "/metrics", "Authorization: Bearer mallory\r\n")[0] == 401
    assert http_get(address, "/metrics", "Authorization: Bearer alice\r\n")[0] == 403
    assert http_get(address, "/metrics", "Authorization: Bearer bob\r\n")[0] == 200
    assert http_get(address, "/livez")[0] == 200


def test_tokens_are_not_logged(api, token_daemon):
    with token_daemon.channel() as channel:
        failure(lambda: generate(api, channel, bearer("a-secret-that-leaked")))
        generate(api, channel, bearer("alice"))
    wait_until(lambda: '"msg":"call refused"' in token_daemon.log.replace('": "', '":"'), "a refusal is logged")
    for secret in ("a-secret-that-leaked", "Bearer a", hashlib.sha256(b"alice").hexdigest()):
        assert secret not in token_daemon.log


def test_tenants_never_share_cached_pages(api, token_daemon):
    ours = "The king of the small island told nobody where the treasure was, but he told it to the model"
    with token_daemon.channel() as channel:
        alice = bearer("alice")
        assert cached_tokens(generate(api, channel, alice, text=ours)) == 0
        assert cached_tokens(generate(api, channel, alice, text=ours)) > 0
        # A caller cannot choose another tenant.
        sneaky = (*bearer("bob"), ("quire-tenant", "acme"))
        assert cached_tokens(generate(api, channel, sneaky, text=ours)) == 0
        assert cached_tokens(generate(api, channel, bearer("bob"), text=ours)) > 0  # cached for his own tenant by now


def test_trusted_metadata_names_the_tenant(api, tmp_path):
    tokens = Files(tmp_path).write("tokens", token_line("gateway", "gateway", "generate"))
    settings = ["auth.mode=token", f"auth.tokens_file={tokens}", "auth.trust_tenant_metadata=true"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            one = (*bearer("gateway"), ("quire-tenant", "one"))
            two = (*bearer("gateway"), ("quire-tenant", "two"))
            generate(api, channel, one)
            assert cached_tokens(generate(api, channel, one)) > 0
            assert cached_tokens(generate(api, channel, two)) == 0
            bad = (*bearer("gateway"), ("quire-tenant", "t" * 65))
            assert reason_of(failure(lambda: generate(api, channel, bad)))[0] == "BAD_PARAMETER"


def prompt_of(api, tokens):
    request = request_of(api)
    request.token_ids.ids.extend([5] * tokens)
    return request


def test_a_tenant_at_its_limit_does_not_block_others(api, tmp_path, endless):
    lines = token_line("alice", "acme", "generate") + token_line("bob", "globex", "generate")
    tokens = Files(tmp_path).write("tokens", lines)
    settings = [
        "auth.mode=token",
        f"auth.tokens_file={tokens}",
        "tenants.entries=[{id: globex, max_running_requests: 1, max_queued_requests: 2, max_queued_tokens: 500}]",
        *endless,
    ]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            long = request_of(api, tokens=ENDLESS // 10)
            running = stub.Generate(long, metadata=bearer("bob"))
            next(running)  # started
            waiting = [stub.Generate(long, metadata=bearer("bob")) for _ in range(2)]
            wait_until(lambda: waiting_count(api, daemon) == 2, "two requests wait")
            error = failure(lambda: list(stub.Generate(long, metadata=bearer("bob"))))
            reason, metadata, delay = reason_of(error)
            assert error.code() == EXHAUSTED and reason == "TENANT_LIMIT"
            assert metadata["tenant"] == "globex" and metadata["limit"] == "2" and metadata["value"] == "2"
            assert metadata["key"] == "max_queued_requests" and delay is not None
            # The other tenant's request passes the waiting ones.
            assert generate(api, channel, bearer("alice"))
            assert waiting_count(api, daemon) == 2
            waiting.pop().cancel()
            wait_until(lambda: waiting_count(api, daemon) == 1, "one request waits")

            # Its response ends a moment later and frees its place in the queue.
            def refused_by():
                error = failure(lambda: list(stub.Generate(prompt_of(api, 495), metadata=bearer("bob"))))
                assert error.code() == EXHAUSTED
                return reason_of(error)[1]["key"]

            wait_until(lambda: refused_by() == "max_queued_tokens", "the request exceeds the limit of queued tokens")
            # The prompt exceeds the limit of queued tokens by itself, so the error has no retry delay.
            error = failure(lambda: list(stub.Generate(prompt_of(api, 501), metadata=bearer("bob"))))
            assert reason_of(error)[0] == "EXCEEDS_CAPACITY" and reason_of(error)[2] is None
            for call in (running, *waiting):
                call.cancel()
            wait_until(lambda: waiting_count(api, daemon) == 0, "no request waits")


def test_another_callers_request_cannot_be_cancelled(api, tmp_path, endless):
    lines = token_line("alice", "acme", "generate") + token_line("bob", "acme", "generate")
    tokens = Files(tmp_path).write("tokens", lines)
    with Daemon(tmp_path, settings=["auth.mode=token", f"auth.tokens_file={tokens}", *endless]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            stream = stub.Generate(request_of(api, tokens=ENDLESS, request_id="mine"), metadata=bearer("alice"))
            next(stream)
            cancel = api.CancelRequest(request_id="mine")
            assert not stub.Cancel(cancel, metadata=bearer("bob")).found
            assert stub.Cancel(cancel, metadata=bearer("alice")).found
            assert failure(lambda: list(stream)).code() == grpc.StatusCode.CANCELLED


def test_tenants_of_one_gateway_are_separated(api, tmp_path, endless):
    """One token identifies one principal. The tenant in the metadata separates the requests of the two tenants."""
    tokens = Files(tmp_path).write("tokens", token_line("gateway", "gateway", "generate"))
    settings = ["auth.mode=token", f"auth.tokens_file={tokens}", "auth.trust_tenant_metadata=true", *endless]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        one = (*bearer("gateway"), ("quire-tenant", "one"))
        two = (*bearer("gateway"), ("quire-tenant", "two"))
        with daemon.channel() as channel, daemon.admin_channel() as admin_channel:
            stub = api.GenerationServiceStub(channel)
            admin = api.AdminServiceStub(admin_channel)
            long = request_of(api, tokens=ENDLESS, request_id="same")
            first = stub.Generate(long, metadata=one)
            next(first)  # started
            cancel = api.CancelRequest(request_id="same")
            assert not stub.Cancel(cancel, metadata=two).found
            second = stub.Generate(long, metadata=two)
            next(second)
            listed = admin.ListRequests(api.ListRequestsRequest()).requests
            assert sorted((r.tenant, r.request_id) for r in listed) == [("one", "same"), ("two", "same")]
            assert stub.Cancel(cancel, metadata=two).found
            assert reason_of(failure(lambda: list(second)))[0] == "CANCELLED_BY_CALLER"
            third = stub.Generate(long, metadata=two)
            next(third)
            # Operators list all requests and select one by its tenant.
            assert admin.AbortRequests(api.AbortRequestsRequest(request_ids=["same"], tenant="two")).aborted_count == 1
            assert reason_of(failure(lambda: list(third)))[0] == "ABORTED_BY_ADMIN"
            listed = admin.ListRequests(api.ListRequestsRequest()).requests
            assert [(r.tenant, r.request_id) for r in listed] == [("one", "same")]
            next(first)  # the stream continues


def long_answer(api, stream):
    """Returns a request whose response exceeds a connection's buffers. It completes although its client does not read."""
    request = request_of(api, tokens=100)
    request.sampling.choice_count, request.output.logprobs, request.output.stream = 8, 20, stream
    return request


def completed_count(daemon):
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("quire_requests_completed_total"))


@contextlib.contextmanager
def unread_over_grpc(api, daemon, stream):
    """Starts two calls whose client does not read. Without BDP probes the connection's window stays at 64 KiB."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(daemon.grpc_address, options) for _ in range(2)]
    calls = [api.GenerationServiceStub(c).Generate(long_answer(api, stream)) for c in channels]
    yield
    for call in calls:
        assert failure(lambda call=call: list(call)).code() == grpc.StatusCode.CANCELLED
    for channel in channels:
        channel.close()


@contextlib.contextmanager
def unread_over_http(daemon):
    body = {"prompt": PROMPT, "stream": True, "n": 16, "max_tokens": 100, "logprobs": 20, "ignore_eos": True}
    text = json.dumps(body).encode()
    address = next(json.loads(line) for line in daemon.lines if '"listening"' in line)["openai"]
    host, port = address.rsplit(":", 1)
    connections = [socket.socket() for _ in range(2)]
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(text)}\r\n\r\n"
        connection.sendall(head.encode() + text)
    yield
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("how", ["grpc", "grpc stream", "openai stream"])
def test_unread_responses_count_as_queued_and_time_out(api, tmp_path, how):
    settings = ["stream.slow_client_timeout=4s", "stream.queue_tokens=65536", "limits.max_queued_requests=2",
                "openai.enabled=true", "openai.listen=127.0.0.1:0"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        unread = unread_over_http(daemon) if how == "openai stream" else unread_over_grpc(api, daemon, "stream" in how)
        with daemon.channel() as channel, unread:
            wait_until(lambda: completed_count(daemon) == 2, "both are finished")

            def refusal():
                try:
                    generate(api, channel)
                except grpc.RpcError as error:
                    return error
                return None

            # The engine counts a completed response shortly before it counts it as unread.
            error = wait_until(refusal, "one more is refused")
            reason, metadata, delay = reason_of(error)
            assert error.code() == EXHAUSTED and reason == "QUEUE_FULL"
            assert metadata["unread_answers"] == "2" and metadata["limit"] == "2" and delay >= 1
            wait_until(lambda: generate(api, channel), "they have ended", not_yet=(grpc.RpcError,))
            # A place is free once the first response has ended. The second one also ends by itself. Over HTTP it may end
            # with its connection, which stalled long before the response was complete.
            ended = 1 if how == "openai stream" else 2
            wait_until(lambda: daemon.log.count("unread answer dropped") >= ended, "lines of the log")


def test_the_command_line_client_supports_tls_and_tokens(authority, tmp_path):
    files = Files(tmp_path)
    tokens = files.write("tokens", token_line("alice", "acme", "generate"))
    settings = files.pair(authority.issue("server"))
    settings += [
        f"tls.client_ca_file={files.write('ca.pem', authority.pem)}",
        "tls.require_client_cert=true",
        "auth.mode=token",
        f"auth.tokens_file={tokens}",
    ]
    certificate, key = authority.issue("client")
    client = [
        "--tls-ca", files.write("ca.pem", authority.pem),
        "--tls-cert", files.write("client.pem", certificate),
        "--tls-key", files.write("client.key", key),
    ]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_listening()
        port = daemon.grpc_address.rsplit(":", 1)[1]
        with tls_channel(daemon, authority, (certificate, key)) as channel:
            assert becomes_serving(channel)

        def quire(*arguments):
            command = [str(QUIRE), "--address", f"localhost:{port}", "--admin", daemon.admin, *map(str, arguments)]
            return subprocess.run(command, capture_output=True, text=True, timeout=30)

        token = files.write("token", "alice\n")
        assert quire(*client, "--token-file", token, "models").returncode == 0
        refused = quire(*client, "models")
        assert refused.returncode == 1 and "UNAUTHENTICATED/TOKEN_MISSING" in refused.stderr
        assert quire("--tls-ca", tmp_path / "ca.pem", "--token-file", token, "models").returncode == 3
        assert quire("--token-file", token, "models").returncode == 3
        assert quire("--token-file", tmp_path / "absent", "models").returncode == 2
        for wrong in (b"Klartext\xc3\xa4\n", b"Klar\x01text\n", b"Klar text\n", b"\n"):
            refused = quire(*client, "--token-file", files.write("wrong", wrong), "models")
            assert refused.returncode == 2 and "the first line is not a token" in refused.stderr
            assert "Klar" not in refused.stderr + refused.stdout
        # The admin socket needs neither TLS nor a token.
        assert quire("health").returncode == 0


# --- what is logged ------------------------------------------------------------------------------


def test_prompts_and_outputs_are_not_logged(api, tmp_path):
    with Daemon(tmp_path, settings=["logging.level=trace"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            messages = generate(api, channel, tokens=40)
            failure(lambda: generate(api, channel, tokens=-1))
        answer = "".join(m.delta.text for m in messages if m.HasField("delta"))
        wait_until(lambda: daemon.log.count('"request_id"') >= 2, "both requests are logged")
        assert len(answer) > 40
        for secret in (PROMPT, PROMPT[:20], answer[:20], answer[-20:]):
            assert secret not in daemon.log


# --- exit codes of configurations that are not safe ------------------------------------------------


def test_a_remote_admin_address_without_tls_is_rejected(tmp_path):
    code, errors = run_quired(tmp_path, "server.admin.listen=[0.0.0.0:0]")
    assert code == 78 and "it needs tls.cert_file, and auth.mode token or mtls" in errors


def test_an_open_address_causes_one_warning(tmp_path):
    with Daemon(tmp_path, settings=["server.grpc.listen=[0.0.0.0:0]"]) as daemon:
        daemon.wait_listening()
        assert daemon.log.count("hosts that can reach these addresses") == 1

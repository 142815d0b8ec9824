"""A local server that speaks the protocol of the Hugging Face hub, with faults on demand.

The hub and its CDN are two HTTP servers on two ports. Large files (LFS) are redirected to the CDN, other files and the
lists of files come from the hub. Every request is recorded.
"""

import hashlib
import http.server
import json
import re
import threading
import urllib.parse

LFS = (".safetensors", ".gguf")


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def blob_hash(name, content):
    return hashlib.sha256(content).hexdigest() if name.endswith(LFS) else git_hash(content)


class Fault:
    """A fault of one request for a file. `status` answers with an error; the other fields disturb the transfer of the body."""

    def __init__(self, status=None, headers=(), cut=None, damage=False, hold=None, before_body=None, ignore_range=False,
                 endless=False):
        self.status = status
        self.endless = endless          # the body of the error ends only when the client disconnects
        self.headers = dict(headers)
        self.cut = cut                  # close the connection after so many bytes of the body
        self.damage = damage            # flip a bit of the first byte that is sent
        self.hold = hold                # (bytes, event): send these, then wait for the event before the rest
        self.before_body = before_body  # function to call before the first byte
        self.ignore_range = ignore_range


class FakeHub:
    def __init__(self, hub_tls=None, cdn_tls=None):
        self.tls = {"hub": hub_tls, "cdn": cdn_tls}  # contexts of the ssl module; None: plain HTTP
        self.repositories = {}  # name -> {commit: {file: content}}
        self.refs = {}          # name -> {revision: commit}
        self.renamed = {}       # old name -> new name
        self.gated = {}         # name -> token that has access
        self.faults = {}        # file, or "list" -> faults of the next requests, in order
        self.has_blobs = True   # the list of files has sizes and hashes
        self.cdn_allows_head = True  # False: like a URL of S3 that is signed for GET
        self.listed = {}        # name -> siblings that replace the list of files
        self.requests = []      # (server, method, path, headers)
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self.hub = self._serve("hub", self._answer_hub)
        self.cdn = self._serve("cdn", self._answer_cdn)

    @property
    def url(self):
        return f"http{'s' if self.tls['hub'] else ''}://127.0.0.1:{self.hub.server_address[1]}"

    @property
    def cdn_url(self):
        return f"http{'s' if self.tls['cdn'] else ''}://127.0.0.1:{self.cdn.server_address[1]}"

    def add(self, name, files, revision="main"):
        """Adds a commit with these files and lets `revision` name it. Returns the commit."""
        commit = hashlib.sha1(json.dumps([name, revision, sorted((k, v.hex()) for k, v in files.items())]).encode()).hexdigest()
        self.repositories.setdefault(name, {})[commit] = dict(files)
        self.refs.setdefault(name, {})[revision] = commit
        return commit

    def seen(self, server=None, method=None, file=None):
        """Returns the recorded requests that match."""
        with self._lock:
            return [r for r in self.requests
                    if (server is None or r[0] == server) and (method is None or r[1] == method)
                    and (file is None or urllib.parse.unquote(r[2]).split("?")[0].endswith("/" + file))]

    def forget(self):
        with self._lock:
            self.requests.clear()

    def close(self):
        self.closing.set()
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _serve(self, label, answer):
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self):
                with fake._lock:
                    fake.requests.append((label, self.command, self.path, dict(self.headers)))
                answer(self)

            do_GET = do_HEAD = _handle

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if self.tls[label]:
            # The thread of the connection does the handshake, so that it cannot block the others.
            server.socket = self.tls[label].wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            server.handle_error = lambda *_: None  # a client that does not trust the certificate disconnects
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def _next_fault(self, key):
        with self._lock:
            faults = self.faults.get(key)
            return faults.pop(0) if faults else Fault()

    @staticmethod
    def _send(handler, status, body=b"", headers=()):
        handler.send_response(status)
        for name, value in dict(headers).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def _refuse(self, handler, status, code):
        self._send(handler, status, b'{"error":"refused"}', {"X-Error-Code": code, "X-Error-Message": "refused"})

    def _answer_hub(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        path = urllib.parse.unquote(url.path)
        for old, new in self.renamed.items():
            if f"/{old}/" in path:
                query = f"?{url.query}" if url.query else ""
                return self._send(handler, 307, b"", {"Location": url.path.replace(old, new) + query})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            return self._answer_list(handler, *match.groups())
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._answer_file(handler, *match.groups())
        return self._refuse(handler, 404, "RepoNotFound")

    def _find(self, handler, name, revision):
        """Returns the commit, or None after an error was sent."""
        if name not in self.repositories:
            # Like the hub, which does not tell whether a private repository exists.
            self._refuse(handler, 401, "RepoNotFound")
            return None
        commit = self.refs[name].get(revision, revision)
        if commit not in self.repositories[name]:
            self._refuse(handler, 404, "RevisionNotFound")
            return None
        return commit

    def _answer_list(self, handler, name, kind, revision):
        fault = self._next_fault("list")
        if fault.status:
            return self._send(handler, fault.status, b"{}", fault.headers)
        commit = self._find(handler, name, revision)
        if commit is None:
            return None
        if kind == "tree":  # huggingface_hub asks for this list
            body = [{"type": "file", "path": file, "size": len(content), "oid": git_hash(content),
                     **({"lfs": {"oid": blob_hash(file, content), "size": len(content), "pointerSize": 134}}
                        if file.endswith(LFS) else {})}
                    for file, content in self.repositories[name][commit].items()]
        else:
            siblings = []
            for file, content in self.repositories[name][commit].items():
                sibling = {"rfilename": file}
                if self.has_blobs and "blobs=true" in handler.path:
                    sibling |= {"size": len(content), "blobId": git_hash(content)}
                    if file.endswith(LFS):
                        sibling["lfs"] = {"sha256": blob_hash(file, content), "size": len(content), "pointerSize": 134}
                siblings.append(sibling)
            body = {"id": name, "sha": commit, "private": False, "gated": name in self.gated,
                    "siblings": self.listed.get(name, siblings)}
        return self._send(handler, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _answer_file(self, handler, name, revision, file):
        commit = self._find(handler, name, revision)
        if commit is None:
            return None
        if name in self.gated and handler.headers.get("Authorization") != f"Bearer {self.gated[name]}":
            status = 403 if handler.headers.get("Authorization") else 401
            return self._refuse(handler, status, "GatedRepo")
        content = self.repositories[name][commit].get(file)
        if content is None:
            return self._refuse(handler, 404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit}
        if not file.endswith(LFS):
            headers["ETag"] = f'"{git_hash(content)}"'
            return self._send_file(handler, file, content, headers)
        target = f"{self.cdn_url}/blobs/{urllib.parse.quote(name)}/{commit}/{urllib.parse.quote(file)}"
        headers |= {"Location": target, "X-Linked-Etag": f'"{blob_hash(file, content)}"', "X-Linked-Size": str(len(content))}
        return self._send(handler, 302, b"Found", headers)

    def _answer_cdn(self, handler):
        if handler.command == "HEAD" and not self.cdn_allows_head:
            return self._send(handler, 403)
        match = re.fullmatch(r"/blobs/([^/]+/[^/]+)/([^/]+)/(.+)", urllib.parse.unquote(handler.path))
        name, commit, file = match.groups()
        return self._send_file(handler, file, self.repositories[name][commit][file], {"ETag": '"of-the-cdn"'})

    def _send_file(self, handler, file, content, headers):
        fault = self._next_fault(file) if handler.command == "GET" else Fault()
        if fault.endless:
            return self._send_endless(handler, fault)
        if fault.status:
            return self._send(handler, fault.status, b"fault", fault.headers)
        status, body = 200, content
        range_header = handler.headers.get("Range")
        if range_header and not fault.ignore_range:
            first = int(re.fullmatch(r"bytes=(\d+)-", range_header)[1])
            if first >= len(content):
                return self._send(handler, 416, b"", {"Content-Range": f"bytes */{len(content)}"})
            status, body = 206, content[first:]
            headers = {**headers, "Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
        if fault.damage:
            body = bytes([body[0] ^ 1]) + body[1:]
        handler.send_response(status)
        for name, value in {**headers, "Accept-Ranges": "bytes", "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return None
        try:
            self._send_body(handler, body, fault)
        except OSError:
            handler.close_connection = True  # the client is gone
        return None

    def _send_endless(self, handler, fault):
        handler.send_response(fault.status)
        handler.send_header("Connection", "close")
        handler.end_headers()
        try:
            while not self.closing.is_set():
                handler.wfile.write(b"fault" * 1000)
        except OSError:
            pass  # the client is gone

    def _send_body(self, handler, body, fault):
        if fault.before_body:
            fault.before_body()
        if fault.hold:
            count, event = fault.hold
            handler.wfile.write(body[:count])
            handler.wfile.flush()
            while not event.wait(0.05) and not self.closing.is_set():
                pass
            handler.wfile.write(body[count:])
        elif fault.cut is not None:
            handler.wfile.write(body[:fault.cut])
            handler.close_connection = True
        else:
            handler.wfile.write(body)

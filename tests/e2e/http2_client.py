"""An HTTP/2 client that respects the server's flow-control windows and no other rule (RFC 9113)."""

import contextlib
import socket
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class Http2Client:
    """Reads on its own thread. `goaway` is (code, text) once the server has sent GOAWAY."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.goaway = None
        self.pongs = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._has_settings = False
        self._ended = set()
        self._initial_window = 65535
        self._windows = {0: 65535}
        self.send(PREFACE + frame(SETTINGS))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, data):
        """Returns False if the server has closed the connection."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def open(self, stream, block):
        with self._changed:
            self._windows[stream] = self._initial_window
        return self.send(frame(HEADERS, END_HEADERS, stream, block))

    def send_data(self, stream, data, timeout=30):
        """Sends as fast as the windows allow. Returns False if the server ends the stream or the windows stay closed.
        """
        while data:
            with self._changed:
                def may_send():
                    return self._is_closed or stream in self._ended or min(self._windows[0], self._windows[stream]) > 0
                if not self._changed.wait_for(may_send, timeout) or self._is_closed or stream in self._ended:
                    return False
                size = min(16384, len(data), self._windows[0], self._windows[stream])
                self._windows[0] -= size
                self._windows[stream] -= size
            if not self.send(frame(DATA, 0, stream, data[:size])):
                return False
            data = data[size:]
        return True

    def wait_begun(self, timeout=30):
        """Waits until the server has sent its settings."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_settings, timeout)

    def wait_ended(self, stream, timeout=30):
        """Waits until the server has ended the stream, with or without an error."""
        with self._changed:
            return self._changed.wait_for(lambda: stream in self._ended, timeout)

    def wait_closed(self, timeout=30):
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, timeout)

    def close(self):
        with contextlib.suppress(OSError):  # closed by the server
            self.socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _receive(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise OSError("closed")
            data += piece
        return data

    def _read(self):
        try:
            while True:
                head = self._receive(9)
                payload = self._receive(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, payload)
        except OSError:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()

    def _take(self, kind, flags, stream, payload):
        with self._changed:
            if kind == WINDOW_UPDATE and stream in self._windows:
                self._windows[stream] += struct.unpack(">I", payload)[0]
            elif kind == SETTINGS and not flags & ACK:
                self._has_settings = True
                for i in range(0, len(payload), 6):
                    name, value = struct.unpack(">HI", payload[i:i + 6])
                    if name == INITIAL_WINDOW_SIZE:
                        for open_stream in self._windows:
                            if open_stream:
                                self._windows[open_stream] += value - self._initial_window
                        self._initial_window = value
                self.send(frame(SETTINGS, ACK))
            elif kind == RST_STREAM or kind in (DATA, HEADERS) and flags & END_STREAM:
                self._ended.add(stream)
            elif kind == PING and flags & ACK:
                self.pongs.append(payload)
            elif kind == PING:
                self.send(frame(PING, ACK, 0, payload))
            elif kind == GOAWAY and self.goaway is None:
                self.goaway = struct.unpack(">I", payload[4:8])[0], payload[8:].decode()
            self._changed.notify_all()

"""Starts a server for a test and talks to it, with the standard library only.

KAREZ_FAKE_SERVER, KAREZ_BINARY and KAREZ_MODEL name the programs and the model file (CTest sets
them). Everything stays on the loopback address.
"""

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time


class Server:
    """A server process on a free port. Use as a context manager."""

    def __init__(self, command, address="127.0.0.1"):
        self.address = address
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self._process.stdout.readline()
        found = re.search(r"https?://[^ \n]*:(\d+)", line)
        if not found:
            self._process.kill()
            raise RuntimeError(f"no address from {command}: {line!r} {self._process.stderr.read()}")
        self.port = int(found.group(1))
        self.url = found.group(0)
        self.pid = self._process.pid
        # Nobody reads these pipes otherwise, and a full one would stop the server.
        self._pipes = [self._process.stdout, self._process.stderr]
        self.output = []  # when it has ended
        self._readers = [threading.Thread(target=lambda pipe=pipe: self.output.append(pipe.read()))
                         for pipe in self._pipes]
        for reader in self._readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader, pipe in zip(self._readers, self._pipes):
            reader.join()
            pipe.close()

    def terminate(self):
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds):
        return self._process.wait(seconds)

    def is_running(self):
        return self._process.poll() is None

    def resident_bytes(self):
        with open(f"/proc/{self.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) * 1024

    def threads(self):
        with open(f"/proc/{self.pid}/status") as status:
            return int(re.search(r"Threads:\s+(\d+)", status.read()).group(1))

    def connect(self, timeout=10):
        return socket.create_connection((self.address, self.port), timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body bytes)"""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def post(self, path, body, headers=None):
        status, _, data = self.request("POST", path, body, headers)
        return status, json.loads(data)

    def chat(self, text, **fields):
        return self.post("/v1/chat/completions",
                         {"messages": [{"role": "user", "content": text}], **fields})

    def stats(self):
        return json.loads(self.request("GET", "/karez/stats")[2])

    def metrics(self):
        page = self.request("GET", "/metrics")[2].decode()
        return {key: float(value) for key, value in
                re.findall(r"^([a-zA-Z_:]+(?:\{[^}]*\})?) ([0-9.eE+-]+)$", page, re.M)}


def fake_server(*flags):
    return Server([os.environ["KAREZ_FAKE_SERVER"], *map(str, flags)])


def real_server(*flags):
    return Server([os.environ["KAREZ_BINARY"], "serve", "-m", os.environ["KAREZ_MODEL"],
                   "--port", "0", *map(str, flags)])


def allow_files(count):
    """How many open files this process and the servers that it starts can have, at most count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in ((max(soft, count), max(hard, count)), (min(count, hard), hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, wanted)
            return min(count, wanted[0])
        except (ValueError, OSError):  # only root may go over the hard limit
            continue
    return soft


def raw_post(path, body, extra=""):
    """The bytes of a request."""
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
            .encode() + data)


def read_all(connection, limit=1 << 24):
    """What comes until the other side closes."""
    data = b""
    while len(data) < limit:
        part = connection.recv(65536)
        if not part:
            return data
        data += part
    return data


def eventually(condition, seconds):
    """Whether the condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def sse_events(data):
    """The JSON objects of a stream's text; [DONE] as None."""
    events = []
    for event in data.decode().split("\n\n"):
        if event.startswith("data: "):
            events.append(None if event == "data: [DONE]" else json.loads(event[6:]))
    return events

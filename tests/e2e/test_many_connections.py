"""10,000 idle connections and 1,000 open streams at once, on a handful of threads.

A process that may not open so many files (ulimit -Hn) tests with as many as it may, and says so.
"""

import selectors
import time
import unittest

from harness import allow_files, eventually, fake_server, raw_post

MOST_STREAMS = 1_000
MOST_IDLE = 10_000
OTHER_FILES = 200
FOREVER = {"prompt": "<forever>", "max_tokens": 90_000, "stream": True}


class ManyConnections(unittest.TestCase):
    def test_idle_connections_and_streams_are_served_at_once(self):
        allowed = allow_files(MOST_IDLE + MOST_STREAMS + OTHER_FILES) - OTHER_FILES
        stream_count = min(MOST_STREAMS, allowed // 3)
        idle_count = min(MOST_IDLE, allowed - stream_count)
        with fake_server("--max-running", stream_count + 8, "--idle-ms", 600_000, "--step-us",
                         200_000) as server:
            bytes_before = server.resident_bytes()
            threads_before = server.threads()
            connections = [server.connect() for _ in range(idle_count + stream_count)]
            idle, streams = connections[:idle_count], connections[idle_count:]
            self.assertTrue(eventually(
                lambda: server.metrics()["karez_http_connections"] > idle_count + stream_count, 10))
            bytes_idle = server.resident_bytes() - bytes_before
            for connection in streams:
                connection.sendall(raw_post("/v1/completions", FOREVER))
            self.assertTrue(eventually(
                lambda: server.stats()["requests_running"] == stream_count, 30))
            self.read_from_all(streams, at_least=3, seconds=60)

            # Another client is answered, and so are some of those that were silent so far.
            self.assertEqual(server.chat("hi")[0], 200)
            for connection in idle[::200]:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertTrue(connection.recv(100).startswith(b"HTTP/1.1 200"))
            self.assertEqual(server.threads(), threads_before)
            bytes_all = server.resident_bytes() - bytes_before
            print(f"\n{idle_count} idle connections and {stream_count} streams: {threads_before} threads, "
                  f"{bytes_idle / len(connections):.0f} bytes a connection, "
                  f"{bytes_all / 2**20:.0f} MiB in all")
            self.assertLess(bytes_all, 512 << 20)

            for connection in connections:
                connection.close()
            self.assertTrue(eventually(lambda: server.stats()["requests_running"] == 0, 5))
            self.assertTrue(eventually(
                lambda: server.metrics()["karez_http_connections"] <= 2, 10))

    def read_from_all(self, streams, at_least, seconds):
        """Reads until each stream has brought so many events."""
        events = dict.fromkeys(streams, 0)
        missing = set(streams)
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for connection in streams:
                selector.register(connection, selectors.EVENT_READ)
            while missing and time.monotonic() < end:
                for key, _ in selector.select(1):
                    data = key.fileobj.recv(65536)
                    self.assertTrue(data, "a stream was closed")
                    events[key.fileobj] += data.count(b"data: {")
                    if events[key.fileobj] >= at_least:
                        missing.discard(key.fileobj)
        self.assertEqual(len(missing), 0, "streams without enough events")


if __name__ == "__main__":
    unittest.main()

"""Clients that misbehave, against the server in front of the fake engine."""

import json
import os
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

from harness import eventually, fake_server, raw_post, read_all, sse_events

FOREVER = {"prompt": "<forever>", "max_tokens": 50000}


class RoughClients(unittest.TestCase):
    def setUp(self):
        self.server = fake_server("--header-ms", 500, "--body-ms", 800, "--idle-ms", 3000)
        self.addCleanup(self.server.__exit__)

    def assert_alive(self):
        status, answer = self.server.chat("hello")
        self.assertEqual(status, 200, answer)

    def assert_idle(self, seconds=1.0):
        def idle():
            stats = self.server.stats()
            return not (stats["requests_running"] or stats["requests_waiting"]
                        or stats["slots_used"])
        self.assertTrue(eventually(idle, seconds), self.server.stats())

    def answer_to(self, data):
        with self.server.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def test_bytes_that_are_no_http_get_a_400(self):
        for data in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,
                     b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nBad header\r\n\r\n",
                     b"GET / HTTP/1.1\r\n\r\n",
                     b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
                     b"POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
                     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1x\r\n\r\n"):
            answer = self.answer_to(data)
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), (data, answer))
        self.assert_alive()

    def test_the_forms_of_a_target(self):
        for line, status in ((b"GET http://localhost/health HTTP/1.1", 200),
                             (b"GET HTTP://localhost:1/health?x HTTP/1.1", 200),
                             (b"GET https://localhost HTTP/1.1", 200),
                             (b"GET http://evil.example/health HTTP/1.1", 403),
                             (b"GET http://x@localhost/health HTTP/1.1", 403),
                             (b"GET localhost:80 HTTP/1.1", 404), (b"OPTIONS * HTTP/1.1", 404)):
            answer = self.answer_to(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), (line, answer))
        self.assertTrue(self.answer_to(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 "))

    def test_a_large_header_gets_a_431(self):
        answer = self.answer_to(b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 431 "), answer)
        self.assert_alive()

    def test_a_body_over_the_limit_gets_a_413_before_it_is_sent(self):
        for length in (8 * 1024 * 1024 + 1, 2**31, 2**63 - 1):
            answer = self.answer_to(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                    b"Content-Length: %d\r\n\r\n" % length)
            self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)

    def test_an_endless_chunked_body_is_bounded(self):
        before = self.server.resident_bytes()
        with self.server.connect() as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                               b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            with self.assertRaises(OSError):
                for _ in range(1000):
                    connection.sendall(chunk)
                raise AssertionError("64 MiB were taken")
        self.assertLess(self.server.resident_bytes() - before, 64 << 20)
        self.assert_alive()

    def test_half_requests_are_closed_at_their_deadline(self):
        for data in (b"GET /hea", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n",
                     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"):
            start = time.monotonic()
            self.answer_to(data)
            self.assertLess(time.monotonic() - start, 3)
        self.assert_alive()

    def test_slow_bytes_do_not_extend_the_deadline(self):
        start = time.monotonic()
        with self.server.connect() as connection, self.assertRaises(OSError):
            for _ in range(100):
                connection.sendall(b"X")
                time.sleep(0.05)
                if time.monotonic() - start > 4:
                    return self.fail("still open after 4 s")

    def test_a_silent_connection_is_closed(self):
        with self.server.connect() as connection:
            self.assertEqual(connection.recv(1), b"")

    def test_a_length_that_lies_ends_only_its_own_connection(self):
        body = json.dumps({"content": "abc"}).encode()
        for claimed in (len(body) - 3, len(body) + 10):
            self.answer_to(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d"
                           b"\r\n\r\n%s" % (claimed, body))
        self.assert_alive()

    def test_pipelined_requests_are_answered_in_order(self):
        one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = self.answer_to(one * 5 + last)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 5)
        self.assertEqual(answer.count(b"HTTP/1.1 404 "), 1)

    def leave(self, how, stream, phase):
        """A client that goes away once its request is in the phase."""
        with self.server.connect() as connection:
            connection.sendall(raw_post("/v1/completions", {**FOREVER, "stream": stream}))
            if phase == "decode" and stream:
                connection.recv(100)
            else:
                self.assertTrue(eventually(
                    lambda: self.server.stats()["requests_running"] > 0
                    or self.server.stats()["requests_waiting"] > 0, 3))
            if how == "half-close":
                connection.shutdown(socket.SHUT_WR)
                self.assert_idle()
            elif how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def test_a_client_that_left_frees_everything_within_a_second(self):
        for stream in (True, False):
            for how in ("close", "half-close", "reset"):
                with self.subTest(stream=stream, how=how):
                    self.leave(how, stream, "decode")
                    self.assert_idle()

    def test_a_client_that_left_with_pipelined_bytes_frees_everything(self):
        with self.server.connect() as connection:
            connection.sendall(raw_post("/v1/completions", FOREVER) + b"GET /health HTTP/1.1\r\n")
            self.assertTrue(eventually(lambda: self.server.stats()["requests_running"], 3))
        self.assert_idle()

    def test_nothing_follows_a_stream_that_was_cut_short(self):
        # Behind an answer without its end a second one would be read as more of the first.
        with self.server.connect() as connection:
            connection.sendall(raw_post("/v1/completions", {**FOREVER, "stream": True})
                               + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            data = connection.recv(65536)
            self.assertTrue(data.startswith(b"HTTP/1.1 200 "), data)
            connection.shutdown(socket.SHUT_WR)
            data += read_all(connection)
        self.assertEqual(data.count(b"HTTP/1.1"), 1, data[-300:])
        self.assertNotIn(b"[DONE]", data)
        self.assert_idle()
        self.assert_alive()

    def test_many_clients_that_left_leave_nothing_behind(self):
        for _ in range(1000):
            with self.server.connect() as connection:
                connection.sendall(raw_post("/v1/completions", {**FOREVER, "stream": True}))
        self.assert_idle(3)
        self.assert_alive()

    def test_a_stream_that_nobody_reads_is_cut(self):
        with self.server.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(raw_post("/v1/completions", {
                "prompt": ["<forever>"] * 32, "max_tokens": 90000, "stream": True}))
            before = self.server.resident_bytes()
            self.assertTrue(eventually(
                lambda: self.server.metrics()["karez_streams_cut_total"] == 1, 30))
            self.assert_idle()
            self.assertLess(self.server.resident_bytes() - before, 64 << 20)
        self.assert_alive()


class LargeRequests(unittest.TestCase):
    """Case I9: what is large is refused before anything is computed for it."""

    def test_large_counts_are_refused_by_name(self):
        message = {"role": "user", "content": "x"}
        with fake_server() as server:
            for body, param in (({"messages": [message] * 100_001}, "messages"),
                                ({"messages": [message], "stop": ["x"] * 10_000}, "stop"),
                                ({"messages": [message], "stop_token_ids": [1] * 10_000},
                                 "stop_token_ids"),
                                ({"messages": [message], "prompt_logprobs": 20},
                                 "prompt_logprobs")):
                status, answer = server.post("/v1/chat/completions", body)
                self.assertEqual(status, 400, answer)
                self.assertEqual(answer["error"]["param"], param)
            for body in ({"messages": [message] * 100_000}, {"prompt": "\n" * 4_000_000},
                         {"prompt": [7] * 1_000_000}):
                path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
                status, answer = server.post(path, body)
                self.assertEqual(status, 400, str(answer)[:200])
                self.assertEqual(answer["error"]["code"], "context_length_exceeded")
            self.assertEqual(server.stats()["prompt_tokens"], 0)
            self.assertLess(server.resident_bytes(), 1 << 30)


class OtherPlaces(unittest.TestCase):
    def test_no_address_in_a_request_is_ever_opened(self):  # case I5
        with fake_server() as server, socket.create_server(("127.0.0.1", 0)) as trap:
            trap.settimeout(0.3)
            port = trap.getsockname()[1]
            for url in (f"http://127.0.0.1:{port}/x.png", f"http://localhost:{port}/",
                        "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd"):
                part = {"type": "image_url", "image_url": {"url": url}}
                status, answer = server.chat([part])
                self.assertEqual(status, 400, answer)
                self.assertEqual(answer["error"]["param"], "messages[0].content[0].type")
                self.assertNotIn("passwd", answer["error"]["message"])
            with self.assertRaises(TimeoutError):
                trap.accept()

    def test_other_origins_and_host_names_are_refused(self):  # case I10
        body = {"prompt": "x", "max_tokens": 1}
        with fake_server() as server:
            local = {"Host": f"localhost:{server.port}"}
            for headers, wanted in (
                    (local, 200),
                    ({**local, "Origin": f"http://localhost:{server.port}"}, 200),
                    ({**local, "Origin": "https://evil.example"}, 403),
                    ({**local, "Origin": "null"}, 403),
                    ({"Host": "evil.example"}, 403),
                    ({"Host": f"evil.example:{server.port}"}, 403),
                    ({"Host": "127.0.0.1.evil.example"}, 403)):
                status, answer_headers, _ = server.request("POST", "/v1/completions", body, headers)
                self.assertEqual(status, wanted, headers)
                self.assertNotIn("Access-Control-Allow-Origin", answer_headers)


class Phases(unittest.TestCase):
    def test_a_queued_or_prefilling_request_ends_when_its_client_leaves(self):
        with fake_server("--max-running", 1, "--prefill-per-step", 1, "--step-us", 20000) as server:
            running = server.connect()
            running.sendall(raw_post("/v1/completions", FOREVER))
            self.assertTrue(eventually(lambda: server.stats()["requests_running"] == 1, 3))
            with server.connect() as queued:
                queued.sendall(raw_post("/v1/completions", FOREVER))
                self.assertTrue(eventually(lambda: server.stats()["requests_waiting"] == 1, 3))
            self.assertTrue(eventually(lambda: server.stats()["requests_waiting"] == 0, 1))
            running.close()
            self.assertTrue(eventually(lambda: server.stats()["requests_running"] == 0, 1))
            with server.connect() as prefilling:
                prefilling.sendall(raw_post("/v1/completions", {"prompt": "x" * 5000}))
                self.assertTrue(eventually(lambda: server.stats()["requests_running"] == 1, 3))
            self.assertTrue(eventually(lambda: server.stats()["requests_running"] == 0, 1))

    def test_a_full_queue_answers_503_and_when_to_try_again(self):
        with fake_server("--max-running", 1, "--max-waiting", 1) as server:
            connections = []
            for state in ("requests_running", "requests_waiting"):
                connections.append(server.connect())
                connections[-1].sendall(raw_post("/v1/completions", FOREVER))
                self.assertTrue(eventually(lambda: server.stats()[state] == 1, 3))
            status, headers, body = server.request("POST", "/v1/completions", {"prompt": "x"})
            self.assertEqual(status, 503, body)
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
            for connection in connections:
                connection.close()

    def test_a_failing_engine_is_a_500_or_an_error_event(self):
        with fake_server() as server:
            status, answer = server.post("/v1/completions", {"prompt": "<fail>"})
            self.assertEqual(status, 500)
            self.assertEqual(answer["error"]["type"], "server_error")
            self.assertNotIn("told to fail", answer["error"]["message"])
            with server.connect() as connection:
                connection.sendall(raw_post("/v1/completions", {
                    "prompt": "<fail>", "stream": True,
                    "stream_options": {"include_usage": True}}))
                data = read_all(connection)  # the server closes
            self.assertIn(b"data: {\"error\"", data)
            self.assertNotIn(b"[DONE]", data)


class Streams(unittest.TestCase):
    def stream(self, server, path, body):
        _, headers, data = server.request("POST", path, {**body, "stream": True})
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
        return sse_events(data)

    def test_usage_comes_once_and_only_when_asked_for(self):
        with fake_server() as server:
            for n in (1, 2):
                body = {"prompt": "hi", "n": n, "max_tokens": 3}
                events = self.stream(server, "/v1/completions", body)
                self.assertIsNone(events[-1])
                self.assertFalse(any("usage" in e for e in events if e))
                events = self.stream(server, "/v1/completions",
                                     {**body, "stream_options": {"include_usage": True}})
                self.assertIsNone(events[-1])
                self.assertEqual(events[-2]["choices"], [])
                self.assertEqual(events[-2]["usage"]["completion_tokens"], 3 * n)
                self.assertEqual(events[-2]["usage"]["prompt_tokens"], 2)
                self.assertTrue(all(e["usage"] is None for e in events[:-2]))

    def test_stream_and_whole_answer_are_the_same(self):
        with fake_server() as server:
            for extra in ({}, {"stop": ["DEFGHIJ"]}, {"stop": ["T"]}, {"max_tokens": 7},
                          {"stop": ["ABCX", "EF"]}):
                for prompt in ("hi", "<emoji>"):
                    body = {"messages": [{"role": "user", "content": prompt}], **extra}
                    status, whole = server.post("/v1/chat/completions", body)
                    self.assertEqual(status, 200, whole)
                    events = self.stream(server, "/v1/chat/completions", body)
                    self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
                    text = "".join(e["choices"][0]["delta"].get("content", "")
                                   for e in events if e)
                    self.assertEqual(text, whole["choices"][0]["message"]["content"])
                    self.assertEqual(events[-2]["choices"][0]["finish_reason"],
                                     whole["choices"][0]["finish_reason"])
                    for stop in extra.get("stop", []):
                        self.assertNotIn(stop, text)

    def test_a_character_cut_by_max_tokens_is_the_same_in_both_forms(self):
        with fake_server() as server:
            for most in range(1, 7):
                body = {"prompt": "<emoji>", "max_tokens": most}
                whole = server.post("/v1/completions", body)[1]["choices"][0]["text"]
                events = self.stream(server, "/v1/completions", body)
                self.assertEqual("".join(e["choices"][0]["text"] for e in events if e), whole)

    def test_logprobs_are_the_same_in_both_forms(self):
        with fake_server() as server:
            body = {"messages": [{"role": "user", "content": "<emoji>"}], "logprobs": True,
                    "top_logprobs": 2}
            whole = server.post("/v1/chat/completions", body)[1]["choices"][0]["logprobs"]
            events = self.stream(server, "/v1/chat/completions", body)
            joined = [token for e in events if e and e["choices"][0]["logprobs"]
                      for token in e["choices"][0]["logprobs"]["content"]]
            self.assertEqual(joined, whole["content"])
            self.assertEqual(bytes(b for token in joined for b in token["bytes"]).decode(),
                             "\U0001F600\U0001F601\U0001F602")
            self.assertTrue(all(len(token["top_logprobs"]) == 2 for token in joined))

            body = {"prompt": "hi", "logprobs": 2}
            whole = server.post("/v1/completions", body)[1]["choices"][0]["logprobs"]
            events = self.stream(server, "/v1/completions", body)
            for name, values in whole.items():
                self.assertEqual([value for e in events if e and e["choices"][0]["logprobs"]
                                  for value in e["choices"][0]["logprobs"][name]], values)
            self.assertEqual(whole["text_offset"][:3], [0, 1, 2])


class Keys(unittest.TestCase):
    def test_every_route_wants_the_key(self):
        routes = [("GET", "/v1/models"), ("GET", "/models"), ("GET", "/v1/models/fake"),
                  ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"),
                  ("POST", "/tokenize"), ("POST", "/detokenize"), ("POST", "/apply-template"),
                  ("GET", "/props"), ("GET", "/metrics"), ("GET", "/karez/stats"), ("GET", "/karez/kv-map"),
                  ("GET", "/slots"), ("GET", "/nothing")]
        with fake_server("--key", "secret-1", "--key", "secret-2") as server:
            for method, path in routes:
                for target in (path, path + "/", "/" + path, path + "?a=b"):
                    for headers in ({}, {"Authorization": "Bearer secret"},
                                    {"Authorization": "secret-1"}):
                        for verb in {method, "HEAD", "OPTIONS", "PUT"}:
                            status, _, body = server.request(verb, target, b"{}", headers)
                            self.assertEqual(status, 401, (verb, target, headers))
                            self.assertNotIn(b"secret-", body)
            good = {"Authorization": "Bearer secret-2"}
            self.assertEqual(server.request("GET", "/props", headers=good)[0], 200)
            self.assertNotIn(b"secret", server.request("GET", "/props", headers=good)[2])
            self.assertEqual(server.request("GET", "/health")[0], 200)


class Ends(unittest.TestCase):
    def test_sigterm_lets_a_running_answer_end(self):
        with fake_server("--shutdown-seconds", 10, "--step-us", 5000) as server:
            with server.connect() as connection, server.connect() as idle:
                connection.sendall(raw_post("/v1/completions", {"prompt": "hi", "stream": True}))
                connection.recv(10)
                server.terminate()
                self.assertIn(b"[DONE]", read_all(connection))
                self.assertEqual(idle.recv(1), b"")
            self.assertEqual(server.wait(5), 0)

    def test_sigterm_cuts_an_endless_answer_and_tells_its_client(self):
        with fake_server("--shutdown-seconds", 1) as server:
            with server.connect() as stream, server.connect() as whole:
                stream.sendall(raw_post("/v1/completions", {**FOREVER, "stream": True}))
                whole.sendall(raw_post("/v1/completions", FOREVER))
                stream.recv(10)
                server.terminate()
                self.assertIn(b"shutting down", read_all(stream))
                self.assertTrue(read_all(whole).startswith(b"HTTP/1.1 503 "))
            self.assertEqual(server.wait(5), 0)


class Tls(unittest.TestCase):
    def test_tls_serves_and_survives_plain_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            key, cert = os.path.join(folder, "key.pem"), os.path.join(folder, "cert.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                            "-days", "2", "-subj", "/CN=localhost", "-addext",
                            "subjectAltName=DNS:localhost"], check=True, capture_output=True)
            with fake_server("--ssl-key", key, "--ssl-cert", cert) as server:
                self.assertTrue(server.url.startswith("https://"))
                with server.connect() as plain:
                    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    read_all(plain)
                trust = ssl.create_default_context(cafile=cert)
                with trust.wrap_socket(server.connect(), server_hostname="localhost") as secure:
                    secure.sendall(raw_post("/v1/completions", {"prompt": "hi", "stream": True},
                                            "Connection: close\r\n"))
                    self.assertIn(b"[DONE]", read_all(secure))


if __name__ == "__main__":
    unittest.main()

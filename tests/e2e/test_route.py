"""karez route as a process, in front of servers without a model and of one that is a script."""

import http.server
import json
import os
import signal
import subprocess
import threading
import unittest

import harness

PRODUCED = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e",
            "remote_request_id": "0" * 32, "remote_host": "127.0.0.1", "remote_port": 5600,
            "remote_block_ids": None}


class ScriptedProducer(http.server.BaseHTTPRequestHandler):
    """Keeps the bodies that it gets."""
    bodies = []

    def log_message(self, *_):
        pass

    def _answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self._answer({"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        self._answer({"choices": [], "kv_transfer_params": PRODUCED})


def router(prefill, decode, *flags):
    command = [os.environ["KAREZ_BINARY"], "route", "--port", "0", *flags]
    for url in prefill:
        command += ["--prefill", url]
    return harness.Server([*command, "--decode", ",".join(decode)])


class RouteTest(unittest.TestCase):

    def setUp(self):
        ScriptedProducer.bodies = []
        producer = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ScriptedProducer)
        thread = threading.Thread(target=producer.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(producer.server_close)
        self.addCleanup(producer.shutdown)
        self.producer_url = f"http://127.0.0.1:{producer.server_address[1]}"

    def test_an_answer_comes_from_both_steps_and_is_that_of_the_consumer(self):
        with harness.fake_server("--kv-role", "kv_consumer") as consumer, \
                router([self.producer_url], [consumer.url]) as front:
            status, answer = front.chat("hello", max_tokens=20)
            self.assertEqual(status, 200)
            _, direct = consumer.chat("hello", max_tokens=20)
            self.assertEqual(answer["choices"], direct["choices"])
            self.assertEqual(ScriptedProducer.bodies[0]["max_tokens"], 1)
            self.assertEqual(ScriptedProducer.bodies[0]["messages"][0]["content"], "hello")
            body = {"prompt": "hello", "stream": True, "stream_options": {"include_usage": True}}
            _, headers, data = front.request("POST", "/v1/completions", body)
            self.assertEqual(headers["Content-Type"], "text/event-stream; charset=utf-8")
            events = harness.sse_events(data)
            self.assertIsNone(events[-1])
            self.assertEqual(events[-2]["usage"]["prompt_tokens"], 5)
            status, answer = front.post("/v1/completions", {"prompt": 7})
            self.assertEqual((status, answer["error"]["param"]), (400, "prompt"))
            self.assertEqual(front.metrics()["karez_route_hand_overs_total"], 3)
            front.terminate()
            self.assertEqual(front.wait(10), 0)

    def test_a_consumer_that_is_killed_ends_its_streams_and_nothing_else(self):
        with harness.fake_server() as first, harness.fake_server() as second, \
                router([], [first.url, second.url]) as front:
            body = {"prompt": "<forever>", "stream": True}
            with front.connect() as connection:
                connection.sendall(harness.raw_post("/v1/completions", body))
                self.assertIn(b" 200 ", connection.recv(4096))
                # The health page knows which of the two has the request.
                nodes = json.loads(front.request("GET", "/health")[2])["nodes"]
                busy = next(node["url"] for node in nodes if node["requests_in_flight"] == 1)
                victim = first if first.url == busy else second
                os.kill(victim.pid, signal.SIGKILL)
                data = b""
                while b'"node_failed"' not in data:
                    part = connection.recv(65536)
                    self.assertTrue(part, data[-200:])
                    data = data[-4096:] + part
            for _ in range(4):
                self.assertEqual(front.chat("hello", max_tokens=2)[0], 200)
            survivor = second if victim is first else first
            self.assertTrue(harness.eventually(
                lambda: survivor.stats()["requests_running"] == 0, 5))

    def test_wrong_flags_are_refused_with_what_is_allowed(self):
        for flags, says in ((["--decode", "node:1"], "does not begin with http://"),
                            (["--prefill", "http://a:1"], "--decode is missing"),
                            (["--decode", "http://a:1", "--host", "x"], "--host is x")):
            done = subprocess.run([os.environ["KAREZ_BINARY"], "route", *flags], text=True,
                                  capture_output=True, timeout=20)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()

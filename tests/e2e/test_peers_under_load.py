"""A producer that is killed under many requests, whose clients leave too: answers are right or errors,
and nothing is left of any of them at the consumer.

KAREZ_PEER_KILLS says how often the producer is killed and started again (3; a long run takes 20).
"""

import http.client
import json
import os
import signal
import socket
import threading
import unittest

import harness
import test_disaggregated as nodes
from harness import eventually

KILLS = int(os.environ.get("KAREZ_PEER_KILLS", "3"))
STREAMS = 24
CLIENTS = 4
LONG, SHORT = 160, 16  # of an answer, in tokens
FAST_MIB = 64
# Memory that a consumer may take besides the fast tier, which it has in full some time.
MORE_MIB = 48
# f32 keys and values: a batch then rounds like a request alone.
MODEL_FLAGS = ("-c", 1024, "-np", 4, "-t", 2, "-ctk", "f32", "-ctv", "f32", "--token-budget", 128,
               "--recent-window", 32, "--kv-host-bytes", "256MiB")
# Some 200 tokens each, of which attention reads 128, without a common beginning.
PROMPTS = [nodes.PROMPT.replace("ships", things).split("\n12.")[0]
           for things in ("boats", "vessels", "barges")]


def producer(port):
    return nodes.started("--kv-role", "kv_producer", "--kv-port", port, "--kv-lease", 2,
                         model=MODEL_FLAGS)


def consumer():
    return nodes.started("--kv-role", "kv_consumer", "--kv-port", 0, "--kv-admit", "sparse",
                         "--no-prefix-cache", "--kv-fast-bytes", f"{FAST_MIB}MiB",
                         model=MODEL_FLAGS)


class Stream(threading.Thread):
    """Asks the producer, then the consumer, and reads until there is no more."""

    def __init__(self, prefill, decode, prompt):
        super().__init__()
        self._prefill = prefill
        self.prompt = prompt
        self._connection = http.client.HTTPConnection("127.0.0.1", decode.port, timeout=90)
        self._socket = None
        self.is_asked = self.has_begun = self.is_done = False
        self.status, self.text, self.error = None, "", None

    def run(self):
        try:
            self._ask()
        except (http.client.HTTPException, OSError, ValueError, RuntimeError):
            pass  # of a dead producer, or it was left; what there is of an answer counts
        finally:
            self._connection.close()

    def _ask(self):
        params = nodes.prefilled(self._prefill, self.prompt)
        self._connection.request("POST", "/v1/completions", json.dumps(
            {**nodes.ANSWER, "max_tokens": LONG, "prompt": self.prompt, "stream": True,
             "kv_transfer_params": params}))
        self._socket = self._connection.sock
        self.is_asked = True
        response = self._connection.getresponse()
        self.status = response.status
        if self.status != 200:
            self.error = json.loads(response.read())["error"]
            return
        while line := response.readline():
            self.has_begun = True
            if line.startswith(b"data: [DONE]"):
                self.is_done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                self.error = self.error or event.get("error")
                self.text += "".join(choice["text"] for choice in event.get("choices", []))

    def leave(self):
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended


class PeersUnderLoad(nodes.Disaggregated):

    @classmethod
    def setUpClass(cls):
        cls.decode = consumer()
        cls.addClassCleanup(cls.decode.__exit__)
        cls.right = {prompt: nodes.text_of(nodes.completed(cls.decode, prompt, max_tokens=LONG)[1])
                     for prompt in PROMPTS}

    def test_clients_leave_and_the_producer_dies_while_many_wait(self):
        with producer(0) as prefill:
            streams = [Stream(prefill, self.decode, PROMPTS[number % len(PROMPTS)])
                       for number in range(STREAMS)]
            for stream in streams:
                stream.start()
            try:
                self.assertTrue(eventually(lambda: all(stream.is_asked or not stream.is_alive()
                                                       for stream in streams), 60))
                self.assertTrue(eventually(lambda: any(stream.has_begun for stream in streams), 60))
                self.assertTrue(all(stream.is_asked for stream in streams))
                for stream in streams[::2]:
                    stream.leave()
            finally:
                os.kill(prefill.pid, signal.SIGKILL)
                for stream in streams:
                    stream.join()
        failed = 0
        for stream in streams[1::2]:
            right = self.right[stream.prompt]
            if stream.error is None:
                self.assertEqual((stream.status, stream.text, stream.is_done), (200, right, True))
            else:
                failed += 1
                self.assertTrue(stream.status == 200 or stream.status >= 500, stream.error)
                self.assertTrue(right.startswith(stream.text), stream.text)
        self.assertGreater(failed, 0)  # more waited than could run
        self.expect_quiet(self.decode)
        for prompt, right in self.right.items():
            self.assertEqual(nodes.text_of(nodes.completed(self.decode, prompt, max_tokens=LONG)[1]),
                             right)

    def test_a_producer_is_killed_and_started_again_and_again(self):
        lock = threading.Lock()
        stopped = threading.Event()
        counts = {"right": 0, "failed": 0}
        wrong = []
        now = {}

        def client(prompt):
            while not stopped.wait(0.01):
                try:
                    params = nodes.prefilled(now["producer"], prompt)
                except (http.client.HTTPException, OSError, ValueError, RuntimeError):
                    continue  # it is dead, or died of this
                try:
                    status, answer = nodes.completed(self.decode, prompt, max_tokens=SHORT,
                                                     kv_transfer_params=params)
                    is_right = status == 200 and self.right[prompt].startswith(nodes.text_of(answer))
                    with lock:
                        counts["right"] += is_right
                        counts["failed"] += status >= 500
                        if not is_right and status < 500:
                            wrong.append(answer)
                except Exception as problem:  # the consumer never goes
                    with lock:
                        wrong.append(repr(problem))

        def expect_more_answers():
            enough = counts["right"] + 2 * CLIENTS
            self.assertTrue(eventually(lambda: counts["right"] >= enough or wrong, 60), counts)

        port = nodes.free_port()
        clients = [threading.Thread(target=client, args=(PROMPTS[number % len(PROMPTS)],))
                   for number in range(CLIENTS)]
        memory = []
        now["producer"] = producer(port)
        try:
            for one in clients:
                one.start()
            for kill in range(KILLS):
                expect_more_answers()
                memory.append(self.decode.resident_bytes())
                os.kill(now["producer"].pid, signal.SIGKILL)
                now["producer"].wait(10)
                now["producer"].__exit__()
                self.assertTrue(self.decode.is_running())
                if kill % 2:
                    port = nodes.free_port()
                now["producer"] = producer(port)
            expect_more_answers()
        finally:
            stopped.set()
            for one in clients:
                one.join()
            now["producer"].__exit__()
        self.assertEqual(wrong, [])
        self.expect_quiet(self.decode)
        growth = self.decode.resident_bytes() - memory[0]
        print(f"\n{KILLS} kills, {counts}, memory grew by {growth / 2**20:.1f} MiB after the first")
        self.assertLess(growth, (FAST_MIB + MORE_MIB) << 20)


if __name__ == "__main__":
    unittest.main()

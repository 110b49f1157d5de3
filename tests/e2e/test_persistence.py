"""A folder of stored prompt beginnings (--kv-disk-path) under a real server that restarts, is killed
and shares it; and a pool (--kv-remote) that forges records, hangs and dies under requests.

KAREZ_KILL_ROUNDS says how often the server is killed under load (3; a long run takes 200).
"""

import concurrent.futures
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from harness import eventually, real_server

PASSWORD = "a-secret-of-the-pool"
KILL_ROUNDS = int(os.environ.get("KAREZ_KILL_ROUNDS", "3"))


def prompt(seed, tokens):
    dice = random.Random(seed)
    return [dice.randrange(1000, 40000) for _ in range(tokens)]


def ask(server, tokens, cache=True):
    """(text, cached tokens)"""
    status, answer = server.post("/v1/completions", {
        "prompt": tokens, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "cache_prompt": cache})
    assert status == 200, answer
    return (answer["choices"][0]["text"],
            answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def wait_for_metric(server, name, at_least):
    deadline = time.monotonic() + 60
    while server.metrics()[name] < at_least:
        assert time.monotonic() < deadline, f"{name} stays below {at_least}"
        time.sleep(0.05)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def health_of(server):
    return json.loads(server.request("GET", "/health")[2])


def our_bytes(folder):
    return sum(os.path.getsize(os.path.join(at, name))
               for at, _, names in os.walk(folder) for name in names)


class Persistence(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def server(self, *flags):
        return real_server("-c", 1024, "--kv-disk-path", self.folder.name, "--kv-disk-bytes", "64MiB", *flags)

    def test_a_restarted_server_finds_prompts_and_answers_as_before(self):
        with self.server() as server:
            first = ask(server, prompt(1, 200))
            self.assertEqual(first[1], 0)
            wait_for_metric(server, "karez_kv_store_stored_blocks_total", 12)
            health = server.request("GET", "/health")[2].decode()
            self.assertIn('"kv_store":{"loads":"ok","stores":"ok"}', health)
            server.terminate()
            server.wait(20)
        with self.server() as server, self.server() as other:
            self.assertEqual(ask(server, prompt(1, 200)), (first[0], 192))
            self.assertEqual(ask(other, prompt(1, 200)), (first[0], 192))
            self.assertEqual(ask(server, prompt(1, 200), cache=False), (first[0], 0))
            self.assertEqual(server.metrics()["karez_kv_store_restored_blocks_total"], 12)
        # Another KV type has other names.
        with self.server("-ctk", "q8_0", "-ctv", "q8_0") as server:
            self.assertEqual(ask(server, prompt(1, 200))[1], 0)

    def test_all_damaged_files_of_a_prompt_are_whole_after_it_was_asked_once(self):
        with self.server() as server:
            wanted = ask(server, prompt(4, 200))[0]
            wait_for_metric(server, "karez_kv_store_stored_blocks_total", 12)
            server.terminate()
            server.wait(20)
        files = sorted(os.path.join(at, name) for at, _, names in os.walk(self.folder.name)
                       for name in names if name.endswith(".kv"))
        self.assertEqual(len(files), 12)
        damaged, whole = files[::2], files[1::2]
        for path in damaged:
            with open(path, "r+b") as file:
                file.seek(1000)
                byte = file.read(1)[0]
                file.seek(1000)
                file.write(bytes([byte ^ 1]))
        inodes = [os.stat(path).st_ino for path in whole]
        with self.server() as server:
            text, cached = ask(server, prompt(4, 200))
            self.assertEqual(text, wanted)
            self.assertLess(cached, 192)
            server.terminate()
            server.wait(20)
        self.assertEqual([os.stat(path).st_ino for path in whole], inodes)  # these were not written
        with self.server() as server:
            self.assertEqual(ask(server, prompt(4, 200)), (wanted, 192))
            self.assertEqual(server.metrics()["karez_kv_store_bad_records_total"], 0)

    def certificate(self, name):
        """(certificate, key): files; its own CA, for this machine."""
        files = [os.path.join(self.folder.name, f"{name}.{kind}") for kind in ("pem", "key")]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                        "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
        return files

    def test_two_nodes_share_a_pool_behind_tls_that_may_vanish(self):
        port = free_port()
        certificate, key = self.certificate("pool")
        pool = subprocess.Popen(["redis-server", "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1",
                                 "--tls-cert-file", certificate, "--tls-key-file", key,
                                 "--tls-ca-cert-file", certificate, "--save", "", "--dir", self.folder.name,
                                 "--user", "node", "on", f">{PASSWORD}", "~karez:*",
                                 "+exists", "+getrange", "+set", "+del"], stdout=subprocess.DEVNULL)
        self.addCleanup(pool.wait)
        self.addCleanup(pool.kill)
        flags = ("-c", 1024, "--kv-remote", f"rediss://node:{PASSWORD}@127.0.0.1:{port}",
                 "--kv-remote-cert", certificate, "--kv-remote-key", key, "--kv-remote-ca")
        with real_server(*flags, certificate) as server, real_server(*flags, certificate) as other, \
                real_server(*flags, self.certificate("stranger")[0]) as stranger:
            first = ask(server, prompt(2, 200))
            wait_for_metric(server, "karez_kv_store_stored_blocks_total", 12)
            self.assertEqual(ask(other, prompt(2, 200)), (first[0], 192))
            # A server that trusts somebody else does not believe this pool, and computes.
            self.assertEqual(ask(stranger, prompt(2, 200)), (first[0], 0))
            wait_for_metric(stranger, "karez_kv_store_stores_stopped", 1)
            self.assertEqual(health_of(stranger)["status"], "ok")
            self.assertEqual(health_of(stranger)["kv_store"]["stores"], "stopped")
            said = "".join(stranger.request("GET", path)[2].decode()
                           for path in ("/health", "/metrics", "/karez/stats", "/props"))
            pool.kill()
            pool.wait()
            for seed in range(3, 6):
                text, cached = ask(other, prompt(seed, 40))
                self.assertEqual((text, cached), (ask(other, prompt(seed, 40), cache=False)[0], 0))
            # Each of these has asked in vain.
            self.assertEqual(health_of(other)["status"], "ok")
            self.assertEqual(health_of(other)["kv_store"]["loads"], "stopped")
        log = "".join(stranger.output + other.output)
        self.assertIn("its certificate is not accepted", log)
        self.assertNotIn(PASSWORD, said + log)

    def test_kills_under_load_leave_nothing_wrong(self):
        prompts = [prompt(seed, 80 + 30 * (seed % 4)) for seed in range(8)]
        with self.server() as server:
            wanted = [ask(server, tokens, cache=False)[0] for tokens in prompts]
        dice = random.Random(7)
        found = 0
        for round_number in range(KILL_ROUNDS):
            with self.server() as server:
                for number in dice.sample(range(len(prompts)), len(prompts)):
                    text, cached = ask(server, prompts[number])
                    self.assertEqual(text, wanted[number], f"round {round_number}, prompt {number}")
                    found += cached
                self.assertEqual(server.metrics()["karez_kv_store_bad_records_total"], 0)

                is_killed = threading.Event()
                failures = []  # before that; two clients are too few to be refused

                def load(seed):
                    try:
                        for at in range(100):
                            ask(server, prompt(1000 * seed + at, 100))
                    except Exception as error:  # of a dead server comes any: half an answer, too
                        if not is_killed.is_set():
                            failures.append(repr(error))

                clients = [threading.Thread(target=load, args=(10 * round_number + i,)) for i in range(2)]
                for client in clients:
                    client.start()
                time.sleep(dice.uniform(0.02, 0.6))
                self.assertTrue(server.is_running(), "it crashed under load")
                is_killed.set()
                # The end of the block kills it.
            for client in clients:
                client.join()
            self.assertEqual(server.wait(0), -signal.SIGKILL, "how it ended")
            self.assertEqual(failures, [])
            self.assertLessEqual(our_bytes(self.folder.name), 64 << 20)
        self.assertGreater(found, 0)
        with self.server() as server:
            for number, tokens in enumerate(prompts):
                self.assertEqual(ask(server, tokens)[0], wanted[number])
            self.assertEqual(os.listdir(os.path.join(self.folder.name, "karez-v1", "tmp")), [])


class Pool(unittest.TestCase):
    """A real Redis whose records the test changes, and which hangs and dies under requests."""

    BLOCKS = 7  # of a prompt

    def setUp(self):
        self.port = free_port()
        self.pool = subprocess.Popen(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1",
                                      "--save", ""], stdout=subprocess.DEVNULL)
        self.addCleanup(self.pool.wait)
        self.addCleanup(self.pool.kill)  # also one that is stopped
        self.assertTrue(eventually(self.is_there, 20))
        self.prompts = [prompt(seed, 16 * self.BLOCKS + 8) for seed in range(100, 108)]

    def is_there(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def redis(self, *words):
        """What redis-cli prints."""
        done = subprocess.run(["redis-cli", "-p", str(self.port), *map(str, words)], check=True,
                              capture_output=True, text=True, timeout=20)
        return done.stdout.strip()

    def server(self):
        # f32 keys and values: a batch then rounds like a request alone.
        return real_server("-c", 1024, "-ctk", "f32", "-ctv", "f32",
                           "--kv-remote", f"redis://127.0.0.1:{self.port}")

    def fill(self, count):
        """The answers to so many prompts, computed; these are in the pool then."""
        with self.server() as writer:
            wanted = [ask(writer, tokens, cache=False)[0] for tokens in self.prompts[:count]]
            for tokens, text in zip(self.prompts, wanted):
                self.assertEqual(ask(writer, tokens), (text, 0))
            self.assertTrue(eventually(lambda: int(self.redis("DBSIZE")) == count * self.BLOCKS, 60))
        return wanted

    def test_records_that_somebody_has_changed_in_it_are_not_believed(self):
        wanted = self.fill(2)
        keys = sorted(self.redis("KEYS", "karez:1:*").split())
        self.assertEqual(len(keys), 2 * self.BLOCKS)
        size = int(self.redis("STRLEN", keys[0]))
        places = (0, 40, size // 2, size - 1)
        for at, key in enumerate(keys[::2]):
            bit = 8 * places[at % len(places)]
            self.redis("SETBIT", key, bit, 1 - int(self.redis("GETBIT", key, bit)))
        self.redis("SETRANGE", keys[1], 1000, "not the keys and values of these tokens")
        self.redis("APPEND", keys[3], "x")
        with self.server() as reader:
            found = 0
            for tokens, text in zip(self.prompts, wanted):
                answer, cached = ask(reader, tokens)
                self.assertEqual(answer, text)
                found += cached
            self.assertLess(found, len(wanted) * 16 * self.BLOCKS)
            self.assertGreater(reader.metrics()["karez_kv_store_bad_records_total"], 0)
            self.assertEqual(health_of(reader)["kv_store"], {"loads": "ok", "stores": "ok"})
            reader.terminate()  # what it has computed is stored by then
            reader.wait(20)
        with self.server() as reader:
            for tokens, text in zip(self.prompts, wanted):
                self.assertEqual(ask(reader, tokens), (text, 16 * self.BLOCKS))
            self.assertEqual(reader.metrics()["karez_kv_store_bad_records_total"], 0)

    def ask_while_it_hangs(self, server, numbers, then):
        """The answers to prompts that wait for a stopped pool, when `then` happens to it."""
        self.pool.send_signal(signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(len(numbers)) as clients:
            asked = [clients.submit(ask, server, self.prompts[number]) for number in numbers]

            def are_there():
                stats = server.stats()
                return stats["requests_running"] + stats["requests_waiting"] == len(numbers)

            try:
                self.assertTrue(eventually(are_there, 4))
            finally:
                self.pool.send_signal(then)
            return [one.result() for one in asked]

    def test_it_hangs_and_dies_under_requests_for_what_is_in_it(self):
        wanted = self.fill(len(self.prompts))
        in_pool = 16 * self.BLOCKS
        with self.server() as reader:
            self.assertEqual(ask(reader, self.prompts[0]), (wanted[0], in_pool))
            answers = self.ask_while_it_hangs(reader, range(1, 4), signal.SIGCONT)
            self.assertEqual([text for text, _ in answers], wanted[1:4])
            self.assertGreater(sum(cached for _, cached in answers), 0)
            answers = self.ask_while_it_hangs(reader, range(4, 8), signal.SIGKILL)
            self.assertEqual(answers, [(text, 0) for text in wanted[4:]])
            self.pool.wait()
            for tokens, text in zip(self.prompts, wanted):  # of its memory now
                self.assertEqual(ask(reader, tokens), (text, in_pool))
            for seed in range(200, 203):
                text, cached = ask(reader, prompt(seed, 40))
                self.assertEqual((text, cached), (ask(reader, prompt(seed, 40), cache=False)[0], 0))
            health = health_of(reader)
            self.assertEqual((health["status"], health["kv_store"]["loads"]), ("ok", "stopped"))


if __name__ == "__main__":
    unittest.main()

"""Prefill and decode in different processes: same answers, and what becomes of them when the link
or a node fails."""

import http.client
import json
import os
import signal
import socket
import unittest

import harness
from fault_proxy import FaultProxy
from harness import eventually

# Some 330 tokens, of which the consumer's attention reads 128: most of the KV is read late or never.
PROMPT = "The ships that the keeper counted, one a line, with what they carried.\n" + "\n".join(
    f"{number}. The {name} from {port} with {cargo}." for number, (name, port, cargo) in enumerate(
        [("Albatross", "Bergen", "salted herring"), ("Boreas", "Lisbon", "cork and wine"),
         ("Clara", "Riga", "flax"), ("Dolphin", "Cardiff", "coal"), ("Elbe", "Hamburg", "pianos"),
         ("Fortune", "Smyrna", "figs"), ("Gudrun", "Malmo", "timber"), ("Hope", "Cork", "butter"),
         ("Iris", "Genoa", "marble"), ("Juno", "Odessa", "wheat"), ("Kestrel", "Hull", "wool"),
         ("Leda", "Cadiz", "salt"), ("Mary", "Boston", "tobacco"), ("Nereid", "Naples", "lemons")],
        start=1)) + "\n15. The"
MAX_TOKENS = 24
LONG = 200  # of an answer during which something happens
ANSWER = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
MODEL_FLAGS = ("-c", 1024, "-np", 4, "-t", 2, "--token-budget", 128, "--recent-window", 32,
               "--kv-host-bytes", "64MiB")
# Everything in messages, so that a proxy sees it; a short lease, so that nobody waits long.
PEER_FLAGS = ("--kv-transports", "tcp", "--kv-lease", 3)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def started(*flags, model=MODEL_FLAGS):
    server = harness.real_server(*model, *flags)
    if not eventually(lambda: server.request("GET", "/health")[0] == 200, 60):
        server.__exit__()
        raise RuntimeError(f"no model after a minute: {flags}")
    return server


def producer(*flags, port=0):
    return started("--kv-role", "kv_producer", "--kv-port", port, *flags)


# kv_both, because a consumer waits for a prompt's KV as long as its own lease is.
def consumer(*flags):
    return started("--kv-role", "kv_both", "--kv-port", 0, "--no-prefix-cache", *flags)


def prefilled(node, prompt=PROMPT):
    """The kv_transfer_params of a prompt that the node has prefilled."""
    status, answer = node.post("/v1/completions", {
        **ANSWER, "prompt": prompt, "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}})
    if status != 200:
        raise RuntimeError(answer)
    return answer["kv_transfer_params"]


def completed(node, prompt=PROMPT, **fields):
    return node.post("/v1/completions", {**ANSWER, "prompt": prompt, **fields})


def late_of(metrics):
    """Blocks that were on their way when they were needed, which are counted as misses too."""
    return metrics['karez_lookahead_late_blocks_total{source="probe"}']


def text_of(answer):
    if "choices" not in answer:
        raise AssertionError(answer)
    return answer["choices"][0]["text"]


class Disaggregated(unittest.TestCase):

    def expect_quiet(self, node):
        """A consumer is well, and nothing is left of requests that have ended."""
        self.assertEqual(json.loads(node.request("GET", "/health")[2])["status"], "ok")
        for name in ("karez_kv_slots_used", "karez_kv_home_used_bytes", "karez_kv_peer_leases",
                     "karez_kv_export_held"):
            self.assertTrue(eventually(lambda: node.metrics().get(name, 0) == 0, 20),
                            (name, node.metrics().get(name)))


class Answers(Disaggregated):

    def test_through_the_router_they_are_those_of_one_process(self):
        for admit in ("full", "sparse"):
            with self.subTest(admit), producer() as prefill, \
                    consumer("--kv-admit", admit) as decode, \
                    harness.Server([os.environ["KAREZ_BINARY"], "route", "--port", "0",
                                    "--prefill", prefill.url, "--decode", decode.url]) as front:
                status, alone = completed(decode)
                self.assertEqual((status, decode.metrics()["karez_kv_admit_requests_total"]),
                                 (200, 0))
                for _ in range(2):
                    status, answer = completed(front)
                    self.assertEqual(status, 200, answer)
                    self.assertEqual(answer["choices"], alone["choices"])
                    prompt_tokens = alone["usage"]["prompt_tokens"]
                    self.assertEqual(answer["usage"]["prompt_tokens"], prompt_tokens)
                    self.assertEqual(answer["usage"]["completion_tokens"], MAX_TOKENS)
                    # Nothing of the prompt was computed again.
                    self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"],
                                     prompt_tokens)
                metrics = decode.metrics()
                self.assertEqual(metrics["karez_kv_admit_requests_total"], 2)
                taken = (metrics["karez_kv_admit_bytes_total"]
                         / metrics["karez_kv_admit_full_bytes_total"])
                self.assertTrue(taken < 0.8 if admit == "sparse" else taken >= 1, taken)
                if admit == "sparse":
                    # What the producer has found that the first step reads was on its way by then.
                    named, useful, late = (
                        metrics[f'karez_lookahead_{name}_blocks_total{{source="probe"}}']
                        for name in ("predicted", "useful", "late"))
                    self.assertGreater(named, 0)
                    self.assertGreaterEqual(useful + late, 0.9 * named)
                    # Those of all layers; the tokens behind it read a few that are new to them.
                    first = decode.metrics()
                    self.assertEqual(completed(front, max_tokens=2)[0], 200)
                    then = decode.metrics()
                    self.assertEqual(then["karez_kv_demand_misses_total"]
                                     - first["karez_kv_demand_misses_total"], late_of(then) - late_of(first))
                self.expect_quiet(decode)
                self.assertTrue(eventually(
                    lambda: prefill.metrics()["karez_kv_export_held"] == 0, 20))

    def test_one_sided_reads_over_a_network_give_them_too(self):
        ways = ("--kv-transports", "ucx,tcp")
        with producer("--kv-transports", "shm,ucx,tcp") as prefill, \
                consumer("--kv-admit", "sparse", *ways) as decode, \
                consumer("--kv-admit", "sparse", "--kv-transports", "tcp") as without:
            right = text_of(completed(decode)[1])
            sent = []
            for node in (decode, without):
                before = prefill.metrics().get("karez_kv_export_sent_bytes_total", 0)
                status, answer = completed(node, kv_transfer_params=prefilled(prefill))
                self.assertEqual((status, text_of(answer)), (200, right))
                self.expect_quiet(node)
                sent.append(prefill.metrics()["karez_kv_export_sent_bytes_total"] - before)
            blocks = [node.metrics()["karez_kv_peer_read_blocks_total"] for node in (decode, without)]
            self.assertGreater(blocks[0], 0)
            self.assertGreater(blocks[1], 0)
            # Only the one without has its blocks in messages; a manifest comes in one for both.
            self.assertGreater(sent[1] - sent[0], 0.9 * 4096 * blocks[1])

    def test_in_four_bits_they_come_with_a_quarter_of_the_bytes(self):
        with producer() as prefill, consumer() as native, \
                consumer("--kv-wire-type", "r4") as coded:
            taken = {}
            for name, decode in (("native", native), ("r4", coded)):
                status, answer = completed(decode, kv_transfer_params=prefilled(prefill))
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["usage"]["completion_tokens"], MAX_TOKENS)
                metrics = decode.metrics()
                # Besides blocks a manifest travels: its places, the key index and the logits.
                blocks = metrics["karez_kv_peer_read_blocks_total"]
                taken[name] = metrics["karez_kv_admit_bytes_total"] / blocks
                self.expect_quiet(decode)
            self.assertAlmostEqual((taken["native"] - taken["r4"]) / 4096, 1 - 1096 / 4096, 2)
            right = text_of(completed(native)[1])
            # What is computed here is not what came in 4 bits.
            self.assertEqual(text_of(completed(coded)[1]), right)
            self.assertTrue(eventually(
                lambda: prefill.metrics()["karez_kv_export_held"] == 0, 20))


class Faults(Disaggregated):

    FAULTS = (("cut", 0.1), ("cut", 0.5), ("cut", 0.99), ("stall", 0.5), ("flip", 0.5), ("drop", 0.5),
              ("reset", 0.5), ("length", 0.5), ("upward", 0.5))

    @classmethod
    def setUpClass(cls):
        cls.prefill = producer(*PEER_FLAGS)
        cls.addClassCleanup(cls.prefill.__exit__)

    def through(self, decode, fault=None, after_bytes=0):
        """(proxy, status, answer): a request whose KV takes the way through a proxy."""
        params = prefilled(self.prefill)
        with FaultProxy(params["remote_port"], fault, after_bytes) as proxy:
            status, answer = completed(decode, kv_transfer_params={
                **params, "remote_port": proxy.port})
            return proxy, status, answer

    def expect_producer_quiet(self, home_bytes=None):
        """It holds nothing for anybody, and at most so much at home."""
        def is_quiet():
            now = self.prefill.metrics()
            return (now["karez_kv_export_held"] == 0 and now["karez_kv_slots_used"] == 0
                    and (home_bytes is None or now["karez_kv_home_used_bytes"] <= home_bytes))

        self.assertTrue(eventually(is_quiet, 20), self.prefill.metrics())

    def expect_faults_survived(self, admit, policy):
        with consumer(*PEER_FLAGS, "--kv-admit", admit, "--kv-load-failure", policy) as decode:
            right = text_of(completed(decode)[1])
            clean, status, answer = self.through(decode)
            self.assertEqual((status, text_of(answer)), (200, right))
            self.expect_producer_quiet()
            home_bytes = self.prefill.metrics()["karez_kv_home_used_bytes"]  # of its prefix cache
            for fault, share in self.FAULTS:
                with self.subTest(fault=fault, share=share):
                    proxy, status, answer = self.through(decode, fault,
                                                         int(clean.bytes_down * share))
                    # An answer with sparse attention may need no more than what has come by then,
                    # and nothing of a frame with what was read ahead.
                    may_be_spared = admit == "sparse" and (share == 0.99 or fault == "drop")
                    self.assertTrue(proxy.has_struck or may_be_spared)
                    is_spared = may_be_spared and status == 200
                    if policy == "recompute" or is_spared:
                        self.assertEqual(status, 200, answer)
                        self.assertEqual(text_of(answer), right)
                    else:
                        self.assertGreaterEqual(status, 500, answer)
                        self.assertRegex(answer["error"]["message"],
                                         "closed the connection|connection broke|"
                                         "could not be read|did not come|lease has ended|"
                                         "nothing of the prompt's KV came|"
                                         "port [0-9]+: the producer of the prompt's KV is gone")
                    self.expect_quiet(decode)
                    self.assertEqual(text_of(completed(decode)[1]), right)
            self.expect_producer_quiet(home_bytes)
            self.assertEqual(text_of(completed(self.prefill)[1]), right)
            self.assertEqual(text_of(self.through(decode)[2]), right)
            self.expect_producer_quiet()

    def test_a_full_transfer_that_fails_is_an_error(self):
        self.expect_faults_survived("full", "fail")

    def test_a_full_transfer_that_fails_is_computed_again(self):
        self.expect_faults_survived("full", "recompute")

    def test_a_sparse_transfer_that_fails_is_an_error(self):
        self.expect_faults_survived("sparse", "fail")

    def test_a_sparse_transfer_that_fails_is_computed_again(self):
        self.expect_faults_survived("sparse", "recompute")


class Leases(Disaggregated):

    def test_a_prompt_that_nobody_fetched_in_time_is_an_error_or_computed_again(self):
        with producer("--kv-lease", 1) as prefill:
            params = prefilled(prefill)

            def has_ended():
                now = prefill.metrics()
                return (now["karez_kv_export_expired_total"], now["karez_kv_export_held"]) == (1, 0)

            self.assertTrue(eventually(has_ended, 20), prefill.metrics())
            for admit, policy in (("sparse", "fail"), ("full", "recompute")):
                with self.subTest(admit=admit, policy=policy), \
                        consumer("--kv-admit", admit, "--kv-load-failure", policy) as decode:
                    right = text_of(completed(decode)[1])
                    status, answer = completed(decode, kv_transfer_params=params)
                    if policy == "fail":
                        self.assertEqual((status, answer["error"]["code"]),
                                         (503, "kv_transfer_failed"), answer)
                        self.assertIn("not exported", answer["error"]["message"])
                    else:
                        self.assertEqual((status, text_of(answer)), (200, right))
                        self.assertEqual(decode.metrics()["karez_kv_admit_failed_total"], 1)
                    self.expect_quiet(decode)
                    # Neither node holds it against the other.
                    status, answer = completed(decode, kv_transfer_params=prefilled(prefill))
                    self.assertEqual((status, text_of(answer)), (200, right))
                    self.expect_quiet(decode)


class Deaths(Disaggregated):
    """With shared memory, which outlives the process that made it."""

    def begun(self, node, params):
        """The lines of a stream whose first token has come."""
        connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps(
            {**ANSWER, "max_tokens": LONG, "prompt": PROMPT, "stream": True,
             "kv_transfer_params": params}))
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        first = response.readline()
        self.assertTrue(first.startswith(b"data: {"), first)
        return first, response

    @staticmethod
    def rest_of(begun):
        """(text, error or None)"""
        data, response = begun
        try:
            while line := response.readline():
                data += line
        except (http.client.HTTPException, OSError):
            pass
        events = [event for event in harness.sse_events(data) if event]
        error = next((event["error"] for event in events if "error" in event), None)
        return "".join(choice["text"] for event in events for choice in event.get("choices", [])), error

    def test_a_producer_dies_in_mid_answer_and_comes_back(self):
        port = free_port()
        decoders = {policy: consumer("--kv-admit", "sparse", "--kv-load-failure", policy)
                    for policy in ("fail", "recompute")}
        for decode in decoders.values():
            self.addCleanup(decode.__exit__)
        right = text_of(completed(decoders["fail"], max_tokens=LONG)[1])
        with producer(port=port) as prefill:
            old = prefilled(prefill)
            begun = {policy: self.begun(decode, prefilled(prefill))
                     for policy, decode in decoders.items()}
            os.kill(prefill.pid, signal.SIGKILL)
            prefill.wait(10)
            for policy, one in begun.items():
                text, error = self.rest_of(one)
                self.assertTrue(right.startswith(text), (policy, text))
                if policy == "recompute" or error is None:
                    self.assertEqual((text, error), (right, None))
                else:
                    self.assertIn("could not be read", error["message"])
        for decode in decoders.values():
            self.expect_quiet(decode)
            self.assertEqual(text_of(completed(decode, max_tokens=LONG)[1]), right)
        with producer(port=port) as prefill:
            # What the dead process has promised is nothing that the new one knows.
            status, answer = completed(decoders["fail"], kv_transfer_params=old)
            self.assertGreaterEqual(status, 500, answer)
            self.assertIn("not exported", answer["error"]["message"])
            status, answer = completed(decoders["recompute"], kv_transfer_params=old)
            self.assertEqual((status, right.startswith(text_of(answer))), (200, True), answer)
            for decode in decoders.values():
                status, answer = completed(decode, max_tokens=LONG,
                                           kv_transfer_params=prefilled(prefill))
                self.assertEqual((status, text_of(answer)), (200, right), answer)
                self.expect_quiet(decode)

    def test_a_consumer_dies_in_mid_answer_and_another_takes_its_place(self):
        with producer("--kv-lease", 2) as prefill:
            with consumer("--kv-admit", "sparse") as decode:
                self.begun(decode, prefilled(prefill))
                self.assertEqual(prefill.metrics()["karez_kv_export_held"], 1)
                os.kill(decode.pid, signal.SIGKILL)
                decode.wait(10)
            with consumer("--kv-admit", "sparse") as decode:
                status, answer = completed(decode, kv_transfer_params=prefilled(prefill))
                self.assertEqual((status, text_of(answer)), (200, text_of(completed(decode)[1])))
                self.expect_quiet(decode)
            self.assertTrue(eventually(
                lambda: prefill.metrics()["karez_kv_export_held"] == 0, 20))
            self.assertEqual(prefill.metrics()["karez_kv_export_expired_total"], 1)


if __name__ == "__main__":
    unittest.main()

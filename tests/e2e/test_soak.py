"""Many mixed requests with clients that leave at random, against a real model.

KAREZ_SOAK_REQUESTS: how many (default 60; the release check runs 2,000).
"""

import http.client
import json
import os
import random
import threading
import unittest

from harness import eventually, real_server

COUNT = int(os.environ.get("KAREZ_SOAK_REQUESTS", "60"))
CLIENTS = 12
# Fields that must not change the text of a greedy answer.
EXTRAS = ({}, {}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}, {"cache_prompt": False},
          {"priority": -1}, {"cache_salt": "s"}, {"stop": ["\u2603", "no such text"]})


class Soak(unittest.TestCase):
    def test_it_ends_with_every_slot_free_and_every_answer_right(self):
        # f32 keys and values: a batch then rounds like a request alone. Little room for them, so that
        # it is all in use before the memory is looked at.
        with real_server("-np", 8, "-c", 512, "-t", 2, "-ctk", "f32", "-ctv", "f32", "--max-queue",
                         64, "--kv-fast-bytes", "64MiB") as server:
            prompts = [f"Tell me a fact about the number {i}. " + "Think well. " * (i % 7)
                       for i in range(12)]
            for token in range(1000, 1004):  # touches every page of the store
                server.post("/v1/completions", {"prompt": [token] * 500, "max_tokens": 1})
            alone = [self.answer(server, prompt) for prompt in prompts]
            wrong, left, refused = [], [], []

            def client(seed):
                dice = random.Random(seed)
                for _ in range(-(-COUNT // CLIENTS // 2)):
                    if dice.random() < 0.05:
                        refused.append(server.chat("x", temperature="hot")[0])
                        continue
                    index = dice.randrange(len(prompts))
                    leaves = dice.random() < 0.3
                    answer = self.answer(server, prompts[index], dice, leaves)
                    if answer is None:
                        left.append(index)
                    elif answer != alone[index]:
                        wrong.append((index, answer, alone[index]))

            problems = []

            def run(seed):
                try:
                    client(seed)
                except Exception as problem:  # the test fails with it, below
                    problems.append(repr(problem))

            def run_half(half):
                threads = [threading.Thread(target=run, args=(half * CLIENTS + i,))
                           for i in range(CLIENTS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return server.resident_bytes()

            memory = [run_half(half) for half in (0, 1)]
            self.assertEqual(problems, [])
            self.assertEqual(wrong, [])
            self.assertTrue(left)
            self.assertEqual(set(refused) - {400}, set())

            def idle():
                stats = server.stats()
                return not (stats["requests_running"] or stats["requests_waiting"]
                            or stats["slots_used"])
            self.assertTrue(eventually(idle, 5), server.stats())
            growth = memory[1] - memory[0]
            print(f"\n{COUNT} requests, {len(left)} clients left early, {len(refused)} were wrong, "
                  f"{server.stats()['preemptions']} preemptions, memory grew by "
                  f"{growth / 2**20:.1f} MiB in the second half")
            self.assertLess(growth, 32 << 20)
            server.terminate()
            self.assertEqual(server.wait(15), 0)

    def answer(self, server, prompt, dice=None, leaves=False):
        """The text of the answer; None if this client left early."""
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0,
                "max_tokens": 16, "stream": bool(leaves or (dice and dice.random() < 0.5)),
                **(dice.choice(EXTRAS) if dice else {})}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            if leaves and dice.random() < 0.5:
                return None
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            if leaves:
                response.read(dice.randrange(1, 900))
                return None
            data = response.read().decode()
            if not body["stream"]:
                return json.loads(data)["choices"][0]["message"]["content"]
            events = [json.loads(line[6:]) for line in data.split("\n\n")
                      if line.startswith("data: {")]
            return "".join(e["choices"][0]["delta"].get("content", "") for e in events
                           if e["choices"][0]["index"] == 0)
        finally:
            connection.close()


if __name__ == "__main__":
    unittest.main()

"""A folder of stored prompt beginnings that two servers write at once."""

import concurrent.futures
import os
import tempfile
import unittest

from harness import eventually, real_server
from test_persistence import ask, health_of, our_bytes, prompt, wait_for_metric

CAP = 16 << 20
# f32 keys and values: a batch then rounds like a request alone.
FLAGS = ("-c", "1024", "-t", "1", "-ctk", "f32", "-ctv", "f32")
BLOCK_FILE = 738 << 10  # about what a block takes with these


class TwoServers(unittest.TestCase):

    def test_both_write_and_both_clear_room_and_every_answer_is_right(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = (*FLAGS, "--kv-disk-path", folder, "--kv-disk-bytes", CAP)
            prompts = [prompt(seed, 56 + 16 * (seed % 3)) for seed in range(8)]  # 3 to 5 blocks each
            with real_server(*flags) as one, real_server(*flags) as other:
                wanted = [ask(one, tokens, cache=False)[0] for tokens in prompts]

                def client(server, order):
                    return [(number, ask(server, prompts[number])[0]) for number in order]

                with concurrent.futures.ThreadPoolExecutor(4) as clients:
                    orders = [list(range(8)), list(range(7, -1, -1)), [n * 3 % 8 for n in range(8)],
                              [n * 5 % 8 for n in range(8)]]
                    running = [clients.submit(client, server, order)
                               for server, order in zip((one, other, one, other), orders)]
                    for answers in running:
                        for number, text in answers.result():
                            self.assertEqual(text, wanted[number], number)
                for server in (one, other):
                    wait_for_metric(server, "karez_kv_store_stored_blocks_total", 1)
                    self.assertEqual(server.metrics()["karez_kv_store_bad_records_total"], 0)
                    self.assertEqual(health_of(server)["kv_store"], {"loads": "ok", "stores": "ok"})
                    server.terminate()
                for server in (one, other):
                    server.wait(20)
            # Each may be over it by so much before it sees the other's files.
            self.assertLessEqual(our_bytes(folder), CAP + 2 * max(CAP // 16, 16 * BLOCK_FILE))
            with real_server(*flags) as heir:
                # What was being written when the two ended is deleted by the next one's scan.
                self.assertTrue(eventually(
                    lambda: not os.listdir(os.path.join(folder, "karez-v1", "tmp")), 20))
                found = 0
                for tokens, text in zip(prompts, wanted):
                    answer, cached = ask(heir, tokens)
                    self.assertEqual(answer, text)
                    found += cached
                self.assertGreater(found, 0)
                self.assertEqual(heir.metrics()["karez_kv_store_bad_records_total"], 0)


if __name__ == "__main__":
    unittest.main()

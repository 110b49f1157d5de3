"""Compression of answers as users switch it on: flags of generate and serve, a field of a request,
ways that karez eval compares, and a number that only the archive still has."""

import json
import os
import subprocess
import tempfile
import unittest

from harness import real_server

KAREZ = os.environ["KAREZ_BINARY"]
MODEL = os.environ["KAREZ_MODEL"]
FILLER = "/usr/share/common-licenses/GPL-3"  # a text of 7,000 tokens that every Debian has
ROWS = 30 * 3  # layers and KV heads of the model

WINDOW = 64
KEPT = 16
SMALL = ["--compress", "--compress-window", str(WINDOW), "--compress-recent", "32", "--compress-keep", "0.25"]
# Behind a prompt that ends within a block: three windows, 32 tokens and less than a window.
TOKENS = 250
WINDOWS = 3


def run(arguments):
    """(the JSON that the command wrote, standard output)"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        result = subprocess.run([KAREZ, *arguments, "-m", MODEL, "-t", "2", "--json", path],
                                capture_output=True, stdin=subprocess.DEVNULL)
        if result.returncode != 0:
            raise AssertionError(f"{arguments}: {result.stderr.decode(errors='replace')}")
        with open(path) as file:
            return json.load(file), result.stdout.decode()


class Generate(unittest.TestCase):
    def generate(self, *flags):
        report, text = run(["generate", "-p", "Write a long story about a lighthouse.", "-n", str(TOKENS),
                            "--ignore-eos", "--temp", "0", *flags])
        return report["runs"][0], text

    def test_what_is_not_kept_is_archived_or_dropped(self):
        dense, dense_text = self.generate()
        self.assertNotIn("compression", dense)
        used = {"dense": dense["kv_used_bytes"]}
        for archive, fate, other in (("off", "dropped", "archived"), ("r4", "archived", "dropped")):
            with self.subTest(archive=archive):
                compressed, text = self.generate(*SMALL, "--compress-archive", archive)
                figures = compressed["compression"]
                self.assertEqual(figures["windows"], WINDOWS)
                self.assertEqual(figures["pairs_kept"], WINDOWS * KEPT * ROWS)
                self.assertEqual(figures[f"pairs_{fate}"], WINDOWS * (WINDOW - KEPT) * ROWS)
                self.assertEqual(figures[f"pairs_{other}"], 0)
                self.assertEqual(figures["pairs_brought_back"] > 0, archive == "r4")
                self.assertGreater(figures["seconds"], 0)
                self.assertEqual(compressed["generated_tokens"], TOKENS)
                used[archive] = compressed["kv_used_bytes"]
                self.assertEqual(used["dense"] - used[archive], figures["bytes_saved"])
                # The first window is compressed behind 96 tokens, each of a letter at least.
                same = os.path.commonprefix([dense_text, text])
                self.assertGreater(len(same), WINDOW + 32)
        self.assertLess(used["off"], used["r4"])
        self.assertLess(used["r4"], used["dense"])


class Serve(unittest.TestCase):
    def complete(self, server, **fields):
        status, answer = server.post("/v1/completions", {
            "prompt": "Once upon a time there was a lighthouse", "max_tokens": TOKENS, "ignore_eos": True,
            "temperature": 0, **fields})
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["usage"]["completion_tokens"], TOKENS)

    def figures(self, server):
        metrics = server.metrics()
        pairs = {fate: metrics[f'karez_compression_pairs_total{{fate="{fate}"}}'] / ROWS
                 for fate in ("kept", "archived", "dropped")}
        return metrics["karez_compressed_windows_total"], pairs, metrics

    def test_a_request_asks_for_it(self):
        with real_server("-t", 2, "--compress-recent", 32) as server:
            self.complete(server)
            windows, pairs, metrics = self.figures(server)
            self.assertEqual(windows, 0)
            self.assertEqual(set(pairs.values()), {0})
            self.assertEqual(metrics["karez_compression_saved_bytes_total"], 0)
            self.complete(server, kv_compression={"keep": 0.25, "window": WINDOW})
            windows, pairs, metrics = self.figures(server)
            self.assertEqual(windows, WINDOWS)
            self.assertEqual(pairs, {"kept": WINDOWS * KEPT, "archived": WINDOWS * (WINDOW - KEPT),
                                     "dropped": 0})
            self.assertEqual(metrics["karez_compression_early_windows_total"], 0)
            for name in ("brought_back_pairs_total", "saved_bytes_total", "seconds_total"):
                self.assertGreater(metrics[f"karez_compression_{name}"], 0, name)
            # Another ratio and window than those of the request before.
            self.complete(server, kv_compression={"keep": 0.5, "window": 2 * WINDOW})
            more, kept, _ = self.figures(server)
            self.assertEqual(more - windows, 1)
            self.assertEqual(kept["kept"] - pairs["kept"], WINDOW)

    def test_a_server_does_it_unless_a_request_says_otherwise(self):
        with real_server("-t", 2, *SMALL, "--compress-archive", "off") as server:
            self.complete(server)
            windows, pairs, _ = self.figures(server)
            self.assertEqual(windows, WINDOWS)
            self.assertEqual(pairs, {"kept": WINDOWS * KEPT, "archived": 0,
                                     "dropped": WINDOWS * (WINDOW - KEPT)})
            self.complete(server, kv_compression=False)
            self.assertEqual(self.figures(server)[0], WINDOWS)


class Eval(unittest.TestCase):
    def test_every_way_to_choose_has_a_row(self):
        report, table = run(["eval", "--generate", "--file", __file__, "--length", "320",
                             "--decode-tokens", "64", "--compress-score", "all", "--compress-chunk", "all",
                             "--compress-keep", "0.5", "--compress-window", "64", "--compress-recent", "32"])
        chunks = ("token2chunk", "none", "fixed=16")
        ways = [(mode["compression"]["score"], mode["compression"]["chunk"]) for mode in report["modes"]]
        self.assertEqual(sorted(ways), sorted(
            [(score, chunk) for score in ("bidirectional", "causal", "last-queries", "random")
             for chunk in chunks] + [("recent", "none")]))
        for way, mode in zip(ways, report["modes"]):
            with self.subTest(way=way):
                self.assertEqual(mode["compression"]["kept_tokens"], 32)
                document, = mode["documents"]
                self.assertEqual(document["figures"]["tokens"], 64)
                self.assertEqual(document["compressed"]["windows"], 3)
        self.assertEqual(sum(os.path.basename(__file__) in line for line in table.splitlines()), len(ways))

    @unittest.skipUnless(os.path.exists(FILLER), f"{FILLER} is not there")
    def test_a_number_of_3000_tokens_ago_is_found_in_the_archive_alone(self):
        length = 4608
        report, _ = run(["eval", "--generate", "--needles", "16", "--filler", FILLER, "--length", str(length),
                         "--decode-tokens", "64", "--compress-keep", "0.2", "--compress-archive", "off,r4"])
        needles = {}
        for mode in report["modes"]:
            document, = mode["documents"]
            self.assertGreaterEqual(document["compressed"]["windows"], 6)
            needles[mode["compression"]["archive"]] = document["needles"]
        self.assertEqual(set(needles), {"off", "r4"})
        dense = needles["r4"]["reference_recalled"]
        said = json.dumps(needles)
        self.assertGreaterEqual(dense, 4, said)
        self.assertGreaterEqual(2 * needles["r4"]["recalled"], dense, said)
        self.assertGreaterEqual(needles["r4"]["recalled"], needles["off"]["recalled"] + 3, said)

        # Depths are shares of the tokens before the questions, which are fewer than 600 tokens.
        far = {archive: [one for one in found["by_needle"] if (1 - one["depth"]) * (length - 600) > 3000]
               for archive, found in needles.items()}
        self.assertGreaterEqual(len(far["r4"]), 4, said)
        # In nats for each token of a number, over dense attention, which itself does not find all.
        loss = {archive: sum(one["loss"] for one in ones) / len(ones) for archive, ones in far.items()}
        self.assertLess(loss["r4"], 0.5, said)
        self.assertGreater(loss["off"], loss["r4"] + 0.5, said)


if __name__ == "__main__":
    unittest.main()

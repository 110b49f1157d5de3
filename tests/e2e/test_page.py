"""The page on / in headless Chromium: a message is typed, the answer streams in, the picture moves.

python3 test_page.py FILE.png draws the picture of the docs, docs/page.png.
"""

import re
import sys
import time
import unittest

from devtools import Browser
from harness import eventually, fake_server, raw_post, real_server


class Page(unittest.TestCase):
    def text(self, browser, name):
        return browser.evaluate(f"document.getElementById('{name}').textContent")

    def number(self, browser, name):
        return int(self.text(browser, name).replace(",", ""))

    def test_a_message_is_answered_and_the_picture_moves(self):
        # The page samples with a random seed; a small context ends an answer that would ramble on.
        with real_server("-t", 2, "-c", 400, "--kv-fast-bytes", "8MiB", "--kv-host-bytes", "64MiB",
                         "--max-num-batched-tokens", 64) as server, Browser(server.url + "/") as browser:
            self.assertTrue(eventually(lambda: "of" in (self.text(browser, "slots") or ""), 20))
            generated = self.number(browser, "generated")
            self.assertEqual(browser.evaluate("document.activeElement.id"), "input")
            browser.type("Write a few sentences about the sea.")
            browser.press("Enter", "Enter", 13, "\r")
            seen = set()

            def done():
                seen.add(len(self.text(browser, "chat") or ""))
                return browser.evaluate("document.getElementById('stop').disabled")
            self.assertTrue(eventually(lambda: browser.evaluate(
                "!document.getElementById('stop').disabled"), 5))
            self.assertTrue(eventually(done, 120))
            self.assertGreater(len(seen), 3, "the answer did not stream in")
            self.assertIn("prompt tokens", self.text(browser, "chat"))
            self.assertTrue(eventually(
                lambda: self.number(browser, "generated") > generated, 5))
            self.assertIn("slots", self.text(browser, "slots"))
            self.assertTrue(eventually(
                lambda: not self.text(browser, "idle").startswith("0.0 "), 5))
            self.assertTrue(eventually(
                lambda: "L" in (browser.evaluate(
                    "document.getElementById('curve').getAttribute('d')") or ""), 5))
            # The tier below the fast one, and where the request's blocks are.
            self.assertFalse(browser.evaluate("document.getElementById('tiers').hidden"))
            self.assertTrue(eventually(lambda: browser.evaluate(
                "!document.getElementById('map-panel').hidden"), 5))
            self.assertIn("tokens", self.text(browser, "map-tokens"))
            # Blocks have the colour of where they are, and those that were just read a line of another;
            # between layers nothing is drawn.
            colours = browser.evaluate(
                "((map) => new Set(new Uint32Array(map.getContext('2d').getImageData("
                "0, 0, map.width, map.height).data.buffer)).size)(document.getElementById('map'))")
            self.assertGreaterEqual(colours, 3)
            hosts = {address.split("/")[2] for address in browser.requested
                     if address.startswith("http")}
            self.assertEqual(hosts, {f"127.0.0.1:{server.port}"})

    def test_a_compressed_answer_shows_its_blocks_before_and_after(self):
        strips = """(() => {
          const parts = (name) => [...document.getElementById(name).children].map(
              (part) => [part.className, Number(part.style.flexGrow), part.getBoundingClientRect().width]);
          return {hidden: document.getElementById('compression').hidden,
                  before: parts('blocks-before'), after: parts('blocks-after'),
                  figures: document.getElementById('compression-figures').textContent};
        })()"""
        answer = {"prompt": "A story of ships.", "max_tokens": 4000, "ignore_eos": True}
        with real_server("-t", 2, "--compress", "--compress-window", 64, "--compress-recent", 0,
                         "--compress-keep", 0.25) as server, Browser(server.url + "/") as browser:
            self.assertTrue(eventually(lambda: "of" in (self.text(browser, "slots") or ""), 20))
            self.assertTrue(browser.evaluate(strips)["hidden"])
            with server.connect() as connection:  # closing it ends the answer
                connection.sendall(raw_post("/v1/completions", answer))
                self.assertTrue(eventually(lambda: not browser.evaluate(strips)["hidden"], 60))
                seen = browser.evaluate(strips)
            self.assertEqual([kind for kind, _, _ in seen["before"]], ["full", "aged", "full"])
            self.assertEqual([kind for kind, _, _ in seen["after"]], ["full", "kept", "full", "full", "gone"])
            blocks = {name: {} for name in ("before", "after")}
            for name, kinds in blocks.items():
                for kind, count, width in seen[name]:
                    kinds[kind] = kinds.get(kind, 0) + count
                    self.assertEqual(width > 0, count > 0, seen)
            # Of each four blocks one is kept and the pages of the others take one.
            aged = blocks["before"]["aged"]
            self.assertGreaterEqual(aged, 4)
            self.assertEqual(blocks["after"]["kept"], aged / 4)
            self.assertEqual(blocks["after"]["gone"], aged / 2)
            total = sum(blocks["before"].values())
            self.assertEqual(sum(blocks["after"].values()), total)
            figures = re.fullmatch(r"(\d+) blocks now (\d+) \((\d+)\s%\)", seen["figures"].replace(",", ""))
            self.assertIsNotNone(figures, seen["figures"])
            before, after, share = map(int, figures.groups())
            self.assertEqual((before, after), (total, total - aged / 2))
            self.assertLess(share, 100)
            # An answer that is not compressed has no strips.
            with server.connect() as connection:
                connection.sendall(raw_post("/v1/completions", {**answer, "kv_compression": False}))
                self.assertTrue(eventually(lambda: browser.evaluate(strips)["hidden"], 60))
                self.assertFalse(browser.evaluate("document.getElementById('map-panel').hidden"))

    def test_stop_and_clear(self):
        with fake_server("--step-us", 20000) as server, Browser(server.url + "/") as browser:
            self.assertTrue(eventually(lambda: self.text(browser, "model") == "fake", 20))
            browser.type("<forever>")
            browser.press("Enter", "Enter", 13, "\r")
            self.assertTrue(eventually(lambda: server.stats()["requests_running"] == 1, 10))
            self.assertTrue(eventually(
                lambda: self.text(browser, "running").startswith("1 of"), 5))
            browser.press("Escape", "Escape", 27)
            self.assertTrue(eventually(lambda: server.stats()["requests_running"] == 0, 2))
            self.assertTrue(eventually(lambda: "Stopped." in self.text(browser, "chat"), 2))
            browser.evaluate("document.getElementById('clear').click()")
            self.assertEqual(self.text(browser, "chat"), "")

    def test_it_asks_for_the_key_and_follows_the_colour_scheme(self):
        with fake_server("--key", "k") as server, Browser(server.url + "/") as browser:
            self.assertTrue(eventually(
                lambda: browser.evaluate("!document.getElementById('key-row').hidden"), 20))
            browser.evaluate("document.getElementById('key').value = 'k'")
            self.assertTrue(eventually(lambda: self.text(browser, "model") == "fake", 5))
            colours = set()
            for scheme in ("dark", "light"):
                browser.call("Emulation.setEmulatedMedia",
                             features=[{"name": "prefers-color-scheme", "value": scheme}])
                colours.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
            self.assertEqual(len(colours), 2)


def draw(path):
    with real_server("-t", 2, "-np", 8, "-c", 2048, "--token-budget", 512, "--kv-fast-bytes", "32MiB",
                     "--kv-host-bytes", "256MiB") as server, \
            Browser(server.url + "/") as browser:
        def chat():
            return browser.evaluate("document.getElementById('chat').textContent")

        browser.call("Emulation.setDeviceMetricsOverride", width=1200, height=960,
                     deviceScaleFactor=1, mobile=False)
        time.sleep(2)
        browser.type("Write a few sentences about the sea.")
        browser.press("Enter", "Enter", 13, "\r")
        eventually(lambda: "generated" in chat(), 120)
        others = [server.connect() for _ in range(3)]
        for i, other in enumerate(others):
            other.sendall(raw_post("/v1/completions", {
                "prompt": f"A story of {i} ships. " * 40, "max_tokens": 900, "ignore_eos": True}))
        time.sleep(4)
        browser.type("And what lives in it?")
        browser.press("Enter", "Enter", 13, "\r")
        before = len(chat())
        eventually(lambda: len(chat()) > before + 300, 60)
        browser.screenshot(path)
        for other in others:
            other.close()


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].endswith(".png"):
        draw(sys.argv[1])
    else:
        unittest.main()

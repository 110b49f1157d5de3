"""A folder of stored prompt beginnings on a real file system that others fill, and that becomes
read-only under the server.

Skipped, which CTest shows, only where the machine lets nobody mount a tmpfs in a namespace of its own.
"""

import os
import subprocess
import sys
import tempfile
import unittest

from harness import Server, eventually
from test_persistence import ask, health_of, prompt, wait_for_metric

# f32 keys and values: a batch then rounds like a request alone.
FLAGS = ("-c", "1024", "-ctk", "f32", "-ctv", "f32")


class FileSystem(unittest.TestCase):
    """In a mount namespace of its own, which ends with the server."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.user = os.geteuid() != 0
        tried = subprocess.run(self.mounted("true"), capture_output=True, text=True)
        if tried.returncode != 0:
            print(f"SKIPPED FILE SYSTEM: {tried.stderr.strip()}", file=sys.stderr)
            self.skipTest(tried.stderr)

    def mounted(self, *command):
        user = ["--user", "--map-root-user"] if self.user else []
        return ["unshare", *user, "--mount", "sh", "-c",
                'mount -t tmpfs -o size=20m karez-test "$0" && exec "$@"', self.folder, *command]

    def beside(self, server, *command):
        """A command line in the server's namespace."""
        user = ["--user", "--preserve-credentials"] if self.user else []
        return ["nsenter", "--target", str(server.pid), *user, "--mount", *command]

    def karez(self):
        return [os.environ["KAREZ_BINARY"], "serve", "-m", os.environ["KAREZ_MODEL"], "--port", "0", *FLAGS,
                "--kv-disk-path", self.folder, "--kv-disk-bytes", "1GiB"]

    def expect_right(self, server, tokens):
        """Asks twice, with the folder and without."""
        text, cached = ask(server, tokens)
        self.assertEqual(text, ask(server, tokens, cache=False)[0])
        return cached

    def test_it_fills_up_and_turns_read_only_under_the_server(self):
        with Server(self.mounted(*self.karez())) as server:
            root = f"/proc/{server.pid}/root{self.folder}"
            somebody_else = os.path.join(root, "somebody-elses")

            def stores():
                return health_of(server)["kv_store"]["stores"]

            def stored():
                return server.metrics()["karez_kv_store_stored_blocks_total"]

            seeds = iter(range(1, 1000))
            self.expect_right(server, prompt(next(seeds), 72))
            wait_for_metric(server, "karez_kv_store_stored_blocks_total", 4)

            # Somebody else takes all room, and again what the server clears for its own.
            def fill():
                with open(somebody_else, "ab", buffering=0) as file:
                    try:
                        while True:
                            file.write(bytes(4096))
                    except OSError:
                        pass

            for _ in range(60):
                fill()
                self.expect_right(server, prompt(next(seeds), 40))
                if stores() == "stopped":
                    break
            self.assertTrue(eventually(lambda: stores() == "stopped", 10))
            self.assertEqual(health_of(server)["status"], "ok")
            self.assertEqual(health_of(server)["kv_store"]["loads"], "ok")
            self.assertGreater(os.path.getsize(somebody_else), 10 << 20)  # not ours to remove

            os.remove(somebody_else)
            before = stored()

            def stores_again():
                self.expect_right(server, prompt(next(seeds), 40))
                return stored() > before

            self.assertTrue(eventually(stores_again, 40))
            last = prompt(next(seeds), 72)
            before = stored()
            self.expect_right(server, last)
            wait_for_metric(server, "karez_kv_store_stored_blocks_total", before + 4)

            # Read-only: what is there is read, also by a server that starts now.
            remount = self.beside(server, "mount", "-o", "remount,ro", "karez-test", self.folder)
            self.assertTrue(eventually(lambda: subprocess.run(remount, capture_output=True).returncode == 0, 20))
            for _ in range(4):
                self.expect_right(server, prompt(next(seeds), 40))
            self.assertTrue(eventually(lambda: stores() == "stopped", 20))
            self.assertEqual(health_of(server)["status"], "ok")
            with Server(self.beside(server, *self.karez())) as other:
                self.assertEqual(self.expect_right(other, last), 64)
                self.assertEqual(self.expect_right(other, prompt(next(seeds), 40)), 0)
                self.assertEqual(health_of(other)["kv_store"]["loads"], "ok")
                self.assertTrue(eventually(lambda: health_of(other)["kv_store"]["stores"] == "stopped", 20))


if __name__ == "__main__":
    unittest.main()

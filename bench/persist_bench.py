#!/usr/bin/env python3
"""Measures the time to the first token of a long prompt: computed, and read back after a restart.

  bench/persist_bench.py -m MODEL.gguf              4,000 tokens, 5 rounds

A round starts a server on an empty folder, asks for a prompt that nobody has asked for (computed), waits
until it is stored, starts the server again and asks for the same (restored), and once more (in memory).
Figures are medians of the rounds. --cold empties the page cache before the restart, as root. Needs only
Python's standard library. Prints JSON; times are in seconds.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request


STORE_SECONDS = 120  # for the blocks of a prompt to be stored
WARM_UP_TOKENS = 64


class Server:
    def __init__(self, options, folder):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [options.karez, "serve", "-m", options.model, "--port", "0", "-c", str(options.tokens + 64),
             "--kv-disk-path", folder, "--kv-disk-bytes", options.disk_bytes, *options.flags.split()],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        found = re.search(r"http://[^ \n]*:\d+", self.process.stdout.readline())
        if not found:
            self.process.wait()
            self.log.seek(0)
            sys.exit("persist_bench.py: the server does not start: "
                     + self.log.read().decode(errors="replace"))
        self.url = found.group(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return response.read().decode()

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", self.get("/metrics"), re.M).group(1))

    def ask(self, prompt):
        """(seconds to the first token, text, cached tokens)"""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        begin, first, text, cached = time.monotonic(), None, "", 0
        with urllib.request.urlopen(request, timeout=600) as response:
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                first = first or time.monotonic() - begin
                event = json.loads(line[6:])
                text += "".join(choice["text"] for choice in event["choices"])
                if event.get("usage"):
                    cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        return first, text, cached

    def wait_until_stored(self, blocks):
        end = time.monotonic() + STORE_SECONDS
        while (stored := self.metric("karez_kv_store_stored_blocks_total")) < blocks:
            if time.monotonic() > end:
                sys.exit(f"persist_bench.py: {stored:.0f} of {blocks} blocks are stored after "
                         f"{STORE_SECONDS} s; is --disk-bytes or the disk too small?")
            time.sleep(0.05)


def run(options, dice):
    def random_prompt(tokens):
        return [dice.randrange(1000, 40000) for _ in range(tokens)]
    prompt = random_prompt(options.tokens)
    blocks = (options.tokens - 1) // 16
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        # Both servers begin with a short prompt: the first steps of a process touch fresh memory.
        with Server(options, folder) as server:
            server.ask(random_prompt(WARM_UP_TOKENS))
            computed = server.ask(prompt)
            server.wait_until_stored(blocks + (WARM_UP_TOKENS - 1) // 16)
        if options.cold:
            os.sync()
            with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
                file.write("1")
        with Server(options, folder) as server:
            server.ask(random_prompt(WARM_UP_TOKENS))
            restored = server.ask(prompt)
            restore_seconds = server.metric("karez_kv_store_restore_seconds_total")
            in_memory = server.ask(prompt)
    if restored[2] != blocks * 16 or restored[1] != computed[1] or in_memory[1] != computed[1]:
        sys.exit(f"persist_bench.py: {restored[2]} tokens were found, texts {computed[1]!r}, {restored[1]!r}")
    return {"computed": computed[0], "restored": restored[0], "in_memory": in_memory[0],
            "restore": restore_seconds, "ratio": computed[0] / restored[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--karez", default="build/release/karez")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--disk-bytes", default="4GiB")
    parser.add_argument("--folder", help="where the stores are made (the system's temporary folder)")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--flags", default="", help="more flags of the server")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    rounds = []
    for number in range(options.rounds):
        rounds.append(run(options, dice))
        print(number, rounds[-1], file=sys.stderr)
    print(json.dumps({"tokens": options.tokens, "rounds": options.rounds, "cold": options.cold,
                      "median": {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}},
                     indent=2))


if __name__ == "__main__":
    main()

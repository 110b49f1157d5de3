#!/usr/bin/env python3
"""Measures prefill and decode in two processes: what a consumer takes in, keeps, and generates.

  bench/pd_bench.py bytes -m MODEL.gguf --depth 7900           KV bytes before the first and the second
                                                               token, admitted in full and sparsely
  bench/pd_bench.py bytes -m RANDOM.gguf --depth 16384,32768 --admit sparse
                                                               the same for a model of random weights
                                                               (bench/random_gguf.py)
  bench/pd_bench.py throughput -m MODEL.gguf                   8 answers under a KV cap of a quarter of
                                                               theirs; memory of a request; equality

Arms of a pair are run one right after the other, each time in the other order; figures are medians of
the pairs. Prompts are prefilled before the clock starts. Both nodes have the same flags of attention.
Needs only Python's standard library. Prints JSON.
"""

import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

LEASE_SECONDS = 3600
DIFFERENT_TOKENS = 256


class Node:
    """A server on a free port. Use as a context manager."""

    def __init__(self, options, role, *flags):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [options.karez, "serve", "-m", options.model, "--port", "0", "--kv-port", "0",
             "--kv-role", role, "-c", str(options.context),
             "-np", str(options.requests), "-t", str(options.threads),
             "--kv-transports", options.transports,
             *(["--kv-lease", str(LEASE_SECONDS)] if role == "kv_producer" else []),
             *map(str, flags)],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        found = re.search(r"http://[^ \n]*", self.process.stdout.readline())
        if not found:
            self.log.seek(0)
            sys.exit("pd_bench.py: " + self.log.read().decode(errors="replace"))
        self.url = found.group(0)
        while True:
            try:
                self.get("/health")
                return
            except urllib.error.HTTPError:
                time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()
        self.log.close()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return response.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=3600) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            sys.exit(f"pd_bench.py: {path}: {error.read().decode(errors='replace')}")

    def metrics(self):
        return {key: float(value) for key, value in
                re.findall(r"^(karez_\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", self.get("/metrics"), re.M)}

    def own_bytes(self):
        """Resident, without what it has mapped of others: a producer's memory, the model's file."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"RssAnon:\s+(\d+) kB", status.read()).group(1)) * 1024

    def complete(self, prompt, tokens, **fields):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                             "ignore_eos": True, **fields})

    def prefill(self, prompt):
        return self.complete(prompt, 1, kv_transfer_params={
            "do_remote_decode": True, "do_remote_prefill": False})["kv_transfer_params"]


def note(text):
    print(f"pd_bench.py: {text}", file=sys.stderr, flush=True)


def prompts(node, count, depth):
    """So many token lists, which differ in their last 256 tokens: the producer's prefix cache makes
    them cheap to prefill, and a consumer without one takes each of them in as a whole."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    text = ""
    for path in sorted(glob.glob(os.path.join(folder, "docs", "*.md"))):
        with open(path, encoding="utf-8") as file:
            text += file.read()
    tokens = node.post("/tokenize", {"content": text})["tokens"]
    while len(tokens) < depth + count:
        tokens += tokens
    begin = depth - DIFFERENT_TOKENS
    step = (len(tokens) - depth) // count
    return [tokens[:begin] + tokens[begin + i * step:begin + i * step + DIFFERENT_TOKENS]
            for i in range(count)]


def kv_token_bytes(options):
    """As `karez inspect` says for bf16, the type that the nodes have."""
    table = subprocess.run([options.karez, "inspect", options.model], capture_output=True, text=True,
                           check=True).stdout
    return int(re.search(r"^bf16 +(\d+) ", table, re.M).group(1))


def measure_bytes(options):
    figures = {}
    sparse = ["--token-budget", options.budget]
    for depth in options.depth:
        options.context = depth + 64
        whole = kv_token_bytes(options) * options.context
        room = int(whole * 1.1) + (64 << 20)
        with Node(options, "kv_producer", *sparse, "--kv-host-bytes", room,
                  "--kv-fast-bytes", room) as producer:
            prompt = prompts(producer, 1, depth)[0]
            begun = time.monotonic()
            producer.prefill(prompt)
            note(f"{depth}: prefilled in {time.monotonic() - begun:.0f} s")
            for admit in options.admit:
                home = ["--kv-host-bytes", room] if admit == "sparse" else []  # most of it untouched
                cap = room if admit == "full" else max(room // 4, 256 << 20)
                with Node(options, "kv_consumer", *sparse, *home,
                          "--no-prefix-cache", "--kv-fast-bytes", cap, "--kv-admit", admit) as node:
                    before = node.metrics()
                    node.complete(prompt, 1, kv_transfer_params=producer.prefill(prompt))
                    one = node.metrics()
                    node.complete(prompt, 2, kv_transfer_params=producer.prefill(prompt))
                    two = node.metrics()
                    def step(name, a, b):
                        # A server that has not done anything yet has not all of them.
                        key = f"karez_kv_{name}_total"
                        return b[key] - a.get(key, 0)
                    full = step("admit_full_bytes", before, one)
                    first = step("admit_bytes", before, one)
                    second = step("peer_received_bytes", one, two)
                    figures[f"{depth} {admit}"] = {
                        "kv_bytes": full, "bytes_before_first_token": first,
                        "full_over_first": full / first, "bytes_before_second_token": second,
                        "full_over_second": full / second}
                    note(f"{depth} {admit}: {figures[f'{depth} {admit}']}")
    return figures


def throughput_run(node, producer, questions, options):
    params = [producer.prefill(prompt) for prompt in questions]
    texts = [None] * len(questions)
    idle = node.own_bytes()

    def one(number):
        texts[number] = node.complete(questions[number], options.tokens,
                                      kv_transfer_params=params[number])["choices"][0]["text"]
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(questions))]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    used, home, running, own = 0, 0, 0, idle
    while any(thread.is_alive() for thread in threads):
        metrics = node.metrics()
        used = max(used, metrics.get("karez_kv_used_bytes", 0))
        home = max(home, metrics.get("karez_kv_home_used_bytes", 0))
        own = max(own, node.own_bytes())
        running = max(running, json.loads(node.get("/karez/stats"))["requests_running"])
        time.sleep(0.2)
    seconds = time.monotonic() - begun
    return {"tokens_per_second": len(questions) * options.tokens / seconds, "seconds": seconds,
            "most_running": running, "kv_used_bytes": used, "home_used_bytes": home,
            "resident_bytes": own - idle, "texts": texts,
            "received_bytes": node.metrics()["karez_kv_peer_received_bytes_total"]}


def throughput(options):
    options.context = options.depth[0] + options.tokens + 64
    whole = kv_token_bytes(options) * options.context * options.requests
    cap = whole // options.share
    sparse = ["--token-budget", options.budget]
    home = ["--kv-host-bytes", whole // 4 + (64 << 20)]
    arms = {"full": ["--kv-admit", "full", "--kv-fast-bytes", cap],
            "sparse": ["--kv-admit", "sparse", "--kv-fast-bytes", cap, *home]}
    pairs = []
    with Node(options, "kv_producer", *sparse, "--kv-fast-bytes", whole + whole // 8,
              "--kv-host-bytes", whole + whole // 8) as producer:
        questions = prompts(producer, options.requests, options.depth[0])
        begun = time.monotonic()
        alone = [producer.complete(prompt, options.tokens)["choices"][0]["text"]
                 for prompt in questions]
        note(f"prefilled and answered by one process in {time.monotonic() - begun:.0f} s")

        def run(flags):
            with Node(options, "kv_consumer", *sparse, *flags, "--no-prefix-cache") as node:
                figures = throughput_run(node, producer, questions, options)
            figures["equal"] = sum(a == b for a, b in zip(figures.pop("texts"), alone))
            note(json.dumps(figures))
            return figures
        # All of them at once: the memory of a request.
        roomy = run(["--kv-admit", "full", "--kv-fast-bytes", whole])
        for pair in range(options.pairs):
            note(f"pair {pair}")
            pairs.append({arm: run(arms[arm]) for arm in sorted(arms, reverse=pair % 2 == 1)})
    ratio = statistics.median(pair["sparse"]["tokens_per_second"] / pair["full"]["tokens_per_second"]
                              for pair in pairs)
    per_request = {
        "full": roomy["kv_used_bytes"] / options.requests,
        "sparse": statistics.median(pair["sparse"]["kv_used_bytes"] + pair["sparse"]["home_used_bytes"]
                                    for pair in pairs) / options.requests}
    resident = {"full": roomy["resident_bytes"] / options.requests,
                "sparse": statistics.median(pair["sparse"]["resident_bytes"] for pair in pairs)
                / options.requests}
    return {"kv_fast_bytes": cap, "requests": options.requests, "tokens_each": options.tokens,
            "throughput_ratio": ratio,
            "kv_bytes_of_a_request": per_request,
            "kv_ratio": per_request["full"] / per_request["sparse"],
            "resident_bytes_of_a_request": resident,
            "resident_ratio": resident["full"] / resident["sparse"],
            "roomy": roomy, "pairs": pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bytes", "throughput"])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--karez", default="build/release/karez", help="(build/release/karez)")
    parser.add_argument("--depth", default="7900", help="tokens of a prompt; bytes: a list (7900)")
    parser.add_argument("--admit", default="full,sparse", help="bytes (full,sparse)")
    parser.add_argument("--budget", type=int, default=512, help="(512)")
    parser.add_argument("--requests", type=int, default=8, help="throughput (8)")
    parser.add_argument("--tokens", type=int, default=128, help="throughput, of an answer (128)")
    parser.add_argument("--share", type=int, default=4,
                        help="throughput: the cap is this part of the KV of all requests (4)")
    parser.add_argument("--pairs", type=int, default=3, help="(3)")
    parser.add_argument("--threads", type=int, default=2, help="(2)")
    parser.add_argument("--transports", default="shm,tcp", help="(shm,tcp)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    options = parser.parse_args()
    options.depth = [int(depth) for depth in options.depth.split(",")]
    options.admit = options.admit.split(",")
    if options.what == "bytes":
        options.requests = 1
    result = {"model": os.path.basename(options.model), "what": options.what,
              "token_budget": options.budget,
              "figures": measure_bytes(options) if options.what == "bytes" else throughput(options)}
    output = json.dumps(result, indent=2)
    print(output)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(output + "\n")


if __name__ == "__main__":
    main()

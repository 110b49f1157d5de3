#!/usr/bin/env python3
"""Measures prefill and decode in two processes: what a consumer takes in, keeps, and generates.

  bench/pd_bench.py bytes -m MODEL.gguf --depth 7900           KV bytes before the first and the second
                                                               token, admitted in full and sparsely
  bench/pd_bench.py bytes -m RANDOM.gguf --depth 16384,32768 --admit sparse
                                                               the same for a model of random weights
                                                               (bench/random_gguf.py)
  bench/pd_bench.py throughput -m MODEL.gguf                   8 answers under a KV cap of a quarter of
                                                               theirs: admitted in full with dense and
                                                               with sparse attention, and sparsely;
                                                               memory of a request; equality
  bench/pd_bench.py wire -m MODEL.gguf --link-mbits 1000       --kv-wire-type native and r4: bytes and
                                                               seconds before the first and the second
                                                               token, tokens a second; over a link of so
                                                               many Mbit/s and --link-delay-ms

Arms of a pair are run one right after the other, each time in the other order; figures are medians of
the pairs. Prompts are prefilled before the clock starts. Each consumer answers all of them twice: memory is
that of the first time, throughput that of the second, when the process has its memory. Texts are compared with those of one process of
the same sparse attention.
Needs only Python's standard library. Prints JSON.
"""

import argparse
import glob
import json
import os
import queue
import re
import socket
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


class Link:
    """A way to a port of this machine that lets so many Mbit/s through to whoever connects (0: all), and
    on which bytes are so many milliseconds under way, to and fro; with neither the port itself. Use as a
    context manager."""

    CHUNK_BYTES = 64 << 10
    CHUNKS_UNDER_WAY = 1024

    def __init__(self, port, mbits, delay_ms):
        self.target, self.mbits, self.delay, self.listener = port, mbits, delay_ms / 1e3, None
        self.port = port

    def __enter__(self):
        if self.mbits or self.delay:
            self.listener = socket.create_server(("127.0.0.1", 0))
            self.port = self.listener.getsockname()[1]
            threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        if self.listener:
            self.listener.close()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            for source, sink, mbits in ((near, far, 0), (far, near, self.mbits)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.pump, args=(source, sink, mbits), daemon=True).start()

    def pump(self, source, sink, mbits):
        under_way = queue.Queue(self.CHUNKS_UNDER_WAY)  # (when it arrives, bytes)
        threading.Thread(target=self.deliver, args=(under_way, source, sink), daemon=True).start()
        free_at = 0.0  # when all that was let through has been sent
        try:
            while data := source.recv(self.CHUNK_BYTES):
                free_at = max(free_at, time.monotonic())
                if mbits:
                    free_at += len(data) * 8 / (mbits * 1e6)
                under_way.put((free_at + self.delay, data))
        except OSError:
            pass
        under_way.put((0, b""))

    @staticmethod
    def deliver(under_way, source, sink):
        try:
            while (item := under_way.get())[1]:
                time.sleep(max(0.0, item[0] - time.monotonic()))
                sink.sendall(item[1])
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()

    def through(self, params):
        return {**params, "remote_port": self.port}


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


def step_of(name, before, after):
    """A server that has not done anything yet has not all of them."""
    key = f"karez_kv_{name}_total"
    return after[key] - before.get(key, 0)


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
                    full = step_of("admit_full_bytes", before, one)
                    first = step_of("admit_bytes", before, one)
                    second = step_of("peer_received_bytes", one, two)
                    figures[f"{depth} {admit}"] = {
                        "kv_bytes": full, "bytes_before_first_token": first,
                        "full_over_first": full / first, "bytes_before_second_token": second,
                        "full_over_second": full / second}
                    note(f"{depth} {admit}: {figures[f'{depth} {admit}']}")
    return figures


def throughput_run(node, producer, questions, options, link=None):
    params = [producer.prefill(prompt) for prompt in questions]
    if link:
        params = [link.through(one) for one in params]
    texts = [None] * len(questions)
    ends = []
    idle = node.own_bytes()

    def one(number):
        texts[number] = node.complete(questions[number], options.tokens,
                                      kv_transfer_params=params[number])["choices"][0]["text"]
        ends.append(time.monotonic())
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
    if None in texts:
        sys.exit("pd_bench.py: a request got no answer")
    seconds = max(ends) - begun
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
    # A budget of the whole context is dense attention.
    dense = ["--token-budget", -(-options.context // 16) * 16]
    arms = {"dense": ["--kv-admit", "full", "--kv-fast-bytes", cap, *dense],
            "full": ["--kv-admit", "full", "--kv-fast-bytes", cap],
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
                # What a new process needs in memory, and how fast it is when it has that.
                figures = throughput_run(node, producer, questions, options)
                again = throughput_run(node, producer, questions, options)
            figures["first_tokens_per_second"] = figures["tokens_per_second"]
            for name in ("tokens_per_second", "seconds"):
                figures[name] = again[name]
            figures["equal"] = sum(a == b == c for a, b, c in
                                   zip(figures.pop("texts"), again["texts"], alone))
            note(json.dumps(figures))
            return figures
        # All of them at once: the memory of a request.
        roomy = run(["--kv-admit", "full", "--kv-fast-bytes", whole])
        for pair in range(options.pairs):
            note(f"pair {pair}")
            pairs.append({arm: run(arms[arm]) for arm in sorted(arms, reverse=pair % 2 == 1)})

    def ratio_to(arm):
        return statistics.median(
            pair["sparse"]["tokens_per_second"] / pair[arm]["tokens_per_second"] for pair in pairs)

    # Of those that ran at once: under a small cap that may be fewer than all.
    def of_a_request(runs, *names):
        return statistics.median(sum(run[name] for name in names) / run["most_running"]
                                 for run in runs)
    sparse_runs = [pair["sparse"] for pair in pairs]
    per_request = {"full": of_a_request([roomy], "kv_used_bytes"),
                   "sparse": of_a_request(sparse_runs, "kv_used_bytes", "home_used_bytes")}
    resident = {"full": of_a_request([roomy], "resident_bytes"),
                "sparse": of_a_request(sparse_runs, "resident_bytes")}
    return {"kv_fast_bytes": cap, "requests": options.requests, "tokens_each": options.tokens,
            "throughput_over_full_same_attention": ratio_to("full"),
            "throughput_over_full_dense_attention": ratio_to("dense"),
            "kv_bytes_of_a_request": per_request,
            "kv_ratio": per_request["full"] / per_request["sparse"],
            "resident_bytes_of_a_request": resident,
            "resident_ratio": resident["full"] / resident["sparse"],
            "roomy": roomy, "pairs": pairs}


def wire_run(wire_type, admit, producer, questions, link, options, flags):
    with Node(options, "kv_consumer", *flags, "--no-prefix-cache", "--kv-admit", admit,
              "--kv-wire-type", wire_type) as node:
        # The connection, and whatever a process does once.
        node.complete(questions[1], 1, kv_transfer_params=link.through(producer.prefill(questions[1])))
        params = link.through(producer.prefill(questions[0]))
        before = node.metrics()
        begun = time.monotonic()
        node.complete(questions[0], 1, kv_transfer_params=params)
        seconds = time.monotonic() - begun
        after = node.metrics()
        params = link.through(producer.prefill(questions[0]))
        begun = time.monotonic()
        node.complete(questions[0], 2, kv_transfer_params=params)
        two = time.monotonic() - begun
        figures = {"bytes_before_first_token": step_of("admit_bytes", before, after),
                   "kv_bytes": step_of("admit_full_bytes", before, after),
                   "seconds_to_first_token": seconds, "seconds_to_second_token": two}
        before = node.metrics()
        rates = throughput_run(node, producer, questions, options, link)
        figures["tokens_per_second"] = rates["tokens_per_second"]
        figures["received_bytes"] = step_of("peer_received_bytes", before, node.metrics())
        note(f"{admit} {wire_type}: {json.dumps(figures)}")
        return figures


def measure_wire(options):
    depth = options.depth[0]
    options.context = depth + options.tokens + 64
    whole = kv_token_bytes(options) * options.context * options.requests
    room = whole + whole // 8 + (64 << 20)
    sparse = ["--token-budget", options.budget]
    figures = {}
    with Node(options, "kv_producer", *sparse, "--kv-fast-bytes", room,
              "--kv-host-bytes", room) as producer:
        questions = prompts(producer, max(options.requests, 2), depth)
        port = producer.prefill(questions[0])["remote_port"]
        for prompt in questions[1:]:
            producer.complete(prompt, 1)
        note(f"{len(questions)} prompts of {depth} tokens prefilled")
        with Link(port, options.link_mbits, options.link_delay_ms) as link:
            for admit in options.admit:
                flags = [*sparse, "--kv-fast-bytes", room]
                if admit == "sparse":
                    flags += ["--kv-host-bytes", room]  # most of it untouched
                pairs = []
                for pair in range(options.pairs):
                    arms = options.wire_type if pair % 2 == 0 else options.wire_type[::-1]
                    pairs.append({arm: wire_run(arm, admit, producer, questions, link, options, flags)
                                  for arm in arms})
                median = {arm: {name: statistics.median(pair[arm][name] for pair in pairs)
                                for name in pairs[0][arm]} for arm in options.wire_type}
                entry = {"median": median, "pairs": pairs}
                if set(options.wire_type) == {"native", "r4"}:
                    entry["r4_over_native"] = {
                        name: statistics.median(pair["r4"][name] / pair["native"][name]
                                                for pair in pairs) for name in median["r4"]}
                figures[admit] = entry
    return {"depth": depth, "link_mbits": options.link_mbits,
            "link_delay_ms": options.link_delay_ms, "requests": options.requests,
            "tokens_each": options.tokens, "admit": figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bytes", "throughput", "wire"])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--karez", default="build/release/karez", help="(build/release/karez)")
    parser.add_argument("--depth", default="7900", help="tokens of a prompt; bytes: a list (7900)")
    parser.add_argument("--admit", default="full,sparse", help="bytes, wire (full,sparse)")
    parser.add_argument("--wire-type", default="native,r4", help="wire (native,r4)")
    parser.add_argument("--link-mbits", type=float, default=0, help="wire; 0: as fast as it goes (0)")
    parser.add_argument("--link-delay-ms", type=float, default=0, help="wire; one way (0)")
    parser.add_argument("--budget", type=int, default=512, help="(512)")
    parser.add_argument("--requests", type=int, default=8, help="throughput, wire (8)")
    parser.add_argument("--tokens", type=int, default=128, help="throughput, wire: of an answer (128)")
    parser.add_argument("--share", type=int, default=4,
                        help="throughput: the cap is this part of the KV of all requests (4)")
    parser.add_argument("--pairs", type=int, default=3, help="(3)")
    parser.add_argument("--threads", type=int, default=2, help="(2)")
    parser.add_argument("--transports", help="(shm,tcp; wire: tcp, so that both take the same way)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    options = parser.parse_args()
    options.depth = [int(depth) for depth in options.depth.split(",")]
    options.admit = options.admit.split(",")
    options.wire_type = options.wire_type.split(",")
    options.transports = options.transports or ("tcp" if options.what == "wire" else "shm,tcp")
    if options.what == "bytes":
        options.requests = 1
    result = {"model": os.path.basename(options.model), "what": options.what,
              "token_budget": options.budget,
              "figures": {"bytes": measure_bytes, "throughput": throughput,
                          "wire": measure_wire}[options.what](options)}
    output = json.dumps(result, indent=2)
    print(output)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(output + "\n")


if __name__ == "__main__":
    main()

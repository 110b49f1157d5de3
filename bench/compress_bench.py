#!/usr/bin/env python3
"""Measures what compression of long answers does to memory and speed.

  bench/compress_bench.py memory -m MODEL.gguf        one answer of 6,000 tokens: KV bytes, time, longest step
  bench/compress_bench.py throughput -m MODEL.gguf    32 answers of 3,000 tokens under a fast cap that
                                                      holds 12 of them uncompressed, no tier below
  bench/compress_bench.py fetched -m MODEL.gguf       one answer of 6,000 tokens that selects 2,048 of
                                                      them, above a throttled home tier, with lookahead:
                                                      bytes that a token takes in from there

Arms of a pair are run one right after the other, each time in the other order, so that a slow minute of
the machine meets both; figures are medians of the pairs. Needs only Python's standard library. Prints
JSON; rates are in tokens per second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PROMPT = "Write a very long story about a lighthouse keeper who counts the ships that pass."

TIER_FLAGS = ("--token-budget 2048 --lookahead previous --kv-fast-bytes 64MiB --kv-host-bytes 512MiB "
              "--kv-host-throttle 2GiB/s,50us")


def memory_run(options, flags):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "run.json")
        subprocess.run([options.karez, "generate", "-m", options.model, "-p", PROMPT, "-n",
                        str(options.tokens), "--ignore-eos", "--temp", "0.8", "-s", "1",
                        "--json", report, *flags],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        with open(report, encoding="utf-8") as file:
            return json.load(file)["runs"][0]


def arms_of(options, shared=()):
    arms = {"plain": list(shared)}
    for keep in options.keep:
        for archive in ("off", "r4"):
            arms[f"keep {keep} archive {archive}"] = [
                "--compress", "--compress-keep", str(keep), "--compress-archive", archive,
                *shared, *options.flags.split()]
    return arms


def fetched(options):
    arms = arms_of(options, options.tier_flags.split())
    runs = {arm: [] for arm in arms}
    for pair in range(options.pairs):
        for arm in sorted(arms, reverse=pair % 2 == 1):
            run = memory_run(options, arms[arm])
            traffic = run["answer_traffic"]
            runs[arm].append({
                "bytes_read_a_token": traffic["bytes_read"] / run["generated_tokens"],
                "home_used_bytes": traffic["home_used_bytes"],
                "stall_seconds": traffic["stall_seconds"],
                "tokens_per_second": run["decode_tokens_per_second"]})
            print(f"{pair} {arm}: {json.dumps(runs[arm][-1])}", file=sys.stderr)
    result = {arm: {key: statistics.median(run[key] for run in all_runs) for key in all_runs[0]}
              for arm, all_runs in runs.items()}
    for figures in result.values():
        if figures["bytes_read_a_token"] > 0:
            figures["times_lower"] = (result["plain"]["bytes_read_a_token"]
                                      / figures["bytes_read_a_token"])
    return {"tier_flags": options.tier_flags, "arms": result}


def memory(options):
    arms = arms_of(options)
    runs = {arm: [] for arm in arms}
    for pair in range(options.pairs):
        for arm in sorted(arms, reverse=pair % 2 == 1):
            runs[arm].append(memory_run(options, arms[arm]))
            print(f"{pair} {arm}: {runs[arm][-1]['kv_used_bytes']} bytes, "
                  f"{runs[arm][-1]['decode_tokens_per_second']:.1f} tokens/s", file=sys.stderr)
    result = {}
    for arm, all_runs in runs.items():
        def median(value, all_runs=all_runs):
            return statistics.median(value(run) for run in all_runs)
        plain = runs["plain"]
        result[arm] = {
            "kv_used_bytes": median(lambda run: run["kv_used_bytes"]),
            "kv_bytes_ratio": median(lambda run: run["kv_used_bytes"] / plain[0]["kv_used_bytes"]),
            "tokens_per_second": median(lambda run: run["decode_tokens_per_second"]),
            "speed_ratio": statistics.median(
                run["decode_tokens_per_second"] / other["decode_tokens_per_second"]
                for run, other in zip(all_runs, plain)),
            "step_ms_median": median(lambda run: run["step_ms"]["median"]),
            "step_ms_longest": median(lambda run: run["step_ms"]["longest"]),
            "step_ms_p99.9": median(lambda run: run["step_ms"]["p99.9"])}
        if "compression" in all_runs[0]:
            result[arm]["compression_share"] = median(
                lambda run: run["compression"]["seconds"] / run["decode_seconds"])
            result[arm]["longest_between_steps_over_median_step"] = median(
                lambda run: run["compression"]["longest_seconds"] * 1000 / run["step_ms"]["median"])
            result[arm]["query_bytes"] = median(lambda run: run["compression"]["query_bytes"])
    return result


class Server:
    def __init__(self, options, flags, cap):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [options.karez, "serve", "-m", options.model, "--port", str(options.port),
             "--kv-fast-bytes", str(cap), "--max-num-seqs", str(options.requests), *flags],
            stdout=self.log, stderr=subprocess.STDOUT)
        self.url = f"http://127.0.0.1:{options.port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                if self.get("/health"):
                    return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.log.seek(0)
                    sys.exit("compress_bench.py: the server does not start: "
                             + self.log.read().decode(errors="replace"))
                time.sleep(0.2)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return response.read().decode()

    def stats(self):
        return json.loads(self.get("/karez/stats"))

    def complete(self, prompt, tokens, seed):
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.8,
                "seed": seed}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as response:
            return json.load(response)["usage"]["completion_tokens"]

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


def throughput_run(options, flags, cap):
    server = Server(options, flags, cap)
    try:
        counts = []
        def one(number):
            counts.append(server.complete(f"{PROMPT} It is story number {number}.",
                                          options.tokens, number))
        threads = [threading.Thread(target=one, args=(i,)) for i in range(options.requests)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        most_running = 0
        while any(thread.is_alive() for thread in threads):
            most_running = max(most_running, server.stats()["requests_running"])
            time.sleep(1)
        seconds = time.monotonic() - start
        stats = server.stats()
        seconds_compressing = [float(line.split()[-1]) for line in server.get("/metrics").splitlines()
                               if line.startswith("karez_compression_seconds_total")]
        return {"tokens_per_second": sum(counts) / seconds, "answers": len(counts),
                "tokens": sum(counts), "seconds": seconds, "preemptions": stats["preemptions"],
                "most_running": most_running, "steps": stats["steps"],
                "windows": stats["compressed_windows"],
                "compression_share": sum(seconds_compressing) / seconds}
    finally:
        server.close()


def throughput(options):
    one = memory_run(argparse.Namespace(**{**vars(options)}), [])
    cap = options.hold * one["kv_used_bytes"]
    arms = {"plain": [], "compressed": ["--compress", *options.flags.split()]}
    pairs = []
    for pair in range(options.pairs):
        run = {arm: throughput_run(options, arms[arm], cap)
               for arm in sorted(arms, reverse=pair % 2 == 1)}
        run["ratio"] = run["compressed"]["tokens_per_second"] / run["plain"]["tokens_per_second"]
        pairs.append(run)
        print(f"{pair}: {json.dumps(run)}", file=sys.stderr)
    return {"kv_fast_bytes": cap, "requests": options.requests, "tokens_each": options.tokens,
            "ratio": statistics.median(run["ratio"] for run in pairs), "pairs": pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "throughput", "fetched"])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--karez", default="build/release/karez", help="(build/release/karez)")
    parser.add_argument("--pairs", type=int, default=5, help="(5)")
    parser.add_argument("--tokens", type=int, help="of an answer (6000; throughput: 3000)")
    parser.add_argument("--keep", type=float, action="append",
                        help="memory, fetched (0.5 and 0.2)")
    parser.add_argument("--tier-flags", default=TIER_FLAGS, help=f"fetched ({TIER_FLAGS})")
    parser.add_argument("--requests", type=int, default=32, help="throughput (32)")
    parser.add_argument("--hold", type=int, default=12,
                        help="uncompressed answers that the cap holds (12)")
    parser.add_argument("--flags", default="", help="more flags of the compressed runs")
    parser.add_argument("--port", type=int, default=8089, help="(8089)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error(f"--pairs is {options.pairs}, allowed are 1 and more")
    options.tokens = options.tokens or (3000 if options.what == "throughput" else 6000)
    options.keep = options.keep or [0.5, 0.2]
    result = {"model": os.path.basename(options.model), "what": options.what,
              "figures": {"memory": memory, "throughput": throughput,
                          "fetched": fetched}[options.what](options)}
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()

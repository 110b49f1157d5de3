#!/usr/bin/env python3
"""Puts load on a running server with OpenAI's API and measures what its clients see.

  karez serve -m MODEL.gguf &
  bench/serve_load.py throughput            16 clients at once: tokens per second, latencies, overhead
  bench/serve_load.py prefix                a 4,000-token prompt again: time to first token
  bench/serve_load.py interference          running streams while long prompts come in
  bench/serve_load.py connections           a client beside 1,000 idle and slow connections, which go
                                            to the server, or to nobody (the cost of sending)

Prompts are random token ids, different ones each time, so that nothing is found in a prefix cache
that is not meant to be. Needs only Python's standard library. Prints JSON; times are in seconds.
"""

import argparse
import json
import random
import resource
import socket
import statistics
import sys
import threading
import time
import urllib.parse
import urllib.request


class Target:
    def __init__(self, url, api_key, seed):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            sys.exit(f"serve_load.py: --url is {url}, allowed are http://HOST:PORT")
        self.host, self.port = parts.hostname, parts.port or 80
        self.key = api_key
        self.dice = random.Random(seed)
        model = self.get("/v1/models")["data"][0]
        self.model = model["id"]
        self.vocab_size = model.get("meta", {}).get("n_vocab", 32000)
        self.context_tokens = model.get("max_model_len", 0)

    def headers(self):
        key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        return f"Host: {self.host}:{self.port}\r\n{key}"

    def get(self, path):
        request = urllib.request.Request(f"http://{self.host}:{self.port}{path}")
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def prompt(self, tokens):
        # The lowest ids are control tokens in most vocabularies.
        return [self.dice.randrange(1000, self.vocab_size) for _ in range(tokens)]

    def connect(self):
        connection = socket.create_connection((self.host, self.port), timeout=600)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class Answer:
    """When the pieces of a streamed answer came."""

    def __init__(self):
        self.start = 0.0
        self.times = []  # of each chunk with text
        self.usage = None

    def first(self):
        return self.times[0] - self.start

    def gaps(self):
        return [b - a for a, b in zip(self.times, self.times[1:])]


def ask(target, prompt, output_tokens, on_chunk=None):
    body = json.dumps({
        "model": target.model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0,
        "ignore_eos": True, "min_tokens": output_tokens, "stream": True,
        "stream_options": {"include_usage": True}}).encode()
    answer = Answer()
    with target.connect() as connection:
        answer.start = time.perf_counter()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + target.headers().encode() +
                           b"Content-Type: application/json\r\nConnection: close\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
        rest = b""
        while True:
            data = connection.recv(1 << 16)
            now = time.perf_counter()
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"data: {"):
                    if line.startswith(b"HTTP/") and b" 200 " not in line:
                        raise RuntimeError(f"the server answered {line.decode()}")
                    continue
                if b'"choices":[]' in line:
                    answer.usage = json.loads(line[6:])["usage"]
                else:
                    answer.times.append(now)
                    if on_chunk:
                        on_chunk(now)
    if answer.usage is None:
        raise RuntimeError("an answer ended without its usage")
    return answer


def together(jobs, on_problem=lambda: None):
    """Runs the jobs at once; their results in order. on_problem: so that no other job waits for one
    that has failed."""
    results = [None] * len(jobs)
    problems = []

    def run(index, job):
        try:
            results[index] = job()
        except Exception as problem:  # reported by the caller's thread
            problems.append(problem)
            on_problem()
    threads = [threading.Thread(target=run, args=one) for one in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return results


def spread(values):
    ordered = sorted(values)

    def at(share):
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 5)
    return {"median": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": round(ordered[-1], 5)}


def engine_delta(before, after, wall):
    steps = after["steps"] - before["steps"]
    step = after["step_seconds"] - before["step_seconds"]
    forward = after["forward_seconds"] - before["forward_seconds"]
    return {
        "steps": steps, "step_seconds": round(step, 4), "forward_seconds": round(forward, 4),
        # Scheduling, sampling and bookkeeping beside the model.
        "step_overhead_share": round(1 - forward / step, 4),
        # All that is not the model, from the clients' first byte to their last one.
        "server_overhead_share": round(1 - forward / wall, 4),
        "cached_tokens": after["prefix_cache_hits_tokens"] - before["prefix_cache_hits_tokens"],
        "preemptions": after["preemptions"] - before["preemptions"]}


def load(target, concurrency, prompt_tokens, output_tokens):
    prompts = [target.prompt(prompt_tokens) for _ in range(concurrency)]
    before = target.get("/karez/stats")
    start = time.perf_counter()
    answers = together([lambda p=p: ask(target, p, output_tokens) for p in prompts])
    wall = time.perf_counter() - start
    after = target.get("/karez/stats")
    total = concurrency * (prompt_tokens + output_tokens)
    return {
        "wall_seconds": round(wall, 4),
        "tokens_per_second": round(total / wall, 1),
        "output_tokens_per_second": round(concurrency * output_tokens / wall, 1),
        "time_to_first_token": spread([a.first() for a in answers]),
        "inter_token_latency": spread([gap for a in answers for gap in a.gaps()]),
        "engine": engine_delta(before, after, wall)}


def measure_throughput(target, options):
    load(target, 2, 64, 8)  # the first steps of a server touch fresh memory
    runs = [load(target, options.concurrency, options.prompt_tokens, options.output_tokens)
            for _ in range(options.repetitions)]
    ordered = sorted(runs, key=lambda run: run["tokens_per_second"])
    return {"concurrency": options.concurrency, "prompt_tokens": options.prompt_tokens,
            "output_tokens": options.output_tokens, "median": ordered[(len(ordered) - 1) // 2],
            "runs": runs}


def measure_prefix(target, options):
    load(target, 2, 64, 8)
    runs = []
    for _ in range(options.repetitions):
        prompt = target.prompt(options.prompt_tokens)
        cold, warm = (ask(target, prompt, 2) for _ in range(2))
        runs.append({"cold": round(cold.first(), 5), "warm": round(warm.first(), 5),
                     "cold_cached_tokens": cold.usage["prompt_tokens_details"]["cached_tokens"],
                     "warm_cached_tokens": warm.usage["prompt_tokens_details"]["cached_tokens"]})
    cold = statistics.median(run["cold"] for run in runs)
    warm = statistics.median(run["warm"] for run in runs)
    return {"prompt_tokens": options.prompt_tokens, "time_to_first_token": {
        "cold": cold, "warm": warm, "ratio": round(cold / warm, 1)}, "runs": runs}


def measure_interference(target, options):
    load(target, 2, 64, 8)
    started = threading.Barrier(options.streams + 1)
    started_at = []
    periods = []  # of the long prompts: from sent to first token

    def stream():
        waiting = [True]

        def on_chunk(_):
            if waiting:
                waiting.pop()
                started.wait()
        return ask(target, target.prompt(32), options.output_tokens, on_chunk)

    def intrude():
        started.wait()
        started_at.append(time.perf_counter())
        time.sleep(1)
        for _ in range(options.repetitions):
            answer = ask(target, target.prompt(options.prompt_tokens), 1)
            periods.append((answer.start, answer.times[0]))
            time.sleep(0.5)

    answers = together([intrude] + [stream] * options.streams, started.abort)[1:]
    quiet, during = [], []
    for answer in answers:
        # The first gap holds the wait for the other streams.
        for a, b in list(zip(answer.times, answer.times[1:]))[1:]:
            if a < started_at[0]:
                continue  # of one that was not read while it waited for the others
            beside = any(a < end and b > begin for begin, end in periods)
            (during if beside else quiet).append(b - a)
    if not during or not quiet:
        sys.exit("serve_load.py: the streams ended too early; a larger --output-tokens is needed")
    return {"streams": options.streams, "prompt_tokens": options.prompt_tokens,
            "inter_token_latency": {"alone": spread(quiet), "beside_long_prompt": spread(during)},
            "time_to_first_token_of_long_prompt":
                spread([end - begin for begin, end in periods])}


class Sink:
    """A port whose connections nobody accepts: the kernel keeps what they send. What bystanders cost
    there is the cost of sending, not of a server."""

    def __init__(self, count):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=count)

    def connect(self):
        return socket.create_connection(self.listener.getsockname(), timeout=10)

    def headers(self):
        return "Host: localhost\r\n"

    def close(self):
        self.listener.close()


class Bystanders:
    """Connections that do nothing, and as many that send a byte of a request now and then."""

    def __init__(self, target, count, byte_seconds):
        self.byte_seconds = byte_seconds
        self.cpu_seconds = 0
        self.problem = None
        self.connections = [target.connect() for _ in range(count)]
        self.slow = self.connections[::2]
        for connection in self.slow:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + target.headers().encode() +
                               b"Content-Length: 1000000\r\n\r\n{")
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.trickle)
        self.start = time.perf_counter()
        self.thread.start()

    def trickle(self):
        try:
            self.send_bytes()
        except OSError as problem:
            self.problem = problem
        finally:
            self.cpu_seconds = time.thread_time()
            self.seconds = time.perf_counter() - self.start

    def cpu_share(self):
        return self.cpu_seconds / self.seconds

    def send_bytes(self):
        # One after the other, not all in one burst: these share the processors with the server.
        pause = self.byte_seconds / max(len(self.slow), 1)
        while True:
            for connection in self.slow:
                if self.ended.wait(pause):
                    return
                connection.sendall(b" ")

    def close(self):
        self.ended.set()
        self.thread.join()
        for connection in self.connections:
            connection.close()


def measure_connections(target, options):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * options.connections + 100:
        if hard < 2 * options.connections + 100:
            sys.exit(f"serve_load.py: {options.connections} connections need a higher limit of open "
                     f"files, the hard limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * options.connections + 100, hard))
    load(target, 2, 64, 8)
    arms = ["alone", "beside", "beside_sink"]
    runs = []
    shares = []  # of a processor, that sending takes
    for index in range(options.repetitions):
        run = {}
        # In turns, so that a slow minute of the machine meets all.
        for arm in arms[index % 3:] + arms[:index % 3]:
            others = None
            if arm != "alone":
                # A sink takes connections once: closed ones stay in its queue.
                to = target if arm == "beside" else Sink(options.connections)
                others = Bystanders(to, options.connections, options.byte_seconds)
            try:
                run[arm] = load(target, options.concurrency, options.prompt_tokens,
                                options.output_tokens)["tokens_per_second"]
            finally:
                if others:
                    others.close()
                    if others.problem:
                        sys.exit(f"serve_load.py: the server has closed a slow connection ({others.problem}): "
                                 "its --timeout and --idle-timeout must be longer than an arm")
                    if arm == "beside_sink":
                        to.close()
                    shares.append(others.cpu_share())
        runs.append(run)

    def ratio(arm, to):
        return round(statistics.median(run[arm] / run[to] for run in runs), 4)
    return {"connections": options.connections, "concurrency": options.concurrency,
            "tokens_per_second": {arm: statistics.median(run[arm] for run in runs) for arm in arms},
            "beside_to_alone": ratio("beside", "alone"),
            # What sending costs on this machine, and what the server adds to it.
            "sink_to_alone": ratio("beside_sink", "alone"),
            "beside_to_sink": ratio("beside", "beside_sink"),
            "sender_processor_share": round(statistics.median(shares), 4), "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--seed", type=int, default=None, help="of the prompts (random)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, measure, **defaults):
        sub = commands.add_parser(name)
        sub.set_defaults(measure=measure)
        for option, value in defaults.items():
            sub.add_argument("--" + option.replace("_", "-"), type=int, default=value,
                             help=f"({value})")
    command("throughput", measure_throughput, concurrency=16, prompt_tokens=1024,
            output_tokens=128, repetitions=3)
    command("prefix", measure_prefix, prompt_tokens=4000, repetitions=5)
    command("interference", measure_interference, streams=8, prompt_tokens=4000,
            output_tokens=400, repetitions=2)
    command("connections", measure_connections, connections=1000, byte_seconds=5, concurrency=1,
            prompt_tokens=256, output_tokens=128, repetitions=5)
    options = parser.parse_args()
    target = Target(options.url, options.api_key, options.seed)
    result = {"command": options.command, "model": target.model, "url": options.url,
              **options.measure(target, options)}
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        with open(options.json, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()

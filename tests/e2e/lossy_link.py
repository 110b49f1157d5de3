"""Prefill and decode in two network namespaces, over a link with delay and loss. Needs root, ip and
/dev/net/tun, so it is run by hand:

  KAREZ_BINARY=... KAREZ_MODEL=... python3 tests/e2e/lossy_link.py --delay-ms 20 --loss 0.01

The link is two TUN devices and this process, which carries the packets from one to the other, late,
and drops some (a kernel's netem does the same, where it has one). Every answer must be that of one
process. Prints JSON.
"""

import argparse
import fcntl
import heapq
import json
import os
import random
import select
import statistics
import struct
import subprocess
import threading
import time

import harness
import test_disaggregated as nodes

NAMESPACE = "karez_lossy_link"
NEAR, FAR = "10.77.113.1", "10.77.113.2"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
SECRET = "a secret of the lossy link"


def ip(*arguments, inside=False):
    prefix = ["ip", "netns", "exec", NAMESPACE] if inside else []
    subprocess.run([*prefix, "ip", *arguments], check=True)


class Link:
    """Use as a context manager."""

    def __init__(self, delay_seconds, loss):
        self._delay, self._loss = delay_seconds, loss
        self._random = random.Random(1)
        self._stopped = threading.Event()
        self.packets = self.dropped = 0

    def __enter__(self):
        ip("netns", "add", NAMESPACE)
        self._ends = []
        for number, address, peer in ((0, NEAR, FAR), (1, FAR, NEAR)):
            name = f"kzlink{number}"
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
            self._ends.append(end)
            is_inside = number == 1
            if is_inside:
                ip("link", "set", name, "netns", NAMESPACE)
                ip("link", "set", "lo", "up", inside=True)
            ip("addr", "add", address, "peer", peer, "dev", name, inside=is_inside)
            ip("link", "set", name, "up", inside=is_inside)
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)
        ip("netns", "del", NAMESPACE)

    def _carry(self):
        late = []  # (when, number, to, packet)
        while not self._stopped.is_set():
            wait = 0.1 if not late else max(0, late[0][0] - time.monotonic())
            ready, _, _ = select.select(self._ends, [], [], min(wait, 0.1))
            for end in ready:
                packet = os.read(end, 65536)
                self.packets += 1
                if self._random.random() < self._loss:
                    self.dropped += 1
                    continue
                other = self._ends[1 - self._ends.index(end)]
                heapq.heappush(late, (time.monotonic() + self._delay, self.packets, other, packet))
            while late and late[0][0] <= time.monotonic():
                _, _, other, packet = heapq.heappop(late)
                try:
                    os.write(other, packet)
                except OSError:
                    self.dropped += 1  # a full queue


def far_producer():
    flags = [*nodes.MODEL_FLAGS, *nodes.PEER_FLAGS, "--kv-role", "kv_producer", "--kv-port", 0,
             "--host", FAR, "--kv-host", FAR, "--kv-peer-secret", SECRET]
    return harness.Server(["ip", "netns", "exec", NAMESPACE, os.environ["KAREZ_BINARY"], "serve",
                           "-m", os.environ["KAREZ_MODEL"], "--port", "0", *map(str, flags)],
                          address=FAR)


def measure(options):
    figures = {}
    with Link(options.delay_ms / 1000, options.loss) as link, far_producer() as prefill:
        harness.eventually(lambda: prefill.request("GET", "/health")[0] == 200, 60)
        for admit in ("full", "sparse"):
            with nodes.consumer(*nodes.PEER_FLAGS, "--kv-admit", admit, "--kv-host", NEAR,
                                "--kv-peer-secret", SECRET) as decode:
                begun = time.monotonic()
                right = nodes.text_of(nodes.completed(decode)[1])
                alone_seconds = time.monotonic() - begun
                seconds, equal, errors = [], 0, []
                for _ in range(options.requests):
                    params = nodes.prefilled(prefill)
                    begun = time.monotonic()
                    status, answer = nodes.completed(decode, kv_transfer_params=params)
                    seconds.append(time.monotonic() - begun)
                    if status == 200:
                        equal += nodes.text_of(answer) == right
                    else:
                        errors.append(answer["error"]["message"])
                metrics = decode.metrics()
                figures[admit] = {
                    "requests": options.requests, "equal": equal, "errors": errors,
                    "seconds_median": statistics.median(seconds), "seconds_longest": max(seconds),
                    "seconds_alone": alone_seconds,
                    "received_bytes": metrics["karez_kv_peer_received_bytes_total"],
                    "failed_reads": metrics["karez_kv_peer_failed_reads_total"],
                    "admit_seconds": metrics["karez_kv_admit_seconds_total"]}
        figures["packets"], figures["dropped"] = link.packets, link.dropped
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=20, help="one way (20)")
    parser.add_argument("--loss", type=float, default=0.01, help="of packets (0.01)")
    parser.add_argument("--requests", type=int, default=5, help="of each way of admission (5)")
    options = parser.parse_args()
    figures = measure(options)
    print(json.dumps({"delay_ms": options.delay_ms, "loss": options.loss, **figures}, indent=2))
    if any(figures[admit]["equal"] + len(figures[admit]["errors"]) != options.requests
           for admit in ("full", "sparse")):
        raise SystemExit("lossy_link.py: an answer is wrong")


if __name__ == "__main__":
    main()

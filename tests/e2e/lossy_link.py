"""Prefill and decode in two networks, over a link with delay and loss.

  KAREZ_BINARY=... KAREZ_MODEL=... python3 tests/e2e/lossy_link.py --delay-ms 20 --loss 0.01

Each node is in a network namespace of its own, which ends with it. The link is two TUN devices and
this process, which carries the packets from one to the other, late, and drops some (a kernel's netem
does the same, where it has one). Every answer must be that of one process. Prints JSON.

Needs ip, unshare and nsenter, /dev/net/tun, and root or the right to make user namespaces. Without
one of them it says so and exits with 77. test_two_networks.py runs it briefly.
"""

import argparse
import fcntl
import heapq
import json
import os
import random
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time

import harness
import test_disaggregated as nodes

CANNOT = 77
NEAR, FAR = "10.77.113.1", "10.77.113.2"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
SECRET = "a secret of the lossy link"


def cannot(why):
    print(f"lossy_link.py: this machine cannot have two networks: {why}", file=sys.stderr)
    raise SystemExit(CANNOT)


def enter_namespace():
    """Starts this program again, in a network namespace of its own."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            cannot(f"there is no {tool}")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--net"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        cannot(tried.stderr.strip())
    os.execvp("unshare", [*command, sys.executable, *sys.argv, "--inside"])


def namespace_of(process):
    return os.readlink(f"/proc/{process}/ns/net")


def retransmitted(process):
    """TCP segments that were sent again, in the namespace of a process."""
    with open(f"/proc/{process}/net/snmp") as counters:
        names, values = re.findall(r"^Tcp: (.*)$", counters.read(), re.M)
    return int(values.split()[names.split().index("RetransSegs")])


def new_tun(name):
    try:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError as error:
        cannot(f"/dev/net/tun: {error.strerror}")
    return end


class Link:
    """From this namespace to a new one. Use as a context manager."""

    def __init__(self, delay_seconds, loss):
        self._delay, self._loss = delay_seconds, loss
        self._random = random.Random(1)
        self._stopped = threading.Event()
        self.packets = self.dropped = 0
        self.is_cut = False  # nothing gets through, and nobody is told

    def __enter__(self):
        self._ends = [new_tun("kznear"), new_tun("kzfar")]
        # A namespace is there as long as a process is in it: this one ends with its input.
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        self.far = self._holder.pid
        while namespace_of(self.far) == namespace_of("self"):
            time.sleep(0.01)
        subprocess.run(["ip", "link", "set", "kzfar", "netns", str(self.far)], check=True)
        for prefix, name, address, peer in (([], "kznear", NEAR, FAR), (self.inside(), "kzfar", FAR, NEAR)):
            for arguments in (["link", "set", "lo", "up"],
                              ["addr", "add", address, "peer", peer, "dev", name],
                              ["link", "set", name, "up"]):
                subprocess.run([*prefix, "ip", *arguments], check=True)
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()
        return self

    def inside(self):
        """What runs a command in the far namespace."""
        return ["nsenter", "--target", str(self.far), "--net"]

    def retransmitted(self):
        return retransmitted("self") + retransmitted(self.far)

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)
        self._holder.stdin.close()
        self._holder.wait()

    def _carry(self):
        late = []  # (when, number, to, packet)
        while not self._stopped.is_set():
            wait = 0.1 if not late else max(0, late[0][0] - time.monotonic())
            ready, _, _ = select.select(self._ends, [], [], min(wait, 0.1))
            for end in ready:
                packet = os.read(end, 65536)
                self.packets += 1
                if self.is_cut or self._random.random() < self._loss:
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


def far_producer(link):
    flags = [*nodes.MODEL_FLAGS, *nodes.PEER_FLAGS, "--kv-role", "kv_producer", "--kv-port", 0,
             "--host", FAR, "--kv-host", FAR, "--kv-peer-secret", SECRET]
    return harness.Server([*link.inside(), os.environ["KAREZ_BINARY"], "serve",
                           "-m", os.environ["KAREZ_MODEL"], "--port", "0", *map(str, flags)],
                          address=FAR)


def measure_one(options, prefill, decode):
    begun = time.monotonic()
    right = nodes.text_of(nodes.completed(decode, max_tokens=options.tokens)[1])
    alone_seconds = time.monotonic() - begun
    seconds, equal, errors = [], 0, []
    for _ in range(options.requests):
        params = nodes.prefilled(prefill)
        begun = time.monotonic()
        status, answer = nodes.completed(decode, max_tokens=options.tokens, kv_transfer_params=params)
        seconds.append(time.monotonic() - begun)
        if status == 200:
            equal += nodes.text_of(answer) == right
        else:
            errors.append(answer["error"]["message"])
    is_quiet = harness.eventually(
        lambda: prefill.metrics()["karez_kv_export_held"] == 0 and
        decode.metrics()["karez_kv_peer_leases"] == 0, 20)
    metrics = decode.metrics()
    return {"requests": options.requests, "equal": equal, "errors": errors, "leases_are_back": is_quiet,
            "seconds_median": statistics.median(seconds), "seconds_longest": max(seconds),
            "seconds_alone": alone_seconds,
            "admitted": metrics["karez_kv_admit_requests_total"],
            "received_bytes": metrics["karez_kv_peer_received_bytes_total"],
            "failed_reads": metrics["karez_kv_peer_failed_reads_total"],
            "admit_seconds": metrics["karez_kv_admit_seconds_total"]}


def interrupted(options, link, prefill, decode, strike):
    """What becomes of a request when something happens in the middle of its transfer."""
    right = nodes.text_of(nodes.completed(decode, max_tokens=options.tokens)[1])
    params = nodes.prefilled(prefill)
    outcome = []

    def ask():
        status, answer = nodes.completed(decode, max_tokens=options.tokens, kv_transfer_params=params)
        is_right = status == 200 and nodes.text_of(answer) == right
        outcome.append("right" if is_right else "error" if status >= 500 else "wrong")

    client = threading.Thread(target=ask)
    before = link.packets
    client.start()
    is_under_way = harness.eventually(lambda: link.packets >= before + 100, 20)
    strike()
    client.join()
    is_quiet = harness.eventually(
        lambda: all(decode.metrics()[name] == 0 for name in (
            "karez_kv_slots_used", "karez_kv_home_used_bytes", "karez_kv_peer_leases")), 20)
    again = nodes.text_of(nodes.completed(decode, max_tokens=options.tokens)[1])
    return {"outcome": outcome[0] if outcome and is_under_way else "none", "is_quiet": is_quiet,
            "goes_on": again == right}


def near_consumer(*flags):
    return nodes.consumer(*nodes.PEER_FLAGS, "--kv-host", NEAR, "--kv-allow-peers", FAR,
                          "--kv-peer-secret", SECRET, *flags)


def interrupt(options, link, prefill):
    def cut():
        link.is_cut = True

    def kill():
        os.kill(prefill.pid, signal.SIGKILL)

    figures = {}
    for strike in (cut, kill):  # in this order: nobody starts it again
        with near_consumer() as decode:
            figures[strike.__name__] = interrupted(options, link, prefill, decode, strike)
        link.is_cut = False
        if strike is cut:
            figures["cut"]["is_quiet"] &= harness.eventually(
                lambda: prefill.metrics()["karez_kv_export_held"] == 0, 20)
    return figures


def measure(options):
    figures = {}
    with Link(options.delay_ms / 1000, options.loss) as link, far_producer(link) as prefill:
        harness.eventually(lambda: prefill.request("GET", "/health")[0] == 200, 60)
        for admit in ("full", "sparse"):
            with near_consumer("--kv-admit", admit) as decode:
                figures[admit] = measure_one(options, prefill, decode)
        figures["packets"], figures["dropped"] = link.packets, link.dropped
        figures["retransmitted"] = link.retransmitted()
        if options.interrupt:
            figures.update(interrupt(options, link, prefill))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=20, help="one way (20)")
    parser.add_argument("--loss", type=float, default=0.01, help="of packets (0.01)")
    parser.add_argument("--requests", type=int, default=5, help="of each way of admission (5)")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer (24)")
    parser.add_argument("--interrupt", action="store_true",
                        help="then cut the link in the middle of a transfer, and kill the far node in another")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        enter_namespace()
    figures = measure(options)
    print(json.dumps({"delay_ms": options.delay_ms, "loss": options.loss, **figures}, indent=2))
    if any(figures[admit]["equal"] != options.requests for admit in ("full", "sparse")):
        raise SystemExit("lossy_link.py: an answer is wrong or missing")


if __name__ == "__main__":
    main()

"""Wrong input to every command: exit code 2 and one line that names the flag, the value and what is
allowed. And signals: each command ends soon after one."""

import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import harness

KAREZ = os.environ["KAREZ_BINARY"]
MODEL = os.environ["KAREZ_MODEL"]

GENERATE = ["generate", "-m", MODEL, "-p", "hi"]
BENCH = ["bench", "-m", MODEL]
EVAL = ["eval", "-m", MODEL, "--file", __file__]
SERVE = ["serve", "-m", MODEL, "--port", "0"]

TIERED = ["--token-budget", "512", "--kv-host-bytes", "64MiB"]

# (arguments, what the line must contain)
CASES = [
    ([], ["command is missing", "generate", "serve"]),
    (["fly"], ["fly", "generate"]),
    (["generate"], ["--model", "required"]),
    (["serve"], ["--model", "required"]),
    (["inspect"], ["--model", "required"]),
    (["bench"], ["--model", "required"]),
    ([*GENERATE, "--fly"], ["--fly", "--help"]),
    ([*GENERATE, "stray"], ["stray", "--help"]),
    ([*SERVE, "--fly=3"], ["--fly", "--help"]),

    (["generate", "-m", "/no/such.gguf", "-p", "hi"], ["/no/such.gguf"]),
    (["inspect", "/no/such.gguf"], ["/no/such.gguf"]),
    (["bench", "-m", "/no/such.gguf"], ["/no/such.gguf"]),
    (["serve", "-m", "/no/such.gguf"], ["/no/such.gguf"]),
    (["serve", "-m", "/"], ["/"]),
    (["inspect", __file__], [__file__, "GGUF"]),

    (["generate", "-m", MODEL], ["-p", "-f"]),
    (["generate", "-m", MODEL, "-p", ""], ["prompt is empty"]),
    (["generate", "-m", MODEL, "-f", "/no/such.txt"], ["/no/such.txt"]),
    (["generate", "-m", MODEL, "-p", b"\xff\xfe"], ["-p", "UTF-8", "byte 0"]),
    ([*GENERATE, "-n", "0"], ["-n", "0", "-1", "1"]),
    ([*GENERATE, "-n", "many"], ["--predict", "many"]),
    ([*GENERATE, "-n", "99999999999999999999"], ["-n", "-1 to 2147483647"]),
    ([*GENERATE, "-c", "1"], ["-c", "1", "2 to "]),
    ([*GENERATE, "-c", "100000"], ["-c", "100000", "2 to "]),
    ([*GENERATE, "-t", "0"], ["-t", "0", "1 to 512"]),
    ([*GENERATE, "-t", "1000"], ["-t", "1000", "1 to 512"]),
    ([*GENERATE, "-ub", "0"], ["-ub", "0", "1 to"]),
    ([*GENERATE, "--kv-fast-bytes", "12parsecs"], ["--kv-fast-bytes", "12parsecs"]),
    ([*GENERATE, "--kv-fast-bytes", "-1"], ["--kv-fast-bytes", "-1"]),
    ([*GENERATE, "--kv-fast-bytes", "1"], ["--kv-fast-bytes", "4096 bytes"]),
    ([*GENERATE, "-ctk", "q2_k"], ["-ctk", "q2_k", "bf16"]),
    ([*GENERATE, "-ctk", "f32", "-ctv", "bf16"], ["-ctk", "-ctv", "f32", "bf16"]),
    ([*GENERATE, "-ctv", "q2_k"], ["-ctv", "q2_k", "bf16"]),
    ([*GENERATE, "-t", "2", "-t", "0"], ["-t", "0", "1 to 512"]),  # the last one counts
    ([*GENERATE, "--recent-window", "64"], ["--recent-window", "--token-budget"]),
    ([*GENERATE, "--dense-layers", "99"], ["--dense-layers", "--token-budget"]),
    ([*GENERATE, "--token-budget", "512", "--dense-layers", "30"], ["--dense-layers", "30", "0 to 29"]),
    ([*GENERATE, "--on-miss", "skip"], ["--on-miss", "skip", "wait", "bounded=N"]),
    ([*GENERATE, "--on-miss", "bounded=-1"], ["--on-miss", "bounded=-1", "0 to 16777216"]),
    ([*GENERATE, "--on-miss", "bounded=2", "--kv-host-bytes", "64MiB"], ["--on-miss", "bounded=2", "--token-budget"]),
    ([*GENERATE, "--on-miss", "bounded=2", "--token-budget", "512"], ["--on-miss", "bounded=2", "--kv-host-bytes"]),
    ([*GENERATE, "--lookahead", "fast"], ["--lookahead", "fast", "previous, draft, probe, self, layer"]),
    ([*GENERATE, "--lookahead", "layer,", *TIERED], ["--lookahead", "layer,", "previous, draft"]),
    ([*GENERATE, "--lookahead", "layer", "--token-budget", "512"], ["--lookahead", "layer", "--kv-host-bytes"]),
    ([*GENERATE, "--lookahead", "layer", "--kv-host-bytes", "64MiB"], ["--lookahead", "layer", "--token-budget"]),
    ([*GENERATE, "--lookahead", "previous,draft", *TIERED], ["--lookahead", "previous,draft", "--spec-type"]),
    ([*GENERATE, "--lookahead", "self", "--spec-type", "ngram", *TIERED], ["--lookahead", "self", "--spec-type self"]),
    ([*GENERATE, "--lookahead", "layer", "--block-index", "minmax", *TIERED], ["--lookahead", "layer",
                                                                               "--block-index r2 or r3"]),
    ([*GENERATE, "--fetch-cap", "1MiB", *TIERED], ["--fetch-cap", "1MiB", "--lookahead"]),
    ([*GENERATE, "--fetch-cap", "0", "--lookahead", "layer", *TIERED], ["--fetch-cap", "0", "above 0"]),
    ([*GENERATE, "--fetch-cap", "much", "--lookahead", "layer", *TIERED], ["--fetch-cap", "much"]),
    ([*GENERATE, "--compress-keep", "0.25"], ["--compress-keep", "--compress"]),
    ([*GENERATE, "--compress", "--compress-keep", "1"], ["--compress-keep", "1", "above 0 and below 1"]),
    ([*GENERATE, "--compress", "--compress-window", "100"], ["--compress-window", "100", "multiples of 16"]),
    ([*GENERATE, "--compress", "--compress-recent", "-1"], ["--compress-recent", "-1", "0 to"]),
    ([*GENERATE, "--compress", "--compress-score", "best"], ["--compress-score", "best", "bidirectional", "random"]),
    ([*GENERATE, "--compress", "--compress-chunk", "fixed=0"], ["--compress-chunk", "fixed=0", "token2chunk"]),
    ([*GENERATE, "--compress", "--compress-chunk", "fixed=4096"], ["--compress-chunk", "fixed=4096", "256"]),
    ([*GENERATE, "--compress", "--compress-archive", "zip"], ["--compress-archive", "zip", "r4, off"]),
    ([*SERVE, "--compress-per-step", "0"], ["--compress-per-step", "0", "1 and more"]),
    ([*GENERATE, "--spec-type", "medusa"], ["--spec-type", "medusa", "none, ngram, draft-model, self"]),
    ([*GENERATE, "--spec-type", "draft-model"], ["--spec-type", "draft-model", "--spec-draft-model"]),
    ([*GENERATE, "--spec-type", "ngram", "-md", MODEL], ["--spec-draft-model", "--spec-type draft-model"]),
    ([*GENERATE, "-md", "/no/such.gguf"], ["--spec-draft-model", "/no/such.gguf"]),
    ([*GENERATE, "-md", MODEL, "--spec-draft-kv-bytes", "lots"], ["--spec-draft-kv-bytes", "lots"]),
    ([*GENERATE, "--spec-type", "self", "--spec-draft-kv-bytes", "1MiB"], ["--spec-draft-kv-bytes",
                                                                           "--spec-type draft-model"]),
    ([*GENERATE, "--spec-draft-n-max", "8"], ["--spec-draft-n-max", "--spec-type"]),
    ([*GENERATE, "--spec-draft-n-min", "1"], ["--spec-draft-n-min", "--spec-type"]),
    ([*GENERATE, "--spec-type", "ngram", "--spec-draft-n-max", "0"], ["--spec-draft-n-max", "0", "1 to 64"]),
    ([*GENERATE, "--spec-type", "ngram", "--spec-draft-n-max", "65"], ["--spec-draft-n-max", "65", "1 to 64"]),
    ([*GENERATE, "--spec-type", "ngram", "--spec-draft-n-max", "8", "--spec-draft-n-min", "9"],
     ["--spec-draft-n-min", "9", "0 to 8"]),
    ([*GENERATE, "--spec-type", "self", "--spec-draft-token-budget", "100"], ["--spec-draft-token-budget", "100",
                                                                              "176 to"]),
    ([*GENERATE, "--spec-type", "ngram", "--spec-draft-token-budget", "1024"], ["--spec-draft-token-budget",
                                                                                "--spec-type self"]),
    ([*GENERATE, "--speculative-config", "{"], ["--speculative-config", "JSON object"]),
    ([*GENERATE, "--speculative-config", "[]"], ["--speculative-config", "JSON object"]),
    ([*GENERATE, "--speculative-config", '{"method":"medusa"}'], ["--speculative-config", "method", "medusa",
                                                                  "ngram, draft_model, self"]),
    ([*GENERATE, "--speculative-config", '{"method":3}'], ["--speculative-config", "method", "3", "a string"]),
    ([*GENERATE, "--speculative-config", '{"tokens":3}'], ["--speculative-config", "tokens", "num_speculative_tokens"]),
    ([*GENERATE, "--speculative-config", '{"num_speculative_tokens":"3"}'],
     ["--speculative-config", "num_speculative_tokens", '"3"', "an integer"]),
    ([*GENERATE, "--speculative-config", '{"num_speculative_tokens":65}'], ["65", "1 to 64"]),
    ([*GENERATE, "--speculative-config", '{"prompt_lookup_max":65}'], ["--speculative-config", "prompt_lookup_max",
                                                                       "65", "1 to 64"]),
    ([*GENERATE, "--speculative-config", '{"prompt_lookup_min":5,"prompt_lookup_max":2}'],
     ["--speculative-config", "prompt_lookup_min", "5", "1 to 2"]),
    ([*GENERATE, "--speculative-config", '{"method":"draft_model"}'], ["draft-model", "--spec-draft-model"]),
    ([*GENERATE, "--speculative-config", '{"method":"ngram"}', "--spec-type", "ngram"],
     ["--spec-type", "--speculative-config", "one of the two"]),
    ([*GENERATE, "--temp", "nan"], ["temperature", "nan", "1000000"]),
    ([*GENERATE, "--top-p", "1.5"], ["top-p", "1.5", "0 to 1"]),
    ([*GENERATE, "--min-p", "2"], ["min-p", "2", "0 to 1"]),
    ([*GENERATE, "--repeat-penalty", "0"], ["repeat-penalty", "0", "0.01 to 100"]),
    ([*GENERATE, "--repeat-last-n", "-7"], ["repeat-last-n", "-7", "-1"]),
    ([*GENERATE, "-s", "-2"], ["-s", "-2", "-1"]),
    ([*GENERATE, "--grammar", "no grammar"], ["grammar"]),
    ([*GENERATE, "--grammar-file", "/no/such.gbnf"], ["/no/such.gbnf"]),
    ([*GENERATE, "--stop", ""], ["stop", "empty"]),
    ([*GENERATE, "--chat-template", "klingon"], ["--chat-template", "klingon"]),
    ([*GENERATE, "--json", "/no/such/folder/x.json"], ["/no/such/folder/x.json"]),

    (["inspect", MODEL, "--kv-fast-bytes", "x"], ["--kv-fast-bytes", "x"]),
    (["inspect", MODEL, "--json", "/no/such/folder/x.json"], ["/no/such/folder/x.json"]),

    (["eval", "--file", __file__], ["--model", "required"]),
    (["eval", "-m", "/no/such.gguf", "--file", __file__], ["/no/such.gguf"]),
    (["eval", "-m", MODEL], ["--file", "--needles", "--passkey"]),
    (["eval", "-m", MODEL, "--plot", "x.svg"], ["nothing to read"]),
    (["eval", "-m", MODEL, "--passkey", "--filler", __file__, "--plot", "x.svg"], ["--plot", "beside --passkey"]),
    (["eval", "-m", MODEL, "--file", "/no/such.txt"], ["/no/such.txt"]),
    (["eval", "-m", MODEL, "--file", MODEL], [MODEL, "UTF-8"]),
    (["eval", "-m", MODEL, "--needles", "4"], ["--needles", "--filler"]),
    ([*EVAL, "--length", "9000"], ["--length", "9000", "8192"]),
    (["eval", "-m", MODEL, "--file", harness.__file__, "--length", "8000"], ["harness.py", "tokens", "8000"]),
    ([*EVAL, "--length", "100"], ["--length", "100", "258"]),
    ([*EVAL, "--kv-mode", "fast"], ["--kv-mode", "fast", "dense, sparse"]),
    ([*EVAL, "--block-index", "r9"], ["--block-index", "r9", "minmax"]),
    ([*EVAL, "--token-budget", "512,0"], ["--token-budget", "0"]),
    ([*EVAL, "--token-budget", "100"], ["--token-budget", "100", "176"]),
    ([*EVAL, "--select-per", "row"], ["--select-per", "row", "head"]),
    ([*EVAL, "-ctk", "f99"], ["-ctk", "f99", "bf16"]),
    ([*EVAL, "--reference-type", "f99"], ["--reference-type", "f99", "bf16"]),
    ([*EVAL, "--needles", "65"], ["--needles", "65", "64"]),
    ([*EVAL, "--key-centre", "/no/such.txt"], ["/no/such.txt"]),
    ([*EVAL, "--kv-mode", "dense", "--plot", "x.svg"], ["--plot", "sparse"]),
    ([*EVAL, "--compress-keep", "0.5"], ["--compress-keep", "--generate"]),
    ([*EVAL, "--generate", "--compress-keep", "0.5,1.5"], ["--compress-keep", "1.5", "above 0 and below 1"]),
    ([*EVAL, "--generate", "--compress-score", "best"], ["--compress-score", "best", "last-queries"]),
    ([*EVAL, "--generate", "--compress-chunk", "none,big"], ["--compress-chunk", "big", "fixed=N"]),
    ([*EVAL, "--generate", "--compress-archive", "r5"], ["--compress-archive", "r5", "off"]),
    ([*EVAL, "--generate", "--compress-window", "100"], ["--compress-window", "100", "multiples of 16"]),
    ([*EVAL, "--generate", "-3"], ["--generate", "-3", "0 and more"]),
    ([*EVAL, "--generate", "600", "--length", "600", "--decode-tokens", "64"], ["--generate", "600", "--length"]),
    ([*EVAL, "--generate", "50", "--length", "600", "--decode-tokens", "64"], ["--decode-tokens", "64", "50"]),
    ([*EVAL, "--generate", "--recall-stride", "4"], ["--recall-stride", "--generate"]),
    ([*EVAL, "--json", "/no/such/folder/x.json"], ["/no/such/folder/x.json"]),

    ([*BENCH, "--depth", "0"], ["--depth", "0", "1"]),
    ([*BENCH, "--depth", "512,x"], ["--depth", "x"]),
    ([*BENCH, "--depth", "9000"], ["9000", "8192", "--ctx-size"]),
    ([*BENCH, "--depth", "9000", "-c", "9010"], ["9000", "9032", "9010", "8978"]),
    ([*BENCH, "--concurrency", "257"], ["--concurrency", "257", "256"]),
    ([*BENCH, "-t", "0"], ["--threads", "0", "512"]),
    ([*BENCH, "-ctk", "f99"], ["f99", "bf16"]),
    ([*BENCH, "--compare", "vllm"], ["--compare", "vllm", "llama.cpp"]),
    ([*BENCH, "--compare-settings", "fa=maybe"], ["fa", "maybe", "on"]),
    ([*BENCH, "--kv-fast-bytes", "0"], ["--kv-fast-bytes", "0"]),
    ([*BENCH, "--kv-mode", "sparse", "--on-miss", "bounded=2"], ["--on-miss", "bounded=2", "--kv-host-bytes"]),
    ([*BENCH, "--kv-host-bytes", "64MiB", "--on-miss", "bounded=2"], ["--on-miss", "bounded=2", "--token-budget"]),
    ([*BENCH, "--kv-mode", "sparse", "--lookahead", "layer"], ["--lookahead", "layer", "--kv-host-bytes"]),
    ([*BENCH, "--kv-mode", "sparse", "--variant", "fast@30%"], ["--variant", "fast", "previous, draft, probe"]),
    ([*BENCH, "--kv-mode", "sparse", "--variant", "layer@0%"], ["--variant", "layer@0%", "above 0 and up to 100"]),
    ([*BENCH, "--kv-mode", "sparse", "--variant", "resident@30%"], ["--variant", "resident@30%", "layer@30%"]),
    ([*BENCH, "--kv-mode", "sparse", "--variant", "layer@30%"], ["layer", "--kv-host-bytes"]),
    ([*BENCH, "--prompt-file", "/no/such.txt"], ["/no/such.txt"]),
    ([*BENCH, "--json", "/no/such/folder/x.json"], ["/no/such/folder/x.json"]),

    ([*SERVE, "-c", "1"], ["-c", "1", "2 to "]),
    ([*SERVE, "-t", "0"], ["-t", "0", "1 to 512"]),
    ([*SERVE, "-np", "0"], ["-np", "0", "1 to"]),
    ([*SERVE, "--max-num-batched-tokens", "0"], ["--max-num-batched-tokens", "0", "1 to"]),
    ([*SERVE, "--max-queue", "0"], ["--max-queue", "0", "1 to"]),
    ([*SERVE, "--scheduling-policy", "fair"], ["--scheduling-policy", "fair", "fcfs", "priority"]),
    ([*SERVE, "--kv-fast-bytes", "1KiB"], ["--kv-fast-bytes", "1024 bytes", "4096 bytes"]),
    ([*SERVE, "-ctk", "q8_0", "-ctv", "f32"], ["-ctk", "-ctv", "q8_0", "f32"]),
    ([*SERVE, "--block-index", "mean"], ["--block-index", "--token-budget"]),
    ([*SERVE, "--on-miss", "bounded=2"], ["--on-miss", "bounded=2", "--token-budget"]),
    ([*SERVE, "--on-miss", "bounded="], ["--on-miss", "bounded=", "bounded=N"]),
    ([*SERVE, "--lookahead", "layer,fast", *TIERED], ["--lookahead", "layer,fast", "previous, draft"]),
    ([*SERVE, "--lookahead", "layer"], ["--lookahead", "layer", "--kv-host-bytes"]),
    ([*SERVE, "--fetch-cap", "1MiB", *TIERED], ["--fetch-cap", "1MiB", "--lookahead"]),
    ([*SERVE, "--spec-type", "medusa"], ["--spec-type", "medusa", "none, ngram, draft-model, self"]),
    ([*SERVE, "--spec-type", "ngram", "--spec-draft-n-max", "65"], ["--spec-draft-n-max", "65", "1 to 64"]),
    ([*SERVE, "--speculative-config", '{"method":"eagle"}'], ["--speculative-config", "method", "eagle"]),
    ([*SERVE, "--token-budget", "512", "--dense-layers", "99"], ["--dense-layers", "99", "0 to 29"]),
    (["serve", "-m", MODEL, "--port", "65536"], ["--port", "65536", "0 to 65535"]),
    ([*SERVE, "--host", "nowhere.invalid"], ["--host", "nowhere.invalid"]),
    ([*SERVE, "--api-key", ""], ["--api-key", "empty"]),
    ([*SERVE, "--api-key-file", "/no/such.keys"], ["--api-key-file", "/no/such.keys"]),
    ([*SERVE, "--api-key-file", os.devnull], ["--api-key-file", "no key"]),
    ([*SERVE, "--ssl-key-file", "/no/such.pem"], ["--ssl-key-file", "--ssl-cert-file"]),
    ([*SERVE, "--ssl-key-file", "/no/k.pem", "--ssl-cert-file", "/no/c.pem"], ["--ssl-cert-file",
                                                                              "/no/c.pem"]),
    ([*SERVE, "--max-body-bytes", "1"], ["--max-body-bytes", "1", "1KiB to 1GiB"]),
    ([*SERVE, "--threads-http", "0"], ["--threads-http", "0", "1 to 64"]),
    ([*SERVE, "--timeout", "0"], ["--timeout", "0", "1 to 86400"]),
    ([*SERVE, "--idle-timeout", "-5"], ["--idle-timeout", "-5", "1 to 86400"]),
    ([*SERVE, "--shutdown-timeout", "-1"], ["--shutdown-timeout", "-1", "0 to 86400"]),
    ([*SERVE, "--log-jsonl", "/no/such/folder/log"], ["--log-jsonl", "/no/such/folder/log"]),
    ([*SERVE, "--chat-template", "klingon"], ["--chat-template", "klingon"]),
    ([*SERVE, "--kv-disk-path", "/tmp"], ["--kv-disk-path", "/tmp", "--kv-disk-bytes"]),
    ([*SERVE, "--kv-disk-path", "", "--kv-disk-bytes", "1GiB"], ["--kv-disk-path", "empty", "a folder"]),
    ([*SERVE, "--kv-disk-path", "/no/such/folder", "--kv-disk-bytes", "1GiB"], ["--kv-disk-path", "/no/such/folder"]),
    ([*SERVE, "--kv-disk-path", "/tmp", "--kv-disk-bytes", "1"], ["--kv-disk-bytes is 1, allowed are"]),
    ([*SERVE, "--kv-disk-path", "/tmp", "--kv-disk-bytes", "1GiB", "--kv-disk-prefix-bytes", "1MiB"],
     ["--kv-disk-prefix-bytes is 1048576, allowed are"]),
    ([*SERVE, "--kv-disk-bytes", "1GiB", "--kv-disk-prefix-bytes", "1MiB"], ["--kv-disk-prefix-bytes", "--kv-disk-path"]),
    ([*SERVE, "--kv-disk-path", "/tmp", "--kv-disk-bytes", "1GiB", "--kv-disk-prefix-bytes", "2GiB"],
     ["--kv-disk-prefix-bytes", "2GiB", "1GiB"]),
    ([*SERVE, "--kv-disk-path", "/tmp", "--kv-disk-bytes", "1GiB", "--no-prefix-cache"],
     ["--kv-disk-path", "--no-prefix-cache"]),
    ([*SERVE, "--kv-remote", "http://pool"], ["--kv-remote", "redis://"]),
    ([*SERVE, "--kv-remote", "redis://pool", "--kv-remote-ca", "x"],
     ["--kv-remote-ca is x", "needs --kv-remote rediss://"]),
    ([*SERVE, "--kv-remote", "rediss://pool", "--kv-remote-cert", "x"],
     ["--kv-remote-cert is x", "needs --kv-remote-key"]),
    ([*SERVE, "--kv-remote", "rediss://pool", "--kv-remote-ca", "/missing"],
     ["--kv-remote-ca /missing", "No such file"]),
    ([*SERVE, "--kv-remote", "redis://pool", "--kv-disk-path", "/tmp", "--kv-disk-bytes", "1GiB"],
     ["--kv-remote", "--kv-disk-path", "one of"]),
    ([*SERVE, "--kv-load-timeout", "0"], ["--kv-load-timeout", "0.001 to 3600"]),
    ([*GENERATE, "--kv-disk-path", "/tmp"], ["--kv-disk-path", "/tmp", "--kv-disk-bytes"]),
]


def run(arguments):
    return subprocess.run([KAREZ, *arguments], capture_output=True, timeout=60,
                          stdin=subprocess.DEVNULL)


class WrongInput(unittest.TestCase):
    def assert_refused(self, arguments, needles):
        result = run(arguments)
        text = result.stderr.decode(errors="replace")
        said = f"{arguments}: {result.returncode}: {text}"
        self.assertEqual(result.returncode, 2, said)
        self.assertEqual(result.stdout, b"", said)
        self.assertEqual(text.count("\n"), 1, said)
        self.assertTrue(text.startswith("karez: error: "), said)
        for needle in needles:
            self.assertIn(needle, text, said)

    def test_it_is_refused_in_one_line(self):
        for arguments, needles in CASES:
            with self.subTest(arguments=arguments):
                self.assert_refused(arguments, needles)

    def test_an_address_that_cannot_be_had_is_named(self):
        result = run([*SERVE, "--host", "192.0.2.1"])
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
        self.assertIn(b"192.0.2.1", result.stderr)

    def test_a_port_in_use_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            result = run(["serve", "-m", MODEL, "--port", port])
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
            self.assertIn(port.encode(), result.stderr)

    def test_broken_model_files_are_refused(self):
        with open(MODEL, "rb") as model, tempfile.TemporaryDirectory() as folder:
            head = model.read(1 << 20)
            for length in (0, 3, 4, 1000, 1 << 20):
                path = os.path.join(folder, f"cut-{length}.gguf")
                with open(path, "wb") as file:
                    file.write(head[:length])
                for command in (["generate", "-p", "hi", "-m"], ["inspect", "-m"],
                                ["serve", "--port", "0", "-m"]):
                    with self.subTest(length=length, command=command):
                        self.assert_refused([*command, path], [path])


class Repeated(unittest.TestCase):
    def test_the_last_of_a_repeated_flag_counts_and_one_kv_type_is_both(self):
        result = run([*GENERATE, "-n", "0", "-n", "1", "-t", "0", "-t", "1", "-ctk", "f32", "-m", MODEL])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"-ctk is f32, and so is -ctv", result.stderr)


class Signals(unittest.TestCase):
    def start(self, arguments):
        # A job in the background of a script may have SIGINT ignored, and so would its children.
        process = subprocess.Popen([KAREZ, *arguments], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    # The delays fall into the reading of the model and into the time after it.
    def test_a_signal_ends_generate(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for delay in (0.1, 0.3, 1.5):
                with self.subTest(signal=number, delay=delay):
                    process = self.start([*GENERATE[:3], "-p", "Tell a long story.", "-n", "4000",
                                          "--ignore-eos"])
                    time.sleep(delay)
                    process.send_signal(number)
                    start = time.monotonic()
                    code = process.wait(30)
                    self.assertIn(code, (130, -number))
                    self.assertLess(time.monotonic() - start, 5)

    def test_a_signal_ends_serve(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for delay in (0.1, 0.3, 1.5):
                with self.subTest(signal=number, delay=delay):
                    process = self.start(SERVE)
                    time.sleep(delay)
                    process.send_signal(number)
                    start = time.monotonic()
                    code = process.wait(30)
                    self.assertIn(code, (0, -number))
                    self.assertLess(time.monotonic() - start, 5)


if __name__ == "__main__":
    unittest.main()

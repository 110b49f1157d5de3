#!/usr/bin/env python3
"""Measures what speculative decoding does to the speed of `karez generate`.

  bench/spec_bench.py -m MODEL.gguf --texts build/eval-texts
  bench/spec_bench.py -m MODEL.gguf --texts build/eval-texts --task long --spec-type self

Each run is done with and without drafts, one right after the other and each time in the other
order, so that a slow minute of the machine meets both; figures are medians of the pairs. Tasks:

  copy   a text of about 1,500 tokens, then "Copy:" and the beginning of its copy with a name
         changed, which a small model goes on with (greedy)
  asked  the same text in a chat that asks to repeat it with a name changed (greedy); how well it
         does so is the model's affair
  prose  a novel goes on freely (temperature 0.8, another place and seed each time)
  long   the same after about 7,000 tokens (greedy)

Needs only Python's standard library. Prints JSON; rates are in tokens per second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

BYTES_PER_TOKEN = 4.3  # about, of English; the figures have the number of tokens


def excerpt(text, tokens, at):
    """About so many tokens from a beginning of a paragraph; `at` from 0 to 1."""
    start = text.find("\n\n", int(len(text) * at)) + 2
    return text[start:start + int(tokens * BYTES_PER_TOKEN)].rsplit(" ", 1)[0]


class Tasks:
    """Prompt and flags of a run, by the name of the task and the number of the pair."""

    def __init__(self, folder):
        self.folder = folder

    def read(self, name):
        with open(os.path.join(self.folder, name + ".txt"), encoding="utf-8") as file:
            return file.read()

    def edited(self, pair):
        text = excerpt(self.read("handbook"), 1500, 0.02 + 0.15 * pair)
        return text, text.replace("server", "machine").replace("Debian", "Karez")

    def copy(self, pair):
        text, changed = self.edited(pair)
        begun = changed[:int(100 * BYTES_PER_TOKEN)].rsplit(" ", 1)[0]
        return f"{text}\n\nCopy:\n{begun}", ["--raw", "-n", "400", "--temp", "0"]

    def asked(self, pair):
        text, _ = self.edited(pair)
        return ("Repeat the text below word for word, but write \"machine\" instead of \"server\". "
                f"Answer with the text only.\n\n{text}", ["-n", "400", "--temp", "0"])

    def prose(self, pair):
        text = excerpt(self.read("novel"), 600, 0.1 + 0.15 * pair)
        return text, ["--raw", "-n", "300", "--temp", "0.8", "-s", str(pair + 1)]

    def long(self, pair):
        text = excerpt(self.read("novel"), 7000, 0.1 + 0.1 * pair)
        return text, ["--raw", "-n", "96", "--temp", "0"]


def generate(options, prompt, flags):
    """The figures of the run, and its text."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "run.json")
        with open(os.path.join(folder, "prompt.txt"), "w", encoding="utf-8") as file:
            file.write(prompt)
        result = subprocess.run(
            [options.karez, "generate", "-m", options.model, "-f", file.name, "--json", report,
             *(["-t", str(options.threads)] if options.threads else []), *flags],
            capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"spec_bench.py: {result.stderr}")
        with open(report, encoding="utf-8") as file:
            return {**json.load(file)["runs"][0], "text": result.stdout}


def measure(options, tasks, task):
    pairs = []
    for pair in range(options.pairs):
        prompt, flags = getattr(tasks, task)(pair)
        arms = {"plain": flags,
                "drafts": [*flags, "--spec-type", options.spec_type, *options.spec_flags.split()]}
        run = {arm: generate(options, prompt, arms[arm])
               for arm in sorted(arms, reverse=pair % 2 == 1)}
        plain, drafts = run["plain"], run["drafts"]
        speculation = drafts["speculation"]
        pairs.append({
            "prompt_tokens": plain["prompt_tokens"],
            "generated_tokens": drafts["generated_tokens"],
            "plain": plain["decode_tokens_per_second"],
            "drafts": drafts["decode_tokens_per_second"],
            "ratio": drafts["decode_tokens_per_second"] / plain["decode_tokens_per_second"],
            "steps": drafts["decode_steps"],
            "draft_tokens": speculation["draft_tokens"],
            "accepted_tokens": speculation["accepted_tokens"],
            "switched_off": speculation["switched_off"],
            "propose_seconds": speculation["propose_seconds"],
            "same_text": plain["text"] == drafts["text"]})
        print(f"{task} {pair}: {json.dumps(pairs[-1])}", file=sys.stderr)

    def median(key):
        return round(statistics.median(one[key] for one in pairs), 4)
    return {"ratio": median("ratio"), "plain": median("plain"), "drafts": median("drafts"),
            "accepted_per_step": round(sum(one["accepted_tokens"] for one in pairs) /
                                       max(1, sum(one["steps"] for one in pairs)), 3),
            "acceptance": round(sum(one["accepted_tokens"] for one in pairs) /
                                max(1, sum(one["draft_tokens"] for one in pairs)), 3),
            "same_texts": sum(one["same_text"] for one in pairs), "pairs": pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--karez", default="build/release/karez", help="(build/release/karez)")
    parser.add_argument("--texts", required=True, metavar="FOLDER",
                        help="of scripts/eval_texts.sh, or with handbook.txt and novel.txt")
    parser.add_argument("--task", action="append", choices=["copy", "asked", "prose", "long"],
                        help="may be given several times (copy, asked, prose)")
    parser.add_argument("--spec-type", default="ngram", help="(ngram)")
    parser.add_argument("--spec-flags", default="", help="more flags of the runs with drafts")
    parser.add_argument("--pairs", type=int, default=5, help="of runs, 1 to 6 (5)")
    parser.add_argument("-t", "--threads", type=int, help="(karez's own choice)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    options = parser.parse_args()
    if not 1 <= options.pairs <= 6:
        parser.error(f"--pairs is {options.pairs}, allowed are 1 to 6")
    tasks = Tasks(options.texts)
    result = {"model": os.path.basename(options.model), "spec_type": options.spec_type,
              "tasks": {task: measure(options, tasks, task)
                        for task in options.task or ["copy", "asked", "prose"]}}
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()

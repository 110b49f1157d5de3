"""Speculative decoding as users meet it: flags, the closing table, the OpenAI client, metrics."""

import json
import os
import subprocess
import tempfile
import unittest

import openai

from harness import real_server

KAREZ = os.environ["KAREZ_BINARY"]
MODEL = os.environ["KAREZ_MODEL"]
OTHER_MODEL = os.path.join(os.path.dirname(MODEL), "gemma-3-270m-q4_k_m.gguf")
NAME = "test-model"
# What it says again is drafted.
TEXT = "Write this list twice: apple, pear, plum, cherry, quince, apple, pear, plum, cherry, quince."


def metric(metrics, name):
    """Whatever its labels are."""
    return sum(value for key, value in metrics.items() if key.split("{")[0] == name)


class Served(unittest.TestCase):
    # f32 keys and values, as in test_openai_client.py.
    @staticmethod
    def serve(*flags):
        return real_server("--alias", NAME, "-c", 1024, "-np", 4, "-t", 2, "-ctk", "f32", *flags)

    def ask(self, server, **fields):
        with openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as client:
            answer = client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": TEXT}],
                **{"temperature": 0, "max_tokens": 60, **fields})
            return list(answer) if fields.get("stream") else answer

    def test_the_client_gets_the_same_answer_and_learns_what_was_drafted(self):
        with self.serve() as server:
            plain = self.ask(server)
            self.assertIsNone(plain.usage.completion_tokens_details)
            self.assertEqual(metric(server.metrics(), "vllm:spec_decode_num_draft_tokens_total"), 0)
        with self.serve("--spec-type", "ngram", "--spec-draft-n-min", 4) as server:
            whole = self.ask(server)
            details = whole.usage.completion_tokens_details
            self.assertGreater(details.accepted_prediction_tokens, 0)
            self.assertGreaterEqual(details.rejected_prediction_tokens, 0)
            self.assertEqual(whole.choices[0].message.content, plain.choices[0].message.content)
            self.assertEqual(whole.usage.completion_tokens, plain.usage.completion_tokens)

            metrics = server.metrics()
            drafted = metric(metrics, "vllm:spec_decode_num_draft_tokens_total")
            accepted = metric(metrics, "vllm:spec_decode_num_accepted_tokens_total")
            self.assertEqual(accepted, details.accepted_prediction_tokens)
            self.assertEqual(drafted - accepted, details.rejected_prediction_tokens)
            self.assertGreater(metric(metrics, "vllm:spec_decode_num_drafts_total"), 0)
            self.assertEqual(
                metric(metrics, "vllm:spec_decode_num_accepted_tokens_per_pos_total"), accepted)

            chunks = self.ask(server, stream=True, stream_options={"include_usage": True})
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            self.assertEqual(text, plain.choices[0].message.content)
            self.assertEqual(chunks[-1].usage.completion_tokens, plain.usage.completion_tokens)
            self.assertGreater(
                chunks[-1].usage.completion_tokens_details.accepted_prediction_tokens, 0)

    def test_choices_logprobs_and_stops_with_drafts(self):
        fields = {"n": 2, "logprobs": True, "top_logprobs": 2, "stop": ["quince"]}
        with self.serve() as server:
            plain = self.ask(server, **fields)
        with self.serve("--speculative-config",
                        '{"method": "ngram", "num_speculative_tokens": 6}') as server:
            drafted = self.ask(server, **fields)
        for one, other in zip(drafted.choices, plain.choices):
            self.assertEqual(one.message.content, other.message.content)
            self.assertEqual(one.finish_reason, other.finish_reason)
            self.assertEqual([t.token for t in one.logprobs.content],
                             [t.token for t in other.logprobs.content])


class Generated(unittest.TestCase):
    def generate(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "run.json")
            result = subprocess.run(
                [KAREZ, "generate", "-m", MODEL, "-p", TEXT, "-n", "40", "--temp", "0", "-c", "1024",
                 "-ctk", "f32", "--json", report, *flags],
                capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(report) as file:
                return result, json.load(file)["runs"][0]

    def test_the_answer_is_the_same_and_the_table_says_who_drafted(self):
        plain, report = self.generate()
        self.assertNotIn("drafts ", plain.stderr)
        self.assertIsNone(report["speculation"])
        for name, flags in {
                "ngram": ["--spec-type", "ngram", "--spec-draft-n-min", "2"],
                "self": ["--spec-type", "self", "--spec-draft-n-min", "2"],
                "draft-model": ["-md", MODEL, "--spec-draft-n-min", "2"],
                "none": ["--spec-type", "none"]}.items():
            with self.subTest(drafter=name):
                result, report = self.generate(*flags)
                self.assertEqual(result.stdout, plain.stdout)
                self.assertEqual(report["spec_type"], name)
                if name == "none":
                    continue
                speculation = report["speculation"]
                self.assertIn(f"drafts     {name}: {speculation['accepted_tokens']} of "
                              f"{speculation['draft_tokens']} drafts accepted", result.stderr)
                self.assertGreater(speculation["accepted_tokens"], 0)
                self.assertLess(report["decode_steps"], report["generated_tokens"])


class Refused(unittest.TestCase):
    def test_flags_that_cannot_be_are_refused_in_one_line(self):
        config = "--speculative-config"
        for flags, needles in [
                (["-md", OTHER_MODEL], ["--spec-draft-model", OTHER_MODEL, "vocabulary"]),
                (["-md", "/no/such.gguf"], ["--spec-draft-model", "/no/such.gguf"]),
                (["--spec-type", "eagle"], ["--spec-type", "eagle", "ngram, draft-model, self"]),
                (["--spec-type", "draft-model"], ["--spec-draft-model"]),
                (["--spec-type", "ngram", "-md", MODEL], ["--spec-draft-model", "draft-model"]),
                (["--spec-draft-n-max", "3"], ["--spec-draft-n-max", "--spec-type"]),
                (["--spec-type", "ngram", "--spec-draft-n-max", "65"],
                 ["--spec-draft-n-max", "65", "1 to 64"]),
                ([config, "{"], [config, "JSON"]),
                ([config, '{"method": "eagle3"}'], [config, "eagle3", "ngram, draft_model, self"]),
                ([config, '{"method": "ngram", "prompt_lookup_max": 0}'],
                 [config, "prompt_lookup_max", "1 to 64"]),
                ([config, '{"method": "ngram"}', "--spec-type", "self"], ["--spec-type", config])]:
            for command in (["generate", "-p", "hi"], ["serve", "--port", "0"]):
                with self.subTest(flags=flags, command=command[0]):
                    result = subprocess.run([KAREZ, *command, "-m", MODEL, *flags],
                                            capture_output=True, text=True, timeout=60,
                                            stdin=subprocess.DEVNULL)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertEqual(result.stdout, "")
                    self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                    for needle in needles:
                        self.assertIn(needle, result.stderr)


if __name__ == "__main__":
    unittest.main()

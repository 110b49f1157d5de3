"""scripts/disaggregated.sh: its answer is that of one process, and its nodes have one role each."""

import os
import signal
import subprocess
import tempfile
import unittest

import harness
import test_disaggregated as nodes

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts",
                      "disaggregated.sh")
# Of the script.
QUESTION = "What is this text about? Answer in two sentences."
FIELDS = {"max_tokens": 200, "temperature": 0, "repeat_penalty": 1.1}
TEXT = "\n".join(nodes.PROMPT.replace("keeper", who) for who in ("keeper", "harbour master"))


class DisaggregatedScript(unittest.TestCase):

    def run_script(self, admit):
        """(what it answers, what it says besides)"""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write(TEXT)
            text.flush()
            script = subprocess.Popen(
                ["bash", SCRIPT, admit], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "KAREZ": os.environ["KAREZ_BINARY"],
                     "MODEL": os.environ["KAREZ_MODEL"], "TEXT": text.name}, start_new_session=True)
            try:
                answer, log = script.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                os.killpg(script.pid, signal.SIGKILL)  # and the servers that it has started
                _, log = script.communicate()
                self.fail(log)
            self.assertEqual(script.returncode, 0, log)
            return answer, log

    def expect_answer_of_one_process(self, admit, *flags):
        answer, log = self.run_script(admit)
        with harness.real_server(*flags) as server:
            status, alone = server.chat(f"{TEXT}\n\n{QUESTION}", **FIELDS)
            self.assertEqual(status, 200, alone)
            self.assertEqual(answer, alone["choices"][0]["message"]["content"] + "\n")
        for said in ("prefill: karez_kv_export_requests_total 1",
                     "decode: karez_kv_admit_requests_total 1",
                     "decode: karez_kv_admit_failed_total 0",
                     "router: karez_route_hand_overs_total 1"):
            self.assertIn(said, log)
        # A node has the figures of its role alone.
        self.assertNotIn("prefill: karez_kv_admit", log)
        self.assertNotIn("decode: karez_kv_export", log)

    def test_a_sparse_admission(self):
        self.expect_answer_of_one_process("sparse", "--token-budget", 512)

    def test_a_full_admission(self):
        self.expect_answer_of_one_process("full")


if __name__ == "__main__":
    unittest.main()

"""The official Python client against karez serve with a real model."""

import asyncio
import json
import os
import subprocess
import unittest

import jinja2
import openai

from harness import real_server
from gguf_metadata import read_text

NAME = "test-model"


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = real_server("--alias", NAME, "--api-key", "k", "--api-key", "other", "-np", 8, "-t", 2)
        cls.base_url = cls.server.url + "/v1"
        cls.client = openai.OpenAI(base_url=cls.base_url, api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def ask(self, text, **fields):
        return self.client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": text}],
            **{"temperature": 0, "max_tokens": 24, **fields})

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [NAME])
        self.assertEqual(self.client.models.retrieve(NAME).id, NAME)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_a_stream_says_what_the_whole_answer_says(self):
        whole = self.ask("Name three colours.")
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(whole.usage.total_tokens,
                         whole.usage.prompt_tokens + whole.usage.completion_tokens)
        chunks = list(self.ask("Name three colours.", stream=True,
                               stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)

    def test_a_repeated_prompt_is_found_in_the_cache(self):
        text = "The quick brown fox jumps over the lazy dog. " * 8
        self.ask(text, max_tokens=1)
        again = self.ask(text, max_tokens=1)
        cached = again.usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, again.usage.prompt_tokens - 32)
        self.assertLess(cached, again.usage.prompt_tokens)
        fresh = self.ask(text, max_tokens=1, extra_body={"cache_salt": "another"})
        self.assertEqual(fresh.usage.prompt_tokens_details.cached_tokens, 0)

    def test_another_key_does_not_learn_what_was_cached(self):  # case I8
        text = "A long text that only one client has sent so far. " * 20
        self.ask(text, max_tokens=1)
        with openai.OpenAI(base_url=self.base_url, api_key="other", max_retries=0) as other:
            for extra in ({}, {"cache_salt": "s"}):
                self.ask(text, max_tokens=1, extra_body=extra)
                answer = other.chat.completions.create(
                    model=NAME, messages=[{"role": "user", "content": text}], max_tokens=1,
                    extra_body=extra)
                self.assertEqual(answer.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertGreater(self.ask(text, max_tokens=1).usage.prompt_tokens_details.cached_tokens, 0)

    def test_wrong_fields_are_bad_requests_with_their_name(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask("hi", temperature=-3)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask("word " * 20000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        wrong = openai.OpenAI(base_url=self.base_url, api_key="wrong", max_retries=0)
        with self.assertRaises(openai.AuthenticationError):
            wrong.models.list()
        wrong.close()

    def test_structured_output_is_valid_under_its_schema(self):
        schema = {"type": "object", "additionalProperties": False,
                  "properties": {"name": {"type": "string", "maxLength": 20},
                                 "age": {"type": "integer", "minimum": 18, "exclusiveMaximum": 41},
                                 "tags": {"type": "array", "items": {"enum": ["a", "b"]},
                                          "maxItems": 3}},
                  "required": ["name", "age", "tags"]}
        answer = self.ask("Describe a person.", max_tokens=200, response_format={
            "type": "json_schema", "json_schema": {"name": "person", "schema": schema}})
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        person = json.loads(answer.choices[0].message.content)
        self.assertEqual(list(person), ["name", "age", "tags"])
        self.assertIn(person["age"], range(18, 41))
        self.assertLessEqual(set(person["tags"]), {"a", "b"})

    def test_logprobs(self):
        answer = self.ask("Say hello.", max_tokens=5, logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for token in content:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=4)

    def test_several_choices_and_stop_texts(self):
        answer = self.ask("Count from one to ten.", n=3, temperature=1, seed=1, stop=["\n", "4"])
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        for choice in answer.choices:
            self.assertNotIn("4", choice.message.content)

    def test_completions(self):
        answer = self.client.completions.create(
            model=NAME, prompt=["Once upon a time", "The capital of France is"], max_tokens=4,
            temperature=0, logprobs=2, extra_body={"ignore_eos": True})
        self.assertEqual(len(answer.choices), 2)
        for choice in answer.choices:
            self.assertEqual(len(choice.logprobs.tokens), 4)
            self.assertEqual("".join(choice.logprobs.tokens), choice.text)
            self.assertEqual(choice.finish_reason, "length")

    def test_control_tokens_in_user_text_stay_text(self):
        status, answer = self.server.post(
            "/tokenize", {"content": "<|im_end|>", "parse_special": False},
            {"Authorization": "Bearer k"})
        self.assertEqual(status, 200)
        self.assertGreater(answer["count"], 1)

    def test_32_at_once_are_answered_as_if_alone(self):
        prompts = [f"What is {i} plus {i + 1}?" for i in range(32)]

        # f32 keys and values: a batch then rounds like a request alone.
        server = real_server("--alias", NAME, "-np", 32, "-c", 512, "-t", 2, "-ctk", "f32")
        self.addCleanup(server.__exit__)

        def alone(prompt):
            status, answer = server.chat(prompt, temperature=0, max_tokens=8, cache_prompt=False)
            self.assertEqual(status, 200, answer)
            return answer["choices"][0]["message"]["content"]

        async def all_at_once():
            client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k",
                                        max_retries=0)
            answers = await asyncio.gather(*(client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": prompt}], temperature=0,
                max_tokens=8) for prompt in prompts))
            await client.close()
            return answers

        answers = asyncio.run(all_at_once())
        self.assertEqual([answer.choices[0].message.content for answer in answers],
                         [alone(prompt) for prompt in prompts])

    def test_the_chat_template_is_rendered_as_by_jinja(self):
        jinja = jinja2.Environment().from_string(
            read_text(os.environ["KAREZ_MODEL"], "tokenizer.chat_template"))
        user, assistant = ({"role": role, "content": f" What\n\nis <b>{role}</b>? "}
                           for role in ("user", "assistant"))
        system = {"role": "system", "content": "Be brief."}
        for messages in ([user], [system, user], [user, assistant, user], [system, user, assistant],
                         [user, system], [system], [assistant], [user, user]):
            for generation in (True, False):
                status, answer = self.server.post(
                    "/apply-template",
                    {"messages": messages, "add_generation_prompt": generation},
                    {"Authorization": "Bearer k"})
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["prompt"], jinja.render(
                    messages=messages, add_generation_prompt=generation))

    def test_curl(self):
        result = subprocess.run(
            ["curl", "-sS", "--fail", "-m", "60", self.server.url + "/v1/chat/completions", "-H",
             "Authorization: Bearer k", "-d",
             json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})],
            capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(result.stdout)["object"], "chat.completion")


if __name__ == "__main__":
    unittest.main()

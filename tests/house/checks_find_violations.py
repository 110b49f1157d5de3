"""Feeds each check a small tree that violates its rule, and one that does not."""

import pathlib
import tempfile
import unittest

import file_comments
import file_sizes
import forbidden_words
import include_rule
import library_headers
import own_header_first
import run_checks
import stray_files


def problems(check, files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return list(check.check(root))


class ChecksFindViolations(unittest.TestCase):
    def finds(self, check, path, text, part):
        found = problems(check, {path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(path, found[0])
        self.assertIn(part, found[0])

    def accepts(self, check, path, text):
        self.assertEqual(problems(check, {path: text}), [])

    def test_include_rule(self):
        self.finds(include_rule, "src/kv/a.h", '\n#include "attention/b.h"\n', "may include base")
        self.finds(include_rule, "src/base/a.cpp", '#include "kv/b.h"\n', "nothing of ours")
        self.finds(include_rule, "src/sched/a.cpp", ' #  include "model/b.h"\n', "sampling")
        self.finds(include_rule, "src/kv/a.h", '#include "b.h"\n', "folder/file.h")
        self.finds(include_rule, "src/kv/a.h", '#include "../base/b.h"\n', "folder/file.h")
        self.finds(include_rule, "src/new/a.h", "\n", "no row")
        self.accepts(include_rule, "src/attention/a.h", '#include "kv/b.h"\n#include <vector>\n')
        self.accepts(include_rule, "src/kv/a.h", '#include "kv/b.h"\n// #include "model/b.h"\n')

    def test_include_rule_inside_a_folder(self):
        self.finds(include_rule, "src/kv/tier/a.h", '#include "kv/block_pool.h"\n', "kv/kv_types.h")
        self.accepts(include_rule, "src/kv/tier/a.h",
                     '#include "kv/kv_types.h"\n#include "kv/tier/b.h"\n#include "base/c.h"\n')
        self.accepts(include_rule, "src/kv/a.h", '#include "kv/tier/b.h"\n')

    def test_include_rule_in_the_document(self):
        rows = [f"| `{folder}` | {', '.join(f'`{name}`' for name in allowed)} |"
                for folder, allowed in include_rule.MAY_INCLUDE.items()]
        self.accepts(include_rule, include_rule.DOCUMENT, "\n".join(rows))
        self.finds(include_rule, include_rule.DOCUMENT, "\n".join(rows[:-1]), "row of cli")
        self.finds(include_rule, include_rule.DOCUMENT,
                   "\n".join(rows).replace("| `kv` | `base`", "| `kv` | `base`, `model`"),
                   "row of kv")

    def test_library_headers(self):
        for header in ("ggml.h", "gguf.h", "llama.h", "ggml-cpu.h", "ggml-backend.h"):
            self.finds(library_headers, "src/kv/a.h", f"#include <{header}>\n", "src/model/")
            self.finds(library_headers, "tests/unit/kv/a.cpp", f'#include "{header}"\n', "src/model/")
            self.accepts(library_headers, "src/model/a.h", f"#include <{header}>\n")
        self.finds(library_headers, "src/engine/a.cpp", "#include <CLI/CLI.hpp>\n", "CLI11")
        self.finds(library_headers, "src/kv/a.cpp", "#include <nlohmann/json.hpp>\n", "nlohmann")
        self.finds(library_headers, "src/kv/a.cpp", "#include <liburing.h>\n", "src/kv/tier/")
        self.accepts(library_headers, "src/kv/a.cpp", '#include "model/ggml_model_runner.h"\n')

    def test_own_header_first(self):
        for text in ("", "#include <vector>\n", '#include "kv/b.h"\n#include "kv/a.h"\n', "#include <kv/a.h>\n"):
            found = problems(own_header_first, {"src/kv/a.h": "", "src/kv/a.cpp": text})
            self.assertEqual(len(found), 1, text)
            self.assertIn("src/kv/a.cpp", found[0])
        self.assertEqual(problems(own_header_first, {
            "src/kv/a.h": "", "src/kv/a.cpp": '// A.\n#include "kv/a.h"\n#include <vector>\n',
            "src/kv/c.cpp": "#include <vector>\n"}), [])

    def test_stray_files(self):
        self.finds(stray_files, "--help", "", "named like a flag")
        self.finds(stray_files, "docs/a.bin", "x" * (stray_files.MAX_BYTES + 1), "at most")
        self.accepts(stray_files, "docs/a.bin", "x" * stray_files.MAX_BYTES)
        self.accepts(stray_files, "models/a.gguf", "x" * (stray_files.MAX_BYTES + 1))

    def test_file_sizes(self):
        self.finds(file_sizes, "src/kv/a.h", "\n" * 301, "at most 300")
        self.finds(file_sizes, "tests/unit/a.cpp", "\n" * 601, "at most 600")
        self.accepts(file_sizes, "src/kv/a.h", "\n" * 300)
        self.accepts(file_sizes, "src/kv/a.cpp", "\n" * 600)

    def test_forbidden_words(self):
        self.finds(forbidden_words, "src/kv/a.cpp", 'std::getenv("X");\n', "environment")
        self.finds(forbidden_words, "src/kv/a.cpp", 'option->envname("X");\n', "environment")
        self.finds(forbidden_words, "src/kv/a.cpp", 'setenv("X", "1", 1);\n', "environment")
        self.finds(forbidden_words, "src/kv/a.cpp", "\n// TO" "DO: later\n", ":2: TO" "DO")
        self.accepts(forbidden_words, "src/cli/a_flags.cpp", 'option->envname("X");\n')
        self.accepts(forbidden_words, "src/kv/a.cpp", "int mastodon; // MASTO" "DON\n")

    def test_file_comments(self):
        self.finds(file_comments, "src/kv/a.h", "#pragma once\n", ":1:")
        self.finds(file_comments, "src/kv/a.h", "// A thing.\n", "pragma once")
        self.accepts(file_comments, "src/kv/a.h", "// A thing.\n#pragma once\n")

    def test_program_fails_on_a_violation(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "src" / "kv"
            source.mkdir(parents=True)
            self.assertEqual(run_checks.main([folder]), 0)
            (source / "a.h").write_text('#include "model/b.h"\n', encoding="utf-8")
            self.assertEqual(run_checks.main([folder]), 1)


if __name__ == "__main__":
    unittest.main()

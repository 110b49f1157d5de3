"""Each header begins with a comment that says what it is, and is protected by #pragma once."""

import source_tree


def check(root):
    for path in source_tree.cpp_files(root):
        if path.suffix != ".h":
            continue
        text = source_tree.lines(root, path)
        if not text or not text[0].startswith("// "):
            yield f"{path}:1: a header begins with a // comment: what it is, threads, ownership"
        if "#pragma once" not in text:
            yield f"{path}: has no #pragma once"

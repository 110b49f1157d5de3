"""Words that must not stand in the sources, or in one place only."""

import re

import source_tree

_ENVIRONMENT = re.compile(r"\b(secure_)?getenv\b|\b(set|put)env\b|\benvname\b")
_ENVIRONMENT_ALLOWED = ("src/cli/", "tests/", "bench/")
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")


def check(root):
    for path in source_tree.cpp_files(root):
        for number, line in enumerate(source_tree.lines(root, path), start=1):
            if _ENVIRONMENT.search(line) and not str(path).startswith(_ENVIRONMENT_ALLOWED):
                yield (f"{path}:{number}: uses the environment; options reach a class through its "
                       "arguments, and src/cli alone reads the environment")
            if _UNFINISHED.search(line):
                yield (f"{path}:{number}: {_UNFINISHED.search(line).group()}; finish it, or write "
                       f"down the limit as one")

"""Runs the checks of this folder on a source tree: run_checks.py ROOT CHECK..."""

import importlib
import pathlib
import sys

CHECKS = ("include_rule", "library_headers", "own_header_first", "file_sizes", "forbidden_words",
          "file_comments", "stray_files")


def main(arguments):
    root = pathlib.Path(arguments[0])
    problems = []
    for name in arguments[1:] or CHECKS:
        problems += importlib.import_module(name).check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

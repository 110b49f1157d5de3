"""Files that a reader can hold in the head: one idea each, a few hundred lines."""

import source_tree

MAX_LINES = {".h": 300, ".cpp": 600}


def check(root):
    for path in source_tree.cpp_files(root):
        count = len(source_tree.lines(root, path))
        limit = MAX_LINES[path.suffix]
        if count > limit:
            yield f"{path}: {count} lines; at most {limit} are allowed, split it by idea"

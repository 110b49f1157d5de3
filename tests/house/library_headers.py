"""Each library is included from the folders that wrap it, and nowhere else."""

import re

import source_tree

# header pattern -> (name for the message, folders that may include it)
RULES = (
    (re.compile(r"^(ggml|gguf|llama)([-.]|$).*"), "ggml and libllama",
     ("src/model/", "tests/support/")),
    (re.compile(r"^CLI/"), "CLI11", ("src/cli/", "tests/unit/cli/")),
    (re.compile(r"^nlohmann/"), "nlohmann-json",
     ("src/cli/", "src/engine/", "src/server/", "src/route/", "tests/", "fuzz/")),
    (re.compile(r"^liburing"), "liburing", ("src/kv/tier/", "bench/tier_bench.cpp")),
    (re.compile(r"^uc[pst]/"), "UCX", ("src/remote/",)),
    (re.compile(r"^(boost|prometheus)/"), "the HTTP and metrics libraries",
     ("src/server/", "src/route/", "tests/")),
    (re.compile(r"^hiredis/"), "hiredis", ("src/kv/store/",)),
    (re.compile(r"^openssl/"), "OpenSSL", ("src/remote/", "src/server/", "src/route/", "src/kv/store/", "tests/")),
)


def check(root):
    for path in source_tree.cpp_files(root):
        for include in source_tree.includes(root, path):
            for pattern, name, folders in RULES:
                if pattern.match(include.path) and not str(path).startswith(folders):
                    yield (f"{path}:{include.line}: includes {include.path}; {name} may be included "
                           f"in {', '.join(folders)} only")

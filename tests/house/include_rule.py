"""Which folder of src/ may include which. docs/architecture.md shows the same table."""

import re

import source_tree

# Direct and complete: a folder may include itself and what its row names, nothing else.
MAY_INCLUDE = {
    "base": (),
    "kv": ("base",),
    "remote": ("base", "kv", "attention"),
    "attention": ("base", "kv"),
    "compress": ("base", "kv", "attention"),
    "sampling": ("base",),
    "sched": ("base", "kv", "sampling"),
    "model": ("base", "kv", "attention", "sampling"),
    "spec": ("base", "kv", "sampling", "model"),
    "engine": ("base", "kv", "attention", "compress", "sampling", "sched", "model", "spec", "remote"),
    "server": ("base", "sampling", "sched", "model", "engine"),
    "route": ("base", "server"),
    "cli": ("base", "kv", "attention", "compress", "sampling", "sched", "model", "spec", "remote", "engine", "server",
            "route"),
}
# A folder inside a folder is stricter than the one around it: it may include itself and what begins
# like one of these.
MAY_INCLUDE_INSIDE = {
    "kv/tier": ("base/", "kv/kv_types.h"),
    "kv/store": ("base/", "kv/kv_types.h"),
}
DOCUMENT = "docs/architecture.md"


def check(root):
    yield from _check_includes(root)
    if (root / DOCUMENT).exists():
        yield from _check_document(root)


def _check_includes(root):
    for path in source_tree.cpp_files(root, "src"):
        folder = path.parts[1]
        if folder not in MAY_INCLUDE:
            yield f"{path}: folder {folder} has no row in tests/house/include_rule.py"
            continue
        for include in source_tree.includes(root, path):
            if not include.quoted:
                continue
            target = include.path.split("/")[0]
            if "/" not in include.path or target not in MAY_INCLUDE:
                yield (f'{path}:{include.line}: includes "{include.path}"; write it as '
                       f'"folder/file.h", with a folder of src/')
            elif target != folder and target not in MAY_INCLUDE[folder]:
                yield (f'{path}:{include.line}: {folder} includes "{include.path}"; it may include '
                       f"{', '.join(MAY_INCLUDE[folder]) or 'nothing of ours'}")
            else:
                yield from _check_inside(path, include)


def _check_inside(path, include):
    inner = "/".join(path.parts[1:3])
    allowed = MAY_INCLUDE_INSIDE.get(inner)
    if allowed is not None and not include.path.startswith((f"{inner}/", *allowed)):
        yield (f'{path}:{include.line}: {inner} includes "{include.path}"; it may include '
               f"{', '.join(allowed)}")


def _check_document(root):
    """The rows `| folder | may include |` of the page, as folders in backquotes."""
    documented = {}
    for line in (root / DOCUMENT).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 2 and re.fullmatch(r"`\w+`", cells[0]):
            folder = cells[0].strip("`")
            if folder in MAY_INCLUDE:
                documented[folder] = tuple(re.findall(r"`(\w+)`", cells[1]))
    for folder, allowed in MAY_INCLUDE.items():
        if sorted(documented.get(folder, ("no row",))) != sorted(allowed):
            yield (f"{DOCUMENT}: the row of {folder} says {documented.get(folder)}, "
                   f"tests/house/include_rule.py says {allowed}")

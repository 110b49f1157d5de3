"""A source file includes the header of its own name first, which shows that the header is
self-contained. CMakeLists.txt of this folder compiles the headers that no source file shows so."""

import source_tree


def check(root):
    files = set(source_tree.cpp_files(root))
    for path in sorted(files):
        header = path.with_suffix(".h")
        if path.suffix != ".cpp" or header not in files:
            continue
        name = header.relative_to(header.parts[0]).as_posix()
        first = next(source_tree.includes(root, path), None)
        if first is None or not first.quoted or first.path != name:
            yield f'{path}: the first include must be its own header, "{name}"'

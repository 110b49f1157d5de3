"""The C++ files of the repository and what they include: shared by the checks of this folder."""

import pathlib
import re
from typing import Iterator, NamedTuple

FOLDERS = ("src", "tests", "bench", "fuzz", "tools")
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


class Include(NamedTuple):
    line: int
    quoted: bool  # "x" instead of <x>
    path: str


def cpp_files(root: pathlib.Path, *folders: str) -> Iterator[pathlib.PurePosixPath]:
    """Paths relative to root, sorted; all of FOLDERS if none are named."""
    for folder in folders or FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp") and path.is_file():
                yield pathlib.PurePosixPath(path.relative_to(root).as_posix())


def lines(root: pathlib.Path, path: pathlib.PurePosixPath) -> list[str]:
    return (root / path).read_text(encoding="utf-8").splitlines()


def includes(root: pathlib.Path, path: pathlib.PurePosixPath) -> Iterator[Include]:
    for number, line in enumerate(lines(root, path), start=1):
        match = _INCLUDE.match(line)
        if match:
            yield Include(number, match.group(1) == '"', match.group(2))

"""Plain text out of the files that eval_texts.sh unpacks, to standard output.

    eval_texts.py plain|html FILE...
    eval_texts.py novel DATA NAME     of R's database DATA.rdx and DATA.rdb, the vector NAME
"""

import gzip
import html.parser
import pathlib
import re
import struct
import sys
import zlib

BLOCKS = set("p div h1 h2 h3 h4 h5 li dt dd tr pre br blockquote ul ol dl table title".split())
SKIPPED = {"head", "script", "style"}


class TextOfHtml(html.parser.HTMLParser):
    """Paragraphs as lines, <pre> as it is, without heads and navigation."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts = []
        self.skipping = None  # the element, and how many of its name are open
        self.depth = 0
        self.in_pre = 0

    def handle_starttag(self, tag, attrs):
        if self.skipping:
            self.depth += tag == self.skipping
            return
        names = dict(attrs)
        classes = (names.get("class") or "").split()
        navigation = "docnav" in classes or "toc" in classes or names.get("id") in ("banner", "title")
        if tag in SKIPPED or (navigation and tag in ("div", "p", "ul")):
            self.skipping, self.depth = tag, 1
            return
        self.in_pre += tag == "pre"
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        if self.skipping:
            self.depth -= tag == self.skipping
            if self.depth == 0:
                self.skipping = None
            return
        self.in_pre -= tag == "pre"
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.skipping:
            self.parts.append(data if self.in_pre else re.sub(r"\s+", " ", data))

    def text(self):
        lines = [line.strip() if not line.startswith("  ") else line.rstrip()
                 for line in "".join(self.parts).split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def text_of_html(path):
    reader = TextOfHtml()
    reader.feed(pathlib.Path(path).read_text(encoding="utf-8"))
    return reader.text()


def strings(data):
    """The character strings of an R object in R's XDR format, in their order."""
    for found in re.finditer(rb"\x00\x04\x00\x09(....)", data, re.DOTALL):
        (length,) = struct.unpack(">i", found.group(1))
        if length >= 0:
            yield data[found.end():found.end() + length].decode("utf-8")


def novel(data_path, name):
    index = gzip.decompress(pathlib.Path(data_path + ".rdx").read_bytes())
    # Two integers for each vector: where it begins in the database, and how many bytes it has.
    places = [struct.unpack(">ii", found.group(1))
              for found in re.finditer(rb"\x00\x00\x00\x0d\x00\x00\x00\x02(.{8})", index, re.DOTALL)]
    offset, length = places[[s for s in strings(index) if s != "names"].index(name)]
    stored = pathlib.Path(data_path + ".rdb").read_bytes()[offset:offset + length]
    return "\n".join(strings(zlib.decompress(stored[4:]))) + "\n"


def main(kind, *sources):
    if kind == "novel":
        text = novel(*sources)
    elif kind == "html":
        text = "\n".join(text_of_html(source) for source in sources)
    else:
        text = "\n".join(pathlib.Path(source).read_text(encoding="utf-8") for source in sources)
    sys.stdout.buffer.write(text.encode("utf-8"))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Reads a text from the metadata of a GGUF file, independently of the server."""

import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, ARRAY = 8, 9


def read_text(path, wanted):
    """The text under this key, or None."""
    with open(path, "rb") as file:
        def number(layout):
            return struct.unpack("<" + layout, file.read(struct.calcsize(layout)))[0]

        def text():
            return file.read(number("Q"))

        def skip(kind):
            if kind == TEXT:
                text()
            elif kind == ARRAY:
                inner = number("I")
                for _ in range(number("Q")):
                    skip(inner)
            else:
                file.read(SIZES[kind])

        assert file.read(4) == b"GGUF" and number("I") in (2, 3)
        number("Q")  # tensors
        for _ in range(number("Q")):
            key, kind = text().decode(), number("I")
            if key == wanted:
                return text().decode() if kind == TEXT else None
            skip(kind)
    return None

#!/usr/bin/env python3
"""Writes a model with random weights whose KV has the shape of Qwen3-8B's: 36 layers, 8 KV heads of
128. Its vocabulary is as large as that model's; the rest is as small as it can be.

  bench/random_gguf.py FILE.gguf

For figures that depend on shapes alone, such as bytes. Needs only Python's standard library.
"""

import argparse
import array
import random
import struct

LAYERS = 36
HEADS = 8  # of queries too
HEAD_DIM = 128
HIDDEN = 64
VOCABULARY = 151_936
CONTEXT = 40_960

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def scalar(kind, value):
    if kind == STRING:
        return text(value)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + scalar(kind, value)


def list_entry(key, kind, values):
    return (text(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
            + b"".join(scalar(kind, value) for value in values))


def metadata():
    numbers = {"block_count": LAYERS, "context_length": CONTEXT, "embedding_length": HIDDEN,
               "feed_forward_length": HIDDEN, "attention.head_count": HEADS,
               "attention.head_count_kv": HEADS, "attention.key_length": HEAD_DIM,
               "attention.value_length": HEAD_DIM, "rope.dimension_count": HEAD_DIM}
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    words = VOCABULARY - len(tokens)
    tokens += [f"w{number}" for number in range(words)]
    kinds += [1] * words
    return [entry("general.architecture", STRING, "qwen3"),
            entry("general.name", STRING, "random weights"),
            *(entry("qwen3." + key, U32, value) for key, value in numbers.items()),
            entry("qwen3.attention.layer_norm_rms_epsilon", F32, 1e-6),
            entry("qwen3.rope.freq_base", F32, 1e6),
            entry("tokenizer.ggml.model", STRING, "llama"),
            entry("tokenizer.ggml.pre", STRING, "default"),
            list_entry("tokenizer.ggml.tokens", STRING, tokens),
            list_entry("tokenizer.ggml.scores", F32, [-float(i) for i in range(VOCABULARY)]),
            list_entry("tokenizer.ggml.token_type", I32, kinds),
            entry("tokenizer.ggml.bos_token_id", U32, 1),
            entry("tokenizer.ggml.eos_token_id", U32, 2),
            entry("tokenizer.ggml.unknown_token_id", U32, 0),
            entry("tokenizer.ggml.add_bos_token", BOOL, True)]


def shapes():
    """(name, columns, rows; 0: a vector)"""
    queries = HEADS * HEAD_DIM
    yield "token_embd.weight", HIDDEN, VOCABULARY
    yield "output_norm.weight", HIDDEN, 0
    for layer in range(LAYERS):
        for name, columns, rows in (
                ("attn_norm", HIDDEN, 0), ("attn_q", HIDDEN, queries), ("attn_k", HIDDEN, queries),
                ("attn_v", HIDDEN, queries), ("attn_q_norm", HEAD_DIM, 0),
                ("attn_k_norm", HEAD_DIM, 0), ("attn_output", queries, HIDDEN),
                ("ffn_norm", HIDDEN, 0), ("ffn_gate", HIDDEN, HIDDEN), ("ffn_up", HIDDEN, HIDDEN),
                ("ffn_down", HIDDEN, HIDDEN)):
            yield f"blk.{layer}.{name}.weight", columns, rows


def values(generator, columns, rows):
    if rows == 0:
        return array.array("f", (1 + generator.uniform(-0.1, 0.1) for _ in range(columns)))
    # Bytes are uniform: their deviation is 74.
    scale = 1 / (74 * columns ** 0.5)
    table = [(byte - 127.5) * scale for byte in range(256)]
    return array.array("f", map(table.__getitem__, generator.randbytes(columns * rows)))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE.gguf")
    options = parser.parse_args()
    keys, tensors = metadata(), list(shapes())
    infos, offset = [], 0
    for name, columns, rows in tensors:
        dims = [columns, rows] if rows else [columns]
        infos.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, offset))
        offset += -(-columns * max(rows, 1) * 4 // ALIGNMENT) * ALIGNMENT
    generator = random.Random(1)
    with open(options.file, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)))
        file.write(b"".join(keys + infos))
        for _, columns, rows in tensors:
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            file.write(values(generator, columns, rows).tobytes())


if __name__ == "__main__":
    main()

"""What a command left behind by mistake: a file named like a flag, or one too large for source."""

MAX_BYTES = 1 << 20
NOT_OURS = {".git", ".venv", "build", "models", ".cache"}


def check(root):
    for entry in sorted(root.iterdir()):
        if entry.name in NOT_OURS:
            continue
        for path in [entry, *sorted(entry.rglob("*"))] if entry.is_dir() else [entry]:
            name = path.relative_to(root).as_posix()
            if path.name.startswith("-"):
                yield f"{name}: a file named like a flag; remove it"
            elif path.is_file() and path.stat().st_size > MAX_BYTES:
                yield f"{name}: {path.stat().st_size} bytes; at most {MAX_BYTES} are allowed"

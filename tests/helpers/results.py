"""What two runs must have in common to be the same run."""

import hashlib

RESULTS = {".png", ".safetensors", ".jsonl", ".csv"}
RESULTS |= {"index.json", "images.json", "summary.json", "table.json"}


def digests(folder):
    """Content of all result files, without what depends on the clock."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (path.suffix in RESULTS or path.name in RESULTS)
    }


def differences(one, other):
    """Names of the result files that are not the same in two folders."""
    first, second = digests(one), digests(other)
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))

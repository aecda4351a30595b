"""How whole files are damaged: their bytes, the values of a tree, the words and lines of a text."""

import json
import random
import re
from copy import deepcopy
from typing import Any

Rng = random.Random

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
TEXTS = (
    *(
        "",
        "\0",
        "~nobody/x",
        "../../..",
        "/",
        "x" * 5000,
        "a/" * 3000,
        "nan",
        "1e999",
        "-1",
        "é\u2028\U0001f600",
    ),
    *(
        "{position:2000000000}",
        "{0.__class__}",
        "os:abort",
        "0x" + "f" * 5000,
        "*a",
        "&a [*a]",
        "!!python/name:os",
    ),
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    1e308,
    float("nan"),
    10**30,
    [],
    {},
    [[]],
    {"a": {}},
    *TEXTS,
)
_DEEP = 20_000


def damage(rng: Rng, content: bytes) -> bytes:
    """One to four changes of bytes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(7)
        if kind == 0:
            del data[place:]
        elif kind == 1 and data:
            data[place - 1] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[place:place] = rng.randbytes(rng.choice((1, 4, 40)))
        elif kind == 3:
            data[place:place] = data[place : place + rng.choice((1, 8, 200))]
        elif kind == 4:
            del data[place : place + rng.choice((1, 4, 100))]
        else:
            order = rng.choice(("big", "little"))
            size = rng.choice((2, 4))
            data[place : place + size] = (rng.choice(_NUMBERS) & (256**size - 1)).to_bytes(size, order)
    return bytes(data)


def damage_tree(rng: Rng, tree: Any) -> str:  # noqa: ANN401
    """A JSON text of the tree with one to three values changed, removed, or nested too deeply."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.randint(1, 3)):
        node, parents = tree, []
        while isinstance(node, dict | list) and node and (not parents or rng.random() < 0.7):
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            parents.append((node, key))
            node = node[key]
        if not parents:
            return json.dumps(rng.choice(VALUES))
        owner, key = parents[-1]
        if rng.random() < 0.15:
            del owner[key]
        else:
            owner[key] = deepcopy(rng.choice((*VALUES, "DEEP")))  # later changes may go into it
    bracket = rng.choice(("[", '{"a":'))
    return json.dumps(tree).replace('"DEEP"', bracket * _DEEP)


def damage_lines(rng: Rng, text: str) -> str:
    """One to three changes of words and lines."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(lines)) if lines else 0
        kind = rng.randrange(6)
        if not lines or kind == 0:
            lines.insert(place, rng.choice(TEXTS))
        elif kind == 1:
            lines.insert(rng.randrange(len(lines)), lines[place])
        elif kind == 2:
            del lines[place]
        elif kind == 3:
            lines[place] = " " * rng.choice((1, 2, 7)) + lines[place]
        elif words := list(re.finditer(r"[^\s,:\[\]{}]+", lines[place])):
            word = rng.choice(words)
            new = rng.choice((*TEXTS, "[" * 1500, json.dumps(rng.choice(VALUES))))
            lines[place] = lines[place][: word.start()] + new + lines[place][word.end() :]
    return "\n".join(lines)


def either(rng: Rng, tree: Any) -> bytes:  # noqa: ANN401
    """A JSON file, damaged by its structure or by its bytes."""
    if rng.random() < 0.75:
        return damage_tree(rng, tree).encode(errors="surrogatepass")
    return damage(rng, json.dumps(tree).encode())

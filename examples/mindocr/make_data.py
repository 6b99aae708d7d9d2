# SPDX-License-Identifier: Apache-2.0
"""Draw a small data set of numbers in pictures, with labels as MindOCR's recognition data has them.

    python make_data.py OUT [--train 512] [--val 64] [--seed 2024]

OUT then holds training/, validation/, gt_training.txt and gt_validation.txt; a line is
`image<TAB>number`. The digits are strokes drawn here, so no font takes part: the same options give
the same pixels everywhere. OUT appears whole or not at all, and one that is there already is left
alone.

Exit codes: 0 written or already there, 1 OUT holds something else, 2 wrong options.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

HEIGHT, WIDTH = 32, 100
SHORTEST, LONGEST = 3, 6
# The seven strokes of a digit between six points, as pairs of (column, row), and which strokes each
# digit has.
STROKES = {
    "top": ((0, 0), (1, 0)),
    "middle": ((0, 1), (1, 1)),
    "bottom": ((0, 2), (1, 2)),
    "left above": ((0, 0), (0, 1)),
    "left below": ((0, 1), (0, 2)),
    "right above": ((1, 0), (1, 1)),
    "right below": ((1, 1), (1, 2)),
}
MISSING = {
    "0": ["middle"],
    "1": ["top", "middle", "bottom", "left above", "left below"],
    "2": ["left above", "right below"],
    "3": ["left above", "left below"],
    "4": ["top", "bottom", "left below"],
    "5": ["right above", "left below"],
    "6": ["right above"],
    "7": ["middle", "bottom", "left above", "left below"],
    "8": [],
    "9": ["left below"],
}


def count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100000:
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted a number from 1 to 100000")
    return int(text)


def words(split: str, number: int, seed: int) -> list[str]:
    """The numbers of a split: a pure function of the options."""
    rng = random.Random(f"{seed} {split} words")
    return [
        "".join(rng.choice("0123456789") for _ in range(rng.randint(SHORTEST, LONGEST)))
        for _ in range(number)
    ]


def draw(word: str, rng: random.Random) -> Image.Image:
    """A picture of a number, a little off in place, size and colour."""
    ground = rng.randint(150, 255)
    picture = Image.new("L", (WIDTH, HEIGHT), ground)
    pen = ImageDraw.Draw(picture)
    ink, wide, tall, x, y = (
        rng.randint(0, 80),
        rng.uniform(7, 9),
        rng.uniform(8, 10),
        rng.uniform(3, 8),
        rng.uniform(4, 7),
    )
    for digit in word:
        for name, ends in STROKES.items():
            if name not in MISSING[digit]:
                pen.line(
                    [(x + column * wide, y + row * tall) for column, row in ends], fill=ink, width=2
                )
        x += wide + rng.uniform(4.5, 6)
    noise = Image.frombytes(
        "L", (WIDTH, HEIGHT), bytes(rng.getrandbits(8) for _ in range(WIDTH * HEIGHT))
    )
    return Image.blend(picture, noise, 0.15)


def lines(split: str, number: int, seed: int) -> str:
    return "".join(
        f"word_{index}.png\t{word}\n" for index, word in enumerate(words(split, number, seed), 1)
    )


def write(out: Path, numbers: dict[str, int], seed: int) -> None:
    """Write the whole data set beside `out`, then rename it into place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        for split, number in numbers.items():
            (staging / split).mkdir()
            rng = random.Random(f"{seed} {split} pixels")
            for index, word in enumerate(words(split, number, seed), 1):
                draw(word, rng).save(staging / split / f"word_{index}.png")
            (staging / f"gt_{split}.txt").write_text(lines(split, number, seed), encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp makes it private, and the training user may be another one
        os.rename(staging, out)  # replaces an empty directory, refuses any other
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def difference(out: Path, numbers: dict[str, int], seed: int) -> str | None:
    """What is not as these options would give it, or None."""
    wanted = {
        f"{split}/word_{index}.png"
        for split, number in numbers.items()
        for index in range(1, number + 1)
    }
    wanted |= {f"gt_{split}.txt" for split in numbers}
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    for name in sorted(found ^ wanted):
        return f"{name} is {'missing' if name in wanted else 'not part of this data set'}"
    for split, number in numbers.items():
        if (out / f"gt_{split}.txt").read_text(encoding="utf-8") != lines(split, number, seed):
            return f"gt_{split}.txt was made with other options"
    return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw a small data set of numbers in pictures.")
    parser.add_argument(
        "out",
        metavar="OUT",
        type=Path,
        help="directory to make; it must not exist, be empty or hold the same data set",
    )
    parser.add_argument(
        "--train",
        type=count,
        default=512,
        metavar="N",
        help="training images (default: %(default)s)",
    )
    parser.add_argument(
        "--val",
        type=count,
        default=64,
        metavar="N",
        help="validation images (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=2024,
        metavar="S",
        help="another seed, another data set (default: %(default)s)",
    )
    options = parser.parse_args(argv)

    out, numbers = options.out.resolve(), {"training": options.train, "validation": options.val}
    reason = None
    if out.is_dir() and any(out.iterdir()):
        reason = difference(out, numbers, options.seed)
        if reason is None:
            print(f"{out}: already there and equal, nothing done")
            return 0
    elif out.exists() and not out.is_dir():
        reason = "it is not a directory"
    if reason:
        print(
            f"{out}: not written: {reason}. Remove it or name another directory.", file=sys.stderr
        )
        return 1
    write(out, numbers, options.seed)
    print(
        f"{out}: {options.train} training and {options.val} validation images of {WIDTH}x{HEIGHT}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

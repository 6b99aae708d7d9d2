# SPDX-License-Identifier: Apache-2.0
"""Draw a small data set of word images, laid out as PaddleOCR's ic15_data is.

    python make_data.py OUT [--train 2048] [--test 256] [--seed 2015]

OUT then holds train/, test/, rec_gt_train.txt and rec_gt_test.txt (image, tab, word), and
SHA256SUMS of them all. The same options give the same words; the images' bytes depend on the Pillow
in use. Nothing is written into an OUT that holds anything else, and OUT appears whole or not at
all.

Exit codes: 0 written or already there, 1 OUT holds something else, 2 wrong options.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

CHARACTERS = "0123456789"
SHORTEST, LONGEST = 2, 4  # characters of a word
WIDTH, HEIGHT = 64, 32  # pixels of an image
SPLITS = ("train", "test")
SUMS = "SHA256SUMS"


class Refused(Exception):
    """OUT holds something this program did not write with these options."""


def count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100000:
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted a number from 1 to 100000")
    return int(text)


def labels(split: str, number: int, seed: int) -> list[tuple[str, str]]:
    """The images of a split and the words on them: a pure function of the options."""
    rng = random.Random(f"{seed} {split} words")
    words = (
        "".join(rng.choices(CHARACTERS, k=rng.randint(SHORTEST, LONGEST))) for _ in range(number)
    )
    return [(f"{split}/word_{n}.jpg", word) for n, word in enumerate(words, 1)]


def draw(rng: random.Random, word: str) -> Image.Image:
    """A word in a random size and place, light on dark or dark on light, on a noisy background."""
    font = ImageFont.load_default_imagefont()
    left, top, right, bottom = font.getbbox(word)
    mask = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(mask).text((-left, -top), word, fill=255, font=font)
    height = rng.randint(18, HEIGHT - 4)
    width = min(WIDTH - 4, round(mask.width * height / mask.height * rng.uniform(0.8, 1.2)))
    mask = mask.resize((width, height), Image.Resampling.BILINEAR).rotate(
        rng.uniform(-2, 2), Image.Resampling.BILINEAR
    )
    paper, ink = rng.sample((rng.randint(0, 90), rng.randint(150, 255)), 2)
    noise = Image.frombytes("RGB", (WIDTH, HEIGHT), rng.randbytes(WIDTH * HEIGHT * 3))
    picture = Image.blend(Image.new("RGB", (WIDTH, HEIGHT), (paper,) * 3), noise, 0.15)
    picture.paste(
        (ink,) * 3, (rng.randint(0, WIDTH - width), rng.randint(0, HEIGHT - height)), mask
    )
    return picture


def sums(directory: Path, names: list[str]) -> str:
    """What `sha256sum` prints for these files."""
    return "".join(
        f"{hashlib.sha256((directory / name).read_bytes()).hexdigest()}  {name}\n" for name in names
    )


def texts(samples: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    """The label files."""
    return {
        f"rec_gt_{split}.txt": "".join(f"{name}\t{word}\n" for name, word in found)
        for split, found in samples.items()
    }


def listed(samples: dict[str, list[tuple[str, str]]]) -> list[str]:
    """Every file of the data set but the sums."""
    return sorted([*texts(samples), *(name for found in samples.values() for name, _word in found)])


def write(out: Path, samples: dict[str, list[tuple[str, str]]], seed: int) -> None:
    """Write the whole data set beside `out`, then rename it into place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        for split, found in samples.items():
            (staging / split).mkdir()
            rng = random.Random(f"{seed} {split} pixels")
            for name, word in found:
                draw(rng, word).save(staging / name, quality=90)
        for name, text in texts(samples).items():
            (staging / name).write_text(text, encoding="utf-8")
        (staging / SUMS).write_text(sums(staging, listed(samples)), encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp makes it private, and the training user may be another one
        os.rename(staging, out)  # replaces an empty directory, refuses any other
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check(out: Path, samples: dict[str, list[tuple[str, str]]]) -> None:
    """Raise Refused unless `out` is what these options would give."""
    wanted = {*listed(samples), SUMS}
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    for name in sorted(found ^ wanted):
        raise Refused(f"{name} is {'missing' if name in wanted else 'not part of this data set'}")
    for name, text in texts(samples).items():
        if (out / name).read_text(encoding="utf-8") != text:
            raise Refused(f"{name} was made with other options")
    if (out / SUMS).read_text(encoding="utf-8") != sums(out, listed(samples)):
        raise Refused(f"an image was changed (sha256sum -c {SUMS} says which)")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Draw a small data set of word images, laid out as PaddleOCR's ic15_data is."
    )
    parser.add_argument(
        "out",
        metavar="OUT",
        type=Path,
        help="directory to make; it must not exist, be empty or hold the same data set",
    )
    parser.add_argument(
        "--train",
        type=count,
        default=2048,
        metavar="N",
        help="training images (default: %(default)s)",
    )
    parser.add_argument(
        "--test", type=count, default=256, metavar="N", help="test images (default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=2015,
        metavar="S",
        help="another seed, another data set (default: %(default)s)",
    )
    options = parser.parse_args(argv)

    out = options.out.resolve()
    samples = {split: labels(split, getattr(options, split), options.seed) for split in SPLITS}
    try:
        if out.is_dir() and any(out.iterdir()):
            check(out, samples)
            print(f"{out}: already there and equal, nothing done")
            return 0
        if out.exists() and not out.is_dir():
            raise Refused("it is not a directory")
        write(out, samples, options.seed)
    except Refused as reason:
        print(
            f"{out}: not written: {reason}. Remove it or name another directory.", file=sys.stderr
        )
        return 1
    print(f"{out}: {options.train} training and {options.test} test images of {WIDTH}x{HEIGHT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

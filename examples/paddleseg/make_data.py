# SPDX-License-Identifier: Apache-2.0
"""Draw a small data set of street-like pictures, laid out as Cityscapes is and with its 19 classes.

    python make_data.py OUT [--train 96] [--val 24] [--seed 2016] [--size 256x128]

OUT then holds leftImg8bit/{train,val}/<town>/*_leftImg8bit.png,
gtFine/{train,val}/<town>/*_gtFine_labelTrainIds.png and made.json, which records the options and
the digest of all pictures. The same options give the same pixels. Nothing is written into an OUT
that holds anything else, and OUT appears whole or not at all.

Exit codes: 0 written or already there, 1 OUT holds something else, 2 wrong options.
"""

from __future__ import annotations

import argparse
import colorsys
import hashlib
import json
import math
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

# A class's number in the label pictures (Cityscapes' trainId) is its place in this list.
CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
BACKGROUND = ("sky", "building", "road")  # three bands, from the top
UNLABELLED = (
    255  # the strip at the bottom: Cityscapes' own car, which training and evaluation leave out
)
TOWNS = {"train": "shapesbach", "val": "shapesfeld"}
PICTURE, LABEL = "leftImg8bit", "gtFine"
OBJECTS = 5  # of other classes than the background's, in every picture
SMALLEST, LARGEST = 64, 2048  # pixels a side
RECORD = "made.json"


class Refused(Exception):
    """OUT holds something this program did not write with these options."""


def size(text: str) -> tuple[int, int]:
    width, cross, height = text.partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"got {text!r}; wanted WIDTHxHEIGHT in pixels, 256x128 say"
        )
    if not all(SMALLEST <= int(side) <= LARGEST for side in (width, height)):
        raise argparse.ArgumentTypeError(
            f"got {text!r}; each side must be {SMALLEST} to {LARGEST} pixels"
        )
    return int(width), int(height)


def count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100000:
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted a number from 1 to 100000")
    return int(text)


def colour(number: int) -> tuple[int, int, int]:
    """A colour for every class, neighbours in the list far apart."""
    red, green, blue = colorsys.hsv_to_rgb(
        number * 7 % len(CLASSES) / len(CLASSES),
        0.9 if number % 2 else 0.5,
        0.55 + number % 3 * 0.2,
    )
    return round(red * 255), round(green * 255), round(blue * 255)


def scene(rng: random.Random, width: int, height: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """What one picture shows, from back to front: (class, corners)."""
    horizon, kerb, bonnet = (
        round(height * rng.uniform(0.2, 0.35)),
        round(height * rng.uniform(0.5, 0.65)),
        height - max(2, height // 16),
    )
    edges = [0, horizon, kerb, bonnet]
    shown = [
        (CLASSES.index(name), [(0, top), (width, top), (width, bottom), (0, bottom)])
        for name, top, bottom in zip(BACKGROUND, edges, edges[1:])
    ]
    for number in rng.sample(
        [n for n, name in enumerate(CLASSES) if name not in BACKGROUND], OBJECTS
    ):
        radius, corners = rng.uniform(0.14, 0.24) * height, 3 + number % 5
        x, y = rng.uniform(0, width), rng.uniform(radius, bonnet - radius)
        turns = [(corner + 0.5) / corners * math.tau for corner in range(corners)]
        shown.append(
            (
                number,
                [
                    (round(x + 1.4 * radius * math.cos(turn)), round(y + radius * math.sin(turn)))
                    for turn in turns
                ],
            )
        )
    return [*shown, (UNLABELLED, [(0, bonnet), (width, bonnet), (width, height), (0, height)])]


def draw(rng: random.Random, width: int, height: int) -> tuple[Image.Image, Image.Image]:
    """One picture, noisy and with every object a little off its class's colour, and its label."""
    picture, label = Image.new("RGB", (width, height)), Image.new("L", (width, height))
    for number, corners in scene(rng, width, height):
        shade = (20, 20, 20) if number == UNLABELLED else colour(number)
        ImageDraw.Draw(picture).polygon(
            corners, fill=tuple(min(255, max(0, part + rng.randint(-20, 20))) for part in shade)
        )
        ImageDraw.Draw(label).polygon(corners, fill=number)
    return (
        Image.blend(
            picture,
            Image.frombytes("RGB", (width, height), rng.randbytes(width * height * 3)),
            0.12,
        ),
        label,
    )


def names(split: str, number: int) -> list[tuple[str, str]]:
    """The pictures of a split and their labels, below OUT; the library pairs them by sorting both."""
    town = TOWNS[split]
    stems = [f"{split}/{town}/{town}_{index:06d}_000019" for index in range(number)]
    return [
        (f"{PICTURE}/{stem}_{PICTURE}.png", f"{LABEL}/{stem}_{LABEL}_labelTrainIds.png")
        for stem in stems
    ]


def digest(out: Path, files: list[str]) -> str:
    """One SHA-256 over the pictures, names included."""
    total = hashlib.sha256()
    for name in files:
        data = (out / name).read_bytes()
        total.update(f"{name} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()


def write(out: Path, options: dict, files: list[tuple[str, str]]) -> None:
    """Write the whole data set beside `out`, then rename it into place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        for pair in files:
            for name, image in zip(
                pair, draw(random.Random(f"{options['seed']} {pair[0]}"), *options["size"])
            ):
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                image.save(staging / name)
        record = {**options, "sha256": digest(staging, [name for pair in files for name in pair])}
        (staging / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp makes it private, and the training user may be another one
        os.rename(staging, out)  # replaces an empty directory, refuses any other
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check(out: Path, options: dict, files: list[tuple[str, str]]) -> None:
    """Raise Refused unless `out` is what these options would give."""
    try:
        record = json.loads((out / RECORD).read_text(encoding="utf-8"))
        recorded = record.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"it has no {RECORD} of this program's") from None
    if record != options:
        raise Refused("it was made with other options")
    wanted = {RECORD, *(name for pair in files for name in pair)}
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    for name in sorted(found ^ wanted):
        raise Refused(f"{name} is {'missing' if name in wanted else 'not part of this data set'}")
    if recorded != digest(out, [name for pair in files for name in pair]):
        raise Refused("a picture was changed")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Draw a small data set of street-like pictures, laid out as Cityscapes is."
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
        default=96,
        metavar="N",
        help="training pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--val",
        type=count,
        default=24,
        metavar="N",
        help="validation pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=2016,
        metavar="S",
        help="another seed, another data set (default: %(default)s)",
    )
    parser.add_argument(
        "--size",
        type=size,
        default=(256, 128),
        metavar="WxH",
        help="pixels of a picture (default: 256x128)",
    )
    asked = parser.parse_args(argv)

    out = asked.out.resolve()
    options = {"train": asked.train, "val": asked.val, "seed": asked.seed, "size": list(asked.size)}
    files = [pair for split in TOWNS for pair in names(split, options[split])]
    try:
        if out.is_dir() and any(out.iterdir()):
            check(out, options, files)
            print(f"{out}: already there and equal, nothing done")
            return 0
        if out.exists() and not out.is_dir():
            raise Refused("it is not a directory")
        write(out, options, files)
    except Refused as reason:
        print(
            f"{out}: not written: {reason}. Remove it or name another directory.", file=sys.stderr
        )
        return 1
    width, height = asked.size
    print(
        f"{out}: {asked.train} training and {asked.val} validation pictures of {width}x{height},"
        f" {len(CLASSES)} classes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

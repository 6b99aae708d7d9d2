# SPDX-License-Identifier: Apache-2.0
"""Draw a small data set of coloured shapes, laid out as COCO is.

    python make_data.py OUT [--train 96] [--val 24] [--seed 2017] [--size 160x128]

OUT then holds train2017/, val2017/, annotations/instances_train2017.json and
annotations/instances_val2017.json. The same options give the same annotations and pixels; the JPEG
bytes depend on the Pillow in use, so each annotation file records the digest of its own images.
Nothing is written into an OUT that holds anything else, and OUT appears whole or not at all.

Exit codes: 0 written or already there, 1 OUT holds something else, 2 wrong options.
"""

from __future__ import annotations

import argparse
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

# name -> (colour, corners of the shape on a circle of radius 1, as (angle in turns, radius))
SHAPES = {
    "disc": ((214, 62, 52), [(i / 24, 1.0) for i in range(24)]),
    "square": ((52, 112, 214), [(i / 4 + 1 / 8, 1.0) for i in range(4)]),
    "triangle": ((236, 190, 44), [(i / 3 + 3 / 4, 1.0) for i in range(3)]),
    "star": ((58, 164, 84), [(i / 10 + 3 / 4, 1.0 if i % 2 == 0 else 0.42) for i in range(10)]),
}
CATEGORIES = [{"id": i, "name": name, "supercategory": "shape"} for i, name in enumerate(SHAPES, 1)]
SPLITS = ("train", "val")
SMALLEST, LARGEST = 64, 1024  # pixels a side
CELLS = 2  # an image is CELLS x CELLS cells with at most one shape each, so shapes never overlap


class Refused(Exception):
    """OUT holds something this program did not write with these options."""


def size(text: str) -> tuple[int, int]:
    width, cross, height = text.partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"got {text!r}; wanted WIDTHxHEIGHT in pixels, 160x128 say"
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


def annotations(split: str, number: int, seed: int, width: int, height: int) -> dict:
    """What instances_<split>2017.json says: a pure function of the options."""
    rng = random.Random(f"{seed} {split} shapes")
    images, objects = [], []
    for image_id in range(1, number + 1):
        images.append(
            {
                "id": image_id,
                "file_name": f"{image_id:012d}.jpg",
                "width": width,
                "height": height,
                "license": 1,
            }
        )
        for cell in rng.sample(range(CELLS * CELLS), rng.randint(1, 3)):
            category = rng.choice(CATEGORIES)
            polygon = outline(rng, category["name"], cell, width, height)
            xs, ys = [p[0] for p in polygon], [p[1] for p in polygon]
            objects.append(
                {
                    "id": len(objects) + 1,
                    "image_id": image_id,
                    "category_id": category["id"],
                    "bbox": [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)],
                    "area": area(polygon),
                    "segmentation": [[value for point in polygon for value in point]],
                    "iscrowd": 0,
                }
            )
    return {
        "info": {
            "description": f"Coloured shapes, {split} split",
            "version": "1",
            "year": 2017,
            "seed": seed,
        },
        "licenses": [
            {"id": 1, "name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"}
        ],
        "categories": CATEGORIES,
        "images": images,
        "annotations": objects,
    }


def outline(
    rng: random.Random, name: str, cell: int, width: int, height: int
) -> list[tuple[int, int]]:
    """The corners of one shape, in whole pixels and inside its cell."""
    cell_w, cell_h = width // CELLS, height // CELLS
    radius = rng.uniform(0.3, 0.48) * min(cell_w, cell_h)
    centre_x = (cell % CELLS) * cell_w + rng.uniform(radius + 1, cell_w - radius - 1)
    centre_y = (cell // CELLS) * cell_h + rng.uniform(radius + 1, cell_h - radius - 1)
    return [
        (
            round(centre_x + radius * r * math.cos(math.tau * turn)),
            round(centre_y + radius * r * math.sin(math.tau * turn)),
        )
        for turn, r in SHAPES[name][1]
    ]


def area(polygon: list[tuple[int, int]]) -> float:
    """The shoelace formula."""
    following = polygon[1:] + polygon[:1]
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(polygon, following))) / 2


def draw(document: dict, split: str, seed: int) -> list[Image.Image]:
    """The pictures that `annotations` describes, on a noisy background."""
    rng = random.Random(f"{seed} {split} pixels")
    shapes: dict[int, list[dict]] = {}
    for item in document["annotations"]:
        shapes.setdefault(item["image_id"], []).append(item)
    colours = [colour for colour, _corners in SHAPES.values()]
    pictures = []
    for entry in document["images"]:
        extent = (entry["width"], entry["height"])
        noise = Image.frombytes(
            "RGB", extent, bytes(rng.getrandbits(8) for _ in range(extent[0] * extent[1] * 3))
        )
        picture = Image.blend(Image.new("RGB", extent, (rng.randint(60, 190),) * 3), noise, 0.25)
        pen = ImageDraw.Draw(picture)
        for item in shapes[entry["id"]]:
            flat = item["segmentation"][0]
            colour = tuple(part + rng.randint(-24, 24) for part in colours[item["category_id"] - 1])
            pen.polygon(
                list(zip(flat[::2], flat[1::2])),
                fill=tuple(min(255, max(0, part)) for part in colour),
            )
        pictures.append(picture)
    return pictures


def digest(directory: Path, document: dict) -> str:
    """One SHA-256 over the images of a split, names included."""
    total = hashlib.sha256()
    for entry in document["images"]:
        data = (directory / entry["file_name"]).read_bytes()
        total.update(f"{entry['file_name']} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()


def write(out: Path, documents: dict[str, dict], seed: int) -> None:
    """Write the whole data set beside `out`, then rename it into place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        (staging / "annotations").mkdir()
        for split, document in documents.items():
            directory = staging / f"{split}2017"
            directory.mkdir()
            for entry, picture in zip(document["images"], draw(document, split, seed)):
                picture.save(directory / entry["file_name"], "JPEG", quality=90)
            named = {
                **document,
                "info": {**document["info"], "images_sha256": digest(directory, document)},
            }
            (staging / "annotations" / f"instances_{split}2017.json").write_text(
                json.dumps(named) + "\n", encoding="utf-8"
            )
        staging.chmod(0o755)  # mkdtemp makes it private, and the training user may be another one
        os.rename(staging, out)  # replaces an empty directory, refuses any other
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check(out: Path, documents: dict[str, dict]) -> None:
    """Raise Refused unless `out` is what these options would give."""
    wanted = {f"annotations/instances_{split}2017.json" for split in documents}
    wanted |= {
        f"{split}2017/{entry['file_name']}"
        for split, document in documents.items()
        for entry in document["images"]
    }
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    for name in sorted(found ^ wanted):
        raise Refused(f"{name} is {'missing' if name in wanted else 'not part of this data set'}")
    for split, document in documents.items():
        name = f"annotations/instances_{split}2017.json"
        try:
            earlier = json.loads((out / name).read_text(encoding="utf-8"))
            recorded = earlier["info"].pop("images_sha256")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refused(f"{name} is not this program's") from None
        if earlier != json.loads(json.dumps(document)):
            raise Refused(f"{name} was made with other options")
        if recorded != digest(out / f"{split}2017", document):
            raise Refused(f"an image in {split}2017 was changed")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Draw a small data set of coloured shapes, laid out as COCO is."
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
        help="training images (default: %(default)s)",
    )
    parser.add_argument(
        "--val",
        type=count,
        default=24,
        metavar="N",
        help="validation images (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=2017,
        metavar="S",
        help="another seed, another data set (default: %(default)s)",
    )
    parser.add_argument(
        "--size",
        type=size,
        default=(160, 128),
        metavar="WxH",
        help="pixels of an image (default: 160x128)",
    )
    options = parser.parse_args(argv)

    out = options.out.resolve()
    width, height = options.size
    documents = {
        split: annotations(split, getattr(options, split), options.seed, width, height)
        for split in SPLITS
    }
    try:
        if out.is_dir() and any(out.iterdir()):
            check(out, documents)
            print(f"{out}: already there and equal, nothing done")
            return 0
        if out.exists() and not out.is_dir():
            raise Refused("it is not a directory")
        write(out, documents, options.seed)
    except Refused as reason:
        print(
            f"{out}: not written: {reason}. Remove it or name another directory.", file=sys.stderr
        )
        return 1
    print(
        f"{out}: {options.train} training and {options.val} validation images of {width}x{height},"
        f" {len(CATEGORIES)} categories"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

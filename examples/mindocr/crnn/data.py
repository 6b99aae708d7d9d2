# SPDX-License-Identifier: Apache-2.0
"""Images of words and their labels, as MindOCR's RecDataset reads them: a line is `image<TAB>word`,
the image below data_dir.
"""

from __future__ import annotations

import os

import mindspore as ms
import numpy as np
from PIL import Image


class Words:
    """Every item is (image, label, length), with the label padded by the blank."""

    def __init__(self, config, characters, max_text_len):
        root = config["dataset_root"]
        label_file = os.path.join(root, config["label_file"])
        try:
            with open(label_file, encoding="utf-8") as handle:
                lines = [line.rstrip("\n").split("\t") for line in handle if line.strip()]
        except OSError as error:
            raise SystemExit(
                f"{os.path.abspath(label_file)}: {error.strerror}; link the data set there, or make"
                " one with make_data.py"
            ) from None
        height, width = config["image_shape"]
        self.items = []
        for name, word in lines:
            with Image.open(os.path.join(root, config["data_dir"], name)) as picture:
                pixels = np.asarray(picture.convert("L").resize((width, height)), dtype=np.float32)
            label = [characters.index(character) for character in word][:max_text_len]
            padded = np.full(max_text_len, len(characters), dtype=np.int32)
            padded[: len(label)] = label
            self.items.append(((pixels / 127.5 - 1)[None], padded, np.int32(len(label))))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def loader(config, characters, max_text_len, rank, world):
    """The batches of this rank: each rank has its own shard of the data set."""
    words = Words(config["dataset"], characters, max_text_len)
    batches = ms.dataset.GeneratorDataset(
        words,
        ["image", "label", "length"],
        shuffle=config["loader"]["shuffle"],
        num_shards=world,
        shard_id=rank,
        num_parallel_workers=config["loader"]["num_workers"],
        python_multiprocessing=False,
    ).batch(config["loader"]["batch_size"], drop_remainder=config["loader"]["drop_remainder"])
    if batches.get_dataset_size() == 0:
        raise SystemExit(
            f"{len(words)} images are no full batch of {config['loader']['batch_size']} for each of"
            f" {world} ranks"
        )
    return batches, len(words)


def decode(columns, characters):
    """Best path of CTC: merge what repeats, drop blanks. columns: class numbers of one image's
    columns.
    """
    merged = [int(now) for before, now in zip([None, *columns], columns) if now != before]
    return "".join(characters[number] for number in merged if number < len(characters))


def distance(one, other):
    """Edit distance of two words, as a part of the longer one's length."""
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        previous, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (left != right))
    return row[-1] / max(len(one), len(other), 1)

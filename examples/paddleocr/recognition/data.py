# SPDX-License-Identifier: Apache-2.0
"""Word images by label files (`image<TAB>word` a line), through the configuration's list of
transforms.
"""

from __future__ import annotations

import os

import cv2
import numpy as np
import paddle
from paddle.io import BatchSampler, DataLoader, Dataset, DistributedBatchSampler

from .config import Refused, only
from .metric import BLANK


def characters(settings):
    """The characters that can be read, in the order of their classes: a dictionary file, else
    digits and lower-case letters.
    """
    path = settings.get("character_dict_path")
    if not path:
        return "0123456789abcdefghijklmnopqrstuvwxyz"
    with open(path, encoding="utf-8") as handle:
        return [line.rstrip("\r\n") for line in handle] + (
            [" "] if settings.get("use_space_char") else []
        )


class DecodeImage:
    def __init__(self, settings, img_mode="BGR", channel_first=False):
        if img_mode != "BGR" or channel_first:
            raise Refused("DecodeImage: this bundle reads img_mode BGR with channel_first False")

    def __call__(self, sample):
        sample["image"] = cv2.imdecode(np.frombuffer(sample["image"], np.uint8), cv2.IMREAD_COLOR)
        if sample["image"] is None:
            raise ValueError(f"{sample['path']} is not an image")


class CTCLabelEncode:
    def __init__(self, settings):
        self.longest = settings["max_text_length"]
        self.classes = {
            character: number for number, character in enumerate(characters(settings), 1)
        }

    def __call__(self, sample):
        found = [
            self.classes[character] for character in sample["label"] if character in self.classes
        ]
        if not 0 < len(found) <= self.longest:
            raise ValueError(
                f"{sample['path']}: the word {sample['label']!r} has {len(found)} known characters,"
                f" want 1 to {self.longest}"
            )
        sample["label"] = np.array(found + [BLANK] * (self.longest - len(found)), "int32")
        sample["length"] = np.array(len(found), "int64")


class RecResizeImg:
    """Fit the image into the shape, keeping its proportions, padded on the right; values from -1 to
    1.
    """

    def __init__(self, settings, image_shape):
        self.shape = image_shape

    def __call__(self, sample):
        _channels, height, width = self.shape
        rows, columns = sample["image"].shape[:2]
        fitted = min(width, int(np.ceil(columns * height / rows)))
        image = cv2.resize(sample["image"], (fitted, height)).astype("float32").transpose(2, 0, 1)
        sample["image"] = np.zeros(self.shape, "float32")
        sample["image"][:, :, :fitted] = image / 127.5 - 1


class KeepKeys:
    def __init__(self, settings, keep_keys):
        if keep_keys != ["image", "label", "length"]:
            raise Refused(
                "KeepKeys.keep_keys: this bundle trains with [image, label, length]; got"
                f" {keep_keys}"
            )

    def __call__(self, sample):
        pass


TRANSFORMS = {kind.__name__: kind for kind in (DecodeImage, CTCLabelEncode, RecResizeImg, KeepKeys)}


class SimpleDataSet(Dataset):
    def __init__(self, section, settings):
        super().__init__()
        self.folder = section["data_dir"]
        self.samples = []
        for path in section["label_file_list"]:
            with open(path, encoding="utf-8") as handle:
                self.samples += [line.rstrip("\n").split("\t") for line in handle if line.strip()]
        self.transforms = []
        for entry in section["transforms"]:
            ((name, options),) = entry.items()
            self.transforms.append(
                only({"name": name}, TRANSFORMS, "transforms")(settings, **(options or {}))
            )

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        name, word = self.samples[number]
        path = os.path.join(self.folder, name)
        with open(path, "rb") as handle:
            sample = {"path": path, "image": handle.read(), "label": word}
        for transform in self.transforms:
            transform(sample)
        return sample["image"], sample["label"], sample["length"]


def loader(config, mode):
    """Batches of the section Train or Eval: training is shared out to the ranks, evaluation is rank
    0's alone.
    """
    section, options = config[mode], config[mode]["loader"]
    dataset = only(section["dataset"], {"SimpleDataSet": SimpleDataSet}, f"{mode}.dataset")(
        section["dataset"], config["Global"]
    )
    batches = (DistributedBatchSampler if mode == "Train" else BatchSampler)(
        dataset=dataset,
        batch_size=options["batch_size_per_card"],
        shuffle=options["shuffle"],
        drop_last=options["drop_last"],
    )
    place = (
        paddle.CUDAPlace(paddle.distributed.ParallelEnv().dev_id)
        if config["Global"]["use_gpu"]
        else paddle.CPUPlace()
    )
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=options["num_workers"],
        places=place,
        return_list=True,
    )

# SPDX-License-Identifier: Apache-2.0
"""Train a recognition network: PaddleOCR's command line for the small CRNN of this bundle.

    python3 tools/train.py -c configs/rec/rec_mv3_none_bilstm_ctc.yml [-o Global.epoch_num=2 ...]

Every path in a configuration is relative to the working directory.
"""

from __future__ import annotations

import logging
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import cv2
import paddle
import paddle.distributed as dist
import yaml
from recognition.config import Refused, lines, parse_args, read
from recognition.training import Training


def make_logger():
    """The suite's form: a line a message on stdout, and nothing but errors from any rank but the
    first.
    """
    logger = logging.getLogger("ppocr")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        logging.Formatter(
            "[%(asctime)s] %(name)s %(levelname)s: %(message)s", datefmt="%Y/%m/%d %H:%M:%S"
        )
    )
    logger.addHandler(handler)
    logger.propagate = False  # Paddle hangs a handler of its own on the root
    logger.setLevel(logging.INFO if dist.get_rank() == 0 else logging.ERROR)
    return logger


def main():
    args = parse_args()
    config = read(args.config, args.opt)
    settings = config["Global"]
    if settings["use_gpu"] and not paddle.is_compiled_with_cuda():
        raise Refused(
            "Global.use_gpu is true, but this Paddle was built without CUDA; say -o"
            " Global.use_gpu=False"
        )
    cv2.setNumThreads(0)  # one thread a rank: decoding must not take the other ranks' cores
    paddle.set_device("gpu" if settings["use_gpu"] else "cpu")
    logger = make_logger()
    settings["distributed"] = dist.get_world_size() > 1
    if settings["distributed"]:
        dist.init_parallel_env()
    paddle.seed(settings.get("seed", 1024))
    if dist.get_rank() == 0:
        os.makedirs(settings["save_model_dir"], exist_ok=True)
        with open(
            os.path.join(settings["save_model_dir"], "config.yml"), "w", encoding="utf-8"
        ) as handle:
            yaml.safe_dump(config, handle, sort_keys=False)
    for line in lines(config):
        logger.info(line)
    logger.info("train with paddle %s and device %s", paddle.__version__, paddle.get_device())
    Training(config, logger).run()


if __name__ == "__main__":
    try:
        main()
    except Refused as reason:
        sys.exit(f"{reason}")

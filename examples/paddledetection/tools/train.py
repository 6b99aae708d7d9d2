# SPDX-License-Identifier: Apache-2.0
"""Train a detector: PaddleDetection's command line on top of the `ppdet` library.

python tools/train.py -c configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml --eval [-o key=value ...] [-r
checkpoint]

Every path in a configuration is relative to the working directory.
"""

from __future__ import annotations

import importlib
import os
import sys

import cv2
import paddle
from ppdet.core.workspace import load_config, merge_config
from ppdet.engine import Trainer, init_parallel_env, set_random_seed
from ppdet.utils.check import check_config, check_gpu, check_version
from ppdet.utils.cli import ArgsParser, merge_args

WORKSPACE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_args():
    parser = ArgsParser()  # brings -c/--config and -o/--opt
    parser.add_argument("--eval", action="store_true", help="measure mAP at every snapshot")
    parser.add_argument(
        "-r",
        "--resume",
        metavar="CHECKPOINT",
        help="go on from this checkpoint (path without or with .pdparams)",
    )
    parser.add_argument(
        "--enable_ce", action="store_true", help="fix the random seed, for comparisons between runs"
    )
    return parser.parse_args()


def read_config(args):
    cfg = load_config(args.config)
    merge_args(cfg, args)
    merge_config(args.opt)
    if cfg.get("use_gpu") and not paddle.is_compiled_with_cuda():
        print(
            "use_gpu is true, but this Paddle was built without CUDA: training on the CPU",
            file=sys.stderr,
        )
        cfg.use_gpu = False
    for name in ("TrainDataset", "EvalDataset"):
        annotation = os.path.join(cfg[name]["dataset_dir"], cfg[name]["anno_path"])
        if not os.path.isfile(annotation):  # ppdet would start to download all of COCO
            sys.exit(
                f"{name}: {os.path.abspath(annotation)} does not exist; link the data set there, or"
                " make one with make_data.py"
            )
    check_config(cfg)
    check_gpu(cfg.use_gpu)
    check_version()
    return cfg


def callbacks(cfg, trainer):
    """The configuration's own callbacks, each `module.Class` in this workspace."""
    sys.path.insert(0, WORKSPACE)
    for path in cfg.get("callbacks", []):
        module, _dot, name = path.rpartition(".")
        yield getattr(importlib.import_module(module), name)(trainer)


def main():
    args = parse_args()
    cfg = read_config(args)
    cv2.setNumThreads(0)  # one thread a rank: decoding must not take the other ranks' cores
    paddle.set_device("gpu" if cfg.use_gpu else "cpu")
    init_parallel_env()
    if args.enable_ce:
        set_random_seed(0)
    trainer = Trainer(cfg, mode="train")
    if args.resume:
        trainer.resume_weights(args.resume)
    elif cfg.get("pretrain_weights"):
        trainer.load_weights(cfg.pretrain_weights)
    trainer.register_callbacks(callbacks(cfg, trainer))
    trainer.train(args.eval)


if __name__ == "__main__":
    main()

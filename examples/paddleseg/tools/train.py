# SPDX-License-Identifier: Apache-2.0
"""Train a segmentation model: PaddleSeg's command line on top of the `paddleseg` library.

    python tools/train.py --config
    configs/pp_liteseg/pp_liteseg_stdc1_cityscapes_1024x512_scale0.5_160k.yml --do_eval
        [--save_dir output] [--resume_model output/iter_80] [--opts key=value ...]

Every path in a configuration is relative to the working directory.
"""

from __future__ import annotations

import argparse

import cv2
import paddle
from paddleseg.core import train
from paddleseg.cvlibs import Config, SegBuilder
from paddleseg.utils import metrics, utils


def parse_args():
    parser = argparse.ArgumentParser(description="Train a segmentation model.")
    parser.add_argument("--config", required=True, metavar="FILE", help="configuration")
    parser.add_argument(
        "--device",
        default="gpu",
        choices=["cpu", "gpu"],
        help="the CPU also where Paddle has no CUDA (default: gpu)",
    )
    parser.add_argument(
        "--save_dir", default="./output", help="where checkpoints go (default: %(default)s)"
    )
    parser.add_argument(
        "--save_interval",
        type=int,
        default=1000,
        help="iterations between checkpoints (default: %(default)s)",
    )
    parser.add_argument(
        "--keep_checkpoint_max",
        type=int,
        default=5,
        help="older checkpoints are removed (default: %(default)s)",
    )
    parser.add_argument(
        "--resume_model", metavar="DIR", help="go on from this checkpoint, a directory iter_N"
    )
    parser.add_argument(
        "--num_workers",
        type=int,
        default=0,
        help="processes that read pictures, for each rank (default: 0)",
    )
    parser.add_argument("--do_eval", action="store_true", help="measure mIoU at every checkpoint")
    parser.add_argument(
        "--use_vdl",
        action="store_true",
        help="also write the curves for VisualDL, to the directory of the checkpoints",
    )
    parser.add_argument(
        "--use_ema", action="store_true", help="keep a moving average of the weights, too"
    )
    parser.add_argument("--iters", type=int, help="instead of the configuration's")
    parser.add_argument(
        "--batch_size", type=int, help="of each rank, instead of the configuration's"
    )
    parser.add_argument("--learning_rate", type=float, help="instead of the configuration's")
    parser.add_argument(
        "--log_iters",
        type=int,
        default=10,
        help="iterations between lines of the log (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, help="fix the random seed, for comparisons between runs"
    )
    parser.add_argument(
        "--opts",
        nargs="+",
        metavar="KEY=VALUE",
        help="dotted keys of the configuration, with Python values",
    )
    return parser.parse_args()


# paddleseg 2.8.0 is older than Paddle 2.6, where a sum or a mean has no axis any more. Training
# takes [0] of a loss, and evaluation puts sums behind each other with concat(): both end in an
# error. The two functions below are all that is between them.


def with_axis(loss):
    """Let a loss return one number in a list."""
    forward = loss.forward
    loss.forward = lambda *inputs: forward(*inputs).reshape([1])
    return loss


def areas(predicted, label, num_classes, ignore_index=255):
    """Count the pixels of each class that are predicted rightly, predicted, and labelled."""
    predicted, label = predicted.flatten(), label.flatten()
    seen = label != ignore_index
    by_prediction = [paddle.logical_and(predicted == number, seen) for number in range(num_classes)]
    by_label = [label == number for number in range(num_classes)]
    right = [paddle.logical_and(first, second) for first, second in zip(by_prediction, by_label)]
    return tuple(
        paddle.stack([mask.astype("int64").sum() for mask in masks])
        for masks in (right, by_prediction, by_label)
    )


def main():
    args = parse_args()
    cfg = Config(
        args.config,
        learning_rate=args.learning_rate,
        iters=args.iters,
        batch_size=args.batch_size,
        opts=args.opts,
    )
    builder = SegBuilder(cfg)
    utils.show_env_info()
    utils.show_cfg_info(cfg)
    utils.set_seed(args.seed)
    utils.set_device(args.device)
    cv2.setNumThreads(0)  # one thread a rank: decoding must not take the other ranks' cores
    losses = builder.loss
    metrics.calculate_area = areas
    train(
        utils.convert_sync_batchnorm(builder.model, args.device),
        builder.train_dataset,
        val_dataset=builder.val_dataset if args.do_eval else None,
        optimizer=builder.optimizer,
        save_dir=args.save_dir,
        iters=cfg.iters,
        batch_size=cfg.batch_size,
        resume_model=args.resume_model,
        save_interval=args.save_interval,
        log_iters=args.log_iters,
        num_workers=args.num_workers,
        use_vdl=args.use_vdl,
        use_ema=args.use_ema,
        losses={**losses, "types": [with_axis(loss) for loss in losses["types"]]},
        keep_checkpoint_max=args.keep_checkpoint_max,
        test_config=cfg.test_config,
    )


if __name__ == "__main__":
    main()

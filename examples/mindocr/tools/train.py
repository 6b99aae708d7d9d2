# SPDX-License-Identifier: Apache-2.0
"""Train a small text recogniser: MindOCR's command line, config schema, log lines and checkpoints
on top of MindSpore.

    python tools/train.py --config configs/rec/crnn/crnn_resnet34.yaml [-o key=value ...]

Every path in a configuration is relative to the working directory.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import mindspore as ms
import numpy as np
import yaml
from crnn import data
from crnn.network import CRNN, CTCLoss
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init

LOG_FORMAT = "%(asctime)s %(name)s %(levelname)s - %(message)s"
log = logging.getLogger("mindocr.train")
progress = logging.getLogger("mindocr.utils.callbacks")


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", required=True, help="configuration, a YAML file")
    parser.add_argument(
        "-o",
        "--opt",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="change values, for example system.distribute=True",
    )
    args = parser.parse_args()
    with open(args.config, encoding="utf-8") as handle:
        config = yaml.safe_load(handle)
    for option in args.opt:
        dotted, equals, text = option.partition("=")
        *sections, key = dotted.split(".")
        place = config
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        if not equals or not isinstance(place, dict) or key not in place:
            parser.error(f"-o {option}: want key=value with a key that the configuration has")
        place[key] = yaml.safe_load(text)
    return args, config


def set_logger(directory, rank):
    """Rank 0 shows its lines; every rank keeps its own in log_<rank>.txt."""
    handlers = [logging.FileHandler(os.path.join(directory, f"log_{rank}.txt"))] + (
        [logging.StreamHandler(sys.stdout)] if rank == 0 else []
    )
    for handler in handlers:
        handler.setFormatter(logging.Formatter(LOG_FORMAT, "[%Y-%m-%d %H:%M:%S]"))
    logger = logging.getLogger("mindocr")
    logger.handlers, logger.propagate = handlers, False
    logger.setLevel(logging.INFO)


def join(config):
    """Return (rank, world, sum over ranks); with system.distribute the ranks find each other, and
    one sum is checked at once.
    """
    if not config["system"]["distribute"]:
        return 0, 1, lambda values: np.asarray(values, dtype=np.float32)
    init()
    rank, world = get_rank(), get_group_size()
    ms.set_auto_parallel_context(
        device_num=world, parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True
    )
    reduce = ops.AllReduce(ops.ReduceOp.SUM)

    def total(values):
        return reduce(Tensor(np.asarray(values, dtype=np.float32))).asnumpy()

    found, wanted = total([rank + 1, 2**rank]).tolist(), [world * (world + 1) / 2, 2**world - 1]
    print(
        f"rank {rank} of {world}: AllReduce of {[rank + 1, 2**rank]} gave {found}, wanted {wanted}",
        flush=True,
    )
    if found != wanted:
        raise SystemExit(f"rank {rank}: AllReduce gave a wrong sum")
    return rank, world, total


def learning_rates(scheduler, steps):
    """One value a step: linear up, then half a cosine down."""
    warmup, decay = scheduler["warmup_epochs"] * steps, max(1, scheduler["decay_epochs"] * steps)
    low, high = scheduler["min_lr"], scheduler["lr"]
    rising = [high * (step + 1) / warmup for step in range(warmup)]
    falling = [
        low + (high - low) * (1 + math.cos(math.pi * min(1, step / decay))) / 2
        for step in range(scheduler["num_epochs"] * steps)
    ]
    return (rising + falling)[: scheduler["num_epochs"] * steps]


class Training:
    """The network of one rank with its data, its log and, on rank 0, its checkpoints."""

    def __init__(self, config, rank, world, total):
        self.config, self.rank, self.world, self.total = config, rank, world, total
        self.characters, length = (
            config["postprocess"]["character_dict"],
            config["common"]["max_text_len"],
        )
        self.folder, self.batch = (
            config["train"]["ckpt_save_dir"],
            config["train"]["loader"]["batch_size"],
        )
        self.train, images = data.loader(config["train"], self.characters, length, rank, world)
        self.eval, _images = data.loader(config["eval"], self.characters, length, rank, world)
        self.steps, self.epochs = self.train.get_dataset_size(), config["scheduler"]["num_epochs"]
        model = config["model"]
        self.network = CRNN(
            model["backbone"]["channels"],
            model["neck"]["hidden_size"],
            model["head"]["out_channels"],
        )
        loss = CTCLoss(config["loss"]["pred_seq_len"], config["loss"]["max_label_len"], self.batch)
        rates = Tensor(learning_rates(config["scheduler"], self.steps), ms.float32)
        optimizer = nn.AdamWeightDecay(
            self.network.trainable_params(), rates, weight_decay=config["optimizer"]["weight_decay"]
        )
        # In data-parallel mode this cell averages the gradients over the ranks with AllReduce
        # before the optimizer sees them.
        self.step = nn.TrainOneStepCell(nn.WithLossCell(self.network, loss), optimizer)
        self.rates = rates.asnumpy()
        self.best, self.first_epoch = -1.0, 1
        log.info(
            "Creating dataloader (training=True) for device %d. Number of data samples: %d per"
            " device (%d total).",
            rank,
            images // world,
            images,
        )

    def resume(self):
        """Go on from a checkpoint: parameters, the optimizer's state and the epoch."""
        wanted = self.config["model"]["resume"]
        if not wanted:
            return
        path = os.path.join(self.folder, "train_resume.ckpt") if wanted is True else wanted
        values = ms.load_checkpoint(path)
        self.first_epoch = int(values.pop("epoch_num").asnumpy().item()) + 1
        values.pop("loss_scale")
        values.pop(
            "learning_rate", None
        )  # one value a step of that training; the configuration's count, in their place
        missing, unused = ms.load_param_into_net(self.step, values, strict_load=True)
        if set(missing) - {"learning_rate"} or unused:
            raise SystemExit(
                f"{path} is not this training's: {len(missing)} parameters are missing,"
                f" {len(unused)} are not its own"
            )
        log.info(
            "Finish loading network and optimizer resume checkoint from %s. \nResume train from"
            " epoch: %d",
            path,
            self.first_epoch,
        )

    def run(self):
        # One iterator for all epochs: each is shuffled anew.
        batches = self.train.create_tuple_iterator(
            num_epochs=max(1, self.epochs - self.first_epoch + 1)
        )
        for epoch in range(self.first_epoch, self.epochs + 1):
            loss = self.one_epoch(epoch, batches)
            measures, seconds = (
                self.evaluate() if self.config["system"]["val_while_train"] else ({}, 0.0)
            )
            if self.rank == 0:
                self.save(epoch, loss, measures, seconds)
        self.same_weights()
        log.info(
            "=> Best %s: %s \nTraining completed!",
            self.config["metric"]["main_indicator"],
            self.best,
        )

    def one_epoch(self, epoch, batches):
        """Train on this rank's shard once; return the mean loss of all ranks."""
        self.step.set_train()
        started = since = time.time()
        interval, losses = self.config["system"]["log_interval"], []
        for step, (image, label, _length) in enumerate(batches, 1):
            losses.append(
                self.total([self.step(image, label).asnumpy().item()]).item() / self.world
            )
            if step % interval == 0:
                cost, since = (time.time() - since) * 1000 / interval, time.time()
                progress.info(
                    "epoch: [%d/%d] step: [%d/%d], loss: %.6f, lr: %.6f, per step time: %.3f ms,"
                    " fps per card: %.2f img/s",
                    *(
                        epoch,
                        self.epochs,
                        step,
                        self.steps,
                        losses[-1],
                        self.rates[(epoch - 1) * self.steps + step - 1],
                    ),
                    *(cost, self.batch * 1000 / cost),
                )
        seconds, mean = time.time() - started, sum(losses) / len(losses)
        cost = seconds * 1000 / self.steps
        progress.info(
            "epoch: [%d/%d], loss: %.6f, epoch time: %.3f s, per step time: %.3f ms, fps per card:"
            " %.2f img/s",
            *(epoch, self.epochs, mean, seconds, cost, self.batch * 1000 / cost),
        )
        return mean

    def evaluate(self):
        """Return (measures over all ranks' shards, seconds)."""
        self.network.set_train(False)
        started, right, similar, number = time.time(), 0, 0.0, 0
        for image, label, length in self.eval.create_tuple_iterator(num_epochs=1):
            columns = self.network(image).asnumpy().argmax(axis=2).T
            for found, wanted, count in zip(columns, label.asnumpy(), length.asnumpy()):
                one, other = (
                    data.decode(found.tolist(), self.characters),
                    "".join(self.characters[n] for n in wanted[:count]),
                )
                right, similar, number = (
                    right + (one == other),
                    similar + 1 - data.distance(one, other),
                    number + 1,
                )
        right, similar, number = self.total([right, similar, number]).tolist()
        return {
            "acc": right / number,
            "norm_edit_distance": similar / number,
        }, time.time() - started

    def save(self, epoch, loss, measures, seconds):
        """What MindOCR leaves: best.ckpt, e<epoch>.ckpt, train_resume.ckpt, result.log."""
        indicator = self.config["metric"]["main_indicator"]
        value = measures.get(indicator, -loss)
        if measures:
            progress.info("Performance: %s, eval time: %s", measures, seconds)
        if self.best < value or epoch == self.first_epoch:
            self.best = value
            ms.save_checkpoint(self.network, os.path.join(self.folder, "best.ckpt"))
            progress.info("=> Best %s: %s, checkpoint saved.", indicator, self.best)
        ms.save_checkpoint(self.network, os.path.join(self.folder, f"e{epoch}.ckpt"))
        extra = {"epoch_num": epoch, "loss_scale": 1.0}
        ms.save_checkpoint(
            self.step, os.path.join(self.folder, "train_resume.ckpt"), append_dict=extra
        )
        with open(os.path.join(self.folder, "result.log"), "a", encoding="utf-8") as handle:
            handle.write("\t".join(str(part) for part in (epoch, loss, *measures.values())) + "\n")

    def same_weights(self):
        """Averaged gradients keep the ranks equal: say so on every rank, or fail."""
        own = sum(
            float(np.abs(weight.asnumpy().astype(np.float64)).sum())
            for weight in self.network.trainable_params()
        )
        mean = self.total([own]).item() / self.world
        print(
            f"rank {self.rank} of {self.world}: the sum of its weights is {own:.4f}, the mean of"
            f" all ranks' is {mean:.4f}",
            flush=True,
        )
        if abs(own - mean) > 1e-4 * abs(mean):
            raise SystemExit(f"rank {self.rank}: the ranks have different weights")


def main():
    args, config = read_arguments()
    ms.set_context(mode=config["system"]["mode"])
    folder = config["train"]["ckpt_save_dir"]
    os.makedirs(folder, exist_ok=True)
    rank, world, total = join(config)
    set_logger(folder, rank)
    ms.set_seed(config["system"]["seed"])
    if rank == 0:
        shutil.copyfile(args.config, os.path.join(folder, "train_config.yaml"))
        with open(os.path.join(folder, "args.yaml"), "w", encoding="utf-8") as handle:
            yaml.safe_dump(config, handle, sort_keys=False)
    training = Training(config, rank, world, total)
    log.info(
        "Distribute: %s, ranks: %d, batch: %d a rank, steps per epoch: %d",
        world > 1,
        world,
        training.batch,
        training.steps,
    )
    training.resume()
    training.run()


if __name__ == "__main__":
    main()

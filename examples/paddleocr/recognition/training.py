# SPDX-License-Identifier: Apache-2.0
"""The training loop, its evaluation on rank 0, and what the suite would log of both."""

from __future__ import annotations

import collections
import datetime
import math
import statistics
import time

import paddle
import paddle.distributed as dist
from paddle.regularizer import L2Decay

from . import checkpoint
from .config import Refused, only
from .data import characters, loader
from .metric import RecMetric
from .network import CRNN

KINDS = {
    "Optimizer": "Adam",
    "Loss": "CTCLoss",
    "PostProcess": "CTCLabelDecode",
    "Metric": "RecMetric",
}


def make_optimizer(options, steps, parameters):
    """Adam and its learning rate: constant, reached over the first `warmup_epoch` epochs."""
    lr = options["lr"]
    only({"name": lr.get("name", "Const")}, {"Const": None}, "Optimizer.lr")
    rate = paddle.optimizer.lr.LambdaDecay(lr["learning_rate"], lambda step: 1.0)
    warmup = round(lr.get("warmup_epoch", 0) * steps)
    if warmup:
        rate = paddle.optimizer.lr.LinearWarmup(
            lr["learning_rate"], warmup, 0.0, lr["learning_rate"]
        )
    decay = L2Decay(float(options["regularizer"]["factor"]))
    return rate, paddle.optimizer.Adam(
        rate, options["beta1"], options["beta2"], parameters=parameters, weight_decay=decay
    )


class Training:
    def __init__(self, config, logger):
        self.settings, self.logger, self.first = config["Global"], logger, dist.get_rank() == 0
        for section, name in KINDS.items():
            only(config[section], {name: None}, section)
        self.train_data, self.eval_data = loader(config, "Train"), loader(config, "Eval")
        self.steps = len(self.train_data)
        if not self.steps or not len(self.eval_data):
            raise Refused(
                "a data set has less than one batch: fewer images than batch_size_per_card times"
                " ranks, with drop_last"
            )
        alphabet = characters(self.settings)
        self.model = CRNN(config["Architecture"], len(alphabet) + 1)
        self.loss = paddle.nn.CTCLoss(reduction="none")
        self.metric, self.indicator = RecMetric(alphabet), config["Metric"]["main_indicator"]
        self.rate, self.optimizer = make_optimizer(
            config["Optimizer"], self.steps, self.model.parameters()
        )
        logger.info("train dataloader has %d iters", self.steps)
        logger.info("valid dataloader has %d iters", len(self.eval_data))
        self.best, self.begin = {self.indicator: 0}, 1
        self._load()
        if dist.get_world_size() > 1:
            self.model = paddle.DataParallel(self.model)

    def _load(self):
        path, weights = self.settings.get("checkpoints"), self.settings.get("pretrained_model")
        if path:
            states = checkpoint.resume(path, self.model, self.optimizer)
            self.best, self.begin = states["best_model_dict"], states["epoch"] + 1
            self.logger.info("resume from %s", checkpoint.stem(path))
        elif weights:
            checkpoint.load_weights(weights, self.model)
            self.logger.info("load pretrain successful from %s", checkpoint.stem(weights))
        else:
            self.logger.info("train from scratch")

    def run(self):
        """Train to the last epoch. As in the suite, a resumed training counts its epochs on and its
        global_step from 0.
        """
        settings, global_step = self.settings, 0
        start, every = settings["eval_batch_step"]
        self.logger.info(
            "During the training process, after the %dth iteration, an evaluation is run every %d"
            " iterations",
            start,
            every,
        )
        self.shown = collections.defaultdict(
            lambda: collections.deque(maxlen=settings["log_smooth_window"])
        )
        self.since, self.spent = collections.Counter(), [0.0, 0]
        for epoch in range(self.begin, settings["epoch_num"] + 1):
            self.model.train()
            began = time.time()
            for index, batch in enumerate(self.train_data, 1):
                read = time.time() - began
                global_step += 1
                self._step(batch)
                self._count(batch, read, time.time() - began)
                if self.first and (
                    global_step % settings["print_batch_step"] == 0 or index == self.steps
                ):
                    self._log(epoch, global_step, index)
                if self.first and global_step > start and (global_step - start) % every == 0:
                    self._evaluate(epoch, global_step)
                began = time.time()
            if self.first:
                names = ["latest"] + [f"iter_epoch_{epoch}"] * (
                    epoch % settings["save_epoch_step"] == 0
                )
                for name in names:
                    self.logger.info("save model in %s", self._save(name, epoch, global_step))
        self.logger.info("best metric, %s", listed(self.best))

    def _step(self, batch):
        images, labels, lengths = batch
        scores = self.model(images)
        columns = paddle.full([len(images)], scores.shape[1], "int64")
        loss = self.loss(scores.transpose([1, 0, 2]), labels, columns, lengths).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.shown["lr"].append(self.optimizer.get_lr())
        self.rate.step()
        if self.settings["cal_metric_during_train"]:
            self.metric.add(scores.detach(), labels, lengths)
            for name, value in self.metric.take().items():
                self.shown[name].append(value)
        self.shown["loss"].append(float(loss))

    def _count(self, batch, read, whole):
        self.since.update(steps=1, samples=len(batch[0]), read=read, whole=whole)
        self.spent = [self.spent[0] + whole, self.spent[1] + 1]

    def _log(self, epoch, global_step, index):
        """One line in the suite's form: what is shown is the median of the last log_smooth_window
        steps of rank 0.
        """
        since, steps = self.since, self.since["steps"]
        left = (self.settings["epoch_num"] - epoch + 1) * self.steps - index
        self.logger.info(
            "epoch: [%d/%d], global_step: %d, %s, avg_reader_cost: %.5f s, avg_batch_cost: %.5f s, avg_samples: %s, "
            "ips: %.5f samples/s, eta: %s",
            epoch, self.settings["epoch_num"], global_step, ", ".join(f"{name}: {median(values):.6f}" for name, values in self.shown.items()),
            since["read"] / steps, since["whole"] / steps, since["samples"] / steps, since["samples"] / since["whole"],
            datetime.timedelta(seconds=int(left * self.spent[0] / self.spent[1])),
        )  # fmt: skip
        self.since = collections.Counter()

    def _evaluate(self, epoch, global_step):
        self.model.eval()
        began, images = time.time(), 0
        with paddle.no_grad():
            for batch in self.eval_data:
                self.metric.add(self.model(batch[0]), batch[1], batch[2])
                images += len(batch[0])
        self.model.train()
        found = dict(self.metric.take(), fps=images / (time.time() - began))
        self.logger.info("cur metric, %s", listed(found))
        if found[self.indicator] >= self.best[self.indicator]:
            self.best.update(found, best_epoch=epoch)
            self.logger.info(
                "save best model is to %s", self._save("best_accuracy", epoch, global_step)
            )
        self.logger.info("best metric, %s", listed(self.best))

    def _save(self, name, epoch, global_step):
        states = {"best_model_dict": self.best, "epoch": epoch, "global_step": global_step}
        return checkpoint.save(
            self.settings["save_model_dir"], name, self.model, self.optimizer, states
        )


def median(values):
    return math.nan if any(math.isnan(value) for value in values) else statistics.median(values)


def listed(found):
    return ", ".join(f"{name}: {value}" for name, value in found.items())

# SPDX-License-Identifier: Apache-2.0
"""A small CRNN: convolutions that leave one row, a bidirectional LSTM along it, a class for each
column, CTC over the columns.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


class CRNN(nn.Cell):
    """Image (batch, 1, 32, width) -> logits (width / 4, batch, classes)."""

    def __init__(self, channels, hidden_size, classes):
        super().__init__()
        layers, previous = [], 1
        # (height, width) is halved twice; then only the height, until it is 1.
        for width, stride in zip(channels, [(2, 2), (2, 2), (2, 1), (4, 1)]):
            layers += [
                nn.Conv2d(previous, width, 3, pad_mode="same", has_bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.MaxPool2d(kernel_size=stride, stride=stride),
            ]
            previous = width
        self.backbone = nn.SequentialCell(layers)
        self.neck = nn.LSTM(previous, hidden_size, bidirectional=True)
        self.head = nn.Dense(2 * hidden_size, classes)

    def construct(self, image):
        columns = self.backbone(image)  # (batch, channels, 1, columns)
        columns = ops.transpose(ops.squeeze(columns, 2), (2, 0, 1))
        sequence, _state = self.neck(columns)
        return self.head(sequence)


class CTCLoss(nn.Cell):
    """Mean CTC loss of a batch. Labels are padded with the blank, the last class; they are cut
    there.
    """

    def __init__(self, pred_seq_len, max_label_len, batch_size):
        super().__init__()
        if pred_seq_len <= 2 * max_label_len:
            raise SystemExit(
                "loss.pred_seq_len must be more than twice loss.max_label_len: equal neighbours"
                " need a blank between them"
            )
        self.lengths = Tensor(np.full(batch_size, pred_seq_len), mstype.int32)
        self.indices = Tensor(
            [[row, column] for row in range(batch_size) for column in range(max_label_len)],
            mstype.int64,
        )
        self.loss = ops.CTCLoss(ctc_merge_repeated=True)

    def construct(self, logits, labels):
        losses, _gradient = self.loss(logits, self.indices, labels.reshape(-1), self.lengths)
        return losses.mean()

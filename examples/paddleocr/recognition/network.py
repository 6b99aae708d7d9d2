# SPDX-License-Identifier: Apache-2.0
"""CRNN: convolutions that read the image into a row of columns, a bidirectional LSTM along the row,
a class for every column.
"""

from __future__ import annotations

from paddle import ParamAttr, nn
from paddle.regularizer import L2Decay

from .config import only


class SmallConv(nn.Layer):
    """3 x 32 x W to (W / 4) columns. The suite has MobileNetV3 here, too large to learn anything
    within minutes on a CPU.
    """

    def __init__(self, channels=(16, 32, 64, 64)):
        super().__init__()
        layers, before = [], 3
        for number, after in enumerate(channels):
            stride = (
                (2, 2) if number < 2 else (2, 1)
            )  # the width is kept from the third on: one column must not hold two characters
            layers += [
                nn.Conv2D(before, after, 3, stride=stride, padding=1, bias_attr=False),
                nn.BatchNorm2D(after),
                nn.ReLU(),
            ]
            before = after
        self.layers = nn.Sequential(*layers, nn.MaxPool2D((2, 1)))
        self.channels = before

    def forward(self, images):
        return self.layers(images).squeeze(2).transpose([0, 2, 1])


class SequenceEncoder(nn.Layer):
    def __init__(self, channels, encoder_type="rnn", hidden_size=96):
        super().__init__()
        only({"name": encoder_type}, {"rnn": nn.LSTM}, "Architecture.Neck.encoder_type")
        self.lstm = nn.LSTM(channels, hidden_size, direction="bidirectional")
        self.channels = 2 * hidden_size

    def forward(self, columns):
        return self.lstm(columns)[0]


class CTCHead(nn.Layer):
    def __init__(self, channels, classes, fc_decay=0.0):
        super().__init__()
        decay = ParamAttr(regularizer=L2Decay(fc_decay))
        self.linear = nn.Linear(channels, classes, weight_attr=decay, bias_attr=decay)

    def forward(self, columns):
        return self.linear(columns)


class CRNN(nn.Layer):
    def __init__(self, architecture, classes):
        super().__init__()
        only({"name": architecture["algorithm"]}, {"CRNN": CRNN}, "Architecture.algorithm")
        self.backbone = part(architecture, SmallConv, "Backbone")
        self.neck = part(architecture, SequenceEncoder, "Neck", self.backbone.channels)
        self.head = part(architecture, CTCHead, "Head", self.neck.channels, classes)

    def forward(self, images):
        """Scores of the classes: images x columns x classes."""
        return self.head(self.neck(self.backbone(images)))


def part(architecture, kind, section, *sizes):
    options = dict(architecture[section])
    only(options, {kind.__name__: kind}, f"Architecture.{section}")
    del options["name"]
    return kind(*sizes, **options)

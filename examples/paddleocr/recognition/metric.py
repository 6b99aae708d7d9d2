# SPDX-License-Identifier: Apache-2.0
"""Words out of class scores, and how many of them are right."""

from __future__ import annotations

BLANK = 0  # CTC's empty class; the characters count from 1


def words(classes, alphabet):
    """CTC's reading of each row of classes: repeats count once, blanks separate."""
    for row in classes:
        previous, found = BLANK, []
        for number in row:
            if number not in (BLANK, previous):
                found.append(alphabet[number - 1])
            previous = number
        yield "".join(found)


def distance(one, other):
    """Edit distance (Levenshtein)."""
    row = list(range(len(other) + 1))
    for above, left in enumerate(one, 1):
        diagonal, row[0] = row[0], above
        for column, right in enumerate(other, 1):
            diagonal, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, diagonal + (left != right)),
            )
    return row[-1]


class RecMetric:
    """acc: share of words without a fault. norm_edit_dis: 1 - edit distance per character, averaged
    over the words.
    """

    def __init__(self, alphabet):
        self.alphabet = alphabet
        self.words, self.right, self.faults = 0, 0, 0.0

    def add(self, scores, labels, lengths):
        truth = (
            "".join(self.alphabet[number - 1] for number in row[:length])
            for row, length in zip(labels.numpy(), lengths.numpy())
        )
        for read, right in zip(words(scores.argmax(-1).numpy(), self.alphabet), truth):
            self.words += 1
            self.right += read == right
            self.faults += distance(read, right) / max(len(read), len(right))

    def take(self):
        """Return the figures of what was added since the last time, and begin anew."""
        found = {"acc": self.right / self.words, "norm_edit_dis": 1 - self.faults / self.words}
        self.words, self.right, self.faults = 0, 0, 0.0
        return found

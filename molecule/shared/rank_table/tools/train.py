# SPDX-License-Identifier: Apache-2.0
"""Stands where a training script stands and says what it was given: it finds itself in the rank
table, and trains nothing.
"""

from __future__ import annotations

import json
import os
import sys

with open(os.environ["RANK_TABLE_FILE"], encoding="utf-8") as handle:
    table = json.load(handle)
rank, device = os.environ["RANK_ID"], os.environ["DEVICE_ID"]
place = next(
    (server["server_id"], item)
    for server in table["server_list"]
    for item in server["device"]
    if item["rank_id"] == rank
)
if place[1]["device_id"] != device:
    sys.exit(
        "rank {} was given device {}; the table says {}".format(rank, device, place[1]["device_id"])
    )
print(
    "rank {} of {}: device {} at {} on server {}".format(
        rank, os.environ["RANK_SIZE"], device, place[1]["device_ip"], place[0]
    )
)
print("words {}".format(" ".join(sys.argv[1:])))

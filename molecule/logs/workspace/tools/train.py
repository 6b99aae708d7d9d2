# SPDX-License-Identifier: Apache-2.0
"""Stands where a training script stands: says what it was given, secrets and all, prints what a
terminal would obey, leaves links and pipes; rank 1 raises.
"""

from __future__ import annotations

import os
import sys
import time

STEP = (
    "[11/20 19:15:23] ppdet.engine INFO: Epoch: [0] [ %d/48] learning_rate: 0.000100 loss: 8.857114"
    " eta: 0:01:13 batch_cost: 1.2 ips: 3.3 images/s"
)
JINJA = "{{ 1234577 * 7654337 }} {% for x in y %} {{ lookup('pipe', 'echo pw' ~ 'ned') }}"
ORDERS = b"\x1b]0;owned\x07\x1b[2J\xe2\x80\xae\x9b31m\x00\xff\xfe"

rank = int(os.environ["PADDLE_TRAINER_ID"])
secrets = (
    " ".join(os.environ.get(name, "") for name in ("MY_TOKEN", "WANDB_LOGIN", "SHAPE"))
    + " "
    + " ".join(sys.argv[1:])
)
os.umask(0)  # a careless training; the directories that it writes below keep everybody else out
os.makedirs("output/say", exist_ok=True)
for name in ("best_model.pdparams", "model_final.pdparams"):
    with open("output/say/" + name, "w", encoding="utf-8") as handle:
        handle.write("weights of rank %d" % rank)
if rank == 0:
    os.symlink(os.path.expanduser("~/.ssh/authorized_keys"), "output/say/best_model.key")
    with open("output/say/best_model.x --rsh=touch", "w", encoding="utf-8") as handle:
        handle.write("its name is an option of rsync")
    os.symlink("/etc/passwd", "log/workerlog.7")
    os.mkfifo("log/workerlog.8")
    os.symlink("/dev/zero", "log/workerlog.9")
for step in range(4):
    print(STEP % step, flush=True)
    sys.stdout.buffer.write(
        b"said " + secrets.encode() + b" " + JINJA.encode() + b" " + ORDERS + b"\n"
    )
    sys.stdout.flush()
print("one line of a megabyte: " + "x" * (1 << 20) + secrets, flush=True)
time.sleep(3)
if rank == 1:
    raise ValueError(
        "login {} failed {} {}".format(secrets, JINJA, ORDERS.decode("utf-8", "replace"))
    )
time.sleep(120)

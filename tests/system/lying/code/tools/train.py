# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a training: some steps as PaddleDetection prints them, a checkpoint, an end."""

import os
import time

rank = int(os.environ["PADDLE_TRAINER_ID"])
print("rank %d trains" % rank, flush=True)
for step in range(4):
    time.sleep(0.2)
    stamp = time.strftime("%m/%d %H:%M:%S")
    line = (
        "[%s] ppdet.engine INFO: Epoch: [0] [%d/4] learning_rate: 0.001000 loss: %.6f batch_cost:"
        " 0.2000 data_cost: 0.0100 ips: 20.0000 images/s"
    )
    if rank == 0:
        print(line % (stamp, step, 3.5 - step), flush=True)
if rank == 0:
    os.makedirs("output/tiny", exist_ok=True)
    for name in ("model_final.pdparams", "model_final.pdopt", "best_model.pdparams"):
        with open("output/tiny/" + name, "wb") as handle:
            handle.write(name.encode() * 200)
    print(
        "[{}] ppdet.utils.checkpoint INFO: Save checkpoint: output/tiny".format(
            time.strftime("%m/%d %H:%M:%S")
        ),
        flush=True,
    )

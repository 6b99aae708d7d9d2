# SPDX-License-Identifier: Apache-2.0
"""Causes in accelerators and their libraries. The package explains the entries.

They concern CUDA, cuDNN, NCCL, RDMA, CANN and HCCL. A device is blamed on evidence only: an error
of its memory, its link or its bus that the driver or the device itself reports. A kernel that
failed is mostly a fault of the code or the data. An entry without a grade has the words of its
cause's entry in another table.

EARLY is asked before all other tables, since its words mean another thing there. LATE is asked
before the reports of ranks that lost another one.
"""

from __future__ import annotations

_CUDA = "CUDA, driver_types.h (cudaError_t); Paddle prints the number as `CUDA error(N)`"
_RT = "CANN, acl/error_codes/rt_error_codes.h"
_HIASCEND = "hiascend.com, CANN maintenance reference, error codes"
_NUMBER = r"(?i:cuda error:?)\s?\(?(?:%s)\b"
# A number of CANN's runtime where a message gives it.
_RESULT = r"(?:code is|code[:=]|result =|[Rr]et(?:code)?[:=]?) ?(?:%s)\b"

EARLY = (
    {
        "cause": "bus_error",
        "pattern": (
            r"/dev/shm/nccl-|posix_fallocate failed|NCCL WARN:? .{0,120}No space left on device"
        ),
        "source": "NVIDIA/nccl, src/misc/shmutils.cc; pytorch/torchtitan#853",
    },
    {
        "cause": "resource_limit",
        "pattern": r"ibv_reg_\w*mr\w*.{0,160}Cannot allocate memory",
        "source": "NVIDIA/nccl-tests#206, openucx/ucx#6264: the limit of locked memory",
    },
    {
        "cause": "device_out_of_memory",
        "pattern": (
            r"(?i:cuda (?:failure|error).{0,60}out of memory)|memory isn't enough and alloc failed|"
            + _NUMBER % "2"
            + r"\)|"
            + _RESULT % "207001|207018"
        ),
        "source": f"{_CUDA}; {_RT}; NVIDIA/nccl#1235; candle-org/MindAct#1761",
    },
    {
        "cause": "device_error",
        "pattern": (
            r"(?i:uncorrectable (?:ecc|nvlink)|double.bit ecc|fallen off the bus|gpu is lost)"
            r"|\bXid\b|cudaErrorECCUncorrectable|cudaErrorHardwareStackError|hardware stack error|"
            + _NUMBER % "39|214|714"
            + "|"
            + _RESULT % "507010|507053|507054|507055"
            + r"|Device\[\d+\] lost heartbeat|reason=lost heartbeat"
            r"|HBM (?:[Mm]ulti.?[Bb]it )?ECC"
        ),
        "source": f"{_CUDA}; {_RT}; NVIDIA's Xid catalogue; PaddlePaddle/Paddle#10239",
    },
    {
        "cause": "port_in_use",
        "pattern": r"\bEJ0003\b|Failed to bind the IP port|host nic listen start failed",
        "source": f"{_HIASCEND}: EJ0003; vllm-project/vllm-ascend#405",
    },
    {
        "cause": "import_error",
        "pattern": r"Cannot load cudnn shared library|Could not load library lib\w+",
        "source": "PaddlePaddle/PaddleOCR#7300; cuDNN 8, its own loader",
    },
    {
        "cause": "version_mismatch",
        "pattern": (
            r"CUDNN_STATUS_(?:NOT_INITIALIZED|(?:SUBLIBRARY_)?VERSION_MISMATCH|ARCH_MISMATCH"
            r"|RUNTIME_PREREQUISITE_MISSING)|Driver/library version mismatch|"
            + _NUMBER
            % "35|209|222|803|804"
        ),
        "source": f"{_CUDA}; PaddlePaddle/Paddle#52250, #34557; NVML",
    },
    {
        "cause": "loopback_address",
        "pattern": r"Can't find your local ip",
        "source": "Paddle, distributed/fleet/launch.py; PaddlePaddle/Paddle#37116",
    },
    {
        "cause": "cluster_setting",
        "grade": "shared",
        "pattern": (
            r"Role name '[^']*' is invalid|(?i:environment variable).{0,40}\bMS_(?:ROLE|SCHED_\w+"
            r"|WORKER_NUM)\b"
        ),
        "meaning": "The launcher did not give MindSpore's processes their roles in the cluster.",
        "remedy": "start with the launcher that the script expects (`launcher` in the job)",
        "source": "mindspore, cluster_context.cc; mindspore-lab/mindcv#480",
    },
    {
        "cause": "peer_to_peer",
        "grade": "primary",
        "pattern": (
            r"(?i:peer access (?:is|was) not (?:supported|enabled))|cudaErrorPeerAccess|"
            + _NUMBER % "217|704|705"
        ),
        "meaning": "Two devices of this node cannot read each other's memory.",
        "remedy": (
            "set NCCL_P2P_DISABLE=1 for this node, or turn off ACS and IOMMU in its firmware"
            " (`nvidia-smi topo -p2p r` shows which devices can)"
        ),
        "source": f"{_CUDA}; horovod/horovod#785; NVIDIA/nccl, src/transport/p2p.cc",
    },
    {
        "cause": "rdma_error",
        "grade": "shared",
        "pattern": (
            r"NET/IBP? ?: ?Got (?:completion|async)|\bibv_\w+.{0,40}failed|Transport retry count"
            r" exceeded|ib_mlx5_log|mlx5dv_\w+.{0,20}failed|[Ll]ocal QP operation|RDMA_CM_EVENT_"
        ),
        "meaning": "A transfer by RDMA failed between two adapters, or an adapter refused it.",
        "remedy": (
            "look at both adapters that the line names (`ibstat`, `rdma link`, cables, switch);"
            " on RoCE at NCCL_IB_GID_INDEX and NCCL_IB_HCA; NCCL_IB_DISABLE=1 tells whether it is"
            " RDMA"
        ),
        "source": "NVIDIA/nccl, src/transport/net_ib.cc, #426, #1405; openucx/ucx#5199",
    },
    {
        "cause": "collective_mismatch",
        "pattern": (
            r"Message truncated : received|Mismatched collective detected"
            r"|(?i:cmd information.{0,300}check fail)"
        ),
        "source": "NVIDIA/nccl, src/bootstrap.cc, src/init.cc, #1273; HCCL, EI0005",
    },
    {
        "cause": "hccl_link",
        "pattern": r"Cluster Exception Location.*(?:Heartbeat Lost|Error cqe) Occurred",
        "source": "HCCL, heartbeat.cc; its page on the loss of a peer's heartbeat",
    },
    {
        "cause": "collective_timeout",
        "pattern": (
            r"Cluster Exception Location.*Stuck Occurred|"
            + _RESULT % "507048"
            + r"|Find timeout (?:init but not"
            r" start|start but not finish) task"
        ),
        "source": (
            f"HCCL, heartbeat.cc; {_RT}; Paddle, phi/core/distributed/comm_task_manager.cc;"
            " vllm-project/vllm-ascend#2800"
        ),
    },
    {
        "cause": "device_unavailable",
        "grade": "primary",
        "pattern": (
            r"system not yet initialized|no CUDA-capable device|invalid device ordinal"
            r"|cudaErrorNoDevice|cudaErrorInvalidDevice|Unable to determine the device handle|"
            + _NUMBER % "10|38|100|101|802"
            + r"|\bEL0001\b|"
            + _RESULT % "107001"
        ),
        "meaning": (
            "This node does not show the device, or a service that the device needs does not run."
        ),
        "remedy": (
            "see `nvidia-smi` or `npu-smi info` on this node: compare its devices with those of the"
            " site, and start nvidia-fabricmanager where it has NVSwitch"
        ),
        "source": f"{_CUDA}; {_HIASCEND}: EL0001; pytorch/pytorch#35710 (error 802)",
    },
    {
        "cause": "device_assert",
        "grade": "primary",
        "pattern": (
            r"device-side assert|cudaErrorAssert|\.cu(?:h|\.h)?:\d+:? .{0,300}Assertion .* failed|"
            + _NUMBER % "59|710"
        ),
        "meaning": (
            "A check in a kernel failed on a value of the data: a label or an index out of range."
        ),
        "remedy": (
            "compare the labels and indices of this rank's data with num_classes and the sizes of"
            " the model's tables; the assertion in the log has the value"
        ),
        "source": f"{_CUDA}; PaddlePaddle/PaddleSeg#1346, Paddle#63882",
    },
    {
        "cause": "kernel_error",
        "grade": "primary",
        "pattern": (
            r"illegal memory access|unspecified launch failure|misaligned address|illegal"
            r" instruction was encountered|the launch timed out|cudaErrorIllegalAddress"
            r"|cudaErrorLaunchFailure|" + _NUMBER % "4|6|77|700|702|715|716|717|718|719"
        ),
        "meaning": (
            "A program on the accelerator failed; most often its code or its data are wrong, and"
            " nothing shows a fault of the device."
        ),
        "remedy": (
            "run the rank alone with CUDA_LAUNCH_BLOCKING=1 or ASCEND_LAUNCH_BLOCKING=1, which"
            " names the operator; look at its inputs, and for Xid lines in `dmesg` of the node"
        ),
        "source": f"{_CUDA}; PaddlePaddle/PaddleNLP#6031, Paddle#32595, #35543",
    },
)

LATE = (
    {
        "cause": "device_setting",
        "grade": "primary",
        "pattern": (
            r"\bEE1\d{3}\b|\bEH0\d{3}\b|\bE[12][0-8]\d{3}\b|\bEZ3\d{3}\b|ASCEND_RT_VISIBLE_DEVICES"
            r"|CUDNN_STATUS_(?:BAD_PARAM|NOT_SUPPORTED)|CUBLAS_STATUS_INVALID_VALUE|invalid"
            r" configuration argument|" + _RESULT % "107000" + "|" + _NUMBER % "1|9|11"
        ),
        "meaning": (
            "The accelerator's software refuses a setting, an operator or an argument; the device"
            " is sound."
        ),
        "remedy": "fix the variable, operator or argument that the message names",
        "source": f"{_HIASCEND}: EE1001, EH0001, E10001, E20101, EZ3002; {_CUDA}; cuDNN",
    },
    {
        "cause": "kernel_error",
        "pattern": (
            r"(?i:CUDA error|CUDNN error|CUBLAS error)|cudaError|CUDNN_STATUS_|CUBLAS_STATUS_"
            r"|\b(?i:ai ?core|aivec|vector core|aicpu)\b.{0,60}(?:abnormal|exception|error|time)"
            r"|\bE[EHZ123]9999\b|\bE[EZ3]\d{4}\b|" + _RESULT % r"5070(?:1[1-9]|3[4-9]|4\d|50)"
        ),
        "source": f"{_CUDA}; {_RT}; {_HIASCEND}; Ascend/pytorch#66; mindspore-lab/mindocr#615",
    },
)

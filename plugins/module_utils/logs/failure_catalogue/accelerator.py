# SPDX-License-Identifier: Apache-2.0
"""Causes in accelerators and their libraries. The package explains the entries.

They concern CUDA, cuDNN, NCCL, RDMA, CANN and HCCL. A device is blamed on evidence only: an error
of its memory, its link or its bus that the driver or the device itself reports. A kernel that
failed is mostly a fault of the code or the data. An entry without a grade has the words of its
cause's entry in another table.

EARLY is asked before all other tables, since its words mean another thing there. WORDS is asked
before the codes of ascend_codes.py, and LATE after them, both before the reports of ranks that lost
another one. LAST is asked after all.
"""

from __future__ import annotations

from .ascend_codes import ACL as _ACL
from .ascend_codes import RESULT as _RESULT

_CUDA = "CUDA, driver_types.h (cudaError_t); Paddle prints the number as `CUDA error(N)`"
_RT = "CANN, acl/error_codes/rt_error_codes.h"
_HIASCEND = "hiascend.com, CANN maintenance reference, error codes"
# CUDA's number as Paddle, NCCL, MindSpore and PyTorch write it.
_NUMBER = (
    r"(?:(?i:cuda (?:runtime )?(?:error|failure))|CUDA Error: .{0,200}\| Error Number"
    r"|\bError(?= 8\d\d:))"
    r":?\s?\(?(?:%s)\b"
)
_BLAS = r"(?i:cublas error:?)\s?\(?(?:%s)\b"
# A line of NVIDIA's driver. Some numbers are of the device, some of the program.
_XID = r"\bXid\b(?: ?\([^)]*\))?:? ?(?:%s)\b"
# Those of the device: memory, link, bus or its own processors.
DEVICE_XIDS = r"48|6[234]|74|79|9[245]|110|119|12[0-4]|13[67]|14\d|154"
# What takes locked memory of an RDMA adapter.
_LOCKED = r"(?:ibv|mlx5dv)_(?:reg_\w*mr\w*|create_\w+|alloc_\w+)"
# A line of NCCL about RDMA. It goes on after the excluded ones.
_NET_IB = (
    r"NET/IBP?(?:/\w+)? ?:(?!.*collective mismatch)(?!.{0,60}(?:non-fatal|table changed"
    r"|unknown event|is out of range|ignor|OOO RQ))"
)

EARLY = (
    {
        # CUDA's words in a process that is ending already.
        "cause": "connection_lost",
        "grade": "secondary",
        "pattern": r"driver shutting down|cudaErrorCudartUnloading",
        "source": f"{_CUDA}: cudaErrorCudartUnloading; NVIDIA/nccl#1485",
    },
    {
        "cause": "bus_error",
        "pattern": (
            r"/dev/shm/nccl-(?!.*No such file)|posix_fallocate failed"
            r"|NCCL WARN:? .{0,120}No space left on device"
            r"|Call to shm_open.{0,40}failed"
        ),
        "source": "NVIDIA/nccl, src/misc/shmutils.cc; pytorch/torchtitan#853",
    },
    {
        "cause": "resource_limit",
        "pattern": (
            _LOCKED + r".{0,160}Cannot allocate memory|max locked memory|failed to create \w+ QP"
            r".{0,160}Cannot allocate memory|NCCL WARN.{0,60}Thread creation failed"
            r"|NET/OFI Unable to register memory"
        ),
        "source": "NVIDIA/nccl-tests#206, openucx/ucx#6264, #8229: the limit of locked memory",
    },
    {
        # MindSpore takes half of a device's memory and more. What is free without it, others have.
        "cause": "device_busy",
        "pattern": r"free memory size is less than half",
        "source": "mindspore, ascend_memory_adapter.cc and gpu_memory_allocator.cc",
    },
    {
        "cause": "device_out_of_memory",
        "pattern": (
            r"(?i:cuda.{0,60}out of memory|memory isn't enough)|Out of memory!!!"
            r"|(?i:alloc.{0,60}(?:memory pool|device memory|hbm).{0,60}fail)"
            r"|NCCL WARN:? Failed to CUDA \w*alloc"
            r"|CU\w{1,12}_STATUS_(?:\w{1,12}_)?ALLOC(?:ATION)?_FAILED|cudaErrorMemoryAllocation"
            r"|driver error:out of memory|(?i:hccl).{0,200}error code is 24\b|\bERR00006\b|"
            + _NUMBER % "2"
            + r"\)|"
            + _BLAS % "3"
            + r"|\[devmm\]\[\w*alloc\w* \d+\]<errno:12\b|"
            + _RESULT % "200000|207001|207018|245000|245002"
        ),
        "source": f"{_CUDA}; {_RT}; NVIDIA/nccl#1235; candle-org/MindAct#1761",
    },
    {
        "cause": "device_error",
        "grade": "primary",
        "pattern": (
            r"(?i:uncorrectable (?:ecc|nvlink)|double.bit ecc|fallen off the bus|gpu is lost)"
            r"|" + _XID % DEVICE_XIDS + "|"
            r"cudaErrorECCUncorrectable|cudaErrorHardwareStackError|hardware stack error"
            r"|cudaErrorNvlinkUncorrectable|"
            + _NUMBER % "39|72|80|214|220|714"
            + "|"
            + _RESULT % "507010|507053|507054"
            + r"|Device\[\d+\] lost heartbeat|(?:reason=|scheduler )\[?lost heartbeat"
            r"|\bdevice\(\d+\) is not working|error_type: \d+, multi-bit ECC"
            r"|\bUCEError\b|HBM (?:[Mm]ulti.?[Bb]it )?ECC"
            r"|(?i:hbm multi bit ecc error)|\bUCE ERROR\b"
        ),
        "meaning": "The accelerator failed: it or its driver reported a fault of the device.",
        "remedy": (
            "the accelerator failed: see `nvidia-smi -q` and `dmesg` for Xid lines, or `npu-smi"
            " info` and the plog, on this node"
        ),
        "source": f"{_CUDA}; {_RT}; NVIDIA's Xid catalogue; PaddlePaddle/Paddle#10239",
    },
    {
        "cause": "port_in_use",
        "pattern": (
            r"\bEJ0003\b|\bEI00(?:19|20)\b|Failed to bind the IP port|host nic listen start failed"
        ),
        "source": f"{_HIASCEND}: EJ0003; vllm-project/vllm-ascend#405",
    },
    {
        "cause": "import_error",
        "pattern": (
            r"Cannot load cudnn shared library|failed to open libnvrtc"
            r"|Could not load library lib\w+(?!.*undefined symbol)"
            r"|CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED|Loading lib\w+\.so failed"
            r"|error code is lib\S+: cannot open shared object"
            r"|Load dynamic library:? \S+ failed.{0,12} \S+: cannot open shared object"
        ),
        "tagged": True,
        "source": (
            "PaddlePaddle/PaddleOCR#7300; cuDNN 8, its own loader; mindspore,"
            " device_context_manager.cc"
        ),
    },
    {
        "cause": "version_mismatch",
        "pattern": (
            r"CUDNN_STATUS_(?:NOT_INITIALIZED|(?:SUBLIBRARY_)?VERSION_MISMATCH|ARCH_MISMATCH"
            r"|RUNTIME_PREREQUISITE_MISSING)|[Dd]river/library version mismatch"
            r"|(?:CUBLAS|CUSOLVER|CUSPARSE|CUFFT)_STATUS_(?:NOT_INITIALIZED|ARCH_MISMATCH)"
            r"|CUDA driver version is insufficient|invalid device function"
            r"|unsupported display driver|unsupported toolchain"
            r"|no kernel image is available|device kernel image is invalid"
            r"|cudaErrorNoKernelImage|cudaErrorInvalidDeviceFunction|is not compiled with CUDA"
            r"|Unsupported GPU architecture"
            r"|not compiled with (?:GPU|NPU) support|Unsupported device target"
            r"|cannot be set as true while you are using paddlepaddle cpu"
            r"|does not has any binary|socversion \S+ of bin package does not match"
            r"|Failed to verify OPP|(?i:aicpu (?:ops )?package failed)"
            r"|package type mindspore-\w+ support"
            r"|Cannot parse json for config file \[\S+/op_impl/"
            r"|[Ll]oad op info \w* ?json .{0,20}fail|opp_kernel package is"
            r"|unsatisfied condition: (?:cuda|driver)"
            r"|does not match the installed version's device type"
            r"|shared object (?:initialization failed|symbol not found)|"
            + _NUMBER % "35|48|78|98|200|209|218|221|222|302|303|500|803|804"
            + "|"
            + _BLAS % "1|8"
        ),
        "source": f"{_CUDA}; PaddlePaddle/Paddle#52250, #34557; NVML",
    },
    {
        "cause": "loopback_address",
        "pattern": r"Can't find your local ip",
        "source": "Paddle, distributed/fleet/launch.py; PaddlePaddle/Paddle#37116",
    },
    {
        "cause": "rank_table",
        "pattern": (
            r"(?i:invalid environment variable).{0,20}RANK_TABLE_FILE|(?i:rank_?table_?file"
            r"|MINDSPORE_HCCL_CONFIG_PATH).{0,120}"
            r"(?i:invalid|not (?:exist|set|found)|failed|illegal)"
            r"|(?i:get rank table file failed|parse the ranktable)|'device_ip' is not set correctly"
            r"|\[RanktableConfig\].{0,60}path \S+ is not a valid real path"
        ),
        "source": "mindspore, hccl_context.cc and ascend_communication_group.cc; HCCL, EI0004",
    },
    {
        # All ranks have the same table, and each says it.
        "cause": "rank_table",
        "grade": "shared",
        "pattern": r"(?i:same super_?device_?id|super_?device_?id.{0,40}is invalid|_by_sdid fail)",
        "source": "HCCL, topoinfo_exchange_server.cc and HCCP, rs.c (CANN 8)",
    },
    {
        "cause": "cluster_setting",
        "grade": "shared",
        "pattern": (
            r"Role name '[^']*' is invalid|(?i:environment variable).{0,40}\bMS_(?:ROLE|SCHED_\w+"
            r"|WORKER_NUM)\b"
            r"|(?i:environment variables? ['\"]?rank_(?:id|size)\b.{0,30}"
            r"not (?:been exported|be empty))"
        ),
        "meaning": "The launcher did not give MindSpore's processes their roles in the cluster.",
        "remedy": "start with the launcher that the script expects (`launcher` in the job)",
        "source": "mindspore, cluster_context.cc; mindspore-lab/mindcv#480",
    },
    {
        "cause": "peer_to_peer",
        "grade": "primary",
        "pattern": (
            r"(?i:peer access (?:is|was) not (?:supported|enabled))|cudaErrorPeerAccess"
            r"|\benable_peer_access\b|failed to peer with device|peer mapping resources exhausted|"
            + _NUMBER
            % "217|704|705"
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
            _NET_IB + r"|\bibv_\w+.{0,200}failed|Transport retry count exceeded|ib_mlx5_log"
            r"|mlx5dv_\w+.{0,20}failed|[Ll]ocal QP operation|RDMA_CM_EVENT_"
            r"|\brdma: remote operation error|[Rr]emote access error|\bEI0013\b"
            r"|NET/OFI .{0,80}completed with error"
            r"|Endpoint timeout|PSM2? was unable to open an endpoint"
            r"|(?i:\bcqe err(?:or)?\b|error cqe status|failed cqe status)"
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
            r"[Mm]essage truncated : receiv|Mismatched collective detected"
            r"|Bootstrap Root : mismatch|NET/IB : collective mismatch"
            r"|parameters of operator \S+ are inconsistent between ranks"
            r"|Tensors in communication are expected to have matching"
            r"|(?i:cmd information.{0,300}check fail)"
        ),
        "source": "NVIDIA/nccl, src/bootstrap.cc, src/init.cc, #1273; HCCL, EI0005",
    },
    {
        "cause": "hccl_link",
        "pattern": (
            r"Cluster Exception Location.*(?:Heartbeat Lost|Error cqe) Occurred"
            r"|(?:LINK|SUSPECT (?:REMOTE|MEM)) ERROR\b|TLS switch is inconsistent"
            r"|tlsStatus are inconsistent|connected p2p timeout"
            r"|topo exchange (?:server|agent) get socket timeout|Failed to connect agent\["
            r"|ra_rdev_init.{0,60}ret\(-67\)|" + _RESULT % "507055|507056|507057"
        ),
        # 507055 to 507057: the memory or the link of another device is suspected.
        "source": f"HCCL, heartbeat.cc, topoinfo_exchange_server.cc; HCCP, ra_host.c: -67; {_RT}",
    },
    {
        "cause": "collective_timeout",
        "pattern": (
            r"Cluster Exception Location.*Stuck Occurred|Task run failed, base information"
            r"|(?:event|notify) wait timeout occurred|hccl fftsplus task timeout"
            r"|(?i:stream sync(?:hronize)? timeout)"
            r"|task_type=\d+\((?:EVENT|NOTIFY)_WAIT\)|reason=\[task timeout\]|"
            + _RESULT
            % "107020|507046|507047|507048"
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
            r"|cudaErrorNoDevice|cudaErrorInvalidDevice|Unable to determine the device handle"
            r"|Invalid \w+Place\(\d+\), must|No CUDA GPUs are available|Found no NVIDIA driver"
            r"|(?i:driver not loaded)"
            r"|could not select device driver|Device id must be less than|NVIDIA-SMI has failed"
            r"|NVLink SHARP"
            r"|cannot be performed in the present state|halDeviceOpen failed"
            r"|TsdOpen failed|(?i:tsdaemon).{0,60}abnormal"
            r"|tsd client wait response fail|drvGetDevNum\b.{0,20}=87\b"
            r"|open devdrv_device\(\d+\) failed|drvDeviceOpen failed|dcmi module init\w* failed"
            r"|halGetDeviceInfo failed: drvRet=87\b"
            r"|(?i:no (?:npu|gpu|cuda)?s? ?(?:devices?)? ?(?:is |are )?(?:found(?! matching| after)"
            r"|available|detected))|"
            + _NUMBER % "10|38|100|101|401|802|80[5-9]"
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
            r"device-side assert|cudaErrorAssert"
            r"|\.cu(?:h|\.h)?:\d+:? .{0,300}Assertion .* failed(?!.{0,100}find nan or inf)|"
            + _NUMBER
            % "59|710"
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
            r"|cudaErrorLaunchFailure|" + _XID % "13|31|43|45|68|69" + "|"
            r"CU(?:DNN|BLAS)_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR)|"
            + _NUMBER % "4|6|73|74|75|76|77|700|701|702|715|716|717|718|719|720"
            + "|"
            + _BLAS % "11|13|14"
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

# Words that say more than a code beside them.
WORDS = (
    {
        "cause": "kernel_error",
        "pattern": (
            r"\[(?:ai ?cpu|ai ?core|vector core|aivec)\w* (?:exception|timeout|error|trap)"
            r"|exception of ai(?:vec|core|cube)\w* error|task type=ai\w+ kernel"
            r"|reason=\[?(?:ai ?core|ai ?cpu|aivec|vector core) (?:exception|timeout|error|trap)"
            r"|warp-ctc .{0,60}execution failed"
        ),
        "source": "CANN's runtime, task.cc and device_error_core_proc.cc; open-mmlab/mmcv#3203",
    },
    {
        "cause": "worker_died",
        "tagged": True,
        "grade": "primary",
        "pattern": r"subprocess of dataset may exit unexpected",
        "source": "mindspore, dataset/engine/datasets.py (its watchdog)",
    },
    {
        "cause": "device_setting",
        "pattern": r"Place Place\(\w+:\d+\) is not supported",
        "source": "Paddle, phi/backends/device_context.cc; PaddlePaddle/PaddleDetection#5581",
    },
    {
        "cause": "device_setting",
        "grade": "primary",
        "pattern": (
            r"Compile operator failed, cause: Template constraint"
            r"|[Cc]an ?(?:not|'t) (?:find|select) an?y? (?:available|valid) kernel info"
            r"|Unsupported op \[|max_device_memory should be in range"
            r"|ASCEND_RT_VISIBLE_DEVICES"
            r"|CUDNN_STATUS_(?:BAD_PARAM|NOT_SUPPORTED|INVALID_VALUE)"
            r"|CUBLAS_STATUS_(?:INVALID_VALUE|NOT_SUPPORTED)|invalid configuration argument"
            r"|in dtype support list|does not support opType|TBEException"
            r"|[Ff]ailed to compile Op\b|Single op compile failed"
            r"|\[FILE:\w*(?:tiling|infer_?shape)\w*\.\w+\]"
            r"|reason=\[feature not support\]|" + _NUMBER % "1|9|11" + "|" + _BLAS % "7|15"
        ),
        "meaning": (
            "The accelerator's software refuses a setting, an operator or an argument; the device"
            " is sound."
        ),
        "remedy": "fix the variable, operator or argument that the message names",
        "source": f"{_HIASCEND}: EE1001, EH0001, E10001, E20101, EZ3002; {_CUDA}; cuDNN; {_RT}",
    },
)

LATE = (
    {
        "cause": "kernel_error",
        "pattern": (
            r"\b(?i:ai ?core|aivec(?:tor)?|vector core|aicpu)\b"
            r".{0,60}(?:abnormal|exception|error|fail|time)|\btimeout or trap error\b"
            r"|exception occurred during AICPU execution|Task execute failed, base info"
            r"|^Memory access fault:? by GPU|HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY|ILLEGAL)"
            r"|" + _RESULT % r"5070(?:1[14-8]|3[4-6]|4[2-59]|50)"
        ),
        "source": f"{_CUDA}; {_RT}; {_HIASCEND}; Ascend/pytorch#66; mindspore-lab/mindocr#615",
    },
    {
        "cause": "device_setting",
        "pattern": r"\bEL0003\b",
        "source": f"{_HIASCEND}: EL0003, which also stands below other errors",
    },
    {
        "cause": "accelerator_call",
        "pattern": r"\bEI0007\b|^HW Exception:? by GPU|" + _RESULT % "207005|20700[7-9]|20701[0-2]",
        "source": f"HCCL, EI0007; {_RT}: streams, events or notifies ran out",
    },
    {
        # A library between the ranks fails with a code that is in no table.
        "cause": "collective_error",
        "grade": "shared",
        "pattern": (
            r"\bE[IJ]\d{4}\b|(?i:hccl (?:function )?error)"
            r"|\bHccl[A-Z]\w+.{0,60}(?i:fail|error code)"
            r"|(?i:\b(?:hcom|hccl)\b.{0,40}\bfail)|\bhcclRet ->"
            r"|(?i:failed to (?:create|init\w*) (?:the )?(?:\w+ )?communicat)"
            r"|\bHCCL_E_[A-Z]\w+|\bERR02\d{3}\b|operator name is \W?(?i:hccl|hcom)"
            r"|(?i:hccl).{0,40}watchdog|Init plugin so failed|HCCL_SUCCESS \(\d+ vs"
            r"|collective communication initialization failed|Distribute Task Failed"
            r"|(?i:(?:create|init\w*) (?:the )?communicat\w+ (?:group|lib\w*).{0,60}fail)"
        ),
        "meaning": "A library between the ranks failed (HCCL, NCCL, gloo) and does not say why.",
        "remedy": (
            "look for the rank whose log has another error or an earlier one; NCCL_DEBUG=INFO and"
            " CANN's plog of both ranks (`grep ERROR`, under ~/ascend/log) say more"
        ),
        "source": f"{_HIASCEND}: EI9999; HCCL, hccl_types.h; torch_npu, NPUException (ERR02xxx)",
    },
    {
        "cause": "permission",
        "pattern": _RESULT % "207006",
        "source": f"{_RT}: no right to use the device",
    },
    {
        "cause": "nccl_system_error",
        "pattern": r"DistBackendError(?!.*(?:remote (?:process|peer)|[Cc]onnection))",
        "source": "PyTorch, torch/csrc/distributed/c10d: an error of a library between the ranks",
    },
    {
        # The accelerator's software fails with a code that is in no table.
        "cause": "accelerator_call",
        "grade": "primary",
        "pattern": (
            r"The Inner error is reported as above"
            r"|(?i:\b(?:CUDA(?: driver)?|CUDNN|CUBLAS|CUSOLVER|CUSPARSE|CUFFT|HIP) error)|cudaError"
            r"|\bCU\w+_STATUS_|\bNVMLError(?!_LibraryNotFound)"
            r"|(?i:npu function error|acl (?:stream )?error)"
            r"|(?i:failed to create cu\w+ (?:dn )?handle)|\bERR(?!99999)\d{5}\b"
            r"|\bACL(?:_ERROR|NN_ERR)_[A-Z]\w+|CANN error: "
            r"|(?i:kernel runtime init\w* (?:error|fail))"
            r"|(?i:\bsync(?:hronize)? (?:\w+ )?stream\w* (?:error|fail)|\brun task error)"
            r"|(?i:\b(?:compile|exec|run) graph\b.{0,80}\bfail)"
            r"|\bE[A-HK-PZ3]\d{4}\b|\bE[0-9](?:9999|8888)\b"
            r"|\b(?:aclrt|aclnn|acl[A-Z]|rt[A-Z])\w+.{0,60}(?i:fail|error)|\bEL\d{4}\b|"
            + _ACL
            + _RESULT % r"[1-5][046]\d{4}"
        ),
        "meaning": (
            "A call of the accelerator's software failed with a code that does not say why; nothing"
            " shows a fault of the device."
        ),
        "remedy": (
            "read the lines above it; compare driver, runtime and libraries with those of a node"
            " where it works, then run the rank alone; if all programs fail there, restart the node"
        ),
        "source": f"{_CUDA}; {_RT}; NVML; torch_npu, NPUException; codes that no entry knows",
    },
)

# Asked after all other tables.
LAST = (
    {
        "cause": "collective_error",
        "pattern": (
            r"^(?:\w+\.)*(?:RuntimeError|OSError|SystemError|EnforceNotMet|Dist\w+Error)\b.{0,400}"
            r"\b(?i:all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|collective|communicators?"
            r"|process ?group|rendezvous|bkcl|gloo|ucx)\b.{0,200}"
            r"(?i:fail|error|abort|exception|lost|exit|time(?:d )?out)"
        ),
        "source": "the words that Paddle, MindSpore and PyTorch have for such an error",
    },
)

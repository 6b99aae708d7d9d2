# SPDX-License-Identifier: Apache-2.0
"""Causes of failures between ranks. The package explains the entries.

They concern rendezvous, NCCL, HCCL, MindSpore's cluster and Open MPI.
"""

from __future__ import annotations

_HIASCEND = "hiascend.com, CANN maintenance reference, error codes (HCCL Errors, HCCP Errors)"
_NCCL = (
    "NVIDIA/nccl, src/init.cc (ncclGetErrorString) and src/bootstrap.cc; Paddle wraps it as"
    " `(External) NCCL error(N)`"
)
_CLUSTER = (
    "mindspore 2.7.0, texts of libmindspore_backend_common.so (cluster_context.cc,"
    " compute_graph_node.cc, meta_server_node.cc)"
)
_OPENMPI = "Open MPI 4.1, help-orterun.txt, help-errmgr-base.txt and help-orte-*.txt"

# Reports of the end of another rank or of a launcher. They explain nothing on their own, so they
# come first.
SEEN = (
    {
        "cause": "seen_by_launcher",
        "grade": "secondary",
        "pattern": (
            r"Distributed job exited with exception|Container failed !!!|mpi(?:run|exec) noticed"
            r" that"
            r"|[Ww]orker exits with exception|Scheduler process \d+ exit with exception"
            r"|(?:mpi(?:run|exec)|prterun) (?:detected that one or more processes exited|has exited"
            r" due to process rank)"
        ),
        "meaning": "A launcher reports that one of its ranks ended; it does not say why.",
        "remedy": "look for the rank that the launcher names, and read that rank's log",
        "source": _OPENMPI + "; mindspore/parallel/cluster/process_entity/_api.py (join_processes)",
    },
)

FABRIC = (
    {
        "cause": "port_in_use",
        "grade": "primary",
        "pattern": (
            r"Address already in use|EADDRINUSE|Bind network on \S+ failed|ERROR on binding|unable"
            r" to listen socket"
            r"|listen socket failed|Fail to listen|\bEI00(?:19|20)\b"
            r"|listen on ip\[[^\]]*\] and specific port\[\d+\] fail"
        ),
        "meaning": (
            "A port that the training has to listen on belongs to another process of the node."
        ),
        "remedy": (
            "something else listens on the start port of this node (`ss -ltnp` names it): end it or"
            " choose another start port"
        ),
        "source": (
            "Paddle 2.6.2, paddle/phi/core/distributed/store/tcp_utils.cc (only rank 0's start port"
            " is listened on); mindspore 2.7.0, socket_operation.cc (Listen); " + _HIASCEND
        ),
    },
    {
        "cause": "loopback_address",
        "grade": "shared",
        "pattern": (
            r"(?i:connect|bind|listen)\b.{0,40}\b127\.0\.[01]\.1\b|\[127\.0\.1\.1\]"
            r"|connectFullMesh failed.{0,200}remote=\[127\."
        ),
        "meaning": (
            "A node gave the others its loopback address instead of the one at which it is reached."
        ),
        "remedy": (
            "gloo resolved a node's host name to loopback: take the host name off the 127.0.1.1"
            " line of its /etc/hosts (`getent hosts $(hostname)` on each node shows it), or let"
            " GLOO_SOCKET_IFNAME name the interface of the fabric"
        ),
        "source": (
            "measured: with `127.0.1.1 <host name>` in /etc/hosts gloo binds loopback even when the"
            " launcher has the right address; it is the others that say so"
        ),
    },
    {
        "cause": "bad_interface",
        "grade": "primary",
        "pattern": (
            r"Unable to find (?:interface|address) for|No interface found|Bootstrap ?: no socket"
            r" interface found"
            r"|NET/Socket ?: [Nn]o (?:usable )?(?:listening )?interface found|HCCL_SOCKET_IFNAME"
            r"|no device found (?:matching|after excluding)|Cannot assign requested address"
        ),
        "meaning": "The training was told to use a network interface that this node does not have.",
        "remedy": (
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names an interface this node lacks: `ip"
            " -brief address` shows the right one"
        ),
        "source": "gloo/transport/tcp/device.cc, NCCL's src/bootstrap.cc, CANN's EI0001",
    },
    {
        "cause": "duplicate_rank",
        "grade": "shared",
        "pattern": (
            r"(?i:duplicate rank)|rank \d+ (?:is )?(?:already (?:registered|exists|in"
            r" use)|duplicated)"
            r"|node could be redundant and is not successfully registered|Repeated registration"
            r" node|Duplicate GPU detected|Multiple Ranks are using the same GPU|has already"
            r" checked in"
        ),
        "meaning": "Two processes claim the same rank, or the same device, of one training.",
        "remedy": (
            "look for a second start of the same job (`status.yml`), for two inventory names of one"
            " machine, and for one device named twice"
        ),
        "source": (
            "NVIDIA/nccl, src/init.cc (Duplicate GPU detected); mindspore, cluster_context.cc"
            " (PostProcess); issue mindspore-lab/mindrl#144"
        ),
    },
    {
        "cause": "version_skew",
        "grade": "shared",
        "pattern": (
            r"(?i:mismatched NCCL version|NCCL version mismatch)|\bEI0008\b|(?i:inconsistent CANN"
            r" version)"
            r"|receiv(?:ing|ed) \d+ bytes instead of \d+"
        ),
        "meaning": (
            "The nodes run different versions of the collective library, so they do not understand"
            " each other."
        ),
        "remedy": "bring every node to one version (`check.yml` compares them), then start again",
        "source": _NCCL + "; NVIDIA/nccl#1328; " + _HIASCEND + ": EI0008",
    },
    {
        "cause": "rank_table",
        "grade": "primary",
        "pattern": (
            r"\bEI00(?:04|14|17)\b|\bEJ0004\b|in the ranktable is inconsistent"
            r"|is invalid in ranktable|(?i:invalid rank ?table)"
            r"|(?i:the rank ?table or rank is invalid)"
        ),
        "meaning": (
            "The rank table does not fit the devices, their addresses or the number of ranks."
        ),
        "remedy": (
            "start again: `train.yml` makes the table anew from the devices as they are; compare"
            " device_ip with `hccn_tool -i N -ip -g`"
        ),
        "source": _HIASCEND + ": EI0004, EI0014, EI0017, EJ0004",
    },
    {
        "cause": "hccl_setting",
        "grade": "primary",
        "pattern": r"\bEI00(?:01|03|16)\b|Environment variable ?\[ ?HCCL_\w+",
        "meaning": "HCCL refuses one of its settings or the arguments of a collective operation.",
        "remedy": "fix the variable or argument that the message names",
        "source": _HIASCEND + ": EI0001, EI0003, EI0016",
    },
    {
        "cause": "collective_mismatch",
        "grade": "shared",
        "pattern": (
            r"\bEI0005\b|(?i:arguments for collective communication are inconsistent)|collective"
            r" mismatch error"
            r"|(?i:mismatched collective)|op\.preamble\.length <= op\.nbytes"
        ),
        "meaning": (
            "The ranks called different collective operations, or the same one with different"
            " sizes."
        ),
        "remedy": (
            "make all ranks run the same code, data split and settings; the step at which they part"
            " shows in their logs"
        ),
        "source": _HIASCEND + ": EI0005; NVIDIA/nccl#969; gloo/transport/tcp/pair.cc",
    },
    {
        "cause": "device_busy",
        "grade": "primary",
        "pattern": (
            r"\bEJ0001\b|(?i:failed to initialize the HCCP process)|\bEL0005\b|(?i:CUDA-capable"
            r" devices?(?:\(s\))? (?:is|are|is/are) busy)|(?i:device already in use)"
            r"|(?i:cuda error:?)\s?\(?(?:46|216)\b|device may be occupied by other processes"
            r"|failed, because the device is used|may be other processes occupying this card"
        ),
        "meaning": (
            "The device is still held by another process, most often by an earlier training that"
            " has not gone yet."
        ),
        "remedy": (
            "end what holds the device (`npu-smi info` or `nvidia-smi` names it), wait 10 s, start"
            " again"
        ),
        "source": _HIASCEND + ": EJ0001, EL0005; CUDA: cudaErrorDevicesUnavailable",
    },
    {
        "cause": "hccl_link",
        "grade": "shared",
        "pattern": (
            r"\bEI00(?:06|09|10|12|15|18)\b|\bEJ0002\b|(?i:getting socket times out)"
            r"|wait socket establish timeout|get socket timeout"
            r"|(?i:transport init error)|tlsStatus are inconsistent|LINK_ERROR_INFO"
            r"|\| +(?:server|client) +\| +no connect\b|receive msg length from fdhandle failed"
        ),
        "meaning": "The NPUs of the ranks could not connect to each other in time.",
        "remedy": (
            "look for a rank that failed or hangs elsewhere; if none did, test the device network"
            " (`hccn_tool -i N -link -g`, ping, TLS), then raise HCCL_CONNECT_TIMEOUT"
        ),
        "source": (
            _HIASCEND
            + ": EI0006, EI0009, EI0010, EI0012, EI0013, EI0015; vllm-project/vllm-ascend#1955"
        ),
    },
    {
        "cause": "collective_timeout",
        "grade": "shared",
        "pattern": (
            r"\bEI0002\b|(?i:the wait execution of the notify register times out)|(?i:collective"
            r" operation timeout)"
            r"|NCCL.{0,60}(?<!Connection )(?<!pg_)(?i:time(?:d )?out)"
            r"|Work\w+\(SeqNum=.*(?:timed|timing) out"
            r"|Timed out waiting \d+ ?ms for (?:recv|send|\w+) operation"
        ),
        "meaning": (
            "A collective operation did not finish in time: at least one rank did not take part"
            " in it."
        ),
        "remedy": (
            "look for the rank that stands at an earlier step than the others, or that ended; if"
            " none does, look at the network"
        ),
        "source": (
            _HIASCEND + ": EI0002; NCCL watchdog texts (NVIDIA/nccl#1610);"
            " gloo/transport/tcp/unbound_buffer.cc"
        ),
    },
    {
        "cause": "nccl_cuda_error",
        "grade": "primary",
        "pattern": (
            r"unhandled cuda error|ncclUnhandledCudaError|== ncclSuccess \(1 vs|NCCL WARN:? Cuda"
            r" failure"
        ),
        "meaning": (
            "NCCL's call of CUDA failed on this rank: driver, device and libnccl do not fit, or the"
            " device failed."
        ),
        "remedy": (
            "run the rank alone with NCCL_DEBUG=INFO; compare driver, CUDA and libnccl with those"
            " of a node where it works"
        ),
        "source": _NCCL + "; PaddlePaddle/PaddleDetection#4139, PaddleSpeech#3171",
    },
    {
        "cause": "nccl_usage",
        "grade": "primary",
        "pattern": (
            r"(?i:[nr]ccl error).{0,300}invalid argument|ncclInvalidArgument|== ncclSuccess \(4 vs"
            r"|NCCL WARN:? \w+ ?: (?:invalid (?:root|type|reduction)|.{0,60}(?:is not a valid"
            r" pointer|mismatchs with NCCL device|argument is NULL))"
            r"|(?:Invalid|improper) (?:rank|device|usage of nccl).{0,40}(?:requested|nranks)"
        ),
        "meaning": "NCCL refuses how it was called; most often two ranks use one device.",
        "remedy": (
            "read the NCCL WARN line above it (NCCL_DEBUG=WARN); check that each rank has a device"
            " of its own"
        ),
        "source": _NCCL + "; NVIDIA/nccl#1241",
    },
    {
        # All ranks say it of one device that two have, and of two versions.
        "cause": "nccl_usage",
        "grade": "shared",
        "pattern": (
            r"(?i:[nr]ccl error).{0,300}invalid usage|ncclInvalidUsage|== ncclSuccess \(5 vs"
        ),
        "meaning": "NCCL refuses how it was called; most often two ranks use one device.",
        "remedy": (
            "read the NCCL WARN line above it (NCCL_DEBUG=WARN); check that each rank has a device"
            " of its own"
        ),
        "source": _NCCL + "; NVIDIA/nccl#1241",
    },
    {
        "cause": "nccl_system_error",
        "grade": "shared",
        "pattern": (
            r"(?i:[nr]ccl error).{0,300}(?:unhandled system error|internal error"
            r"|Resource temporarily unavailable)|ncclSystemError|ncclInternalError"
            r"|unhandled system error|== ncclSuccess \([23] vs"
        ),
        "meaning": "NCCL's sockets, shared memory or network device failed between ranks.",
        "remedy": (
            "look for a rank that ended first; if none did, run with NCCL_DEBUG=INFO and look at"
            " interface, firewall and /dev/shm"
        ),
        "source": _NCCL + "; PaddlePaddle/Paddle#48181",
    },
    {
        "cause": "cluster_timeout",
        "grade": "shared",
        "pattern": (
            r"(?i:failed to initialize (?:distributed job cluster|collective communication))"
            r" because some processes"
            r"|The total number of timed out node is|Time out nodes are \["
            r"|Failed to connect to the meta server\. Maybe"
            r" it has exited"
            r"|Topology build timed out\.?(?:$|, retry\((\d+)/\1\))"
            r"|connection to scheduler is lost|connect to scheduler"
            r" timed? ?out"
            r"|is timed out\. It may exit with exception|from the meta server node"
        ),
        "meaning": (
            "MindSpore's scheduler and its workers did not all find each other, or one of them"
            " stopped answering."
        ),
        "remedy": (
            "look for the worker or scheduler that ended or never started (scheduler.<node>.log"
            " names it); if all run, the scheduler's port must be open to every node"
        ),
        "source": _CLUSTER,
    },
    {
        "cause": "mpi_start",
        "grade": "shared",
        "pattern": (
            r"(?:(?:OR|PR)TE|prterun|mpirun) was unable to reliably start"
            r"|(?:OR|PR)TE daemon has unexpectedly failed"
            r"|(?:OR|PR)TE has lost communication with a remote daemon"
            r"|required daemon terminated during execution|(?:OR|PR)TE does not know how to route a"
            r" message"
        ),
        "meaning": (
            "Open MPI's daemon on one of the nodes did not start, or ended while the training ran."
        ),
        "remedy": (
            "look at that node's launcher log and unit: Open MPI of the same version, passwordless"
            " SSH and the fabric are needed"
        ),
        "source": _OPENMPI,
    },
    {
        "cause": "mpi_slots",
        "grade": "primary",
        "pattern": r"There are not enough slots available in the system|(?:ran|run) out of slots",
        "meaning": "Open MPI was asked for more ranks than its host list has room for.",
        "remedy": "make the host list and the number of ranks fit: plan the job anew",
        "source": _OPENMPI,
    },
    {
        "cause": "mpi_abort",
        "grade": "primary",
        "pattern": r"MPI_ABORT was invoked on rank",
        "meaning": "The training code itself ended all ranks by MPI_Abort.",
        "remedy": (
            "read the log of the rank that the message names: what stands above it is the reason"
        ),
        "source": "Open MPI 4.1, help-mpi-api.txt (mpi-abort)",
    },
    {
        # They cannot reach each other, or have nothing to reach each other with.
        "cause": "mpi_runtime",
        "grade": "shared",
        "pattern": (
            r"pair of MPI processes are unable|opened in the \w+ framework|^Open MPI: PML "
            r"|internal error has occurred in (?:OR|PR)TE"
        ),
        "source": _OPENMPI + " and help-mca-bml-r2.txt; open-mpi/ompi#10955, #11669",
    },
    {
        "cause": "mpi_runtime",
        "grade": "secondary",
        "pattern": (
            r"PMIX ERROR|PMI[Xx]?_?Init failed|orte_init failed|ompi_mpi_init: .{0,60}failed"
            r"|failed to TCP connect to a peer|(?:OR|PR)TE_ERROR_LOG"
            r"|no active messages transport"
            r"|Failed to (?:resolve|receive|create) UC\w+|ucp_ep_create|looks like MPI_INIT failed"
            r"|An error occurred in MPI_|MPI_ERRORS_ARE_FATAL|^UCX:"
        ),
        "meaning": (
            "Open MPI's own services failed on this node, as they also do when another rank has"
            " gone."
        ),
        "remedy": (
            "look for the rank or daemon that ended first; if none did, look at /tmp of the node"
            " (space, rights)"
        ),
        "source": "Open MPI 4.1 and PMIx 4, their error prefix",
    },
    {
        "cause": "store_timeout",
        "grade": "shared",
        "pattern": (
            r"Network \S+ cannot be connected|Keys \[.{0,200}\] are not ready"
            r"|Connect to store failed|DistStoreError"
            r"|(?i:process group).{0,80}(?i:time(?:d )?out|timeout)"
            r"|[Ww]ait timeout for key|[Tt]imeout waiting for key|store->get\("
            r"|(?i:rendezvous.{0,40}time(?:d )?out)"
            r"|_timeout:\d+ elapsed:\d+|RendezvousConnectionError"
            r"|connectFullMesh failed.{0,200}[Tt]imeout"
            r"|client socket has timed out after|Socket Timeout"
            r"|TCPStore.{0,60}[Tt]ime(?:d )?out"
            r"|network \S+ cannot be obtained|SendRPC name:.{0,200}Deadline Exceeded"
            r"|(?i:\b(?:rank|trainer|worker) \d+\b).{0,20}"
            r"(?i:did not (?:come|join|arrive|answer)|failed to pass|timed out)"
        ),
        "meaning": (
            "The ranks did not meet: rank 0's store was not reached, or not all ranks came to it in"
            " time."
        ),
        "remedy": (
            "look for the rank that never started or ended first; if all run, rank 0's start port"
            " must be open to every node (`check.yml` tries it)"
        ),
        "source": (
            "Paddle 2.6.2 and 3.3.1, paddle/phi/core/distributed/store/tcp_utils.cc and"
            " tcp_store.cc; PaddlePaddle/Paddle#44780"
        ),
    },
)

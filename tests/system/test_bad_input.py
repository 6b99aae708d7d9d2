# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused before a node is contacted, with every problem in one report. Unusual input
that is correct is accepted.

The tables follow the promises word by word. The real job_config action gets each case, with files
that Ansible itself reads.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret
from bad_input_support import GOOD, SITE, Bench
from core_support import ROOT


@pytest.fixture
def bench(tmp_path, load_plugin, monkeypatch):
    """A good site in a folder, and the action."""
    return Bench(tmp_path, load_plugin("action", "job_config"), monkeypatch)


def job(text="", **changes):
    """Return a job file's text: the good one, lines changed by key, more below."""
    lines = GOOD.splitlines()
    for key, value in changes.items():
        lines = [line for line in lines if not line.startswith(key + ":")] + (
            [] if value is None else [f"{key}: {value}"]
        )
    return "\n".join(lines) + "\n" + text


SUITE = SITE["trainyard_suites"]["paddledetection"]


def suite(**changes):
    """Return trainyard_suites with the suite changed."""
    return {"site": {"trainyard_suites": {"paddledetection": dict(SUITE, **changes)}}}


# --- the job: (what is given, what a line of the report holds)
JOB = [
    ("missing file", {"job": None, "words": ["config=./nothere.yml"]}, "command line config: no such file"),
    ("near name", {"job": None, "words": ["config=ppyole"]}, "did you mean 'ppyoloe'?"),
    ("empty", {"job": ""}, "mine.yml: is empty"),
    ("directory", {"job": None, "words": ["config=/etc/"]}, "neither the name of a job"),
    ("device", {"job": None, "words": ["config=/dev/null/x.yml"]}, "command line config: no such file"),
    ("not YAML", {"job": "suite: [\n"}, "mine.yml:2: is not YAML: expected the node content"),
    ("a tab as indentation", {"job": GOOD + "env:\n\tA: 1\n"}, "mine.yml:5: is not YAML"),
    ("a list", {"job": "- a\n"}, "mine.yml:1: must be a mapping of keys, got a list"),
    ("two documents", {"job": GOOD + "---\n" + GOOD}, "mine.yml: holds 2 documents"),
    ("duplicate key", {"job": GOOD + "suite: x\n"}, "mine.yml:4 suite: the key stands twice (first in line 1)"),
    ("unknown key", {"job": GOOD + "node: 2\n"}, "mine.yml:4 node: unknown key; allowed: arguments, checkpoint_every, config"),
    ("unknown key, near", {"job": GOOD + "node: 2\n"}, "did you mean 'nodes'?"),
    ("thousands of unknown keys", {"job": GOOD + "".join("k%d: 1\n" % n for n in range(3000))}, "2950 more unknown keys"),
    ("missing key", {"job": job(config=None)}, "mine.yml:1: the key 'config' is missing"),
    ("wrong type", {"job": job(config="[a.yml]")}, "mine.yml:3 config: must be the path"),
    ("octal", {"job": GOOD + "nodes: 010\n"}, "mine.yml:4 nodes: 010 is read as 8; write plain digits"),
    ("not an octal", {"job": GOOD + "nodes: 08\n"}, "mine.yml:4 nodes: must be 'all', a whole number from 1 up, or a list of the site's trainers without repetition; got '08'"),
    ("boolean", {"job": GOOD + "nodes: no\n"}, "nodes: must be 'all', a whole number from 1 up, or a list of the site's trainers without repetition; got False"),
    ("boolean as a key", {"job": GOOD + "env: {no: 1}\n"}, "mine.yml:4 env: a key must be a plain word"),
    ("zero", {"job": GOOD + "devices: 0\n"}, "mine.yml:4 devices: must be 'all', a whole number from 1 up"),
    ("negative", {"job": GOOD + "nodes: -1\n"}, "mine.yml:4 nodes: must be 'all'"),
    ("no number", {"job": GOOD + "overrides: {a: .nan}\n"}, "mine.yml:4 overrides.a: .nan is no finite number"),
    ("a number without end",
     {"job": GOOD + "overrides: {a: %s}\n" % ("9" * 5000)}, "overrides.a: 9999999999999999999999999999999999999... cannot be read as int"),
    ("not a tagged value", {"job": GOOD + "overrides: {a: !!bool maybe}\n"}, "overrides.a: maybe cannot be read as bool"),
    ("an empty tagged number", {"job": GOOD + 'overrides: {a: !!int ""}\n'}, "overrides.a: '' cannot be read as int"),
    ("a number of no digits", {"job": GOOD + "overrides: {a: 0x_}\n"}, "overrides.a: 0x_ cannot be read as int"),
    ("more nodes than the site", {"job": GOOD + "nodes: 3\n"}, "mine.yml:4 nodes: asks for 3 nodes; the site 'site' has 2"),
    ("devices twice",
     {"job": GOOD + "devices: [1, 1]\n"}, "mine.yml:4 devices: must be 'all', a whole number from 1 up, or a list of device ids without"),
    ("more devices than declared", {"job": GOOD + "devices: 3\n"}, "mine.yml:4 devices: asks for 3; node1, node2 declare the devices 0, 1"),
    ("a device that is not there",
     {"job": GOOD + "devices: [0, 7]\n"}, "mine.yml:4 devices: asks for [0, 7]; node1, node2 declare the devices 0, 1"),
    ("a port of the system", {"job": GOOD + "start_port: 80\n"}, "mine.yml:4 start_port: must be a port from 1024 to 65535; got 80"),
    ("no port", {"job": GOOD + "start_port: 65536\n"}, "start_port: must be a port from 1024 to 65535"),
    ("ports beyond the last",
     {"job": GOOD + "start_port: 65535\n"}, "mine.yml:4 start_port: 2 ranks of a node need the ports 65535 to 65536"),
    ("unknown suite", {"job": job(suite="paddledetektion")}, "suite: got 'paddledetektion'; allowed: mindocr, paddledetection"),
    ("unknown launcher", {"job": job(launcher="flettrun")}, "did you mean 'fleetrun'?"),
    ("a pair that cannot work", {"job": job(launcher="msrun")}, "launcher: PaddleDetection cannot be started with msrun; allowed: "),
    ("a rendezvous that there is not",
     {"job": job(launcher="paddle") + "rendezvous: mastr\n"},
     "mine.yml:4 rendezvous: paddle has no rendezvous 'mastr'; allowed: ips, master; did you mean 'master'?"),
    ("config outside the code tree",
     {"job": job(config="../../etc/x.yml")}, "mine.yml:3 config: must be the path of the suite's config file inside the code tree"),
    ("absolute config", {"job": job(config="/etc/x.yml")}, "inside the code tree"),
    ("dash in front", {"job": job(config="-x.yml")}, "inside the code tree"),
    ("a shell's words in config", {"job": job(config="'x; rm -rf /'")}, "mine.yml:3 config: must be the path"),
    ("a line end behind config", {"job": job(config='"a.yml\\n"')}, "mine.yml:3 config: must be the path"),
    ("control character in an override",
     {"job": GOOD + 'overrides: {a: "x\\e[2Jy"}\n'}, "overrides.a: holds U+001B (a control character) as character 2; take it out"),
    ("NUL in an override", {"job": GOOD + 'overrides: {a: "x\\0y"}\n'}, "overrides.a: holds U+0000"),
    ("control character deep in an override", {"job": GOOD + 'overrides: {a: [1, "\\a"]}\n'}, "overrides.a.1: holds U+0007"),
    ("bidirectional override", {"job": GOOD + 'env: {A: "a\\u202Eb"}\n'}, "env.A: holds U+202E (RIGHT-TO-LEFT OVERRIDE)"),
    ("bidirectional mark raw", {"job": GOOD + "arguments: [a\u2066b]\n"}, "arguments.0: must be one word of the command line"),
    ("invisible character", {"job": GOOD + "env: {A: a\u200bb}\n"}, "env.A: holds U+200B (ZERO WIDTH SPACE)"),
    ("half a character", {"job": GOOD + 'env: {A: "\\uD800"}\n'}, "env.A: holds U+D800"),
    ("line separator", {"job": GOOD + 'description: "a\\u2028b"\n'}, "description: holds U+2028 (LINE SEPARATOR)"),
    ("escape in a description", {"job": GOOD + 'description: "\\e]0;x\\a"\n'}, "description: holds U+001B"),
    ("bidirectional description", {"job": GOOD + "description: a\u202eb\n"}, "description: holds U+202E"),
    ("control character in a result row's text",
     {"job": GOOD + 'published: [{data: "\\b", machines: a, one_machine: b, many: c, speed_up: 1}]\n'}, "published.0.data: holds U+0008"),
    ("two lines in the environment", {"job": GOOD + 'env: {A: "a\\nb"}\n'}, "env.A: holds U+000A"),
    ("longer than a command line takes",
     {"job": GOOD + "overrides: {a: %s}\n" % ("x" * 130000)}, "overrides.a: is longer than the 120000 bytes"),
    ("YAML tag", {"job": GOOD + "env: !!python/object/apply:os.system [id]\n"}, "mine.yml:4 env: a job is plain data; got the tag"),
    ("alias bomb", {"job": "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n"}, "mine.yml:2: YAML aliases are not allowed"),
    ("a nest without end", {"job": "[" * 20000}, "mine.yml:1: nests deeper than 40 levels"),
    ("larger than a job is", {"job": GOOD + "#" * 300000}, "mine.yml: is larger than 262144 bytes"),
    ("reserved PADDLE_",
     {"job": GOOD + "env: {PADDLE_NNODES: 1}\n"}, "mine.yml:4 env.PADDLE_NNODES: is reserved: the plan sets it; take it out"),
    ("reserved LD_PRELOAD", {"job": GOOD + "env: {LD_PRELOAD: x.so}\n"}, "env.LD_PRELOAD: is not for a training"),
    ("reserved PATH", {"job": GOOD + "env: {PATH: /x}\n"}, "env.PATH: is reserved"),
    ("the plan's option", {"job": GOOD + "arguments: [--eval, -o, a=1]\n"}, "mine.yml:4 arguments: '-o' is set by the plan"),
    ("the plan's option, with its value", {"job": GOOD + "arguments: [-oepoch=1]\n"}, "'-oepoch=1' is set by the plan"),
    ("the plan's option, cut short", {"job": GOOD + "arguments: [--conf=x.yml]\n"}, "'--conf=x.yml' is set by the plan"),
    ("output is the file system",
     {"job": GOOD + "overrides: {save_dir: /}\n"}, "mine.yml:4 overrides.save_dir: save_dir: / is no folder of its own below the working directory"),
    ("output is the home", {"job": GOOD + "overrides: {save_dir: '~'}\n"}, "overrides.save_dir: save_dir: ~ is no folder of its own"),
    ("output is $HOME", {"job": GOOD + "overrides: {save_dir: $HOME/out}\n"}, "save_dir: $HOME/out is no folder of its own"),
    ("output outside", {"job": GOOD + "overrides: {save_dir: output/../../x}\n"}, "is no folder of its own"),
    ("output by an argument",
     {"job": "suite: paddleseg\nlauncher: paddle\nconfig: a.yml\narguments: [--save_dir, /]\n"},
     "mine.yml:4 arguments: the folder to save to: / is no folder"),
]  # fmt: skip

# --- the site
SITES = [
    ("no group", {"inventory": "web: {hosts: {a: {}}}\n"}, "inventory: the group 'trainers' is missing or empty"),
    ("an empty group", {"inventory": "trainers: {hosts: {}}\n"}, "the group 'trainers' is missing or empty"),
    ("a misspelt group", {"inventory": "trainer: {hosts: {a: {}}}\n"}, "groups found: trainer; rename the group 'trainer' to 'trainers'"),
    ("a host twice in YAML",
     {"inventory": "trainers:\n  hosts:\n    node1: {ansible_host: 192.0.2.1}\n    node1: {ansible_host: 192.0.2.2}\n"},
     "site/hosts.yml:4 node1: stands twice (first in line 3)"),
    ("a machine under two names",
     {"node2": {"ansible_host": "192.0.2.1"}}, "node2: has the same ansible_host as node1: one machine under two names"),
    ("a machine under two spellings", {"node1": {"ansible_host": "2001:db8::1"}, "node2": {"ansible_host": "2001:DB8:0::1"}},
     "node2: has the same ansible_host as node1"),
    ("loopback",
     {"node2": {"trainyard_address": "127.0.0.1"}}, "hosts.yml:7 trainyard_address: host node2: 127.0.0.1 is a loopback address"),
    ("loopback, IPv6", {"node2": {"ansible_host": "::1"}}, "::1 is this controller itself to every node"),
    ("no address at all", {"node2": {"ansible_host": "0.0.0.0"}}, "0.0.0.0 is this controller itself to every node"),
    ("a name of loopback", {"node2": {"ansible_host": "LOCALHOST"}}, "LOCALHOST is this controller itself to every node"),
    ("an option for a host",
     {"node2": {"ansible_host": "-oProxyCommand=id"}}, "ansible_host: host node2: must be the name or the address of a machine; got '-oProxyCommand=id'"),
    ("no name for a host",
     {"node2": {"ansible_host": [1]}}, "ansible_host: host node2: must be the name or the address of a machine; got [1]"),
    ("password", {"node2": {"ansible_password": "hunter2"}}, "hosts.yml:7 [ansible_password]: stands in clear text; put it into a vault"),
    ("password of sudo",
     {"site": {"ansible_become_password": "hunter2"}}, "site/group_vars/all.yml:1 [ansible_become_password]: stands in clear text"),
    ("everything as root", {"site": {"ansible_become": True}}, "all.yml:1 ansible_become: would do everything as another user"),
    ("everything as root on one node, as a text", {"node2": {"ansible_become": "yes"}}, "ansible_become: would do everything as another user"),
    ("-b", {"cli": {"become": True}}, "command line become: would do everything as another user"),
    ("-b with a verb that becomes root for its part", {"verb": "provision", "job": None, "cli": {"become": True}}, "command line become: would"),
    ("ANSIBLE_BECOME", {"environ": {"ANSIBLE_BECOME": "true"}}, "ANSIBLE_BECOME become: would do everything as another user"),
    ("an option for an administrator",
     {"node2": {"trainyard_admin_user": "-oProxyCommand=id"}}, "trainyard_admin_user: host node2: must be the name of an account"),
    ("no name for an administrator", {"site": {"trainyard_admin_user": "../x"}}, "trainyard_admin_user: must be the name of an account"),
    ("a long name of a site", {"site": {"trainyard_site": "x" * 129}}, "trainyard_site: must be letters"),
    ("an account that root's part cannot be given",
     {"verb": "provision", "job": None, "site": {"ansible_user": "CORP\\alice"}}, "all.yml:2 ansible_user: names the account"),
    ("an account of one node", {"verb": "provision", "job": None, "node2": {"ansible_ssh_user": "1234567"}}, "hosts.yml:7 ansible_ssh_user: names"),
    ("an administrator's key that is not there",
     {"verb": "provision", "job": None, "site": {"trainyard_admin_key": "/nothere/id"}}, "trainyard_admin_key: no private key there: /nothere/id"),
    ("password, a number", {"site": {"ansible_ssh_pass": 1234}}, "ansible_ssh_pass: stands in clear text"),
    ("passphrase", {"site": {"ansible_ssh_private_key_passphrase": "x"}}, "[ansible_ssh_private_key_passphrase]: stands in clear text"),
    ("private key missing",
     {"site": {"ansible_ssh_private_key_file": "/nothere/id"}},
     "[ansible_ssh_private_key_file]: no private key there: /nothere/id (No such file or directory)"),
    ("no key but a folder", {"site": {"ansible_ssh_private_key_file": "/etc"}}, "the private key /etc is no file"),
    ("host keys unchecked",
     {"site": {"ansible_host_key_checking": False}}, "ansible_host_key_checking: switches the check of host keys off; got False"),
    ("host keys unchecked, text", {"site": {"ansible_ssh_host_key_checking": "no"}}, "ansible_ssh_host_key_checking: switches the check"),
    ("StrictHostKeyChecking=no",
     {"site": {"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"}},
     "ansible_ssh_common_args: switches the check of host keys off; got StrictHostKeyChecking=no"),
    ("accept-new", {"site": {"ansible_ssh_args": "-C -ostricthostkeychecking=accept-new"}}, "ansible_ssh_args: switches the check"),
    ("with a blank", {"site": {"ansible_ssh_extra_args": "-o 'StrictHostKeyChecking off'"}}, "ansible_ssh_extra_args: switches the check"),
    ("inside a jump",
     {"site": {"ansible_ssh_common_args": "-o ProxyCommand=\"ssh -o StrictHostKeyChecking=no -W %h:%p j\""}}, "ansible_ssh_common_args: switches the check"),
    ("no known hosts", {"node1": {"ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null"}}, "got UserKnownHostsFile=/dev/null"),
    ("ANSIBLE_HOST_KEY_CHECKING",
     {"environ": {"ANSIBLE_HOST_KEY_CHECKING": "False"}}, "env: ANSIBLE_HOST_KEY_CHECKING host_key_checking: switches the check"),
    ("ANSIBLE_SSH_ARGS",
     {"environ": {"ANSIBLE_SSH_ARGS": "-o StrictHostKeyChecking=no"}}, "env: ANSIBLE_SSH_ARGS ssh_args: switches the check"),
    ("--ssh-common-args", {"cli": {"ssh_common_args": "-o StrictHostKeyChecking=no"}}, "command line ssh_common_args: switches the check"),
    ("--private-key", {"cli": {"private_key_file": "/nothere/id"}}, "command line [private_key_file]: no private key there"),
    ("--limit", {"limit": "node1"}, "command line --limit: cuts node2 off the 2 nodes of this job"),
    ("unknown variable",
     {"node2": {"trainyard_device": 1}}, "hosts.yml:7 trainyard_device: host node2: unknown site variable; did you mean 'trainyard_devices'?"),
    ("a variable that cannot be templated",
     {"site": {"trainyard_devices": "{{ nothere }}"}}, "all.yml:3 trainyard_devices: cannot be templated"),
    ("devices without end", {"site": {"trainyard_devices": 1025}}, "trainyard_devices: must be the number of devices"),
    ("other digits", {"site": {"trainyard_devices": "\u0663"}}, "must be the number of devices"),
    ("a device twice", {"site": {"trainyard_devices": ["0", 0]}}, "must be the number of devices or a list of their ids; got ['0', 0]"),
    ("no port", {"site": {"ansible_port": "9" * 5000}}, "ansible_port: must be a port from 1 to 65535"),
    ("port 0", {"site": {"ansible_port": 0}}, "ansible_port: must be a port from 1 to 65535; got 0"),
    ("reserved in the environment", {"site": {"trainyard_env": {"PADDLE_NNODES": 1}}}, "trainyard_env.PADDLE_NNODES: is reserved"),
    ("reserved PATH", {"site": {"trainyard_env": {"PATH": "/x"}}}, "trainyard_env.PATH: is reserved"),
    ("reserved LD_PRELOAD", {"site": {"trainyard_env": {"LD_PRELOAD": "x"}}}, "trainyard_env.LD_PRELOAD: is not for a training"),
    ("control character in the environment", {"site": {"trainyard_env": {"A": "\x1b[2J"}}}, "trainyard_env.A: holds U+001B"),
    ("not a name", {"site": {"trainyard_env": {None: 1}}}, "trainyard_env.None: must be the name of an environment variable"),
    ("a list in the environment", {"site": {"trainyard_env": {"A": [1]}}}, "trainyard_env.A: must be text or a number; got [1]"),
    ("a switch in the environment", {"site": {"trainyard_env": {"A": True}}}, "trainyard_env.A: must be text or a number; got True"),
    ("unknown suite",
     {"site": {"trainyard_suites": {"paddledetektion": SUITE}}},
     "trainyard_suites.paddledetektion: unknown suite; allowed: mindocr, paddledetection, paddleocr, paddleseg; did you mean 'paddledetection'?"),
    ("a suite that is no mapping",
     {"site": {"trainyard_suites": {"paddledetection": "/src"}}}, "trainyard_suites.paddledetection: must be object; got '/src'"),
    ("output of the site", suite(overrides={"save_dir": "/"}), "trainyard_suites.paddledetection.overrides: save_dir: / is no folder"),
    ("bidirectional path", suite(code={"path": "/src/\u202ecod.exe"}), "trainyard_suites.paddledetection.code.path: holds U+202E"),
    ("product directory is the home",
     {"site": {"trainyard_home": "~"}}, "all.yml:4 trainyard_home: is a home or working directory itself; got '~'"),
    ("product directory is $HOME", {"site": {"trainyard_home": "$HOME/"}}, "trainyard_home: is a home or working directory itself"),
    ("product directory is the file system", {"site": {"trainyard_home": "/"}}, "trainyard_home: is the file system itself"),
    *[
        ("product directory is " + path, {"site": {"trainyard_home": path}}, f"trainyard_home: is a directory of the system; got '{path}'")
        for path in ("/etc", "//etc", "/etc/", "/var/../etc", "/usr", "/usr/bin", "/bin", "/boot/x", "/dev", "/dev/sda", "/proc/self", "/sys",
                     "/lib", "/lib64", "/sbin", "/usr/lib/x", "/run", "/etc/trainyard")
    ],
    ("product directory above the home", {"site": {"trainyard_home": "../x"}}, "trainyard_home: may not lead upwards ('..'); got '../x'"),
    *[
        ("product directory " + path, {"site": {"trainyard_home": path}}, f"trainyard_home: may not begin with '~' or '$'; a relative path begins at the home directory of each node; got '{path}'")
        for path in ("~/.trainyard", "~other/x", "$HOME/x", "${SCRATCH}/x")
    ],
    ("state in a directory of the system", {"site": {"trainyard_state_dir": "/etc/x"}}, "trainyard_state_dir: is a directory of the system"),
    ("multicast", {"node2": {"trainyard_address": "224.0.0.1"}}, "hosts.yml:7 trainyard_address: host node2: must be an address that one"),
    ("IPv6 for the plan", {"node2": {"trainyard_address": "fe80::1"}}, "trainyard_address: host node2: must be an IPv4 address or network"),
    ("a node that is the controller", {"node2": {"ansible_connection": "local"}},
     "hosts.yml:6 ansible_connection: 'local' makes the controller itself of host node2; a job on several nodes"),
    ("all of them the controller", {"cli": {"connection": "local"}}, "connection: 'local' makes the controller itself of every node"),
    ("no known hosts, in ssh's own word",
     {"site": {"ansible_ssh_common_args": "-o UserKnownHostsFile=none"}}, "switches the check of host keys off; got UserKnownHostsFile=none"),
    ("a way that cannot be templated",
     {"site": {"ansible_ssh_common_args": "-o x={{ nothere }}"}}, "ansible_ssh_common_args: cannot be templated"),
    ("runs in the file system itself", {"site": {"trainyard_runs_dir": "/runs/.."}}, "trainyard_runs_dir: is the file system itself"),
    ("state directory empty", {"site": {"trainyard_state_dir": ""}}, "trainyard_state_dir: is a home or working directory itself"),
    ("a name that is a path", {"site": {"trainyard_site": "../x"}}, "trainyard_site: must be letters, digits, dots, dashes"),
]  # fmt: skip

# --- variables of the roles, in group_vars or host_vars; each rule of a value is valid for -e, too
ROLES = [
    ("a number for a pair", {"preflight_shm_mib": 64}, "all.yml:2 preflight_shm_mib: must be a mapping of stop, warn; got 64"),
    ("a text for a pair", {"preflight_disk_mib": '{"stop": 1}'}, "preflight_disk_mib: must be a mapping of stop, warn; got"),
    ("no number in a pair", {"preflight_shm_mib": {"stop": "many"}}, "preflight_shm_mib.stop: must be a whole number; got 'many'"),
    ("a unit in a pair", {"preflight_clock_seconds": {"stop": "30s"}}, "preflight_clock_seconds.stop: must be a number of seconds, without a unit"),
    ("a misspelt half", {"preflight_shm_mib": {"stopp": 64}},
     "preflight_shm_mib.stopp: unknown key; allowed: stop, warn; did you mean 'stop'?"),
    ("a half below zero", {"preflight_tmp_mib": {"warn": -1}}, "preflight_tmp_mib.warn: must be 0 or more; got -1"),
    ("an empty half", {"preflight_inodes": {"stop": None}}, "preflight_inodes.stop: is empty; give it a value, or take the line out"),
    ("empty", {"preflight_memory_mib": None}, "preflight_memory_mib: is empty"),
    ("seconds for a pair", {"preflight_clock_seconds": 5}, "preflight_clock_seconds: must be a mapping of stop, warn; got 5"),
    ("a level", {"preflight_devices": {"model": "stopp"}}, "preflight_devices.model: must be one of stop, warn, note; got 'stopp'; did you mean 'stop'?"),
    ("another accelerator", {"preflight_rank_cores": {"npu": 2}}, "preflight_rank_cores.npu: unknown key; allowed: cpu, gpu, ascend"),
    ("a number for them", {"preflight_rank_cores": 2}, "preflight_rank_cores: must be a mapping of cpu, gpu, ascend; got 2"),
    ("locked memory", {"preflight_memlock": "lots"}, "preflight_memlock: must be auto, infinity or a number of bytes; got 'lots'"),
    ("open files", {"preflight_nofile": "x"}, "preflight_nofile: must be a whole number; got 'x'"),
    ("a switch for a number", {"preflight_tasks": True}, "preflight_tasks: must be a whole number; got True"),
    ("below zero", {"preflight_bandwidth": -5}, "preflight_bandwidth: must be 0 or more; got -5"),
    ("no end", {"preflight_network_hours": float("inf")}, "preflight_network_hours: must be a number of hours, without a unit; got inf"),
    ("no time at all", {"launch_poll_seconds": 0}, "launch_poll_seconds: must be 1 or more; got 0"),
    ("no port", {"ssh_trust_port": 70000}, "ssh_trust_port: must be a port up to 65535; got 70000"),
    ("a choice", {"preflight_verify": "fulll"}, "preflight_verify: must be one of cached, sample, full; got 'fulll'; did you mean 'full'?"),
    ("another role's choice", {"runtime_firewall": "nftables"}, "runtime_firewall: must be one of none, auto, firewalld, ufw, iptables; got 'nftables'"),
    ("a list for a text", {"runtime_interpreter": ["/usr/bin/python3"]}, "runtime_interpreter: must be one text; got ['/usr/bin/python3']"),
    ("a mapping for a list", {"ssh_trust_from": {"a": 1}}, "ssh_trust_from"),
    ("a mapping in a list", {"ssh_trust_from": [{"a": 1}]}, "ssh_trust_from.0: must be one text; got {'a': 1}"),
    ("its directory is the system's", {"runtime_home": "/etc"}, "runtime_home: is a directory of the system; got '/etc'"),
    ("its directory is the home", {"workspace_home": "~"}, "workspace_home: is a home or working directory itself"),
    ("a control character", {"runtime_interpreter": "/usr/bin/py\x1b[2J"}, "runtime_interpreter: holds U+001B"),
    ("not a value of the template", {"preflight_nofile": "{{ 'x' * 2 }}"}, "preflight_nofile: must be a whole number; got 'xx'"),
    ("a template that leads nowhere", {"preflight_nofile": "{{ nothere }}"}, "all.yml:2 preflight_nofile: cannot be templated"),
]  # fmt: skip
SITES += [
    ("role, " + name, {"site": given}, words)
    for name, given, words in ROLES
    if None not in given.values()
]
SITES += [
    ("misspelt of a role", {"site": {"preflight_shm": {"stop": 1}}},
     "all.yml:3 preflight_shm: no variable of the role preflight; did you mean 'preflight_shm_mib'?"),
    ("misspelt, an everyday word", {"site": {"launch_pol_seconds": 1}}, "no variable of the role launch; did you mean 'launch_poll_seconds'?"),
    ("the product's own", {"site": {"__preflight_report": True}}, "__preflight_report: is the product's own and set by its playbooks alone"),
    ("verify of the site", {"site": {"verify": "fulll"}}, "all.yml:14 verify: must be one of cached, sample, full; got 'fulll'; did you mean"),
    ("rehearse of the site", {"site": {"rehearse": "maybe"}}, "rehearse: must be true, false, yes or no; got 'maybe'"),
    ("one node's", {"node2": {"runtime_lock_seconds": "1m"}},
     "hosts.yml:7 runtime_lock_seconds: must be a whole number of seconds, without a unit; got '1m'"),
    ("one node's, which nobody reads", {"node2": {"preflight_nofile": 9}},
     "hosts.yml:7 preflight_nofile: is read on the controller alone, and holds for all nodes; set it in group_vars/all.yml"),
]  # fmt: skip

# --- the command line
WORDS = [
    ("no config", {"job": None}, "command line config: say which job: -e config=NAME, one of "),
    ("a shell's words", {"job": None, "words": ["config='x; rm -rf /'"]}, "'x; rm -rf /' is neither the name of a job"),
    ("a shell's words, unquoted", {"job": None, "words": ["config=x; rm -rf /"]},
     "command line: words of -e that are no NAME=VALUE: 'rm -rf /'"),
    ("above the folder", {"job": None, "words": ["config=../../etc/passwd"]}, "nor a path that ends in .yml"),
    ("dash in front", {"job": None, "words": ["config=-x/y.yml"]}, "'-x/y.yml' is neither the name"),
    ("control character", {"job": None, "words": ["config=a/\x1b[2J.yml"]}, "neither the name"),
    ("bidirectional", {"job": None, "words": ["config=a/\u202elmy.yml"]}, "neither the name"),
    ("control character in any other", {"words": ["trainyard_runs_dir=\x07"]}, "trainyard_runs_dir: holds U+0007"),
    ("misspelt", {"words": ["node=2"]}, "command line node: unknown variable; allowed: config, devices"),
    ("misspelt, near", {"words": ["node=2"]}, "did you mean 'nodes'?"),
    ("misspelt of the site", {"words": ["trainyard_run_dir=x"]}, "command line trainyard_run_dir: unknown variable"),
    ("misspelt of a role", {"words": ["preflight_rehears=true"]}, "did you mean 'preflight_rehearse'?"),
    ("a number as text", {"words": ["nodes=2.5"]}, "command line nodes: must be a whole number from 1 up or 'all'; got '2.5'"),
    ("a number in JSON that is a list", {"words": ['{"devices": [0, 1]}']}, "command line devices: must be a whole number"),
    ("zero", {"words": ["nodes=0"]}, "command line nodes: must be a whole number from 1 up"),
    ("more nodes than the site", {"words": ["nodes=3"]}, "command line nodes: asks for 3 nodes; the site 'site' has 2"),
    ("port as text", {"words": ["start_port=high"]}, "command line start_port: must be a whole number"),
    ("not a switch", {"words": ["rehearse=maybe"]}, "command line rehearse: must be true, false, yes or no; got 'maybe'"),
    ("a switch that is a mapping",
     {"words": ['{"matrix": {"a": 1}}']}, "command line matrix: must be true, false, yes or no; got {'a': 1}"),
    ("a switch, near", {"words": ["matrix=ture"]}, "did you mean 'true'?"),
    ("not a choice", {"words": ["verify=fast"]}, "command line verify: must be one of cached, sample, full; got 'fast'"),
    ("a choice, near", {"words": ["verify=ful"]}, "did you mean 'full'?"),
    ("scaling", {"words": ["scaling=aply"]}, "command line scaling: must be advise or apply; got 'aply'; did you mean 'apply'?"),
    ("rendezvous", {"words": ["rendezvous=master"]}, "command line rendezvous: fleetrun has no rendezvous 'master'"),
    ("time with a unit",
     {"words": ["preflight_rehearsal_hours=3h"]}, "command line preflight_rehearsal_hours: must be a number of hours, without a unit; got '3h'"),
    ("seconds with a unit",
     {"words": ["launch_poll_seconds=1m"]}, "launch_poll_seconds: must be a whole number of seconds, without a unit; got '1m'"),
    ("a role's switch", {"words": ["preflight_matrix=perhaps"]}, "preflight_matrix: must be true or false; got 'perhaps'"),
    ("a role's choice", {"words": ["collect_checkpoint=false"]}, "collect_checkpoint: must be one of best, last, none; got 'false'"),
    ("a role's choice, of the site", {"site": {"collect_checkpoint": True}}, "collect_checkpoint: must be one of best, last, none; got True"),
    ("a secret of the job", {"job": GOOD + "env: {A_LOGIN: [hunter2]}\n", "site": {"trainyard_secret_env": ["A_LOGIN"]}}, "env.A_LOGIN: "),
    ("secret names as a mapping", {"site": {"trainyard_secret_env": {"A_LOGIN": "hunter2"}}}, "trainyard_secret_env]: must be a list of names"),
    ("secret names as a text", {"site": {"trainyard_secret_env": "A_LOGIN"}}, "trainyard_secret_env]: must be a list of names"),
    ("not a secret name", {"site": {"trainyard_secret_env": ["A-B"]}}, "such as [WANDB_LOGIN], without their values"),
    ("two names of one thing", {"words": ["rehearse=false", "preflight_rehearse=true"]},
     "command line rehearse: is given as preflight_rehearse, too"),
    ("one name twice", {"words": ["nodes=1", "nodes=2"]}, "command line nodes: is given twice: '1' and '2'"),
    ("skip it, and do it every time", {"words": ["rehearse=false", "preflight_rehearsal_hours=0"]},
     "command line rehearse: skips the rehearsal, and preflight_rehearsal_hours=0"),
    ("check.yml --check", {"verb": "check", "check": True}, "command line --check: leaves check.yml nothing to prove"),
    ("train.yml --check, rehearsed", {"check": True, "words": ["rehearse=true"]},
     "command line rehearse: asks for a proof, and --check ends train.yml at the plan"),
    ("sync.yml, every pair", {"verb": "sync", "words": ["matrix=true"]},
     "command line matrix: asks for a proof, and sync.yml starts nothing"),
    ("stop takes no config", {"verb": "stop"}, "command line config: unknown variable; allowed: run"),
    ("no run id", {"verb": "stop", "job": None, "words": ["run=../x"]}, "command line run: '../x' is no run id"),
    ("a site's variable, once", {"words": ["trainyard_devices=two"]},
     "command line trainyard_devices: must be the number of devices or a list of their ids; got 'two'"),
    ("a suite that the site has not", {"verb": "provision", "job": None, "words": ["suite=paddledet"]},
     "command line suite: 'paddledet' does not stand in trainyard_suites; allowed: paddledetection; did you mean"),
    ("untrust's switch", {"verb": "untrust", "job": None, "words": ["untrust_ca=maybe"]}, "command line untrust_ca: must be true, false"),
    ("untrust misspelt", {"verb": "untrust", "job": None, "words": ["nod=a"]}, "command line nod: unknown variable"),
    ("untrust, no name", {"verb": "untrust", "job": None, "words": ["node=../a"]}, "command line node: must be a node's name"),
    ("untrust, all and one", {"verb": "untrust", "job": None, "words": ["node=a", "untrust_ca=true"]}, "command line untrust_ca: forgets"),
    ("trust's rotation", {"verb": "trust", "job": None, "words": ["rotate_ca=maybe"]}, "command line rotate_ca: must be true, false"),
    ("trust's switch", {"verb": "trust", "job": None, "words": ["trust_accept=maybe"]}, "command line trust_accept: must be true, false"),
    ("conform's switch", {"verb": "conform", "job": None, "words": ["site=maybe"]}, "command line site: must be true, false, yes or no"),
    *[("role, " + name, {"words": [json.dumps(given)]}, "command line " + words.rpartition("all.yml:2 ")[2]) for name, given, words in ROLES],
    ("a pair as a text", {"words": ["preflight_shm_mib=64"]}, "preflight_shm_mib: must be a mapping of stop, warn; got '64'; with -e as JSON: -e '{"),
    ("password", {"words": ["ansible_become_password=hunter2"]}, "command line [ansible_become_password]: stands in clear text"),
]  # fmt: skip


@pytest.mark.parametrize(
    "given, words", [pytest.param(*case[1:], id=case[0]) for case in JOB + SITES + WORDS]
)
def test_refused(bench, given, words):
    result, lines = bench.ask(**given)
    assert result is None and lines[0].endswith("nothing was touched:"), "accepted"
    assert any(words in line for line in lines[1:]), "\n".join(lines)
    assert all(line.isprintable() for line in lines) and "hunter2" not in "".join(lines)


# --- accepted: a false alarm is a failure, too
FINE = [
    ("the good one", {}),
    ("CRLF", {"job": GOOD.replace("\n", "\r\n")}),
    ("CR alone", {"job": GOOD.replace("\n", "\r")}),
    ("a byte order mark", {"job": "\ufeff" + GOOD}),
    ("comments of all scripts", {"job": "# 飞桨 – für alle ünïcode עברית 👍🏽\n" + GOOD + "# end"}),
    ("tabs in comments", {"job": "#\ta\tb\n" + GOOD.replace("\n", " # x\ty\n", 1)}),
    ("comments only around", {"job": "# a\n\n# b\n---\n# c\n" + GOOD + "...\n# d\n"}),
    ("no line end at the end", {"job": GOOD.rstrip("\n")}),
    ("one line", {"job": "{{{}}}".format(GOOD.strip().replace("\n", ", "))}),
    ("quoted", {"job": job(launcher="'fleetrun'")}),
    ("a long list", {"job": GOOD + "arguments: [{}]\n".format(", ".join("--word%d" % n for n in range(2000)))}),
    ("a long list of devices", {"job": GOOD + "devices: [{}]\n".format(", ".join(map(str, range(64)))), "site": {"trainyard_devices": 64}}),
    ("a long text", {"job": GOOD + "env: {A: %s}\n" % ("x" * 100000)}),
    ("a long description of several lines", {"job": GOOD + "description: |\n" + "  a line with\ttabs – 中文\n" * 3000}),
    ("joiners in a description", {"job": GOOD + "description: می\u200cخواهم 👩\u200d💻\n"}),
    ("joiners in what is told",
     {"job": GOOD + 'description: می\u200cخواهم\noverrides: {a: "می\u200cخواهم"}\nenv: {A: "👩\u200d💻"}\narguments: ["می\u200cخواهم"]\n'}),
    ("a folded text", {"job": GOOD + "overrides:\n  a: >-\n    one\n    two\n"}),
    ("other scripts in values", {"job": GOOD + "overrides: {path: 数据/图像}\nenv: {NOTE: Größe, B: '$HOME ; rm -rf /'}\n"}),
    ("templates are text",
     {"job": GOOD + "description: \"{{ lookup('pipe', 'false') }}\"\narguments: ['{{ x }}', '{% raw %}']\nenv: {A: '{{ y }}'}\n"}),
    ("octal in quotes", {"job": GOOD + "overrides: {a: '010', b: '0x10', c: 'no', d: '1:30'}\n"}),
    ("words that look alike",
     {"job": GOOD + "env: {PATHS: a, HOMEPAGE: b, MY_PADDLE_X: c}\narguments: [--eval, --output, out, --optimizer, adam, '-1', '-']\n"}),
    ("a folder of its own", {"job": GOOD + "overrides: {save_dir: output/./a~b}\n"}),
    ("the first and the last port", {"job": GOOD + "start_port: 65534\n"}),
    ("an anchor without alias", {"job": job(launcher="&x fleetrun")}),
    ("all said", {"words": ["nodes=1", "devices=1", "start_port=18000", "scaling=apply", "rehearse=No", "verify=full", "matrix=TRUE"]}),
    ("switches in JSON", {"words": ['{"rehearse": false, "nodes": 2, "matrix": true}']}),
    ("the same twice", {"words": ["nodes=1", "nodes=1", "rehearse=false", "preflight_rehearse=false"]}),
    ("times", {"words": ["preflight_rehearsal_hours=0.5", "launch_poll_seconds=10"]}),
    ("a role's variable with a template", {"words": ["launch_poll_seconds='{{ 3 }}'"]}),
    ("a path of the site", {"words": ["trainyard_runs_dir=/tmp/runs", "ansible_user=me"]}),
    ("train.yml --check", {"check": True, "words": ["rehearse=false"]}),
    ("check.yml", {"verb": "check", "words": ["matrix=true", "verify=sample"]}),
    ("trust without a question", {"verb": "trust", "job": None, "words": ["trust_accept=true"]}),
    ("a run id", {"verb": "stop", "job": None, "words": ["run=20261120-103501-ppyoloe-1f2e"]}),
    ("conform without nodes needs no key",
     {"verb": "conform", "job": None, "words": ["site=false"], "site": {"ansible_ssh_private_key_file": "/nothere"}}),
    ("an account of a directory service", {"site": {"ansible_user": "CORP\\alice", "trainyard_site": "x" * 128}}),
    ("two accounts, and an administrator's key that only provision.yml needs",
     {"site": {"trainyard_admin_user": "keeper", "trainyard_admin_key": "/nothere/id", "ansible_become": False}}),
    ("a password from elsewhere", {"site": {"ansible_become_password": "{{ lookup('env', 'X') }}", "ansible_password": ""}}),
    ("strict",
         {"site": {"ansible_ssh_common_args": "-o StrictHostKeyChecking=yes -o UserKnownHostsFile=/x/known -o GlobalKnownHostsFile=none"}}),
    ("a jump host", {"site": {"ansible_ssh_common_args": "-J me@jump:2222"}}),
    ("host keys checked", {"site": {"ansible_host_key_checking": True}}),
    ("no key of the site's own", {"site": {"ansible_ssh_private_key_file": None}}),
    ("names for hosts", {"node1": {"ansible_host": "gpu_01.lab.example"}, "node2": {"ansible_host": "2001:db8::2"}}),
    ("two ports of one machine",
     {"node1": {"ansible_host": "192.0.2.9", "ansible_port": 2201}, "node2": {"ansible_host": "192.0.2.9", "ansible_port": "2202"}}),
    ("a network as address", {"site": {"trainyard_address": "10.0.0.0/8"}}),
    ("numbers in the environment", {"site": {"trainyard_env": {"OMP_NUM_THREADS": 4, "NOTE": "Größe"}}}),
    ("one node on loopback", {"words": ["nodes=1"], "node1": {"ansible_host": "127.0.0.1"}}),
    ("an INI inventory", {"inventory": "[trainers]\nn[1:2] ansible_port=22 # two\n[trainers:vars]\nx=1\nx=1\n[web]\nn1\n"}),
    ("limits of the site", {"site": {
        "preflight_shm_mib": {"stop": 64, "warn": "256"}, "preflight_devices": {"ecc": "note"}, "preflight_clock_seconds": {"stop": 0.5},
        "preflight_memlock": 1048576, "preflight_bandwidth": "{{ 2 * 5 }}", "preflight_rank_cores": {}, "preflight_nofile": "4096", "verify": "full",
        "rehearse": False, "runtime_limit_memlock": "64G", "ssh_trust_from": ["192.0.2.0/24"], "ssh_trust_shared_home": "yes",
        "launch_poll_seconds": 1, "runtime_environment": {"python": "/usr/bin/python3"}, "ssh_trust_validity": "+52w"}}),
    ("limits of the command line", {"words": ['{"preflight_shm_mib": {"stop": 64, "warn": 256}, "preflight_nofile": 4096}', "preflight_bandwidth=2.5"]}),
    ("a site's own words", {"site": {"report_email": "me@x", "runtime_dir": "/x", "workspace_of": [1], "preflightx": 1, "launcher_x": 2}}),
    ("one node's own", {"node2": {"runtime_interpreter": "/opt/py/bin/python3", "ssh_trust_port": 2222, "preflight_home": "/fast/ty"}}),
    ("places of a user", {"site": {"trainyard_home": "/dev/shm/ty", "trainyard_cache_dir": "/run/user/1000/x", "trainyard_runs_dir": "../runs"}}),
    ("places below /usr", {"site": {"trainyard_home": "/usr/local/ty", "trainyard_state_dir": "{{ inventory_dir }}/../state"}}),
    ("one node, which is the controller", {"words": ["nodes=1"], "site": {"ansible_connection": "local"}}),
    ("a question", {"site": {"ansible_ssh_common_args": "-o StrictHostKeyChecking=ask -o UserKnownHostsFile=/x/none-such"}}),
    ("--limit that cuts nothing", {"limit": "trainers"}),
]  # fmt: skip


@pytest.mark.parametrize("given", [pytest.param(case[1], id=case[0]) for case in FINE])
def test_accepted(bench, given):
    if given.get("inventory", "").startswith("["):
        bench.site(**given)
        bench.write("site/hosts.ini", given["inventory"])
        (bench.folder / "site" / "hosts.yml").unlink()
        given = dict(sources=[str(bench.folder / "site")])
    result, lines = bench.ask(**given)
    assert lines == [] and result["changed"] is False


def test_job_site_and_command_line_in_one_report(bench):
    text = (
        job(launcher="msrun")
        + "nodes: 9\nnode: 1\nenv: {PATH: /x}\narguments: [-o, --conf]\noverrides: {save_dir: /, a:"
        ' "\\a"}\n'
    )
    _result, lines = bench.ask(
        job=text,
        words=["devices=x", "verify=fast", "confg=1"],
        limit="node1",
        site={"trainyard_env": {"PATH": "x"}, "ansible_host_key_checking": False},
        node2={"trainyard_devices": "many", "ansible_password": "hunter2"},
    )
    wanted = [
        "command line devices:", "command line verify:", "command line confg:", "mine.yml:3 launcher:", "mine.yml:4 nodes:", "mine.yml:5 node:",
        "mine.yml:6 env.PATH:", "arguments: '-o'", "arguments: '--conf'", "overrides.save_dir:", "overrides.a:", "trainyard_env.PATH:",
        "ansible_host_key_checking:", "trainyard_devices: host node2", "[ansible_password]:",
    ]  # fmt: skip
    assert [word for word in wanted if not any(word in line for line in lines)] == []
    assert lines[0].startswith("%d problems" % (len(lines) - 1))
    assert len(bench.codes) == len(lines) - 1


def test_a_job_that_cannot_be_read_hides_nothing_of_the_site(bench):
    _result, lines = bench.ask(
        job="suite: [\n", words=["nodes=x", "verfy=full"], node2={"trainyard_device": 1}
    )
    assert len(lines) == 4, lines


def test_a_key_that_others_may_read(bench):
    path = bench.write("open_key", "x", 0o644)
    _result, lines = bench.ask(site={"ansible_ssh_private_key_file": path})
    assert set(bench.codes) == {"login.bad_key_file"}
    assert any("open_key " in line and "0644" in line and "chmod 600" in line for line in lines)


def test_a_key_in_an_agent_has_its_public_half_here(bench):
    path = bench.write("agent.pub", "ssh-ed25519 AAAA", 0o644)
    for said in (path, path[:-4]):
        assert bench.ask(site={"ansible_ssh_private_key_file": said})[1] == []


def test_a_password_in_a_vault(bench):
    locked = VaultLib([("default", VaultSecret(b"secret"))]).encrypt("hunter2").decode()
    sources = bench.site()
    bench.write(
        "site/group_vars/trainers.yml",
        "ansible_password: !vault |\n" + "".join(f"  {line}\n" for line in locked.splitlines()),
    )
    assert bench.ask(sources=sources)[1] == []
    whole = VaultLib([("default", VaultSecret(b"secret"))]).encrypt("ansible_password: hunter2\n")
    bench.write("site/group_vars/trainers.yml", whole)
    assert bench.ask(sources=sources)[1] == []
    bench.write("site/group_vars/trainers.yml", "ansible_password: hunter2\n")
    _result, lines = bench.ask(sources=sources)
    assert set(bench.codes) == {"login.secret_in_clear"}
    assert any("trainers.yml:1 [ansible_password]: " in line for line in lines)


@pytest.mark.parametrize("name, text, words", [
    ("hosts.ini", "[trainers]\nnode1\nnode2\n\n# again\nnode1 x=1\n", "hosts.ini:6 node1: stands twice in [trainers] (first in line 2)"),
    ("hosts.yaml", "trainers: {hosts: {a: {}}}\ntrainers: {hosts: {b: {}}}\n", "hosts.yaml:2 trainers: stands twice (first in line 1)"),
])  # fmt: skip
def test_a_host_that_ansible_would_lose(bench, name, text, words):
    bench.site()
    (bench.folder / "site" / "hosts.yml").unlink()
    bench.write("site/" + name, text)
    assert any(words in line for line in bench.ask(sources=[str(bench.folder / "site")])[1])


def test_a_list_of_hosts_with_one_twice(bench):
    bench.site()
    _result, lines = bench.ask(sources=["a,b,a,"])
    assert "site.host_twice" in bench.codes
    assert any("command line -i: " in line and "host a twice" in line for line in lines)


@pytest.mark.parametrize(
    "port, place",
    [
        (9999, "mine.yml:4 start_port"),
        (20001, "mine.yml:4 start_port"),
        (10000, None),
        (20000, None),
    ],
)
def test_a_port_outside_the_recommended_ones_is_warned_of(bench, port, place):
    result, lines = bench.ask(job=GOOD + "start_port: %d\n" % port)
    said = (
        ["%s: %d is allowed; recommended are ports from 10000 to 20000" % (place, port)]
        if place
        else []
    )
    assert lines == [] and [text.rpartition("/")[2] for text in result["warnings"]] == said
    if place:
        assert (
            "command line start_port" in bench.ask(words=["start_port=%d" % port])[0]["warnings"][0]
        )
        assert (
            "trainyard_start_port"
            in bench.ask(site={"trainyard_start_port": port})[0]["warnings"][0]
        )


@pytest.mark.parametrize(
    "given, warned",
    [
        ({}, False),
        ({"site": {"ansible_ssh_args": "-C"}}, True),
        ({"environ": {"ANSIBLE_SSH_ARGS": "-o ControlMaster=auto"}}, True),
        ({"node2": {"ansible_ssh_common_args": "-A"}}, True),
        (
            {"node2": {"ansible_ssh_common_args": "-J jump -o ForwardAgent=yes"}},
            False,
        ),  # ssh takes the first value
        (
            {
                "site": {
                    "ansible_ssh_args": (
                        "-o ForwardAgent=no -oForwardX11=no -o 'PermitLocalCommand no'"
                    )
                }
            },
            False,
        ),
    ],
)
def test_a_login_that_passes_the_users_agent_on_is_warned_of(bench, given, warned):
    result, lines = bench.ask(**given)
    assert lines == [] and any("ForwardAgent" in text for text in result["warnings"]) is warned


def test_templates_in_a_job_stay_text(bench):
    text = f"{{{{ lookup('pipe', 'touch {bench.folder}/ran') }}}}"
    result, _lines = bench.ask(job=GOOD + f'arguments: ["{text}"]\noverrides: {{a: "{text}"}}\n')
    assert result["job"]["arguments"] == [text] and result["job"]["overrides"] == {"a": text}


def playbook(bench, verb, *words):
    """Run a verb as a user does; return (exit status, what it printed)."""
    argv = [
        sys.executable,
        "-m",
        "ansible.cli.playbook",
        "-i",
        str(bench.folder / "site"),
        f"playbooks/{verb}.yml",
    ]
    done = subprocess.run(argv + list(words), cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_the_command_ends_with_an_error_and_asks_no_node(bench):
    """192.0.2.0/24 leads nowhere. If a node were asked, it would be unreachable after 10 s."""
    bench.site(node2={"ansible_password": "hunter2"})
    path = bench.write("mine.yml", GOOD + 'nodes: 3\n"bad\\e[2J": 1\n')
    before = bench.listing()
    status, said = playbook(bench, "train", "-e", "config=" + path, "-e", "verify=fast")
    assert status == 2 and "4 problems" in said and "unreachable," not in said
    assert "\x1b[2J" not in said and "bad\\x1b[2J" in said and "hunter2" not in said
    assert bench.listing() == before


@pytest.mark.parametrize("verb", ["trust", "untrust", "unprovision", "status"])
def test_a_misspelt_group_is_an_error_for_every_verb(bench, verb):
    """Ansible itself finds no host, prints that, and exits with 0."""
    bench.site(inventory="trainer: {hosts: {a: {}}}\n")
    status, said = playbook(bench, verb)
    assert status == 2 and "groups found: trainer" in said


@pytest.mark.parametrize("verb", ["local", "local_down", "unprovision", "untrust"])
def test_no_verb_does_everything_as_another_user(bench, verb):
    """The real playbook refuses this before it asks or creates a node."""
    bench.site()
    before = bench.listing()
    status, said = playbook(bench, verb, "-b")
    assert status == 2 and "command line become: " in said and "unreachable," not in said
    assert bench.listing() == before


@pytest.mark.parametrize(
    "inventory",
    ["molecule/inventory", "molecule/hostile/inventory", "inventory/local", "inventory/sample"],
)
def test_a_site_that_is_shipped_says_nothing_wrong_of_a_role(bench, inventory):
    """Other playbooks create their private keys, which may be missing here."""
    lines = bench.ask(sources=[str(ROOT / inventory)])[1]
    assert [line for line in lines[1:] if line.startswith("  ") and "private_key" not in line] == []


def test_what_the_command_line_says_of_every_node_is_said_once(bench):
    for words in (
        "trainyard_devices=two",
        "preflight_nofile={{ nothere }}",
        "trainyard_accelerator=gpus",
    ):
        assert len(bench.ask(words=[f"'{words}'"])[1]) == 2

# SPDX-License-Identifier: Apache-2.0
"""The command line of `trainyard`: one verb per playbook, and `init` and `why` beside them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from . import playbook, site_choice, site_syntax
from .exit_codes import Exit
from .host_sources import HostError
from .product import Product, find_product, find_version

Function = TypeVar("Function", bound=Callable[..., Any])
Extra = Mapping[str, Any]
SHELLS = ("bash", "zsh", "fish")
# Options of ansible-playbook that every verb passes on.
_SWITCHES = {
    "ask_become_pass": "--ask-become-pass",
    "ask_pass": "--ask-pass",
    "ask_vault_pass": "--ask-vault-pass",
}


@dataclass
class Settings:
    """The options of the command itself, before the verb."""

    product: Product
    site: str | None = None
    json: bool = False
    quiet: bool = False

    def choose_site(self) -> site_choice.Site:
        """Return the site, after its files were read. Ends the command if that is not possible."""
        try:
            site = site_choice.choose_site(self.site, os.environ, self.product)
        except site_choice.SiteError as error:
            raise Refused(str(error)) from error
        if site.path:
            problems = site_syntax.syntax_problems(site.path)
            if problems:
                raise Refused("\n".join(["the site cannot be read:", *problems]))
        return site


class Refused(click.ClickException):
    """Ends the command before a playbook runs."""

    exit_code = int(Exit.REFUSED)

    def show(self, file: Any = None) -> None:
        """Print the message in one voice with the playbooks' refusals."""
        click.echo(self.format_message(), err=True)


def _complete_sites(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    names = site_choice.all_site_names(find_product())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _complete_jobs(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    names = [name for name in find_product().jobs() if name.startswith(incomplete)]
    items = [CompletionItem(name) for name in names]
    return items or [CompletionItem(incomplete, type="file")]


def _complete_runs(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    product = find_product()
    site = context.find_root().params.get("site")
    try:
        folder = runs_folder(site_choice.choose_site(site, os.environ, product), product)
    except site_choice.SiteError:
        return []
    if not folder.is_dir():
        return []
    names = sorted((entry.name for entry in folder.iterdir() if entry.is_dir()), reverse=True)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def runs_folder(site: site_choice.Site, product: Product) -> Path:
    """Return the controller's directory of runs, if the site names no other."""
    return (site.project or product.root) / "runs"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--site",
    metavar="NAME|PATH",
    shell_complete=_complete_sites,
    help="The site: a directory of inventory/, or any inventory. Default: TRAINYARD_SITE,"
    " ANSIBLE_INVENTORY, the only one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the ansible-playbook line.")
@click.version_option(version=find_version(), prog_name="trainyard")
@click.pass_context
def cli(context: click.Context, site: str | None, as_json: bool, quiet: bool) -> None:
    """Train a PaddlePaddle or MindSpore model on several plain SSH machines.

    Every verb runs one playbook and prints the ansible-playbook line that it stands for.

    Exit codes: 0 completed, 10 failed, 11 stopped, 12 lost, 13 unknown, 20 refused.
    """
    try:
        product = find_product()
    except FileNotFoundError as error:
        raise Refused(str(error)) from error
    context.obj = Settings(product, site, as_json, quiet)


def ansible_options(function: Function) -> Function:
    """Add the options of ansible-playbook that every verb takes."""
    for option in (
        click.option(
            "-e",
            "--extra",
            multiple=True,
            metavar="KEY=VALUE",
            help="A further variable, as ansible-playbook takes it. Repeatable.",
        ),
        click.option("-K", "--ask-become-pass", is_flag=True, help="Ask for the sudo password."),
        click.option("-k", "--ask-pass", is_flag=True, help="Ask for the login password."),
        click.option("-J", "--ask-vault-pass", is_flag=True, help="Ask for the vault's password."),
        click.option("--vault-password-file", metavar="FILE", help="File of the vault's password."),
        click.option("-v", "--verbose", count=True, help="Show more of Ansible, up to -vvvv."),
    ):
        function = option(function)
    return function


def check_option(function: Function) -> Function:
    """Add --check, for the verbs that can show what they would do."""
    return click.option("--check", is_flag=True, help="Show what would be done. Change nothing.")(
        function
    )


def run_verb(
    settings: Settings,
    verb: str,
    extra: Extra,
    ansible: dict[str, Any],
    detach: bool = False,
    every: int | None = None,
) -> None:
    """Run a verb's playbook and end this process with its exit code.

    extra: its variables; those that are None or () are left out. ansible: the values of
    `ansible_options`, and of `check_option` if the verb has it. every: seconds between two runs,
    None for one run.
    """
    given = {name: value for name, value in extra.items() if value is not None and value != ()}
    invocation = playbook.Invocation(
        verb, settings.choose_site(), given, _ansible_words(ansible), detach
    )
    if not settings.quiet:
        click.secho(f"$ {invocation.shown(settings.product)}", err=True, dim=True)
    if every:
        sys.exit(int(playbook.repeat(invocation, settings.product, settings.json, every)))
    sys.exit(int(playbook.run(invocation, settings.product, settings.json)))


def _ansible_words(ansible: dict[str, Any]) -> list[str]:
    """Return the words of ansible-playbook for the options that every verb takes."""
    words = []
    for text in ansible.get("extra", ()):
        words += ["-e", text]
    words += [word for name, word in _SWITCHES.items() if ansible.get(name)]
    if ansible.get("vault_password_file"):
        words += ["--vault-password-file", ansible["vault_password_file"]]
    if ansible.get("check"):
        words.append("--check")
    if ansible.get("verbose"):
        words.append("-" + "v" * ansible["verbose"])
    return words


job_argument = click.argument("job", shell_complete=_complete_jobs)
run_argument = click.argument("run", required=False, shell_complete=_complete_runs)
nodes_option = click.option(
    "--nodes", metavar="N|NAME,...", help="Train on the first N nodes, or on those named."
)


wait_option = click.option(
    "--wait",
    is_flag=False,
    flag_value="yes",
    metavar="[TIME]",
    help="Wait for nodes that are held, at most so long: 90s, 30m, 2h.",
)


@cli.command()
@job_argument
@nodes_option
@wait_option
@click.option(
    "-d",
    "--detach",
    is_flag=True,
    help="Come back after the first step. The run goes on, and its nodes restart it.",
)
@click.option("--no-restart", is_flag=True, help="Do not restart the run, whatever the job says.")
@check_option
@ansible_options
@click.pass_obj
def train(
    settings: Settings,
    /,
    job: str,
    nodes: str | None,
    wait: str | None,
    detach: bool,
    no_restart: bool,
    **ansible: Any,
) -> None:
    """Train a JOB on all nodes of the site, follow it, and say how it ended.

    JOB is the name of a shipped job, or the path of a job file that ends in .yml.
    """
    extra: dict[str, Any] = {"config": job, "nodes": nodes, "wait": wait}
    if no_restart:
        extra["max_restarts"] = 0
    if detach:
        extra["detach"] = "true"
    run_verb(settings, "train", extra, ansible, detach)


@cli.command()
@job_argument
@nodes_option
@click.option("--rehearse/--no-rehearse", default=None, help="Start a tiny script on all ranks.")
@ansible_options
@click.pass_obj
def check(
    settings: Settings, /, job: str, nodes: str | None, rehearse: bool | None, **ansible: Any
) -> None:
    """Prove that a JOB would start, or name what prevents it."""
    run_verb(settings, "check", {"config": job, "nodes": nodes, "rehearse": rehearse}, ansible)


@cli.command()
@click.option("--most", type=click.IntRange(1, 9999), help="Show N runs that have ended.")
@ansible_options
@click.pass_obj
def ps(settings: Settings, /, most: int | None, **ansible: Any) -> None:
    """List all runs of the site, whichever controller started them."""
    run_verb(settings, "runs", {"most": most}, ansible)


@cli.command()
@run_argument
@ansible_options
@click.pass_obj
def status(settings: Settings, /, run: str | None, **ansible: Any) -> None:
    """Show the state of a RUN on every node. Without RUN: the one that runs, or the newest."""
    run_verb(settings, "status", {"run": run}, ansible)


@cli.command()
@run_argument
@click.option("--rank", type=click.IntRange(min=0), help="Show this rank only.")
@click.option("--node", help="Show the ranks of this node only.")
@click.option("-n", "--lines", type=click.IntRange(min=1), help="Show the last N lines.")
@click.option("-f", "--follow", is_flag=True, default=None, help="Go on until the run ends.")
@click.option("--query", metavar="JMESPATH", help="Print the answer to a query of the ranks.")
@ansible_options
@click.pass_obj
def logs(
    settings: Settings,
    /,
    run: str | None,
    rank: int | None,
    node: str | None,
    lines: int | None,
    follow: bool | None,
    query: str | None,
    **ansible: Any,
) -> None:
    """Copy the ranks' logs to this machine and show them."""
    asked = {"run": run, "rank": rank, "node": node, "lines": lines, "query": query}
    run_verb(settings, "logs", {**asked, "follow": follow or None}, ansible)


@cli.command()
@run_argument
@ansible_options
@click.pass_obj
def follow(settings: Settings, /, run: str | None, **ansible: Any) -> None:
    """Attach to a RUN again and finish it as `train` does."""
    run_verb(settings, "follow", {"run": run}, ansible)


@cli.command()
@run_argument
@ansible_options
@click.pass_obj
def stop(settings: Settings, /, run: str | None, **ansible: Any) -> None:
    """Stop a RUN on every node. Logs and checkpoints stay."""
    run_verb(settings, "stop", {"run": run}, ansible)


@cli.command()
@click.argument("run", shell_complete=_complete_runs)
@wait_option
@click.option("-d", "--detach", is_flag=True, help="Come back after the first step.")
@check_option
@ansible_options
@click.pass_obj
def resume(settings: Settings, /, run: str, wait: str | None, detach: bool, **ansible: Any) -> None:
    """Continue a RUN from its newest complete checkpoint."""
    extra: dict[str, Any] = {"run": run, "wait": wait}
    if detach:
        extra["detach"] = "true"
    run_verb(settings, "resume", extra, ansible, detach)


@cli.command()
@click.argument("runs", nargs=-1, shell_complete=_complete_runs)
@ansible_options
@click.pass_obj
def report(settings: Settings, /, runs: tuple[str, ...], **ansible: Any) -> None:
    """Write the page of a run, or one page that compares several RUNS."""
    if len(runs) == 1:
        run_verb(settings, "report", {"run": runs[0]}, ansible)
    run_verb(settings, "report", {"runs": ",".join(runs) or None}, ansible)


@cli.command()
@run_argument
@click.pass_obj
def why(settings: Settings, /, run: str | None) -> None:
    """Say how a RUN ended, who caused it, and what to do. No node is contacted."""
    from . import verdict_text

    site = settings.choose_site()
    try:
        outcome = verdict_text.show(settings.product, site, run, settings.json)
    except verdict_text.NoVerdict as error:
        raise Refused(str(error)) from error
    sys.exit(int(outcome))


@cli.command()
@run_argument
@ansible_options
@click.pass_obj
def visualdl(settings: Settings, /, run: str | None, **ansible: Any) -> None:
    """Bring the records of a RUN for VisualDL to this machine, also while it goes on."""
    run_verb(settings, "visualdl", {"run": run}, ansible)


@cli.command()
@click.option("--to", metavar="DIR", help="Directory of the metrics, for node_exporter.")
@click.option(
    "--every", metavar="SECONDS", type=click.IntRange(min=5), help="Look again after each pause."
)
@ansible_options
@click.pass_obj
def export(settings: Settings, /, to: str | None, every: int | None, **ansible: Any) -> None:
    """Look at the site and write Prometheus metrics of its nodes and runs.

    This sees runs that nobody follows. Without --every it looks once.
    """
    folder = to and os.path.abspath(to)
    run_verb(settings, "export", {"trainyard_metrics_dir": folder}, ansible, every=every)


@cli.command()
@ansible_options
@click.pass_obj
def notify(settings: Settings, /, **ansible: Any) -> None:
    """Send a test message to every receiver of the site (trainyard_notify)."""
    run_verb(settings, "notify", {}, ansible)


@cli.command()
@click.option("--suite", help="Prepare the nodes for this suite only.")
@click.option("--verify", type=click.Choice(["cached", "sample", "full"]), help="Depth of checks.")
@check_option
@ansible_options
@click.pass_obj
def provision(settings: Settings, /, suite: str | None, verify: str | None, **ansible: Any) -> None:
    """Install once what needs root on the nodes, and the Python environments."""
    run_verb(settings, "provision", {"suite": suite, "verify": verify}, ansible)


@cli.command()
@click.option("--yes", is_flag=True, default=None, help="Accept the host keys that are shown.")
@check_option
@ansible_options
@click.pass_obj
def trust(settings: Settings, /, yes: bool | None, **ansible: Any) -> None:
    """Show and pin the nodes' host keys, and let the nodes log in to each other."""
    run_verb(settings, "trust", {"trust_accept": yes or None}, ansible)


@cli.command()
@click.option("--site/--no-site", "on_site", default=None, help="Ask the site's nodes, too.")
@ansible_options
@click.pass_obj
def conform(settings: Settings, /, on_site: bool | None, **ansible: Any) -> None:
    """Check every promise of the suites' documentation, with fresh evidence for each."""
    run_verb(settings, "conform", {"site": on_site}, ansible)


@cli.command()
@click.option("--list", "listed", is_flag=True, default=None, help="Show the faults. Do nothing.")
@click.option("--only", metavar="NAMES", help="These faults only, separated by commas.")
@click.option("--confirm", metavar="SITE", help="The site's name: its training is disturbed.")
@click.option("--job", shell_complete=_complete_jobs, help="The job that is disturbed.")
@ansible_options
@click.pass_obj
def drill(
    settings: Settings,
    /,
    listed: bool | None,
    only: str | None,
    confirm: str | None,
    job: str | None,
    **ansible: Any,
) -> None:
    """Kill ranks, nodes and connections of a training on purpose, and check the result."""
    extra = {"list": listed or None, "only": only, "confirm": confirm, "config": job}
    run_verb(settings, "drill", extra, ansible)


@cli.command()
@job_argument
@click.option("--nodes", metavar="N,N,...", help="Numbers of nodes. Default: 1, 2, 4 ... all.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Stop each training after so long.")
@check_option
@ansible_options
@click.pass_obj
def bench(
    settings: Settings, /, job: str, nodes: str | None, minutes: float | None, **ansible: Any
) -> None:
    """Train a JOB on several numbers of nodes and show how its speed grows with them."""
    extra = {"config": job, "nodes": nodes, "minutes": minutes}
    run_verb(settings, "benchmark", extra, ansible)


@cli.command()
@job_argument
@check_option
@ansible_options
@click.pass_obj
def sync(settings: Settings, /, job: str, **ansible: Any) -> None:
    """Copy a JOB's code, data, weights and environment to the nodes, without a start."""
    run_verb(settings, "sync", {"config": job}, ansible)


@cli.command()
@click.option("--keep", type=click.IntRange(min=0), help="Keep the newest N runs of each job.")
@click.option("--older-than", metavar="DURATION", help="Remove older runs only, such as 14d.")
@click.option("--run", shell_complete=_complete_runs, help="Remove this run only.")
@click.option("--confirm", is_flag=True, default=None, help="Remove them. Without it: show them.")
@ansible_options
@click.pass_obj
def prune(
    settings: Settings,
    /,
    keep: int | None,
    older_than: str | None,
    run: str | None,
    confirm: bool | None,
    **ansible: Any,
) -> None:
    """Remove old runs on the nodes and on this machine by a rule."""
    extra = {"keep": keep, "older_than": older_than, "run": run, "confirm": confirm or None}
    run_verb(settings, "prune", extra, ansible)


@cli.command()
@click.argument("hosts", nargs=-1)
@click.option("--name", default="mysite", show_default=True, help="The site's name.")
@click.option("--hostfile", type=click.Path(path_type=Path), help="A hostfile of MPI or DeepSpeed.")
@click.option("--slurm", is_flag=True, help="The nodes of the Slurm allocation of this shell.")
@click.option("--user", help="The training account on the nodes.")
@click.option("--admin-user", help="The account with sudo, for `provision`.")
@click.option("--accelerator", type=click.Choice(["gpu", "ascend", "cpu"]), default="gpu")
@click.option("--devices", type=click.IntRange(min=1), help="Devices of each node.")
@click.option("--suite", help="The suite that is trained, such as paddledetection.")
@click.option("--code", metavar="PATH", help="Your checkout of the suite, on this machine.")
@click.option(
    "--data", multiple=True, metavar="NAME=PATH", help="A data set by its name in the configs."
)
@click.pass_obj
def init(settings: Settings, /, hosts: tuple[str, ...], **options: Any) -> None:
    """Write the files of a site with these HOSTS: [USER@]NAME[:PORT], in the order of the ranks.

    A name of your OpenSSH configuration is looked up there.
    """
    from . import site_files

    try:
        written = site_files.write_site(settings.product, hosts, options)
    except HostError as error:
        raise Refused(str(error)) from error
    for line in written.lines():
        click.echo(line)


@cli.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL.

    bash: add `eval "$(trainyard completion bash)"` to ~/.bashrc. zsh: the same in ~/.zshrc. fish:
    `trainyard completion fish > ~/.config/fish/completions/trainyard.fish`.
    """
    found = get_completion_class(shell)
    assert found, "SHELLS has only shells that click knows"
    click.echo(found(cli, {}, "trainyard", "_TRAINYARD_COMPLETE").source())


def main() -> None:
    """Run the command."""
    cli(prog_name="trainyard", auto_envvar_prefix=None)

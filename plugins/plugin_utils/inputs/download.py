# SPDX-License-Identifier: Apache-2.0
"""Downloads from a URL that a config names, which a node may have written.

The controller reaches more than a node does: its own services, its network link, the metadata of
its cloud. Only https is accepted, and only addresses outside these networks. Both are checked at
every redirect, and the address as the name is resolved for the very connection. A site can allow
single hosts.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import shutil
import socket
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, BinaryIO

OpenUrl = Callable[..., Any]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Bytes of one download or archive, and bytes that stay free on the controller's disk.
LARGEST_BYTES, FREE_BYTES = 64 << 30, 1 << 30
REDIRECTS, TIMEOUT_SECONDS = 5, 60
_REDIRECT_CODES = (301, 302, 303, 307, 308)
# The metadata services that are neither loopback nor link-local: AWS, Alibaba, Azure, Oracle.
METADATA = ("fd00:ec2::254", "fd00:ec2::23", "100.100.100.200", "168.63.129.16", "192.0.0.192")
THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
NAT64 = ipaddress.ip_network("64:ff9b::/96")

_NO_ADDRESS = "is no address; correct it with an override"


class Refused(Exception):
    """A URL that is not fetched. The message follows it."""


def displayed_url(url: str) -> str:
    """Return a URL for people, without a login and without its query."""
    parts = urllib.parse.urlsplit(url)
    return "{}://{}{}".format(parts.scheme, parts.netloc.rpartition("@")[2], parts.path)


def is_private(text: str) -> bool:
    """Return whether only this machine, its network link or its cloud has an address.

    Networks behind a router are not private in this sense.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    embedded = _embedded_ipv4(address)
    if embedded:
        return is_private(str(embedded))
    if address.is_loopback or address.is_link_local:
        return True
    if address.is_unspecified or address.is_multicast:
        return True
    if str(address) in METADATA:
        return True
    return address.version == 4 and address in THIS_NETWORK


def _embedded_ipv4(address: Address) -> Address | None:
    """Return the IPv4 address that an IPv6 address leads to, or None."""
    if address.version == 4:
        return None
    if address in NAT64:
        return ipaddress.ip_address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def validate(url: str, hosts: Collection[str]) -> str:
    """Return the host of a URL that may be fetched.

    hosts: names that the site allows, whatever address they have. Raises Refused.
    """
    parts, host = _split(url)
    if not host or parts.scheme not in ("http", "https"):
        raise Refused(_NO_ADDRESS)
    if parts.username is not None or parts.password is not None:
        raise Refused("carries a login; put it into ~/.netrc of the controller instead")
    if host in {name.lower() for name in hosts}:
        return host
    if parts.scheme != "https":
        raise Refused(
            "is not https, so anybody on the way can change it; override it with an https address"
            f" or a path, or list {host} in the site's weights.hosts"
        )
    with contextlib.suppress(ValueError):
        if is_private(host):
            raise Refused(_private(host))
    return host


def _split(url: str) -> tuple[urllib.parse.SplitResult, str]:
    """Return (parts, host) of a URL. Raises Refused where it is not one."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _port = (parts.hostname or "").lower(), parts.port  # (a bad port raises)
    except ValueError:
        raise Refused(_NO_ADDRESS) from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Refused(_NO_ADDRESS)
    return parts, host


def _private(host: str) -> str:
    return (
        f"means this machine, its network link or its cloud's metadata; list {host} in the site's"
        " weights.hosts if that is meant"
    )


@contextlib.contextmanager
def refuse_private_addresses(hosts: Collection[str]) -> Iterator[None]:
    """Refuse private addresses where a name is resolved within this context.

    So the address that is checked is the one that is connected to. A proxy that the user configured
    may lie on this machine.
    """
    allowed = {name.lower() for name in hosts} | _proxy_hosts()
    resolve = socket.getaddrinfo

    def resolve_checked(host: Any, *args: Any, **options: Any) -> list[Any]:
        rows = resolve(host, *args, **options)
        name = str(host)
        if isinstance(host, bytes):
            name = host.decode("ascii", "replace")
        if name.lower() not in allowed and any(is_private(text) for text in _ip_addresses(rows)):
            raise Refused(_private(name))
        return rows

    socket.getaddrinfo = resolve_checked
    try:
        yield
    finally:
        socket.getaddrinfo = resolve


def _proxy_hosts() -> set[str]:
    """Return the names of the proxies that the user configured."""
    names = set()
    for url in urllib.request.getproxies().values():
        if "://" not in url:
            url = "//" + url
        name = urllib.parse.urlsplit(url).hostname
        if name:
            names.add(name)
    return names


def _ip_addresses(rows: Iterable[Any]) -> list[str]:
    """Return the IPv4 and IPv6 addresses of getaddrinfo's result."""
    return [row[4][0] for row in rows if row[0] in (socket.AF_INET, socket.AF_INET6)]


@contextlib.contextmanager
def open_checked(url: str, hosts: Collection[str], open_url: OpenUrl) -> Iterator[Any]:
    """Open a URL and give its answer, every redirect checked.

    open_url: like ansible.module_utils.urls.open_url. Raises Refused, OSError.
    """
    with refuse_private_addresses(hosts):
        for _count in range(REDIRECTS + 1):
            validate(url, hosts)
            try:
                answer = open_url(url, timeout=TIMEOUT_SECONDS, follow_redirects="none")
            except urllib.error.HTTPError as error:
                url = urllib.parse.urljoin(url, _redirect_target(error))
                continue
            except urllib.error.URLError as error:
                if isinstance(error.reason, Refused):
                    raise error.reason from None
                raise
            with answer:
                yield answer
            return
        raise Refused(f"redirects more than {REDIRECTS} times")


def _redirect_target(error: urllib.error.HTTPError) -> str:
    """Return the target of an HTTP error that is a redirect. Raises any other one."""
    target = None
    if error.code in _REDIRECT_CODES:
        target = error.headers.get("Location")
    if not target:
        raise error
    return target


def copy_body(answer: Any, handle: BinaryIO) -> str:
    """Copy the body of an open URL into an open file and return its sha256.

    Raises Refused where it is larger than weights are, OSError.
    """
    digest, size = hashlib.sha256(), 0
    folder = tempfile.gettempdir()
    if isinstance(handle.name, str):
        folder = handle.name
    while True:
        chunk = answer.read(1 << 20)
        if not chunk:
            return digest.hexdigest()
        size += len(chunk)
        if size > LARGEST_BYTES:
            raise Refused(f"brings more than {LARGEST_BYTES} bytes")
        if not (size >> 20) % 64 and shutil.disk_usage(folder).free < FREE_BYTES:
            raise OSError("the disk of the controller's cache is full")
        digest.update(chunk)
        handle.write(chunk)

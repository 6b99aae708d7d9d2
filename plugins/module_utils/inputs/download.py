# SPDX-License-Identifier: Apache-2.0
"""Fetch from a URL that a config names, which a node may have written. Controller only.

The controller reaches more than a node does: its own services, its network link, the metadata of
its cloud. Only https is taken, and only addresses beyond those, at every redirect and as the name
is resolved at the very connection. A site can allow single hosts.
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

# Bytes of one download or archive; bytes that stay free on the controller's disk.
LARGEST, FREE = 64 << 30, 1 << 30
REDIRECTS, SECONDS = 5, 60
# The metadata services that are neither loopback nor link-local: AWS, Alibaba, Azure, Oracle.
METADATA = ("fd00:ec2::254", "fd00:ec2::23", "100.100.100.200", "168.63.129.16", "192.0.0.192")
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Refused(Exception):
    """A URL is not fetched; the message follows it."""


def shown(url):
    """Return a URL for people: without a login and without its query."""
    parts = urllib.parse.urlsplit(url)
    return "{}://{}{}".format(parts.scheme, parts.netloc.rpartition("@")[2], parts.path)


def is_private(text):
    """Whether an address is one that only this machine, its link or its cloud has. Networks behind
    a router are not meant.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if address.version == 6:
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = ipaddress.ip_address(int(address) & 0xFFFFFFFF)
        if inner:
            return is_private(str(inner))
    known = (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
    )
    return (
        known
        or str(address) in METADATA
        or (address.version == 4 and address in ipaddress.ip_network("0.0.0.0/8"))
    )


def validate(url, hosts):
    """Return the host of a URL that may be fetched. hosts: names that the site allows whatever they
    are. Raises Refused.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, _port = (
            (parts.hostname or "").lower(),
            parts.port,
        )  # a port that is not a number raises
    except ValueError:
        raise Refused("is no address; correct it with an override") from None
    if (
        not host
        or parts.scheme not in ("http", "https")
        or not url.isascii()
        or not url.isprintable()
        or " " in url
    ):
        raise Refused("is no address; correct it with an override")
    if parts.username is not None or parts.password is not None:
        raise Refused("carries a login; put it into ~/.netrc of the controller instead")
    if host in {name.lower() for name in hosts}:
        return host
    if parts.scheme != "https":
        raise Refused(f"is not https, so anybody on the way can change it; override it with an https address or a path, or list {host} in "
                      "the site's weights.hosts")  # fmt: skip
    with contextlib.suppress(ValueError):
        if is_private(host):
            raise Refused(_private(host))
    return host


def _private(host):
    return (
        f"means this machine, its network link or its cloud's metadata; list {host} in the site's"
        " weights.hosts if that is meant"
    )


@contextlib.contextmanager
def resolving(hosts):
    """Refuse private addresses where a name is resolved within, so that the address checked is the
    one connected to.

    A proxy that the user configured may lie on this machine.
    """
    proxies = {
        urllib.parse.urlsplit(url if "://" in url else "//" + url).hostname
        for url in urllib.request.getproxies().values()
    }
    allowed = {name.lower() for name in hosts} | {name for name in proxies if name}
    before = socket.getaddrinfo

    def checked(host, *args, **more):
        found = before(host, *args, **more)
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
        if name.lower() not in allowed and any(
            is_private(item[4][0]) for item in found if item[0] in (socket.AF_INET, socket.AF_INET6)
        ):
            raise Refused(_private(name))
        return found

    socket.getaddrinfo = checked
    try:
        yield
    finally:
        socket.getaddrinfo = before


@contextlib.contextmanager
def opened(url, hosts, open_url):
    """Open a URL, every redirect checked. open_url: like ansible.module_utils.urls.open_url. Raises
    Refused, OSError.
    """
    with resolving(hosts):
        for _count in range(REDIRECTS + 1):
            validate(url, hosts)
            try:
                answer = open_url(url, timeout=SECONDS, follow_redirects="none")
            except urllib.error.HTTPError as error:
                target = (
                    error.headers.get("Location")
                    if error.code in (301, 302, 303, 307, 308)
                    else None
                )
                if not target:
                    raise
                url = urllib.parse.urljoin(url, target)
                continue
            except urllib.error.URLError as error:
                if isinstance(error.reason, Refused):
                    raise error.reason from None
                raise
            with answer:
                yield answer
            return
        raise Refused("redirects more than %d times" % REDIRECTS)


def copy(answer, handle):
    """Copy what an open URL brings into an open file and return its sha256. Raises Refused where it
    is larger than weights are, OSError.
    """
    total, size = hashlib.sha256(), 0
    folder = handle.name if isinstance(handle.name, str) else tempfile.gettempdir()
    while True:
        chunk = answer.read(1 << 20)
        if not chunk:
            return total.hexdigest()
        size += len(chunk)
        if size > LARGEST:
            raise Refused("brings more than %d bytes" % LARGEST)
        if not (size >> 20) % 64 and shutil.disk_usage(folder).free < FREE:
            raise OSError("the disk of the controller's cache is full")
        total.update(chunk)
        handle.write(chunk)

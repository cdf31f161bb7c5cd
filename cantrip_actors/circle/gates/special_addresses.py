"""The addresses that are not on the public internet, by the IANA special-purpose registries.

They are the outermost blocks of https://www.iana.org/assignments/iana-ipv4-special-registry and of
https://www.iana.org/assignments/iana-ipv6-special-registry that are not "Globally Reachable". The version of Python
does not change the answer, as that of `ipaddress` does.
"""

from __future__ import annotations

from ipaddress import IPv6Network, ip_network
from typing import Final

UNICAST: Final = IPv6Network("2000::/3")
"""The only IPv6 addresses that IANA allocates to hosts."""

REFUSED: Final = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by the customers of a carrier; Alibaba's metadata
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure's metadata, in a block that is public otherwise
            "169.254.0.0/16",  # link local; the metadata of most clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocols; anycast that a home router may answer; Oracle's metadata
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved
            "2001::/23",  # protocols; anycast that a home router may answer
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)
"""Blocks of IPv4, and of UNICAST."""

REACHABLE: Final = tuple(map(ip_network, ("2001:3::/32", "2001:4:112::/48", "2001:20::/28", "2001:30::/28")))
"""Blocks inside of those that are on the public internet: AMT, AS112, ORCHIDv2 and the tags of drones."""

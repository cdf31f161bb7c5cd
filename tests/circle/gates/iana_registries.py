"""The IANA special-purpose address registries, and the addresses of clouds' metadata services, as data for tests.

`REGISTRY` holds every row of https://www.iana.org/assignments/iana-ipv4-special-registry and of
https://www.iana.org/assignments/iana-ipv6-special-registry: the block, its name, and the column "Globally Reachable",
False where the registry says "N/A".
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

_ROWS: Final[tuple[tuple[str, str, bool], ...]] = (
    ("0.0.0.0/8", "This network", False),
    ("0.0.0.0/32", "This host on this network", False),
    ("10.0.0.0/8", "Private-Use", False),
    ("100.64.0.0/10", "Shared Address Space", False),
    ("127.0.0.0/8", "Loopback", False),
    ("169.254.0.0/16", "Link Local", False),
    ("172.16.0.0/12", "Private-Use", False),
    ("192.0.0.0/24", "IETF Protocol Assignments", False),
    ("192.0.0.0/29", "IPv4 Service Continuity Prefix", False),
    ("192.0.0.8/32", "IPv4 dummy address", False),
    ("192.0.0.9/32", "Port Control Protocol Anycast", True),
    ("192.0.0.10/32", "Traversal Using Relays around NAT Anycast", True),
    ("192.0.0.170/32", "NAT64/DNS64 Discovery", False),
    ("192.0.0.171/32", "NAT64/DNS64 Discovery", False),
    ("192.0.2.0/24", "Documentation (TEST-NET-1)", False),
    ("192.31.196.0/24", "AS112-v4", True),
    ("192.52.193.0/24", "AMT", True),
    ("192.88.99.0/24", "Deprecated (6to4 Relay Anycast)", False),
    ("192.88.99.2/32", "6a44-relay anycast address", False),
    ("192.168.0.0/16", "Private-Use", False),
    ("192.175.48.0/24", "Direct Delegation AS112 Service", True),
    ("198.18.0.0/15", "Benchmarking", False),
    ("198.51.100.0/24", "Documentation (TEST-NET-2)", False),
    ("203.0.113.0/24", "Documentation (TEST-NET-3)", False),
    ("240.0.0.0/4", "Reserved", False),
    ("255.255.255.255/32", "Limited Broadcast", False),
    ("::1/128", "Loopback Address", False),
    ("::/128", "Unspecified Address", False),
    ("::ffff:0:0/96", "IPv4-mapped Address", False),
    ("64:ff9b::/96", "IPv4-IPv6 Translation", True),
    ("64:ff9b:1::/48", "IPv4-IPv6 Translation", False),
    ("100::/64", "Discard-Only Address Block", False),
    ("100:0:0:1::/64", "Dummy IPv6 Prefix", False),
    ("2001::/23", "IETF Protocol Assignments", False),
    ("2001::/32", "TEREDO", False),
    ("2001:1::1/128", "Port Control Protocol Anycast", True),
    ("2001:1::2/128", "Traversal Using Relays around NAT Anycast", True),
    ("2001:1::3/128", "DNS-SD Service Registration Protocol Anycast", True),
    ("2001:2::/48", "Benchmarking", False),
    ("2001:3::/32", "AMT", True),
    ("2001:4:112::/48", "AS112-v6", True),
    ("2001:10::/28", "Deprecated (previously ORCHID)", False),
    ("2001:20::/28", "ORCHIDv2", True),
    ("2001:30::/28", "Drone Remote ID Protocol Entity Tags (DETs) Prefix", True),
    ("2001:db8::/32", "Documentation", False),
    ("2002::/16", "6to4", False),
    ("2620:4f:8000::/48", "Direct Delegation AS112 Service", True),
    ("3fff::/20", "Documentation", False),
    ("5f00::/16", "Segment Routing (SRv6) SIDs", False),
    ("fc00::/7", "Unique-Local", False),
    ("fe80::/10", "Link-Local Unicast", False),
)

REGISTRY: Final[tuple[tuple[IPv4Network | IPv6Network, str, bool], ...]] = tuple(
    (ip_network(block), name, reachable) for block, name, reachable in _ROWS
)
"""Each block of both registries, its name, and whether the registry calls it globally reachable."""

LOCAL_SERVICES: Final = tuple(
    map(
        ip_network,
        (
            # Anycast that the registry calls globally reachable: the nearest server answers, maybe a home router.
            "192.0.0.9/32",
            "192.0.0.10/32",
            "2001:1::1/128",
            "2001:1::2/128",
            "2001:1::3/128",
            # Metadata, in blocks that are public or that a registry could free.
            "168.63.129.16/32",  # Azure
            "169.254.169.254/32",  # AWS, Azure, Google and most others
            "169.254.170.2/32",  # AWS ECS
            "169.254.169.123/32",  # AWS: time
            "100.100.100.200/32",  # Alibaba
            "192.0.0.192/32",  # Oracle
            "fd00:ec2::254/128",  # AWS
            "fd00:ec2::23/128",  # AWS EKS
            "fd20:ce::254/128",  # Google
        ),
    )
)
"""Addresses of services in the host's own network, whatever a registry says about their block."""

"""Which addresses anybody on the internet may mean, and which ones reach what is private. Pure."""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IANA's special-purpose registries (RFC 6890), with what clouds put behind them: 169.254.169.254
# and fd00:ec2::254 answer with the machine's own credentials. 6to4 (2002::/16), Teredo (2001::/32)
# and IPv4-translated addresses (::ffff:0:0:0/96) carry an IPv4 address that a relay would dial.
_DENIED: tuple[Network, ...] = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "::/64", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16",
        "64:ff9b:1::/48", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
)  # fmt: skip
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Say whether what `address` means is neither private nor special."""
    each = meant(address)
    return not any(each in network for network in _DENIED)


def is_all_special(network: Network) -> bool:
    """Say whether nothing in `network` is public: who names it means what is private."""
    return any(
        isinstance(network, type(each)) and network.subnet_of(each)  # type: ignore[arg-type]
        for each in _DENIED
    )


def meant(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for (RFC 4291, RFC 6052), or itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address

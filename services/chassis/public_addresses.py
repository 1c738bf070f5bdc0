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

# Where clouds answer whoever asks with the machine's own credentials and configuration. Link-local
# addresses are among them as a whole: AWS, GCP, Azure, Oracle, DigitalOcean, Hetzner, OpenStack and
# others use 169.254.169.254, AWS also 169.254.170.2 and .23 for containers, OpenStack
# fe80::a9fe:a9fe.
_METADATA: tuple[Network, ...] = tuple(
    ip_network(each)
    for each in (
        "169.254.0.0/16",
        "fe80::/10",
        "168.63.129.16/32",  # Azure's wire server
        "100.100.100.200/32",  # Alibaba
        "192.0.0.192/32",  # Oracle Cloud Classic
        "fd00:ec2::/32",  # AWS: 254 instances, 23 EKS pods, 253 DNS, 123 time
        "fd20:ce::254/128",  # GCP
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "fd00:42::42/128",  # Scaleway
    )
)
# RFC 1918, RFC 6598, RFC 4193.
_PRIVATE: tuple[Network, ...] = tuple(
    ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
# IANA's special-purpose registries (RFC 6890). 6to4 (2002::/16), Teredo (2001::/32) and
# IPv4-translated addresses (::ffff:0:0:0/96) carry an IPv4 address that a relay would dial.
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
    """Say whether what `address` means is neither private, special nor a metadata service."""
    each = meant(address)
    return not any(each in network for network in _DENIED) and not is_metadata(each)


def is_private(address: Address) -> bool:
    """Say whether `address` belongs to a private network and is no metadata service's."""
    each = meant(address)
    return any(each in network for network in _PRIVATE) and not is_metadata(each)


def is_metadata(address: Address) -> bool:
    """Say whether a metadata service of a cloud answers there. No name may lead to one, whatever
    allows the name.
    """
    each = meant(address)
    return any(each in network for network in _METADATA)


def is_loopback(address: Address) -> bool:
    """Say whether `address` is this machine by definition: loopback, or unspecified, which the
    kernel dials as loopback.
    """
    each = meant(address)
    return each.is_loopback or each.is_unspecified


def is_literal(network: Network, address: Address) -> bool:
    """Say whether who wrote `network` meant this very address: it alone, or loopback addresses."""
    if address not in network:
        return False
    return network.num_addresses == 1 or network.is_loopback


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

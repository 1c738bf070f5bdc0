//! Which addresses host candidates are made of; those of servers come from the module `servers`.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Return the addresses of this machine's interfaces that are up, IPv4 first.
///
/// Link-local ones are left out, as is loopback (RFC 8445, section 5.1.1.1) unless there is
/// nothing else: no two peers would meet on a machine without a network.
pub fn host_addresses() -> io::Result<Vec<IpAddr>> {
    Ok(offered(interface_addresses()?))
}

fn offered(found: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut kept: Vec<IpAddr> = found
        .into_iter()
        .filter(|address| match address {
            IpAddr::V4(v4) => !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified()),
            IpAddr::V6(v6) => {
                !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified())
            }
        })
        .collect();
    if kept.is_empty() {
        kept = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    kept.sort_by_key(|address| (address.is_ipv6(), *address));
    kept.dedup();
    kept
}

fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs(3) fills `first` with a list that lives until freeifaddrs(3); each
    // address is read as the type that its family names.
    unsafe {
        if libc::getifaddrs(&raw mut first) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut next = first;
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
            if !is_up || entry.ifa_addr.is_null() || CStr::from_ptr(entry.ifa_name).is_empty() {
                continue;
            }
            match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    found.push(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into());
                }
                libc::AF_INET6 => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    found.push(Ipv6Addr::from(address.sin6_addr.s6_addr).into());
                }
                _ => {}
            }
        }
        libc::freeifaddrs(first);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn loopback_is_offered_only_where_nothing_else_is() {
        let alone = addresses(&["::1", "127.0.0.1", "fe80::1"]);
        assert_eq!(offered(alone), addresses(&["127.0.0.1", "::1"]));
        let with_others = addresses(&["127.0.0.1", "2001:db8::2", "192.0.2.2", "192.0.2.2"]);
        assert_eq!(
            offered(with_others),
            addresses(&["192.0.2.2", "2001:db8::2"])
        );
    }

    #[test]
    fn this_machine_has_addresses() {
        assert!(!host_addresses().unwrap().is_empty());
    }
}

//! Classifies IP addresses: public, private, or never to be fetched from.
//!
//! Only what is routed on the public internet counts as public. What is neither listed here nor in a registry of
//! special addresses is public; of IPv6 only 2000::/3 is handed out at all, so everything else is refused. Addresses
//! that carry an IPv4 address within (mapped, 6to4, NAT64, Teredo) are ways around the list, and are refused as such.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Class of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressClass {
    /// May be fetched from.
    Public,
    /// Only if the configuration allows it; says what it is.
    Private(&'static str),
    /// Never: no server of files is there.
    Never(&'static str),
}

/// Services of cloud providers that hand out the machine's credentials to whoever can ask. In order: the address of
/// most providers, that of AWS for containers, that of Alibaba Cloud, and Azure's WireServer.
const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
];
/// The same services of AWS and of Google Cloud, over IPv6.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Ranges of IPv4 that are not public: network, bits of its prefix, what it is.
const NETWORKS_V4: [(Ipv4Addr, u32, &str); 13] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this host"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "behind a carrier's NAT"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "for protocols"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "for documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "6to4"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for benchmarks"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "for documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "for documentation"),
];

/// Ranges of IPv6 that are not public; the first that fits says what it is.
const NETWORKS_V6: [(Ipv6Addr, u32, &str); 11] = [
    (Ipv6Addr::LOCALHOST, 128, "loopback"),
    (v6(0, 0, 0xffff), 96, "an IPv4 address in IPv6"),
    (Ipv6Addr::UNSPECIFIED, 96, "an IPv4 address in IPv6"),
    (v6(0x64, 0xff9b, 0), 32, "NAT64"),
    (v6(0xfc00, 0, 0), 7, "private"),
    (v6(0xfe80, 0, 0), 10, "link-local"),
    (v6(0xfec0, 0, 0), 10, "site-local"),
    (v6(0x2001, 0, 0), 23, "for protocols"),
    (v6(0x2001, 0xdb8, 0), 32, "for documentation"),
    (v6(0x2002, 0, 0), 16, "6to4"),
    (v6(0x3fff, 0, 0), 20, "for documentation"),
];

/// `a:b::` with `sixth` before the last 32 bits.
const fn v6(a: u16, b: u16, sixth: u16) -> Ipv6Addr {
    Ipv6Addr::new(a, b, 0, 0, 0, sixth, 0, 0)
}

/// Returns the class of an address.
pub(super) fn classify_address(address: IpAddr) -> AddressClass {
    match address {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    }
}

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    if METADATA_V4.contains(&address) {
        return AddressClass::Never("a metadata service");
    }
    if address.is_unspecified() {
        return AddressClass::Never("unspecified");
    }
    if address.is_multicast() {
        return AddressClass::Never("multicast");
    }
    if address.octets()[0] >= 240 {
        return AddressClass::Never("reserved");
    }
    let network = NETWORKS_V4.iter().find(|(network, bits, _)| {
        let mask = u32::MAX << (32 - bits);
        address.to_bits() & mask == network.to_bits()
    });
    network.map_or(AddressClass::Public, |(_, _, what)| {
        AddressClass::Private(what)
    })
}

fn classify_v6(address: Ipv6Addr) -> AddressClass {
    if METADATA_V6.contains(&address) {
        return AddressClass::Never("a metadata service");
    }
    if address.is_unspecified() {
        return AddressClass::Never("unspecified");
    }
    if address.is_multicast() {
        return AddressClass::Never("multicast");
    }
    // A forbidden address embedded in another one is forbidden too.
    let disguised = carried(address).map(classify_v4);
    if let Some(AddressClass::Never(what)) = disguised {
        return AddressClass::Never(what);
    }
    let network = NETWORKS_V6.iter().find(|(network, bits, _)| {
        let mask = u128::MAX << (128 - bits);
        address.to_bits() & mask == network.to_bits()
    });
    match network {
        Some((_, _, what)) => AddressClass::Private(what),
        None if address.segments()[0] & 0xe000 == 0x2000 => AddressClass::Public,
        None => AddressClass::Never("reserved"),
    }
}

/// The IPv4 address that an IPv6 address leads to, where it is of a kind that does.
fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, _, _, f, g, h] = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match (a, b) {
        (0x2002, _) => Some(join(b, c)),
        (0x64, 0xff9b) => Some(join(g, h)),
        (0, 0) if f == 0xffff || (f == 0 && (g, h) != (0, 1)) => Some(join(g, h)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressClass, classify_address};

    fn check(addresses: &[&str], is: impl Fn(AddressClass) -> bool) {
        for text in addresses {
            let found = classify_address(text.parse().expect("an address"));
            assert!(is(found), "{text}: {found:?}");
        }
    }

    #[test]
    fn addresses_that_are_not_public_are_known() {
        let private = [
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "0.1.2.3",
            "169.254.1.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.19.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "::1",
            "::ffff:8.8.8.8",
            "::ffff:127.0.0.1",
            "::8.8.8.8",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::1.2.3.4",
            "2002:808:808::1",
            "2001::1",
            "2001:20::1",
            "2001:db8::1",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
        ];
        check(&private, |found| matches!(found, AddressClass::Private(_)));
    }

    #[test]
    fn addresses_without_a_server_of_files_are_never_reached() {
        let never = [
            "0.0.0.0",
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::ffff:0.0.0.0",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "100::1",
            "4000::1",
            "5f00::1",
        ];
        check(&never, |found| matches!(found, AddressClass::Never(_)));
    }

    #[test]
    fn addresses_next_to_the_ranges_are_public() {
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2001:200::1",
            "2003::1",
        ];
        check(&public, |found| found == AddressClass::Public);
    }
}

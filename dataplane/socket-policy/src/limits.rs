//! Room for rules and services, and for the exchanges of a pod.

/// How much is entered at most. Each is of one generation; there is room for two.
///
/// Pods and namespaces are entered from the one that needs least on. One that finds no room is
/// closed: a pod opens and accepts nothing that any of its rules may be about, and no pod with
/// rules opens anything at a service of such a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Networks of rules.
    pub networks: u32,
    /// Ranges of ports, each written once for all rules with the same ones; 12 bytes each.
    pub ranges: u32,
    /// Endpoints of services; 24 bytes each.
    pub endpoints: u32,
    /// Ports of services.
    pub services: u32,
    /// Exchanges of datagrams of one pod, in each direction, rounded down to a power of two.
    pub exchanges: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            networks: 1 << 18,
            ranges: 1 << 17,
            endpoints: 1 << 18,
            services: 1 << 17,
            exchanges: 1 << 10,
        }
    }
}

//! The addresses of a pod or an endpoint.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Addresses of one thing; one alone, as most pods and all endpoints that Kubernetes writes have, takes no memory of its own.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<IpAddr>", into = "Vec<IpAddr>")]
pub enum Addresses {
    /// One.
    One(IpAddr),
    /// None or several.
    Several(Box<[IpAddr]>),
}

impl Default for Addresses {
    fn default() -> Self {
        Self::Several(Box::default())
    }
}

impl fmt::Debug for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl std::ops::Deref for Addresses {
    type Target = [IpAddr];

    fn deref(&self) -> &[IpAddr] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Several(addresses) => addresses,
        }
    }
}

impl<'a> IntoIterator for &'a Addresses {
    type Item = &'a IpAddr;
    type IntoIter = std::slice::Iter<'a, IpAddr>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Vec<IpAddr>> for Addresses {
    fn from(addresses: Vec<IpAddr>) -> Self {
        match addresses[..] {
            [address] => Self::One(address),
            _ => Self::Several(addresses.into()),
        }
    }
}

impl From<Addresses> for Vec<IpAddr> {
    fn from(addresses: Addresses) -> Self {
        addresses.to_vec()
    }
}

//! The switch's own interfaces and tables: their names, and the removal of those that a failed start has created.

use super::error::Error;
use super::netlink::Netlink;
use super::nft::{self, WholeTable};
use super::wireguard::{SECOND_WIREGUARD_DEVICE, WIREGUARD_DEVICE};
use super::{filter, host_port, masquerade, punt, redirect};

/// Both ends of the host port, and of the links between the switch and flow offload, and the WireGuard devices.
pub const OWN_LINKS: [&str; 8] = [
    host_port::SWITCH_END,
    host_port::KERNEL_END,
    punt::SWITCH_END,
    punt::KERNEL_END,
    punt::UPLINK_SWITCH_END,
    punt::UPLINK_KERNEL_END,
    WIREGUARD_DEVICE,
    SECOND_WIREGUARD_DEVICE,
];

/// The tables about packets of the host port and of the uplink. Others enforce policies.
const PATH_TABLES: [&str; 3] = [masquerade::Rules::TABLE, filter::Rules::TABLE, redirect::TABLE];

/// The switch's own interfaces that existed at one moment.
#[derive(Debug)]
pub struct Footprint(Vec<&'static str>);

impl Footprint {
    /// Reads which of them exist in the calling thread's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel does not answer.
    pub fn read() -> Result<Self, Error> {
        let mut netlink = Netlink::open()?;
        let mut there = Vec::new();
        for name in OWN_LINKS {
            there.extend(netlink.find_link(name)?.map(|_| name));
        }
        Ok(Self(there))
    }

    /// Removes those that were made since, and the tables that came with the host port. Tables that
    /// enforce policies stay.
    ///
    /// # Errors
    /// Names those that remain.
    pub fn restore(&self) -> Result<(), Error> {
        let mut netlink = Netlink::open()?;
        let mut left = Vec::new();
        let is_new = |name: &&str| !self.0.contains(name);
        for name in OWN_LINKS.into_iter().filter(is_new) {
            let deleted = netlink.find_link(name).and_then(|link| match link {
                Some(link) => netlink.delete_link(link.index),
                None => Ok(()),
            });
            left.extend(deleted.err().filter(|error| !error.is_not_found()));
        }
        if is_new(&host_port::KERNEL_END) {
            let is_ours = |table: &String| {
                table.split_once(' ').is_some_and(|(_, name)| PATH_TABLES.contains(&name))
            };
            match nft::own_tables() {
                Ok(tables) => {
                    let ours = tables.iter().filter(|table| is_ours(table));
                    left.extend(ours.filter_map(|table| nft::delete_table(table).err()));
                }
                Err(error) => left.push(error),
            }
        }
        Error::all("restore the network", &left)
    }
}

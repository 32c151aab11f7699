//! Interfaces, routes and tables of the kernel, in namespaces of the tests' own.

mod host_port;
mod interfaces;
mod routes;
mod tables;

use linux_net::{MacAddress, VethEnd};

pub(crate) fn end(name: &str, last: u8) -> VethEnd {
    VethEnd { name: name.into(), mac: MacAddress([2, 0, 0, 0, 0, last]) }
}

pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

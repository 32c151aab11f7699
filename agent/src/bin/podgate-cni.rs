//! The `podgate-cni` binary.

fn main() {}

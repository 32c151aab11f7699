//! The `podgate` binary.

fn main() {}

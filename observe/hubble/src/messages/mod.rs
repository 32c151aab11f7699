//! Messages of the Hubble Observer API, version 1, generated from `proto/`.
//!
//! Field numbers are those of the public proto files `api/v1/{observer,flow,relay,peer}` of Cilium and of
//! `grpc.health.v1`. Fields that the switch neither fills nor reads are left out: a reader skips them.
//! `cargo run --manifest-path observe/hubble/proto/Cargo.toml` writes the files anew.
#![allow(missing_docs)]

pub mod flow;
pub mod health;
pub mod observer;
pub mod peer;

/// Types of the protobuf library.
pub mod google {
    pub mod protobuf;
}

pub use google::protobuf::{FieldMask, Timestamp};

/// A request without fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

#[cfg(test)]
mod tests {
    use std::hash::Hasher as _;

    #[test]
    fn generated_files_are_those_of_the_proto_files() {
        macro_rules! files {
            ($($name:literal),*) => {
                [$((
                    $name,
                    include_str!(concat!("../../proto/", $name, ".proto")),
                    include_str!(concat!($name, ".rs")),
                )),*]
            };
        }
        for (name, proto, code) in files!["flow", "health", "observer", "peer"] {
            let mut hasher = fnv::FnvHasher::default();
            hasher.write(proto.as_bytes());
            let head = format!("// Of {name}.proto, FNV-1a {:016x}.", hasher.finish());
            assert_eq!(code.lines().nth(1), Some(&*head), "see the head of messages/mod.rs");
        }
    }
}

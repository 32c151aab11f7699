//! Compiles the programs of flow offload.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("flow", &["bpf/flow.h", "../bpf/barrier.h", "../bpf/uplink.h"]);
}

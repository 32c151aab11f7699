//! Compiles the programs of socket policy.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile(
        "socket",
        &["bpf/socket.h", "bpf/packets.h", "../bpf/barrier.h", "../bpf/counters.h"],
    );
}

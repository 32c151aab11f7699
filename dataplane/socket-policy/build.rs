//! Compiles the programs of socket policy.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile(
        "socket",
        &[
            "bpf/exchanges.h",
            "bpf/maps.h",
            "bpf/packets.h",
            "bpf/rules.h",
            "bpf/socket.h",
            "../bpf/barrier.h",
            "../bpf/counters.h",
        ],
    );
}

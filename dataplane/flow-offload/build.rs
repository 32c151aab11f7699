//! Compiles the programs of flow offload.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    let shared = [
        "../bpf/barrier.h",
        "../bpf/counters.h",
        "../bpf/ip.h",
        "../bpf/sealed.h",
        "../bpf/uplink.h",
    ];
    let own = [
        "bpf/flow.h",
        "bpf/forward.h",
        "bpf/maps.h",
        "bpf/packet.h",
        "bpf/partial_checksum.h",
        "bpf/templates.h",
        "bpf/tunnel.h",
    ];
    compile::compile("flow", &[&own[..], &shared].concat());
}

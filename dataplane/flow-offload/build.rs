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
    compile::compile("flow", &[&["bpf/flow.h"][..], &shared].concat());
}

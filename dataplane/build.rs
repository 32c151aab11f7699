//! Compiles the XDP programs that stand in front of AF_XDP sockets.

#[path = "bpf/compile.rs"]
mod compile;

fn main() {
    // Set by `scripts/model`.
    println!("cargo::rustc-check-cfg=cfg(podgate_loom)");
    if std::env::var_os("CARGO_FEATURE_AF_XDP").is_some() {
        compile::compile("port", &[]);
        compile::compile("uplink", &["bpf/ip.h", "bpf/uplink.h"]);
    }
}

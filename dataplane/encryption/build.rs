//! Compiles the programs of encryption.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    compile::compile("encryption", &["../bpf/counters.h", "../bpf/ip.h", "../bpf/sealed.h"]);
}

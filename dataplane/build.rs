//! Compiles the XDP programs that stand in front of AF_XDP sockets.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    // Set by `scripts/model`.
    println!("cargo::rustc-check-cfg=cfg(podgate_loom)");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    println!("cargo::rerun-if-changed=bpf/uplink.h");
    for name in ["port", "uplink"] {
        compile(&clang, name);
    }
}

fn compile(clang: &str, name: &str) {
    let source = format!("bpf/{name}.bpf.c");
    println!("cargo::rerun-if-changed={source}");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let status = Command::new(clang)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror"])
        // Debian keeps asm/types.h in the folder of the architecture.
        .arg(format!("-I/usr/include/{triple}"))
        .args(["-c", &source, "-o"])
        .arg(out.join(format!("{name}.bpf.o")))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "{clang} cannot compile {source} ({status}); Debian's packages clang, llvm and \
             libbpf-dev are needed"
        ),
        Err(error) => panic!("{clang} cannot be started ({error}); install Debian's package clang"),
    }
}

//! Compiles the programs of socket policy.

use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "bpf/socket.bpf.c";

fn main() {
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=bpf/socket.h");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror"])
        // Debian keeps asm/types.h in the folder of the architecture.
        .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
        .args(["-c", SOURCE, "-o"])
        .arg(out.join("socket.bpf.o"))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "{clang} cannot compile {SOURCE} ({status}); Debian's packages clang, llvm and \
             libbpf-dev are needed"
        ),
        Err(error) => panic!("{clang} cannot be started ({error}); install Debian's package clang"),
    }
}

//! Compiles programs for the kernel; build scripts include it.

use std::path::PathBuf;
use std::process::Command;

/// Compiles `bpf/NAME.bpf.c` of this package with clang, again when it or one of these headers changes.
pub(crate) fn compile(name: &str, headers: &[&str]) {
    let source = format!("bpf/{name}.bpf.c");
    println!("cargo::rerun-if-env-changed=CLANG");
    for file in [&*source].iter().chain(headers) {
        println!("cargo::rerun-if-changed={file}");
    }
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let here = std::env::current_dir().expect("the package's folder");
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror"])
        // The line information names files, and is part of `podgate`: the same in every folder.
        .arg(format!("-ffile-prefix-map={}=.", here.display()))
        // Debian keeps asm/types.h in the folder of the architecture.
        .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
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

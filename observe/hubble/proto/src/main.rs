//! Generates `src/messages` of `hubble` from the proto files.

use std::error::Error;
use std::hash::Hasher as _;
use std::path::Path;
use std::process::Command;

const NAMES: [&str; 4] = ["flow", "health", "observer", "peer"];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR"));
    let messages = proto.join("../src/messages");
    let files = NAMES.map(|name| format!("{name}.proto"));
    let mut config = prost_build::Config::new();
    config
        .out_dir(&messages)
        .compile_well_known_types()
        .disable_comments([".google"])
        .extern_path(".google.protobuf.BoolValue", "bool")
        .extern_path(".google.protobuf.UInt32Value", "u32")
        .boxed(".observer.GetFlowsResponse.response_types.flow");
    let descriptors = protox::compile(files, [proto])?;
    config.compile_fds(descriptors)?;
    for name in NAMES {
        let source = std::fs::read(proto.join(format!("{name}.proto")))?;
        let mut hasher = fnv::FnvHasher::default();
        hasher.write(&source);
        let path = messages.join(format!("{name}.rs"));
        let head = format!("// Of {name}.proto, FNV-1a {:016x}.\n", hasher.finish());
        let code = std::fs::read_to_string(&path)?;
        let (first, rest) = code.split_once('\n').ok_or("empty output")?;
        std::fs::write(&path, format!("{first}\n{head}{rest}"))?;
    }
    std::fs::rename(messages.join("google.protobuf.rs"), messages.join("google/protobuf.rs"))?;
    // With the modules below it.
    let all = messages.join("mod.rs");
    let formatted = Command::new("rustfmt").args(["--edition", "2024"]).arg(all).status()?;
    if !formatted.success() {
        return Err("rustfmt failed".into());
    }
    Ok(())
}

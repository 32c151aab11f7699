//! Runs `nft`: a script is one transaction, which is done as a whole or not at all.

use std::io::Write;
use std::process::{Command, Stdio};

/// Has `nft` carry out a script.
///
/// # Errors
/// In words, with what `nft` says.
pub(super) fn run(script: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            "nft is not there; install Debian's package nftables".into()
        }
        _ => format!("nft: {error}"),
    };
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // What it says about a script that it does not read to its end counts more than that.
    let written = nft.stdin.take().map_or(Ok(()), |mut input| input.write_all(script.as_bytes()));
    let output = nft.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => written.map_err(failed),
        false => Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

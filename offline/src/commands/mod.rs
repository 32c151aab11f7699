//! The commands that answer from files, without a running switch.
//!
//! - [`policy`]: `podgate policy …`, questions about policies,
//! - [`replay`]: `podgate replay`, a capture through the switch of one cluster node.

mod diff;
mod explain;
mod input;
mod lint;
mod picture;
pub mod policy;
pub mod replay;
mod suggest;
mod test;

/// A number with what it counts: `1 warning`, `2 warnings`.
fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A reader that closes the pipe is no failure and changes no verdict.
fn written(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

//! Commands that documents show, with their output.

use std::path::{Path, PathBuf};

/// A command of a document, and the lines behind it.
#[derive(Debug, Default)]
pub struct Shown {
    /// The command, without the prompt.
    pub command: String,
    /// The lines up to the next command.
    pub output: String,
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("a clone")
}

/// The blocks of commands behind a prompt, `$ ` or `# `, in a document.
pub fn blocks(text: &str, prompt: &str) -> Vec<Vec<Shown>> {
    let blocks = text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let read = |block: &str| {
        let mut all: Vec<Shown> = Vec::new();
        for line in block.lines() {
            match (line.strip_prefix(prompt), all.last_mut()) {
                (Some(command), _) => {
                    all.push(Shown { command: command.to_owned(), ..Shown::default() });
                }
                (None, Some(last)) if last.command.ends_with('\\') => {
                    last.command.push('\n');
                    last.command += line;
                }
                (None, Some(last)) => last.output += &format!("{line}\n"),
                (None, None) => {}
            }
        }
        all
    };
    blocks.map(read).collect()
}

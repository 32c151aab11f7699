//! The commands of the documents print what the documents show.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::documents::{Shown, blocks, repository};

/// Whether a command needs nothing but files of the repository.
fn is_about_files(command: &str) -> bool {
    let known = ["cd ", "echo ", "podgate policy ", "podgate replay "];
    let elsewhere = ["live", "origin/", "seen.json", "cases.yaml"];
    known.iter().any(|it| command.starts_with(it))
        && !elsewhere.iter().any(|it| command.contains(it))
}

/// Runs the commands of a block in one shell; returns what each printed.
fn run(block: &[Shown]) -> Vec<String> {
    const END: &str = "=== end ===";
    let mut script = String::new();
    for Shown { command, .. } in block {
        // Writing to a string does not fail.
        let _ = writeln!(script, "{command}\nstatus=$?\necho '{END}'\n(exit $status)");
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_podgate")).parent().expect("a folder").to_owned();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-c", &format!("exec 2>&1\n{script}")])
        .current_dir(repository())
        .env("PATH", path)
        .output()
        .expect("bash runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    printed.split(&format!("{END}\n")).map(str::to_owned).collect()
}

#[test]
fn commands_about_files_print_what_the_documents_show() {
    let docs = repository().join("docs");
    let pages = std::fs::read_dir(docs).expect("docs").map(|entry| entry.expect("a page").path());
    let mut pages: Vec<PathBuf> =
        pages.filter(|it| it.extension() == Some("md".as_ref())).collect();
    pages.push(repository().join("README.md"));
    let (mut failures, mut count) = (String::new(), 0);
    for page in pages {
        let name = page.file_name().expect("a file").to_string_lossy().into_owned();
        for block in blocks(&std::fs::read_to_string(&page).expect("text"), "$ ") {
            if block.is_empty() || !block.iter().all(|it| is_about_files(&it.command)) {
                continue;
            }
            for (shown, printed) in block.iter().zip(run(&block)) {
                count += 1;
                // A document may show a part.
                if !format!("\n{printed}").contains(&format!("\n{}", shown.output)) {
                    let Shown { command, output } = shown;
                    let _ = writeln!(failures, "{name}: {command}\n{output}but:\n{printed}");
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(count >= 10, "{count} commands");
}

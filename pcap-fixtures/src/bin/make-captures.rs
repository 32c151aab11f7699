//! Writes every generated file of the fixtures anew.

use std::fs;
use std::io;

use pcap_fixtures::{all_files, root};

fn main() -> io::Result<()> {
    let mut changed = 0;
    let files = all_files()?;
    for file in &files {
        let path = root().join(&file.path);
        if fs::read(&path).is_ok_and(|bytes| bytes == file.bytes) {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, &file.bytes)?;
        println!("wrote {}", path.display());
        changed += 1;
    }
    println!("{changed} of {} files changed", files.len());
    Ok(())
}

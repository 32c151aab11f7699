//! Configuration of the flow export.

use std::path::PathBuf;

use observe::export::{Export, filter};
use observe::verdicts::Filter;

use super::Faults;
use super::options::Options;

/// Verdicts to export, and their file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowExport {
    /// The file; `None`: no export.
    pub file: Option<PathBuf>,
    /// Size of a file in MB.
    pub max_size_mb: u32,
    /// Number of rotated files.
    pub backups: u32,
    filter: Option<Filter>,
}

impl FlowExport {
    pub(super) fn resolve(options: &Options, faults: &mut Faults) -> Self {
        let max_size_mb = options.flow_export_max_size_mb();
        faults.range("flow-export-max-size-mb", max_size_mb.into(), 1, 1 << 20);
        let backups = options.flow_export_max_backups();
        faults.range("flow-export-max-backups", backups.into(), 0, 1000);
        let text = options.flow_export_filter.clone().unwrap_or_default();
        let parsed = filter(&text);
        if let Err(problem) = &parsed {
            faults.add("flow-export-filter", format_args!("{problem}"));
        }
        if options.flow_export.as_ref().is_some_and(|path| path.file_name().is_none()) {
            faults.add("flow-export", format_args!("names no file"));
        }
        let file = options.flow_export.clone();
        Self { file, max_size_mb, backups, filter: parsed.ok() }
    }

    /// Returns the file and filter of the export; `None` without one.
    pub(crate) fn export(&self) -> Option<Export> {
        Some(Export {
            path: self.file.clone()?,
            max_bytes: u64::from(self.max_size_mb) * 1_000_000,
            backups: self.backups,
            filter: self.filter.clone()?,
        })
    }
}

//! `podgate policy schema`: JSON Schema of files.

use super::{Ended, print};
use crate::policy::schema;

/// Arguments of `podgate policy schema`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  podgate policy schema cases > cases.schema.json

Editors check files as they are written: in VS Code with the YAML extension, begin a file with
# yaml-language-server: $schema=cases.schema.json

Exit code: 0.")]
pub struct Schema {
    /// The kind of file
    #[arg(value_enum)]
    of: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Cases of podgate policy test
    Cases,
    /// Statements of podgate policy prove
    Statements,
    /// The configuration of podgate run
    Config,
}

impl Schema {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let schema = match self.of {
            Kind::Cases => schema::cases(),
            Kind::Statements => schema::statements(),
            Kind::Config => schema::config(),
        };
        Ok(print(&format!("{schema:#}\n"), 0))
    }
}

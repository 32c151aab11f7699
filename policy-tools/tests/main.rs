//! Tests of the offline commands, as one program.

mod policy;
mod probe;
mod revisions;

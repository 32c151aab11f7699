//! Tests of what the running switch reads and serves, as one program.

mod fuzz;
mod hostile;
mod monitoring;
mod paths;

//! Tests of the compiled forms against their definitions, as one program.

mod common;
mod equivalence;
mod fuzz;

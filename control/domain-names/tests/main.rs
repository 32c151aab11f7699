//! Tests of names in policies, as one program.

mod following;
mod fuzz;
mod table;
mod turns;

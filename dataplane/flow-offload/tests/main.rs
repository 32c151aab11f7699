//! Tests of flow offload, as one program.

mod between_nodes;
mod entries;
mod ingress;
mod questions;
mod rewrite;
mod services;
mod shares;
mod tags;
mod templates;
mod unfinished;

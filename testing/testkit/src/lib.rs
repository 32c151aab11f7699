//! Helpers for tests that move real packets.
//!
//! - [`api_server`]: an API server double,
//! - [`documents`]: commands that documents show,
//! - [`corpus`]: inputs for fuzz targets, replayed and spoiled,
//! - [`manifests`]: Kubernetes objects as YAML,
//! - [`protobuf`]: JSON as the API server's protobuf,
//! - [`packet`]: frames, built in one line each,
//! - [`eventually`]: waiting for what must happen,
//! - [`storm`]: many short TCP connections,
//! - [`TempDir`], [`unique_name`], [`make_fifo`]: files that no other test has,
//! - [`Namespace`]: a network namespace that is gone when the test is,
//! - [`RawSender`], [`RawReceiver`]: arbitrary frames out of an interface, and frames into one,
//! - [`Process`]: a program that ends with the test, its output kept,
//! - [`Boringtun`]: a WireGuard device where the kernel has none,
//! - [`workspace_binary`]: a program of another package of the workspace,
//! - [`requires!`] and [`requires_root!`]: what a test needs to run.
//!
//! # Skipped tests
//!
//! A test that cannot run where it stands is not a test that passed. Such a
//! test says what it needs in its first line:
//!
//! ```no_run
//! # #[allow(clippy::needless_doctest_main)]
//! #[test]
//! fn pods_reach_each_other() {
//!     testkit::requires_root!();
//!     testkit::requires!(testkit::has_program("redis-server"), "redis-server is not installed");
//!     // …
//! }
//! ```
//!
//! If the need is not met, the test writes one line to the process's standard error,
//! past the test harness's capture, and returns:
//!
//! ```text
//! SKIPPED crate::module::pods_reach_each_other: needs root
//! ```
//!
//! `grep '^SKIPPED '` over a test run's output lists and counts them. Where
//! nothing may be skipped (continuous integration), the environment variable
//! `PODGATE_REFUSE_SKIPS=1` makes the same test fail instead.

pub mod api_server;
mod binary;
mod boringtun;
mod btf;
pub mod corpus;
pub mod documents;
mod eventually;
pub mod manifests;
mod namespace;
pub mod packet;
mod process;
pub mod protobuf;
mod raw;
mod skip;
pub mod storm;
mod unique;

pub use binary::workspace_binary;
pub use boringtun::{BORINGTUN, Boringtun, mounting};
pub use btf::btf;
pub use eventually::{PATIENCE, eventually, transit};
pub use namespace::{Namespace, pings};
pub use process::Process;
pub use raw::{RawReceiver, RawSender};
#[doc(hidden)]
pub use skip::function_name;
pub use skip::{has_program, is_root, skipped};
pub use unique::{TempDir, make_fifo, unique_name};

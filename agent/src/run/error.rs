//! Why a switch does not start.

use super::kernel::KernelError;

/// Why the switch did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The input is unusable.
    #[error("{0}")]
    Input(String),
    /// A system resource could not be set up.
    #[error("{0}")]
    Failed(String),
}

impl From<KernelError> for StartError {
    fn from(error: KernelError) -> Self {
        Self::Failed(error.to_string())
    }
}
